"""The end of searches and the progress: a single object, asked by and reported to by every search.

A caller with limited time searches inside a monitor, and then reads whether the limit changed the result::

    with SearchMonitor(seconds=5.0) as monitor:
        plan = plan_graph(graph)
    monitor.limited  # whether a search ended early: the plan is valid, but more time may find a better one

A search gets the caller's monitor from `monitor()`. A search with a result to return asks `over()` now and then. A
search without a result calls `check()`, which raises `SearchStopped`; a caller with something better returns that.
Monitors nest: a search ends as soon as any monitor around it demands so. Without a monitor nothing ends early, and
results do not depend on the machine. Like `decimal.localcontext`, the monitor belongs to the thread (`contextvars`), so
no function in between has to pass it on.
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
    """A search has to end and has nothing to return; the catcher returns the best result known without that search.

    If nothing is known, the user gets this error.
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
    """A time limit for all searches in the `with` block, an interrupt flag, and a receiver of progress."""

    def __init__(self, seconds: float | None = None, show: Show | None = None, clock: Clock | None = None) -> None:
        """Set the limit, the receiver and the clock.

        Parameters
        ----------
        seconds : float, optional
            Limit on the time from entering the block on; None: no limit of its own.
        show : Callable, optional
            Is called with every `Progress`; None: as the surrounding monitor.
        clock : Callable, optional
            The present time in seconds; None: the surrounding monitor's clock, else `time.monotonic`.
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
        """Return True if searches have to end now, and set `limited`: ask only if ending would cost something."""
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
        """Return the seconds until `over`, at least 0; infinite without a limit."""
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
        """Hide every outer limit from the searches in the block, for the minimum a caller has to return."""
        shielded = SearchMonitor()
        with shielded:
            shielded._outer = None
            yield


_innermost: ContextVar[SearchMonitor] = ContextVar("_innermost", default=SearchMonitor())  # noqa: B039


def monitor() -> SearchMonitor:
    """Return the innermost monitor around the caller; without any, a monitor that never ends a search and shows
    nothing.
    """
    return _innermost.get()


def above(best: float, bound: float) -> float:
    """Return the per cent by which a result exceeds its bound; 0 if the bound is 0."""
    return (best / bound - 1) * 100 if bound else 0.0


def above_text(best: float, bound: float) -> str:
    """Say how far a result exceeds its bound: in per cent, or as a factor from ten on."""
    gap = above(best, bound)
    if gap >= 900:
        return f"{best / bound:.0f} times as large"
    return f"{'less than 0.1' if 0 < gap < 0.05 else f'{gap:.1f}'} % above it"


def counted(phase: str, items: Collection[Result]) -> Iterator[Result]:
    """Yield the items, and report to the monitor how many are done."""
    for done, item in enumerate(items):
        monitor().report(phase, done, len(items), unit="")
        yield item
    monitor().report(phase, len(items), len(items), unit="")


def until_stopped(found: Iterable[Result]) -> Iterator[Result]:
    """Yield the items in `found` until `SearchStopped` is raised."""
    with suppress(SearchStopped):
        yield from found


class _CutShort(Exception):
    """Carries a result past `lru_cache`, which keeps no result when an exception is raised."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


def cached(maxsize: int) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Memoize a search like `functools.lru_cache`, but forget results cut short by a limit."""

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
