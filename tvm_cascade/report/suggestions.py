"""Options that were not used and would save RAM, with the bytes, from what is known of a plan without another search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil

from tvm_cascade.cascading import Plan, PlanOptions
from tvm_cascade.cascading.geometry import reads_rows, streamable
from tvm_cascade.graph import Graph, Op
from tvm_cascade.report.text import peak_segment

LITTLE_WORK = 0.01  # of a network's multiply-accumulates: what `--until` is suggested to leave to the host


def suggestions(plan: Plan, options: PlanOptions, storable: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
    """A sentence for each option that would help.

    `storable` are the inputs that the network only quantizes: bytes as its stored integers, and as floats.
    """
    found = [
        f"--stored-io: {name} takes {stored} bytes as the integers that the network stores, {real} as floats"
        for name, (stored, real) in storable.items()
    ]
    if options.layerwise:
        return tuple(found)
    if not options.stream_input:
        found += [
            f"--stream-input: the {plan.graph.tensors[t].bytes} bytes of {plan.graph.tensors[t].name} lie in the arena whole "
            "where it is largest; asked for row by row they do not, which mostly makes the arena smaller: plan with it to see"
            for t in _streamable_at_peak(plan)
        ]
    if options.sram is None and plan.finer is not None:
        peak, factor = plan.finer
        found.append(
            f"--max-time {ceil(100 * factor) / 100:g}: an arena of {peak} bytes in place of {plan.peak}, by smaller steps, which "
            f"are estimated to take {factor:.2f}x the instructions of whole rows"
        )
    return tuple(found)


def ends_large(plan: Plan) -> bool:
    """Whether the arena is largest while operators of `large_ends` run. Smaller ones are not worth the plans that tell what a
    cut saves."""
    segment_of, peak = {op: k for k, segment in enumerate(plan.segments) for op in segment.ops}, peak_segment(plan)
    return any(segment_of[o] == peak for o in large_ends(plan.graph, plan.peak))


def large_ends(graph: Graph, arena: int) -> Iterator[int]:
    """Operators that have, with all behind them, hardly any of the work, and that write a tensor of half of `arena` bytes or
    more."""
    left = graph.macs * LITTLE_WORK
    for op in reversed(graph.ops) if graph.macs else ():
        left -= op.macs
        if left < 0:
            return
        if any(2 * graph.tensors[t].bytes >= arena for t in op.outputs):
            yield op.index


def _streamable_at_peak(plan: Plan) -> Iterator[int]:
    """The inputs that lie in the arena whole while it is largest, and that could come row by row."""
    peak = peak_segment(plan)
    for t in plan.graph.inputs:
        storage, tensor = plan.storages[t], plan.graph.tensors[t]
        live = storage.lower <= peak < storage.upper and not storage.is_ring(tensor.rows)
        if live and _comes_by_rows(plan.graph, t) and _least_streamed(plan.graph, t) < plan.peak:
            yield t


def _least_streamed(graph: Graph, tensor: int) -> int:
    """Bytes that the arena takes at least where an input comes row by row: those of the results.

    Where a chain of operators leads from the input to a result, one tensor of it lies whole while the last rows of the input
    are read, which are stored beside it.
    """
    written, whole, last = sum(graph.tensors[t].bytes for t in set(graph.outputs)), list[int](), tensor
    while last not in graph.outputs:
        readers = set(graph.consumers[last])
        if len(readers) != 1 or len(graph.ops[min(readers)].outputs) != 1:
            return written
        (op,) = readers
        (last,) = graph.ops[op].outputs
        if not graph.ops[op].view:
            whole.append(graph.tensors[last].bytes)
    return max(written, min(whole, default=0) + _held(graph, tensor))


def _held(graph: Graph, tensor: int) -> int:
    """Bytes of the rows that one row of a reader needs: as many are stored of an input that comes row by row."""
    read = _behind_views(graph, tensor)
    windows = [w for op, k in _reads(graph, read) if k < len(op.windows) and (w := op.windows[k]) is not None]
    rows = max(((w.extent - 1) * w.dilation + 1 for w in windows), default=1)
    return min(rows, graph.tensors[read].rows) * graph.tensors[read].row_bytes


def _comes_by_rows(graph: Graph, tensor: int) -> bool:
    """Whether all that read an input read it row by row, behind a reshape that only it has, if any."""
    read = _behind_views(graph, tensor)
    reads = _reads(graph, read)
    by_rows = bool(reads) and all(reads_rows(graph, op, k) for op, k in reads)
    return by_rows and graph.tensors[read].rows > 1 and read not in graph.outputs and streamable(graph, read)


def _behind_views(graph: Graph, tensor: int) -> int:
    """The tensor that is read of an input: the input, or its last reshape, where each is read by the next alone."""
    readers = graph.consumers[tensor]
    while len(readers) == 1 and graph.ops[readers[0]].view and len(graph.ops[readers[0]].outputs) == 1:
        if tensor in graph.outputs or graph.ops[readers[0]].part_offsets:
            break
        (tensor,) = graph.ops[readers[0]].outputs
        readers = graph.consumers[tensor]
    return tensor


def _reads(graph: Graph, tensor: int) -> list[tuple[Op, int]]:
    """The operators that read a tensor, each with the position among its inputs."""
    return [
        (graph.ops[i], k) for i in graph.consumers[tensor] for k, t in enumerate(graph.ops[i].inputs) if t == tensor
    ]
