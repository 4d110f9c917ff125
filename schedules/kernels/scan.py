"""`Scan`: an operator that runs a network of its own, the body, once for every step, and how it lies in a PrimFunc.

A step takes the states that the step before made, its part of every sequence, and values that are the same in each step.
It makes the next states, and results. Of a result every step's is kept, one behind another, or the last step's alone:

    state = initial
    for t in range(steps):
        state, *results = body(state, sequence[t], value)
        stacked[t] = results[0]; last = results[1]

The PrimFunc of a scan computes all of this (`passes.scan_operator` writes it), and bears the `Scan` as the attribute `SCAN`:
from it the kernels of the body are made, each like that of any operator of a network (`schedules.forms.scan`).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm_ffi import Object
from tvm_ffi.dataclasses import py_class

from tvm_cascade.schedules.kernels.spec import KIND

SCAN, SCAN_KIND = "scan", "scan"  # the attribute of a PrimFunc, and its kind of operator


@py_class("tvm_cascade.Scan")
class Scan(Object):
    """A body and how it is run. Parameters of `body.main` are states, parts of sequences, values and, if `counts`, the
    number of the step. It returns the next states, then results.
    """

    body: tvm.IRModule  # lowered; its `main` has static shapes
    steps: int
    states: int
    sequences: int
    values: int
    counts: bool
    backward: str  # by sequence, then by result: "1" where the first step's part is the last, else "0"
    stacked: str  # by result: "1" where that of every step is kept, "0" where the last step's is
    finals: str  # by state: "1" where the state behind the last step is an output
    initial: str  # by state: "1" where it is an activation, "0" where it is a constant

    @property
    def outputs(self) -> tuple[int, ...]:
        """Return for every output of the operator the place of the body's result that it is made of."""
        finals = tuple(k for k in range(self.states) if self.finals[k] == "1")
        return (*finals, *range(self.states, self.states + len(self.stacked)))

    def is_backward(self, sequence: int) -> bool:
        """Return whether the first step takes the last part of a sequence, counted among the sequences and the results."""
        return self.backward[sequence] == "1"


def scan_of(func: Any) -> Scan | None:
    """Return the `Scan` of a PrimFunc; None for other operators, and where a constant has taken an activation's place."""
    attrs = func.attrs if func.attrs is not None else {}
    return attrs[SCAN] if SCAN in attrs and KIND in attrs else None
