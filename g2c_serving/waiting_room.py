"""Where a request waits for its grammar: outside the scheduler, so that no step waits with it.

It holds no seat, no block and no rows of a step. When its grammar is compiled it goes to the queue,
to the place of its arrival; if that fails, it ends with an error and nobody else notices. Brief,
section 5: a request picks up the compiled result before it enters the engine.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait

from g2c_serving.interrupts import BLINK
from g2c_serving.request import COMPILING, Request
from g2c_serving.sample.grammar_compiler import GrammarCompiler


class WaitingRoom:
    """Requests, each the first sample of its prompt, and what they wait for."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self.compiler = compiler
        self._waiting: dict[int, tuple[Request, Future]] = {}  # by sequence id

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, request: Request) -> None:
        request.state = COMPILING
        assert request.params.grammar is not None
        future = self.compiler.submit(request.params.grammar)
        self._waiting[request.sequence_id] = request, future

    def leave(self, request: Request) -> None:
        """The request has ended; none for one that is not here. What was asked for is compiled all
        the same: others may have asked for it too."""
        self._waiting.pop(request.sequence_id, None)

    def wait(self, for_long: bool = True) -> None:
        """Until one can go on; or not `for_long`: for a tenth of a second at most."""
        futures = [future for _, future in self._waiting.values()]
        while not wait(futures, BLINK, return_when=FIRST_COMPLETED).done and for_long:
            self.compiler.give_up()  # and on Windows an interrupt gets through here only

    def ready(self) -> list[Request]:
        """Those that can go on, or that ended because their grammar cannot be compiled."""
        if self._waiting:
            self.compiler.give_up()
        done = [(request, future) for request, future in self._waiting.values() if future.done()]
        for request, future in done:
            try:
                for one in request.family:
                    assert one.params.grammar is not None
                    one.grammar = self.compiler.state_of(one.params.grammar, future.result())
                    for token_id in one.token_ids[one.num_prompt_tokens :]:
                        one.grammar.advance(token_id)  # another engine has begun it
            except Exception as err:
                for one in request.family:
                    one.finish("error", f"grammar: {err}")
            del self._waiting[request.sequence_id]
        return [request for request, _ in done]
