"""A museum of faults that real engines had. Each is alive in ours for the time of one run.

    museum.guide()                        what there is to see
    museum.exhibit("stale_hash").run()    the engine as it is and with the fault, side by side
    museum.exhibit("stale_hash").show()   the code at fault; show(real=True): what it stands in for
    museum.exhibit("stale_hash").check(mended)   the same run with your part in the engine

A room's exhibits are in a file of their own, museum_*.py, which registers them. An exhibit is one
part of the engine with a fault in a few lines, a scene that runs the engine as it then stands, and
a rule that tells from what is seen whether all is well. The good engine passes every rule, and each
fault breaks its own alone (tests/test_museum.py).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from g2c_serving.lab.grading import MISSES_BEFORE_SOLUTION, Verdict
from g2c_serving.lab.museum_place import Seen, look, real_part
from g2c_serving.lab.museum_view import Sight
from g2c_serving.lab.source import Source, show_source
from g2c_serving.lab.table import Table
from g2c_serving.lab.words import known


@dataclass(frozen=True)
class Exhibit:
    """One fault.

    title     what a user sees, in a few words
    reports   the public reports of engines that had it
    place     dotted name of the part that the fault stands in for
    fault     a subclass or a function in its place
    scene     runs the engine as it stands; what a user or an operator sees of it: label -> value
    wrong     "" if what was seen is right, else one sentence that says what is wrong
    story     what users of the real engine saw
    solution  the part, mended
    limit_s   a run that takes longer is stopped
    """

    name: str
    title: str
    reports: tuple[str, ...]
    room: str
    place: str
    fault: Any
    scene: Callable[[], dict[str, Any]]
    wrong: Callable[[dict[str, Any]], str]
    story: str
    hint: str
    solution: Any
    limit_s: float = 10.0

    def run(self) -> Sight:
        """Run the scene with the engine as it is, and with the fault. End a cell with it."""
        real, fault = self.look(), self.look(self.fault)
        return Sight(self.title, self.verdict_on(fault), real, fault)

    def show(self, real: bool = False) -> Source:
        """The code at fault, or what it stands in for. End a cell with it."""
        return self._real_source() if real else show_source(self.fault)

    def check(self, mended: Any) -> Verdict:
        """Run the scene with your part in the engine. End a cell with it."""
        if problem := self._misfit(mended):
            return Verdict(None, problem, self.hint)
        if words := self._what_is_wrong(mended):
            _misses[self.name] += 1
            _mended.discard(self.name)
            shown = _misses[self.name] >= MISSES_BEFORE_SOLUTION
            solution = show_source(self.solution).code if shown else ""
            return Verdict(False, f"Not yet: {words.rstrip('.')}.", self.hint, solution)
        _misses[self.name] = 0
        _mended.add(self.name)
        return Verdict(True, "Right: what is seen is right, here and in the rest of the room.")

    # what they share

    def look(self, part: Any = None) -> Seen:
        """What the scene shows, with `part` in the engine if there is one."""
        place = self.place if part is not None else ""
        return look(self.scene, self.limit_s, place, part)

    def verdict_on(self, seen: Seen) -> str:
        """ "" where all is well, else what is wrong."""
        if seen.problem:
            return seen.problem
        try:
            return self.wrong(seen.values)
        except Exception:  # a learner's part may bring forth anything
            return f"nobody can make sense of what is seen: {str(seen.values)[:200]}"

    def _what_is_wrong(self, mended: Any) -> str:
        """In this scene, or else in another of the same room."""
        if words := self.verdict_on(self.look(mended)):
            return words
        for other in EXHIBITS.values():
            if other.room == self.room and other is not self:
                seen = look(other.scene, other.limit_s, self.place, mended)
                if words := other.verdict_on(seen):
                    return f"this is mended, but something else is broken by it: {words}"
        return ""

    def _misfit(self, mended: Any) -> str:
        if mended is None or mended is ...:
            return "Put your part in place of ... and run the cell again."
        wants = "class" if inspect.isclass(self.fault) else "function"
        if not callable(mended):
            return f"Pass the {wants} itself, without calling it; this is {mended!r:.80}."
        if inspect.isclass(mended) != inspect.isclass(self.fault):
            is_a = "a class" if inspect.isclass(mended) else "none"
            return f"Pass the {wants} itself; this is {is_a}: {mended!r:.80}."
        return ""

    def _real_source(self) -> Source:
        """All of a function; of a class what the fault does anew."""
        part = real_part(self.place)
        if not inspect.isclass(part):
            return show_source(_plain(part))
        names = [name for name in vars(self.fault) if inspect.isfunction(vars(self.fault)[name])]
        pieces = [show_source(_plain(getattr(part, name))) for name in names if hasattr(part, name)]
        return Source(pieces[0].where, "\n\n".join(piece.code for piece in pieces))


def _plain(part: Any) -> Any:
    """The function within a property, a static or a class method."""
    return getattr(part, "fget", None) or getattr(part, "__func__", part)


EXHIBITS: dict[str, Exhibit] = {}
_misses: Counter[str] = Counter()
_mended: set[str] = set()


def register(exhibit: Exhibit) -> Exhibit:
    """Put an exhibit up. Raises ValueError for a name twice."""
    if exhibit.name in EXHIBITS:
        raise ValueError(f"name {exhibit.name!r}: this exhibit is registered twice")
    EXHIBITS[exhibit.name] = exhibit
    return exhibit


def exhibit(name: str) -> Exhibit:
    """The exhibit of that name. Raises ValueError for no such name."""
    return known(name, EXHIBITS, "exhibit")


def in_order() -> list[Exhibit]:
    """All exhibits, room by room."""
    rooms = list(dict.fromkeys(e.room for e in EXHIBITS.values()))
    return sorted(EXHIBITS.values(), key=lambda e: rooms.index(e.room))


def guide() -> Table:
    """All exhibits, and which of them you have mended since this kernel was started."""
    rows = [
        (str(k), e.room, e.name, e.title, ", ".join(e.reports), "*" if e.name in _mended else "")
        for k, e in enumerate(in_order(), start=1)
    ]
    return Table(("", "room", "exhibit", "what a user sees", "reports", "mended"), rows, words=6)


# each registers the exhibits of its rooms
_FAMILIES = (
    "blocks", "prefix", "preemption", "seeds", "sampler", "numerics", "drafts", "drafters",
    "masks", "triggers", "again", "text", "stream", "overlap",
)  # fmt: skip
for _family in _FAMILIES:
    if importlib.util.find_spec(f"g2c_serving.lab.museum_{_family}"):
        importlib.import_module(f"g2c_serving.lab.museum_{_family}")
