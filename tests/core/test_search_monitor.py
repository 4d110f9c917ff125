"""The monitor of searches: limits on time, interrupts, nesting, and a cache that forgets what a limit cut short."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from tvm_cascade.search_monitor import Progress, SearchMonitor, SearchStopped, cached, counted, monitor, until_stopped


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_a_monitor_nothing_ends() -> None:
    assert not monitor().over()
    assert monitor().left() == float("inf")
    monitor().check()
    monitor().report("arena", 1)


def test_the_time_counts_from_entering() -> None:
    clock = Clock()
    made = SearchMonitor(3.0, clock=clock)
    clock.now += 50.0
    with made as own:
        clock.now += 2.9
        assert not own.over() and own.left() == pytest.approx(0.1)
        clock.now += 0.1
        assert own.left() == 0.0
        assert not own.limited  # nobody has asked yet: nothing was cut short
        assert own.over() and own.limited
        with pytest.raises(SearchStopped):
            own.check()
    assert monitor() is not own


def test_the_outer_limit_ends_inner_searches_and_the_inner_one_marks_the_outer() -> None:
    clock = Clock()
    with SearchMonitor(5.0, clock=clock) as outer:
        with SearchMonitor(1.0) as inner:
            clock.now += 2.0
            assert monitor() is inner and inner.over() and not outer.over()
        assert outer.limited and not outer.over()
        clock.now += 4.0
        with SearchMonitor(60.0) as inner:
            assert inner.over() and inner.limited and inner.left() == 0.0


def test_a_shield_keeps_the_outer_limit_off() -> None:
    with SearchMonitor() as outer:
        outer.interrupt()
        with monitor().shield():
            assert not monitor().over() and monitor().left() == float("inf")
        assert not outer.limited
        assert outer.over()


def test_another_thread_may_interrupt() -> None:
    with SearchMonitor() as own, SearchMonitor(60.0):
        thread = threading.Thread(target=own.interrupt)
        thread.start()
        thread.join()
        assert monitor().over()
        assert monitor().left() == 0.0


def test_progress_goes_to_the_nearest_receiver() -> None:
    shown: list[Progress] = []
    with SearchMonitor(show=shown.append), SearchMonitor(1.0):
        monitor().report("arena", 3, 10, best=64, bound=32)
        with monitor().shield():
            monitor().report("order", 1)
    assert shown == [Progress("arena", 3, 10, 64, 32), Progress("order", 1)]


def test_items_are_counted_as_they_are_taken() -> None:
    shown: list[Progress] = []
    with SearchMonitor(show=shown.append):
        assert [(item, len(shown)) for item in counted("kernels", "ab")] == [("a", 1), ("b", 2)]
    assert shown == [Progress("kernels", done, 2, unit="") for done in range(3)]


def test_what_was_found_before_a_stop_is_kept() -> None:
    def search():
        yield 1
        yield 2
        raise SearchStopped

    assert list(until_stopped(search())) == [1, 2]
    with pytest.raises(ValueError):
        list(until_stopped(int(text) for text in "x"))


def test_a_cache_forgets_what_a_limit_cut_short() -> None:
    runs = count()

    @cached(maxsize=4)
    def search(wanted: int) -> tuple[int, bool]:
        return next(runs), monitor().over()

    with SearchMonitor() as own:
        own.interrupt()
        assert search(7) == (0, True)
        assert own.limited
    assert search(7) == (1, False)
    assert search(7) == (1, False)
    assert search(8) == (2, False)
    with SearchMonitor() as own:
        own.interrupt()
        assert search(7) == (1, False)  # known, and not cut short
        assert not own.limited
