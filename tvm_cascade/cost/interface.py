"""The interface of latency cost models (`CostModel`), and the input, operator features (`OpFeatures`).

A *stage* is a tuple of groups that run at the same time; a *group* is a sequence of operators that run in turn (IOS,
section 3). A single operator is a stage with a single group. Costs are milliseconds.

A model also gives lower bounds (`OpBound`: additive works and spans along paths), with which the search skips stages
without losing exactness. A model without provable bounds returns zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol, runtime_checkable

from tvm_cascade.graph import ITEM_BYTES, Graph, Op


@dataclass(frozen=True, slots=True)
class OpFeatures:
    """An operator's features for cost models, independent of name and position in the network."""

    kind: str  # as `graph.Op.kind`
    macs: int = 0  # multiply-accumulates
    bytes_in: int = 0  # activations read, each tensor once
    bytes_out: int = 0  # activations written
    weight_bytes: int = 0
    output_elements: int = 0
    reduction: int = 1  # values read per output element: kernel taps times input channels
    parallel_rows: int = 1  # independent outermost slices (batch, channels, rows) that a CPU kernel can run in parallel
    shape: tuple[int, ...] = ()  # shapes and attributes: operators that differ in these are measured separately

    @property
    def bytes(self) -> int:
        """Return all traffic: activations and weights, each byte once."""
        return self.bytes_in + self.bytes_out + self.weight_bytes

    @property
    def work(self) -> int:
        """Return the arithmetic in multiply-accumulates; an operator without MACs does a step per value read."""
        return self.macs or self.output_elements * max(self.reduction, 1)


@dataclass(frozen=True, slots=True)
class OpBound:
    """Lower bounds, in milliseconds, on an operator's contribution to any stage around.

    A stage never costs less than the sum of `works[k]` over the operators, for each resource k, nor less than the sum
    of `span` along any path. A stage with a single group never costs less than the sum of `alone`; with several groups
    the cost is at least `CostModel.fork_ms` on top of the remaining bounds, unless merged.
    """

    works: tuple[float, ...] = ()
    span: float = 0.0
    alone: float = 0.0


Groups = Sequence[Sequence[OpFeatures]]


@runtime_checkable
class CostModel(Protocol):
    """Latency of operators, stages and merged operators, analytic, measured or learned."""

    name: str
    fork_ms: float  # least cost of running several groups at once; 0 where nothing is known

    def op_ms(self, op: OpFeatures) -> float:
        """Return the milliseconds of the operator alone."""
        ...

    def stage_ms(self, groups: Groups) -> float:
        """Return the milliseconds of a stage: groups concurrently, each group's operators in sequence."""
        ...

    def merged_ms(self, merged: OpFeatures, parts: Sequence[OpFeatures]) -> float:
        """Return the milliseconds of the operator `merged`, which replaces the operators `parts`."""
        ...

    def bound(self, op: OpFeatures, mergeable: bool) -> OpBound:
        """Bound an operator's cost from below; a merged kernel may read an input for several operators if it is
        `mergeable`.
        """
        ...


class Runner(Protocol):
    """Runs stages on a device and measures them."""

    device: str  # name of the device and its settings, under which measurements are stored
    workers: int  # cores or streams that run groups at the same time

    def run(self, groups: Groups, repeats: int) -> list[float]:
        """Run a stage `repeats` times and return the milliseconds."""
        ...

    def run_merged(self, parts: Sequence[OpFeatures], repeats: int) -> list[float]:
        """Run operators merged into one `repeats` times and return the milliseconds."""
        ...


@runtime_checkable
class BatchRunner(Runner, Protocol):
    """A runner for several stages at the same time."""

    def ahead(self, stages: Sequence[tuple[str, Groups]], repeats: int) -> Iterator[tuple[str, Groups]]:
        """Measure stages, each with its strategy, and yield each when done: `run` then returns the measurements."""
        ...


def features(
    kind: str,
    inputs: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    dtype: str = "float32",
    macs: int = 0,
    weight_bytes: int = 0,
    shape: Sequence[int] = (),
) -> OpFeatures:
    """Compute features from the activations' shapes (lists of extents).

    `shape` holds further integers for telling kernels apart: kernel size, strides, padding, groups.
    """
    item = ITEM_BYTES.get(dtype, 1)  # of four or two bits: a byte each
    elements = sum(prod(s) for s in outputs)
    read = sum(prod(s) for s in inputs)
    taps = macs // elements if macs and elements else max(1, -(-read // elements) if elements else 1)
    first = tuple(outputs[0]) if outputs else ()
    return OpFeatures(
        kind=kind,
        macs=macs,
        bytes_in=read * item,
        bytes_out=elements * item,
        weight_bytes=weight_bytes,
        output_elements=elements,
        reduction=max(1, taps),
        parallel_rows=max(1, prod(first[:-2])) if len(first) > 2 else max(1, prod(first[:-1])),
        shape=tuple(x for s in (*inputs, *outputs) for x in (*s, -1)) + tuple(shape),
    )


def graph_features(graph: Graph) -> tuple[OpFeatures, ...]:
    """Compute the features of every operator in a graph, by index; a view costs no traffic and no launch."""
    return tuple(_operator_features(graph, op) for op in graph.ops)


def _operator_features(graph: Graph, op: Op) -> OpFeatures:
    if op.view:
        return OpFeatures(kind="view")
    read = [graph.tensors[t].shape for t in dict.fromkeys(op.inputs)]
    outs = [graph.tensors[t] for t in op.outputs]
    dtype = outs[0].dtype if outs else "float32"
    return features(op.kind, read, [t.shape for t in outs], dtype, op.macs, op.weight_bytes, _attribute_key(op))


def _attribute_key(op: Op) -> tuple[int, ...]:
    """Return an operator's windows and integer attributes (in name order), which distinguish its kernel."""
    key: list[int] = []
    for window in (*op.windows, *op.columns):
        key += [-5] if window is None else [window.extent, window.stride, window.dilation, window.padding]
    for name in sorted(op.attrs):
        value = op.attrs[name]
        values = value if isinstance(value, (tuple, list)) else (value,)
        key += [int(v) for v in values if isinstance(v, (int, bool))] + [-2]
    return tuple(key)


NO_BOUND = OpBound(works=(0.0,))
