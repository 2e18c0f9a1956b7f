"""One real tool call, token by token: what may follow, and what the mask makes of the model's wish.

Brief, section 5. The engine writes the call with a grammar that begins at `<|tool_call|>`; then its
states and the model's logits are worked out again, so that each step can be looked at. Before the
marker and after the call's end nothing is masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.panel import Panel, choice, slider
from g2c_serving.lab.plots import BLACK, GREY, Blocks, line, source_note
from g2c_serving.lab.scoring import logits_of
from g2c_serving.lab.words import visible
from g2c_serving.process.prompt import Reserved
from g2c_serving.request import SamplingParams
from g2c_serving.sample.grammar import Grammar, GrammarState, as_mask, bitmask

QUESTION = "\nSet a timer for 31 minutes.\n"
SHOWN = 8  # tokens with bars
MOST = 36  # steps
MINUTES: dict[str, dict[str, Any]] = {
    "as the model writes it": {"minutes": {"type": "integer", "minimum": 0, "maximum": 999}},
    "at most 24 minutes": {"minutes": {"type": "integer", "minimum": 1, "maximum": 24}},
    "seconds, not minutes": {"seconds": {"type": "integer", "minimum": 60, "maximum": 3600}},
    "minutes and a mood": {"minutes": {"type": "integer"}, "mood": {"enum": ["calm", "loud"]}},
}
FREE, INSIDE = "free", "inside the grammar"


def schema(arguments: dict[str, Any]) -> dict[str, Any]:
    """A timer's call with these arguments, all required."""
    inner = {"type": "object", "properties": arguments, "required": list(arguments)}
    properties = {"name": {"const": "timer"}, "arguments": inner}
    return {"type": "object", "properties": properties, "required": list(properties)}


@dataclass(frozen=True)
class Written:
    """What was generated, and at each of its T steps the model's probabilities (T, V) at
    temperature 1, and the mask (T, V) bool."""

    token_ids: tuple[int, ...]
    is_inside: tuple[bool, ...]
    probabilities: np.ndarray
    masks: np.ndarray

    @property
    def masked(self) -> np.ndarray:
        """(T, V): the probabilities of what is allowed."""
        kept = self.probabilities * self.masks
        return kept / kept.sum(1, keepdims=True)


def write(lm: LanguageModel, arguments: dict[str, Any]) -> Written:
    """The model's likeliest answer to `QUESTION`, held to the schema from `<|tool_call|>` on, up to
    the tool's turn."""
    trigger, stop = (lm.tokenizer.reserved[name] for name in ("<|tool_call|>", "<|tool_result|>"))
    grammar = Grammar.json_schema(schema(arguments), trigger_token_ids=[trigger])
    parts = (Reserved("<|user|>"), QUESTION, Reserved("<|assistant|>"), "\n")
    prompt = lm.tokenizer.encode_parts(parts)
    engine = Engine(lm, EngineConfig())
    asked = SamplingParams(
        temperature=0, max_tokens=MOST, stop_token_ids=(stop,), grammar=grammar, seed=0
    )
    (output,) = engine.generate([prompt], asked)
    state = engine.compiler.state_of(grammar, engine.compiler.submit(grammar).result())
    inside, masks = [], []
    for token in output.token_ids:
        inside.append(state.is_inside)
        masks.append(mask_of(state, lm.vocab_size))
        state.advance(token)
    logits = logits_of(lm.model, [[*prompt, *output.token_ids]])[0][len(prompt) - 1 : -1]
    probabilities = torch.softmax(logits.double(), -1).numpy()
    return Written(tuple(output.token_ids), tuple(inside), probabilities, np.stack(masks))


def mask_of(state: GrammarState, vocab_size: int) -> np.ndarray:
    """What a state allows, (V,) bool; all of it outside the grammar."""
    mask = as_mask(bitmask([state], vocab_size), vocab_size)
    return np.ones(vocab_size, bool) if mask is None else mask[0].numpy()


def panel(lm: LanguageModel) -> Panel:
    """A step's likeliest tokens before and after the mask, over the number of allowed ones."""
    written = cache(lambda name: write(lm, MINUTES[name]))
    controls = {
        "step": slider("Step", 1, MOST, 19),
        "arguments": choice("The schema's arguments", tuple(MINUTES), "at most 24 minutes"),
    }

    def update(art: dict[str, Any], step: int, arguments: str) -> str:
        return f"Schema: {arguments}. {_update(art, lm, written(arguments), step)}"

    return Panel(lambda figure: _draw(figure, lm.name), update, controls)


def _draw(figure: Figure, model: str) -> dict[str, Any]:
    bars, counts = figure.subplots(2, 1, height_ratios=(2, 1))
    bars.set(xlim=(-0.6, SHOWN - 0.4), ylim=(0, 1.32), yticks=(0, 0.5, 1), ylabel="probability")
    bars.set_xticks(range(SHOWN), [" "] * SHOWN)
    bars.tick_params(axis="x", length=0)  # it would run into the names
    bars.grid(visible=False, axis="x")
    grey: dict[str, Any] = {"facecolor": "#CCCCCC", "edgecolor": BLACK, "hatch": ""}
    art: dict[str, Any] = {"before": Blocks(bars, 0, "the model's", **grey)}
    art["after"] = Blocks(bars, 0, "after the mask")
    bars.legend(loc="lower right", bbox_to_anchor=(1, 0.96), ncols=2, fontsize=9)
    bars.text(-0.6, 1.4, "likeliest tokens here (\u2717: the mask forbids it)", fontsize=9)
    look: dict[str, Any] = {"family": "monospace", "fontsize": 9.5, "ha": "center", "va": "top"}
    art["names"] = [bars.text(i, -0.05, "", **look) for i in range(SHOWN)]
    art["text"] = bars.text(-0.55, 1.2, "", family="monospace", fontsize=9.5, va="center")
    counts.set(xlim=(0, MOST + 1), ylim=(0.6, 2500), yscale="log", yticks=(1, 10, 100, 1000))
    counts.set_yticklabels(("1", "10", "100", "1,000"))
    counts.minorticks_off()
    counts.set(xlabel="step", ylabel="allowed")
    art["inside"] = Blocks(counts, 0, facecolor="#E6E6E6", edgecolor=GREY, hatch="...")
    (art["counts"],) = counts.plot([], [], **line(0))
    ring: dict[str, Any] = {
        "color": BLACK,
        "fillstyle": "none",
        "mew": 2,
        "markersize": 11,
        "clip_on": False,
    }
    (art["here"],) = counts.plot([], [], "o", **ring)
    source_note(counts, "Measured here", f"with {model}; grey where the grammar holds")
    return art


def _update(art: dict[str, Any], lm: LanguageModel, written: Written, step: int) -> str:
    steps = len(written.token_ids)
    allowed = written.masks.sum(1)
    art["counts"].set_data(np.arange(steps) + 1, allowed)
    inside = np.flatnonzero(written.is_inside)
    art["inside"].set_boxes(inside[:1] + 0.5, 0.6, len(inside), np.array([2500.0]))
    at = min(step, steps) - 1
    art["here"].set_data([at + 1], [allowed[at]])
    p, q, token = written.probabilities[at], written.masked[at], written.token_ids[at]
    best = np.argsort(-np.maximum(p, q), kind="stable")[:SHOWN]
    x = np.arange(SHOWN)
    art["before"].set_boxes(x - 0.36, 0, 0.34, p[best])
    art["after"].set_boxes(x + 0.02, 0, 0.34, q[best])
    for name, i in zip(art["names"], best, strict=True):
        name.set_text(_short(lm, int(i)) + ("" if written.masks[at][i] else "\n\u2717"))
    so_far = lm.tokenizer.decode(written.token_ids[:at])
    art["text"].set_text(so_far if len(so_far) < 62 else "\u2026" + so_far[-61:])
    return _told(lm, written, step, at, so_far, int(p.argmax()), token)


def _told(
    lm: LanguageModel, written: Written, step: int, at: int, so_far: str, wanted: int, token: int
) -> str:
    steps, p = len(written.token_ids), written.probabilities[at]
    over = f"Step {step} is past the end; the last one was s" if step > steps else "S"
    phase = INSIDE if written.is_inside[at] else FREE
    many = int(written.masks[at].sum())
    may = "1 token may" if many == 1 else f"{many:,} tokens may"
    text = (
        f"{over}tep {at + 1} of {steps}, {phase}: after {so_far!r} {may} follow. The model wants "
        f"{_short(lm, wanted)!r} ({_percent(p[wanted])})"
    )
    if not written.masks[at][wanted]:
        text += (
            f", which is forbidden; all that is allowed has {_percent(p[written.masks[at]].sum())}"
        )
    return (
        f"{text}. Written: {lm.tokenizer.decode([token])!r}, {_percent(written.masked[at][token])}."
    )


def _percent(share: float) -> str:
    return "less than 0.1%" if share < 0.001 else f"{share:.1%}"


def _short(lm: LanguageModel, token: int) -> str:
    return visible(lm.tokenizer.decode([token]), 13)
