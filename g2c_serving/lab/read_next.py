"""What to read next: the same questions, answered by vLLM, SGLang and DeepInfer, file by file.

Open two files side by side and ask the row's question. vLLM's files are those of 0.32, below
`vllm/`; SGLang's are those of November 2026, below `python/sglang/srt/`; both were opened for this
table, and both move. DeepInfer's are what the Brief names, with what it says of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Where:
    """A file, and what to find in it."""

    file: str
    finds: str

    def __str__(self) -> str:
        return f"{self.file}: {self.finds}" if self.finds else self.file


NOWHERE = Where("not named in the Brief", "")


@dataclass(frozen=True)
class Question:
    """One question; `ours` is a path below g2c_serving/."""

    asks: str
    ours: str
    vllm: Where
    sglang: Where
    deepinfer: Where = NOWHERE

    @property
    def others(self) -> list[tuple[str, Where]]:
        return [("vLLM", self.vllm), ("SGLang", self.sglang), ("DeepInfer", self.deepinfer)]


QUESTIONS = (
    Question(
        "How is a cached beginning found?",
        "schedule/block_hash.py",
        Where("v1/core/kv_cache_utils.py", "hash_block_tokens, a chain of hashes over whole "
              "blocks: a dictionary finds them, and a hit ends at a block"),
        Where("mem_cache/radix_cache.py", "match_prefix, a tree over tokens: a node is split where "
              "two texts part, so a hit may end at any token (with pages of one)"),
        Where("the Q&A", "a chain of block hashes, matched before routing; that code is not out"),
    ),
    Question(
        "Which cached block goes first?",
        "schedule/block_manager.py",
        Where("v1/core/kv_cache_utils.py", "FreeKVCacheBlockQueue: least recently used; a "
              "request's tail before its head, because it is freed in reverse"),
        Where("mem_cache/radix_cache.py", "evict: leaves alone, by a heap, so a beginning outlives "
              "all that grew from it; six orders to choose from"),
        Where("csrc/engine/block_manager.hpp", "a free list, and a count on every block"),
    ),
    Question(
        "What happens when the pool is full?",
        "schedule/scheduler.py",
        Where("v1/core/sched/scheduler.py", "_preempt_request: its blocks are freed, its count of "
              "computed tokens is 0, and it is computed again"),
        Where("managers/schedule_batch.py", "retract_decode: also computed again; who has written "
              "least goes first"),
        Where("csrc/engine/scheduler.hpp", "who runs in each step, in 1,300 lines"),
    ),
    Question(
        "Where may blocks go instead?",
        "schedule/prefix_tiers.py",
        Where("v1/kv_offload/cpu/manager.py", "blocks are copied to the host and come back by "
              "their hash: swap of the cache, not of a request"),
        Where("mem_cache/hiradix_cache.py", "a node keeps a copy on the host; load_back brings a "
              "whole path back, or none of it where that is short"),
        Where("the Q&A", "disks of a cluster, for 3 to 7 days; not in the released engine"),
    ),
    Question(
        "Who runs next?",
        "schedule/scheduler.py",
        Where("v1/core/sched/request_queue.py", "first come, or by priority"),
        Where("managers/schedule_policy.py", "longest cached beginning first (lpm), as long as at "
              "most 128 wait"),
        Where("csrc/engine/scheduler.hpp", ""),
    ),
    Question(
        "How is the next step scheduled before this one is over?",
        "async_engine.py",
        Where("v1/core/sched/async_scheduler.py", "placeholders stand for tokens not yet drawn"),
        Where("managers/scheduler.py", "event_loop_overlap: launch this batch, then process the "
              "result of the last"),
        Where("csrc/engine", "a guard around the launches: what waits for the GPU is an error"),
    ),
    Question(
        "Whose random number is it?",
        "sample/rng.py",
        Where("v1/sample/ops/topk_topp_sampler.py", "a generator for each seeded request, which "
              "moves on with every draw"),
        Where("layers/sampler.py", "multinomial_with_seed: a hash of seed, position and token, so "
              "nothing moves on"),
        Where("fused_sample.py", "rng_init(seed, position * 3 + k), a counter-based generator"),
    ),
    Question(
        "When is a draft accepted?",
        "sample/speculation.py",
        Where("v1/sample/rejection_sampler.py", "rejection_sample, and after a rejection "
              "sample_recovered_tokens"),
        Where("speculative/dflash_utils.py", "compute_dflash_sampling_accept_len_and_bonus"),
        Where("fused_sample.py", "the draft's probability shrunk by a guard"),
    ),
    Question(
        "How many drafts are worth their time?",
        "sample/verify_budget.py",
        Where("v1/spec_decode/dynamic/utils.py", "a table: so many drafts at so many requests"),
        Where("speculative/dspark_components/dspark_planner.py", "confidences and a profiled table "
              "of step times, read one step late"),
        Where("csrc/engine/mtp_varlen.hpp", "update_best, at its end"),
    ),
    Question(
        "What keeps the bits in any company?",
        "forward/batch_invariance.py",
        Where("model_executor/determinism/batch_invariant.py", "persistent matrix products in one "
              "fixed tiling"),
        Where("batch_invariant_ops/batch_invariant_ops.py", "operators that replace torch's"),
        Where("random_sampling.py", "the test: the batch, shuffled, each row alone"),
    ),
    Question(
        "Which tokens may come next?",
        "sample/grammar.py",
        Where("v1/structured_output/backend_xgrammar.py", "XgrammarGrammar"),
        Where("constrained/xgrammar_backend.py", "fill_vocab_mask; try_jump_forward skips what the "
              "grammar leaves no choice about"),
    ),
)  # fmt: skip


WHICH = (
    "vLLM's files are those of 0.32, below `vllm/`; SGLang's of November 2026, below "
    "`python/sglang/srt/`."
)


class Reading:
    """The questions, each with its answers below it: as a list, since a table of so many words is
    wider than a page. Ours is a link; of the others' files no address is ours to give."""

    def __init__(self, questions: Sequence[Question] = QUESTIONS) -> None:
        self.questions = tuple(questions)

    def __repr__(self) -> str:
        asked = (
            "\n".join([q.asks, f"  ours: {q.ours}", *(f"  {who}: {at}" for who, at in q.others)])
            for q in self.questions
        )
        return "\n\n".join([WHICH, *asked])

    def _repr_markdown_(self) -> str:
        return "\n\n".join([WHICH, *map(_as_markdown, self.questions)])


def _as_markdown(question: Question) -> str:
    ours = f"[{question.ours}](../g2c_serving/{question.ours})"
    lines = [f"**{question.asks}** Ours: {ours}"]
    for who, at in question.others:
        place = at.file if who == "DeepInfer" and "/" not in at.file else f"`{at.file}`"
        lines.append(f"- {who}, {place}" + (f": {at.finds}" if at.finds else ""))
    return "\n".join([lines[0], "", *lines[1:]])


def table() -> Reading:
    """What to open beside our file, for each question."""
    return Reading()
