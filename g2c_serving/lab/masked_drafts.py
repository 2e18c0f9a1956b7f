"""Drafts under a grammar: each is masked by the state that it extends, and that state is forgotten
when the target rejects it.

Brief, sections 4 and 5. A real run under a schema, step by step: what was drafted, how many tokens
its state allowed, what became of it. Below, the mask of the step's first place, which a drafter
would have that knows only what was generated: most of what is right later on it forbids. The other
drafter has no mask at all: the target, which has one, then rejects what it could never write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from matplotlib.figure import Figure

from g2c_serving.config import EngineConfig, Speculation
from g2c_serving.engine import Engine
from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.history import Drafted
from g2c_serving.lab.allowed_tokens import MINUTES, QUESTION, mask_of, schema
from g2c_serving.lab.draft_strip import ACCEPTED, LOOKS, MARKS, fates
from g2c_serving.lab.panel import Panel, choice, slider
from g2c_serving.lab.plots import Blocks, columns, sheet
from g2c_serving.lab.words import many, visible
from g2c_serving.process.chat import chat
from g2c_serving.request import Request, SamplingParams
from g2c_serving.sample.grammar import DraftMasks, Grammar, GrammarState
from g2c_serving.sample.speculation import Drafts

DRAFTS, MOST = 5, 16  # drafts a step; steps of the longest run
MASKED, UNMASKED = "has a mask for each draft", "has no mask"


@dataclass(frozen=True)
class Step:
    """One step's drafts. Of each: how many tokens its own state allowed (all outside the grammar, 0
    behind a draft that it forbade), whether it was among them, and whether it is among those of the
    first one's state."""

    one: Drafted
    allowed: tuple[int, ...]
    is_allowed: tuple[bool, ...]
    at_first: tuple[bool, ...]
    before: str  # the text so far


@dataclass(frozen=True)
class Run:
    steps: tuple[Step, ...]
    text: str

    @property
    def accepted(self) -> int:
        return sum(step.one.accepted for step in self.steps)


class Withheld:
    """Masks that go ahead with the drafts, for the target, and that the drafter does not see."""

    def __init__(self, masks: DraftMasks) -> None:
        self._masks = masks

    def next(self) -> None:
        self._masks.next()

    def advance(self, tokens: torch.Tensor) -> None:
        self._masks.advance(tokens)


def withhold_masks(engine: Engine) -> None:
    """Let an engine's drafter draft as if there were no grammar."""
    assert engine.speculator is not None
    drafter = engine.speculator.drafter
    propose = drafter.propose

    def unmasked(
        batch: ForwardBatch, requests: Sequence[Request], rows: Sequence[int], masks: Any = None
    ) -> Drafts | None:
        withheld: Any = masks and Withheld(masks)
        return propose(batch, requests, rows, withheld)

    drafter.propose = unmasked  # type: ignore[method-assign]


def run(
    lm: LanguageModel, drafter: LanguageModel, arguments: dict[str, Any], masked: bool = True
) -> Run:
    """The model's likeliest answer to `QUESTION`, held to the schema from `<|tool_call|>` on."""
    reserved = lm.tokenizer.reserved
    grammar = Grammar.json_schema(schema(arguments), [reserved["<|tool_call|>"]])
    config = EngineConfig(speculation=Speculation("fixed", DRAFTS, drafter))
    engine = Engine(lm, config)
    if not masked:
        withhold_masks(engine)
    asked = SamplingParams(
        temperature=0, max_tokens=40, stop_token_ids=(reserved["<|tool_result|>"],),
        grammar=grammar, seed=0,
    )  # fmt: skip
    prompt = chat([{"role": "user", "content": QUESTION.strip()}])
    (output,) = engine.generate([prompt], asked)
    first = len(output.prompt_token_ids)
    fresh = engine.compiler.state_of(grammar, engine.compiler.submit(grammar).result())
    found = []
    for record in engine.history:
        for one in record.drafts:
            known = output.token_ids[: one.position - first]
            found.append(_step(lm, fresh.fork(), known, one))
    return Run(tuple(found), lm.tokenizer.decode(output.token_ids))


def _step(lm: LanguageModel, state: GrammarState, known: Sequence[int], one: Drafted) -> Step:
    for token in known:
        state.advance(token)
    masks = []
    for token in one.tokens:
        masks.append(mask_of(state, lm.vocab_size))
        state.advance(token)
    allowed = tuple(int(mask.sum()) for mask in masks)
    own = tuple(bool(mask[token]) for mask, token in zip(masks, one.tokens, strict=True))
    at_first = tuple(bool(masks[0][token]) for token in one.tokens)
    return Step(one, allowed, own, at_first, lm.tokenizer.decode(known))


# ---- the panel ----


def panel(lm: LanguageModel, drafter: LanguageModel) -> Panel:
    """A step's drafts with their fates, and both masks."""
    written = cache(lambda name, masked: run(lm, drafter, MINUTES[name], masked))
    controls = {
        "step": slider("Step", 1, MOST, 5),
        "drafter": choice("The drafter", (MASKED, UNMASKED)),
        "arguments": choice("The schema's arguments", tuple(MINUTES), "seconds, not minutes"),
    }

    def update(art: dict[str, Any], step: int, drafter: str, arguments: str) -> str:
        found = written(arguments, drafter == MASKED)
        _show(art, lm, found.steps[min(step, len(found.steps)) - 1])
        return f"Schema: {arguments}; the drafter {drafter}. {_told(lm, found, step)}"

    return Panel(_draw, update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    sheet(axes, (-1.5, DRAFTS + 1), (-1.15, 2.6))
    label: dict[str, Any] = {"fontsize": 9, "va": "center", "ha": "right"}
    for y, words in ((1.75, "its own state allows"), (1.25, "drafted"), (0.25, "written"),
                     (-0.6, "the first one's mask")):  # fmt: skip
        axes.text(-0.08, y, words, **label)
    art: dict[str, Any] = {
        "boxes": {
            fate: Blocks(axes, 0, **{**look, "edgecolor": "white"})
            for fate, look in LOOKS.items()
            if fate != "not verified"
        }
    }
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
    look: dict[str, Any] = {"fontsize": 9.5, "ha": "center", "va": "center", "zorder": 5}
    small = {**look, "fontsize": 9, "color": "#333333"}
    art["allowed"] = [axes.text(i + 0.5, 1.75, "", **small) for i in range(DRAFTS)]
    art["drafted"] = [axes.text(i + 0.5, 1.25, "", bbox=box, **look) for i in range(DRAFTS)]
    art["written"] = [axes.text(i + 0.5, 0.25, "", bbox=box, **look) for i in range(DRAFTS + 1)]
    art["at_first"] = [axes.text(i + 0.5, -0.6, "", **small) for i in range(DRAFTS)]
    art["before"] = axes.text(-1.45, 2.35, "", fontsize=9.5, va="center", family="monospace")
    figure.legend(handles=list(art["boxes"].values()), loc="outside lower center", ncols=5,
                  fontsize=8.5, handlelength=1.3, columnspacing=1.2)  # fmt: skip
    return art


def _show(art: dict[str, Any], lm: LanguageModel, step: Step) -> None:
    one, found = step.one, fates(step.one)
    *tokens, last = (visible(lm.tokenizer.decode([t]), 11) for t in (*one.tokens, one.token))
    written = [*tokens[: one.accepted], last]
    places = [(fate, i, 1.0) for i, fate in enumerate(found[:-1])]
    places += [(ACCEPTED, i, 0.0) for i in range(one.accepted)] + [(found[-1], one.accepted, 0.0)]
    for fate, block in art["boxes"].items():
        x, y = columns([(i, y) for f, i, y in places if f == fate], 2)
        block.set_boxes(x + 0.02, y, 0.96, 0.5)
    for i, token in enumerate(tokens):
        art["drafted"][i].set_text(f"{MARKS[found[i]]} {token}")
        art["allowed"][i].set_text(_allowed(step, i, lm.vocab_size))
        art["at_first"][i].set_text("\u2713 allows it" if step.at_first[i] else "\u2717 forbids it")
    for i, words in enumerate(art["written"]):
        fate = ACCEPTED if i < one.accepted else found[-1]
        words.set_text(f"{MARKS[fate]} {written[i]}" if i < len(written) else "")
    before = step.before if len(step.before) < 78 else "\u2026" + step.before[-77:]
    art["before"].set_text(before)


def _allowed(step: Step, i: int, vocab_size: int) -> str:
    count = step.allowed[i]
    if not count:
        return "\u2013"
    counted = "all, free text" if count == vocab_size else many(count, "token")
    return counted if step.is_allowed[i] else f"{count:,}, not this"


def forbidden(step: Step) -> int:
    """How many drafts their own states forbid; what comes behind one has no state."""
    pairs = zip(step.allowed, step.is_allowed, strict=True)
    return sum(count > 0 and not mine for count, mine in pairs)


def _told(lm: LanguageModel, found: Run, step: int) -> str:
    steps = len(found.steps)
    over = f"Step {step} is past the end; the last one was s" if step > steps else "S"
    here = found.steps[min(step, steps) - 1]
    one, text = here.one, lm.tokenizer.decode
    counts = ", ".join(f"{count:,}" for count in here.allowed)
    moved, own = here.at_first.count(False), forbidden(here)
    total = sum(s.one.verified for s in found.steps)
    return (
        f"{over}tep {min(step, steps)} of {steps}: drafts {text(list(one.tokens))!r}; their own "
        f"states allow {counts} tokens and forbid {own} of them, the state of the first place "
        f"forbids {moved}. {one.accepted} of {one.verified} stand, written: "
        f"{text([*one.tokens[: one.accepted], one.token])!r}. The whole run: {found.accepted} of "
        f"{total} drafts stand."
    )
