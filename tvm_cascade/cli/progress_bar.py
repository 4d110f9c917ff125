"""A progress line on the terminal: the present search and progress, the best value and bound, and the time.

tqdm draws the line: widely used, without dependencies, and imported only if standard error is a terminal. A thread
draws twice a second whatever the command is doing, so the time moves even in phases that report nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TextIO

from tvm_cascade.search_monitor import Progress, Show

EVERY = 0.5  # seconds from one drawing to the next
QUICK = 1.0  # seconds; a shorter command draws nothing
_COUNTED = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
_UNCOUNTED = "{desc}: {n_fmt} [{elapsed}{postfix}]"
_SILENT = "{desc} [{elapsed}]"


class _Bar:
    """A command's progress bar; `show` receives searches' progress."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock, self._end = threading.Lock(), threading.Event()
        self._latest: Progress | None = None
        self._began = time.time()
        self._bar: Any = None
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def show(self, progress: Progress) -> None:
        self._latest = progress

    def _run(self) -> None:
        while not self._end.wait(EVERY):
            if time.time() - self._began >= QUICK:
                with self._lock:
                    self._draw()

    def _draw(self) -> None:
        if self._bar is None:
            self._bar = self._made()
        bar, at = self._bar, self._latest
        bar.bar_format = _SILENT if at is None else _UNCOUNTED if at.total is None else _COUNTED
        bar.total, bar.n = (None, 0) if at is None else (at.total, at.done)
        bar.set_description_str("working" if at is None else at.phase, refresh=False)
        bar.set_postfix_str("" if at is None else values(at), refresh=False)
        bar.refresh()

    def _made(self) -> Any:
        from tqdm import tqdm

        tqdm.monitor_interval = 0  # no second thread
        tqdm.set_lock(threading.RLock())
        bar = tqdm(file=self._stream, leave=False, dynamic_ncols=True, bar_format=_SILENT)
        bar.start_t = self._began
        return bar

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Hide the bar while the block writes to the terminal; a new phase begins afterwards."""
        with self._lock:
            if self._bar is not None:
                self._bar.clear()
            yield
            self._latest = None

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        if self._bar is not None:
            self._bar.close()


def values(progress: Progress) -> str:
    """Format the best value and the bound, as far as known."""
    told = (("best", progress.best), ("bound", progress.bound))
    texts = [(name, f"{v:,}" if isinstance(v, int) else f"{v:.6g}") for name, v in told if v is not None]
    return ", ".join(f"{name} {text} {progress.unit}".rstrip() for name, text in texts)


_drawn: list[_Bar] = []  # the bar of the command that runs, if it has one


@contextmanager
def progress_bar() -> Iterator[Show | None]:
    """Show a bar during the block, and yield the function that receives progress; None without a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(sys.stderr)
    _drawn.append(bar)
    try:
        yield bar.show
    finally:
        _drawn.remove(bar)
        bar.close()


def lifted() -> AbstractContextManager[None]:
    """Return a block that may write to the terminal, with no bar drawn meanwhile."""
    return _drawn[-1].lifted() if _drawn else nullcontext()
