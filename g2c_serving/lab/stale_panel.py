"""What a stale budget costs, over lag and load: a panel (Brief, section 6).

Simulated by lab/stale_budget.py, whose docstring states the model.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from g2c_serving.lab.panel import Panel, slider, stops
from g2c_serving.lab.plots import BLACK, line, source_note
from g2c_serving.lab.stale_budget import LOADS, Rates, kept, outcome

MOST_LAG, MOST_LOSS = 8, 24  # steps; % on the axis
CORRELATIONS = (0.5, 1, 2, 4, 8, 16, 32, 64)  # steps
NAMES = ("loss", "naive_loss")


def stale_panel() -> Panel:
    """Sliders for the age of the confidences, the load, and how fast confidences drift."""
    controls = {
        "lag": slider("Confidences are old by (steps)", 0, MOST_LAG, 1),
        "requests": stops("Requests per GPU", LOADS, 60),
        "correlation": stops("Correlation time (steps)", CORRELATIONS, 4),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[tuple[str, str], Any]:
    left, right = figure.subplots(1, 2, sharey=True)
    left.set(
        xlim=(-0.2, MOST_LAG + 0.2), ylim=(0, MOST_LOSS), xlabel="confidences are old by (steps)"
    )
    left.set_title("tokens per ms lost (%)", fontsize=11)
    right.set(xlim=(0, LOADS[-1] + 4), xlabel="requests per GPU")
    art: dict[tuple[str, str], Any] = {}
    for name, axes in (("lags", left), ("loads", right)):
        for k, (which, label) in enumerate(
            zip(NAMES, ("old total, fresh split", "old total, old split"), strict=True)
        ):
            art[name, which] = axes.plot([], [], label=label, clip_on=False, **line(k))[0]
        art[name, "here"] = axes.plot([], [], color=BLACK, linewidth=0.9, linestyle="-")[0]
    handles = [art["lags", which] for which in NAMES[::-1]]
    figure.legend(handles=handles, loc="outside upper left", ncols=2, fontsize=9)
    source_note(right, "Simulated")
    return art


def _update(art: dict[tuple[str, str], Any], lag: int, requests: int, correlation: float) -> str:
    lags = range(MOST_LAG + 1)
    over_lags = [outcome(requests, k, correlation) for k in lags]
    over_loads = [outcome(load, lag, correlation) for load in LOADS]
    for which in NAMES:
        art["lags", which].set_data(lags, [getattr(found, which) for found in over_lags])
        art["loads", which].set_data(LOADS, [getattr(found, which) for found in over_loads])
    art["lags", "here"].set_data([lag, lag], [0, MOST_LOSS])
    art["loads", "here"].set_data([requests, requests], [0, MOST_LOSS])
    return _said(over_lags[lag], requests, lag, kept(correlation, lag))


def _said(found: Rates, requests: int, lag: int, keeps: float) -> str:
    gains = [found.gain(rate) for rate in (found.fresh, found.fresh_split, found.old_split)]
    fresh, split, naive = (f"{gain:+.1f}%" for gain in gains)
    if not lag:
        return (
            f"Simulated: {requests} requests planned by this step's confidences: nothing is "
            f"lost, and the budget brings {fresh} over fixed five."
        )
    age = "1 step" if lag == 1 else f"{lag} steps"
    return (
        f"Simulated: {requests} requests; after {age} a confidence is correlated {keeps:.2f} "
        f"with what it was. An old total split by fresh confidences loses {found.loss:.1f}% of the "
        f"tokens per ms of fresh planning, an old split {found.naive_loss:.1f}%. Over fixed five "
        f"that is {split} and {naive}, where fresh planning has {fresh}."
    )
