"""The arena of a `.tflite` file as TensorFlow Lite for Microcontrollers lays it out with its greedy memory planner.

An oracle for baselines, written from the planner's published description. A tensor is live from the operator that writes it
to the last one that reads it, inputs from the first operator on, outputs to the last. Reference kernels ask for scratch in
addition, which is live in their operator. All sizes are rounded up to 16 bytes. Buffers are placed by descending size, each at
the lowest offset where it fits between those placed before whose lives meet its own. What the interpreter keeps beside (its
records of tensors and operators) is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tvm_cascade.graph import Graph, Op
from tvm_cascade.testing.tflite_graph import graph_of

_ALIGNMENT = 16
_SUMS = frozenset(("mean", "sum", "reduce_max", "transpose_conv"))  # kernels of integers with an int32 for every output

Buffer = tuple[int, int, int]  # bytes, first and last operator


def tflm_arena(path: str | Path) -> int:
    """Bytes of the arena for the tensors and scratch of a file's first subgraph."""
    placed: list[tuple[int, Buffer]] = []
    for buffer in sorted(_buffers(graph_of(path)), key=lambda b: -b[0]):
        placed.append((_lowest(buffer, placed), buffer))
    return max((at + size for at, (size, _, _) in placed), default=0)


def _buffers(graph: Graph) -> Iterator[Buffer]:
    """The buffers in the order of tensors, scratch behind them."""
    end = len(graph.ops) - 1
    first = dict.fromkeys(graph.inputs, 0) | {t: op.index for op in graph.ops for t in op.outputs}
    last = dict(first)
    for op in graph.ops:
        last |= dict.fromkeys(op.inputs, op.index)
    last |= dict.fromkeys(graph.outputs, end)
    for t in sorted(first):
        yield _rounded(graph.tensors[t].bytes), first[t], last[t]
    for op in graph.ops:
        if size := _scratch(graph, op):
            yield _rounded(size), op.index, op.index


def _scratch(graph: Graph, op: Op) -> int:
    out = graph.tensors[op.outputs[0]]
    return 4 * out.bytes if op.kind in _SUMS and out.dtype in ("int8", "uint8") else 0


def _rounded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _lowest(buffer: Buffer, placed: list[tuple[int, Buffer]]) -> int:
    """The lowest offset at which a buffer meets none that is live at the same time."""
    size, first, last = buffer
    at = 0
    for start, (other, begin, end) in sorted(placed):
        if begin <= last and first <= end:
            if at + size <= start:
                break
            at = max(at, start + other)
    return at
