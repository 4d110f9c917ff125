"""What it takes to count a kernel alone: the rows that it reads and writes, in the order in which a plan calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from tvm_cascade.graph import ITEM_BYTES, Graph, Op
from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.kernel import Role, RowKernel

_PLAIN = (Role.INPUT, Role.SLOT, Role.SLOTS, Role.CONSTANT, Role.SCRATCH, Role.OUTPUT, Role.Y)


@dataclass(frozen=True, slots=True)
class Feed:
    """An activation input: whole in memory, `rows` rows of `row_bytes`; row y starts its window at `y * stride - padding`."""

    rows: int
    row_bytes: int
    stride: int = 0
    padding: int = 0

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True)
class Task:
    """All calls of one kernel in one inference, layer by layer."""

    kernel: RowKernel
    inputs: tuple[Feed, ...]
    outputs: tuple[int, ...]  # bytes of a row of each output
    calls: int


@dataclass(frozen=True, slots=True)
class Count:
    """What a kernel takes: instructions of all its calls, bytes of code."""

    instructions: int
    bytes: int
    analytic: int = 0  # instructions by the analytic model; 0 where nobody asked


Counter = Callable[[Sequence[Task]], list[Count]]


def task_of(graph: Graph, op: Op, access: RowAccess, kernel: RowKernel) -> Task | None:
    """The task of an operator's kernel; None for parameters that only a plan can give."""
    if any(p.role not in _PLAIN for p in kernel.params) or not kernel.params:
        return None
    feeds = []
    for t, window in zip(op.inputs, access.windows, strict=True):
        tensor = graph.tensors[t]
        if kernel.whole or window is None:
            feeds.append(Feed(tensor.rows, tensor.row_bytes))
            continue
        if window.denominator != 1:
            return None
        feeds.append(Feed(tensor.rows, tensor.row_bytes, window.stride, window.padding))
    outputs = [graph.tensors[t] for t in op.outputs]
    calls = 1 if kernel.whole else outputs[0].rows
    sizes = [prod(t.shape) * ITEM_BYTES[t.dtype] // calls for t in outputs]
    return Task(kernel, tuple(feeds), tuple(sizes), calls)
