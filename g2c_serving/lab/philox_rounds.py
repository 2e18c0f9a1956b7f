"""A panel: what Philox's rounds make of a counter, bit by bit.

The engine's `rng.philox` runs all ten rounds at once. Here the same round is written for a chosen
number of them, to see the counter's pattern go. Brief, section 3; Salmon and others, 2011.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.lab.panel import Panel, choice, slider
from g2c_serving.lab.table import Table
from g2c_serving.sample import rng

POSITIONS = 48
USES = {"sample": rng.SAMPLE, "resample": rng.RESAMPLE, "accept coin": rng.ACCEPT}
WORD = np.uint64(2**32 - 1)


def philox(key: int, counters: np.ndarray, rounds: int = 10) -> np.ndarray:
    """Words (R, 4) after so many rounds on counters (R, 4), under one 64-bit key."""
    a, b, c, d = np.asarray(counters, dtype=np.uint64).T  # (R,) each
    low, high = np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)
    for _ in range(rounds):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)  # 64 bits each
        a, b, c, d = (
            (second >> np.uint64(32)) ^ b ^ low,
            second & WORD,
            (first >> np.uint64(32)) ^ d ^ high,
            first & WORD,
        )
        low = (low + np.uint64(0x9E3779B9)) & WORD
        high = (high + np.uint64(0xBB67AE85)) & WORD
    return np.stack((a, b, c, d), axis=-1)


def bits(words: np.ndarray) -> np.ndarray:
    """The bits (R, 128) of words (R, 4), the highest first."""
    shifts = np.arange(31, -1, -1, dtype=np.uint64)
    return ((words[:, :, None] >> shifts) & np.uint64(1)).reshape(len(words), -1).astype(np.uint8)


def flipped(key: int, rounds: int, use: int = rng.SAMPLE) -> float:
    """How many of the 128 bits change, on average, from one position's counter to the next."""
    found = bits(philox(key, rng.counters(np.arange(POSITIONS), use), rounds))
    return float((found[1:] != found[:-1]).sum(1).mean())


def streams(seed: int) -> Table:
    """The streams of a few positions, and the four words that each of them gives."""
    rows = []
    for position in (0, 1, 7):
        for name, use in USES.items():
            counter = rng.counters(np.array([position]), use)
            words = rng.philox(np.array([seed], dtype=np.uint64), counter)[0].tolist()
            stream = f"{position} * 3 + {use} = {counter[0, 0]}"
            rows.append((name, str(position), stream, " ".join(f"{word:08x}" for word in words)))
    return Table(("use", "position", "stream", f"four words, seed {seed}"), rows)


def panel() -> Panel:
    """The bits of the words of neighbouring positions, after 0 to 10 rounds."""
    controls = {
        "rounds": slider("Rounds", 0, 10, 1),
        "seed": slider("Seed", 0, 99, 7),
        "use": choice("Use", tuple(USES)),
    }
    return Panel(_draw, _update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    axes.grid(False)
    empty = np.zeros((POSITIONS, 128))
    image = axes.imshow(empty, cmap="Blues", vmin=0, vmax=1.3, aspect="auto")
    axes.set(xlabel="bits of the four words", ylabel="position", xticks=(0, 32, 64, 96, 128))
    return {"image": image}


def _update(art: dict[str, Any], rounds: int, seed: int, use: str) -> str:
    words = philox(seed, rng.counters(np.arange(POSITIONS), USES[use]), rounds)
    art["image"].set_data(bits(words))
    first = " ".join(f"{word:08x}" for word in words[0].tolist())
    after = "After 1 round" if rounds == 1 else f"After {rounds} rounds"
    changed = flipped(seed, rounds, USES[use])
    return (
        f"{after}, the words of position 0 ({use}, seed {seed}) are {first}. From one position to "
        f"the next, {changed:.1f} of 128 bits change."
    )
