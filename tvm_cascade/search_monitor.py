"""What ends a search early and what a search tells meanwhile: one object, which every search asks and reports to.

A caller that has only so much time searches inside of a monitor, and reads from it whether that changed the result::

    with SearchMonitor(seconds=5.0) as monitor:
        plan = plan_graph(graph)
    monitor.limited  # whether a search ended early: the plan is valid, but more time may find a better one

A search takes the monitor of its caller from `monitor()`. Where it has something to return it asks `over()` now and then;
where it has nothing yet it calls `check()`, which raises `SearchStopped`, and a caller with something better returns that.
Monitors nest: a search ends as soon as one of the monitors around it says so. Without any, nothing ends early, and results
do not depend on the machine. Like `decimal.localcontext`, the monitor belongs to the thread (`contextvars`), so that no
function in between has to pass it on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, wraps
from math import inf
from time import monotonic
from typing import Any, ParamSpec, TypeVar

from tvm_cascade.errors import CascadeError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Clock = Callable[[], float]  # seconds


class SearchStopped(CascadeError):
    """A search has to end and has nothing to return; whoever catches it returns what is known without that search.

    Where nothing is known, it is the error that the user gets.
    """

    kind = "stopped"
    exit_status = 1

    def __init__(self, message: str = "the search was ended before it had found anything: give it more time") -> None:
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is."""

    phase: str  # what is searched, or made: "arena", "order", "kernels"
    done: int  # in whatever the phase counts: nodes, graphs, operators
    total: int | None = None  # None: nobody knows
    best: float | None = None  # value of the best result so far
    bound: float | None = None  # no result has a smaller value
    unit: str = "B"  # of both values


Show = Callable[[Progress], None]


class SearchMonitor:
    """A limit on the time of all searches inside of its `with` block, an interrupt flag, and a receiver of progress."""

    def __init__(self, seconds: float | None = None, show: Show | None = None, clock: Clock | None = None) -> None:
        """Parameters
        ----------
        seconds : float, optional
            Limit on the time from entering the block on; None: no limit of its own.
        show : Callable, optional
            Is called with every `Progress`; None: that of the monitor around this one.
        clock : Callable, optional
            The present time in seconds; None: that of the monitor around this one, at last `time.monotonic`.
        """
        self.limited = False  # whether a search in the block ended early
        self._seconds, self._show, self._clock = inf if seconds is None else seconds, show, clock
        self._deadline, self._interrupted = inf, False
        self._outer: SearchMonitor | None = None

    def __enter__(self) -> SearchMonitor:
        self._outer = outer = monitor()
        self._show, self._clock = self._show or outer._show, self._clock or outer._clock
        if self._seconds < inf:
            self._deadline = self._now() + self._seconds
        self._token = _innermost.set(self)
        return self

    def __exit__(self, *_error: object) -> None:
        _innermost.reset(self._token)
        if self.limited and self._outer is not None:
            self._outer.limited = True

    def _now(self) -> float:
        return (self._clock or monotonic)()

    def interrupt(self) -> None:
        """End the searches in the block, as if the time were over. May be called by another thread or a signal handler."""
        self._interrupted = True

    def over(self) -> bool:
        """Whether searches have to end now; `limited` is set then, so a search asks only where ending costs it something."""
        at: SearchMonitor | None = self
        while at is not None and not (at._interrupted or (at._deadline < inf and at._now() >= at._deadline)):
            at = at._outer
        if at is None:
            return False
        ended: SearchMonitor | None = self
        while ended is not None:  # up to the one that says so
            ended.limited = True
            ended = None if ended is at else ended._outer
        return True

    def left(self) -> float:
        """Seconds until `over`, at least 0; infinite without a limit."""
        own = inf if self._deadline == inf else max(0.0, self._deadline - self._now())
        return min(0.0 if self._interrupted else own, inf if self._outer is None else self._outer.left())

    def check(self) -> None:
        """Raise `SearchStopped` if searches have to end now."""
        if self.over():
            raise SearchStopped

    def report(
        self,
        phase: str,
        done: int,
        total: int | None = None,
        best: float | None = None,
        bound: float | None = None,
        unit: str = "B",
    ) -> None:
        """Tell how far a search is; the parameters are the fields of `Progress`."""
        if self._show is not None:
            self._show(Progress(phase, done, total, best, bound, unit))

    @contextmanager
    def shield(self) -> Iterator[None]:
        """A block whose searches no limit around it ends: for the least that a caller has to return."""
        shielded = SearchMonitor()
        with shielded:
            shielded._outer = None
            yield


_innermost: ContextVar[SearchMonitor] = ContextVar("_innermost", default=SearchMonitor())  # noqa: B039


def monitor() -> SearchMonitor:
    """The innermost monitor around the caller; without any, one that never ends a search and shows nothing."""
    return _innermost.get()


def above(best: float, bound: float) -> float:
    """Per cent by which what was found lies above its bound; 0 where the bound is 0."""
    return (best / bound - 1) * 100 if bound else 0.0


def counted(phase: str, items: Collection[Result]) -> Iterator[Result]:
    """The items one by one; the monitor is told how many of them are done."""
    for done, item in enumerate(items):
        monitor().report(phase, done, len(items), unit="")
        yield item
    monitor().report(phase, len(items), len(items), unit="")


def until_stopped(found: Iterable[Result]) -> Iterator[Result]:
    """What `found` yields, up to where it raises `SearchStopped`."""
    with suppress(SearchStopped):
        yield from found


class _CutShort(Exception):
    """Carries a result past `lru_cache`, which does not keep it."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


def cached(maxsize: int) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """`functools.lru_cache` for searches: does not keep results that a limit cut short."""

    def decorate(search: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        def complete(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            with SearchMonitor() as own:
                result = search(*args, **kwargs)
            if own.limited:
                raise _CutShort(result)
            return result

        kept: Any = lru_cache(maxsize=maxsize)(complete)

        @wraps(search)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            try:
                return kept(*args, **kwargs)
            except _CutShort as cut:
                return cut.result

        call.cache_clear, call.cache_info = kept.cache_clear, kept.cache_info  # type: ignore[attr-defined]
        return call

    return decorate
