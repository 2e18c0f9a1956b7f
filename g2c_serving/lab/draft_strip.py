"""A real run, step by step: what was drafted, what the target made of it, what was written.

Brief, section 4. Read from `engine.history`: each `StepRecord` has the `Drafted` of its step. A
draft is accepted, rejected (the first one whose coin falls against it), void (it followed one that
was rejected), or not verified. Behind the accepted ones comes a token of the target's own: drawn
from the remainder after a rejection, an ordinary one else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from matplotlib.figure import Figure

from g2c_serving.config import EngineConfig, Speculation
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.history import Drafted
from g2c_serving.lab.panel import Panel, choice, slider, stops
from g2c_serving.lab.plots import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, Blocks, columns, sheet
from g2c_serving.lab.words import many, visible
from g2c_serving.request import SamplingParams

ACCEPTED, REJECTED, VOID, UNVERIFIED = "accepted", "rejected", "void", "not verified"
RESAMPLED, ORDINARY = "resampled", "ordinary"
LOOKS: dict[str, dict[str, Any]] = {
    ACCEPTED: {"facecolor": GREEN, "hatch": "", "label": "\u2713 accepted"},
    REJECTED: {"facecolor": ORANGE, "hatch": "///", "label": "\u2717 rejected"},
    VOID: {"facecolor": GREY, "hatch": "\\\\\\", "label": "\u2205 void: after a rejected one"},
    UNVERIFIED: {"facecolor": "white", "hatch": "", "label": "\u2013 not verified"},
    RESAMPLED: {"facecolor": PINK, "hatch": "xxx", "label": "\u21bb resampled"},
    ORDINARY: {"facecolor": BLUE, "hatch": "...", "label": "+ ordinary"},
}
MARKS = {fate: look["label"].split()[0] for fate, look in LOOKS.items()}
DRAFTS, TOKENS = 5, 60  # so a run has ten steps or more
BUDGETED = "budgeted, on an invented step time"
PROMPTS = ("This is the story of a shy dragon", "Once upon a time")  # hard and easy for the drafter
MOST_STEPS = 24  # columns of the strip


@dataclass(frozen=True)
class Story:
    """What came of the drafts step by step, and all token ids, the prompt's before them."""

    steps: tuple[Drafted, ...]
    token_ids: tuple[int, ...]


def fates(one: Drafted) -> list[str]:
    """Of each draft, in order, and of the token after those that stand."""
    found = [ACCEPTED] * one.accepted
    if one.accepted < one.verified:
        found += [REJECTED, *[VOID] * (one.verified - one.accepted - 1)]
    found += [UNVERIFIED] * (len(one.tokens) - one.verified)
    return [*found, RESAMPLED if one.accepted < one.verified else ORDINARY]


def four_for_one(rows: int) -> float:
    """ms of a step, invented: 10 for each four rows begun, so that three drafts pay and five do
    not."""
    return 10.0 * -(-rows // 4)


def run(
    lm: LanguageModel,
    drafter: LanguageModel,
    prompt: str,
    temperature: float,
    budgeted: bool,
    seed: int,
) -> Story:
    """One story, written by the engine with speculation."""
    mode, step_time = ("budgeted", four_for_one) if budgeted else ("fixed", None)
    speculation = Speculation(mode, DRAFTS, drafter, step_time=step_time)
    engine = Engine(lm, EngineConfig(speculation=speculation))
    params = SamplingParams(temperature=temperature, max_tokens=TOKENS, seed=seed, ignore_eos=True)
    (output,) = engine.generate([prompt], params)
    steps = (one for record in engine.history for one in record.drafts)
    return Story(tuple(steps), (*lm.tokenizer.encode(prompt), *output.token_ids))


def panel(lm: LanguageModel, drafter: LanguageModel, seed: int = 0) -> Panel:
    """One step in large, and all of the run in small."""

    @cache
    def story(prompt: str, temperature: float, budgeted: bool) -> Story:
        return run(lm, drafter, prompt, temperature, budgeted, seed)

    controls = {
        "step": slider("Step", 1, TOKENS // (1 + DRAFTS), 2),
        "temperature": stops("Temperature", (0.0, 0.7, 1.0, 1.3), 1.0),
        "verification": choice("Verification", ("fixed 5", BUDGETED)),
        "prompt": choice("Text", PROMPTS),
    }

    def update(art: dict[str, Any], step: int, **settings: Any) -> str:
        prompt, temperature = settings["prompt"], settings["temperature"]
        told = story(prompt, temperature, settings["verification"] == BUDGETED)
        controls["step"].set_high(len(told.steps))
        step = min(step, len(told.steps))
        return f"{settings['verification']}, {_update(art, lm, told, step, temperature)}"

    return Panel(_draw, update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    large, small = figure.subplots(2, 1, height_ratios=(1.5, 1))
    sheet(large, (-1.15, DRAFTS + 1), (-0.62, 2.55))
    sheet(small, (0.4, MOST_STEPS + 0.6), (0, DRAFTS + 1.1))
    small.set_xticks([1, *range(5, MOST_STEPS + 1, 5)])
    small.set_xlabel("step (a column: five drafts upwards, and the token after them)", fontsize=9)
    small.tick_params(length=0, labelsize=9)
    art: dict[str, Any] = {"large": {}, "small": {}}
    for fate, look in LOOKS.items():
        edge = {"edgecolor": BLACK if fate == UNVERIFIED else "white"}
        art["large"][fate] = Blocks(large, 0, **{**look, **edge})
        art["small"][fate] = Blocks(small, 0, **{**look, **edge, "label": ""})
    art["chosen"] = Blocks(small, 0, facecolor="none", edgecolor=BLACK, hatch="", linewidth=2)
    label: dict[str, Any] = {"fontsize": 9, "va": "center", "ha": "right"}
    for y, words in ((1.25, "drafted"), (0.25, "written")):
        large.text(-0.08, y, words, **label)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
    look = {"fontsize": 9.5, "ha": "center", "va": "center", "bbox": box, "zorder": 5}
    art["drafted"] = [large.text(i + 0.5, 1.25, "", **look) for i in range(DRAFTS)]
    art["said"] = [
        large.text(i + 0.5, 1.83, "", fontsize=8.5, ha="center", color="#555555")
        for i in range(DRAFTS)
    ]
    art["written"] = [large.text(i + 0.5, 0.25, "", **look) for i in range(DRAFTS + 1)]
    art["before"] = large.text(-1.12, 2.36, "", fontsize=9.5, va="center")
    handles = [art["large"][fate] for fate in LOOKS]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=8,
                  handlelength=1.3, columnspacing=1.1, handletextpad=0.5)  # fmt: skip
    return art


def _update(
    art: dict[str, Any], lm: LanguageModel, story: Story, step: int, temperature: float
) -> str:
    steps, text = story.steps, lm.tokenizer.decode
    one = steps[step - 1]
    found, stands = fates(one), one.accepted
    told = [visible(text([token]), 10) for token in one.tokens]
    new = [*told[:stands], visible(text([one.token]), 10)][: one.kept]
    _boxes(art["large"], found, one)
    for i, (fate, token) in enumerate(zip(found[:-1], told, strict=True)):
        art["drafted"][i].set_text(f"{MARKS[fate]} {token}")
        art["said"][i].set_text(f"says {one.confidences[i]:.2f}")
    for i, words in enumerate(art["written"]):
        mark = MARKS[ACCEPTED if i < stands else found[-1]]
        words.set_text(f"{mark} {new[i]}" if i < len(new) else "")
    before = text(list(story.token_ids[: one.position]))
    art["before"].set_text(f"so far: {before if len(before) < 90 else '...' + before[-86:]}")
    _strip(art, steps, step)
    rows = 1 + one.verified
    written = [*one.tokens[:stands], one.token][: one.kept]
    ended = "; there the run ends, and what stands behind is not kept" * (one.kept <= stands)
    return (
        f"temperature {temperature:g}, step {step} of {len(steps)}: the drafter "
        f"proposes {text(list(one.tokens))!r}; a pass of {rows} rows accepts {stands} of "
        f"{one.verified}, then comes {_last(found[-1])}. Written: {text(written)!r}, "
        f"{many(one.kept, 'token')} in one pass{ended}."
    )


def _last(fate: str) -> str:
    return "one drawn from the remainder" if fate == RESAMPLED else "an ordinary draw"


def _boxes(blocks: dict[str, Blocks], found: Sequence[str], one: Drafted) -> None:
    """The drafts above, what is written below."""
    places = [(fate, i, 1.0) for i, fate in enumerate(found[:-1])]
    written = [*[ACCEPTED] * one.accepted, found[-1]][: one.kept]
    places += [(fate, i, 0.0) for i, fate in enumerate(written)]
    for fate, block in blocks.items():
        here = [(i, y) for f, i, y in places if f == fate]
        x, y = columns(here, 2)
        block.set_boxes(x + 0.02, y - 0.12, 0.96, 0.74)


def _strip(art: dict[str, Any], steps: Sequence[Drafted], step: int) -> None:
    """All steps of the run: a column each, drafts upwards, the token after them on top."""
    places = [
        (fate, x, y)
        for x, one in enumerate(steps[:MOST_STEPS], start=1)
        for y, fate in enumerate(fates(one))
    ]
    for fate, block in art["small"].items():
        here = [(x, y) for f, x, y in places if f == fate]
        x, y = columns(here, 2)
        block.set_boxes(x - 0.42, y + 0.08, 0.84, 0.84)
    art["chosen"].set_boxes(step - 0.5, 0.0, 1.0, DRAFTS + 1.05)
