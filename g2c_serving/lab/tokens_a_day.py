"""155 trillion tokens a day, US$38 per GPU-hour: what follows from them, and what does not.

Brief, "Reading the numbers". Reported: both numbers. Not disclosed: how many GPUs, which tokens are
counted (a prompt's, those found in a cache, those written), how the load goes over a day, what a
GPU-hour costs. So tokens per GPU cannot be derived, nor a price per token, nor a profit. The panel
lets you guess two of the unknowns, to see how far the answer moves. Every result that hangs on a
guess is Simulated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.checks import as_int
from g2c_serving.lab import charts
from g2c_serving.lab.panel import Panel, stops
from g2c_serving.lab.plots import GREY, line, plain_ticks, source_note, unmarked
from g2c_serving.lab.published import value
from g2c_serving.lab.table import Table

DAY, HOUR = 86_400, 3_600  # seconds
GUESSES = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000)  # GPUs
SHARES = (0.5, 1, 2, 5, 10, 20, 50, 100)  # % of the tokens that are written, and not read


def tokens_per_s() -> float:
    """Of the whole cluster, on the average of a day."""
    return value("fleet.tokens") * 1e12 / DAY


def per_gpu(gpus: int, percent_written: float = 100) -> float:
    """Written tokens per second and GPU, if there were so many and so large a share is written."""
    gpus = as_int("gpus", gpus, 1)
    if not 0 <= percent_written <= 100:
        raise ValueError(f"percent_written={percent_written} must be 0 to 100")
    return tokens_per_s() * percent_written / 100 / gpus


def gpus_for(throughput: float, percent_written: float = 100) -> float:
    """GPUs that decode, each with `throughput` tokens a second, for the written share."""
    if not throughput > 0:
        raise ValueError(f"throughput={throughput} must be above 0 tokens a second")
    return tokens_per_s() * percent_written / 100 / throughput


def dollars_per_million(gpus: int) -> float:
    """Revenue per million counted tokens, if there were so many GPUs and all hours earned what an
    off-peak hour is said to."""
    return (
        value("fleet.revenue") * as_int("gpus", gpus, 1) * DAY / HOUR / value("fleet.tokens") / 1e6
    )


def panel() -> Panel:
    """Tokens per GPU over the number of GPUs, with the decode chart's three throughputs."""
    controls = {
        "gpus": stops("GPUs in the cluster (a guess)", GUESSES, 10_000),
        "percent": stops("Tokens that are written, not read (%, a guess)", SHARES, 10),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    art: dict[str, Any] = {}
    (art["curve"],) = axes.plot([], [], **unmarked(0))
    (art["now"],) = axes.plot([], [], **{**line(0), "markersize": 9})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set(xlim=(GUESSES[0] / 1.2, GUESSES[-1] * 1.2), ylim=(20, 3e6))
    axes.set(xlabel="GPUs (not disclosed)", ylabel="tokens/s per GPU, written")
    for point, va in zip(charts.decode_points(), ("center", "top", "bottom"), strict=True):
        axes.axhline(point.throughput, color=GREY, linewidth=1, linestyle="--")
        words = f" chart, {point.requests} requests"
        at = axes.get_yaxis_transform()  # beside the axes: the curve goes everywhere
        axes.text(1, point.throughput, words, transform=at, va=va, fontsize=9)
    plain_ticks(axes.xaxis)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    source_note(axes, "Simulated", "on two guesses")
    return art


def _update(art: dict[str, Any], gpus: int, percent: float) -> str:
    over = np.array(GUESSES)
    art["curve"].set_data(over, [per_gpu(int(n), percent) for n in over])
    found = per_gpu(gpus, percent)
    art["now"].set_data([gpus], [found])
    most = charts.decode_points()[-1]
    needed = gpus_for(most.throughput, percent)
    cluster = f"{value('fleet.tokens'):.0f} trillion tokens a day"
    return (
        f"{cluster} are {tokens_per_s() / 1e9:.2f} billion a second (Reported, Derived). If "
        f"{percent:g}% are written and there are {gpus:,} GPUs, {found:,.0f} a second and GPU; at "
        f"the decode chart's {most.throughput:,.0f}, at {most.requests} requests, they would take "
        f"{needed:,.0f} GPUs. At "
        f"${value('fleet.revenue'):.0f} in every GPU-hour a million counted tokens would bring "
        f"${dollars_per_million(gpus):.3f}. Neither guess can be checked."
    )


def unknowns() -> Table:
    """What one would like to know, and what is missing for it."""
    rows = [
        ("tokens a second, whole cluster", f"{tokens_per_s() / 1e9:.2f} billion on average",
         "Derived", ""),
        ("tokens per GPU", "cannot be derived", "Not disclosed", "the number of GPUs"),
        ("tokens written", "cannot be derived", "Not disclosed",
         "which tokens count: read, found in a cache, written"),
        ("load at noon", "cannot be derived", "Not disclosed", "how the load goes over a day"),
        ("revenue per GPU-hour", f"${value('fleet.revenue'):.0f}, off-peak", "Reported", ""),
        ("price per token behind it", "cannot be derived", "Not disclosed",
         "tokens of that hour and GPU, by kind"),
        ("cost or profit per GPU-hour", "cannot be derived", "Not disclosed",
         "what hardware, power and people cost"),
        ("efficiency", "cannot be derived", "Not disclosed",
         "revenue rises with the price, at the same work"),
    ]  # fmt: skip
    return Table(("one would like to know", "from the release", "label", "missing"), rows, words=4)
