"""The step time behind the production table's throughput, and the decode chart's beside it.

Brief, "Reading the numbers". "About 60" requests that share 13,730 tokens a second get a step every
14.4 ms if a step gives each 3.30 tokens, every 18.8 ms if it gives 4.30. The decode chart has 13.2
ms at 64 requests, but with three drafts: 256 rows. Five drafts make 360 rows of 60 requests, so the
comparison goes through the chart's step times by rows (lab/load_model.py; Simulated between the
chart's points). Derived; what a step gives, and how many "about 60" are, is Not disclosed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.lab import charts
from g2c_serving.lab.load_model import step_ms
from g2c_serving.lab.panel import Panel, choice, slider
from g2c_serving.lab.plots import BLACK, line, source_note, unmarked
from g2c_serving.lab.published import value
from g2c_serving.lab.table import Table

REQUESTS = (16, 96)  # of the Q&A's table
MODES = {"fixed five": "fixed", "budgeted": "budget"}  # and what figures.csv calls them
BOTH = (False, True)  # whether the ordinary token comes on top of the reported length


def implied_ms(requests: Any, mode: str, ordinary: bool) -> Any:
    """ms of a step behind the table's throughput of "fixed" or "budget" at so many requests, each
    with its accepted length, and one token more where `ordinary`."""
    tokens = requests * (value(f"prod.accepted.{mode}") + ordinary)
    return 1000 * tokens / value(f"prod.throughput.{mode}")


def chart_ms(requests: Any, mode: str) -> Any:
    """ms of a step of as many rows, on the decode chart's curve: a row for each request and one for
    each of its verified drafts. Up to 96 requests."""
    curve = step_ms()
    rows = np.asarray(requests) * (1 + value(f"prod.verified.{mode}"))
    if np.any(rows > len(curve) - 1):
        raise ValueError(f"requests {requests}: the curve ends at {REQUESTS[1]} requests")
    return np.interp(rows, np.arange(len(curve)), curve)


def fits_at(mode: str, ordinary: bool) -> float:
    """The requests per GPU at which the implied step and the chart's are as long."""
    requests = np.linspace(*REQUESTS, 801)
    apart = np.abs(chart_ms(requests, mode) - implied_ms(requests, mode, ordinary))
    return float(requests[apart.argmin()])


def table() -> Table:
    """Both ways of counting, for both columns of the production table, at its 60 requests."""
    load, rows = value("prod.load"), []
    for name, mode in MODES.items():
        for ordinary in BOTH:
            rows.append(
                (
                    f"{name}, {value(f'prod.accepted.{mode}') + ordinary:.2f} tokens",
                    f"{implied_ms(load, mode, ordinary):.1f}",
                    f"{float(chart_ms(load, mode)):.1f}",
                    f"{fits_at(mode, ordinary):.0f}",
                )
            )
    head = (
        f"a step of {load:.0f} requests",
        "implied ms",
        "the chart's ms for as many rows",
        "they agree at (requests)",
    )
    return Table(head, rows)


def panel() -> Panel:
    """How many requests would "about 60" have to be? The implied steps and the chart's, over it."""
    controls = {
        "requests": slider("Requests per GPU", *REQUESTS, round(value("prod.load"))),
        "mode": choice("Column of the table", tuple(MODES)),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[Any, Any]:
    axes = figure.subplots()
    art: dict[Any, Any] = {}
    labels = {
        "chart": "decode chart, as many rows",
        True: "implied, ordinary token on top",
        False: "implied, ordinary token counted",
    }
    for k, (name, label) in enumerate(labels.items()):
        (art[name],) = axes.plot([], [], label=label, **unmarked(k))
        marker: dict[str, Any] = {"color": line(k)["color"], "marker": line(k)["marker"]}
        (art[f"{name} now"],) = axes.plot([], [], linestyle="none", markersize=9, **marker)
    (art["at"],) = axes.plot([], [], color=BLACK, linewidth=1, linestyle=":")
    axes.set(xlim=(REQUESTS[0] - 1, REQUESTS[1] + 1), xlabel="requests per GPU")
    axes.set(ylim=(0, 32), ylabel="ms a step")
    axes.legend(loc="upper left", fontsize=9)
    source_note(axes, "Derived", "Simulated between the chart's points")
    return art


def _update(art: dict[Any, Any], requests: int, mode: str) -> str:
    row, over = MODES[mode], np.arange(REQUESTS[0], REQUESTS[1] + 1)
    now = {ordinary: float(implied_ms(requests, row, ordinary)) for ordinary in BOTH}
    chart = float(chart_ms(requests, row))
    art["chart"].set_data(over, chart_ms(over, row))
    art["chart now"].set_data([requests], [chart])
    for ordinary in BOTH:
        art[ordinary].set_data(over, implied_ms(over, row, ordinary))
        art[f"{ordinary} now"].set_data([requests], [now[ordinary]])
    art["at"].set_data([requests] * 2, [0, 32])
    length, verified = value(f"prod.accepted.{row}"), value(f"prod.verified.{row}")
    point = charts.decode_point(64)
    return (
        f"{mode.capitalize()}, {value(f'prod.throughput.{row}'):,.0f} tokens a second for "
        f"{requests} requests: a step every {now[False]:.1f} ms if it gives each {length:.2f} "
        f"tokens, every {now[True]:.1f} ms if {1 + length:.2f}. The chart ({point.step_ms:.1f} ms "
        f"at {point.requests} requests, {point.requests * (1 + charts.CHART_DRAFTS)} rows) makes "
        f"it {chart:.1f} ms for these {requests * (1 + verified):.0f} rows. They would agree at "
        f"{fits_at(row, False):.0f} requests, or at {fits_at(row, True):.0f}."
    )
