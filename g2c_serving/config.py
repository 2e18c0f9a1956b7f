"""`EngineConfig`: how much an engine may hold and do at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from g2c_serving.checks import as_int, as_number
from g2c_serving.schedule.cost_model import CostModel

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class EngineConfig:
    """How much an engine may hold and do at a time. ValueError names the field and the range.

    num_blocks, block_size   the cache: blocks, and tokens in each
    max_num_batched_tokens   most tokens in a step, decode rows included; caps the running requests
    max_num_seqs             most requests that run at a time
    dtype, device            float32, float64 or bfloat16; cpu, or mps and cuda, both untested
    enable_prefix_caching    requests reuse the blocks of earlier ones with the same beginning
    cache_dir, cache_bytes   a folder, and how much of it: blocks outlive the engine (needs the
                             above). Several engines may share one folder
    batch_invariant          a request's logits are the same bits in any company (needs the cpu);
                             DeepInfer's DEEPINFER_BATCH_INVARIANT=1
    step_time_budget_ms      aim of a step's time: prefill chunks shrink to fit (needs cost_model)
    cost_model               a fitted `CostModel`
    """

    num_blocks: int = 512
    block_size: int = 16
    max_num_batched_tokens: int = 256
    max_num_seqs: int = 64
    dtype: str = "float32"
    device: str = "cpu"
    enable_prefix_caching: bool = False
    cache_dir: str | Path | None = None
    cache_bytes: int = 0
    batch_invariant: bool = False
    step_time_budget_ms: float | None = None
    cost_model: CostModel | None = None

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_batched_tokens", "max_num_seqs"):
            object.__setattr__(self, name, as_int(name, getattr(self, name), 1))
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r} must be one of {sorted(DTYPES)}")
        _require_device(self.device)
        self._check_cache()
        self._check_invariance()
        if self.cost_model is not None and not isinstance(self.cost_model, CostModel):
            raise ValueError(f"cost_model={self.cost_model!r} must be a CostModel, or None")
        if self.step_time_budget_ms is not None:
            budget = as_number("step_time_budget_ms", self.step_time_budget_ms)
            object.__setattr__(self, "step_time_budget_ms", budget)
            self._check_budget(budget)

    def _check_cache(self) -> None:
        if not isinstance(self.enable_prefix_caching, bool):
            raise ValueError(
                f"enable_prefix_caching={self.enable_prefix_caching!r} must be True or False"
            )
        object.__setattr__(self, "cache_bytes", as_int("cache_bytes", self.cache_bytes, 0))
        if self.cache_dir is None:
            return
        if not isinstance(self.cache_dir, str | Path) or not str(self.cache_dir):
            raise ValueError(f"cache_dir={self.cache_dir!r} must be a folder's path, or None")
        object.__setattr__(self, "cache_dir", Path(self.cache_dir).expanduser())
        if not self.enable_prefix_caching:
            raise ValueError(
                f"cache_dir={str(self.cache_dir)!r} needs enable_prefix_caching=True: the disk "
                "keeps what the prefix cache finds"
            )

    def _check_invariance(self) -> None:
        if not isinstance(self.batch_invariant, bool):
            raise ValueError(f"batch_invariant={self.batch_invariant!r} must be True or False")
        if self.batch_invariant and self.device != "cpu":
            raise ValueError(
                f"batch_invariant=True needs device='cpu', not {self.device!r}: the order of sums "
                "is fixed for the processor's kernels alone"
            )

    def _check_budget(self, budget: float) -> None:
        if budget <= 0:
            raise ValueError(f"step_time_budget_ms={self.step_time_budget_ms} must be above 0")
        if self.cost_model is None:
            raise ValueError(
                f"step_time_budget_ms={self.step_time_budget_ms} needs a cost_model: "
                "fit one from an engine's history, CostModel.fit(...)"
            )


def _require_device(device: object) -> None:
    """ValueError unless torch can compute on `device` here."""
    usable = {"cpu": True, "cuda": torch.cuda.is_available()}
    usable["mps"] = torch.backends.mps.is_available()
    if not (isinstance(device, str) and usable.get(device, False)):
        have = [name for name, there in usable.items() if there]
        raise ValueError(f"device={device!r} is not to be had here; choose one of {have}")
