"""What four bits do to our model: error by layer, loss, and the tokens that it would choose.

Brief, "The parts that are pure infrastructure" (low-precision formats). DeepInfer's main KV cache
is NVFP4-like, the weights of its routed experts are MXFP4. Of these `tiny` has the KV cache; its
feed-forward weights stand in for the experts' here. A matrix (in, out) is cut into blocks along its
inputs, along which it is summed up.

Measured on held-out texts of our own corpus, in float32. `tiny` was trained without four bits in
mind; what DeepSeek's model loses by them is not disclosed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from g2c_serving.forward.batch import build_batch
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.low_precision import MXFP4, NVFP4, Format, rounded
from g2c_serving.forward.low_precision_cache import LowPrecisionCache
from g2c_serving.forward.model import Transformer
from g2c_serving.lab import plots
from g2c_serving.lab.held_out import held_out_rows
from g2c_serving.lab.plots import Blocks, Picture, source_note
from g2c_serving.lab.resampled import SHARE, Mean, mean
from g2c_serving.lab.scoring import BLOCK, logits_of
from g2c_serving.lab.table import Table

TEXTS, LENGTH = 32, 128
KINDS = ("keys", "values", "feed-forward weights")


def held_out(lm: LanguageModel) -> list[list[int]]:
    """Texts that no training has seen."""
    return held_out_rows(lm, TEXTS, LENGTH)[:, :LENGTH].tolist()


def with_rounded_weights(lm: LanguageModel, format: Format) -> LanguageModel:
    """`lm` with its feed-forward matrices as they come back from `format`."""
    weights = {
        name: rounded(w.T, format).T.contiguous() if ".ffn." in name and name.endswith(".W") else w
        for name, w in lm.weights.items()
    }
    return dataclasses.replace(lm, name=f"{lm.name}, .ffn. in {format.name}", weights=weights)


# ---- by layer ----


def relative_error(values: torch.Tensor, format: Format) -> float:
    """How far `values` come back from themselves, as a share of their size (root mean square)."""
    return ((rounded(values, format) - values).norm() / values.norm()).item()


def tensors_by_layer(lm: LanguageModel) -> dict[str, list[torch.Tensor]]:
    """The keys and values of the held-out texts, (N, H, d) a layer, and the feed-forward weights,
    inputs last."""
    texts = held_out(lm)
    needed = -(-LENGTH // BLOCK)
    tables = [range(i * needed, (i + 1) * needed) for i in range(len(texts))]
    pages = lm.model.new_cache(needed * len(texts), BLOCK)
    lm.model.forward(build_batch([(ids, 0) for ids in texts], tables, BLOCK, [0]), pages)
    layers = range(lm.config.num_layers)
    matrices = [[lm.weights[f"blocks.{i}.ffn.fc{k}.W"].T.flatten() for k in (1, 2)] for i in layers]
    return {
        "keys": list(pages.keys.flatten(1, 2)),
        "values": list(pages.values.flatten(1, 2)),
        "feed-forward weights": [torch.cat(pair) for pair in matrices],
    }


def layer_picture(lm: LanguageModel) -> Picture:
    """Bars: the error of keys, values and weights by layer, in both formats."""
    tensors, count = tensors_by_layer(lm), lm.config.num_layers
    figure = plots.new_figure((8, 2.8))
    found = {}
    with plots.style():
        for axes, kind in zip(figure.subplots(1, 3, sharey=True), KINDS, strict=True):
            axes.set(title=kind, xlabel="layer", ylim=(0, 0.2), xticks=range(count))
            for k, format in enumerate((NVFP4, MXFP4)):
                errors = [relative_error(t, format) for t in tensors[kind]]
                bars = Blocks(axes, k, format.name)
                bars.set_boxes([i - 0.4 + 0.4 * k for i in range(count)], 0, 0.38, errors)
                found[kind, format] = sum(errors) / count
            axes.set_xlim(-0.6, count - 0.4)
            axes.yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")
        axes.legend(loc="upper right", fontsize=9)
        source_note(figure.axes[0], "Measured here")
    said = [f"{kind} {found[kind, NVFP4]:.1%} and {found[kind, MXFP4]:.1%}" for kind in KINDS]
    return plots.picture(
        figure, f"Mean error of {lm.name}'s layers, NVFP4-like and MXFP4: {'; '.join(said)}."
    )


# ---- what comes of it ----


@dataclass(frozen=True)
class Effect:
    """One way to store, against float32. Over all places of the held-out texts:

    loss     mean -log probability of the true next token, in nats
    more     by how much that is more than float32's, with what resampled texts make of it
    kl       mean KL(float32 || this) of the next token, in nats
    changed  share of places at which another token is the most likely
    """

    name: str
    loss: float
    more: Mean
    kl: float
    changed: float


def compare(name: str, exact: torch.Tensor, logits: torch.Tensor, ids: torch.Tensor) -> Effect:
    """Effect of logits (C, n, V) against `exact` ones, where `ids` (C, n) are the true tokens of C
    texts, two at least."""
    p, q = exact.double().log_softmax(-1), logits.double().log_softmax(-1)
    losses, exact_losses = (-one.gather(-1, ids[..., None])[..., 0].mean(1) for one in (q, p))
    return Effect(
        name,
        losses.mean().item(),
        mean((losses - exact_losses).numpy()),
        (p.exp() * (p - q)).sum(-1).mean().item(),
        (p.argmax(-1) != q.argmax(-1)).double().mean().item(),
    )


WAYS: dict[str, Callable[[LanguageModel], Transformer]] = {
    "float32": lambda lm: lm.model,
    "KV cache NVFP4-like": lambda lm: lm.model.with_cache_format(NVFP4),
    "KV cache MXFP4": lambda lm: lm.model.with_cache_format(MXFP4),
    "feed-forward weights NVFP4-like": lambda lm: with_rounded_weights(lm, NVFP4).model,
    "feed-forward weights MXFP4": lambda lm: with_rounded_weights(lm, MXFP4).model,
    "as DeepInfer: KV NVFP4-like, weights MXFP4": lambda lm: with_rounded_weights(
        lm, MXFP4
    ).model.with_cache_format(NVFP4),
}


def effects(lm: LanguageModel) -> list[Effect]:
    """Each of `WAYS` on the held-out texts; the first is the exact one."""
    texts = held_out(lm)
    ids = torch.tensor(texts)[:, 1:]  # (C, T - 1)
    logits = {name: torch.stack(logits_of(way(lm), texts))[:, :-1] for name, way in WAYS.items()}
    return [compare(name, logits["float32"], some, ids) for name, some in logits.items()]


def bytes_per_token(lm: LanguageModel) -> dict[str, int]:
    """Of keys and values over all layers. An engine's pages are as wide as the model computes, also
    where what they hold is rounded; what is packed, two numbers a byte and the scales, is counted.
    """
    wide = lm.model.new_cache(1, BLOCK).bytes_per_token
    found = {"float32, as in the engine's pages": wide, "half precision": wide // 2}
    for format in (NVFP4, MXFP4):
        cache = lm.model.with_cache_format(format).new_cache(1, BLOCK)
        assert isinstance(cache, LowPrecisionCache)
        found[f"{format.name}, packed"] = cache.packed_bytes_per_token
    return found


@cache
def measured(lm: LanguageModel) -> tuple[Effect, ...]:
    """`effects`, measured once a session, some seconds."""
    return tuple(effects(lm))


def table(found: tuple[Effect, ...]) -> Table:
    """The effects as a table of a page."""
    rows = [
        (e.name, f"{e.loss:.4f}", e.more.said("+z.4f"), f"{e.kl:.5f}", f"{e.changed:.2%}")
        for e in found
    ]
    head = ("stored as", "loss (nats)", f"against float32 ({SHARE:.0%})", "KL to float32 (nats)",
            "other first choice")  # fmt: skip
    return Table(head, rows)
