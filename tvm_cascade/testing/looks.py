"""Searches under a limit on time that strikes after a number of looks at the clock, so that tests depend on no machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import TypeVar

from tvm_cascade.search_monitor import SearchMonitor

Result = TypeVar("Result")


def after_looks(looks: int, search: Callable[[], Result]) -> tuple[Result, bool]:
    """The result of a search that has to end at look number `looks` at the clock, and whether that cut it short."""
    ticks = count()
    with SearchMonitor(looks, clock=lambda: float(next(ticks))) as own:
        result = search()
    return result, own.limited


def with_more_and_more_time(search: Callable[[], Result]) -> Iterator[Result]:
    """The results of a search that has to end after 1, 2, 3, ... looks, up to the first that was not cut short."""
    looks, limited = 1, True
    while limited:
        result, limited = after_looks(looks, search)
        yield result
        looks += 1 + looks // 8
        assert looks < 1 << 24, "the search has a limit of its own, which strikes whatever the time"
