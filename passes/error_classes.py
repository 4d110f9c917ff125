"""Registers this project's exception classes with TVM's FFI, so exceptions raised in passes keep their class.

TVM transfers an exception out of a pass as class name and message, and raises a `RuntimeError` if the name is not
registered. The command line would report that as an internal error, and callers could not handle it by class.
"""

from __future__ import annotations

import re
from typing import Any

from tvm_cascade.errors import GraphError, InfeasibleError, UsageError, ValidationError
from tvm_cascade.messages import split_names
from tvm_cascade.schedules.tir import tvm_ffi
from tvm_cascade.search_monitor import SearchStopped

_INFEASIBLE = re.compile(r"needs (\d+) bytes, (\d+) available, \d+ bytes missing; peak at (.*); (.*)", re.DOTALL)


class _Infeasible(InfeasibleError):
    """`InfeasibleError` reconstructed from the message, with data fields parsed from the text."""

    def __init__(self, message: str) -> None:
        needed, available, culprits, remedy = (_INFEASIBLE.findall(message) or [("0", "0", "", message)])[0]
        super().__init__(int(needed), int(available), split_names(culprits), remedy)


def register_error_classes() -> None:
    """Register the passes' exception classes with TVM's FFI."""
    register: Any = tvm_ffi.register_error
    for kind in (GraphError, UsageError, ValidationError, InfeasibleError, SearchStopped):
        register(kind.__name__, kind)
    register(InfeasibleError.__name__, _Infeasible)  # replaces the entry: this class parses the data
