"""A guard around the launches: whoever makes the host wait for the device is told where.

    with forbid_sync("forward"):
        logits = model.forward(batch, cache)

Inside, `.item()`, `.cpu()`, `if tensor:`, `print(tensor)` and their like (`sync_rules.py`) raise
`ForbiddenSync` with the file, the line and its text, instead of waiting in silence until the device
has caught up. DeepInfer's guard is `forbid_cuda_sync`, around its forward and sampling launches
(Brief, section 6).

It is a `TorchFunctionMode`, which sees the calls of the thread that entered it, and of no other. On
a CPU nothing ever waits, so there it says what would wait on an accelerator. On cuda it also sets
torch's own sync debug mode, which is one for all threads, and restores it; that part is untested
here. Outside it costs nothing. Inside, torch asks it before each call, 1 to 3 microseconds that add
up to a tenth of a step of 64 rows: an engine that is to be fast keeps its guard and gives `every`.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch.overrides import TorchFunctionMode

from g2c_serving.checks import as_int
from g2c_serving.paths import ROOT
from g2c_serving.sync_rules import MAKERS, RULES, Places

REMEDY = "Keep it on the device, or read it after the launch."
NOT_THE_CALLERS = {"torch", "numpy", *sys.stdlib_module_names}
CUDA_WORDS = "synchronizing CUDA operation"  # of the error that torch's debug mode raises


class Sync(NamedTuple):
    """What would wait, and the line that asks for it: file, number and text."""

    what: str
    file: str
    line: int
    text: str

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


class ForbiddenSync(RuntimeError):
    """`what` waits for the device within `phase`, at `where`, "file:line"."""

    def __init__(self, phase: str, sync: Sync) -> None:
        self.phase, self.sync, self.what, self.where = phase, sync, sync.what, sync.where
        text = f": `{sync.text}`" if sync.text else ""
        super().__init__(
            f"{phase}: {sync.what} waits for the device, at {sync.where}{text}. {REMEDY}"
        )


class forbid_sync(TorchFunctionMode):  # noqa: N801 (named as contextlib names its own)
    """A context in which waiting for the device is an error, a `ForbiddenSync`. May be entered
    again, also within itself, by one thread at a time.

    phase       what it is about, for the message
    device      the engine's. With cpu, all tensors stand for those of an accelerator
    every       look the first `every` times that it is entered, and one time in `every` from then
                on (on cuda torch's own mode looks every time)
    allowed     how many waits took place inside `allow_sync`, by the reason that it gives
    """

    def __init__(self, phase: str = "launch", device: str = "cpu", every: int = 1) -> None:
        super().__init__()
        self.phase, self.places, self.every = phase, Places(device), as_int("every", every, 1)
        self.allowed: Counter[str] = Counter()
        self.reasons: list[str] = []  # of the `allow_sync` that are open
        self._entries = 0
        self._looks: list[bool] = []  # of each time that it is entered now
        self._debug_modes: list[int] = []
        self._on_cuda = torch.device(device).type == "cuda"

    def __enter__(self) -> Self:
        if self._on_cuda:
            self._debug_modes.append(torch.cuda.get_sync_debug_mode())
            torch.cuda.set_sync_debug_mode("error")
        looks = self._entries < self.every or self._entries % self.every == 0
        self._entries += 1
        self._looks.append(looks)
        if looks:
            _thread.guards.append(self)
            BARRIERS.hold()
            super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._looks.pop():
            super().__exit__(kind, error, traceback)
            BARRIERS.drop()
            _thread.guards.pop()
        if not self._looks:
            self.places.host.clear()
        if self._on_cuda:
            torch.cuda.set_sync_debug_mode(self._debug_modes.pop())
        if isinstance(error, RuntimeError) and CUDA_WORDS in str(error):
            inside_out = reversed(list(walk_tb(traceback)))
            raise ForbiddenSync(self.phase, _at("a call", inside_out)) from error

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        rule = RULES.get(func)
        if rule is not None:
            what = rule(self.places, args, kwargs or {})
            if what is not None:
                self.note(what)
        result = func(*args, **kwargs) if kwargs else func(*args)
        if rule is not None and func in MAKERS:
            self.places.note_made(result, args, kwargs or {})
        return result

    def note(self, what: str) -> None:
        """A call is about to wait: refuse it, unless it is in an `allow_sync`."""
        if self.reasons:
            self.allowed[self.reasons[-1]] += 1
        else:
            self.found(find_line(what))

    def found(self, sync: Sync) -> None:
        raise ForbiddenSync(self.phase, sync)


@contextmanager
def allow_sync(reason: str) -> Iterator[None]:
    """Inside, the guards that are open in this thread let waits pass, and count them by reason. For
    a place that cannot do without: the mask of a draft needs the draft before it."""
    guards = list(_thread.guards)
    modes = [guard._debug_modes[-1] for guard in guards if guard._debug_modes]
    for guard in guards:
        guard.reasons.append(reason)
    if modes:
        torch.cuda.set_sync_debug_mode(modes[0])
    try:
        yield
    finally:
        if modes:
            torch.cuda.set_sync_debug_mode("error")
        for guard in guards:
            guard.reasons.pop()


class _Thread(threading.local):
    """`guards`: those that look in this thread, the outermost first."""

    def __init__(self) -> None:
        self.guards: list[forbid_sync] = []


_thread = _Thread()


class Barriers:
    """`synchronize` waits for all of the device's work, and no mode of torch sees it. While a guard
    looks it asks the guards of the thread that calls it. A thread may be killed on any line here:
    then it asks for longer than it need, but never less."""

    owners: tuple[Any, ...] = (torch.cuda, torch.mps, torch.cpu)

    def __init__(self) -> None:
        self._lock, self._holders = threading.Lock(), 0

    def hold(self) -> None:
        with self._lock:
            for owner in self.owners:
                if not isinstance(owner.synchronize, _Asking):
                    owner.synchronize = _Asking(owner.synchronize)
            self._holders += 1

    def drop(self) -> None:
        with self._lock:
            self._holders -= 1
            for owner in self.owners if not self._holders else ():
                if isinstance(owner.synchronize, _Asking):
                    owner.synchronize = owner.synchronize.call


@dataclass(frozen=True)
class _Asking:
    call: Callable

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for guard in reversed(_thread.guards):
            guard.note("synchronize()")
        return self.call(*args, **kwargs)


BARRIERS = Barriers()


# the line that did it


def find_line(what: str) -> Sync:
    """What waits, and the line of the innermost frame that is neither torch's, numpy's nor the
    standard library's."""
    return _at(what, walk_stack(sys._getframe(1)))


def _at(what: str, frames: Iterable[tuple[FrameType, int]]) -> Sync:
    """The first of `frames`, the innermost first, that is a caller's."""
    for frame, line in frames:
        name = frame.f_globals.get("__name__", "")
        ours = name == __name__ or isinstance(frame.f_locals.get("self"), forbid_sync)
        if not ours and name.partition(".")[0] not in NOT_THE_CALLERS:
            file = frame.f_code.co_filename
            return Sync(what, _short(file), line, linecache.getline(file, line).strip())
    return Sync(what, "an unknown file", 0, "")


def _short(file: str) -> str:
    if "ipykernel" in file or file.startswith("<ipython"):
        return "cell"
    path = Path(file)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
