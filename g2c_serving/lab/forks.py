"""Many samples of one prompt: what they share, what each of them needs for itself. Real runs.

Brief, section 2: DeepInfer's own evaluation scripts draw 32 samples for a problem. With forks the
prompt is computed once and its full blocks are stored once; every sample gets a tail of its own.
Beside it the same samples as requests that know nothing of each other; those are scheduled and not
computed, which changes none of the counts. Nothing here depends on the speed of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.own_model import roomy
from g2c_serving.lab.panel import Panel, stops
from g2c_serving.lab.plots import Blocks, fill, source_note
from g2c_serving.lab.words import many
from g2c_serving.lab.workload import DryEngine
from g2c_serving.request import SamplingParams

SAMPLES = (1, 2, 4, 8, 16, 32)
PROMPTS = (100, 250)  # tokens: neither ends with a block, so every sample has a tail
ANSWER, BLOCK = 20, 16


@dataclass(frozen=True)
class Cost:
    """What n samples of a prompt took: prompt tokens computed, blocks in use at the peak."""

    samples: int
    computed: int
    blocks: int


def draw(lm: LanguageModel, prompt: int, samples: int, shared: bool) -> Cost:
    """`samples` answers to one prompt of `prompt` tokens, drawn as one request, or scheduled as
    one request each."""
    ids = (lm.tokenizer.encode("Once upon a time there was a girl. ") * 64)[:prompt]
    config = EngineConfig(
        num_blocks=samples * -(-(prompt + ANSWER) // BLOCK),
        block_size=BLOCK,
        max_num_batched_tokens=samples * prompt,  # all at once, so that all are there at the peak
    )
    engine = (Engine if shared else DryEngine)(lm, config)
    params = SamplingParams(max_tokens=ANSWER, n=samples if shared else 1, ignore_eos=True, seed=0)
    engine.generate([ids] if shared else [ids] * samples, params)
    return Cost(samples, engine.stats.prefill_tokens, engine.stats.peak_blocks)


def panel(lm: LanguageModel) -> Panel:
    """Blocks and computed tokens over the number of samples, shared and not."""
    lm = roomy(lm)
    found: dict[tuple[int, int, bool], Cost] = {}

    def update(art: dict[str, Any], samples: int, prompt: int) -> str:
        for n in SAMPLES:
            for shared in (True, False):
                if n <= samples and (prompt, n, shared) not in found:
                    found[prompt, n, shared] = draw(lm, prompt, n, shared)
        costs = {s: [found[prompt, n, s] for n in SAMPLES if n <= samples] for s in (True, False)}
        return _update(art, costs, samples, prompt)

    controls = {
        "samples": stops("Samples", SAMPLES, 32, live=False),
        "prompt": stops("Tokens of the prompt", PROMPTS, 250, live=False),
    }
    return Panel(_draw, update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    left, right = figure.subplots(1, 2)
    art: dict[str, Any] = {}
    for axes, name in ((left, "blocks"), (right, "computed")):
        art[name] = {
            True: Blocks(axes, 0, "forks of one", **fill(0)),
            False: Blocks(axes, 1, "each for itself", **fill(1)),
            "words": [axes.text(0, 0, "", fontsize=9, ha="center") for _ in range(2)],
        }
        _count_axis(axes)
    left.set(title="blocks at the peak", ylim=(1, 2_000))
    right.set(title="prompt tokens computed", ylim=(10, 40_000))
    left.legend(loc="upper left", fontsize=9)
    source_note(left, "Simulated", "each for itself")
    return art


def _count_axis(axes: Axes) -> None:
    axes.set(yscale="log", xlim=(-0.6, len(SAMPLES) - 0.4), xlabel="samples")
    axes.set_xticks(range(len(SAMPLES)), [str(n) for n in SAMPLES])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(False)


def _update(art: dict[str, Any], costs: dict[bool, list[Cost]], samples: int, prompt: int) -> str:
    for name in ("blocks", "computed"):
        for shared, side in ((True, -0.4), (False, 0.0)):
            values = [getattr(cost, name) for cost in costs[shared]]
            text, lefts = art[name]["words"][shared], [i + side for i in range(len(values))]
            art[name][shared].set_boxes(lefts, 1, 0.4, [value - 1 for value in values])
            middle = len(values) - 0.8 + side
            if len(values) == 1:  # for itself it counts as much: the labels would meet
                middle += -0.1 if shared else 0.25
            text.set_position((middle, 1.15 * values[-1]))
            text.set_text(f"{values[-1]:,}")
    forks, alone = costs[True][-1], costs[False][-1]
    own = forks.blocks - prompt // BLOCK
    return (
        f"{many(samples, 'sample')} of a prompt of {prompt} tokens, "
        f"{ANSWER} tokens each. As forks: {forks.computed:,} prompt tokens computed, "
        f"{forks.blocks:,} blocks ({prompt // BLOCK} of the prompt and {own} of the "
        f"{'sample' if samples == 1 else 'samples'}). Each "
        f"for itself: {alone.computed:,} tokens, {alone.blocks:,} blocks."
    )
