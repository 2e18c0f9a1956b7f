"""Log-probabilities of a text from the engine that wrote it and from the trainer that learns of it.

Brief, section 3: if the two "compute different probabilities for the same tokens, the policy
gradient is quietly off". On-policy learning weighs each token by the ratio of the two probabilities
and takes it to be 1, because the weights are the same. Here it is computed. The trainer is the
dense forward of the same weights, as the course writes it, or the engine's forward in float32 over
the whole text. All ratios are Measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.model import Transformer
from g2c_serving.lab.cold_open import prompts
from g2c_serving.lab.panel import Panel, choice
from g2c_serving.lab.plots import BLUE, GREY, source_note
from g2c_serving.lab.scoring import CourseModel, logits_of, token_logprobs
from g2c_serving.output import RequestOutput
from g2c_serving.request import SamplingParams

ANSWERS, TOKENS = 24, 16
ROLLOUTS: dict[str, dict[str, Any]] = {
    "float32, ordinary": {},
    "float32, batch invariant": {"batch_invariant": True},
    "bfloat16, ordinary": {"dtype": "bfloat16"},
}
DENSE, SAME = "the course's dense forward", "the engine's forward in float32"
TRAINERS = (DENSE, SAME)


@dataclass(frozen=True)
class Ratios:
    """The trainer's probability over the rollout's, for each token; and that of each whole answer,
    which is the product of its tokens'."""

    tokens: np.ndarray  # (answers, TOKENS)

    @property
    def answers(self) -> np.ndarray:
        return self.tokens.prod(1)

    @property
    def exact(self) -> int:
        """Tokens whose ratio is 1, to the last bit."""
        return int((self.tokens == 1).sum())

    @property
    def worst(self) -> float:
        return float(np.abs(self.tokens - 1).max())


def roll_out(lm: LanguageModel, **options: Any) -> tuple[Engine, list[RequestOutput]]:
    """Answers drawn in a batch, with the engine's log-probability of each of their tokens."""
    engine = Engine(lm, EngineConfig(**options))
    params = [
        SamplingParams(max_tokens=TOKENS, seed=i, logprobs=0, ignore_eos=True)
        for i in range(ANSWERS)
    ]
    return engine, engine.generate(prompts(lm, ANSWERS), params)


def trained(model: CourseModel | Transformer, out: RequestOutput) -> torch.Tensor:
    """The trainer's log-probabilities (TOKENS,) of an answer, from one pass over the whole text."""
    ids = out.prompt_token_ids + out.token_ids
    with torch.no_grad():
        if isinstance(model, CourseModel):
            logits = model(torch.tensor([ids]))[0]  # (T, V)
        else:
            (logits,) = logits_of(model, [ids])
        return token_logprobs(logits, ids)[-len(out.token_ids) :]


def ratios(engine: Engine, outputs: Sequence[RequestOutput], trainer: str) -> Ratios:
    """The ratios of all tokens of all answers of a rollout, for one trainer."""
    model = CourseModel(engine.lm) if trainer == DENSE else _float32(engine)
    rows = []
    for out in outputs:
        before = torch.tensor([entry.logprob for entry in out.logprobs or []])
        rows.append((trained(model, out) - before).double().exp().numpy())
    return Ratios(np.stack(rows))


def _float32(engine: Engine) -> Transformer:
    """The engine's model; a trainer computes in float32, whatever the rollouts do."""
    return engine.model if engine.model.dtype == torch.float32 else engine.lm.model


def measure(lm: LanguageModel) -> dict[tuple[str, str], Ratios]:
    rolled_out = {name: roll_out(lm, **options) for name, options in ROLLOUTS.items()}
    return {(r, t): ratios(*rolled_out[r], t) for r in ROLLOUTS for t in TRAINERS}


def panel(measured: dict[tuple[str, str], Ratios]) -> Panel:
    """How far each token's ratio is from 1."""
    controls = {
        "rollout": choice("Rollouts", tuple(ROLLOUTS)),
        "trainer": choice("Trainer", TRAINERS),
    }

    def update(art: dict[str, Any], rollout: str, trainer: str) -> str:
        return _update(art, measured[rollout, trainer], rollout, trainer)

    return Panel(_draw, update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    (dots,) = axes.plot([], [], "o", color=BLUE, markersize=4, alpha=0.7)
    exact = axes.axhline(0, color=GREY, linewidth=1)
    axes.set_yscale("symlog", linthresh=1e-7, linscale=0.6)
    axes.set(xlim=(-4, ANSWERS * TOKENS + 4), ylim=(-0.5, 0.5), xlabel="token, answer after answer")
    axes.set_ylabel("ratio - 1")
    ticks = [-1e-1, -1e-3, -1e-5, 0, 1e-5, 1e-3, 1e-1]
    axes.set_yticks(ticks, ["-0.1", "-1e-3", "-1e-5", "exactly 1", "1e-5", "1e-3", "0.1"])
    axes.minorticks_off()
    source_note(axes, "Measured here")
    return {"dots": dots, "exact": exact}


def _update(art: dict[str, Any], found: Ratios, rollout: str, trainer: str) -> str:
    flat = found.tokens.ravel()
    art["dots"].set_data(np.arange(len(flat)), flat - 1)
    start = f"Rollouts in {rollout}; the trainer is {trainer}: "
    if found.exact == len(flat):
        return f"{start}all {len(flat)} tokens have a ratio of exactly 1."
    answers = np.abs(found.answers - 1).max()
    return (
        f"{start}{found.exact} of {len(flat)} tokens have a ratio of exactly 1; the farthest is "
        f"off by {found.worst:.1e}, a whole answer of {TOKENS} tokens by {answers:.1e}."
    )
