"""Puts another part into the engine for the time of one run, and takes it out again.

A part is a class or a function, named by where it is looked up: `g2c_serving.loop.BlockManager` is
the class that a new engine takes, `...block_manager.BlockManager.allocate` one of its methods.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from g2c_serving.lab.museum_limits import LimitReached, limited
from g2c_serving.paths import ROOT

MEGABYTES = 512.0  # that a run may take
PACKAGE = str(ROOT / "g2c_serving")
ABSENT = object()


@dataclass(frozen=True)
class Seen:
    """What a run showed: label -> value; or, where it did not come to its end, why not."""

    values: dict[str, Any]
    problem: str = ""


def look(
    scene: Callable[[], dict[str, Any]], seconds: float, place: str = "", part: Any = None
) -> Seen:
    """Run the scene, with `part` in its place if there is one. Whatever the part does, this
    returns, and the engine is as it was."""
    former = logging.root.manager.disable
    with placed(place, part) if place else nullcontext():
        try:
            logging.disable(logging.CRITICAL)  # what goes wrong is on the page already
            return Seen(limited(scene, seconds, MEGABYTES))
        except LimitReached as limit:
            return Seen({}, f"{limit}, and was stopped")
        except (Exception, SystemExit) as error:
            said = f"{type(error).__name__}: {error}".rstrip(": .")
            return Seen({}, f"it raised {said}{_where(error, part)}")
        finally:
            logging.disable(former)


@contextmanager
def placed(place: str, part: Any) -> Iterator[None]:
    """Within the block the engine has `part` where `place` says."""
    owner, name = _owner(place)
    former = vars(owner).get(name, ABSENT)
    setattr(owner, name, _like(inspect.getattr_static(owner, name), part))
    try:
        yield
    finally:
        if former is ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, former)


def real_part(place: str) -> Any:
    """What stands there now."""
    owner, name = _owner(place)
    return inspect.getattr_static(owner, name)


def _owner(place: str) -> tuple[Any, str]:
    """The module or class that has the part, and its name there. ValueError for no such place."""
    *path, name = place.split(".")
    for end in range(len(path), 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(path[:end]))
        except ModuleNotFoundError:
            continue
        for step in path[end:]:
            owner = getattr(owner, step)
        if hasattr(owner, name):
            return owner, name
        break
    raise ValueError(f"place={place!r} is no part of the engine: package.module.Class.method")


def _like(former: Any, part: Any) -> Any:
    """A plain function becomes what the other was: a property, a static or a class method."""
    for kind in (property, staticmethod, classmethod):
        if isinstance(former, kind) and not isinstance(part, kind):
            return kind(part)
    return part


def _where(error: BaseException, part: Any) -> str:
    """The last line of the learner's own code on the way to the error."""
    code = {f.__code__.co_filename for f in (part, *_members(part)) if inspect.isfunction(f)}
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename in code and not f.filename.startswith(PACKAGE)]
    return f" (line {own[-1].lineno} of the cell, in {own[-1].name})" if own else ""


def _members(part: Any) -> list[Any]:
    """The functions that a class defines itself."""
    return list(vars(part).values()) if inspect.isclass(part) else []
