"""The hit rule: how much of a returning request comes from the cache, and what is computed.

Reported for DeepInfer (Brief, section 2): of an input of L tokens at most L - 134 can come from the
cache, a window of 128 and 6 tokens of slack for speculative decoding; the global blocks set the
length of the hit; where the sliding-window state at its end is missing, the server backs off one
block and replays the last 128 tokens of the hit to rebuild it.

    0                     reused - replayed          reused                     length
    |---- from the cache ------------|---- replayed ----|---- new ---------------|

Left out: everything that DeepInfer does not say of the rule, such as the lookup across machines.
"""

from __future__ import annotations

from dataclasses import dataclass

from g2c_serving.checks import as_int


@dataclass(frozen=True)
class Hit:
    """Tokens of one request: `reused` of the cache, `replayed` of those for their window state
    alone, `new` ones after them."""

    reused: int
    replayed: int
    new: int

    @property
    def computed(self) -> int:
        """Tokens that go through the model."""
        return self.replayed + self.new


def hit(
    length: int,
    block_size: int,
    window: int = 0,
    slack: int = 1,
    *,
    cached: int | None = None,
    state_held: bool = True,
) -> Hit:
    """What a request of `length` tokens reuses and computes.

    window, slack   tokens that never come from the cache; together at least 1, so that there is
                    always a token to compute logits from
    cached          tokens that the global blocks hold of it; None: all
    state_held      whether the window state at the end of the hit is still there

    ValueError for a number that is negative, or a window and slack of 0.
    """
    length, block_size = as_int("length", length, 1), as_int("block_size", block_size, 1)
    window, slack = as_int("window", window, 0), as_int("slack", slack, 0)
    cached = length if cached is None else as_int("cached", cached, 0)
    if window + slack == 0:
        raise ValueError("window=0 and slack=0: one of them must be 1 or more, or nothing is left "
                         "to compute the next token from")  # fmt: skip
    return _split(length, block_size, window, slack, cached, state_held)


def _split(
    length: int, block_size: int, window: int, slack: int, cached: int, state_held: bool
) -> Hit:
    """The rule itself."""
    blocks = max(0, min(cached, length - window - slack)) // block_size  # under the cap
    if state_held or window == 0 or blocks == 0:
        return Hit(blocks * block_size, 0, length - blocks * block_size)
    reused = (blocks - 1) * block_size  # one block back
    if reused <= window:  # the replay would begin at the first token: nothing is saved
        return Hit(0, 0, length)
    return Hit(reused, window, length - reused)
