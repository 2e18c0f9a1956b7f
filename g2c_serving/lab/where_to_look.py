"""Things to recognise and not to build, and the Brief's reading route with what to look for.

Brief, "The parts that are pure infrastructure" and "A reading route". For each thing: what it is,
and which file of ours would make room for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from g2c_serving.lab.table import Table


@dataclass(frozen=True)
class Thing:
    """`ours`: a path below g2c_serving/; `there`: what of it the thing would replace or feed."""

    name: str
    what: str
    ours: str
    there: str


THINGS = (
    Thing("3FS", "DeepSeek's file system over many machines' SSDs and their network; in production "
          "it keeps the global cache blocks", "schedule/disk_tier.py", "where blocks are kept"),
    Thing("GPU-direct RDMA", "a network card writes straight into another machine's GPU memory; no "
          "processor copies", "forward/kv_cache.py", "export and import of blocks"),
    Thing("FlashMLA", "DeepSeek's attention kernels, for caches of compressed keys and values, in "
          "pages", "forward/attention.py", "attention over a block table"),
    Thing("DeepGEMM", "DeepSeek's matrix products in 8 bits and fewer, compiled as needed; some "
          "serve many experts at once", "forward/linear.py", "the linear layer"),
    Thing("DeepEP", "sends each token to the GPUs of its experts, and combines what comes back",
          "forward/model.py", "the feed-forward, if it had experts"),
    Thing("TileLang", "a language for kernels, in Python: you write the work of a tile",
          "forward/tiled_attention.py", "the loop over tiles, as one kernel"),
    Thing("the Ascend port", "most of the kernels once more, for Huawei's chips (CANN, not CUDA)",
          "config.py", "one more device beside cpu, mps and cuda"),
)  # fmt: skip


@dataclass(frozen=True)
class Stop:
    """One step of the route: what to read, what to look for, and our file to put beside it."""

    read: str
    look_for: str
    ours: str


ROUTE = (
    Stop("the Brief's sections 1 to 3, beside your own generate_cached and cache",
         "at each line: what would break with 64 users?", "lab/one_user.py"),
    Stop("block_manager.hpp, from start to end",
         "the free list, the counts, and the one block that a fork copies",
         "schedule/block_manager.py"),
    Stop('the Q&A\'s "KV cache storage" and "Speculative decoding"',
         "where a hit is found: before or after routing; which numbers are estimates",
         "schedule/prefix_tiers.py"),
    Stop("test_random_sampling_batch_invariant in random_sampling.py",
         "three runs: the batch, shuffled, each row alone; what must be equal?",
         "sample/rng.py"),
    Stop("update_best, at the end of mtp_varlen.hpp",
         "the running product, the sort, and the division by a step time",
         "sample/verify_budget.py"),
    Stop("the DeepSeek V4.1-Flash Brief", "why the cache is small, what bounded replay gives up",
         "schedule/hit_rule.py"),
)  # fmt: skip


def things() -> Table:
    """Seven names, a line each."""
    rows = [(t.name, t.what, t.ours, t.there) for t in THINGS]
    return Table(("name", "what it is", "where it would sit", "as"), rows, words=4)


def route() -> Table:
    """The six steps, a line each."""
    rows = [(f"{k}. {s.read}", s.look_for, s.ours) for k, s in enumerate(ROUTE, start=1)]
    return Table(("read", "look for", "ours, beside it"), rows, words=3)
