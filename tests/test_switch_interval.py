"""The switch interval: shared by all engines, and put back to the microsecond."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

from g2c_serving.switch_interval import SwitchInterval


@pytest.fixture(autouse=True)
def usual():
    """Python's own default, whatever a test before has set."""
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(0.005)


def microseconds() -> int:
    return round(1e6 * sys.getswitchinterval())


def test_it_is_set_from_the_first_that_holds_to_the_last_that_drops():
    first, second = SwitchInterval(), SwitchInterval()
    first.hold()
    assert microseconds() == 5
    second.hold()
    first.drop()
    assert microseconds() == 5
    second.drop()
    assert sys.getswitchinterval() == 0.005


@pytest.mark.parametrize("former", [15, 50, 55, 4_999, 100_000])
def test_what_was_set_is_put_back_to_the_microsecond(former):
    """Python cuts to whole microseconds, and 50 read and set again is 49."""
    sys.setswitchinterval(1e-6 * (former + 0.5))
    assert microseconds() == former
    one = SwitchInterval()
    for _ in range(3):
        one.hold()
        assert microseconds() == 5
        one.drop()
        assert microseconds() == former


def test_a_shorter_one_stays():
    sys.setswitchinterval(2.5e-6)
    one = SwitchInterval()
    one.hold()
    assert microseconds() == 2
    one.drop()
    assert microseconds() == 2


def test_holding_twice_is_holding_once():
    one = SwitchInterval()
    one.hold()
    one.hold()
    one.drop()
    assert microseconds() == 5_000
    one.drop()
    assert microseconds() == 5_000


def test_one_that_is_collected_drops():
    one = SwitchInterval()
    one.hold()
    del one
    gc.collect()
    assert microseconds() == 5_000


def test_what_somebody_else_set_meanwhile_stays():
    one = SwitchInterval()
    one.hold()
    sys.setswitchinterval(0.001)
    one.drop()
    assert microseconds() == 1_000


def test_one_that_another_thread_drops_meanwhile_is_dropped_once():
    """The other thread has the lock while this one waits for it, having seen that it is held."""
    one, began = SwitchInterval(), threading.Event()
    one.hold()
    raised: list[BaseException] = []

    class Seen(set):
        def __contains__(self, item):
            found = super().__contains__(item)
            began.set()
            return found

    def late():
        try:
            one.drop()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=late)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SwitchInterval, "_holders", Seen(SwitchInterval._holders))
        with SwitchInterval._lock:
            thread.start()
            assert began.wait(10)
            one.drop()
            sys.setswitchinterval(5.5e-6)  # somebody's own, by chance the same as ours
        thread.join(10)
    assert not raised and not thread.is_alive()
    assert microseconds() == 5


def test_many_threads_may_hold_and_drop_the_same_one():
    one, raised = SwitchInterval(), []

    def hammer():
        try:
            for _ in range(3000):
                one.hold()
                one.drop()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=hammer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not raised and microseconds() == 5_000
