"""The cold open of notebook 02: 64 caches that grow by concatenation, against pages. All real.

Brief, section 2. The course's cache is a tensor for each layer that every step replaces by a longer
one: for one user the right design. Here 64 users' caches of the shape of `tiny` grow a token a
step, by `torch.cat` and by writing into the engine's own pages; and next to both stands the whole
decode step of the engine for 64 requests of these lengths. Measured here: the times. The bytes are
counted, not measured.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.model_config import ModelConfig
from g2c_serving.lab import plots
from g2c_serving.lab.own_model import roomy
from g2c_serving.lab.plots import Picture, fill
from g2c_serving.request import SamplingParams
from g2c_serving.schedule.block_manager import BlockManager

USERS, STEPS, BLOCK = 64, 24, 16
LENGTHS = (32, 256)  # tokens that a user has at the start, from and to

Cache = list[tuple[torch.Tensor, torch.Tensor]]  # of one user: keys and values (H, T, d) by layer


@dataclass(frozen=True)
class Growth:
    """What `STEPS` steps of growing cost. Bytes are those of keys and values."""

    ms: tuple[float, ...]  # of each step
    written: tuple[int, ...]  # bytes that each step wrote
    live: int  # bytes that hold a token at the end
    peak: int  # most bytes held at a time

    @property
    def step_ms(self) -> float:
        return float(np.median(self.ms))


def starts(users: int = USERS) -> list[int]:
    """How many tokens each user has at the start: mixed lengths, seeded."""
    low, high = LENGTHS
    return np.random.default_rng(0).integers(low, high + 1, users).tolist()


def grown(caches: Sequence[Cache], keys: torch.Tensor, values: torch.Tensor) -> list[Cache]:
    """Every user's cache with one token more, keys and values (users, L, H, 1, d): all new."""
    return [
        [
            (torch.cat((k, new_k), dim=1), torch.cat((v, new_v), dim=1))  # (H, T + 1, d) each
            for (k, v), new_k, new_v in zip(cache, user_keys, user_values, strict=True)
        ]
        for cache, user_keys, user_values in zip(caches, keys, values, strict=True)
    ]


def concatenate(shape: ModelConfig, tokens: Sequence[int], steps: int = STEPS) -> Growth:
    """Grow by concatenation. While a step makes the new caches, the old ones are there too."""
    heads, d = shape.num_kv_heads, shape.head_dim
    caches = [
        [(torch.zeros(heads, n, d), torch.zeros(heads, n, d)) for _ in range(shape.num_layers)]
        for n in tokens
    ]
    new = torch.zeros(len(tokens), shape.num_layers, heads, 1, d)
    times, written, peak = [], [], 0
    for _ in range(steps):
        start = time.perf_counter()
        after = grown(caches, new, new)
        times.append(1e3 * (time.perf_counter() - start))
        written.append(_bytes(after))
        peak = max(peak, _bytes(caches) + _bytes(after))
        caches = after
    return Growth(tuple(times), tuple(written), _bytes(caches), peak)


def _bytes(caches: Sequence[Cache]) -> int:
    return sum(t.numel() * t.element_size() for cache in caches for kv in cache for t in kv)


def append(shape: ModelConfig, tokens: Sequence[int], steps: int = STEPS) -> Growth:
    """Grow in pages: a slot for each new token, and one write a layer for all users."""
    heads, d = shape.num_kv_heads, shape.head_dim
    blocks = BlockManager(sum(-(-(n + steps) // BLOCK) for n in tokens), BLOCK)
    cache = KVCache(shape.num_layers, blocks.num_blocks, BLOCK, heads, d, 1)
    for user, n in enumerate(tokens):
        blocks.allocate(user, n)
    new, times, peak = torch.zeros(len(tokens), heads, d), [], 0
    for step in range(steps):
        start = time.perf_counter()
        slots = [_slot(blocks, user, n + step) for user, n in enumerate(tokens)]
        for layer in range(shape.num_layers):
            cache.write(layer, torch.tensor(slots), new, new)
        times.append(1e3 * (time.perf_counter() - start))
        peak = max(peak, blocks.num_used * BLOCK * cache.bytes_per_token)
    live = (sum(tokens) + steps * len(tokens)) * cache.bytes_per_token
    return Growth(tuple(times), (len(tokens) * cache.bytes_per_token,) * steps, live, peak)


def _slot(blocks: BlockManager, user: int, position: int) -> int:
    """Where the token at `position` goes; a new block where the last one is full."""
    blocks.allocate(user, position + 1)
    return blocks.tables[user][position // BLOCK] * BLOCK + position % BLOCK


def engine_step_ms(lm: LanguageModel, tokens: Sequence[int], steps: int) -> float:
    """A whole decode step of the engine for requests of these lengths, in ms (median)."""
    num_blocks = sum(-(-(n + steps) // BLOCK) for n in tokens)
    config = EngineConfig(num_blocks, BLOCK, max_num_batched_tokens=sum(tokens))  # one step
    engine = Engine(lm, config)
    asked = [[32 + (7 * k + user) % 90 for k in range(n)] for user, n in enumerate(tokens)]
    params = SamplingParams(max_tokens=steps, temperature=0, ignore_eos=True)
    engine.generate(asked, params)
    alone = [r.total_ms for r in engine.history if r.num_decode_rows == r.num_tokens == len(tokens)]
    return float(np.median(alone))


def compare(lm: LanguageModel, users: int = USERS, steps: int = STEPS) -> Picture:
    """Both ways of growing, step by step, and what they hold at most."""
    tokens, lm = starts(users), roomy(lm)
    concatenate(lm.config, tokens[:4], 4), append(lm.config, tokens[:4], 4)  # warm up
    by_cat, by_page = concatenate(lm.config, tokens, steps), append(lm.config, tokens, steps)
    step = engine_step_ms(lm, tokens, steps)
    figure = plots.new_figure(size=(8, 2.4))
    names = ("concatenation", "pages")
    with plots.style():
        left, middle, right = figure.subplots(1, 3)
        written = [float(np.mean(by_cat.written)) / 1e6, by_page.written[0] / 1e6]
        _bars(left, "MB written a step, Derived", names, written)
        times = [by_cat.step_ms, by_page.step_ms, step]
        _bars(middle, "ms a step, Measured here", (*names, "the engine's\nwhole step"), times)
        _bars(right, "MB at peak, Derived", names, [by_cat.peak / 1e6, by_page.peak / 1e6])
        right.axvline(by_cat.live / 1e6, color=plots.BLACK, linestyle="--", linewidth=1)
        right.text(by_cat.live / 1e6, -0.72, " hold a token", fontsize=9, va="center")
    return plots.picture(
        figure,
        f"{users} users with {min(tokens)} to {max(tokens)} tokens each. Concatenation writes "
        f"{np.mean(by_cat.written) / 1e6:.0f} MB a step to add {by_page.written[0] / 1e6:.2f} MB, "
        f"takes {by_cat.step_ms:.1f} ms where pages take {by_page.step_ms:.2f} ms, and holds "
        f"{by_cat.peak / by_cat.live:.2f} times the live bytes at its peak (pages "
        f"{by_page.peak / by_page.live:.2f}). "
        f"A whole step of the engine for them takes {step:.1f} ms.",
    )


def _bars(axes: Axes, title: str, names: Sequence[str], values: Sequence[float]) -> None:
    """A bar with its number for each name, the first one on top."""
    axes.set_title(title, fontsize=10)
    for y, found in enumerate(values):
        axes.barh(y, found, 0.55, **fill((1, 0, 2)[y]))
        text = f"{found:.0f}" if found >= 10 else f"{found:.2f}"
        axes.text(found, y, f" {text}", va="center", fontsize=10)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set(xlim=(0, 1.3 * max(values)), ylim=(len(names) - 0.5, -0.9 if len(names) < 3 else -0.5))
    axes.tick_params(axis="x", labelsize=9)
    axes.grid(False)
