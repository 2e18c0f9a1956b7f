"""One user's loop, then 64 users: the loop serves them one after another, the engine together.

Brief, "The change of perspective". The loop is the parent course's `generate_cached` (one_user.py);
the clock in `one_by_one` and in the engine's run is measured ms, so every number of this file is
Measured here. `prefill_race` times the same prompt through the loop and through one pass.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from matplotlib.axes import Axes

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel, eos_ids
from g2c_serving.lab import lanes
from g2c_serving.lab.one_user import OneUserModel, argmax, generate_cached
from g2c_serving.lab.own_model import roomy
from g2c_serving.lab.plots import (
    Picture,
    line,
    new_figure,
    picture,
    plain_ticks,
    source_note,
    style,
)
from g2c_serving.lab.workload import Arrival, Life, Run, run
from g2c_serving.request import SamplingParams

USERS, NEW_TOKENS = 64, 12


def story(lm: LanguageModel, prompt: str, seed: int = 0, temperature: float = 0.8) -> str:
    """Prompt and continuation, written by the one-user loop with a generator of its own."""
    generator = torch.Generator().manual_seed(seed)

    def draw(logits: torch.Tensor) -> int:
        weights = torch.softmax(logits / temperature, dim=-1)  # (V,)
        return int(torch.multinomial(weights, 1, generator=generator).item())

    ids = lm.tokenizer.encode(prompt)
    new_ids = generate_cached(OneUserModel(lm), ids, 160, eos_ids(lm), draw)
    return prompt + lm.tokenizer.visible_text(new_ids)


def prompts(lm: LanguageModel, count: int = USERS) -> list[list[int]]:
    """`count` openings of stories, as ids."""
    names = ("Mia", "Tom", "Ella", "Hugo", "Wren", "Luke", "Anna", "Leo")
    kinds = ("Once upon a time there was a brave girl named", "This is the story of")
    texts = [f"{kinds[i // 8 % 2]} {names[i % 8]}" for i in range(count)]
    return [lm.tokenizer.encode(text) for text in texts]


def one_by_one(lm: LanguageModel, asked: Sequence[Sequence[int]], new_tokens: int) -> Run:
    """All arrive at 0; the loop serves one after the other. Times in measured ms."""
    model, result = OneUserModel(lm), Run()
    start = time.perf_counter()

    def now() -> float:
        return 1e3 * (time.perf_counter() - start)

    for ids in asked:
        life = Life(0.0, started=now())

        def pick(logits: torch.Tensor, life: Life = life) -> int:
            token = argmax(logits)
            life.tokens.append(now())
            return token

        life.ids = generate_cached(model, ids, new_tokens, pick=pick)
        result.lives.append(life)
    return result


def together(lm: LanguageModel, asked: Sequence[Sequence[int]], new_tokens: int) -> Run:
    """The same through the engine, all at once. Times in measured ms."""
    workload = [Arrival(0.0, tuple(ids), new_tokens) for ids in asked]
    return run(Engine(lm, EngineConfig(max_num_seqs=len(asked))), workload, clock="ms")


def compare(lm: LanguageModel, users: int = USERS, new_tokens: int = NEW_TOKENS) -> Picture:
    """When each user waits and is served: the loop at the left, the engine at the right."""
    asked = prompts(lm, users)
    together(lm, asked[:4], 4)  # warm up
    loop, engine = one_by_one(lm, asked, new_tokens), together(lm, asked, new_tokens)
    figure = new_figure()
    with style():
        left, right = figure.subplots(1, 2, sharex=True, sharey=True)
        _served(left, loop, "one after another")
        _served(right, engine, "together")
        left.set(ylabel=f"{users} users, one a line", yticks=[], xlim=(0, loop.duration / 990))
        names = ("waits for its first token", "gets tokens")
        lanes.legend(right, (lanes.WAITS, lanes.DECODE), labels=names, ncols=1, loc="center right")
        source_note(right, "Measured here")
    last = loop.lives[-1]
    return picture(
        figure,
        f"{users} users, {new_tokens} tokens each. One after another, the last one's first token "
        f"comes after {last.first_token:,.0f} ms and all are done after {loop.duration:,.0f} ms; "
        f"together, after {engine.lives[-1].first_token:,.0f} and {engine.duration:,.0f} ms: "
        f"{loop.duration / engine.duration:.1f} times the tokens per second.",
    )


def _served(axes: Axes, found: Run, name: str) -> None:
    """A lane for every user: grey until its first token, blue until its last."""
    axes.set(title=f"{name}: {1e3 * found.throughput:,.0f} tokens/s", xlabel="seconds")
    spans = {
        lanes.WAITS: [(i, v.arrived / 1e3, v.tokens[0] / 1e3) for i, v in enumerate(found.lives)],
        lanes.DECODE: [(i, v.tokens[0] / 1e3, v.finished / 1e3) for i, v in enumerate(found.lives)],
    }
    lanes.Lanes(axes, list(spans), len(found.lives), height=1).show(spans)


def prefill_race(
    lm: LanguageModel, lengths: Sequence[int] = (8, 32, 128, 448), repeats: int = 2
) -> Picture:
    """One request's prompt, token by token through the loop and in one pass of the engine."""
    lm = roomy(lm)
    model = OneUserModel(lm)
    by_loop, by_pass = [], []
    for n in lengths:
        ids = [32 + i % 90 for i in range(n)]
        by_loop.append(min(_loop_ms(model, ids) for _ in range(repeats if n < 100 else 1)))
        by_pass.append(min(_pass_ms(lm, ids) for _ in range(repeats)))
    figure = new_figure()
    with style():
        axes = figure.subplots()
        axes.loglog(lengths, by_loop, label="token by token, the loop", **line(1))
        axes.loglog(lengths, by_pass, label="in one pass, the engine", **line(0))
        axes.set(xlabel="tokens of the prompt", ylabel="ms to the first token", xticks=lengths)
        axes.set_xticks(lengths, [str(n) for n in lengths])
        axes.minorticks_off()
        plain_ticks(axes.yaxis)
        axes.legend()
        source_note(axes, "Measured here")
    return picture(
        figure,
        f"A prompt of {lengths[-1]} tokens takes {by_loop[-1]:,.0f} ms token by token and "
        f"{by_pass[-1]:,.0f} ms in one pass, {by_loop[-1] / by_pass[-1]:.1f} times less; one of "
        f"{lengths[0]} tokens {by_loop[0]:.1f} and {by_pass[0]:.1f} ms.",
    )


def _loop_ms(model: OneUserModel, ids: Sequence[int]) -> float:
    start = time.perf_counter()
    generate_cached(model, ids, 1)
    return 1e3 * (time.perf_counter() - start)


def _pass_ms(lm: LanguageModel, ids: Sequence[int]) -> float:
    engine = Engine(lm, EngineConfig(num_blocks=64, max_num_batched_tokens=len(ids)))
    engine.generate([ids], SamplingParams(max_tokens=1, temperature=0, ignore_eos=True))
    return engine.history[0].total_ms
