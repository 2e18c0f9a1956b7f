"""How long to keep a cache: hit rate over lifetime, for chats and for agents. Simulated.

Brief, section 2. Reported: the global blocks live 3 days for agent traffic and 7 for chats, more
than 72 hours is a stated goal, and a lifetime of 3 days would cost chats 0.5 to 1 % of their hit
rate. The traffic here is made up (traffic.py, with its assumptions); what it does to a cache is
computed exactly (reuse.py). A lifetime counts from the last use.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g2c_serving.lab import traffic
from g2c_serving.lab.panel import Panel, slider, stops
from g2c_serving.lab.plots import BLACK, GREY, ORANGE, line, source_note, unmarked
from g2c_serving.lab.published import value
from g2c_serving.lab.reuse import Reuse
from g2c_serving.lab.table import Table
from g2c_serving.lab.traffic import CHATS, DAY

DAYS = (0.01, 0.1, 0.25, 0.5, 1, 2, 3, 4, 5, 7, 10, 14)  # lifetimes to choose from
CAPACITIES = (0.5, 1, 2, 4, 8, 16, 32, 100)  # GB; 100 hold all that is ever written
SHARES = tuple(range(0, 61, 5))  # % of the chats that are taken up again
DEFAULT_SHARE = 20
AXIS = np.geomspace(0.001, 14, 120)  # days


@cache
def reuse() -> Reuse:
    """The distances of the one trace that the panel reads."""
    return Reuse(traffic.trace())


def three_or_seven(found: Reuse, share: float, capacity: float = np.inf) -> float:
    """What 3 days instead of 7 cost chats, in points of hit rate."""
    days = value("tier.ttl.agent"), value("tier.ttl.chat")
    return found.cost(days[0] * DAY, days[1] * DAY, share, capacity)


def sensitivity(
    medians: tuple[float, ...] = (0.5, 1, 2), shares: tuple[int, ...] = (10, 20, 40)
) -> Table:
    """The cost of 3 days under other assumptions: how soon people come back, and how many."""
    rows = []
    for days in medians:
        chats = replace(CHATS, away=(days * DAY, CHATS.away[1]))
        found = Reuse(traffic.trace(chats))
        costs = [f"{three_or_seven(found, share / 100):.2f}" for share in shares]
        rows.append((f"half of them within {days:g} {'day' if days == 1 else 'days'}", *costs))
    head = [f"{share} % come back" for share in shares]
    return Table(("3 days instead of 7 cost chats, in points (Simulated)", *head), rows)


def panel() -> Panel:
    """Hit rates over lifetime, and what 3 days cost chats over the share that comes back."""
    controls = {
        "chat": stops("Chat lifetime (days)", DAYS, 7),
        "agent": stops("Agent lifetime (days)", DAYS, 3),
        "capacity": stops("Capacity (GB)", CAPACITIES, 100),
        "share": slider("Chats taken up again (%)", 0, 60, DEFAULT_SHARE),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    art: dict[str, Any] = {}
    for k, name in enumerate(("chat", "agent")):
        (art[name],) = left.plot([], [], label=_plural(name), **unmarked(k))
        (art[f"{name} here"],) = left.plot(
            [], [], **(line(k) | {"linestyle": "", "markersize": 9}), clip_on=False
        )
    _lifetime_axis(left)
    right.axhspan(value("tier.chat_loss.low"), value("tier.chat_loss.high"), color="#DDDDDD")
    right.text(59, 0.53, "Reported: 0.5 to 1 %", fontsize=9, ha="right")
    (art["cost"],) = right.plot([], [], **unmarked(0))
    (art["cost here"],) = right.plot(
        [], [], color=BLACK, marker="o", markersize=9, fillstyle="none", clip_on=False
    )
    right.set(xlim=(0, 60), ylim=(0, 2.5), xlabel="chats taken up again (%)")
    right.set_title("points that 3 days cost", fontsize=11)
    left.legend(loc="lower center")
    source_note(right, "Simulated")
    return art


def _plural(name: str) -> str:
    return {"chat": "chats", "agent": "agents"}[name]


def _lifetime_axis(axes: Axes) -> None:
    axes.set(
        xscale="log", xlim=(AXIS[0], AXIS[-1]), ylim=(0.4, 1.06), xlabel="lifetime since last use"
    )
    minute, hour = 1 / 1440, 1 / 24
    ticks = {10 * minute: "10 min", hour: "1 h", 6 * hour: "6 h", 1: "1 d", 3: "3 d", 7: "7 d"}
    axes.set_xticks(list(ticks), list(ticks.values()), fontsize=9)
    axes.set_xlim(AXIS[0], AXIS[-1])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_title("tokens found in the cache", fontsize=11)
    goal = value("tier.retain") / 24
    axes.axvline(goal, color=ORANGE, linewidth=1.2, linestyle="--")
    axes.axvline(value("tier.ttl.chat"), color=GREY, linewidth=1.2, linestyle=":")
    axes.text(goal, 1.015, "72 h, the goal ", ha="right", fontsize=9)


def _update(art: dict[str, Any], chat: float, agent: float, capacity: float, share: int) -> str:
    found, limit = reuse(), np.inf if capacity == CAPACITIES[-1] else 1e9 * capacity
    rates = {}
    for name, days in (("chat", chat), ("agent", agent)):
        curve = found.rates(name == "chat", np.append(AXIS, days) * DAY, share / 100, limit)
        art[name].set_data(AXIS, curve[:-1])
        art[f"{name} here"].set_data([days], curve[-1:])
        rates[name] = curve[-1]
    art["cost"].set_data(SHARES, [three_or_seven(found, s / 100, limit) for s in SHARES])
    cost = three_or_seven(found, share / 100, limit)
    art["cost here"].set_data([share], [cost])
    held = [found.held(True, d * DAY, share / 100) / 1e9 for d in (3, 7)]
    return (
        f"Lifetimes of {chat:g} days for chats and {agent:g} for agents, {capacity:g} GB"
        f"{' (all that is written)' if limit == np.inf else ''}: "
        f"{rates['chat']:.1%} of the chats' tokens and {rates['agent']:.1%} of the agents' come "
        f"from the cache. With {share}% of the chats taken up again, 3 days instead of 7 cost "
        f"chats {cost:.2f} points. Without a limit, 3 days of chats would hold {held[0]:.1f} GB, "
        f"7 days {held[1]:.1f}."
    )
