"""`run_milp`: scipy's `milp`, an integer program solved by HiGHS, without HiGHS's printed lines.

HiGHS writes lines for developers to the process's standard output from C++, whatever the options
("HighsMipSolverData::transformNewIntegerFeasibleSolution tmpSolver.run();"). They would break JSON printed there.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


def run_milp(*args: Any, **options: Any) -> Any:
    """Return `scipy.optimize.milp(*args, **options)`, run without output."""
    from scipy import optimize

    with silent_output():
        return optimize.milp(*args, **options)


@contextmanager
def silent_output() -> Iterator[None]:
    """Drop everything that native code writes to this process's standard output, in all threads."""
    with suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
    _flush_c()
    try:
        kept = os.dup(1)
    except OSError:  # there is no standard output
        yield
        return
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 1)
        yield
    finally:
        _flush_c()  # what it buffered is dropped too
        os.dup2(kept, 1)
        os.close(kept)


def _flush_c() -> None:
    """Flush the buffers of the C library's streams."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None if os.name == "posix" else "ucrtbase").fflush(None)
