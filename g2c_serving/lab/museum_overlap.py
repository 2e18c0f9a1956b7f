"""The museum's room of overlap: what an engine does not know yet, and believes that it knows.

Brief, section 6. The parts are those of `async_engine.py` and `flight.py`. Their steps come one
after the other whatever the threads do, so each run is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import g2c_serving as g
from g2c_serving import flight as flights
from g2c_serving.flight import Flight
from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.lab import museum_pen as pen
from g2c_serving.lab.museum import Exhibit, register
from g2c_serving.lab.museum_model import MOST_STEPS, is_told
from g2c_serving.launches import PENDING, Step
from g2c_serving.page_calls import Calls
from g2c_serving.request import FINISHED
from g2c_serving.sample.grammar import Grammar
from g2c_serving.sampling import Draws
from g2c_serving.schedule.scheduled import Scheduled


def told(e: g.AsyncEngine, names: dict[int, str]) -> dict[str, Any]:
    """What each user was told in the end, or why not; the engine is closed."""
    seen = dict.fromkeys(names.values(), f"still waiting after {MOST_STEPS} steps")
    try:
        with e:
            for _ in range(MOST_STEPS):
                for output in e.step() if e.has_unfinished else []:
                    name, reason = names[output.request_id], output.finish_reason
                    if reason is not None:
                        is_text = reason != "error"
                        seen[name] = output.text if is_text else f"error: {output.message}"
    except Exception as error:
        seen["the engine"] = f"fell over: {type(error).__name__} {error}"
    return seen


def not_told(seen: dict[str, Any], right: dict[str, str]) -> str:
    for name, text in right.items():
        if seen[name] != text:
            return f"{name} should be told {text!r}, and what comes is {seen[name]!r}"
    return ""


# ---- a token that is not known yet ----


def fill(batch: ForwardBatch, scheduled: Sequence[Scheduled], draws: Draws) -> ForwardBatch:
    known = batch.token_ids.where(batch.token_ids < PENDING, 0)
    return replace(batch, token_ids=known)


def alphabet() -> dict[str, Any]:
    """The model says the letter after the last one that it has read."""

    def write(context: list[int]) -> list[int]:
        return [context[-1] + 1 if chr(context[-1]).isalpha() else ord("?")]

    e = pen.overlapped(pen.model(write))
    params = g.SamplingParams(8, seed=1)
    return told(e, {e.add(text, params): name for name, text in (("Ann", "a"), ("Bob", "P"))})


def forgot_itself(seen: dict[str, Any]) -> str:
    marks = sum(seen[name].count("?") for name in ("Ann", "Bob"))
    if not marks:
        return not_told(seen, {"Ann": "bcdefghi", "Bob": "QRSTUVWX"})
    return f"{marks} times the model did not find what it had written itself: {seen['Ann']!r}"


register(
    Exhibit(
        name="placeholder",
        title="The model does not know what it has just said",
        reports=("vLLM 46899", "vLLM 40768"),
        room="overlap",
        place="g2c_serving.async_engine.fill",
        fault=fill,
        scene=alphabet,
        wrong=forgot_itself,
        story="A step is laid out before the token of the last one is known, with a placeholder "
        "where it will be. In one engine the placeholder was -1, was not always replaced, and "
        "ended the process on the GPU. A mend was to make any placeholder 0. That is a token like "
        "any other: nothing falls over any more, and the model reads a token that nobody has "
        "written.",
        hint="What the last step has drawn is in `draws.pieces`: each has its `requests` and "
        "`tokens`. Where does this read them?",
        solution=flights.fill,
    )
)


# ---- a mask that is a token late ----


def of(cls: type[Flight], step: Step, calls: Calls, before: Flight | None) -> Flight:
    flight = cls(step, step.scheduled, calls, before)
    step.scheduled = [replace(s, request=s.request.snapshot()) for s in flight.launched]
    ids = [s.request.sequence_id for s in flight.launched]
    step.tables = {i: list(step.tables[i]) for i in ids}
    step.record.is_overlapped = True
    flight.hand_over_grammars()
    return flight


def spelled_out() -> dict[str, Any]:
    write = pen.wishes({"Ann: red or blue?": [pen.ids("blue")]})
    e = pen.overlapped(pen.model(write))
    params = g.SamplingParams(20, seed=1, grammar=Grammar.regex("red|blue"))
    return told(e, {e.add("Ann: red or blue?", params): "Ann"})


def is_late(seen: dict[str, Any]) -> str:
    text = seen["Ann"]
    return "" if text in ("red", "blue") else f"red or blue was asked for; Ann gets {text!r}"


register(
    Exhibit(
        name="late_mask",
        title="Every answer that a grammar holds ends with an error",
        reports=("vLLM 29379",),
        room="overlap",
        place="g2c_serving.flight.Flight.of",
        fault=of,
        scene=spelled_out,
        wrong=is_late,
        story="Under a grammar the mask of a token hangs on the one before. With steps overlapped "
        "that one is not there yet when the next step is launched, and a mask worked out then is "
        "the mask of the place before: its tokens are wrong, and the grammar cannot go on with "
        "them.",
        hint="When is the step before processed: at the launch of this one, or later? Who hands "
        "over the grammars then?",
        solution=Flight.__dict__["of"].__func__,
    )
)


# ---- a token that comes too late ----


def is_void(self: Scheduled) -> bool:
    return self.request.num_preemptions != self.turn


def goodbye() -> dict[str, Any]:
    """Ann's text ends by itself, which nobody knows when her next row is launched."""
    scripts = {"Ann: ": [pen.ids("Bye!")], "Bob: ": [pen.ids("To begin at the beginning")]}
    e = pen.overlapped(pen.model(pen.wishes(scripts)))
    params = g.SamplingParams(25, seed=1)
    seen = told(e, {e.add(f"{name}: ", params): name for name in ("Ann", "Bob")})
    return {"the engine": "works on", **seen}


def fell_over(seen: dict[str, Any]) -> str:
    if seen["the engine"] != "works on":
        return f"when Ann's text ended the engine {seen['the engine']}; Bob {is_told(seen['Bob'])}"
    return not_told(seen, {"Ann": "Bye!", "Bob": "To begin at the beginning"})


register(
    Exhibit(
        name="late_token",
        title="One user's text ends, and the engine with it",
        reports=("vLLM 47900",),
        room="overlap",
        place="g2c_serving.schedule.scheduled.Scheduled.is_void",
        fault=is_void,
        scene=goodbye,
        wrong=fell_over,
        story="A request ends by a token that was on its way when its next row was launched. That "
        "row comes back after the request has gone: its token belongs to nobody, and its blocks to "
        "somebody else. An engine that took it in looked for a request that it had dropped, and "
        "all others went down with it.",
        hint="For two reasons nobody may take in what comes of a row. This knows one of them.",
        solution=Scheduled.is_void.fget,  # type: ignore[attr-defined]
    )
)


def is_stale(self: Scheduled) -> bool:
    return self.request.state == FINISHED


def crowded() -> dict[str, Any]:
    """The pool is too small for both. Who came last gives up its blocks, with a row on its way."""
    texts = {"Ann: ": "once there was a hat that sang",
             "Bob, too: ": "in the moor lives a fox in a box"}  # fmt: skip
    scripts = {prompt: [pen.ids(text)] for prompt, text in texts.items()}
    e = pen.overlapped(pen.model(pen.wishes(scripts)), num_blocks=12, block_size=4)
    names = {
        e.add(prompt, g.SamplingParams(len(text), seed=1)): prompt[:3]
        for prompt, text in texts.items()
    }
    return {**told(e, names), "times that somebody was preempted": e.stats.preemptions}


def was_lost(seen: dict[str, Any]) -> str:
    if seen["Bob"].endswith("in a box"):
        return ""
    return f"who gave up his blocks was to go on later; Bob reads {seen['Bob']!r}"


register(
    Exhibit(
        name="late_row",
        title="Who has to wait for memory gets an error instead",
        reports=("vLLM 49620",),
        room="overlap",
        place="g2c_serving.schedule.scheduled.Scheduled.is_void",
        fault=is_stale,
        scene=crowded,
        wrong=was_lost,
        story="Where memory is short, a request gives up its blocks and is computed again later. "
        "With steps overlapped it may have a row on its way just then. What comes of that row is "
        "about blocks that it does not have any more: an engine that counted it had a request with "
        "one token too many, or wrote where it had no right to, and ended with an illegal access.",
        hint="For two reasons nobody may take in what comes of a row. This knows one of them.",
        solution=Scheduled.is_void.fget,  # type: ignore[attr-defined]
    )
)
