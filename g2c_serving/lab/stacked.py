"""Approximations stack up: replay, guard and a four-bit cache, alone and together, end to end.

Brief, "Where informed readers will push back": each is defensible on its own, and how far outputs
with all of them sit from an exact, uncached, full-precision run is not disclosed for DeepSeek's
model. For ours it can be measured. The yardstick is the next token's distribution at the tokens
that follow a prefix hit, in float64, with nothing cached, nothing rounded and nothing drafted.

  replay  the window layers' state behind the hit is lost, and rebuilt from its last tokens alone:
          one window of them, as DeepSeek reports
  guard   in what remains after a rejected draft, the draft's probability is shrunk by exp(-5e-5).
          Computed, not drawn: from the target's p and the drafter's q at each place, as if every
          token came from a draft. So this is the most that it can do
  FP4     keys and values NVFP4-like

Measured on held-out texts of our own corpus, `tiny-window` with `tiny-drafter`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from g2c_serving.forward.checkpoints import load
from g2c_serving.forward.draft_model import DraftModel
from g2c_serving.forward.low_precision import NVFP4
from g2c_serving.lab.panel import Panel, toggle
from g2c_serving.lab.plots import BLACK, GREY, line, source_note
from g2c_serving.lab.replay_errors import (
    CONTEXTS,
    FOLLOWING,
    HELD_OUT_SEED,
    HIT,
    MODEL,
    Contexts,
)
from g2c_serving.lab.scoring import logits_of
from g2c_serving.lab.table import Table
from g2c_serving.sample.speculation import GUARD
from g2c_serving.train.batches import batch as corpus_rows

NAMES = ("replay", "guard", "FP4 cache")
Choice = tuple[bool, bool, bool]  # which of them are on


def with_guard(p: torch.Tensor, q: torch.Tensor, guard: float) -> torch.Tensor:
    """What comes out of target p (..., V) and draft q where the residual is max(p - q e^-guard, 0).

    A draft stands with min(1, p / q), else the residual is drawn from. With guard 0 it is p.
    """
    both = torch.minimum(p, q)
    residual = (p - q * math.exp(-guard)).clamp_(min=0)
    total = residual.sum(-1, keepdim=True).clamp_(min=1e-300)
    return both + (1 - both.sum(-1, keepdim=True)) * residual / total


@dataclass(frozen=True)
class Distance:
    """How far a distribution of the next token lies from the exact one, over all places.

    kl       mean KL(exact || this), nats
    changed  share of places with another most likely token
    loss     mean -log probability of the true token, less that of the exact run, nats
    tv       (N,) total variation at each place, largest first: the chance that a draw differs, if
             the two share their random numbers as well as can be
    """

    kl: float
    changed: float
    loss: float
    tv: np.ndarray

    @property
    def mean_tv(self) -> float:
        return float(self.tv.mean())


def distance(exact: torch.Tensor, other: torch.Tensor, ids: torch.Tensor) -> Distance:
    """Of probabilities (..., V) from `exact` ones; ids (...) are the true tokens."""
    log_p, log_q = exact.clamp(min=1e-300).log(), other.clamp(min=1e-300).log()
    gained = (log_p - log_q).gather(-1, ids[..., None])
    tv = (exact - other).abs().sum(-1).flatten() / 2
    return Distance(
        (exact * (log_p - log_q)).sum(-1).mean().item(),
        (exact.argmax(-1) != other.argmax(-1)).double().mean().item(),
        gained.mean().item(),
        np.sort(tv.numpy())[::-1],
    )


@cache
def measured() -> Mapping[Choice, Distance]:
    """All eight choices; measured once a session, some seconds."""
    lm, drafter = load(MODEL), load("tiny-drafter")
    size = HIT + FOLLOWING
    texts = corpus_rows(lm.tokenizer, HELD_OUT_SEED, 0, CONTEXTS, size, drills=0)
    texts, after = texts[:, :size], texts[:, HIT + 1 : size + 1]
    model = DraftModel(drafter.config, drafter.weights, torch.float64)
    drafts = torch.stack(logits_of(model, texts.tolist()))[:, HIT:, : lm.vocab_size]
    q = drafts.softmax(-1)
    target = {}
    for four in (False, True):
        runs = Contexts(lm, texts.tolist(), HIT, torch.float64, NVFP4 if four else None)
        target[False, four] = runs.exact.softmax(-1)
        target[True, four] = runs.replay(lm.config.window).softmax(-1)
    exact = target[False, False]
    found = {}
    for replay, guard, four in itertools.product((False, True), repeat=3):
        p = target[replay, four]
        p = with_guard(p, q, GUARD) if guard else p
        found[replay, guard, four] = distance(exact, p, after)
    return found


def named(choice: Choice) -> str:
    """The choice in words."""
    return " + ".join(name for name, on in zip(NAMES, choice, strict=True) if on) or "none"


def table() -> Table:
    """The eight choices as a table of a page."""
    rows = [
        (
            named(choice),
            f"{d.kl:.1e}",
            f"{d.mean_tv:.1e}",
            f"{d.changed:.1%}",
            f"{round(d.loss, 5) + 0:+.5f}",
        )
        for choice, d in sorted(measured().items(), key=lambda item: (sum(item[0]), item[0][::-1]))
    ]
    head = ("approximation", "KL (nats)", "total variation", "other first choice", "loss (nats)")
    return Table(head, rows)


# ---- the panel ----

LOWEST = 1e-11  # of the axis


def panel() -> Panel:
    """Three switches; the total variation at every place, largest first."""
    controls = {
        "replay": toggle("Replay of one window", True),
        "guard": toggle("Guard of 5e-5", True),
        "four": toggle("KV cache in FP4", True),
    }
    return Panel(_draw, _update, controls, size=(8, 2.9))


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    count = CONTEXTS * FOLLOWING
    axes.set(xlim=(0, count), ylim=(LOWEST, 1), yscale="log", xlabel=f"{count} places, worst first",
             ylabel="total variation\nfrom the exact run")  # fmt: skip
    for k, choice in enumerate(((True, False, False), (False, True, False), (False, False, True))):
        look = {**line(k), "marker": "", "linewidth": 1.4}
        axes.plot(measured()[choice].tv, **look, label=f"{named(choice)} alone")
    (chosen,) = axes.plot([], [], color=BLACK, linewidth=2.6, linestyle="-", label="chosen")
    axes.axhline(1e-2, color=GREY, linewidth=0.8)
    axes.legend(loc="lower left", fontsize=9, ncols=2)
    source_note(axes, "Measured here", f"{MODEL}, float64")
    return {"chosen": chosen}


def _update(art: dict[str, Any], replay: bool, guard: bool, four: bool) -> str:
    found = measured()[replay, guard, four]
    art["chosen"].set_data(np.arange(len(found.tv)), np.maximum(found.tv, LOWEST))
    if not (replay or guard or four):
        return f"Nothing is approximated: at all {len(found.tv)} places the distance is 0."
    return (
        f"{named((replay, guard, four))}: a draw differs from the exact run's with a chance of "
        f"{found.mean_tv:.2g} a token (at the worst place {found.tv[0]:.2g}); KL {found.kl:.1e} "
        f"nats; another token is the most likely at {found.changed:.1%} of {len(found.tv)} places; "
        f"loss {found.loss:+.5f} nats."
    )
