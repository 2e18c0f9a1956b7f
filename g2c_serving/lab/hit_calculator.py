"""The hit rule as a calculator, and what the cache weighs in bytes.

Brief, section 2. The rule itself is `schedule/hit_rule.py`, the one that the tiers use; the rule is
Reported, what follows from it for one request Derived. The picture has the request's tokens from
left to right in three rows: the state of the window layers is still held, it is gone, there is no
cache at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g2c_serving.lab.panel import Panel, slider, stops, toggle
from g2c_serving.lab.plots import BLACK, GREY, Blocks, columns, fill, source_note
from g2c_serving.lab.published import value
from g2c_serving.lab.table import Table
from g2c_serving.schedule.hit_rule import Hit, hit


@dataclass(frozen=True)
class Rule:
    """What a model fixes of the rule, in tokens."""

    block_size: int
    window: int
    slack: int

    @property
    def never_cached(self) -> int:
        """Tokens at the end of a request that never come from the cache."""
        return self.window + self.slack

    def cap(self, length: int) -> int:
        """Most tokens of a request that may come from the cache, before whole blocks are cut."""
        return max(0, length - self.never_cached)

    def hit(self, length: int, state_held: bool = True, cached: int | None = None) -> Hit:
        return hit(
            length, self.block_size, self.window, self.slack, cached=cached, state_held=state_held
        )

    def cases(self, length: int) -> dict[str, Hit]:
        """The Brief's three cases of a returning request."""
        return {
            "window state held": self.hit(length),
            "window state gone": self.hit(length, state_held=False),
            "no cache": self.hit(length, cached=0),
        }


FLASH, TINY = Rule(128, 128, 6), Rule(16, 0, 1)
BLOCK_SIZES = (16, 32, 64, 128, 256, 512)
EXAMPLE = 10_000  # tokens of the Brief's returning agent


# What a sequence leaves behind of V4.1-Flash's window state, however long it is: 20 layers, 134
# tokens, 528 bytes of each.
WINDOW_BYTES = 20 * 134 * 528


def global_bytes(tokens: int) -> int:
    """Bytes of V4.1-Flash's global cache of so many tokens, 890 each."""
    return tokens * int(value("global.bytes_per_token"))


# ---- tables ----


def cases() -> Table:
    """What a request of EXAMPLE tokens reuses and computes in the three cases (Derived)."""
    rows = [
        (name, f"{found.reused:,}", f"{found.replayed:,}", f"{found.new:,}", f"{found.computed:,}")
        for name, found in FLASH.cases(EXAMPLE).items()
    ]
    return Table((f"{EXAMPLE:,} tokens, Derived", "reused", "replayed", "new", "computed"), rows)


def bytes_table() -> Table:
    """The two kinds of state of V4.1-Flash over the length of a context (Derived)."""
    rows = []
    for n in (1_000, 10_000, 100_000, 1_000_000):
        whole, ratio = global_bytes(n), global_bytes(n) / WINDOW_BYTES
        rows.append((f"{n:,}", f"{whole / 1e6:,.1f} MB", f"{WINDOW_BYTES:,} B", f"{ratio:,.1f}"))
    return Table(("tokens, Derived", "global cache", "window state", "ratio"), rows)


# ---- the panel ----

ROWS = ("no cache", "window state gone", "window state held")  # from below
SPANS = (512, 1024, 2048, 4096)  # tokens before the end that the lower picture may show
WHOLE = (10, 100, 1_000, 5_000, 20_000)  # tokens that the upper picture may have room for
NAMES = ("reused", "replayed", "new")
LOOKS: dict[str, dict] = {
    "reused": fill(0),
    "replayed": fill(1),
    "new": {"facecolor": "white", "edgecolor": BLACK, "hatch": "..", "linewidth": 0.6},
}


def panel(rule: Rule = FLASH, length: int = EXAMPLE) -> Panel:
    """The rule with everything free: length, block, window, slack, and whether the state is held.

    Start with `rule=TINY` for a model without window layers.
    """
    controls = {
        "length": slider("Tokens in the request", 1, 20_000, length),
        "block_size": stops("Tokens in a block", BLOCK_SIZES, rule.block_size),
        "window": slider("Window (tokens)", 0, 512, rule.window),
        "slack": slider("Slack (tokens)", 1, 64, rule.slack),
        "held": toggle("Window state still in host memory", True),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    whole, end = figure.subplots(2, height_ratios=(1, 3))
    whole.set(xlim=(0, 20_300), ylim=(0, 1), yticks=(), xlabel="")
    whole.set_title("the whole request, token by token", fontsize=10)
    whole.tick_params(labelsize=9)
    whole.xaxis.set_major_formatter("{x:,.0f}")
    end.set(xlim=(SPANS[0], 0), ylim=(-0.55, 2.65), yticks=range(3))
    end.set_yticklabels(ROWS)
    end.set_xlabel("its last tokens, counted from its end")
    end.xaxis.set_major_formatter("{x:,.0f}")
    art: dict[str, Any] = {"end": end, "top": whole}
    art |= {"whole": _kinds(whole), "parts": _kinds(end)}
    art["chosen"] = Blocks(end, 0, facecolor="none", edgecolor=BLACK, hatch="", linewidth=1.8)
    art["edges"] = end.vlines([], 0, 0, color=GREY, linewidth=0.8, linestyle=":")
    (art["cap"],) = end.plot([], [], color=BLACK, linewidth=1.6, linestyle="--")
    art["cap word"] = end.text(0, 2.5, "cap", fontsize=9, ha="center", va="center")
    art["words"] = [end.text(0, row, "", fontsize=9, va="center", ha="left") for row in range(3)]
    for text in (*art["words"], art["cap word"]):
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1.5})
    handles = list(art["parts"].values())
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9)
    source_note(whole, "Derived", "from the reported rule")
    return art


def _kinds(axes: Axes) -> dict[str, Blocks]:
    axes.grid(False)
    return {name: Blocks(axes, 0, name, **LOOKS[name]) for name in NAMES}


def _update(
    art: dict[str, Any], length: int, block_size: int, window: int, slack: int, held: bool
) -> str:
    rule = Rule(block_size, window, slack)
    found = rule.cases(length)
    chosen = found["window state held" if held else "window state gone"]
    span = next((s for s in SPANS if s >= window + slack + 2.2 * block_size), SPANS[-1])
    if art["end"].get_xlim()[0] != span:
        art["end"].set_xlim(span, 0)
    room = 1.015 * next(n for n in WHOLE if n >= length)
    if art["top"].get_xlim()[1] != room:
        art["top"].set_xlim(0, room)
    for name, (left, width) in _parts(chosen, length).items():
        art["whole"][name].set_boxes(left, 0.1, width, 0.8)
    _show_rows(art, [found[name] for name in ROWS], length, span)
    art["chosen"].set_boxes(span, (2 if held else 1) - 0.4, -span, 0.8)
    never = min(
        length, rule.never_cached
    )  # with a cap of 0 the line stands where the request begins
    art["cap"].set_data([never] * 2, [-0.55, 2.4])
    art["cap word"].set_x(min(never, span))
    ends = [length - k for k in range(0, length + 1, block_size) if length - k <= span]
    art["edges"].set_segments([[(x, -0.55), (x, 2.55)] for x in ends])
    return _sentence(rule, length, chosen, held)


def _show_rows(art: dict[str, Any], rows: list[Hit], length: int, span: int) -> None:
    boxes: dict[str, list[tuple[float, float, float]]] = {name: [] for name in NAMES}
    for row, found in enumerate(rows):
        for name, (left, width) in _parts(found, length).items():
            left, right = length - left, length - left - width  # counted from the end
            if width and right < span:
                boxes[name].append((min(left, span), row, right - min(left, span)))
        art["words"][row].set_text(f"computes {found.computed:,}")
        art["words"][row].set_x(0.985 * span)
    for name, those in boxes.items():
        left, height, width = columns(those, 3)
        art["parts"][name].set_boxes(left, height - 0.32, width, 0.64)


def _parts(found: Hit, length: int) -> dict[str, tuple[int, int]]:
    """Where reused, replayed and new tokens begin, and how many they are."""
    kept = found.reused - found.replayed
    return {
        "reused": (0, kept),
        "replayed": (kept, found.replayed),
        "new": (found.reused, length - found.reused),
    }


def _sentence(rule: Rule, length: int, found: Hit, held: bool) -> str:
    state = f"The window state is {'held' if held else 'gone'}"
    if rule.window == 0:
        state = f"There is no window state to {'hold' if held else 'lose'}"
    blocks = rule.cap(length) // rule.block_size
    replayed = f", {found.replayed:,} of it replayed" if found.replayed else ""
    return (
        f"{_uncached(length, rule.never_cached)} "
        f"(window {rule.window}, slack {rule.slack}): the cap is {rule.cap(length):,}, "
        f"{blocks:,} full {'block' if blocks == 1 else 'blocks'} of {rule.block_size}. "
        f"{state}: {found.reused:,} reused{replayed}, {found.computed:,} computed, "
        f"{found.computed / length:.1%} of the work."
    )


def _uncached(length: int, never_cached: int) -> str:
    if length == 1:
        return "1 token, which never comes from the cache"
    if length <= never_cached:
        return f"{length:,} tokens, none of which comes from the cache"
    last = "last never comes" if never_cached == 1 else f"last {never_cached} never come"
    return f"{length:,} tokens, of which the {last} from the cache"
