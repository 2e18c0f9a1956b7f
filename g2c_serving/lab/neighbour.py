"""The same request beside another neighbour: how a budget leads it onto another path.

Brief, section 4, "Why the budget breaks determinism". Random numbers are keyed and the logits are
batch-invariant, so the first two contracts hold. What differs is how many of the request's drafts
are verified: a token comes from a coin (use 2), from the remainder (use 1) or from an ordinary draw
(use 0), with another random number each. The step time is invented, so that this runs alike on
every machine: 10 ms for each four rows begun.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from g2c_serving.config import EngineConfig, Speculation
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.history import Drafted
from g2c_serving.lab.draft_strip import ACCEPTED, LOOKS, MARKS, ORDINARY, RESAMPLED, four_for_one
from g2c_serving.lab.panel import Panel, choice, slider
from g2c_serving.lab.plots import BLACK, Blocks, columns, sheet
from g2c_serving.lab.shared_draws import first_difference
from g2c_serving.request import SamplingParams

PROMPT, TOKENS, TEMPERATURE = "Once upon a time", 24, 0.8
NEIGHBOURS = {
    "nobody": (),
    "a usual story": ("This is the story of a wise girl",),
    "an odd text": ("The king said to the little",),
    "seven odd texts": tuple(
        f"{name} and the {thing} went to the"
        for name, thing in (
            ("Tom", "dog"), ("Mia", "key"), ("Nora", "cake"), ("Carl", "cow"),
            ("Kate", "hat"), ("Dan", "hen"), ("Joel", "shoe"),
        )
    ),
}  # fmt: skip
FATES = (ACCEPTED, RESAMPLED, ORDINARY)


@dataclass(frozen=True)
class Path:
    """A run of the watched request: its tokens, the way by which each came, and how many drafts
    were verified in each step after the prompt's."""

    tokens: tuple[int, ...]
    ways: tuple[str, ...]
    verified: tuple[int, ...]

    def after(self, tokens: Sequence[int], drafts: Sequence[Drafted]) -> Path:
        """A step later: `tokens` are all so far, `drafts` what the step did with its drafts, none
        where it had none (in the step of the prompt, or where none is worth a row)."""
        new = len(tokens) - len(self.tokens)
        ways, verified = [ORDINARY], 0
        for one in drafts:
            last = RESAMPLED if one.accepted < one.verified else ORDINARY
            ways, verified = [*[ACCEPTED] * one.accepted, last], one.verified
        steps = (*self.verified, verified) if self.tokens else ()
        return Path(tuple(tokens), (*self.ways, *ways[:new]), steps)


def run(
    lm: LanguageModel, drafter: LanguageModel, mode: str, neighbours: tuple[str, ...], seed: int
) -> Path:
    """The request of PROMPT and `seed`, beside `neighbours`, under "fixed" or "budgeted"."""
    step_time = four_for_one if mode == "budgeted" else None
    speculation = Speculation(mode, drafter=drafter, step_time=step_time)
    config = EngineConfig(batch_invariant=True, speculation=speculation)
    engine = Engine(lm, config)
    how: dict[str, Any] = {"temperature": TEMPERATURE, "ignore_eos": True}
    mine = engine.add(PROMPT, SamplingParams(max_tokens=TOKENS, seed=seed, **how))
    for i, prompt in enumerate(neighbours):
        engine.add(prompt, SamplingParams(max_tokens=2 * TOKENS, seed=1000 + i, **how))
    path, finished = Path((), (), ()), False
    while not finished:
        outputs = [output for output in engine.step() if output.request_id == mine]
        drafts = [one for one in engine.history[-1].drafts if one.request_id == mine]
        for output in outputs:
            path = path.after(output.token_ids, drafts)
            finished = output.finish_reason is not None
    return path


def panel(lm: LanguageModel, drafter: LanguageModel) -> Panel:
    """Two runs of one request, token under token, each with the way by which it came."""
    runs: dict[tuple[str, str, int], Path] = {}
    controls = {
        "mode": choice("Verification", ("budgeted", "fixed")),
        "company": choice("Its neighbour", tuple(NEIGHBOURS)[1:], "an odd text"),
        "seed": slider("Seed", 0, 20, 3, live=False),
    }

    def update(
        art: dict[str, Any], mode: str, company: str, seed: int
    ) -> Generator[str, None, str]:
        for name in ("nobody", company):
            if (mode, name, seed) not in runs:
                yield f"{mode}, seed {seed}: computing the run beside {name} ..."
                runs[mode, name, seed] = run(lm, drafter, mode, NEIGHBOURS[name], seed)
        alone, beside = (runs[mode, name, seed] for name in ("nobody", company))
        return _update(art, lm, alone, beside, mode, company, seed)

    return Panel(_draw, update, controls, size=(8, 2.4))


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    sheet(axes, (-0.02, TOKENS), (-0.2, 2.2))
    art: dict[str, Any] = {}
    for fate in FATES:
        art[fate] = Blocks(axes, 0, **{**LOOKS[fate], "edgecolor": "white"})
    look: dict[str, Any] = {"color": BLACK, "linewidth": 2, "linestyle": "--"}
    art["parting"] = axes.axvline(-5, **look)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    words: dict[str, Any] = {"fontsize": 7.5, "ha": "center", "va": "center", "rotation": 90}
    art["words"] = [
        [axes.text(x + 0.5, y + 0.5, "", bbox=box, zorder=5, **words) for x in range(TOKENS)]
        for y in (1.1, 0)
    ]
    axes.set_yticks((1.6, 0.5), ("alone", "in company"), fontsize=9)
    handles = [art[fate] for fate in FATES]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8.5)
    return art


def _update(
    art: dict[str, Any],
    lm: LanguageModel,
    alone: Path,
    company: Path,
    mode: str,
    name: str,
    seed: int,
) -> str:
    for row, path in zip(art["words"], (alone, company), strict=True):
        for text, token, way in zip(row, path.tokens, path.ways, strict=True):
            text.set_text(f"{MARKS[way]} {lm.tokenizer.decode([token]).strip() or '_'}")
    for fate in FATES:
        here = [
            (x, y)
            for y, path in ((1.1, alone), (0.0, company))
            for x, way in enumerate(path.ways)
            if way == fate
        ]
        x, y = columns(here, 2)
        art[fate].set_boxes(x + 0.04, y, 0.92, 1.0)
    parts = first_difference(list(alone.tokens), list(company.tokens))
    same = parts == TOKENS
    art["parting"].set_xdata([-5 if same else parts] * 2)
    told = [", ".join(map(str, path.verified[:4])) for path in (alone, company)]
    verdict = f"All {parts} tokens are the same"
    if not same:
        one, other = (
            f"{lm.tokenizer.decode([path.tokens[parts]])!r}, {path.ways[parts]}"
            for path in (alone, company)
        )
        verdict = f"They part at token {parts + 1}: {one}, or {other}"
    return (
        f"{mode}, seed {seed}. Alone, its first steps verify {told[0]} drafts; beside {name}, "
        f"{told[1]}. {verdict}."
    )
