"""Copy elimination for concats in staged programs: operands are allocated inside the result and written in place.

An operand can be placed in the result's storage if the operand's own storage holds nothing else. A concat whose
operands all can needs no kernel. Operands that are no contiguous part of the result, as along channels that lie last,
are parts (`Slice`): kernels for CUDA write and read parts. (MetaFlow's artifact has the flag `exclusive_concat` for the
same; IOS, section 5, has the inverse: a merged operator's outputs are read in place.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tvm_cascade.graph import Graph, Op
from tvm_cascade.staging.program.graph import StageGraph
from tvm_cascade.staging.program.program import Place, Program, Step
from tvm_cascade.staging.program.specs import Slice, writes


def write_in_place(program: Program) -> Program:
    """Drop the concats if all operands can be written directly into the result."""
    program = _write_parts(program) if program.captured else program
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


def _write_parts(program: Program) -> Program:
    """Drop the concats if all operands can be parts of the result, beginning with concats of concats."""
    graph = program.net.graph
    writer = {t: k for k, spec in enumerate(program.specs) for t in writes(graph, spec)}
    users = Counter(p.root for p in program.places)  # of a storage
    places, slices = list(program.places), dict(program.slices)
    outside = {*graph.inputs, *graph.outputs}
    gone: set[int] = set()

    def may_move(t: int, dtype: str) -> bool:
        own = places[t].root == t and users[t] == 1 and t not in slices and t not in outside
        return own and graph.tensors[t].dtype == dtype and _writes_alone(program, writer.get(t))

    for k, spec in reversed(list(enumerate(program.specs))):
        op = graph.ops[spec.ops[0]]
        if len(spec.ops) != 1 or not _is_concat(program.net, op) or _contiguous(program.net, op):
            continue
        result, axis = op.outputs[0], _axis(program.net, op)
        whole = graph.tensors[result]
        held = slices.get(result, Slice(result, whole.shape, axis, 0))  # a part itself, of a concat behind
        if places[result].root != held.root or held.axis != axis or (result in slices and users[result] != 1):
            continue
        if not all(may_move(t, whole.dtype) for t in op.inputs):
            continue
        begin = held.begin
        for t in op.inputs:
            places[t], slices[t] = Place(held.root, 0), replace(held, begin=begin)
            begin += graph.tensors[t].shape[axis]
        gone.add(k)
    return replace(_without(program, gone), places=tuple(places), slices=slices) if gone else program


def _writes_alone(program: Program, spec: int | None) -> bool:
    """Test whether a kernel writes a single tensor, and is no merge."""
    if spec is None or program.specs[spec].merge is not None:
        return False
    return len(writes(program.net.graph, program.specs[spec])) == 1


def _is_concat(net: StageGraph, op: Op) -> bool:
    """Test whether an operator is a concat of distinct tensors."""
    name = getattr(net.calls[op.index].op, "name", "")
    return name == "relax.concat" and len(set(op.inputs)) == len(op.inputs) and op.inputs != ()


def _axis(net: StageGraph, op: Op) -> int:
    axis = net.calls[op.index].attrs.axis
    return 0 if axis is None else int(axis) % len(net.graph.tensors[op.outputs[0]].shape)


def _contiguous(net: StageGraph, op: Op) -> bool:
    """Test whether an operator is a concat with distinct, contiguous parts in the result."""
    if not _is_concat(net, op):
        return False
    out, tensors = net.graph.tensors[op.outputs[0]], net.graph.tensors
    return prod(out.shape[: _axis(net, op)]) == 1 and sum(tensors[t].bytes for t in op.inputs) == out.bytes


def _moved(graph: Graph, places: Sequence[Place], op: Op, alignment: int) -> list[Place] | None:
    """Return `places` with the operands moved into the result; None if the storages hold other data or would be
    misaligned.
    """
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
    """Remove the kernels `gone` from the program; a stage left with a single group becomes one step per kernel."""
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
