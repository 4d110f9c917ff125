"""Kernel variant selection: collects a graph's operator shapes and picks each shape's best counted variant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import tvm_ffi

from tvm_cascade.cores import KernelTarget
from tvm_cascade.graph import Graph, Op, Tensor
from tvm_cascade.passes.extract_graph import Extracted
from tvm_cascade.schedules.kernels.computation import Computation
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.rules.select import generic_kernels, variants_of
from tvm_cascade.schedules.rules.variants import shape_key
from tvm_cascade.schedules.tuning.counting import Counter, Task, task_of
from tvm_cascade.schedules.tuning.tune import Candidate, Database, Shape, choices_for, tune


def choose_variants(
    extracted: Extracted, core: KernelTarget, database: Database, counter: Counter | None = None
) -> KernelTarget:
    """Choose a kernel variant for every operator shape in the network, by the counts in `database`; return `core` with
    them.

    With a `counter`, shapes without counts are counted first, and added to `database`.
    """
    if not core.tunable:
        return core
    shapes = shapes_of(extracted, core)
    if counter is not None:
        database.merge(tune(shapes, core, database, counter))
    operators = sum(not op.view for op in extracted.graph.ops)
    return replace(core, choices=choices_for(shapes, core, database, operators))


def shapes_of(extracted: Extracted, core: KernelTarget) -> list[Shape]:
    """List the distinct operator shapes to which performance schedules may apply, each with candidate kernels."""
    users: dict[str, list[int]] = {}
    for op in extracted.graph.ops:
        made = extracted.operators[op.index]
        if made is not None and made.has_plain_rows(tensors_of(extracted.graph, op)):
            users.setdefault(shape_key(made.spec), []).append(op.index)
    return [Shape(key, len(ops), partial(candidates_of, extracted, ops[0], core)) for key, ops in users.items()]


def tensors_of(graph: Graph, op: Op) -> list[Tensor]:
    """List the activations read by an operator, then the activations written."""
    return [graph.tensors[t] for t in (*op.inputs, *op.outputs)]


def candidates_of(extracted: Extracted, index: int, core: KernelTarget) -> Iterator[Candidate]:
    """Yield an operator's structurally distinct kernels, the default variant first, the generic kernel last."""
    operator = extracted.operators[index]
    assert operator is not None
    access = operator.access
    made: list[Task] = []
    for name, written in _kernels_of(operator, core):
        kernel = replace(written, whole=access.whole)
        task = task_of(extracted.graph, extracted.graph.ops[index], access, kernel)
        if task is not None and not any(tvm_ffi.structural_equal(t.kernel.func, kernel.func) for t in made):
            made.append(task)
            yield Candidate(name, task)


def _kernels_of(operator: Computation, core: KernelTarget) -> Iterator[tuple[str, RowKernel]]:
    """Yield an operator's kernels with variant names, in the names' order."""
    for variant in variants_of(operator.spec, core):
        yield variant.name, variant.make()
    for kernel in generic_kernels(operator.kernel, core):
        yield kernel.rule, kernel
