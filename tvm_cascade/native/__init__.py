"""The innermost searches in C, step for step as in Python: `arena_search.c` is `tvm_cascade.memory.arena_search`,
`placement.c` is `place_in_order` in `tvm_cascade.memory.fit` and `improve_in_python` in
`tvm_cascade.memory.local_search`, `order_anneal.c` is `anneal_in_python` in `tvm_cascade.ordering.anneal`,
`order_sets.c` is `run_in_python` in `tvm_cascade.ordering.dp`, `simulate.c` is `tvm_cascade.cascading.simulate_in_python`.

The C knows neither Python nor numpy and is called through ctypes, so one library serves every Python version. It is
compiled when the package is built; if the library is missing (no compiler at hand) or the environment variable
`TVM_CASCADE_NATIVE` is 0, the Python twins search instead, with the same answers.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path

EXPORTED = (
    "tvm_cascade_search_arena",
    "tvm_cascade_place_in_order",
    "tvm_cascade_improve_arena",
    "tvm_cascade_anneal_order",
    "tvm_cascade_order_sets",
    "tvm_cascade_run_segment",
)


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Load the compiled searches, or return None."""
    if os.environ.get("TVM_CASCADE_NATIVE") == "0":
        return None
    for path in sorted(Path(__file__).parent.glob("_native.*"), reverse=True):
        try:
            found = ctypes.CDLL(str(path))
        except OSError:  # built for another machine
            continue
        if all(hasattr(found, name) for name in EXPORTED):  # else built from older sources
            return found
    return None
