"""Stop strings over a stream of text: found wherever the pieces are cut, and never shown.

For each stop string we keep how many of its characters the text ends with (the automaton of Knuth,
Morris and Pratt). The longest of these beginnings is held back, since it may become a stop string
with the next token; as soon as it cannot any more, it is shown. The stop string whose end comes
first wins, and among those that end at the same character the longest.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice

from g2c_serving.process.utf8 import as_utf8

MAX_STOPS, MAX_STOP_LENGTH = 64, 1000  # strings of a request, characters of each


def as_stop(value: object) -> tuple[str, ...]:
    """The stop strings of a request as a tuple; a single str is one of them, None is none.

    ValueError for what is no str, is empty or too long, and for more than 64.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        value = (value,)
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise ValueError(f"stop={value!r:.500} must be a str or a sequence of str")
    stops = tuple(islice(value, MAX_STOPS + 1))
    if len(stops) > MAX_STOPS:
        raise ValueError(f"stop has more than {MAX_STOPS} strings; give the shortest that do")
    for i, stop in enumerate(stops):
        _check(i, stop)
    return stops


def _check(i: int, stop: object) -> None:
    if not isinstance(stop, str):
        raise ValueError(f"stop[{i}]={stop!r:.500} must be a str; ids belong into stop_token_ids")
    if not stop:
        raise ValueError(f"stop[{i}]='' would stop before the first character; leave it out")
    if len(stop) > MAX_STOP_LENGTH:
        raise ValueError(
            f"stop[{i}] has {len(stop):,} characters; at most {MAX_STOP_LENGTH:,}, so that little "
            "text is held back. Its beginning will do"
        )
    as_utf8(f"stop[{i}]={stop!r}", stop)


class StopStrings:
    """Reads text piece by piece. `held` is what is read but not shown yet."""

    def __init__(self, stops: object = ()) -> None:
        self.stops = as_stop(stops)
        self._fallbacks = [_fallback(stop) for stop in self.stops]
        self._depths = [0] * len(self.stops)  # characters of each that the text ends with
        self.held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """(what may be shown now, the stop string that is complete, or None). After a stop string
        the rest of `text` is gone."""
        start, text = len(self.held), self.held + text
        for end in range(start, len(text)):
            found = [stop for i, stop in enumerate(self.stops) if self._matches(i, text[end])]
            if found:
                longest = max(found, key=len)
                self.reset()
                return text[: end + 1 - len(longest)], longest
        cut = len(text) - max(self._depths, default=0)
        self.held = text[cut:]
        return text[:cut], None

    def reset(self) -> str:
        """Give up what is held, and start anew: what comes next does not join it."""
        held, self.held = self.held, ""
        self._depths = [0] * len(self.stops)
        return held

    def fork(self) -> StopStrings:
        """Another one that has read the same so far."""
        other = copy.copy(self)
        other._depths = list(self._depths)
        return other

    def _matches(self, i: int, char: str) -> bool:
        stop, fallback, depth = self.stops[i], self._fallbacks[i], self._depths[i]
        while depth and stop[depth] != char:
            depth = fallback[depth - 1]
        self._depths[i] = depth + (stop[depth] == char)
        return self._depths[i] == len(stop)


@lru_cache(maxsize=4096)
def _fallback(stop: str) -> tuple[int, ...]:
    """For each beginning of `stop`: the length of its longest proper end that begins `stop`."""
    found, depth = [0], 0
    for char in stop[1:]:
        while depth and stop[depth] != char:
            depth = found[depth - 1]
        depth += stop[depth] == char
        found.append(depth)
    return tuple(found)
