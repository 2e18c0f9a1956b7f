"""The yardstick: the same model with nothing around it, for requests that march in step.

One batch of requests of equal length, caches of full length reserved for each (what the Brief's
section 2 says a server cannot afford), fused q, k and v, torch's own attention. No scheduler, no
pages, no sampler: what a step of the engine costs above this is the price of serving.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.linear import Linear
from g2c_serving.lab.one_user import refuse_other_shapes, refuse_windows


def refusal(lm: LanguageModel) -> str | None:
    """Why `DenseModel` does not compute this model; None where it does."""
    try:
        refuse_windows(lm, "DenseModel")
        refuse_other_shapes(lm, "DenseModel")
    except ValueError as err:
        return str(err)
    return None


class PlainLinear:
    """y = x @ weight + bias by `F.linear`, then exact GELU if `activation` says so; weight
    (in, out)."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, activation: str = "none"
    ) -> None:
        self.weight, self.bias, self.gelu = weight.T, bias, activation == "gelu"  # (out, in)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, self.weight, self.bias)
        return F.gelu(y) if self.gelu else y


class DenseModel:
    """`lm` for `size` requests of up to `max_tokens` tokens, float32, on the CPU.

    linear  `PlainLinear`, or the engine's own `Linear` with its packed weights
    """

    def __init__(
        self,
        lm: LanguageModel,
        size: int,
        max_tokens: int,
        linear: type[PlainLinear] | type[Linear] = PlainLinear,
    ) -> None:
        refuse_windows(lm, "DenseModel")
        refuse_other_shapes(lm, "DenseModel")
        self.config = lm.config
        self.weights = {name: w.to(torch.float32) for name, w in lm.weights.items()}
        d, heads = lm.config.head_dim, lm.config.num_heads
        self.blocks = [self._block(i, linear) for i in range(lm.config.num_layers)]
        attention_layers = sum("qkv" in block for block in self.blocks)
        self.keys = torch.zeros(attention_layers, size, heads, max_tokens, d)  # (L, B, H, T, d)
        self.values = torch.zeros_like(self.keys)
        bias = self.weights.get("head_bias")  # GPT-2 has none
        self.head = linear(self.weights["token_embed.weight"].T, bias)
        self.length = 0

    def _block(
        self, i: int, linear: type[PlainLinear] | type[Linear]
    ) -> dict[str, PlainLinear | Linear]:
        w, name = self.weights, f"blocks.{i}"
        block = {
            "up": linear(w[f"{name}.ffn.fc1.W"], w[f"{name}.ffn.fc1.b"], "gelu"),
            "down": linear(w[f"{name}.ffn.fc2.W"], w[f"{name}.ffn.fc2.b"]),
        }
        if f"{name}.attn.q_proj.W" in w:
            parts = [f"{name}.attn.{p}_proj" for p in "qkv"]
            weight = torch.cat([w[f"{p}.W"] for p in parts], dim=1)
            block["qkv"] = linear(weight, torch.cat([w[f"{p}.b"] for p in parts]))
            block["out"] = linear(w[f"{name}.attn.out_proj.W"], w[f"{name}.attn.out_proj.b"])
        return block

    @torch.inference_mode()
    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits (B, V) of the last of ids (B, T), which follow what is cached; all are cached."""
        size, new = ids.shape
        positions = self.weights["pos_embed.weight"][self.length : self.length + new]  # (T, D)
        x = (self.weights["token_embed.weight"][ids] + positions).flatten(0, 1)  # (B * T, D)
        layer = 0
        for i, block in enumerate(self.blocks):
            if "qkv" in block:
                qkv = block["qkv"](self._norm(x, f"blocks.{i}.ln1"))
                x = x + block["out"](self._attend(qkv.view(size, new, 3, -1), layer))
                layer += 1
            x = x + block["down"](block["up"](self._norm(x, f"blocks.{i}.ln2")))
        self.length += new
        return self.head(self._norm(x.view(size, new, -1)[:, -1], "ln_final"))

    def _attend(self, qkv: torch.Tensor, layer: int) -> torch.Tensor:
        """Causal attention of qkv (B, T, 3, D) over one layer's cache; (B * T, D)."""
        q, k, v = qkv.unflatten(-1, (self.config.num_heads, -1)).permute(2, 0, 3, 1, 4)
        end = self.length + qkv.shape[1]
        self.keys[layer, :, :, self.length : end] = k  # (B, H, T, d)
        self.values[layer, :, :, self.length : end] = v
        keys, values = self.keys[layer, :, :, :end], self.values[layer, :, :, :end]
        causal = qkv.shape[1] > 1  # the first pass: nothing is cached before it
        out = F.scaled_dot_product_attention(q, keys, values, is_causal=causal)  # (B, H, T, d)
        return out.transpose(1, 2).flatten(2).flatten(0, 1)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        gamma, beta = self.weights[f"{name}.gamma"], self.weights[f"{name}.beta"]
        return F.layer_norm(x, gamma.shape, gamma, beta)
