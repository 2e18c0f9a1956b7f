"""A process and all that it starts, to be ended together.

On POSIX the process leads a session of its own, and its group is killed: those that it has started
too, also where it is gone already. On Windows it is put into a job, which is ended with all that is
in it, at the latest when this process ends. The Windows half is untried there: it is written after
the documentation of its library, and was run against a stand-in alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from contextlib import suppress
from ctypes import c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

NEW_GROUP = 0x200  # CREATE_NEW_PROCESS_GROUP: a Ctrl+C for us is none for it
KILL_ON_CLOSE, EXTENDED_LIMITS = 0x2000, 9


def options() -> dict[str, Any]:
    """What `subprocess.Popen` needs, so that the process can be ended with all of its own."""
    return {"start_new_session": True} if os.name == "posix" else {"creationflags": NEW_GROUP}


class ProcessGroup:
    """A process that was started with `options()`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._job = None if os.name == "posix" else Job.of(process)

    def kill(self) -> None:
        """End it and all that it has started, once."""
        if os.name == "posix":
            with suppress(OSError):  # nobody is left
                os.killpg(self._process.pid, signal.SIGKILL)
        elif self._job is not None:
            self._job.end()
        with suppress(OSError):
            self._process.kill()


class Limits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION: the basic limits, six counters, four sizes."""

    _fields_ = [
        ("process_time", c_int64),
        ("job_time", c_int64),
        ("flags", c_uint32),
        ("least_working_set", c_size_t),
        ("most_working_set", c_size_t),
        ("active_processes", c_uint32),
        ("affinity", c_size_t),
        ("priority", c_uint32),
        ("scheduling", c_uint32),
        ("counters", c_uint64 * 6),
        ("sizes", c_size_t * 4),
    ]


class Job:
    """A job of Windows: whatever a process in it starts is in it too."""

    def __init__(self, library: Any, handle: int) -> None:
        self._library, self._handle = library, handle

    @classmethod
    def of(cls, process: Any, library: Any = None) -> Job | None:
        """A new job with `process` in it; None where Windows refuses, and it is ended alone."""
        library = library or _kernel32()
        job = cls(library, library.CreateJobObjectW(None, None))
        limits = Limits(flags=KILL_ON_CLOSE)
        size = ctypes.sizeof(limits)
        args = job._handle, EXTENDED_LIMITS, ctypes.byref(limits), size
        if job._handle and library.SetInformationJobObject(*args):
            if library.AssignProcessToJobObject(job._handle, int(process._handle)):
                return job
        job.end()
        return None

    def end(self) -> None:
        """End all that is in it. Twice is fine."""
        handle, self._handle = self._handle, 0
        if handle:
            self._library.TerminateJobObject(handle, 1)
            self._library.CloseHandle(handle)


def _kernel32() -> Any:
    library = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    for name, result, args in (
        ("CreateJobObjectW", c_void_p, (c_void_p, c_void_p)),
        ("SetInformationJobObject", c_uint32, (c_void_p, c_uint32, c_void_p, c_uint32)),
        ("AssignProcessToJobObject", c_uint32, (c_void_p, c_void_p)),
        ("TerminateJobObject", c_uint32, (c_void_p, c_uint32)),
        ("CloseHandle", c_uint32, (c_void_p,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, args
    return library
