"""Which groups of a stage share a thread or a stream, and how much work a kernel is estimated to be."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_cascade.cost.packing import pack
from tvm_cascade.graph import Graph
from tvm_cascade.staging.program.program import Program
from tvm_cascade.staging.program.specs import Spec


def work_of(graph: Graph, spec: Spec) -> int:
    """Estimate a kernel's work, which decides on multi-threading: multiply-accumulates, plus 8 per 4 bytes read."""
    values = sum(graph.tensors[t].bytes // 4 for i in spec.ops for t in graph.ops[i].inputs)
    return sum(graph.ops[i].macs for i in spec.ops) + 8 * values


def lanes(program: Program, groups: Sequence[tuple[int, ...]], most: int) -> list[list[int]]:
    """Split whole groups over at most `most` lanes by longest processing time first; return the kernels of each lane."""
    work = [float(sum(work_of(program.net.graph, program.specs[k]) for k in group)) for group in groups]
    return [[k for g in sorted(lane) for k in groups[g]] for lane in pack(work, most)]
