"""What was asked of an engine of the fakes, and whether each got what it would get alone."""

from __future__ import annotations

from alone import Wish, drafted_story, story, text
from fakes import FakeLM

import g2c_serving as g


class Asked:
    """Of one engine. key: the model's window and the drafts of a step, see `drafted_story`; most:
    tokens that its pool holds. `faults` are what errors may say, `open` the samples of requests
    that have no end yet."""

    def __init__(self, lm: FakeLM, mode: str, key: tuple[int, int], most: int) -> None:
        self.lm, self.mode, self.key, self.most = lm, mode, key, most
        self.wishes: dict[int, Wish] = {}  # by request id
        self.given: dict[int, list[int]] = {}  # tokens that a fork began with
        self.open: dict[int, set[int]] = {}
        self.shown: dict[tuple[int, int], list[int]] = {}  # by request id and sample: its tokens
        self.seeds: dict[int, dict[int, int]] = {}  # by sample
        self.faults: list[str] = []

    def add(
        self,
        request_id: int,
        wish: Wish,
        seed: int | None,
        n: int = 1,
        given: list[int] | None = None,
    ) -> None:
        """seed: of the first sample; None: the engine chooses."""
        assert request_id not in self.wishes, "an id is given twice"
        self.wishes[request_id], self.given[request_id] = wish, given or []
        self.seeds[request_id] = {} if seed is None else {0: seed}
        self.open[request_id] = set(range(n))

    def note(self, output: g.RequestOutput) -> None:
        """It goes on from the one before; what has ended is judged."""
        key = output.request_id, output.sample_index
        assert key[1] in self.open.get(key[0], ()), f"{key} goes on after its end"
        before = self.shown.get(key, self.given[key[0]])
        assert output.token_ids[: len(before)] == before, f"{key}: tokens were taken back"
        self.shown[key] = output.token_ids
        seeds = self.seeds[key[0]]
        assert seeds.setdefault(key[1], output.seed) == output.seed
        assert len({*seeds.values()}) == len(seeds), "two samples draw alike"
        if output.finish_reason is not None:
            self.open[key[0]].remove(key[1])
            if not self.open[key[0]]:
                del self.open[key[0]]
            self.judge(output)

    def judge(self, output: g.RequestOutput) -> None:
        wish, found = self.wishes[output.request_id], output.token_ids
        expected = self.expected(wish, output.seed, self.given[output.request_id])
        if output.finish_reason == "error":
            self.check_error(wish, output)
        if output.finish_reason in ("abort", "error"):
            assert expected is None or found == expected[0][: len(found)]
        elif expected is not None:
            assert (found, output.finish_reason) == expected
            assert output.text == text(found, wish.stop)

    def check_error(self, wish: Wish, output: g.RequestOutput) -> None:
        """Either it was made to fail, or the pool is too small for it alone."""
        said = output.message or ""
        if "need more than all" in said:
            drafts = self.key[1] if self.mode == "fixed" else 0
            assert len(wish.prompt) + len(output.token_ids) + drafts >= self.most
        else:
            assert any(fault in said for fault in self.faults), said

    def expected(self, wish: Wish, seed: int, given: list[int]) -> tuple[list[int], str] | None:
        """None where nobody can say."""
        if self.mode != "fixed" or not wish.temperature:
            return story(self.lm, wish, seed, given)
        if given and (wish.stop or wish.language):
            return None  # what it was given may be the first half of either
        return drafted_story((*self.key, self.most), wish, seed, tuple(given))
