"""Storage code on the page: two lost shards come back; and ten of eleven reads against all of ten.

Brief, "The parts that are pure infrastructure". The shards are of a real cache block of the model;
the times of reads are Simulated by cluster/storage_reads.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.cluster.storage_code import StorageCode, weights
from g2c_serving.cluster.storage_reads import Read, ReadTimes, under_load
from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.held_out import held_out_prompts
from g2c_serving.lab.panel import Panel, slider, stops
from g2c_serving.lab.plots import BLACK, GREY, Blocks, line, source_note, unmarked
from g2c_serving.request import SamplingParams

CODE = StorageCode()
ISSUED = (10, 11, 12)
FACTORS = (1, 2, 5, 10, 20, 50, 100)


def cache_block(lm: LanguageModel) -> bytes:
    """The keys and values of the first full block of a prompt, all layers, as the engine has it."""
    engine = Engine(lm, EngineConfig(num_blocks=8))
    prompt = held_out_prompts(lm, 1)[0]
    engine.add(prompt, SamplingParams(max_tokens=2, seed=1))
    engine.step()
    (table,) = engine.block_manager.tables.values()
    return engine.cache.export_blocks(table[:1], range(engine.cache.num_layers))[0]


# ---- two shards lost ----


def shards_panel(lm: LanguageModel) -> Panel:
    """Two sliders choose the lost shards of a real block; the others give them back."""
    block = cache_block(lm)
    shards = CODE.split(block)
    names = {"first": 3, "second": 7}
    controls = {
        name: slider(f"{name.capitalize()} lost shard", 0, CODE.shards - 1, value)
        for name, value in names.items()
    }

    def update(art: dict[str, Any], first: int, second: int) -> str:
        return _show_losses(art, block, shards, first, second)

    return Panel(_draw_shards, update, controls, size=(8, 2.3))


LOOKS: dict[str, dict] = {
    "data, read": {"facecolor": "#BBDDF2", "edgecolor": BLACK, "hatch": ""},
    "parity, read": {"facecolor": "#FFD9B8", "edgecolor": "#A04000", "hatch": "///"},
    "lost": {"facecolor": "white", "edgecolor": "#B0006B", "hatch": "xxx"},
    "not needed": {"facecolor": "white", "edgecolor": GREY, "hatch": ""},
}
ROWS = (1.0, 1.75)  # where the factors of the first and of the second lost shard stand


def _draw_shards(figure: Figure) -> dict[str, Any]:
    figure.set_layout_engine("none")
    axes = figure.add_axes((0.005, 0, 0.99, 1))
    axes.set(xlim=(-2.7, 12.1), ylim=(3.1, -0.75))
    axes.set_axis_off()
    art: dict[str, Any] = {kind: Blocks(axes, 0, kind, **look) for kind, look in LOOKS.items()}
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
    labels = [f"{i}" if i < CODE.data else f"P{i - CODE.data}" for i in range(CODE.shards)]
    art["labels"] = [
        axes.text(i + 0.5, 0.3, label, ha="center", va="center", bbox=box, zorder=3)
        for i, label in enumerate(labels)
    ]
    art["factors"] = [
        [axes.text(i + 0.5, y, "", ha="center", va="center", family="monospace") for y in ROWS]
        for i in range(CODE.shards)
    ]
    art["lost"].set_label("lost")
    art["names"] = [axes.text(-0.1, y, "", ha="right", va="center") for y in ROWS]
    axes.text(-0.1, 0.3, "shard", ha="right", va="center")
    axes.text(0, -0.45, "A cache block in ten data shards, and two of parity", va="center")
    handles = [art[kind] for kind in LOOKS]
    axes.legend(handles=handles, loc="lower center", ncols=4, fontsize=9, bbox_to_anchor=(0.55, 0))
    return art


def _show_losses(
    art: dict[str, Any], block: bytes, shards: list[bytes], first: int, second: int
) -> str:
    lost = sorted({first, second})
    left = {i: shard for i, shard in enumerate(shards) if i not in lost}
    used = sorted(left)[: CODE.data]
    kinds: dict[str, list[int]] = {kind: [] for kind in LOOKS}
    for i in range(CODE.shards):
        read = "data, read" if i < CODE.data else "parity, read"
        kinds["lost" if i in lost else read if i in used else "not needed"].append(i)
    for kind, at in kinds.items():
        art[kind].set_boxes(np.array(at) + 0.04, 0, 0.92, 0.6)
    for row in range(len(ROWS)):
        name, factors = "", {}
        if row < len(lost):
            name = f"{_name(lost[row])} = sum of"
            factors = dict(zip(used, weights(tuple(used), lost[row]), strict=True))
        art["names"][row].set_text(name)
        for i in range(CODE.shards):
            art["factors"][i][row].set_text(f"\u00d7{factors[i]:02x}" if i in factors else "")
    same = CODE.join(left, len(block)) == block and all(
        CODE.rebuild(left, i) == shards[i] for i in lost
    )
    return (
        f"A block of {len(block):,} bytes lies in {CODE.shards} shards of "
        f"{CODE.shard_size(len(block)):,}, {CODE.overhead:g} times its size. Without "
        f"{' and '.join(_name(i) for i in lost)}, each lost one is a sum of ten others times the "
        f"factors shown (bytes, in hexadecimal): the block is "
        f"{'bit for bit the same' if same else 'NOT THE SAME'}."
    )


def _name(index: int) -> str:
    return f"shard {index}" if index < CODE.data else f"parity {index - CODE.data}"


# ---- ten of eleven ----

TIMES = np.geomspace(0.5, 1000, 300)  # ms


def reads_panel() -> Panel:
    """How many blocks are not there yet, over time, with 10, 11 and 12 reads issued."""
    controls = {
        "slow": slider("Slow reads (%)", 0.0, 10.0, 1.0, 0.25),
        "factor": stops("Slow ones take longer by", FACTORS, 20),
    }
    return Panel(_draw_reads, _update_reads, controls)


def _draw_reads(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    axes.set(xlim=(TIMES[0], TIMES[-1]), ylim=(1e-4, 1), xscale="log", yscale="log")
    axes.set(xlabel="ms since the reads were issued", ylabel="blocks not there yet")
    axes.xaxis.set_major_formatter("{x:,g}")
    curves = [
        axes.plot([], [], **unmarked(k), label=f"10 of {issued} reads")[0]
        for k, issued in enumerate(ISSUED)
    ]
    (one,) = axes.plot([], [], color=GREY, linestyle=":", label="one read alone")
    axes.axhline(0.01, color="#BBBBBB", linewidth=1)
    axes.annotate("1 in 100", (TIMES[-1], 0.011), fontsize=9, ha="right", color="#555555")
    axes.legend(loc="lower left", fontsize=10)
    source_note(axes, "Simulated", "independent reads, 1 ms and an exponential part of mean 1 ms")
    return {"curves": curves, "one": one}


def _update_reads(art: dict[str, Any], slow: float, factor: int) -> str:
    times = ReadTimes(1.0, 1.0, slow / 100, float(factor))
    reads = [Read(times, issued) for issued in ISSUED]
    for curve, read in zip(art["curves"], reads, strict=True):
        curve.set_data(TIMES, np.maximum(1 - read.back_by(TIMES), 1e-9))
    art["one"].set_data(TIMES, np.maximum(1 - times.back_by(TIMES), 1e-9))
    said = [
        f"{read.quantile(0.5):.1f} ms in the middle, {read.quantile(0.99):.1f} for 1 in 100"
        for read in reads
    ]
    return (
        f"Simulated, {slow:g} % of the reads {factor} times slower. All ten of ten: {said[0]}; the "
        f"first ten of eleven: {said[1]}; of twelve: {said[2]}."
    )


# ---- what the eleventh read costs ----

LOADS = np.linspace(0, 0.98, 197)


def load_panel() -> Panel:
    """The mean time of a block's read over how busy the disks are: the extra read is no gift."""
    controls = {"load": slider("Disks busy with the ten reads (%)", 0, 95, 50, 1)}
    return Panel(_draw_load, _update_load, controls)


def _draw_load(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    axes.set(xlim=(0, 100), ylim=(0, 30))
    axes.set(xlabel="% of the time that disks are busy, if ten are issued",
             ylabel="mean time of a block\n(mean reads of an idle disk)")  # fmt: skip
    for k, issued in enumerate(ISSUED):
        look = unmarked(k)
        axes.plot(100 * LOADS, under_load(LOADS, issued), **look, label=f"10 of {issued} reads")
    axes.legend(loc="upper left", fontsize=10)
    source_note(axes, "Simulated", "an M/M/1 queue at every disk, nothing cancelled")
    dots = [axes.plot([], [], **{**line(k), "linestyle": "", "markersize": 8})[0] for k in range(3)]
    return {"dots": dots, "here": axes.axvline(0, color=BLACK, linewidth=1)}


def _update_load(art: dict[str, Any], load: int) -> str:
    means = [float(under_load(load / 100, issued)) for issued in ISSUED]
    for dot, mean in zip(art["dots"], means, strict=True):
        dot.set_data([load], [mean])
    art["here"].set_xdata([load])
    said = [f"{mean:.2f}" if np.isfinite(mean) else "no end of waiting" for mean in means]
    best = ISSUED[int(np.argmin(means))]
    return (
        f"Simulated, disks {load} % busy with ten reads a block. Mean time, in reads of an idle "
        f"disk: all ten of ten {said[0]}; ten of eleven {said[1]}; ten of twelve {said[2]}. "
        f"Issuing {best} is best here."
    )
