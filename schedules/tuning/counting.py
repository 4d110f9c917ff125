"""Tasks for counting a single kernel's instructions: the calls in an inference, and the rows accessed."""

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
    """An activation input, whole in memory; the window of output row y starts at row `y * stride - padding`."""

    rows: int
    row_bytes: int
    stride: int = 0  # input rows per output row; 0: every call reads from row 0 on
    padding: int = 0  # rows of padding at the top

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True)
class Task:
    """All calls to an operator's kernel in an inference, without the rest of the network."""

    kernel: RowKernel
    inputs: tuple[Feed, ...]
    outputs: tuple[int, ...]  # by output, bytes that one call writes
    calls: int


@dataclass(frozen=True, slots=True)
class Count:
    """The cost of a kernel in an inference."""

    instructions: int  # executed in all calls
    bytes: int  # of code
    analytic: int = 0  # instructions by the analytic model; 0: unknown


Counter = Callable[[Sequence[Task]], list[Count]]


def task_of(graph: Graph, op: Op, access: RowAccess, kernel: RowKernel) -> Task | None:
    """Build the task of an operator's kernel; None for kernels with parameters that only a plan determines."""
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
