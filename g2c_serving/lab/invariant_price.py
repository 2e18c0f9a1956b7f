"""What batch invariance costs: a decode step in both modes, over the number of requests.

Brief, section 3: the price is Not disclosed for DeepInfer. Ours is Measured here; it is a property
of our kernels on this processor, and says nothing about theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.contestants import fill, room_for
from g2c_serving.lab.panel import Panel, stops, toggle
from g2c_serving.lab.plots import BLACK, line, source_note
from g2c_serving.lab.words import many
from g2c_serving.request import SamplingParams

BATCHES = (1, 2, 4, 8, 16, 32, 64)
PROMPT, STEPS = 64, 10
ORDINARY, INVARIANT = "ordinary", "batch invariant"


@dataclass(frozen=True)
class Price:
    """ms of a whole engine step in which `batch` requests decode, the fastest of a few."""

    batch: int
    ordinary: float
    invariant: float

    @property
    def ratio(self) -> float:
        return self.invariant / self.ordinary


def measure(lm: LanguageModel, batches: Sequence[int] = BATCHES) -> list[Price]:
    """Both modes, a step each in turn, so that a busy machine slows both."""
    prices = []
    for batch in batches:
        engines = [_prefilled(lm, batch, mode) for mode in (False, True)]
        for _ in range(STEPS):
            for engine in engines:
                engine.step()
        prices.append(Price(batch, *map(_fastest_ms, engines)))
    return prices


def _prefilled(lm: LanguageModel, batch: int, batch_invariant: bool) -> Engine:
    """An engine with `batch` requests, all of which decode from the next step on."""
    engine = Engine(lm, room_for(batch, PROMPT, STEPS, batch_invariant=batch_invariant))
    fill(engine, batch, PROMPT, SamplingParams(STEPS + 1, temperature=0.8, ignore_eos=True))
    return engine


def _fastest_ms(engine: Engine) -> float:
    return min(record.total_ms for record in list(engine.history)[1:])  # the first: the prompts'


def panel(prices: list[Price]) -> Panel:
    """ms a step in both modes, or their ratio."""
    controls = {
        "batch": stops("Requests in the step", tuple(p.batch for p in prices), prices[-1].batch),
        "ratio": toggle("Show the ratio", False),
    }
    return Panel(
        lambda figure: _draw(figure, prices),
        lambda art, batch, ratio: _update(art, prices, batch, ratio),
        controls,
    )


def _draw(figure: Figure, prices: list[Price]) -> dict[str, Any]:
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    art: dict[str, Any] = {"axes": axes}
    (art["ordinary"],) = axes.plot([], [], label=ORDINARY, **line(0))
    (art["invariant"],) = axes.plot([], [], label=INVARIANT, **line(1))
    art["at"] = axes.axvline(prices[-1].batch, color=BLACK, linewidth=1, linestyle=":")
    axes.set(xlim=(prices[0].batch / 1.15, prices[-1].batch * 1.15))
    axes.set(xlabel="requests in the step", ylabel="ms a step")
    axes.set_xticks([p.batch for p in prices], [str(p.batch) for p in prices])
    axes.minorticks_off()
    axes.legend(loc="upper left")
    source_note(axes, "Measured here")
    return art


def _update(art: dict[str, Any], prices: list[Price], batch: int, ratio: bool) -> str:
    x = [p.batch for p in prices]
    below = [p.ordinary for p in prices]
    values = {
        "ordinary": [1.0 for _ in prices] if ratio else below,
        "invariant": [p.ratio if ratio else p.invariant for p in prices],
    }
    for name, y in values.items():
        art[name].set_data(x, y)
    art["at"].set_xdata([batch, batch])
    top = 1.25 * max(max(y) for y in values.values())
    art["axes"].set_ylim(0, top)
    art["axes"].set_ylabel("times as long" if ratio else "ms a step")
    (one,) = (p for p in prices if p.batch == batch)
    shown = " (as ratios)" if ratio else ""
    return (
        f"{many(batch, 'request')}: {one.ordinary:.2f} ms a step in the "
        f"ordinary mode, {one.invariant:.2f} ms in the batch-invariant one, "
        f"{one.ratio:.2f} times as long{shown}."
    )
