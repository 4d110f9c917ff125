"""The operators, inputs and outputs of a staged program's kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm.tirx import PrimFunc

from tvm_cascade.graph import Graph
from tvm_cascade.staging.program.merge import Merge


@dataclass(frozen=True)
class Kernel:
    """A PrimFunc with parameters inputs, constants, outputs; tensors by index into `StageGraph.graph.tensors`.

    A merged kernel writes a single tensor, the concatenation of all `outputs` along the channels.
    """

    name: str
    func: PrimFunc
    inputs: tuple[int, ...]
    constants: tuple[np.ndarray, ...]
    outputs: tuple[int, ...]
    merged: bool = False
    plain: PrimFunc | None = None  # `func` before its results became parts of other tensors: what records know it by


@dataclass(frozen=True)
class Spec:
    """The operators computed by a kernel, fused or, with `merge`, merged into a single wider operator."""

    ops: tuple[int, ...]
    merge: Merge | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """A non-contiguous tensor: `[begin, begin + extent)` along `axis` of the tensor at `root`, made by a merge or concat."""

    root: int
    shape: tuple[int, ...]  # of that tensor
    axis: int
    begin: int


def reads(graph: Graph, spec: Spec) -> tuple[int, ...]:
    """Return the tensors a kernel reads and does not compute, in parameter order."""
    inside = {t for i in spec.ops for t in graph.ops[i].outputs}
    return tuple(dict.fromkeys(t for i in spec.ops for t in graph.ops[i].inputs if t not in inside))


def writes(graph: Graph, spec: Spec) -> tuple[int, ...]:
    """Return the tensors a kernel computes for graph outputs or other kernels."""
    written = [t for i in spec.ops for t in graph.ops[i].outputs]
    return tuple(t for t in written if t in graph.outputs or set(graph.consumers[t]) - set(spec.ops))
