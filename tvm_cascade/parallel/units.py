"""Scheduling units: groups of fused operators, scheduled as a single node by the inter-operator search.

IOS, section 5, leaves the unit to the user. `op`: every operator that is not a view. `fused`: an operator with its only
readers if they are element-wise (Conv-Relu), as compilers fuse them, and with an activation that is spelled out
(`closed_regions`). `sepconv`: in addition element-wise operators before a depthwise convolution, and that convolution
with the following 1x1 convolution (Relu-SepConv). `cell`: in addition element-wise operators before any convolution,
and sums read only by a concatenation or another sum: these are the operators IOS counts in NASNet and RandWire. There
the element-wise reader of the last operator where branches meet is a separate unit.

Views always belong to their producer, and an explicit padding to the only reader. A unit is an anchor, with operators
before that only the unit reads, and operators behind that read only the unit: no path leaves a unit and comes back, so
the units again form a directed acyclic graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property

from tvm_cascade.cost.interface import OpFeatures, graph_features
from tvm_cascade.graph import Graph, Op
from tvm_cascade.operators.table import CONVOLUTIONS, ELEMENTWISE
from tvm_cascade.parallel.attention import attention_chains
from tvm_cascade.parallel.closed_regions import closed_region

_LED_TO = CONVOLUTIONS | {"concat"}


@dataclass(frozen=True, slots=True)
class Unit:
    """Operators of a `Graph`, by index in topological order, scheduled as one; `anchor` does the most work."""

    index: int
    ops: tuple[int, ...]
    anchor: int


@dataclass(frozen=True)
class UnitGraph:
    """Units in topological order and the units each reads from."""

    graph: Graph
    units: tuple[Unit, ...]
    predecessors: tuple[tuple[int, ...], ...]
    features: tuple[tuple[OpFeatures, ...], ...]  # per unit, one entry per kernel it launches
    kernels: tuple[tuple[tuple[int, ...], ...], ...]  # per unit and kernel, the operators in it; a view stands alone

    @cached_property
    def owner(self) -> dict[int, int]:
        """Return the unit of each operator."""
        return {i: unit.index for unit in self.units for i in unit.ops}


def unit_graph(graph: Graph, unit: str) -> UnitGraph:
    """Group the graph into units of kind `op`, `fused`, `sepconv` or `cell` (see the module's docstring)."""
    owner = list(range(len(graph.ops)))
    excluded = _behind_branches(graph) if unit == "cell" else None
    forward = _leading(graph, unit, excluded)
    chains = () if unit == "op" else attention_chains(graph)
    chain_of = {i: chain for chain in chains for i in chain}
    for first, *others in chains:
        for i in others:
            _join(owner, first, i)
    for op in graph.ops:
        if op.index == excluded or op.index in chain_of:
            continue
        if forward[op.index]:
            _join(owner, op.index, graph.successors[op.index][0])
            continue
        head = _joins(graph, op, unit)
        if head is not None and not forward[head]:
            _join(owner, head, op.index)
    if unit != "op":
        barred = {*chain_of, *(i for i, leads in enumerate(forward) if leads), excluded}
        _join_regions(graph, owner, barred)
    return _build(graph, owner, chain_of)


def _join_regions(graph: Graph, owner: list[int], barred: Set[int | None]) -> None:
    """Join closed regions with the unit of the operator in front. `barred`: operators that belong elsewhere."""
    terms: dict[int, int] = {}  # of the expression of an operator's element behind the last region
    for op in graph.ops:
        before = graph.predecessors[op.index]
        if op.kind in ELEMENTWISE and op.index not in terms and len(before) == 1:
            terms[op.index] = terms.get(before[0], 1) + len(op.inputs)
        found = closed_region(graph, op, terms.get(op.index, 1))
        if found is None or not barred.isdisjoint(found[0]):
            continue
        for i in found[0]:
            _join(owner, op.index, i)
        terms[found[0][-1]] = found[1]


def _behind_branches(graph: Graph) -> int | None:
    """Return the element-wise operator that alone reads the last join of branches; the IOS authors do not fuse this
    operator.
    """
    joins = [op.index for op in graph.ops if len(graph.predecessors[op.index]) > 1]
    readers = graph.successors[joins[-1]] if joins else ()
    return readers[0] if len(readers) == 1 and graph.ops[readers[0]].kind in ELEMENTWISE else None


def _leading(graph: Graph, unit: str, excluded: int | None) -> list[bool]:
    """Tell for each operator whether it is element-wise and fused with the reader instead of the producer.

    Before a depthwise convolution all are; elsewhere only operators that are not the preceding kernel's epilogue.
    """
    separable, other = [False] * len(graph.ops), [False] * len(graph.ops)
    if unit not in ("sepconv", "cell"):
        return separable
    for op in reversed(graph.ops):
        if op.index == excluded or op.kind not in ELEMENTWISE or not _sole_reader(graph, op):
            continue
        reader = graph.ops[graph.successors[op.index][0]]
        separable[op.index] = reader.kind == "depthwise_conv2d" or separable[reader.index]
        leads = reader.kind in _LED_TO or other[reader.index] or op.kind == reader.kind == "add"
        other[op.index] = unit == "cell" and leads and not _rides(graph, op)
    return [a or b for a, b in zip(separable, other, strict=True)]


def _rides(graph: Graph, op: Op) -> bool:
    """Test whether the operator is the epilogue of the only kernel read."""
    producers = graph.predecessors[op.index]
    if len(producers) != 1:
        return False
    head = graph.ops[producers[0]]
    if head.kind in ELEMENTWISE:
        return _sole_reader(graph, head) and _rides(graph, head)
    return not head.view and head.kind != "concat" and _sole_reader(graph, head)


def _sole_reader(graph: Graph, op: Op) -> bool:
    return len(op.outputs) == 1 and len(graph.successors[op.index]) == 1 and op.outputs[0] not in graph.outputs


def _joins(graph: Graph, op: Op, unit: str) -> int | None:
    """Return the producer with the unit `op` joins, if any."""
    producers = graph.predecessors[op.index]
    if len(producers) != 1 or any(graph.producer[t] is None for t in op.inputs):
        return None
    head = graph.ops[producers[0]]
    if op.view:
        return head.index
    if not _sole_reader(graph, head):
        return None
    if head.kind == "pad" and op.kind not in ELEMENTWISE:
        return head.index
    if unit != "op" and op.kind in ELEMENTWISE:
        return head.index
    return head.index if unit in ("sepconv", "cell") and _separable(graph, head, op) else None


def _separable(graph: Graph, head: Op, op: Op) -> bool:
    """Test whether `op` is a 1x1 convolution after a depthwise convolution, with at most element-wise operators
    between.
    """
    while head.kind in ELEMENTWISE and len(graph.predecessors[head.index]) == 1:
        head = graph.ops[graph.predecessors[head.index][0]]
    pointwise = op.kind in CONVOLUTIONS and bool(op.windows) and op.windows[0] is not None and op.windows[0].extent == 1
    return pointwise and head.kind == "depthwise_conv2d"


def _root(owner: list[int], i: int) -> int:
    while owner[i] != i:
        owner[i] = owner[owner[i]]
        i = owner[i]
    return i


def _join(owner: list[int], a: int, b: int) -> None:
    low, high = sorted((_root(owner, a), _root(owner, b)))
    owner[high] = low


def _build(graph: Graph, owner: list[int], chain_of: Mapping[int, tuple[int, ...]]) -> UnitGraph:
    members: dict[int, list[int]] = {}
    for i in range(len(graph.ops)):
        members.setdefault(_root(owner, i), []).append(i)
    reads = {
        root: {_root(owner, p) for i in ops for p in graph.predecessors[i]} - {root} for root, ops in members.items()
    }
    order = _topological(members, reads)
    number = {root: k for k, root in enumerate(order)}
    single = graph_features(graph)
    units, unit_features, kernels = [], [], []
    for k, root in enumerate(order):
        ops = tuple(members[root])
        units.append(Unit(k, ops, max(ops, key=lambda i: (single[i].macs, single[i].work, -i))))
        kernels.append(_kernels(graph, ops, chain_of))
        unit_features.append(tuple(_fuse(graph, k, single) for k in kernels[-1]))
    predecessors = tuple(tuple(sorted(number[p] for p in reads[root])) for root in order)
    return UnitGraph(graph, tuple(units), predecessors, tuple(unit_features), tuple(kernels))


def _topological(members: dict[int, list[int]], reads: dict[int, set[int]]) -> list[int]:
    """Order the units (by root) topologically; among ready units the first to end in file order comes next."""
    left = {root: set(before) for root, before in reads.items()}
    order: list[int] = []
    done: set[int] = set()
    while left:
        ready = min((r for r in left if left[r] <= done), key=lambda r: members[r][-1])
        order.append(ready)
        done.add(ready)
        del left[ready]
    return order


def _kernels(
    graph: Graph, ops: tuple[int, ...], chain_of: Mapping[int, tuple[int, ...]]
) -> tuple[tuple[int, ...], ...]:
    """Group a unit's operators into kernels: one per anchor, with the following element-wise operators; a view is a
    separate kernel.

    All operators in an attention, which share a chain in `chain_of`, form a single kernel.
    """
    groups: list[list[int]] = []
    for i in ops:
        op = graph.ops[i]
        chain = chain_of.get(i, ())
        if groups and chain and groups[-1][0] in chain:
            groups[-1].append(i)
            continue
        view = op.view and not chain
        fresh = not groups or view or bool(chain) or _is_view(graph, groups[-1], chain_of)
        if fresh or (_anchors(op) and any(_anchors(graph.ops[j]) for j in groups[-1])):
            groups.append([])
        groups[-1].append(i)
    return tuple(tuple(kernel) for kernel in groups)


def _is_view(graph: Graph, kernel: list[int], chain_of: Mapping[int, tuple[int, ...]]) -> bool:
    return graph.ops[kernel[0]].view and kernel[0] not in chain_of


def _anchors(op: Op) -> bool:
    """Test whether a kernel is built around this operator."""
    return op.kind not in ELEMENTWISE and not op.view and op.kind != "pad"


def _fuse(graph: Graph, ops: tuple[int, ...], single: tuple[OpFeatures, ...]) -> OpFeatures:
    """Compute the features of a kernel that runs these operators; the operator with the most work is the anchor."""
    if len(ops) == 1:
        return single[ops[0]]
    inside = set(ops)
    written = {t for i in ops for t in graph.ops[i].outputs}
    reads = {t for i in ops for t in graph.ops[i].inputs} - written
    writes = [t for t in written if t in graph.outputs or set(graph.consumers[t]) - inside]
    anchor = single[max(ops, key=lambda i: (single[i].macs, single[i].work, -i))]
    outs = writes or graph.ops[ops[-1]].outputs
    return OpFeatures(
        kind=anchor.kind,
        macs=sum(single[i].macs for i in ops),
        bytes_in=sum(graph.tensors[t].bytes for t in reads),
        bytes_out=sum(graph.tensors[t].bytes for t in outs),
        weight_bytes=sum(single[i].weight_bytes for i in ops),
        output_elements=anchor.output_elements,
        reduction=anchor.reduction,
        parallel_rows=anchor.parallel_rows,
        shape=anchor.shape + tuple(x for i in ops for x in (-3, *map(ord, graph.ops[i].kind[:4]))),
    )
