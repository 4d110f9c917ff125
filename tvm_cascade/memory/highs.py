"""`run_milp`: scipy's `milp`, an integer program solved by HiGHS, without what HiGHS prints.

HiGHS writes lines for its developers to the standard output of the process from its C++ code, whatever it was told
("HighsMipSolverData::transformNewIntegerFeasibleSolution tmpSolver.run();"). Between them nobody can read JSON there.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


def run_milp(*args: Any, **options: Any) -> Any:
    """`scipy.optimize.milp(*args, **options)`."""
    from scipy import optimize

    with silent_output():
        return optimize.milp(*args, **options)


@contextmanager
def silent_output() -> Iterator[None]:
    """Drop what code of other languages writes to the standard output of this process, other threads' output too."""
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
