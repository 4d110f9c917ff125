"""Unused options with RAM savings, in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import ceil

from tvm_cascade.cascading import Plan, PlanOptions
from tvm_cascade.cascading.streamed import streamed_peak, with_inputs_by_rows
from tvm_cascade.graph import Graph, Op
from tvm_cascade.messages import operator_of
from tvm_cascade.report.text import peak_segment

LITTLE_WORK = 0.01  # of a network's multiply-accumulates: what `--until` is suggested to leave to the host


def suggestions(plan: Plan, options: PlanOptions, storable: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
    """Write a sentence for each helpful option.

    `storable` are the inputs that the network only quantizes: bytes as stored integers, and as floats.
    """
    found = [
        f"--stored-io: {name} takes {stored} bytes as the integers that the network stores, {real} as floats"
        for name, (stored, real) in storable.items()
    ]
    if options.layerwise:
        return tuple(found)
    if not options.stream_input:
        found += _streamed(plan, options)
    if options.sram is None and plan.finer is not None:
        peak, factor = plan.finer
        found.append(
            f"--max-time {ceil(100 * factor) / 100:g}: an arena of {peak} bytes in place of {plan.peak}, in smaller steps, which "
            f"are estimated to take {factor:.2f}x the instructions of the fastest plan"
        )
    return tuple(found)


def ends_large(plan: Plan) -> bool:
    """Test whether the arena is largest while operators of `large_ends` run. Smaller ends are not worth the plans that
    price a cut.
    """
    segment_of, peak = {op: k for k, segment in enumerate(plan.segments) for op in segment.ops}, peak_segment(plan)
    return any(segment_of[o] == peak for o in large_ends(plan.graph, plan.peak))


def large_ends(graph: Graph, arena: int) -> Iterator[int]:
    """Find operators that, together with everything behind, do hardly any work, but write a tensor of at least half of
    `arena` bytes.
    """
    for op in _end(graph):
        if any(2 * graph.tensors[t].bytes >= arena for t in op.outputs):
            yield op.index


def in_front(graph: Graph, layers: Iterable[str]) -> bool:
    """Test whether all layers, by name, belong to operators in front of those that do hardly any work."""
    end = {op.index for op in _end(graph)}
    front = {operator_of(op.name) for op in graph.ops if op.index not in end}
    behind = {operator_of(op.name) for op in graph.ops if op.index in end}
    return {operator_of(name) for name in layers} <= front - behind


def _end(graph: Graph) -> Iterator[Op]:
    """Yield the last operators, from the end, as long as all of them together do hardly any work."""
    left = graph.macs * LITTLE_WORK
    for op in reversed(graph.ops) if graph.macs else ():
        left -= op.macs
        if left < 0:
            return
        yield op


def _streamed(plan: Plan, options: PlanOptions) -> Iterator[str]:
    """Propose inputs row by row, if a quick search finds a smaller arena with them."""
    graph, by_rows = with_inputs_by_rows(plan.graph)
    peak = streamed_peak(graph, options, plan.peak) if by_rows and not plan.placed else None
    if peak is not None:
        names, size = ", ".join(graph.tensors[t].name for t in by_rows), sum(graph.tensors[t].bytes for t in by_rows)
        yield (
            f"--stream-input: an arena of {peak} bytes or fewer in place of {plan.peak}, as {names} ({size} bytes) is asked "
            "for row by row"
        )
