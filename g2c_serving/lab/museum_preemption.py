"""The museum's room of preemption: who gives way when memory is short, and who comes back when.

Brief, section 1. The parts are those of `schedule/scheduler.py` and, for what a request finds when
it comes back, `schedule/prefix_tiers.py`.
"""

from __future__ import annotations

from typing import Any

from g2c_serving.engine import Engine
from g2c_serving.lab.museum import Exhibit, register
from g2c_serving.lab.museum_model import drive, engine, is_told, said
from g2c_serving.output import RequestOutput
from g2c_serving.request import SamplingParams
from g2c_serving.schedule.prefix_tiers import PrefixCache
from g2c_serving.schedule.scheduler import Scheduler

Seen = dict[str, Any]
LA, LONG = "Ann: la la la la ", "Bob has a longer text, which fills more. It fills "


def _sing(e: Engine, la: int) -> tuple[dict[int, RequestOutput], int, int]:
    """Ann, who came first, writes `la` tokens, and Bob 20. A pool that is too small for both."""
    ann = e.add(LA, SamplingParams(temperature=0, max_tokens=la))
    bob = e.add(LONG, SamplingParams(temperature=0, max_tokens=20))
    return drive(e), ann, bob


# ---- it comes back as soon as a piece of it fits ----


class EagerScheduler(Scheduler):
    def _admit(self, request):
        chunk = self.max_num_batched_tokens
        fits = self.block_manager.can_allocate(request.sequence_id, chunk)
        if not (fits and request.num_preemptions and request.num_uncomputed > chunk):
            return super()._admit(request)
        self.block_manager.allocate(request.sequence_id, chunk)
        self._run(self.waiting.popleft())
        return True


class PatientScheduler(Scheduler):
    """Who comes back needs room for all of its context, as anybody who comes."""

    def _admit(self, request):
        return super()._admit(request)


def _in_and_out() -> Seen:
    e = engine(num_blocks=12, max_num_batched_tokens=16)
    outputs, _, bob = _sing(e, 70)
    tokens = [len(o.prompt_token_ids) + len(o.token_ids) - 1 for o in outputs.values()]
    return {
        "Bob is told": said(outputs, bob),
        "times that Bob had to give way": e.stats.preemptions,
        "tokens that both have": sum(tokens),
        "tokens that were computed for them": e.stats.prefill_tokens + e.stats.decode_tokens,
    }


def _in_and_out_wrong(seen: Seen) -> str:
    told, times, needed, computed = seen.values()
    if told != "more. It fills more.":
        return f"Bob is told {told!r}, and should be told 'more. It fills more.'"
    if computed > 2 * needed:
        return (
            f"{computed} tokens were computed where {needed} are needed: Bob came in and was "
            f"thrown out again {times} times"
        )
    return ""


register(
    Exhibit(
        name="in_and_out",
        title="An engine that is busy with nothing",
        reports=("vLLM 21809", "vLLM 18115", "vLLM 25538"),
        room="preemption",
        place="g2c_serving.loop.Scheduler",
        fault=EagerScheduler,
        scene=_in_and_out,
        wrong=_in_and_out_wrong,
        story="With long prompts and memory just short of enough, throughput fell to a fraction "
        "while the device was fully busy. A long request had given way, was let in again as soon "
        "as its next chunk had room, computed that chunk, found no room for the one after it, gave "
        "way, and began from its first token again.",
        hint="How many blocks must be free so that a request which comes back can stay?",
        solution=PatientScheduler,
    )
)

# ---- everybody waits for everybody ----


def make_way(self):
    return not self.running and self._unpark(useless_too=False)


def _one_seat() -> Seen:
    e = engine(num_blocks=9, max_num_seqs=1)
    four = SamplingParams(temperature=0, max_tokens=4)
    ann = e.add("I am Ann. My PIN is 4711. My PIN is ", four)
    e.step()
    bob = e.add("I am Bob. My PIN is 9042. My PIN is ", four)
    copies = [e.fork(ann) for _ in range(2)]
    outputs = drive(e)
    names = ("Ann is told", "Bob is told", "Ann's first copy is told", "her second copy is told")
    requests = (ann, bob, *copies)
    return {name: said(outputs, r) for name, r in zip(names, requests, strict=True)}


def _one_seat_wrong(seen: Seen) -> str:
    right = ["4711", "9042", "4711", "4711"]
    for (who, told), should in zip(seen.items(), right, strict=True):
        if told != should:
            return f"{who.removesuffix(' is told')}, who should be told {should}, {is_told(told)}"
    return ""


register(
    Exhibit(
        name="all_wait",
        title="Everybody waits, and nobody runs",
        reports=("vLLM 5578", "vLLM 18115"),
        room="preemption",
        place="g2c_serving.schedule.scheduler.Scheduler._make_way",
        fault=make_way,
        scene=_one_seat,
        wrong=_one_seat_wrong,
        story="Several answers to one prompt had been asked for, more than had seats. Those "
        "without one waited, and held the prompt's blocks while they did. The request before them "
        "in the queue waited as well, for those very blocks. There was no error and no work: the "
        "queue stood still until somebody restarted the server.",
        hint="To take the blocks of one waiting copy frees nothing while another copy holds them "
        "too. And to take those of both?",
        solution=Scheduler._make_way,
    )
)

# ---- what is still there is computed again ----


def admit(self, request, shared):
    reused = len(shared) * self.block_size
    self.block_manager.adopt(request.sequence_id, shared)
    self.block_manager.allocate(request.sequence_id, len(request.token_ids))
    if not request.was_admitted:
        request.num_computed_tokens = request.num_ready = reused
        request.num_cached_tokens = reused
        self.cached_tokens += reused
    request.was_computed, request.was_admitted = False, True


def _a_pause() -> Seen:
    e = engine(num_blocks=12, enable_prefix_caching=True)
    outputs, _, bob = _sing(e, 44)
    history = list(e.history)
    left = next(i for i, record in enumerate(history) if bob in record.preempted)
    later = [row for record in history[left + 1 :] for row in record.rows if row.request_id == bob]
    return {
        "tokens that Bob comes back with": later[0].num_computed + later[0].num_tokens,
        "of these, computed when he comes back": later[0].num_tokens,
        "and he was told in the end": len(outputs[bob].token_ids),
    }


def _a_pause_wrong(seen: Seen) -> str:
    back, computed, told = seen.values()
    if told != 20:
        return f"Bob got {told} tokens, and asked for 20"
    left = 4 * 8  # Ann ends with 61 tokens: 8 of the 12 blocks; the others are Bob's, untouched
    if computed > back - left:
        return (
            f"{computed} of Bob's {back} tokens are computed again, and {left} of them were there"
        )
    return ""


register(
    Exhibit(
        name="dear_pause",
        title="A pause in the text that is longer than it need be",
        reports=("nano-vllm 211", "nano-vllm 233"),
        room="preemption",
        place="g2c_serving.schedule.prefix_tiers.PrefixCache.admit",
        fault=admit,
        scene=_a_pause,
        wrong=_a_pause_wrong,
        story="Under load some requests gave way and came back while most of their blocks were "
        "still cached. Their next chunk was measured by what they had before the cache was asked: "
        "nothing. In the reported engine the chunk then ran past the end of the block table and "
        "the process died; in ours it fits, and all of it is computed once more.",
        hint="Which of these lines are about a figure for the output, which is to count the first "
        "time only, and which are about what need not be computed?",
        solution=PrefixCache.admit,
    )
)
