"""The museum: every fault is told by its own scene and by no other, a mended part passes, and what
a learner puts in harms neither the kernel nor the engines after it.

Each exhibit cites the public report of an engine that had its fault. What is right is said by the
exhibit's rule, in the scene's own words (a PIN, a text), and by the engine without the fault.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import signal
import threading
import time
from functools import cache

import pytest

import g2c_serving as g
from g2c_serving.lab import museum, museum_limits, museum_matrix
from g2c_serving.lab.museum import EXHIBITS, Exhibit, exhibit
from g2c_serving.lab.museum_limits import LimitReached, limited
from g2c_serving.lab.museum_place import placed, real_part
from g2c_serving.lab.source import show_source

ALL = list(EXHIBITS.values())
each = pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
STALE = exhibit("stale_hash")


@pytest.fixture(autouse=True)
def a_new_visitor():
    museum._misses.clear()
    museum._mended.clear()


# ---- the matrix ----


@each
def test_the_engine_passes_and_shows_the_same_every_time(one: Exhibit):
    seen = one.look()
    assert one.verdict_on(seen) == "" and not seen.problem
    assert one.look() == seen
    assert seen.values, "a scene shows something"


@cache
def used_by(scene: str) -> frozenset[str]:
    """The exhibits whose part a scene uses: with the faults of the others it is the good run."""
    used = museum_matrix._used(exhibit(scene), ALL)
    return frozenset(one.name for one, is_used in zip(ALL, used, strict=True) if is_used)


@each
def test_a_fault_is_told_by_its_own_scene_alone(one: Exhibit):
    failed = {}
    those = [other for other in ALL if one.name in used_by(other.name)]
    with placed(one.place, one.fault):
        for other in those:
            if words := other.verdict_on(other.look()):
                failed[other.name] = words
    assert list(failed) == [one.name], failed


@pytest.mark.parametrize("name", ["late_mask", "one_too_many", "full_hit"])
def test_a_scene_that_does_not_use_the_part_is_the_same_with_the_fault(name: str):
    one = exhibit(name)
    others = [other for other in ALL if name not in used_by(other.name)]
    assert len(others) > 25
    for other in others:
        good = other.look()
        with placed(one.place, one.fault):
            assert other.look() == good, other.name


@each
def test_the_solution_passes_and_the_fault_does_not(one: Exhibit):
    assert one.check(one.solution), one.check(one.solution).text
    verdict = one.check(one.fault)
    assert verdict.right is False and verdict.text.startswith("Not yet: "), verdict.text
    assert verdict.hint == one.hint and not verdict.solution


@each
def test_the_code_at_fault_is_short_and_does_not_say_that_it_is(one: Exhibit):
    code = one.show().code
    assert len(code.splitlines()) <= 12
    for word in ("fault", "bug", "leak", "report"):
        assert word not in code, word
    assert one.show(real=True).code != code


@each
def test_it_has_its_words(one: Exhibit):
    assert one.reports and one.story and one.hint and one.limit_s <= 10
    assert not one.title.endswith(".") and one.room in str(museum.guide())


# ---- no other engine keeps the fault ----


@each
def test_the_part_is_back_in_its_place_whatever_happened(one: Exhibit):
    before = real_part(one.place)
    one.look(one.fault)
    with pytest.raises(ZeroDivisionError), placed(one.place, one.fault):
        assert real_part(one.place) is not before
        raise ZeroDivisionError
    assert real_part(one.place) is before


def test_no_thread_stays_and_an_engine_made_before_is_as_good_as_one_made_after():
    threads = set(threading.enumerate())
    for one in ALL:
        one.look(one.fault)
    assert set(threading.enumerate()) <= threads
    assert all(one.verdict_on(one.look()) == "" for one in ALL)


class Odd:
    """Parts of every kind."""

    @property
    def size(self) -> int:
        return 1

    @staticmethod
    def twice(number: int) -> int:
        return 2 * number


class Heir(Odd):
    pass


@pytest.mark.parametrize("owner", [Odd, Heir])
def test_a_plain_function_stands_in_for_a_property_a_static_and_an_inherited_one(owner):
    place = f"{__name__}.{owner.__name__}"
    with placed(f"{place}.size", lambda self: 7), placed(f"{place}.twice", lambda number: 9):
        assert owner().size == 7 and owner().twice(2) == owner.twice(2) == 9
    assert owner().size == 1 and owner.twice(2) == 4
    assert "size" not in vars(Heir) and isinstance(vars(Odd)["twice"], staticmethod)


@pytest.mark.parametrize("place", ["g2c_serving.loop.NoManager", "nowhere.at_all"])
def test_a_place_that_is_none_is_refused(place):
    with pytest.raises(ValueError, match="is no part of the engine"), placed(place, None):
        pass


# ---- whatever a learner puts in ----


def hangs(self):
    while True:
        pass


def hangs_and_takes_all(self):
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            pass


def sleeps(self):
    time.sleep(60)


def hoards(self):
    held = []
    while True:
        held.append(bytearray(10**6))


def raises(self):
    return {}["no such block"]


IMPATIENT = dataclasses.replace(STALE, limit_s=0.3)


@pytest.mark.parametrize(
    "mended, words",
    [
        (hangs, "it was still running after 0.3 s, and was stopped"),
        (hangs_and_takes_all, "still running after 0.3 s"),
        (raises, "it raised KeyError: 'no such block'"),
        (lambda: None, "it raised TypeError"),
        (lambda self: "block", "it raised"),
    ],
)
def test_a_part_that_fails_gives_words(mended, words):
    verdict = IMPATIENT.check(mended)
    assert verdict.right is False and words in verdict.text
    assert STALE.check(STALE.solution)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="Windows has no such signal")
def test_a_part_that_waits_in_c_is_woken():
    start = time.monotonic()
    verdict = IMPATIENT.check(sleeps)
    assert "still running after 0.3 s" in verdict.text and time.monotonic() - start < 20
    assert callable(signal.getsignal(signal.SIGINT))


def test_a_part_that_eats_memory_is_stopped():
    verdict = dataclasses.replace(STALE, limit_s=60).check(hoards)
    assert "taken more than 512 MB of memory, and was stopped" in verdict.text


def test_the_line_of_the_learners_own_code_is_named():
    line = inspect.getsourcelines(raises)[1] + 1
    assert f"(line {line} of the cell, in raises)" in STALE.check(raises).text


@pytest.mark.parametrize("blank", [None, ...])
def test_nothing_yet_is_no_miss(blank):
    verdict = STALE.check(blank)
    assert verdict.right is None and "in place of ..." in verdict.text


@pytest.mark.parametrize("no_part", [3, int, "take"])
def test_what_is_no_part_is_said_and_is_no_miss(no_part):
    verdict = STALE.check(no_part)
    assert verdict.right is None and "Pass the function itself" in verdict.text


def test_a_call_within_its_limits_returns_what_it_returns_and_raises_what_it_raises():
    assert limited(lambda: 42, 5, 100) == 42
    with pytest.raises(ZeroDivisionError):
        limited(lambda: 1 / 0, 5, 100)
    assert "museum watch" not in {thread.name for thread in threading.enumerate()}


def test_the_learners_own_interrupt_is_not_taken_for_a_limit():
    with pytest.raises(KeyboardInterrupt):
        limited(lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(5), 20, 100)


def test_a_call_that_ends_as_its_time_does_is_one_or_the_other():
    """Hundreds of times the stop comes just as the call returns: nothing of it may arrive later."""
    ended = stopped = 0
    for k in range(60):
        span = 0.02 + k % 6 * 0.002
        try:
            limited(lambda span=span: time.sleep(span) or sum(range(3000)), 0.02, 100)
            ended += 1
        except LimitReached:
            stopped += 1
    assert ended + stopped == 60 and stopped
    assert sum(range(200_000)) == 19_999_900_000


class InterruptedTwice:
    """A lock at which Ctrl+C comes, twice, before it opens."""

    times = 2

    def __enter__(self) -> None:
        if self.times:
            self.times -= 1
            raise KeyboardInterrupt

    def __exit__(self, *error) -> None:
        pass


def test_the_watchs_own_late_interrupts_do_not_reach_the_learner(monkeypatch):
    """As after a call that left gigabytes to clear away: told again meanwhile, and again."""
    for why in ("it had taken more than 500 MB of memory", ""):
        watch = museum_limits._Watch(5, 500)
        watch.why = why
        monkeypatch.setattr(watch, "_lock", InterruptedTwice())
        if why:
            watch.end()
        else:
            with pytest.raises(KeyboardInterrupt):  # their own
                watch.end()


# ---- the face ----


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"'stale_hush'.*did you mean 'stale_hash'"):
        exhibit("stale_hush")
    with pytest.raises(ValueError, match="registered twice"):
        museum.register(STALE)


def test_a_run_shows_both_sides_marks_what_differs_and_says_what_is_wrong():
    sight = STALE.run()
    for page in (repr(sight), sight._repr_markdown_()):
        assert "Another user's text" in page and "9042, and Bob's is 9042" in page
    rows = {row[1]: row for row in sight.table.rows}
    assert rows["Ann, after Bob, is told"] == ("\u2260", "Ann, after Bob, is told", "4711", "9042")
    assert rows["Bob is told"][0] == "" and rows["Bob is told"][2:] == ("9042", "9042")


def test_the_guide_says_what_is_mended():
    def mended() -> list[str]:
        return [row[2] for row in museum.guide().rows if row[-1]]

    assert mended() == []
    STALE.check(STALE.solution)
    assert mended() == ["stale_hash"]
    STALE.check(STALE.fault)
    assert mended() == []


def test_the_guide_goes_room_by_room_and_counts():
    rows = museum.guide().rows
    assert [row[0] for row in rows] == [str(k + 1) for k in range(len(ALL))]
    rooms = [row[1] for row in rows]
    assert sorted(rooms, key=rooms.index) == rooms and len(set(rooms)) >= 10


def test_after_three_misses_the_solution_can_be_unfolded_as_code():
    pages = [STALE.check(STALE.fault)._repr_html_() for _ in range(3)]
    assert ["Solution" in page for page in pages] == [False, False, True]
    code = show_source(g.loop.BlockManager._take).code
    assert "<pre>" in pages[2] and "del self.block_of" in pages[2] and "del self.block_of" in code


def test_what_mends_one_exhibit_and_breaks_another_of_its_room_is_told_so():
    """To forget all names is one way never to find a wrong one."""
    broken = dataclasses.replace(STALE, name="other", wrong=lambda seen: "Ann waits for ever")
    museum.EXHIBITS["other"] = broken
    try:
        verdict = STALE.check(STALE.solution)
    finally:
        del museum.EXHIBITS["other"]
    assert verdict.right is False
    assert "something else is broken by it: Ann waits for ever" in verdict.text
