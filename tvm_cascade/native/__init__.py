"""The innermost searches in C: `arena_search.c` for `memory.arena_search`, `placement.c` for `memory.fit` and
`memory.local_search`, `order_anneal.c` for `ordering.anneal`, `order_sets.c` for `ordering.dp`, `simulate.c` for
`cascading.simulate`. `tvm_cascade.testing.searches` has them in Python, as the tests' oracles.

The C knows neither Python nor numpy and is called through ctypes, so one library serves every Python version. It is
compiled when the package is built.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from tvm_cascade.errors import MissingToolError

EXPORTED = (
    "tvm_cascade_search_arena",
    "tvm_cascade_place_in_order",
    "tvm_cascade_improve_arena",
    "tvm_cascade_anneal_order",
    "tvm_cascade_order_sets",
    "tvm_cascade_run_segment",
)


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Load the compiled searches; raise `MissingToolError` if they are missing or were built from other sources."""
    for path in sorted(Path(__file__).parent.glob("_native.*"), reverse=True):
        try:
            found = ctypes.CDLL(str(path))
        except OSError:  # built for another machine
            continue
        if all(hasattr(found, name) for name in EXPORTED):  # else built from older sources
            return found
    raise MissingToolError("the library of compiled searches", "install tvm-cascade from a wheel or with a C compiler")


class Stop:
    """A C function that tells whether a search has to end; an exception raised meanwhile is raised again afterwards."""

    def __init__(self, over: Callable[[], bool]) -> None:
        self.raised: list[BaseException] = []

        def stop() -> int:
            try:
                return over()
            except BaseException as error:
                self.raised.append(error)
                return True

        self.function = ctypes.CFUNCTYPE(ctypes.c_int)(stop)

    def __enter__(self) -> Stop:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.raised:
            raise self.raised[0]
