"""A rule that looks fair and is not: keep a draft if it is among the likeliest tokens anyway.

Brief, section 4, by contrast. What comes out is counted over the real next-token distributions of
target and drafter: a draft among the target's k likeliest stands, any other is replaced by a draw
from the target. The rule of `sample/speculation.py` gives the target's distribution instead.
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.panel import Panel, choice, stops
from g2c_serving.lab.plots import Blocks, fill, line, source_note
from g2c_serving.lab.scoring import next_logits

PROMPTS = (
    "Once upon a time there was a",
    "Once upon a time a happy girl named",
    "Mia had a red",
    "Tom and the dog went to the",
)
SHOWN = 12  # tokens in the picture
OF = 1000  # stories that the sentence counts


def probabilities(lm: LanguageModel, prompt: str) -> torch.Tensor:
    """How likely each token is after `prompt`, (V,) float64, at temperature 1."""
    return torch.softmax(next_logits(lm, lm.tokenizer.encode(prompt)).double(), -1)


def keep_the_likeliest(p: torch.Tensor, q: torch.Tensor, k: int) -> torch.Tensor:
    """What comes out, (V,), if a draft of q stands when it is among the k likeliest tokens of p,
    and is else replaced by a draw from p."""
    kept = torch.zeros_like(p)
    best = p.topk(k).indices
    kept[best] = q[best]
    return kept + (1 - kept.sum()) * p


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Total variation: the share of draws that would have to change."""
    return (one - other).abs().sum().item() / 2


def panel(lm: LanguageModel, drafter: LanguageModel) -> Panel:
    """Bars of the target's likeliest tokens, and what the naive rule makes of them."""
    names = tuple(f"{prompt} ..." for prompt in PROMPTS)
    known = {
        name: (probabilities(lm, prompt), probabilities(drafter, prompt))
        for name, prompt in zip(names, PROMPTS, strict=True)
    }
    controls = {
        "prompt": choice("Text so far", names),
        "k": stops("A draft stands if it is among the likeliest", (1, 2, 4, 8, 16, 1024), 1),
    }

    def update(art: dict[str, Any], prompt: str, k: int) -> str:
        p, q = known[prompt]
        return _update(art, lm, prompt, p, keep_the_likeliest(p, q, min(k, len(p))), k)

    return Panel(_draw, update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    art: dict[str, Any] = {
        "axes": axes,
        "target": Blocks(axes, 0, "the target writes", **fill(0)),
        "naive": Blocks(axes, 1, "the naive rule writes", **fill(1)),
    }
    (art["exact"],) = axes.plot([], [], **{**line(4), "linestyle": "none"}, label="the exact rule")
    axes.set(xlim=(-0.6, SHOWN - 0.4), ylabel=f"of {OF:,} stories")
    axes.legend(loc="upper right")
    source_note(axes, "Derived", "from the two models' probabilities")
    return art


def _update(
    art: dict[str, Any], lm: LanguageModel, prompt: str, p: torch.Tensor, out: torch.Tensor, k: int
) -> str:
    order = p.topk(SHOWN).indices
    names = [lm.tokenizer.decode([t]).strip() or repr(lm.tokenizer.decode([t])) for t in order]
    places = torch.arange(SHOWN).numpy()
    mine, naive = (OF * values[order].numpy() for values in (p, out))
    art["target"].set_boxes(places - 0.4, 0, 0.4, mine)
    art["naive"].set_boxes(places, 0, 0.4, naive)
    art["exact"].set_data(places - 0.2, mine)
    art["axes"].set_ylim(0, 1.3 * max(mine.max(), naive.max()))
    art["axes"].set_xticks(places, names, rotation=30, ha="right", rotation_mode="anchor")
    rule = "is the likeliest token" if k == 1 else f"is among the {k:,} likeliest tokens"
    return (
        f"{prompt} A draft stands if it {rule}: {names[0]!r} comes in {naive[0]:.0f} of {OF:,} "
        f"stories, and the target by itself writes it in {mine[0]:.0f}. {apart(p, out):.1%} of the "
        "stories would have to change here."
    )
