"""The arena of a `.tflite` file as TensorFlow Lite for Microcontrollers lays it out with its greedy memory planner.

An oracle for baselines, written from the planner's published description. A tensor is live from the operator that writes it
to the last one that reads it, inputs from the first operator on, outputs to the last. Reference kernels ask for scratch in
addition, which is live in their operator: sums of integers for an int32 an output and for an index an axis, SVDF for an int32
a filter and a unit, an LSTM for four rows of its cells. All sizes are rounded up to 16 bytes. Buffers are placed by descending
size, of equal ones the last first, each at the lowest offset where it fits between those placed before whose lives meet its own.
Variables lie beside them for good. What the interpreter keeps beside (its records of tensors and operators) is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from tvm_cascade.graph import Graph, Op
from tvm_cascade.testing.tflite_graph import graph_of, tflite

_ALIGNMENT = 16
_SUMS = frozenset(("mean", "sum"))
_REDUCTIONS = _SUMS | {"reduce_max", "reduce_min", "reduce_any", "reduce_all"}
_INTEGERS = ("int8", "uint8", "int16")
_CELL = 19  # the input of an LSTM that is the state of its cells
_BYTES = {0: 4, 7: 2, 9: 1}  # by type of a state

Buffer = tuple[int, int, int]  # bytes, first and last operator


def tflm_arena(path: str | Path) -> int:
    """Bytes of the arena for the tensors, variables and scratch of a file's first subgraph."""
    file = tflite.Model.GetRootAsModel(Path(path).read_bytes(), 0).Subgraphs(0)
    placed: list[tuple[int, Buffer]] = []
    for buffer in sorted(reversed([*_buffers(graph_of(path), file)]), key=lambda b: -b[0]):
        placed.append((_lowest(buffer, placed), buffer))
    kept = (file.Tensors(k) for k in range(file.TensorsLength()))
    variables = sum(_rounded(_elements(t) * _BYTES[t.Type()]) for t in kept if t.IsVariable())
    return max((at + size for at, (size, _, _) in placed), default=0) + variables


def _buffers(graph: Graph, file: Any) -> Iterator[Buffer]:
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
        for size in _scratch(graph, op, file):
            yield _rounded(size), op.index, op.index


def _scratch(graph: Graph, op: Op, file: Any) -> Iterator[int]:
    """The blocks of scratch that an operator's reference kernel asks for, in bytes."""
    out, read = graph.tensors[op.outputs[0]], graph.tensors[op.inputs[0]]
    count = prod(out.shape)
    if (op.kind in _SUMS or op.kind == "transpose_conv") and out.dtype in _INTEGERS:
        yield 4 * count
    if op.kind in _REDUCTIONS:
        yield 4 * len(read.shape)
    given = file.Operators(op.index)
    if op.kind == "svdf":
        filters = read.shape[0] * int(file.Tensors(given.Inputs(1)).Shape(0))
        yield 4 * filters
        if out.dtype in _INTEGERS:
            yield 4 * count
    if op.kind == "unidirectional_sequence_lstm":
        cell = file.Tensors(given.Inputs(_CELL))
        yield from [_elements(cell) * _BYTES[cell.Type()]] * 4


def _elements(tensor: Any) -> int:
    return prod(int(d) for d in tensor.ShapeAsNumpy()) if tensor.ShapeLength() else 1


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
