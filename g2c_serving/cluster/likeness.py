"""What two engines must have in common for a request to change from one to the other.

    numerics   equal: the pages of the one are those that the other would have computed
    draws      equal: the answer stays the same, with the pages or without
    room       the target's pool holds the request to its longest end

`handover.py` and `fleet.py` ask. Left out: the model, which has its own fingerprint.
"""

from __future__ import annotations

from dataclasses import replace

from g2c_serving.engine import Engine
from g2c_serving.parts import fingerprint


def numerics(engine: Engine) -> str:
    """All that decides the bits of keys and values at a position; the cut into blocks does not."""
    return fingerprint(engine.lm, engine.model, replace(engine.config, block_size=1))


def draws(engine: Engine) -> str:
    """What decides the token that is drawn, beside seed, position and the model. The company does
    too with budgeted speculation: then a request that moves is another sample of the same
    distribution, as one that stays in other company."""
    config, speculation = engine.config, "no speculation"
    if config.speculation is not None and config.speculation.drafter is not None:
        s, drafter = config.speculation, config.speculation.drafter
        speculation = f"{s.mode} speculation, {s.num_drafts} drafts of {drafter.name}"
        speculation += f" ({drafter.fingerprint[:12]}), guard {s.guard}"
    mode = "batch-invariant" if config.batch_invariant else "ordinary"
    return f"{speculation}, {config.dtype}, cache {config.kv_cache_dtype}, {mode} mode"


def pool_tokens(engine: Engine) -> int:
    """Tokens that an engine's blocks hold."""
    return engine.config.num_blocks * engine.config.block_size


def num_drafts(engine: Engine) -> int:
    """Drafts of a request in a step; 0 without speculation."""
    speculation = engine.config.speculation
    return 0 if speculation is None else speculation.num_drafts
