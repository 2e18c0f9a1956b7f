"""A process and all that it starts, ended together; Windows' half against a stand-in library.

Right values: what Microsoft's documentation says of the calls, and of the structure's size.
"""

from __future__ import annotations

import ctypes
import os
import queue
import subprocess
import sys
import time

import pytest

from g2c_serving.lab import process_group
from g2c_serving.lab.child_process import ChildProcess
from g2c_serving.lab.process_group import Job, Limits, ProcessGroup, options

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
POSIX = pytest.mark.skipif(os.name != "posix", reason="process groups of POSIX")


class Library:
    """Windows' functions: each call is noted, and says what `says` has for it."""

    def __init__(self, **says: int) -> None:
        self.says, self.calls = {"CreateJobObjectW": 77} | says, []

    def __getattr__(self, name):
        def call(*args):
            self.calls.append((name, args))
            return self.says.get(name, 1)

        return call

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


class Process:
    pid, _handle, killed = 5, 123, 0

    def kill(self) -> None:
        self.killed += 1


def test_a_job_holds_the_process_and_ends_once():
    library = Library()
    job = Job.of(Process(), library)
    assert library.names == [
        "CreateJobObjectW", "SetInformationJobObject", "AssignProcessToJobObject",
    ]  # fmt: skip
    handle, kind, limits, size = library.calls[1][1]
    assert (handle, kind) == (77, 9) and limits._obj.flags == 0x2000
    assert size == ctypes.sizeof(Limits)
    assert library.calls[2][1] == (77, 123)
    job.end()
    job.end()
    assert library.calls[3:] == [("TerminateJobObject", (77, 1)), ("CloseHandle", (77,))]


@pytest.mark.skipif(ctypes.sizeof(ctypes.c_void_p) != 8, reason="the sizes are those of 64 bits")
def test_the_structure_has_windows_size_and_places():
    assert ctypes.sizeof(Limits) == 144
    assert (Limits.flags.offset, Limits.counters.offset, Limits.sizes.offset) == (16, 64, 112)


@pytest.mark.parametrize("name", ["SetInformationJobObject", "AssignProcessToJobObject"])
def test_a_job_that_windows_refuses_is_given_back(name):
    library = Library(**{name: 0})
    assert Job.of(Process(), library) is None
    assert library.names[-1] == "CloseHandle"


def test_no_job_at_all():
    library = Library(CreateJobObjectW=0)
    assert Job.of(Process(), library) is None
    assert library.names == ["CreateJobObjectW"]


@pytest.mark.parametrize("works", [True, False])
def test_where_there_are_no_groups_a_job_is_used(works, monkeypatch):
    """And the process itself is ended in any case."""
    library, process = Library(AssignProcessToJobObject=int(works)), Process()
    monkeypatch.setattr(process_group.os, "name", "nt")
    monkeypatch.setattr(process_group, "_kernel32", lambda: library)
    assert options() == {"creationflags": 0x200}
    group = ProcessGroup(process)
    group.kill()
    assert process.killed == 1
    assert library.names.count("TerminateJobObject") == 1 and library.names[-1] == "CloseHandle"


@POSIX
@pytest.mark.parametrize("leader", ["time.sleep(600)", "pass"], ids=["runs", "is gone"])
def test_those_that_a_process_has_started_end_with_it(leader, tmp_path):
    """Also where it is gone before them, and those that would not be asked politely."""
    printed = (tmp_path / "printed").open("w+")
    child_program = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(600)"
    )
    program = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child_program!r}])\n" + leader
    )
    process = ChildProcess([sys.executable, "-c", program], printed)
    child = int(process.hear(60))  # over the output of both
    if leader == "pass":
        process._process.wait(60)
    assert runs(child)
    process.close(gently=False)
    printed.close()
    end = time.perf_counter() + 10
    while runs(child) and time.perf_counter() < end:
        time.sleep(0.02)
    assert not runs(child)


def test_an_interrupt_while_it_is_waited_for_ends_it(tmp_path):
    class Interrupted(queue.SimpleQueue):  # the thread that reads goes on putting
        def get(self, timeout):
            raise KeyboardInterrupt

    with (tmp_path / "printed").open("w+") as printed:
        process = ChildProcess([sys.executable, "-c", "import time; time.sleep(600)"], printed)
        lines, process._lines = process._lines, Interrupted()
        with pytest.raises(KeyboardInterrupt):
            process.hear(600)
        process._lines = lines
        assert process.is_over
        process.close()


@POSIX
def test_the_terminals_interrupt_is_not_its_own(tmp_path):
    """It has a session of its own: a Ctrl+C reaches us alone, and we end it."""
    with (tmp_path / "printed").open("w+") as printed:
        program = "import os; print(os.getsid(0), os.getpgid(0), flush=True)"
        process = ChildProcess([sys.executable, "-c", program], printed)
        session, group = map(int, process.hear(60).split())
        pid = process._process.pid
        process.close()
    assert session == group == pid != os.getsid(0)


def runs(pid: int) -> bool:
    """A process that is over but that nobody has asked about does not run."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(found.stdout.strip()) and not found.stdout.strip().startswith("Z")
