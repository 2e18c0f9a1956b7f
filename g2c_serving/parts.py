"""An engine's parts, made from its configuration: the model at its precision, the prefix cache with
what names the bits of its keys and values, which layers go to which tier, the disk, the guards."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from g2c_serving.config import ALWAYS_FORBID_SYNC, DTYPES, EngineConfig
from g2c_serving.drafting import Drafter
from g2c_serving.forbid_sync import forbid_sync
from g2c_serving.forward.batch_invariance import BatchInvariant
from g2c_serving.forward.draft_model import DraftModel, fit_drafter
from g2c_serving.forward.kv_cache import KVCache
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.forward.low_precision_cache import CACHE_FORMATS
from g2c_serving.forward.model import Transformer
from g2c_serving.schedule.block_manager import BlockManager
from g2c_serving.schedule.disk_tier import DiskTier
from g2c_serving.schedule.prefix_tiers import PrefixCache, layers_of
from g2c_serving.speculating import Speculator

LAYOUT_VERSION = 1  # of a block's bytes, as `KVCache.export_blocks` gives them


def make_model(lm: LanguageModel, config: EngineConfig) -> Transformer:
    """The model at the precision, on the device and with the numerics of `config`. TypeError for
    other objects."""
    if not hasattr(lm, "weights"):
        raise TypeError(f"lm is {lm!r}: pass a loaded model, for example g2c_serving.load('tiny')")
    if not isinstance(config, EngineConfig):
        raise TypeError(f"config is {config!r}: pass an EngineConfig(...)")
    if (config.dtype, config.device) == ("float32", "cpu"):
        model = lm.model
    else:
        model = Transformer(lm.config, lm.weights, DTYPES[config.dtype], config.device)
    if config.kv_cache_dtype != "auto":
        model = model.with_cache_format(CACHE_FORMATS[config.kv_cache_dtype])
    return model.with_numerics(BatchInvariant()) if config.batch_invariant else model


def make_guards(config: EngineConfig) -> dict[str, AbstractContextManager]:
    """What stands around the launches of a phase and sees who waits for the device, by phase. Each
    thread that launches needs its own."""
    phases = ("draft", "forward", "sample")
    if not config.forbid_sync:
        return dict.fromkeys(phases, nullcontext())
    every = 1 if ALWAYS_FORBID_SYNC else 8
    return {phase: forbid_sync(phase, config.device, every) for phase in phases}


def make_speculator(
    config: EngineConfig, lm: LanguageModel, target: Transformer, cache: KVCache
) -> Speculator | None:
    """The drafter with its pages, and the budget; None without speculation."""
    speculation = config.speculation
    if speculation is None:
        return None
    assert speculation.drafter is not None
    drafter = fit_drafter(speculation.drafter, lm)
    model = DraftModel(drafter.config, drafter.weights, DTYPES[config.dtype], config.device)
    if config.batch_invariant:
        model = model.with_numerics(BatchInvariant())
    pages = model.new_cache(config.num_blocks, config.block_size)
    parts = target, cache, Drafter(model, pages, speculation.num_drafts)
    return Speculator(speculation, config, *parts)


def make_prefix_cache(
    lm: LanguageModel, model: Transformer, config: EngineConfig, block_manager: BlockManager
) -> PrefixCache:
    """The prefix cache of an engine; one that finds and keeps nothing if it is switched off."""
    if not config.enable_prefix_caching:
        return PrefixCache(block_manager)
    global_layers, window_layers = layers_of(model)
    if config.cache_dir is not None and window_layers and not global_layers:
        raise ValueError(
            f"cache_dir={str(config.cache_dir)!r} is of no use to {lm.name}: all its layers see a "
            "window only, and the disk keeps the others. Leave cache_dir out"
        )
    return PrefixCache(
        block_manager,
        fingerprint(lm, model, config),
        enabled=True,
        window=lm.config.window,
        global_layers=global_layers,
        window_layers=window_layers,
        exact=config.batch_invariant,
        disk=None if config.cache_dir is None else DiskTier(config.cache_dir, config.cache_bytes),
    )


def fingerprint(lm: LanguageModel, model: Transformer, config: EngineConfig) -> str:
    """All that decides a block, but for the rounding that company and threads decide in the
    ordinary mode: the weights, the precision and the device, the mode, the kernels and the
    processor that they are chosen for, the layout; in the invariant mode also the number of threads
    when the engine is made. A block of another fingerprint has other names: it is never found."""
    packed = any(block.up.packed is not None for block in model.blocks)
    parts: tuple = (
        lm.fingerprint,
        config.dtype,
        config.device,
        f"invariant at {torch.get_num_threads()} threads" if config.batch_invariant else "ordinary",
        "packed" if packed else "plain",
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        config.block_size,
        LAYOUT_VERSION,
    )
    if config.kv_cache_dtype != "auto":
        parts += (config.kv_cache_dtype,)
    if config.speculation is not None and config.speculation.drafter is not None:
        parts += ("drafter", config.speculation.drafter.fingerprint)  # its pages lie beside
    return " ".join(map(str, parts))
