"""Copy elimination for concats in staged programs: operands are allocated inside the result and written in place.

An operand can be placed in the result's storage if its own storage holds nothing else. A concat whose operands all can
needs no kernel. (MetaFlow's artifact has the flag `exclusive_concat` for the same; IOS, section 5, has the inverse: the
outputs of a merged operator are read in place.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tvm_cascade.graph import Graph, Op
from tvm_cascade.passes.stage_graph import StageGraph
from tvm_cascade.passes.stage_program import Place, Program, Step


def write_in_place(program: Program) -> Program:
    """The program without the concats whose operands can be written directly into the result."""
    graph = program.net.graph
    places = list(program.places)
    gone: set[int] = set()
    for k, spec in enumerate(program.specs):
        if len(spec.ops) != 1 or spec.merge is not None or not _contiguous(program.net, graph.ops[spec.ops[0]]):
            continue
        if any(t in program.slices for t in graph.ops[spec.ops[0]].inputs):
            continue
        moved = _moved(graph, places, graph.ops[spec.ops[0]], program.alignment)
        if moved is not None:
            places = moved
            gone.add(k)
    return replace(_without(program, gone), places=tuple(places)) if gone else program


def _contiguous(net: StageGraph, op: Op) -> bool:
    """Whether an operator is a concat whose operands are distinct, contiguous parts of the result."""
    graph, call = net.graph, net.calls[op.index]
    if getattr(call.op, "name", "") != "relax.concat" or len(set(op.inputs)) != len(op.inputs) or op.inputs == ():
        return False
    out = graph.tensors[op.outputs[0]]
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % len(out.shape)
    return prod(out.shape[:axis]) == 1 and sum(graph.tensors[t].bytes for t in op.inputs) == out.bytes


def _moved(graph: Graph, places: Sequence[Place], op: Op, alignment: int) -> list[Place] | None:
    """`places` with the operands moved into the result; None if their storages hold other data or would be misaligned."""
    target = places[op.outputs[0]]
    if target.root != op.outputs[0]:
        return None
    base: dict[int, int] = {}  # root of an operand's storage -> its byte offset in the result
    covered: dict[int, int] = {}  # root -> bytes of it that are operands
    at = 0
    for t in op.inputs:
        root = places[t].root
        if base.setdefault(root, at - places[t].offset) != at - places[t].offset:
            return None
        covered[root] = covered.get(root, 0) + graph.tensors[t].bytes
        at += graph.tensors[t].bytes
    outside = {places[t].root for t in (*graph.inputs, *graph.outputs)}
    for root, start in base.items():
        ends = max(p.offset + graph.tensors[t].bytes for t, p in enumerate(places) if p.root == root)
        if root in outside or start < 0 or start % alignment or covered[root] != ends:
            return None
    return [Place(target.root, base[p.root] + p.offset) if p.root in base else p for p in places]


def _without(program: Program, gone: set[int]) -> Program:
    """The program without the kernels `gone`; a stage left with a single group becomes one step per kernel."""
    number = {k: i for i, k in enumerate(k for k in range(len(program.specs)) if k not in gone)}
    specs = tuple(program.specs[k] for k in number)
    steps: list[Step] = []
    for step in program.steps:
        groups = tuple(left for g in step.groups if (left := tuple(number[k] for k in g if k not in gone)))
        if len(groups) == 1:
            steps += [Step(((k,),), step.stage) for k in groups[0]]
        elif groups:
            steps.append(Step(groups, step.stage))
    return replace(program, specs=specs, steps=tuple(steps))
