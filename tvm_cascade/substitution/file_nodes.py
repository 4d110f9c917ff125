"""Write an ONNX file's nodes unchanged where no substitution applied.

Importing decomposes nodes: a local response normalization becomes a pool and arithmetic. A node's *region* is its form
in the graph, from its operands to its results. If the optimized graph holds a region unchanged, on the same or on
replaced tensors, the node itself is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_cascade.operators.table import COMMUTATIVE
from tvm_cascade.substitution.dag import Dag, Node, Pool, Ref, postorder

_SAID_ONE_WAY = frozenset((
    "add", "clip", "concat", "conv2d", "div", "exp", "matmul", "maximum", "minimum", "mul", "neg", "relu", "relu6", "reshape",
    "sigmoid", "split", "sqrt", "sub", "tanh", "transpose",
))  # fmt: skip
"""Kinds of operators that ONNX has one node for, written anew where what they read was substituted."""


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes of the file, in order, that compute the tensor `name` from the values `reads`."""

    name: str
    nodes: tuple[Any, ...]
    reads: frozenset[Ref]  # values of the graph
    inside: frozenset[Node]  # the operators of the graph that stand for them


class FileNodes:
    """The nodes in a file's main graph, and their tensors' places in a graph."""

    def __init__(self, model: Any, values: Mapping[str, Ref], fold: Callable[[Ref], np.ndarray]) -> None:
        """Store the nodes. `values` are the file's tensors in the graph (`Read.files`), inputs included; `fold` gives
        the values of constants.
        """
        self.fold = fold
        self.model = model
        self.values = values
        self.makers: dict[str, Any] = {name: node for node in model.graph.node for name in node.output if name}
        self.constants: dict[str, Any] = {tensor.name: tensor for tensor in model.graph.initializer}
        self.opset = next((int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
        self._order = {id(node): at for at, node in enumerate(model.graph.node)}
        self._names: dict[Ref, str] = {}
        for node in model.graph.node:
            for name in node.output:
                if name in values:
                    self._names.setdefault(values[name], name)
        self._by_root: dict[tuple[Any, ...], list[Region]] | None = None
        self._regions: dict[str, Region | None] = {}

    def called(self, region: Region) -> Iterator[tuple[str, Ref]]:
        """Yield the names used by a region's nodes for its operands: a single value may have several names."""
        for name in {name for node in region.nodes for name in _reads(node)}:
            ref = self.values.get(name)
            if ref is not None and ref in region.reads:
                yield name, ref

    def taken(self) -> set[str]:
        """Return all names of the file, subgraphs included."""
        found: set[str] = set(self.constants)
        for node in _all_nodes(self.model.graph):
            found.update(node.input, node.output)
        return found

    def as_read(self, ref: Ref) -> Region | None:
        """Return a value's region in the graph as read; None for a value not written by the file."""
        name = self._names.get(ref)
        return None if name is None else self._region(name)

    def moved(self, ref: Ref, used: set[str]) -> tuple[Region, Mapping[Ref, Ref]] | None:
        """Return a region that computes a value from replaced tensors, with the replacements.

        Among several, return the last not `used`: values are asked for from the graph's end.
        """
        for region in sorted(reversed(self._candidates(ref.node)), key=lambda r: r.name in used):
            root, bound = self.values[region.name], dict[Ref, Ref]()
            if root.port == ref.port and _matches(root, ref, region.reads, bound) and len(bound) == len(region.reads):
                return region, bound
        return None

    def _candidates(self, node: Node) -> Sequence[Region]:
        if self._by_root is None:
            self._by_root = {}
            for ref, name in self._names.items():
                region = self._region(name)
                if region is None or (len(region.inside) == 1 and ref.node.kind in _SAID_ONE_WAY):
                    continue
                if not any(outer_reads(node) for node in region.nodes):  # subgraphs read by the names of the file
                    self._by_root.setdefault(_key(ref.node), []).append(region)
        return self._by_root.get(_key(node), [])

    def _region(self, name: str) -> Region | None:
        if name not in self._regions:
            self._regions[name] = self._found(name)
        return self._regions[name]

    def _found(self, name: str) -> Region | None:
        """Return the region for the node that writes `name`, with earlier nodes if its operands are not in the graph."""
        nodes: dict[int, Any] = {}
        reads: set[Ref] = set()
        before = _inside(self.values[name], frozenset(), inputs=True) or set()
        waiting = [name]
        while waiting:
            maker = self.makers.get(waiting.pop())
            if maker is None:
                return None
            if id(maker) in nodes:
                continue
            nodes[id(maker)] = maker
            for read in _reads(maker):
                ref = self.values.get(read)
                if ref is not None and not ref.node.constant and ref.node in before:
                    reads.add(ref)
                elif read not in self.constants and (ref is None or not self._folds(ref)):
                    waiting.append(read)
        inside = _inside(self.values[name], reads)
        if inside is None:
            return None
        return Region(
            name, tuple(sorted(nodes.values(), key=lambda n: self._order[id(n)])), frozenset(reads), frozenset(inside)
        )

    def _folds(self, ref: Ref) -> bool:
        """Return True if a value is constant in the graph as read."""
        return ref.node.constant and all(node.kind != "opaque" for node in postorder([ref]))


def _reads(node: Any) -> Iterator[str]:
    """Yield the tensors read by a node, and outside tensors read by its subgraphs."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
            inner = {value.name for value in (*graph.input, *graph.initializer)}
            for one in graph.node:
                yield from (name for name in _reads(one) if name not in inner)
                inner.update(one.output)
            yield from (value.name for value in graph.output if value.name not in inner)


def outer_reads(node: Any) -> set[str]:
    """Return the tensors read only by a node's subgraphs."""
    return set(_reads(node)) - set(node.input)


def _all_nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
                yield from _all_nodes(inner)


def _key(node: Node) -> tuple[Any, ...]:
    return node.kind, node.attrs


def _inside(root: Ref, reads: Collection[Ref], inputs: bool = False) -> set[Node] | None:
    """Return the nodes between `reads` and a value, or with `inputs` all its ancestors; None if an input beside `reads`
    contributes.
    """
    found: set[Node] = set()
    waiting = [root]
    while waiting:
        ref = waiting.pop()
        if ref in reads or ref.node.constant or ref.node in found:
            continue
        if ref.node.kind == "input" and not inputs:
            return None
        found.add(ref.node)
        waiting += ref.node.inputs
    return found


def _matches(region: Ref, ref: Ref, reads: Collection[Ref], bound: dict[Ref, Ref]) -> bool:
    """Return True if `ref` is computed like `region`, from replaced tensors: `bound` maps the region's to the new ones."""
    if region in reads:
        return bound.setdefault(region, ref) == ref and region.type == ref.type
    if region.node.constant or ref.node.constant:
        return region == ref
    if (
        region.port != ref.port
        or _key(region.node) != _key(ref.node)
        or len(region.node.inputs) != len(ref.node.inputs)
    ):
        return False
    given, here = region.node.inputs, ref.node.inputs
    sorted_by_pool = region.node.kind in COMMUTATIVE and len(here) == 2
    for order in [here, here[::-1]] if sorted_by_pool else [here]:
        held = dict(bound)
        if all(_matches(a, b, reads, held) for a, b in zip(given, order, strict=True)):
            bound.update(held)
            return True
    return False


def unfused(dag: Dag) -> Dag:
    """Return a graph without fused operators: each becomes its original operators, unchanged without a substitution."""
    made: dict[Ref, Ref] = {}
    pool = dag.pool
    for node in dag.nodes:
        inputs = tuple(made.get(ref, ref) for ref in node.inputs)
        if node.kind == "fused":
            made[node.result] = _expanded(pool, node["program"], inputs, {})
            continue
        act = str(node.get("act", ""))
        attrs = tuple((name, "" if name == "act" else value) for name, value in node.attrs)
        changed = node if inputs == node.inputs and not act else pool.node(node.kind, inputs, attrs, node.types)
        for port, ref in enumerate(node.outputs):
            made[ref] = changed.outputs[port] if not act else pool.make(act, changed.outputs[port])
    return Dag(pool, dag.inputs, tuple(made.get(ref, ref) for ref in dag.outputs))


def _expanded(pool: Pool, term: Any, inputs: Sequence[Ref], known: dict[Any, Ref]) -> Ref:
    if isinstance(term, int):
        return inputs[term]
    if term not in known:
        kind, attrs, operands = term
        known[term] = pool.make(kind, *(_expanded(pool, t, inputs, known) for t in operands), **dict(attrs))
    return known[term]
