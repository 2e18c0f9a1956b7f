"""Prefill on one engine, decode on another, for real: the cache is shipped with the first token.

A prompt is computed in the prefill engine. Once its first token is drawn, request and cache move to
the decode engine (`fleet.Fleet.move`), which goes on without computing anything again. The user
sees one request. In batch-invariant mode the tokens are those of a single engine, bit for bit.

Brief, section 1, Reported: "A request is prefilled on one machine, and its cache is shipped to a
decode machine to continue". Left out: shipping layer by layer behind the computation, which
`disaggregation.py` models, and more than one engine a pool.
"""

from __future__ import annotations

from g2c_serving.cluster.fleet import Fleet
from g2c_serving.engine import Engine
from g2c_serving.output import RequestOutput

PREFILL, DECODE = "prefill", "decode"


class TwoPools(Fleet):
    """Two engines of one model. What the decode engine could never run ends where it began."""

    def __init__(self, prefill: Engine, decode: Engine) -> None:
        super().__init__({PREFILL: prefill, DECODE: decode})

    def _candidates(self) -> list[str]:
        """Prompts go to prefill."""
        return [PREFILL]

    def step(self) -> list[RequestOutput]:
        """A step of each engine; then those whose prompt is computed change over."""
        for name in (PREFILL, DECODE):
            self._step_of(name)
        if any(self.tickets[i].num_tokens for i in self.on(PREFILL)):
            self.settle(PREFILL)
            for request_id in self.on(PREFILL):
                if self.tickets[request_id].num_tokens:
                    self.move(request_id, DECODE)
        return self._tell()

    @property
    def shipped_bytes(self) -> int:
        """Of all caches so far."""
        return sum(note.num_bytes for note in self.log)
