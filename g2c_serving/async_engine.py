"""The engine whose device does not wait: the four phases of `loop.py`, overlapped one step deep.

    device   | forward N, sample N                   | forward N+1, sample N+1               |
    CPU      | process N-1 | schedule N+1 |          | process N | schedule N+2 |            |

While the device computes step N, the CPU processes what step N-1 has drawn and schedules step N+1,
which is launched before N is over and so waits for nothing. What the scheduler cannot know yet it
takes at its most: each request in step N will have one token more, or with drafts up to n + 1. So
three things are learnt one step late: that a request has ended, that the user aborted it, that it
was preempted. Its row in the step on its way is then computed for nothing, and thrown away.

A row under a grammar waits, with sampling alone, until the CPU has processed the step before: the
mask of its next token hangs on the last one.

On a CPU the device is a thread, and Python lets one thread run at a time: torch lets go of that
lock in its kernels, but gets it back only when the other thread gives it up, after 5 ms as a rule.
So the interval is set to 5 microseconds while anything is on its way. On cuda and mps (untested)
the thread launches kernels, and the device's own queue keeps their order; on mps the host reads
tokens only when that queue is empty, so little overlaps there.

Brief, section 6, "asynchronous scheduling"; SGLang and vLLM have it too. Left out: schedules more
than one step ahead, and rows that are laid out in device memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Self

import torch

from g2c_serving.channel import Stream
from g2c_serving.config import EngineConfig
from g2c_serving.device_worker import DeviceWorker, WorkerDied, receive, wait
from g2c_serving.engine import Engine
from g2c_serving.flight import Flight, fill, send
from g2c_serving.forward.batch import ForwardBatch
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.history import CPU, DEVICE
from g2c_serving.intake import AnyPrompt
from g2c_serving.interrupts import deferred_interrupt
from g2c_serving.launches import Step
from g2c_serving.output import RequestOutput
from g2c_serving.page_calls import PageCalls, do
from g2c_serving.parts import make_guards
from g2c_serving.request import Request, SamplingParams
from g2c_serving.sample.grammar import GrammarState
from g2c_serving.sampling import Sampled
from g2c_serving.streams import CLOSED, Streams
from g2c_serving.switch_interval import SwitchInterval

DEPTH = 2  # steps on their way: the one that the device computes, and the next


class AsyncEngine(Engine):
    """An `Engine` with the same face, and the same tokens with speculation off or fixed. The
    outputs of a step come with the call of `step` after the one that launched it.

    Close it, or use it in a `with`: it has a thread, which may keep an engine that is dropped with
    steps on their way. `events` is the log of who did what when.
    """

    def __init__(self, lm: LanguageModel, config: EngineConfig | None = None) -> None:
        super().__init__(lm, config)
        self.page_work = PageCalls(self.pages)
        self.is_closed = False
        self.worker = DeviceWorker()
        self._flights: deque[Flight] = deque()  # at most two
        self._interval = SwitchInterval()
        self._streams = Streams(self)

    @property
    def _is_busy(self) -> bool:
        return bool(self._requests or self._flights)

    @property
    def is_settled(self) -> bool:
        return not self._flights and self.page_work.is_empty

    def stream(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        cache_salt: str = "",
        traffic: str = "chat",
    ) -> Stream:
        """The outputs of a request as they come: `async for output in engine.stream(...)`. Leave
        the loop and close the stream, or cancel its task, and the request is aborted. While streams
        are read a thread of theirs calls the engine, and nobody else may. See `streams.py`."""
        return Stream(self._streams, self, (prompt, params, cache_salt, traffic))

    def close(self) -> list[RequestOutput]:
        """Take in what is on its way, abort what is unfinished, and end the threads: all outputs
        that nobody has had yet. The second time it does nothing."""
        if self.is_closed:
            return []
        self._streams.close()
        try:
            self._drain()
            aborted = [output for i in list(self._requests) for output in self.abort(i)]
        finally:
            self.is_closed = True
            self._interval.drop()
            if self._flights:  # an interrupt: nobody will hand over what they may wait for
                self._give_up()
            self.worker.close()
        outputs, self._unreported = self._unreported + aborted, []
        return outputs

    def __enter__(self) -> Self:
        self._check_free()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_free(self) -> None:
        """RuntimeError once the engine is closed, or while streams are read."""
        if self.is_closed:
            raise RuntimeError(CLOSED)
        self._streams.check()

    def _drain(self) -> None:
        while self._flights:
            self._collect()
        try:
            do(self.page_work.take())  # of a step that had nothing to compute
        except BaseException:
            self.scheduler.lose_all_blocks()
            raise

    # one step

    def _step(self) -> None:
        """Launch the next step, then process the one before it while the device computes."""
        launched = False
        if not self._flights:
            self._wait_for_grammars(for_long=False)  # streams may have news
        if len(self._flights) < DEPTH:  # an interrupt may have left two
            with deferred_interrupt():
                launched = self._launch()
        if len(self._flights) > launched:
            self._collect()

    def _launch(self) -> bool:
        """Schedule a step and queue it on the device. False if there is nothing to compute, or if
        the device's thread was killed under a step: that is settled first."""
        if not self.worker.is_alive:
            if self._flights:
                return False
            self.worker, self.guards = DeviceWorker(), make_guards(self.config)
        step = self._begin()
        if not step.scheduled:
            self._next_step -= 1
            return False
        with self._phase(CPU, "launch", step):
            before = self._flights[-1] if self._flights else None
            flight = Flight.of(step, self.page_work.take(), before)
            self._depart(flight.launched)
            if before is None:
                flight.hand_over_grammars()
                self._interval.hold()
            self._flights.append(flight)
            try:
                flight.done = self.worker.submit(self._fly, flight)
            except WorkerDied as err:  # just now
                flight.done.set_exception(err)
        return True

    def _collect(self) -> None:
        """Wait for the oldest step on its way, and process it."""
        flight = self._flights[0]
        with self._phase(CPU, "wait", flight.step):
            died = self._await(flight)
        with deferred_interrupt():
            try:
                for _ in range(len(self._flights) if died else 1):
                    self._land(self._flights.popleft(), died)
                if died or flight.lost_pages:
                    self.page_work.take()
                    self.scheduler.lose_all_blocks()
            finally:
                if self._flights:
                    self._flights[0].hand_over_grammars()
                else:
                    self._interval.drop()

    def _await(self, flight: Flight) -> str | None:
        """Until the device is through with the step. What killed its thread, if anything did."""
        try:
            wait(flight.done)
        except WorkerDied as err:
            self._give_up()
            self.worker.join()  # until then it may write to the pages
            return str(err)
        return None

    def _give_up(self) -> None:
        """Kill the device's thread. A kill may go astray while a job waits for what is handed over;
        then it fails by this."""
        for flight in self._flights:
            flight.handed_over.put({})
        self.worker.kill()

    def _land(self, flight: Flight, died: str | None) -> None:
        step = flight.step
        try:
            if flight.read is not None:
                step.sampled = flight.read()
        except Exception as err:  # a device reports only now what went wrong there
            self._note_failure(step, err)
        step.error = died or step.error
        flight.land()
        self._finish(step)

    # on the device's thread

    def _fly(self, flight: Flight) -> None:
        self._in_air, flight.lost_pages = flight, True
        try:
            do(flight.calls)
            flight.lost_pages = False
            flight.meet()
        except Exception as err:
            self._note_failure(flight.step, err)
        else:
            self._compute(flight.step)
        del self._in_air

    def _batch(self, step: Step) -> ForwardBatch | None:
        batch, draws = super()._batch(step), self._in_air.to_fill_in
        return batch if batch is None or draws is None else fill(batch, step.scheduled, draws)

    def _sample(self, step: Step, logits: torch.Tensor | None) -> Sampled:
        with self.guards["sample"]:
            draws = self._draw(step, logits)
        if self.speculator is not None:
            return draws.read()
        self._in_air.draws, self._in_air.read = draws, send(draws, self.config.device)
        return {}

    def _grammars(self, requests: Sequence[Request]) -> list[GrammarState | None]:
        flight = self._in_air
        if not any(request.params.grammar for request in requests):
            return [None] * len(requests)
        if flight.grammars is None:
            with self._phase(DEVICE, "wait", flight.step):
                flight.grammars = receive(flight.handed_over)
        return [flight.grammars[request.sequence_id] for request in requests]
