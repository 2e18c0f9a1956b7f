"""The exercises of notebook 02, each with the function that computes its right value."""

from __future__ import annotations

from collections.abc import Callable

from g2c_serving.lab import hit_calculator
from g2c_serving.lab.exercises import exercise
from g2c_serving.schedule.block_manager import BlockManager


@exercise(
    "02.blocks_for",
    "Write blocks_for(tokens, block_size): the blocks that a request of so many tokens holds.",
    hint="Whole numbers only. What should 128 tokens give, and what 129?",
    cases=[(300, 128), (384, 128), (385, 128), (1, 16), (448, 16)],
    unit="blocks",
    rel=0,
)
def _blocks_for() -> Callable[[int, int], int]:
    return lambda tokens, block_size: BlockManager(1, block_size).blocks_for(tokens)


@exercise(
    "02.fork_copies",
    "A request of 300 tokens, in blocks of 128, is forked once, and both go on writing. The keys "
    "and values of how many tokens are copied?",
    hint="A full block is never written again, so nobody needs an own one.",
    unit="tokens",
    rel=0,
    why="Two blocks are full and shared; the third holds the other 44.",
)
def _fork_copies() -> int:
    return 300 - 300 // 128 * 128


@exercise(
    "02.samples",
    "A prompt of 300 tokens is forked into 32 samples, in blocks of 128, and each sample has "
    "written one token. How many blocks do all 32 hold together?",
    hint="Count the blocks that all share once, then those that each sample writes into.",
    unit="blocks",
    rel=0,
    why="Two full blocks for all, and a tail for each. Without sharing it would be 96.",
)
def _samples() -> int:
    shared, last = divmod(300, 128)
    return shared + 32 * BlockManager(1, 128).blocks_for(last + 1)


@exercise(
    "02.returning",
    "An agent comes back with 50,000 tokens. All global blocks are there, the window state is "
    "gone. How many tokens does V4.1-Flash's rule compute?",
    hint="First the cap, then whole blocks, then one block back. Who replays, computes.",
    unit="tokens",
    rel=0,
    why="The cap of 49,866 is 389 blocks; one back leaves 49,664 reused: 336 new, 128 replayed.",
)
def _returning() -> int:
    return hit_calculator.FLASH.hit(50_000, state_held=False).computed


@exercise(
    "02.whole_blocks",
    "tiny's engine has blocks of 16. A prompt of 320 tokens comes a second time, and every block "
    "of it is still cached. How many tokens are computed?",
    hint="The next token is drawn from logits, and those of the last token come from computing it.",
    unit="tokens",
    rel=0,
    why="Not 0, and not 1: a hit is a number of whole blocks, so the last one is computed again.",
)
def _whole_blocks() -> int:
    return hit_calculator.TINY.hit(320).computed


@exercise(
    "02.context_bytes",
    "V4.1-Flash keeps 890 bytes a token of global cache, and window state for 134 tokens in 20 "
    "layers at 528 bytes. How many MB (10^6 bytes) does a conversation of 30,000 tokens leave?",
    hint="One part grows with the conversation, the other does not.",
    unit="MB",
    rel=0.005,
    why="26.7 MB of global cache and 1.4 MB of window state.",
)
def _context_bytes() -> float:
    return (hit_calculator.global_bytes(30_000) + hit_calculator.WINDOW_BYTES) / 1e6
