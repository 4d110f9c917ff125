"""What every cost model answers, and the features of an operator that it answers from.

A *stage* is a tuple of groups that run at the same time; a *group* is a sequence of operators that run one after the
other (IOS, section 3). An operator alone is the stage of one group of one operator. Costs are milliseconds.

The search asks a model for two more things, so that it can leave stages unpriced without losing exactness: additive
works and path spans, both lower bounds (`OpBound`). A model that cannot prove any returns zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol, runtime_checkable

from tvm_cascade.graph import ITEM_BYTES, Graph, Op


@dataclass(frozen=True, slots=True)
class OpFeatures:
    """What a cost model may know of one operator: independent of its name and of its place in the network."""

    kind: str  # the word of `graph.Op.kind`
    macs: int = 0  # multiply-accumulates
    bytes_in: int = 0  # activations read, each tensor once
    bytes_out: int = 0  # activations written
    weight_bytes: int = 0
    output_elements: int = 0
    reduction: int = 1  # values read per output element: kernel taps times input channels
    parallel_rows: int = 1  # independent outermost slices (batch, channels, rows) that a CPU kernel can share out
    shape: tuple[int, ...] = ()  # launch geometry and attributes that a table of measurements must tell apart

    @property
    def bytes(self) -> int:
        """All traffic: activations and weights, each byte once."""
        return self.bytes_in + self.bytes_out + self.weight_bytes

    @property
    def work(self) -> int:
        """Arithmetic in units of a multiply-accumulate; an operator without MACs does one step per value read."""
        return self.macs or self.output_elements * max(self.reduction, 1)


@dataclass(frozen=True, slots=True)
class OpBound:
    """Lower bounds, in milliseconds, of what an operator adds to any stage that holds it.

    A stage never costs less than the sum of `works[k]` over its operators, for each resource k, nor less than the sum
    of `span` along any path through it. A stage of one group never costs less than the sum of `alone`; one of several
    groups costs at least `CostModel.fork_ms` on top of the other bounds, unless it is merged.
    """

    works: tuple[float, ...] = ()
    span: float = 0.0
    alone: float = 0.0


Groups = Sequence[Sequence[OpFeatures]]


@runtime_checkable
class CostModel(Protocol):
    """Analytic, measured and learned costs are interchangeable behind this."""

    name: str
    fork_ms: float  # least cost of running several groups at once; 0 where nothing is known

    def op_ms(self, op: OpFeatures) -> float:
        """Milliseconds of the operator alone."""
        ...

    def stage_ms(self, groups: Groups) -> float:
        """Milliseconds of a stage: its groups concurrently, each group's operators in sequence."""
        ...

    def merged_ms(self, merged: OpFeatures, parts: Sequence[OpFeatures]) -> float:
        """Milliseconds of operators merged into one; `parts` are what they were."""
        ...

    def bound(self, op: OpFeatures, mergeable: bool) -> OpBound:
        """Lower bounds for one operator; `mergeable`: a merge may spare it the reading of its input."""
        ...


class Runner(Protocol):
    """Runs stages on a device: local now, a remote one behind the same methods."""

    device: str  # names the device and its setting: records of others do not mix with its own
    workers: int  # cores or streams that run groups at the same time

    def run(self, groups: Groups, repeats: int) -> list[float]:
        """Milliseconds of `repeats` runs of a stage."""
        ...

    def run_merged(self, parts: Sequence[OpFeatures], repeats: int) -> list[float]:
        """Milliseconds of `repeats` runs of operators merged into one."""
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
    """Features from the shapes of the activations (lists of extents).

    `shape` holds what else distinguishes the kernel: kernel size, strides, padding, groups.
    """
    item = ITEM_BYTES[dtype]
    made = sum(prod(s) for s in outputs)
    read = sum(prod(s) for s in inputs)
    taps = macs // made if macs and made else max(1, -(-read // made) if made else 1)
    first = tuple(outputs[0]) if outputs else ()
    return OpFeatures(
        kind=kind,
        macs=macs,
        bytes_in=read * item,
        bytes_out=made * item,
        weight_bytes=weight_bytes,
        output_elements=made,
        reduction=max(1, taps),
        parallel_rows=max(1, prod(first[:-2])) if len(first) > 2 else max(1, prod(first[:-1])),
        shape=tuple(x for s in (*inputs, *outputs) for x in (*s, -1)) + tuple(shape),
    )


def graph_features(graph: Graph) -> tuple[OpFeatures, ...]:
    """Features of every operator of a graph, by index; a view costs no traffic and no launch."""
    return tuple(_operator_features(graph, op) for op in graph.ops)


def _operator_features(graph: Graph, op: Op) -> OpFeatures:
    if op.view:
        return OpFeatures(kind="view")
    read = [graph.tensors[t].shape for t in dict.fromkeys(op.inputs)]
    outs = [graph.tensors[t] for t in op.outputs]
    dtype = outs[0].dtype if outs else "float32"
    return features(op.kind, read, [t.shape for t in outs], dtype, op.macs, op.weight_bytes, _attribute_key(op))


def _attribute_key(op: Op) -> tuple[int, ...]:
    """Windows and the integers among an operator's attributes, by name: what tells two kernels apart."""
    key: list[int] = []
    for window in (*op.windows, *op.columns):
        key += [-5] if window is None else [window.extent, window.stride, window.dilation, window.padding]
    for name in sorted(op.attrs):
        value = op.attrs[name]
        values = value if isinstance(value, (tuple, list)) else (value,)
        key += [int(v) for v in values if isinstance(v, (int, bool))] + [-2]
    return tuple(key)


NO_BOUND = OpBound(works=(0.0,))
