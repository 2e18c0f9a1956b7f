"""`ModelConfig`: the sizes of a model and which of a few shapes it has.

The defaults are the parent course's GPT; Llama and its kin differ in the fields after
`window_layers`.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields

from g2c_serving.checks import as_int, as_number, check_bool
from g2c_serving.forward.linear import ACTIVATIONS
from g2c_serving.forward.rotary import Rotary

NORMS = ("layer", "rms")
MOST = 2**31 - 1  # of anything
MOST_LAYERS = 10_000  # a file that says more is damaged, and a list of them would fill the memory


@dataclass(frozen=True)
class ModelConfig:
    """Sizes, under the parent course's names. `max_seq_len` is the context limit in tokens.

    window         tokens that a window layer sees, its own included; 0: there are no window layers
    window_layers  which layers, counted from 0, are window layers; the others see all before them
    num_kv_heads   heads of keys and values, each shared by as many query heads; 0: one each
    head_size      numbers in a head; 0: embedding_dim / num_heads. `head_dim` says which it is
    norm, norm_eps "layer" or "rms", and what is added to the variance
    activation     gelu (exact), gelu_tanh or silu
    gated          the feed-forward layer is down(activation(gate(x)) * up(x)), as in SwiGLU
    rotary         how queries and keys are turned by their positions; None: learned positions,
                   added to the token's embedding

    ValueError for a size that is no positive integer, more layers than MOST_LAYERS, heads that do
    not divide what they must, a window without layers or layers without a window, and a shape that
    is not known.
    """

    vocab_size: int
    embedding_dim: int
    num_layers: int
    num_heads: int
    max_seq_len: int
    hidden_dim: int
    window: int = 0
    window_layers: tuple[int, ...] = ()
    num_kv_heads: int = 0
    head_size: int = 0
    norm: str = "layer"
    norm_eps: float = 1e-5
    activation: str = "gelu"
    gated: bool = False
    rotary: Rotary | None = None

    def __post_init__(self) -> None:
        for size in fields(self):
            if size.default is MISSING:
                most = MOST_LAYERS if size.name == "num_layers" else MOST
                as_int(size.name, getattr(self, size.name), 1, most)
        self._check_heads()
        self._check_window()
        self._check_shape()

    def _check_heads(self) -> None:
        if not as_int("head_size", self.head_size, 0, MOST) and self.embedding_dim % self.num_heads:
            raise ValueError(
                f"num_heads={self.num_heads} must divide embedding_dim={self.embedding_dim}"
            )
        if as_int("num_kv_heads", self.num_kv_heads, 0) == 0:
            object.__setattr__(self, "num_kv_heads", self.num_heads)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}"
            )

    def _check_window(self) -> None:
        if not isinstance(self.window_layers, list | tuple):
            raise ValueError(f"window_layers={self.window_layers!r} must be a list of layers")
        last = self.num_layers - 1
        layers = tuple(as_int("window_layers", i, 0, last) for i in self.window_layers)
        object.__setattr__(self, "window_layers", layers)  # a JSON file gives a list
        if len(set(layers)) < len(layers):
            raise ValueError(f"window_layers={list(layers)} names a layer twice")
        if (as_int("window", self.window, 0, MOST) > 0) != bool(layers):
            raise ValueError(
                f"window={self.window} and window_layers={list(layers)}: a window needs at least "
                "one layer, and a window layer a window of 1 or more"
            )

    def _check_shape(self) -> None:
        if self.norm not in NORMS:
            raise ValueError(f"norm={self.norm!r} must be one of {list(NORMS)}")
        if as_number("norm_eps", self.norm_eps) <= 0:
            raise ValueError(f"norm_eps={self.norm_eps} must be above 0")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation={self.activation!r} must be one of {list(ACTIVATIONS)}")
        check_bool("gated", self.gated)
        if self.rotary is not None:
            if not isinstance(self.rotary, Rotary):
                raise ValueError(f"rotary={self.rotary!r} must be a Rotary(...), or None")
            if self.head_dim % 2:
                raise ValueError(f"a head of {self.head_dim} numbers has no pairs to turn: rotary "
                                 "positions need an even number")  # fmt: skip

    @property
    def other_than_gpt(self) -> list[str]:
        """What the parent course's models have otherwise, as "field=value"; window layers aside."""
        named = ("norm", "norm_eps", "activation", "gated", "rotary")
        usual = {f.name: f.default for f in fields(self) if f.name in named}
        usual |= {"num_kv_heads": self.num_heads, "head_dim": self.embedding_dim // self.num_heads}
        found = {name: getattr(self, name) for name in usual}
        return [f"{name}={value!r}" for name, value in found.items() if value != usual[name]]

    @property
    def head_dim(self) -> int:
        return self.head_size or self.embedding_dim // self.num_heads

    @property
    def attention_dim(self) -> int:
        """Width of all query heads together, which is that of what a token sees."""
        return self.num_heads * self.head_dim
