"""The museum's exhibits on seeds: what a request with a seed is told hangs on the request alone.
What is right here is in sample/rng.py and in `sampler.batch_of`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import g2c_serving as g
from g2c_serving.lab import museum_dice as dice
from g2c_serving.lab.museum import Exhibit, register
from g2c_serving.loop import Loop
from g2c_serving.sample import sampler
from g2c_serving.sample.sampler import SamplingBatch
from g2c_serving.sampling import Sampled
from g2c_serving.schedule.scheduled import Scheduled

LUCKY, ROLLS = 7, 10
batch_of, take_in = sampler.batch_of, Loop._take_in


def rolls(seed: int | None, max_tokens: int = ROLLS, **more: Any) -> g.SamplingParams:
    return g.SamplingParams(seed=seed, max_tokens=max_tokens, **more)


# ---- one generator for the batch ----


def one_call_for_all(requests: Sequence[Any], vocab_size: int) -> SamplingBatch:
    """The settings of the next token of each request."""
    batch = batch_of(requests, vocab_size)
    if all(r.params.seed is not None for r in requests):
        return batch
    fresh = [random.getrandbits(62) for _ in requests]
    return replace(batch, seeds=np.array(fresh, dtype=np.uint64))


@dice.steady()
def beside_bob() -> dict[str, Any]:
    e = dice.engine(dice.die(dice.FAIR))
    seen = {"Ann, seed 7, alone": dice.texts(e, rolls(LUCKY))[0]}
    for time in ("once", "again"):
        seen[f"beside Bob without a seed, {time}"] = dice.texts(e, rolls(None), rolls(LUCKY))[1]
    seen["beside Bob with the seed 8"] = dice.texts(e, rolls(8), rolls(LUCKY))[1]
    return seen


def not_all_alike(seen: dict[str, Any]) -> str:
    alone, *others = seen.values()
    if set(others) == {alone}:
        return ""
    other = next(text for text in others if text != alone)
    return f"Ann's seed is 7 each time, and she rolled {alone} alone, {other} in company"


register(
    Exhibit(
        name="seedless_neighbour",
        title="A seed that holds only while the neighbour has one too",
        reports=("vLLM 51226",),
        room="seeds",
        place="g2c_serving.sampling.batch_of",
        fault=one_call_for_all,
        scene=beside_bob,
        wrong=not_all_alike,
        story=(
            "On a CPU, a request with a seed gave another text each time it was sent. It did so "
            "only while somebody without a seed was in the same batch: then the fast way was "
            "taken, which draws for all rows from one generator. Who gave the neighbour a seed as "
            "well had the first text back."
        ),
        hint=(
            "Look for a decision that is made once for the whole batch. A request without a seed "
            "has one too in this engine: a fresh one was drawn for it when it arrived."
        ),
        solution=batch_of,
    )
)

# ---- draws that are counted ----


def count_the_draws(requests: Sequence[Any], vocab_size: int) -> SamplingBatch:
    """The settings of the next token of each request."""
    for r in requests:
        has_begun = r.num_computed_tokens > 0
        r.draw = getattr(r, "draw", r.num_tokens - 1) + 1 if has_begun else r.num_prompt_tokens
    batch = batch_of(requests, vocab_size)
    return replace(batch, positions=np.array([r.draw for r in requests]))


@dice.steady()
def pushed_out() -> dict[str, Any]:
    """Bob came first, so Ann is the one who has to go when the blocks are full."""
    seen: dict[str, Any] = {}
    lm = dice.die(dice.FAIR)
    for room, num_blocks in (("blocks for both", 64), ("too few blocks", 6)):
        e = dice.engine(lm, num_blocks)
        seen[f"Ann, seed 7, {room}"] = dice.texts(e, rolls(8), rolls(LUCKY))[1]
        seen[f"preemptions, {room}"] = e.stats.preemptions
    return seen


def another_story(seen: dict[str, Any]) -> str:
    one, _, other, _ = seen.values()
    if len(set(one)) == 1:
        return f"ten rolls of an honest die were {one}, where no two draws may share a number"
    if one == other:
        return ""
    same = next(i for i in range(len(one)) if one[i] != other[i : i + 1])
    return (
        f"Ann's seed is 7 both times, and after {same} rolls she goes on with {one[same:]} where "
        f"there is room, with {other[same:]} where she was preempted"
    )


register(
    Exhibit(
        name="forgetful_draws",
        title="A story that changes in the middle when memory runs short",
        reports=("vLLM 19940",),
        room="seeds",
        place="g2c_serving.sampling.batch_of",
        fault=count_the_draws,
        scene=pushed_out,
        wrong=another_story,
        story=(
            "A request with a seed was preempted while it wrote. When it came back its tokens were "
            "computed again as if they were a prompt, and with a prompt came a new generator at "
            "the start of the seed's numbers. So the rest of the text was drawn with the numbers "
            "of its beginning, and nobody could replay it."
        ),
        hint=(
            "Ask what the number of a draw hangs on. The token's position in the text is the same "
            "however often the text is computed."
        ),
        solution=batch_of,
    )
)

# ---- one first token for all samples ----


def first_token_for_all(self: Loop, s: Scheduled, sampled: Sampled) -> None:
    """What a step has computed of one request."""
    first = sampled.get(s.request.sequence_id)
    for sibling in s.request.siblings:
        sampled[sibling.sequence_id] = first or []
    take_in(self, s, sampled)


@dice.steady()
def eight_samples() -> dict[str, Any]:
    seen: dict[str, Any] = {}
    lm = dice.die(dice.FAIR)
    for n in (1, 2, 8):
        seen["1 sample" if n == 1 else f"{n} samples"] = dice.texts(
            dice.engine(lm), rolls(LUCKY, 4, n=n)
        )
    seen["first rolls of the 8"] = "".join(text[:1] for text in seen["8 samples"])
    return seen


def hardly_by_chance(seen: dict[str, Any]) -> str:
    some = [samples for label, samples in seen.items() if "sample" in label]
    if len({samples[0] for samples in some}) > 1:
        return f"sample 0 hangs on how many there are: {[samples[0] for samples in some]}"
    if len(set(some[-1])) < len(some[-1]) // 2:
        return f"only {len(set(some[-1]))} of 8 samples are different"
    first = seen["first rolls of the 8"]
    if len(set(first)) == 1:
        return f"all 8 samples begin with {first[0]}; of 8 dice that is one case in 279,936"
    return ""


register(
    Exhibit(
        name="one_first_token",
        title="Eight answers that all begin alike",
        reports=("nanochat 38", "nanochat 201"),
        room="seeds",
        place="g2c_serving.loop.Loop._take_in",
        fault=first_token_for_all,
        scene=eight_samples,
        wrong=hardly_by_chance,
        story=(
            "Asked for several samples of one prompt, an engine computed the prompt once, drew a "
            "token from its last row, and gave that token to all samples. From the second token on "
            "each drew for itself. So the samples were fewer answers than they seemed: a first "
            "word decides much of what follows."
        ),
        hint=(
            "The prompt's last row is one, but each sample has a seed of its own, and `sampled` "
            "already holds a token for each of them under its sequence id."
        ),
        solution=take_in,
    )
)
