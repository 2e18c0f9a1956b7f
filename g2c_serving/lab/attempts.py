"""A learner's function, called within bounds: a loop that never ends is ended, `sys.exit()` is no
exit, and a list that never ends is read only as far as it can be right. See museum_limits.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, TypeVar

from g2c_serving.lab.answers import Unreadable
from g2c_serving.lab.museum_limits import LimitReached, limited

Result = TypeVar("Result")
LIMIT_S, LIMIT_MB = 10.0, 4000.0  # of one call
SPARE = 1000  # entries of a list that are read beyond those that are right


def within(call: Callable[[], Result]) -> Result:
    """What `call()` returns. LimitReached where it takes too long or too much memory."""
    return limited(call, LIMIT_S, LIMIT_MB)


def made(call: Callable[[], Result], what: str = "The function") -> Result:
    """As `within`; Unreadable, with the reason, where it does not end or raises something."""
    try:
        return within(call)
    except Unreadable:
        raise
    except LimitReached as reason:
        raise Unreadable(f"{what} does not end: {reason}.") from None
    except (Exception, SystemExit) as error:  # the learner's own code: say what it raised
        raise Unreadable(f"{what} raises {type(error).__name__}: {error}.") from None


def is_list(value: Any) -> bool:
    """Can its entries be read one by one? A text is none, nor an array without dimensions."""
    if isinstance(value, str | bytes | bytearray) or getattr(value, "ndim", None) == 0:
        return False
    return hasattr(value, "__iter__")


def first(values: Iterable, count: int) -> list:
    """The first `count` entries: a generator or a range may have more than memory holds."""
    return list(islice(values, count))


def entries(answer: Any, right: int) -> list:
    """The entries of a list of which `right` are expected, and at most SPARE more.

    Raises Unreadable where reading them raises something, or does not end.
    """
    if isinstance(answer, list | tuple):
        return list(answer[: right + SPARE])
    return made(lambda: first(answer, right + SPARE), "Your list")
