"""`EngineConfig`: how much an engine may hold and do at a time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from g2c_serving.checks import as_int, as_number, check_bool
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.low_precision_cache import CACHE_FORMATS
from g2c_serving.schedule.cost_model import CostModel

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
ALWAYS_FORBID_SYNC = "G2C_FORBID_SYNC" in os.environ
MAX_DRAFTS = 16  # a step's rows grow by as many for each request


@dataclass(frozen=True)
class Speculation:
    """How an engine speculates. ValueError names the field, the value and the remedy.

    mode         fixed: all drafts of every request are verified, whatever the company
                 (DeepInfer's DEEPINFER_ENABLE_MTP_VARLEN=0). budgeted: as many in all as a planner
                 thinks worth their time, where the drafter is surest
    num_drafts   tokens that the drafter proposes to a request in a step, 1 to 16
    drafter      a loaded model with the target's tokenizer, for example load("tiny-drafter"). Where
                 its context limit is the shorter one, requests go on without drafts beyond it
    guard        the draft's probability is shrunk by exp(-guard) in what remains after a rejection;
                 DeepInfer's is 5e-5, 0 is exact
    recalibrate  correct the drafter's confidences by what came of earlier ones. A drafter without a
                 confidence head is always read that way
    step_time    budgeted: ms of a step by its rows, as an array or a callable, for the planner to
                 go by; None: it is measured here
    """

    mode: str = "fixed"
    num_drafts: int = 5
    drafter: LanguageModel | None = None
    guard: float = 5e-5
    recalibrate: bool = False
    step_time: Any = None

    def __post_init__(self) -> None:
        if self.mode not in ("fixed", "budgeted"):
            raise ValueError(
                f"mode={self.mode!r} must be 'fixed' or 'budgeted'; EngineConfig(speculation=None) "
                "turns speculation off"
            )
        count = as_int("Speculation.num_drafts", self.num_drafts, 1, MAX_DRAFTS)
        object.__setattr__(self, "num_drafts", count)
        if not hasattr(self.drafter, "weights"):
            raise ValueError(
                f"drafter={self.drafter!r} must be a loaded model: "
                "drafter=g2c_serving.load('tiny-drafter')"
            )
        guard = as_number("Speculation.guard", self.guard)
        if guard < 0:
            raise ValueError(f"guard={self.guard} must be 0 (exact) or more")
        object.__setattr__(self, "guard", guard)
        check_bool("recalibrate", self.recalibrate)


@dataclass(frozen=True)
class EngineConfig:
    """How much an engine may hold and do at a time. ValueError names the field and the range.

    num_blocks, block_size   the cache: blocks, and tokens in each
    max_num_batched_tokens   most tokens in a step, decode rows included; caps the running requests
    max_num_seqs             most requests that run at a time
    dtype, device            float32, float64 or bfloat16; cpu, or mps and cuda, both untested
    kv_cache_dtype           auto: keys and values at `dtype`; nvfp4 or mxfp4: rounded to four bits
                             (a drafter's pages stay as they are)
    enable_prefix_caching    requests reuse the blocks of earlier ones with the same beginning
    cache_dir, cache_bytes   a folder, and how much of it: blocks outlive the engine (needs the
                             above). Several engines may share one folder
    batch_invariant          a request's logits are the same bits in any company (needs the cpu);
                             DeepInfer's DEEPINFER_BATCH_INVARIANT=1
    step_time_budget_ms      aim of a step's time: prefill chunks shrink to fit (needs cost_model)
    cost_model               a fitted `CostModel`
    speculation              a `Speculation`; None is off
    forbid_sync              what waits for the device in the forward or sample launch is an error
                             that names its line. Looks at the first eight steps and at one in eight
                             from then on; where the environment has G2C_FORBID_SYNC (our tests), it
                             is on and looks at all
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
    speculation: Speculation | None = None
    kv_cache_dtype: str = "auto"
    forbid_sync: bool = ALWAYS_FORBID_SYNC

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_batched_tokens", "max_num_seqs"):
            object.__setattr__(self, name, as_int(name, getattr(self, name), 1))
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r} must be one of {sorted(DTYPES)}")
        if self.kv_cache_dtype not in ("auto", *CACHE_FORMATS):
            choices = ["auto", *CACHE_FORMATS]
            raise ValueError(f"kv_cache_dtype={self.kv_cache_dtype!r} must be one of {choices}")
        _require_device(self.device)
        for name in ("enable_prefix_caching", "batch_invariant", "forbid_sync"):
            check_bool(name, getattr(self, name))
        self._check_cache()
        self._check_speculation()
        self._check_budget()
        if self.batch_invariant and self.device != "cpu":
            raise ValueError(
                f"batch_invariant=True needs device='cpu', not {self.device!r}: the order of sums "
                "is fixed for the processor's kernels alone"
            )

    def _check_cache(self) -> None:
        object.__setattr__(self, "cache_bytes", as_int("cache_bytes", self.cache_bytes, 0))
        if self.cache_dir is None:
            return
        if not isinstance(self.cache_dir, str | Path) or not _is_path(str(self.cache_dir)):
            raise ValueError(f"cache_dir={self.cache_dir!r:.500} must be a folder's path, or None")
        object.__setattr__(self, "cache_dir", Path(self.cache_dir).expanduser())
        if not self.enable_prefix_caching:
            raise ValueError(
                f"cache_dir={str(self.cache_dir)!r} needs enable_prefix_caching=True: the disk "
                "keeps what the prefix cache finds"
            )

    def _check_speculation(self) -> None:
        if self.speculation is None:
            return
        if not isinstance(self.speculation, Speculation):
            raise ValueError(
                f"speculation={self.speculation!r} must be Speculation('fixed' or 'budgeted', "
                "drafter=...), or None"
            )
        rows = 1 + self.speculation.num_drafts
        if self.max_num_batched_tokens < rows:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} must be at least {rows}: "
                f"one request with its {rows - 1} drafts takes that many rows"
            )

    def _check_budget(self) -> None:
        if not isinstance(self.cost_model, CostModel | None):
            raise ValueError(f"cost_model={self.cost_model!r} must be a CostModel, or None")
        if self.step_time_budget_ms is None:
            return
        budget = as_number("step_time_budget_ms", self.step_time_budget_ms)
        object.__setattr__(self, "step_time_budget_ms", budget)
        if budget <= 0:
            raise ValueError(f"step_time_budget_ms={budget} must be above 0")
        if self.cost_model is None:
            raise ValueError(
                f"step_time_budget_ms={budget} needs a cost_model: fit one from an engine's "
                "history, CostModel.fit(...)"
            )


def _is_path(path: str) -> bool:
    """Whether a system can look it up: nothing empty, no zero byte, no lone surrogate."""
    try:
        return bool(path) and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _require_device(device: object) -> None:
    """ValueError unless torch can compute on `device` here."""
    usable = {"cpu": True, "cuda": torch.cuda.is_available()}
    usable["mps"] = torch.backends.mps.is_available()
    if not (isinstance(device, str) and usable.get(device, False)):
        have = [name for name, there in usable.items() if there]
        raise ValueError(f"device={device!r} is not to be had here; choose one of {have}")
