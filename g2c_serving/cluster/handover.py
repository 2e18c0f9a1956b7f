"""A running request changes engines: what it is, in one parcel, with its cache or without.

    export    source -> Handover    all that the request is (parcel.py); it goes on at the source
    admit     Handover -> target    it is queued there, and goes on without recomputing
    move      both; then the source lets go of it

A request is its tokens, its parameters and its seed: as draws are keyed by seed and position, any
engine of the same model can go on from those alone (`without_pages`) by computing its tokens again.
The pages of the cache save that work. They are used if all that decides their bits is equal on both
sides (`numerics`), else left. The tokens are those of a request that stayed if both engines draw
alike (`draws`): the same speculation, precision and mode. Then they are the same bit for bit in
batch-invariant mode, with fixed speculation too, and in the ordinary mode but for the rounding.
Engines that draw otherwise are refused unless you say that any will do.

Brief, section 1 (the cache is shipped from prefill to decode) and "Fault tolerance"; DeepInfer's
own plumbing is not released. Left out: the network (a Handover can be pickled; never unpickle a
stranger's), and what a budgeted engine has learnt of its drafter.
"""

from __future__ import annotations

from g2c_serving.cluster.likeness import draws, numerics, pool_tokens
from g2c_serving.cluster.parcel import Handover, parcel
from g2c_serving.engine import Engine
from g2c_serving.intake import check_can_run


def export(source: Engine, request_id: int, pages: bool = True) -> Handover:
    """All that an unfinished request is. It goes on at the source as if nothing had happened.

    pages   take copies of its pages along

    RuntimeError while steps are on their way: call `source.settle()` first, which gives their
    outputs. KeyError for a request that has ended.
    """
    if not source.is_settled:
        raise RuntimeError(
            "steps of the engine are on their way: call its settle() first, and take the outputs"
        )
    return parcel(source, request_id, pages)


def admit(target: Engine, handover: Handover, any_draws: bool = False) -> int:
    """Let the target go on with the request; its request id there. Without a seat or blocks it
    waits there, in the order of arrival, and its pages wait with it.

    any_draws   also where the target draws otherwise: from here on the answer may be another

    ValueError, and nothing has changed, where it could never run: another model, other draws, or a
    pool that it may outgrow there and not at the source. RuntimeError from a target that is closed.
    """
    check(target, handover, any_draws)
    fits = handover.numerics == numerics(target)
    pages = {i: s.pages for i, s in enumerate(handover.samples) if fits and s.pages is not None}
    return target.take_on(handover.requests(), pages)


def check(target: Engine, handover: Handover, any_draws: bool = False) -> bool:
    """True. ValueError where the request could never run, as `admit`; pages do not matter."""
    if handover.model != target.lm.fingerprint:
        raise ValueError(
            f"the request was begun by a model other than {target.lm.name!r}: choose an engine "
            "that serves the same weights"
        )
    if not any_draws and handover.draws != draws(target):
        raise ValueError(
            f"the request draws with {handover.draws}, the engine with {draws(target)}: its answer "
            "would change. Choose an engine of the same configuration, or pass any_draws=True"
        )
    check_can_run(list(handover.prompt_token_ids), handover.params, target.lm, target.config)
    if handover.room > pool_tokens(target):
        raise ValueError(
            f"the request may need {handover.room} tokens, more than all {target.config.num_blocks}"
            f" blocks of {target.config.block_size}: choose an engine with more, or raise its "
            "EngineConfig.num_blocks"
        )
    if handover.params.grammar is not None:
        target.compiler.check(handover.params.grammar)
    return True


def move(
    source: Engine, target: Engine, request_id: int, pages: bool = True, any_draws: bool = False
) -> int:
    """Hand a request over; its request id at the target. The source lets go of it only once the
    target has it, so whatever is raised on the way, the request is still at the source.

    pages   False: the tokens alone, as after a crash

    As `export` and `admit` otherwise.
    """
    moved = admit(target, export(source, request_id, pages), any_draws)
    source.let_go(request_id)
    return moved
