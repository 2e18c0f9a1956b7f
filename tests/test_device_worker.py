"""The device's thread: in order, killed at any time, and nothing waits for ever."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import CancelledError, Future
from queue import SimpleQueue

import pytest
import torch

from g2c_serving.device_worker import DeviceWorker, WorkerDied, receive, wait

SOON = 10.0  # seconds in which anything must have happened; nothing here takes long


@pytest.fixture
def worker():
    one = DeviceWorker()
    yield one
    one.kill()
    assert one.join(SOON)


class Gate:
    """A job that runs Python until it is let through: `entered` is set when it has begun."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        while not self.opened.is_set():
            time.sleep(1e-3)
        return "through"


def error_of(future: Future) -> BaseException | None:
    return future.exception(SOON)


def test_jobs_run_in_order_in_one_other_thread(worker):
    done: list[tuple[int, int]] = []
    futures = [
        worker.submit(lambda i=i: done.append((i, threading.get_ident()))) for i in range(100)
    ]
    for future in futures:
        wait(future)
    assert [i for i, _ in done] == list(range(100))
    (thread,) = {thread for _, thread in done}
    assert thread != threading.get_ident()


def test_arguments_and_results_pass(worker):
    assert wait(worker.submit(divmod, 17, 5)) == (3, 2)


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError("of the job"), MemoryError()])
def test_an_exception_goes_to_its_future_only(worker, error):
    def fail():
        raise error

    failed, after = worker.submit(fail), worker.submit(int, "7")
    with pytest.raises(type(error)) as caught:
        wait(failed)
    assert caught.value is error
    assert wait(after) == 7 and worker.is_alive


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_what_is_no_exception_kills_the_worker(worker, error):
    gate = Gate()

    def fail():
        gate()
        raise error

    futures = [worker.submit(fail), worker.submit(int)]
    gate.opened.set()
    for future in futures:
        assert isinstance(error_of(future), WorkerDied)
        assert type(error).__name__ in str(error_of(future))
    assert error_of(futures[0]).__cause__ is error
    assert worker.join(SOON) and not worker.is_alive
    with pytest.raises(WorkerDied, match="takes no more jobs"):
        worker.submit(int)


def test_killed_while_idle(worker):
    wait(worker.submit(int))
    worker.kill()
    assert not worker.is_alive and worker.join(SOON)
    with pytest.raises(WorkerDied):
        worker.submit(int)


def test_killed_while_a_job_runs(worker):
    gate = Gate()
    running, queued = worker.submit(gate), [worker.submit(int) for _ in range(3)]
    assert gate.entered.wait(SOON)
    worker.kill()
    for future in (running, *queued):
        assert future.done()  # at once: nobody waits for the thread to notice
        assert isinstance(error_of(future), WorkerDied)
    assert worker.join(SOON)  # though the gate was never opened


def test_what_a_killed_job_was_inside_ends_first(worker):
    """A library's call cannot be cut; `join` waits for it, since it may write until then."""
    entered, ended = threading.Event(), []

    def sleep():
        entered.set()
        time.sleep(0.3)
        ended.append("slept")
        for _ in range(1000):
            pass
        ended.append("went on")

    future = worker.submit(sleep)
    assert entered.wait(SOON)
    worker.kill()
    assert future.done() and not ended
    assert not worker.join(0.01)
    assert worker.join(SOON) and "went on" not in ended


def test_killed_between_the_queue_and_the_start(worker, monkeypatch, caplog):
    """The thread has taken the job out of the queue, and has not begun it."""
    taken, goes_on, ran = threading.Event(), threading.Event(), []
    do = worker._work.do

    def late(*job):
        taken.set()
        goes_on.wait(SOON)
        do(*job)

    monkeypatch.setattr(worker._work, "do", late)
    future = worker.submit(ran.append, 1)
    assert taken.wait(SOON)
    worker.kill()
    goes_on.set()
    assert isinstance(error_of(future), WorkerDied)
    assert worker.join(SOON) and not ran
    assert not caplog.records  # a future that is started when it is done complains in the log


def test_killed_by_its_own_job(worker):
    future, queued = worker.submit(worker.kill), worker.submit(int)
    assert isinstance(error_of(future), WorkerDied) and isinstance(error_of(queued), WorkerDied)
    assert worker.join(SOON)


def test_a_job_that_swallows_the_kill_still_ends_the_worker(worker):
    entered, caught = threading.Event(), []

    def stubborn():
        try:
            entered.set()
            while True:
                time.sleep(1e-3)
        except BaseException as error:
            caught.append(type(error).__name__)
        return "as if nothing had been"

    future = worker.submit(stubborn)
    assert entered.wait(SOON)
    worker.kill()
    assert worker.join(SOON) and caught
    assert isinstance(error_of(future), WorkerDied)


@pytest.mark.parametrize("delay", [0, 1e-5, 5e-5, 1e-4, 5e-4])
def test_killed_at_any_moment_no_future_is_left(delay):
    """Jobs so short that a kill meets the thread at every line of its loop."""
    for _ in range(40):
        worker = DeviceWorker()
        futures = [worker.submit(int, 3) for _ in range(30)]
        time.sleep(delay)
        worker.kill()
        assert worker.join(SOON)
        for future in futures:
            error = error_of(future)
            assert isinstance(error, WorkerDied) or future.result() == 3


def test_killed_from_two_threads_at_once():
    for _ in range(20):
        worker = DeviceWorker()
        future = worker.submit(Gate())
        killers = [threading.Thread(target=worker.kill) for _ in range(2)]
        for killer in killers:
            killer.start()
        for killer in killers:
            killer.join()
        assert isinstance(error_of(future), WorkerDied) and worker.join(SOON)


def test_a_kill_makes_no_noise(caplog, capfd):
    with caplog.at_level(logging.DEBUG):
        for _ in range(20):
            worker, gate = DeviceWorker(), Gate()
            worker.submit(gate)
            gate.entered.wait(SOON)
            worker.kill()
            assert worker.join(SOON)
    assert not caplog.records and capfd.readouterr() == ("", "")


def test_a_cancelled_job_is_left_out(worker):
    gate, ran = Gate(), []
    worker.submit(gate)
    gate.entered.wait(SOON)
    cancelled, last = worker.submit(ran.append, 1), worker.submit(int)
    assert cancelled.cancel()
    gate.opened.set()
    assert wait(last) == 0 and not ran
    with pytest.raises(CancelledError):
        wait(cancelled)


def test_cancelled_and_then_killed(worker):
    gate = Gate()
    worker.submit(gate)
    cancelled, last = worker.submit(int), worker.submit(int)
    cancelled.cancel()
    worker.kill()
    assert cancelled.cancelled() and isinstance(error_of(last), WorkerDied)


def test_close_does_what_is_queued():
    worker, done = DeviceWorker(), []
    futures = [worker.submit(done.append, i) for i in range(50)]
    worker.close()
    assert done == list(range(50)) and all(future.done() for future in futures)
    assert not worker.is_alive and not worker._thread.is_alive()
    with pytest.raises(WorkerDied, match="closed"):
        worker.submit(int)
    worker.close()
    worker.kill()
    worker.close()


def test_a_closing_worker_can_be_killed():
    worker, gate = DeviceWorker(), Gate()
    futures = [worker.submit(gate), worker.submit(int)]
    closing = threading.Thread(target=worker.close)
    closing.start()
    gate.entered.wait(SOON)
    worker.kill()
    closing.join(SOON)
    assert not closing.is_alive()
    assert all(isinstance(error_of(future), WorkerDied) for future in futures)


def test_closed_by_its_own_job_it_does_not_wait_for_itself(worker):
    assert wait(worker.submit(worker.close)) is None
    assert worker.join(SOON)


# torch's threads


@pytest.fixture
def threads():
    former = torch.get_num_threads()
    yield
    torch.set_num_threads(former)


def test_it_computes_with_as_many_threads_as_its_maker_had(threads):
    torch.set_num_threads(3)
    worker = DeviceWorker()
    torch.set_num_threads(1)  # torch alone would take this one: it was set last
    assert wait(worker.submit(torch.get_num_threads)) == 3
    worker.close()
    assert torch.get_num_threads() == 1


def test_not_with_as_many_as_another_thread_has_set_last(threads):
    torch.set_num_threads(2)
    other = threading.Thread(target=torch.set_num_threads, args=(4,))
    other.start()
    other.join()
    assert torch.get_num_threads() == 2
    worker = DeviceWorker()
    assert wait(worker.submit(torch.get_num_threads)) == 2
    worker.close()


# waiting


def press_ctrl_c(after: float) -> None:
    time.sleep(after)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill ends the process there")
def test_waiting_can_be_interrupted_and_taken_up_again(worker):
    gate = Gate()
    future = worker.submit(gate)
    threading.Thread(target=press_ctrl_c, args=(0.05,), daemon=True).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait(future)
    assert time.monotonic() - began < 2
    gate.opened.set()
    assert wait(future) == "through"


def test_waiting_never_blocks_for_longer_than_a_blink(worker, monkeypatch):
    """On Windows Ctrl+C is not seen while a thread waits for a lock."""
    asked: list[float | None] = []
    result = Future.result
    monkeypatch.setattr(
        Future,
        "result",
        lambda self, timeout=None: (asked.append(timeout), result(self, timeout))[1],
    )
    future = worker.submit(time.sleep, 0.25)
    wait(future)
    assert 3 <= len(asked) <= 20 and all(
        timeout is not None and timeout <= 0.1 for timeout in asked
    )


def test_a_job_that_waits_for_the_main_thread(worker):
    box: SimpleQueue = SimpleQueue()
    future = worker.submit(receive, box)
    time.sleep(0.15)  # longer than a blink
    box.put("a mask")
    assert wait(future) == "a mask"


def test_a_job_that_waits_in_vain_can_be_killed(worker):
    future = worker.submit(receive, SimpleQueue())
    worker.kill()
    assert isinstance(error_of(future), WorkerDied) and worker.join(1)


# what it keeps alive


class Owner:
    def __init__(self) -> None:
        self.worker = DeviceWorker()
        self.ran = 0

    def job(self, fails: bool = False) -> None:
        self.ran += 1
        if fails:
            raise ValueError("of a job")


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("fails", [False, True])
def test_an_idle_worker_keeps_neither_its_owner_nor_its_jobs(no_collector, fails):
    """Without the collector: no circle either, which would keep the pages until it runs."""
    owner = Owner()
    thread, gone = owner.worker._thread, weakref.ref(owner)
    future = owner.worker.submit(owner.job, fails)
    if fails:
        with pytest.raises(ValueError):
            wait(future)
    else:
        wait(future)
    del future, owner
    thread.join(SOON)  # it may be a few lines behind, and is told to end once the owner is gone
    assert not thread.is_alive() and gone() is None


def test_a_killed_worker_keeps_nothing(no_collector):
    owner, gate = Owner(), Gate()
    worker, gone = owner.worker, weakref.ref(owner)
    worker.submit(gate)
    future = worker.submit(owner.job)
    assert gate.entered.wait(SOON)
    worker.kill()
    assert isinstance(error_of(future), WorkerDied)
    del owner
    assert gone() is None
    assert worker.join(SOON)


def test_dropped_with_work_in_its_queue_it_does_that_first():
    worker, gate = DeviceWorker(), Gate()
    first, second = worker.submit(gate), worker.submit(int, "5")
    del worker
    gate.opened.set()
    assert first.result(SOON) == "through" and second.result(SOON) == 5


# the end of the process


def run_script(text: str) -> tuple[float, subprocess.CompletedProcess]:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False
    )
    return time.monotonic() - began, done


SCRIPT = """
import threading, torch
from g2c_serving.device_worker import DeviceWorker
worker = DeviceWorker()
begun = threading.Event()
def multiply():
    a = torch.ones(200, 200)
    while True:
        begun.set()
        a @ a
"""


@pytest.mark.parametrize(
    "how",
    [
        "worker.submit(multiply); begun.wait()",
        "worker.submit(multiply); begun.wait(); del worker; idle = DeviceWorker();"
        "DeviceWorker().kill(); DeviceWorker().close()",
    ],
    ids=["computing", "dropped, idle, killed, closed"],
)
def test_the_interpreter_ends_with_workers(how):
    seconds, done = run_script(SCRIPT + how + "\nprint('end')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
    assert seconds < 30
