"""Static against continuous batching on the same arrivals: the timelines, and the times in ms.

Static batching fills the engine and lets nobody in until the whole batch is done; continuous
batching lets requests join and leave between steps (Brief, "The change of perspective"). Our static
run is kind: a seat whose request is done costs nothing, where a padded batch would go on computing
it. The panel's clock counts engine steps and its engine is the dry one (workload.py); `race` runs
the same arrivals with a model and in ms.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import lanes, workload
from g2c_serving.lab.panel import Panel, slider
from g2c_serving.lab.plots import source_note
from g2c_serving.lab.table import Table
from g2c_serving.lab.words import many
from g2c_serving.lab.workload import Run

REQUESTS = 10
KINDS = (lanes.WAITS, lanes.PREFILL, lanes.DECODE, lanes.EMPTY)
LIMITS = (120, 240, 480)  # ends that the time axis may have, in steps: few, a change redraws all


def config(seats: int) -> EngineConfig:
    """Blocks enough that only the seats decide who waits."""
    return EngineConfig(num_blocks=256, max_num_seqs=seats, max_num_batched_tokens=256)


def requests(gap: float, longest: int) -> list[workload.Arrival]:
    """The panel's workload: ten prompts of 8 to 24 tokens, answers of 4 to `longest` tokens."""
    return workload.arrivals(REQUESTS, gap, prompt=(8, 24), answer=(4, longest), seed=3)


def both(
    lm: LanguageModel, seats: int, gap: float, longest: int, *, clock: str = "steps"
) -> tuple[Run, Run]:
    """The same arrivals, served statically and continuously. In steps nothing is computed."""
    engine = workload.DryEngine if clock == "steps" else Engine
    made = requests(gap, longest)
    runs = [
        workload.run(engine(lm, config(seats)), made, clock=clock, static=static)
        for static in (True, False)
    ]
    return runs[0], runs[1]


def panel(lm: LanguageModel) -> Panel:
    """Two timelines on one axis of steps, with sliders for seats, arrivals and lengths."""
    controls = {
        "seats": slider("Seats (max_num_seqs)", 1, 10, 4),
        "gap": slider("Steps between arrivals", 0, 8, 1),
        "longest": slider("Longest answer (tokens)", 4, 60, 40),
    }
    return Panel(_draw, lambda art, **v: _update(art, lm, **v), controls)


def _draw(figure: Figure) -> dict[str, Any]:
    top, bottom = figure.subplots(2, sharex=True)
    art: dict[str, Any] = {"axes": bottom}
    for axes, name in ((top, "static"), (bottom, "continuous")):
        art[name] = lanes.Lanes(axes, KINDS, REQUESTS)
        art[name + " artists"] = art[name].artists  # where the panel finds what moves
        axes.set(ylabel=name, yticks=[])
    bottom.set(xlabel="engine steps", xlim=(0, LIMITS[0]))
    lanes.legend(top, KINDS, loc="lower left", bbox_to_anchor=(0, 0.98), borderpad=0)
    source_note(top, "Simulated", "our scheduler, nothing computed")
    return art


def _update(art: dict[str, Any], lm: LanguageModel, seats: int, gap: int, longest: int) -> str:
    static, continuous = both(lm, seats, gap, longest)
    art["static"].show(lanes.spans_of(static) | {lanes.EMPTY: lanes.empty_seats(static)})
    art["continuous"].show(lanes.spans_of(continuous))
    end = max(r.spans[-1][1] for r in (static, continuous))
    limit = next(limit for limit in LIMITS if limit >= end)
    if art["axes"].get_xlim()[1] != limit:
        art["axes"].set_xlim(0, limit)
    return (
        f"{many(seats, 'seat')}: static batching takes "
        f"{static.spans[-1][1]:.0f} steps and the first token comes after {static.first_token:.0f} "
        f"on average; continuous batching takes {continuous.spans[-1][1]:.0f} and "
        f"{continuous.first_token:.0f}. {continuous.num_tokens} tokens in all, "
        f"arrivals {gap} apart."
    )


def race(lm: LanguageModel, seats: int = 4, gap_ms: float = 2.0, longest: int = 40) -> Table:
    """The same comparison with the model and in ms (Measured here)."""
    static, continuous = both(lm, seats, gap_ms, longest, clock="ms")
    rows = [
        ("time to first token, mean", static.first_token, continuous.first_token, "ms"),
        ("time between tokens, mean", static.gap, continuous.gap, "ms"),
        ("throughput", 1e3 * static.throughput, 1e3 * continuous.throughput, "tokens/s"),
        ("all done after", static.duration, continuous.duration, "ms"),
    ]
    return Table(
        (f"{lm.name}, Measured here", "static", "continuous"),
        [(what, f"{a:,.1f} {unit}", f"{b:,.1f} {unit}") for what, a, b, unit in rows],
    )
