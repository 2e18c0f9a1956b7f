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
from g2c_serving.lab.plots import Blocks, fill

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
    art: dict[str, Any] = {}
    for k, (axes, rule) in enumerate(zip(figure.subplots(1, 3), RULES, strict=True)):
        art[rule] = Blocks(axes, LOOKS[k], **fill(LOOKS[k]))
        axes.set(xlim=(-1, MOST), ylim=(0, 1), title=rule, xlabel="target")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        art[f"axes {rule}"] = axes
    art[f"axes {RULES[0]}"].set_ylabel("words that give it")
    return art


def _update(art: dict[str, Any], bits: int, total: int) -> str:
    total = min(total, 2**bits)
    found = {rule: counts(total, bits, rule) for rule in RULES}
    top = 1.15 * found["remainder"].max()
    for rule, number in found.items():
        art[rule].set_boxes(np.arange(total) - 0.5, 0, 1, number)
        art[f"axes {rule}"].set(xlim=(-1, total), ylim=(0, top))
    most, least = found["remainder"].max(), found["remainder"].min()
    lost = 2**bits - found[RULES[2]].sum()
    return (
        f"{2**bits:,} words, {total} targets. As a remainder the first come {most} times, the last "
        f"{least}. With rejection {lost} words are thrown away ({lost / 2**bits:.1%}), and each "
        f"target comes {found[RULES[2]][0]} times. {_leap(total, bits)}"
    )


def _leap(total: int, bits: int) -> str:
    """Where the last word goes when the total is one larger."""
    word = 2**bits - 1
    pairs = [
        f"{targets(total, bits, rule)[word]} to {targets(total + 1, bits, rule)[word]}"
        for rule in RULES[:2]
    ]
    return (
        f"With one target more, word {word:,} moves from {pairs[0]} as a remainder and from "
        f"{pairs[1]} as a product."
    )
