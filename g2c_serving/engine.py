"""The engine, as its users see it: add, fork, abort, step, generate.

`loop.py` is what a step does. Requests join and leave between steps (Brief, "The change of
perspective"). Mirrors the engine core of DeepInfer (`csrc/engine`). Here a step is over before the
next begins; `async_engine.py` overlaps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from g2c_serving.checks import as_int
from g2c_serving.intake import (
    AnyPrompt,
    check_cache_options,
    check_can_run,
    encode_prompt,
    make_samples,
    one_each,
)
from g2c_serving.interrupts import deferred_interrupt
from g2c_serving.loop import Loop
from g2c_serving.output import RequestOutput
from g2c_serving.request import COMPILING, EXPECTED, MAX_SAMPLES, Request, SamplingParams
from g2c_serving.sample.rng import sample_seed
from g2c_serving.schedule.arrivals import Pages


class Engine(Loop):
    """Serves one model. `history` holds one `StepRecord` a step, the newest 4,096; a `Ledger` that
    is put in `ledger` notes each draw."""

    @property
    def has_unfinished(self) -> bool:
        """Whether `step` has something to do, or to tell of a step that was interrupted."""
        return self._is_busy or bool(self._unreported)

    @property
    def _is_busy(self) -> bool:
        return bool(self._requests)

    def add(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        cache_salt: str = "",
        traffic: str = "chat",
    ) -> int:
        """Queue a prompt and return its request id. ValueError for what could never run.

        cache_salt  cached blocks are shared among requests of one salt only: one for each tenant
        traffic     chat or agent: decides how long the disk keeps its blocks
        """
        self._check_free()
        params = SamplingParams() if params is None else params
        prompt_token_ids = encode_prompt(self.lm.tokenizer, prompt, self.lm.config.max_seq_len)
        check_can_run(prompt_token_ids, params, self.lm, self.config)
        check_cache_options(cache_salt, traffic)
        if params.grammar is not None:
            self.compiler.check(params.grammar)
        ids = self._next_request_id, self._next_sequence_id
        samples = make_samples(prompt_token_ids, params, self.lm, *ids)
        for request in samples:
            request.cache_salt, request.traffic = cache_salt, traffic
        with deferred_interrupt():
            self._next_sequence_id += params.n
            self._next_request_id += 1
            self._requests[samples[0].request_id] = samples
            self._queue(samples[0])
        return samples[0].request_id

    def fork(self, request_id: int, seed: int | None = None) -> int:
        """Copy an unfinished request as it stands: a new request that shares its blocks, with its
        own draws from here on. Returns the copy's request id.

        seed    None: worked out from the parent's seed and the number of this fork
        KeyError for a request that is not waiting or running, ValueError for one with several
        unfinished samples.
        """
        self._check_free()
        samples = self.unfinished(request_id)
        if len(samples) > 1:
            raise ValueError(f"request_id {request_id} has {len(samples)} unfinished samples: "
                             "fork a request of one")  # fmt: skip
        (parent,) = samples
        if seed is None:
            seed = sample_seed(parent.seed, MAX_SAMPLES + parent.num_forks)
        seed = as_int("seed", seed, 0, 2**64 - 1)
        with deferred_interrupt():
            child = parent.fork(self._next_request_id, self._next_sequence_id, seed)
            self._next_request_id += 1
            self._next_sequence_id += 1
            self._requests[child.request_id] = [child]
            if parent.state == COMPILING:
                self._queue(child)
            else:
                self.scheduler.fork(parent, child)
        return child.request_id

    def _queue(self, request: Request) -> None:
        """To the scheduler, or first to the waiting room."""
        if request.params.grammar is None:
            self.scheduler.add(request)
        else:
            self.waiting_room.enter(request)

    def abort(self, request_id: int) -> list[RequestOutput]:
        """End all samples of a request now; their outputs. KeyError for one that is not running."""
        self._check_free()
        samples = self.unfinished(request_id)
        with deferred_interrupt():
            for request in samples:
                self._drop(request)
                request.finish("abort")
            others = [o for o in self._unreported if o.request_id != request_id or o.finish_reason]
            outputs = [RequestOutput(request, self.lm.tokenizer) for request in samples]
            self._unreported = others + outputs  # for the next step, if an interrupt came
        self._unreported = others
        return outputs

    def generate(
        self,
        prompts: Iterable[AnyPrompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        cache_salt: str = "",
        traffic: str = "chat",
    ) -> list[RequestOutput]:
        """Run all prompts to their end: params.n outputs a prompt, in the prompts' order.

        RuntimeError while requests that were added before are unfinished: their outputs would be
        lost here.
        """
        self._check_free()
        if isinstance(prompts, str):
            raise TypeError("prompts is one str: pass a list, [prompt]")
        prompts = list(prompts)
        if not self._requests:
            self._drain()
        if self.has_unfinished:
            raise RuntimeError(
                f"{len(self._requests)} requests are unfinished: call step() until has_unfinished "
                "is False, or abort them, before generate()"
            )
        finished: dict[tuple[int, int], RequestOutput] = {}
        try:
            for prompt, one in zip(prompts, one_each(params, len(prompts)), strict=True):
                self.add(prompt, one, cache_salt, traffic)
            while self.has_unfinished:
                for output in self.step():
                    if output.finish_reason is not None:
                        finished[output.request_id, output.sample_index] = output
        except BaseException:  # a bad prompt, or the learner's interrupt: leave nothing behind
            for request_id in list(self._requests):
                self.abort(request_id)
            self._drain()
            self._unreported.clear()
            raise
        return [finished[key] for key in sorted(finished)]

    def step(self) -> list[RequestOutput]:
        """Advance every running request; the outputs of those that advanced or ended.

        An interrupt ends the step between its phases, not within the bookkeeping of one: the next
        step goes on from there. Without unfinished requests nothing is done or recorded.
        """
        self._check_free()
        if self._is_busy:
            self._step()
        outputs, self._unreported = self._unreported, []
        return outputs

    def _check_free(self) -> None:
        """Whether the caller may use the engine now; here always."""

    def _drain(self) -> None:
        """Take in what is on its way; here nothing is between two steps."""

    # requests that another engine goes on with, or has begun: cluster/handover.py

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way, so that requests and pages are what they say they are."""
        return True

    def settle(self) -> list[RequestOutput]:
        """Take in what is on its way, so that all requests stand still until the next step; the
        outputs that nobody has had yet."""
        self._check_free()
        self._drain()
        outputs, self._unreported = self._unreported, []
        return outputs

    def let_go(self, request_id: int) -> None:
        """Forget a request, without an output: another engine has it now. KeyError as above."""
        self._check_free()
        self._drain()
        with deferred_interrupt():
            for request in self.unfinished(request_id):
                self._drop(request)
            self._unreported = [
                o for o in self._unreported if o.request_id != request_id or o.finish_reason
            ]

    def take_on(self, samples: list[Request], pages: Mapping[int, Pages]) -> int:
        """Queue the samples of one request that another engine has begun; `pages` by their place in
        `samples`. Returns its request id here."""
        self._check_free()
        with deferred_interrupt():
            request_id = self._next_request_id
            self._next_request_id += 1
            self._requests[request_id] = list(samples)
            for place, request in enumerate(samples):
                request.request_id, request.sequence_id = request_id, self._next_sequence_id
                self._next_sequence_id += 1
                if place in pages:
                    self.scheduler.arrivals.hold(request, pages[place])
            for request in samples:
                if request.state != EXPECTED:
                    self._queue(request)
        return request_id

    def unfinished(self, request_id: int) -> list[Request]:
        """The unfinished samples of a request, to be looked at. KeyError for one that has ended."""
        if as_int("request_id", request_id, 0) not in self._requests:
            raise KeyError(
                f"request_id {request_id} is not waiting or running in this engine: it has ended, "
                "or add() never gave that id"
            )
        return list(self._requests[request_id])
