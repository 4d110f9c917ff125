"""Errors of this project that cross TVM keep their class.

TVM carries an exception out of a pass as the name of its class and its message, and raises a `RuntimeError` where it does
not know the name. The command line would call that an internal error, and callers could not tell what to do about it.
"""

from __future__ import annotations

import re
from typing import Any

from tvm_cascade.errors import GraphError, InfeasibleError, UsageError, ValidationError
from tvm_cascade.schedules.tir import tvm_ffi

_INFEASIBLE = re.compile(r"needs (\d+) bytes, (\d+) available; peak at (.*); (.*)", re.DOTALL)


class _Infeasible(InfeasibleError):
    """What comes back: the error that says so, with its data."""

    def __init__(self, message: str) -> None:
        needed, available, culprits, remedy = (_INFEASIBLE.findall(message) or [("0", "0", "", message)])[0]
        super().__init__(int(needed), int(available), culprits.split(", "), remedy)


def register_error_classes() -> None:
    """Tell TVM the classes that passes raise."""
    register: Any = tvm_ffi.register_error
    for kind in (GraphError, UsageError, ValidationError, InfeasibleError):
        register(kind.__name__, kind)
    register(InfeasibleError.__name__, _Infeasible)  # the name then stands for the class that reads its data
