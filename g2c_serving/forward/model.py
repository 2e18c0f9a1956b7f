"""The model: one decoder over pages, in the shape of GPT (the parent course's, GPT-2) or of Llama.

Pre-norm blocks (`layers.py`), positions that are learned and added or rotary (`rotary.py`), a head
tied to the token embedding or of its own. The weights carry the names of the course's
`TransformerLM`, whatever model they are of; the pass is ours: a flat ragged batch in, the wanted
rows' logits out, keys and values read and written through the block tables. A window layer sees the
last `window` tokens alone, so it needs no older keys: its state is of one size however long the
text is. Brief: section 1, section 2 ("A cache that outlives the request"), and the `forward` box of
"The change of perspective".

Left out: the experts of V4.1-Flash; weights in low precision (the cache can be).
"""

from __future__ import annotations

import copy
from typing import Self

import torch

from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.forward.layers import Block, norm_of
from g2c_serving.forward.low_precision import Format
from g2c_serving.forward.low_precision_cache import LowPrecisionCache
from g2c_serving.forward.model_config import ModelConfig
from g2c_serving.forward.numerics import Numerics, RowFunction
from g2c_serving.forward.placed_weights import Weights, place
from g2c_serving.forward.rotary import RotaryTable


class Transformer:
    """The decoder, ready to run at one `dtype` on one `device`.

    pack  whether its linear layers may look for a faster kernel than torch's own
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        *,
        pack: bool = True,
    ) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        self.numerics = Numerics()
        self.cache_format: Format | None = None  # keys and values at the model's own precision
        self.trials: dict[int, tuple] = {}  # what `batch_invariance.py` found, by threads
        placed = place(weights, dtype, device, pack)
        self.head = placed.head()  # first, while there is room to make it
        self.token_embed = placed.table("token_embed.weight")  # (V, D)
        self.pos_embed = self.rotary = None
        if config.rotary is None:
            self.pos_embed = placed.tensor("pos_embed.weight")  # (max_seq_len, D)
        else:
            shape = config.head_dim, config.max_seq_len
            self.rotary = RotaryTable(config.rotary, *shape, device)
        self.blocks: list[Block] = []
        for i in range(config.num_layers):
            layer, windowed = self.num_attention_layers, i in config.window_layers
            self.blocks.append(Block(placed, f"blocks.{i}", config, layer, windowed))
        self.norm = norm_of(placed, "ln_final", config)

    def with_numerics(self, numerics: Numerics) -> Self:
        """The same weights, computed another way."""
        model = copy.copy(self)
        model.numerics = numerics
        with torch.inference_mode():
            numerics.prepare(model)
        return model

    def with_cache_format(self, format: Format | None) -> Self:
        """The same weights, whose new caches hold keys and values in `format` (None: unrounded)."""
        model = copy.copy(self)
        model.cache_format = format
        return model

    @property
    def num_attention_layers(self) -> int:
        """Layers that keep keys and values."""
        return sum(block.attention is not None for block in self.blocks)

    def new_cache(self, num_blocks: int, block_size: int) -> KVCache:
        """A pool of `num_blocks` blocks of `block_size` tokens for this model."""
        heads, head_dim = self.config.num_kv_heads, self.config.head_dim
        most = min(-(-self.config.max_seq_len // block_size), num_blocks)
        sizes = self.num_attention_layers, num_blocks, block_size, heads, head_dim, most
        if self.cache_format is None:
            return KVCache(*sizes, self.dtype, self.device)
        return LowPrecisionCache(*sizes, self.dtype, self.device, format=self.cache_format)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """Logits (M, V) of the batch's `logit_rows`; keys and values of all N tokens are stored
        (of replayed ones in the window layers alone)."""
        numerics, window = self.numerics, self.config.window
        numerics.prepare(self)
        plan = in_window = numerics.plan(batch, cache)
        if window:
            in_window = numerics.plan(batch, cache, window)
        x = self.embed(batch)  # (N, D)
        turn = None
        if self.rotary is not None:
            turn = self.rotary.at(batch.positions, self.dtype, max(batch.context_lens))
        for block in self.blocks:
            x = block(x, batch, cache, numerics, in_window if block.windowed else plan, turn)
        return numerics.rows(self.logits, x[batch.logit_rows])  # (M, V)

    def embed(self, batch: ForwardBatch) -> torch.Tensor:
        """What the first block is given, (N, D)."""
        x = self.token_embed[batch.token_ids].to(self.dtype)  # (N, D)
        return x if self.pos_embed is None else x + self.pos_embed[batch.positions]

    def row_functions(self) -> list[tuple[RowFunction, tuple[int, ...]]]:
        """What is computed row by row, one of each shape, with the widths of the tensors (N, width)
        that it takes."""
        shapes = {(b.attention is None, b.up.shape): b for b in self.blocks}
        heads = [(self.logits, (self.config.embedding_dim,))]
        return [f for block in shapes.values() for f in block.row_functions] + heads

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (M, V) of the last block's output (M, D)."""
        return self.head(self.norm(x))
