"""A panel: a random word made into a target below a total, in three ways.

Brief, section 3: the integer target is drawn with rejection, to avoid modulo bias. Every word of so
many bits is tried once, so that the picture has no chance in it (Derived). The engine multiplies
and rejects: a remainder leaps when the total changes by one, a product hardly moves, and with float
logits the total of "the same" request does change in its last bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from g2c_serving.lab.panel import Panel, slider
from g2c_serving.lab.plots import COLOURS, Blocks

BITS = (4, 10)
MOST = 100  # the largest total
LOOKS = (1, 2, 0)
RULES = ("remainder", "product", "product, with rejection")


def targets(total: int, bits: int, rule: str) -> np.ndarray:
    """The target of each word (2^bits,) below `total`; -1 where the word is rejected."""
    words = np.arange(2**bits)
    if rule == "remainder":
        return words % total
    product = words * total
    found = product >> bits
    rejected = product % 2**bits < 2**bits % total
    return np.where(rejected, -1, found) if rule == RULES[2] else found


def counts(total: int, bits: int, rule: str) -> np.ndarray:
    """How many words give each target, (total,)."""
    found = targets(total, bits, rule)
    return np.bincount(found[found >= 0], minlength=total)


def panel() -> Panel:
    """How often each target comes, under each rule."""
    controls = {
        "bits": slider("Bits of a word", *BITS, 8),
        "total": slider("Total of all weights", 2, MOST, 100),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    """Plain areas: the hatch of a hundred narrow bars hides their steps. The titles name them."""
    figure.set_layout_engine(
        "constrained", rect=(0.025, 0, 0.975, 1)
    )  # room for counts of three digits
    art: dict[str, Any] = {}
    grid = figure.subplots(1, 3, sharey=True)
    for k, (axes, rule) in enumerate(zip(grid, RULES, strict=True)):
        art[rule] = Blocks(axes, 0, facecolor=COLOURS[LOOKS[k]], edgecolor="none", linewidth=0)
        axes.set(xlim=(-1, MOST), ylim=(0, 1), title=rule, xlabel="target")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        art[f"axes {rule}"] = axes
    grid[0].set_ylabel("words that give it")
    return art


def _update(art: dict[str, Any], bits: int, total: int) -> str:
    asked, total = total, min(total, 2**bits)
    found = {rule: counts(total, bits, rule) for rule in RULES}
    art[f"axes {RULES[0]}"].set_ylim(0, 1.15 * found["remainder"].max())  # the axes share it
    for rule, number in found.items():
        art[rule].set_boxes(np.arange(total) - 0.5, 0, 1, number)
        art[f"axes {rule}"].set_xlim(-1, total)
    return _sentence(bits, asked, found)


def _sentence(bits: int, asked: int, found: dict[str, np.ndarray]) -> str:
    remainder, fair = found["remainder"], found[RULES[2]]
    total, lost = len(fair), 2**bits - fair.sum()
    limit = f" (a total of {asked} is more than the words: taken as {total})"
    first = f"the first come {_times(remainder.max())}, the last {remainder.min()}"
    if remainder.max() == remainder.min():
        first = f"each comes {_times(remainder.max())}"
    thrown = "no word is" if lost == 0 else "1 word is" if lost == 1 else f"{lost} words are"
    return (
        f"{2**bits:,} words, {total} targets{limit if asked > total else ''}. As a remainder "
        f"{first}. With rejection {thrown} thrown away ({lost / 2**bits:.1%}), and each "
        f"target comes {_times(fair[0])}. {_leap(total, bits)}"
    ).rstrip()


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _leap(total: int, bits: int) -> str:
    """Where the last word goes when the total is one larger; nothing where no more can be told
    apart."""
    word = 2**bits - 1
    if total > word:
        return ""
    old, new = (targets(n, bits, "remainder")[word] for n in (total, total + 1))
    a_remainder = f"stays at {old}" if old == new else f"moves from {old} to {new}"
    return (
        f"With one target more, word {word:,} {a_remainder} as a remainder and "
        f"{'moves ' if old == new else ''}from {total - 1} to {total} as a product."
    )
