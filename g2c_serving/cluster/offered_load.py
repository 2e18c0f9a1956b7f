"""How much of what a pool can do is asked of it. Only below 1 is there a steady state.

A pool's capacity is that of its machines when they have as much to do as they like, for then the
fixed part of a step is shared by as many rows as come. What one request asks of such a machine:

    a prefill pool   a step for its prompt, alone
    a decode pool    a row in a step for each further token, with what it reads
    one pool         the same row, and its prompt's share of full chunks, with their steps

Derived from the rules of disaggregation.py; where chunks end inside a prompt is taken as if each
prompt began one.
"""

from __future__ import annotations

from g2c_serving.checks import as_int
from g2c_serving.cluster.disaggregation import Load
from g2c_serving.schedule.cost_model import CostModel


def prefill_load(load: Load, machines: int, costs: CostModel) -> float:
    """Of a pool that computes prompts whole, one at a time."""
    return _share(load, machines, costs.base + costs.cost(load.prompt_tokens, 0))


def decode_load(load: Load, machines: int, costs: CostModel) -> float:
    """Of a pool that only decodes."""
    return _share(load, machines, _rows_ms(load, costs))


def one_pool_load(load: Load, machines: int, costs: CostModel, chunk: int) -> float:
    """Of a pool that does both, with up to `chunk` prompt tokens a step."""
    size = as_int("chunk", chunk, 1)
    starts = range(0, load.prompt_tokens, size)
    prompt = sum(costs.cost(min(size, load.prompt_tokens - at), at) for at in starts)
    steps = costs.base * load.prompt_tokens / size
    return _share(load, machines, steps + prompt + _rows_ms(load, costs))


def _rows_ms(load: Load, costs: CostModel) -> float:
    """What all rows of a request add to the steps that they are in."""
    rows = load.answer_tokens - 1  # the first token comes with the prompt
    context = rows * load.prompt_tokens + rows * (rows + 1) / 2
    return rows * costs.per_row + context * costs.per_context


def _share(load: Load, machines: int, ms: float) -> float:
    return load.rate * ms / (1000 * as_int("machines", machines, 1))
