"""What can happen around a request, each as two runs of it with one thing changed.

Brief, section 3. How a request is run, and which contracts its engine keeps, is in
`watched_run.py`; `parting.py` tells where two runs part, and why.
"""

from __future__ import annotations

from collections.abc import Callable

from g2c_serving.cluster import handover
from g2c_serving.lab.parting import Seen
from g2c_serving.lab.shared_draws import SharedDrawEngine
from g2c_serving.lab.watched_run import (
    BLOCK,
    CROWD,
    Case,
    Contracts,
    Prompts,
    Watched,
    make_engine,
    run,
    serve,
    stranger,
    watch,
)

COMPANY = 7  # strangers


def _with(case: Case, count: int) -> Prompts:
    return case.strangers[:count]


def order(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """The same company; the request comes first, or last."""
    company = _with(case, COMPANY)
    return run(case, keeps, (), company), run(case, keeps, company)


def company(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """As many strangers, with other and shorter prompts."""
    others = tuple(ids[: 3 + 4 * i] for i, ids in enumerate(case.strangers[-COMPANY:]))
    return run(case, keeps, _with(case, COMPANY)), run(case, keeps, others)


def batch_size(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """Alone, and with 31 strangers."""
    return run(case, keeps), run(case, keeps, _with(case, CROWD))


def chunking(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """The same company; at most 256 tokens in a step, or 24."""
    company = _with(case, COMPANY)
    return run(case, keeps, company), run(case, keeps, company, max_num_batched_tokens=24)


def prefix_hit(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """Its prompt is new to the engine, or a stranger has asked the same before."""
    cold, warm = (make_engine(case, keeps, enable_prefix_caching=True) for _ in range(2))
    warm.generate([case.prompt], stranger(case, 0))
    return serve(cold, case, []), serve(warm, case, [])


def preemption(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """With one stranger; blocks for both to the end, or for their prompts alone, so that the one
    who came last gives way and is computed again."""
    block = len(case.prompt)
    roomy = make_engine(case, keeps, block_size=block, num_blocks=4)
    tight = make_engine(case, keeps, block_size=block, num_blocks=2)
    seen = serve(roomy, case, _with(case, 1)), serve(tight, case, _with(case, 1))
    assert tight.stats.preemptions >= 1
    return seen


def fork(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """Alone, or a copy that was made after the first token and keeps the seed."""
    forked = make_engine(case, keeps)
    parent = forked.add(case.prompt, case.params)
    forked.step()
    child = forked.fork(parent, seed=case.params.seed)
    return run(case, keeps), watch(forked, case, [parent, child])


def another_engine(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """A new engine, or one with blocks of another size, which has served others and still does."""
    other = make_engine(case, keeps, block_size=2 * BLOCK)
    other.generate(list(_with(case, 3)), stranger(case, 0))
    return run(case, keeps), serve(other, case, _with(case, 2))


def migration(case: Case, keeps: Contracts) -> tuple[Seen, Seen]:
    """Alone to the end; or moved after its first token, with its cache, to an engine with blocks of
    another size, which serves others."""
    source = make_engine(case, keeps)
    target = make_engine(case, keeps, block_size=2 * BLOCK)
    for i, prompt in enumerate(_with(case, 3)):
        target.add(prompt, stranger(case, i))
    target.step()
    first = source.add(case.prompt, case.params)
    source.step()
    moved = handover.move(source, target, first)
    _remember(target, source, first, moved)
    return run(case, keeps), watch(target, case, [moved])


def _remember(target: Watched, source: Watched, first: int, moved: int) -> None:
    """What the source has seen of the request belongs to its story at the target."""
    for (_, position), logits in source.logits_of.items():
        target.logits_of[moved, position] = logits
    if isinstance(source, SharedDrawEngine) and isinstance(target, SharedDrawEngine):
        for (_, position), word in source.words_of.items():
            target.words_of[moved, position] = word
    assert source.ledger is not None and target.ledger is not None
    target.ledger.join(source.ledger)


Disturbance = Callable[[Case, Contracts], tuple[Seen, Seen]]
DISTURBANCES: dict[str, Disturbance] = {
    "order": order,
    "company": company,
    "batch size": batch_size,
    "chunking": chunking,
    "prefix hit": prefix_hit,
    "preemption": preemption,
    "fork": fork,
    "another engine": another_engine,
    "migration": migration,
}
