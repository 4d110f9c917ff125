"""The graph for substitutions: hash-consed operators, with weights as constant operators.

MetaFlow (SysML 2019) section 2 defines a computation graph as operators joined by tensors. Here a `Pool` interns
operators: equal kind, attributes and operands make one object. So a graph is its tuple of output references, structural
equality is identity, and a substitution copies only downstream operators. The published artifact compares graphs by
hash alone; the pool's dictionary compares the whole key.

Weights are leaves like inputs, and a weight derived by a rule (a concatenation, a padded kernel) is an operator on
constants: `Node.constant` is true if an operator reads only weights. Constants are folded after the search and cost
nothing. In a training graph weights are inputs, so rules that require constants do not apply.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tvm_cascade.operators.record import TensorType
from tvm_cascade.operators.table import COMMUTATIVE, WRITERS, infer

Attr = Any  # int, float, str, bool or nested tuples of them: hashable and comparable
_NAMED = ("input", "weight")  # leaves, whose types are given instead of inferred


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator. Equal operators of a pool are the same object, so nodes compare by identity."""

    index: int  # number in the pool, in order of creation: operands before their readers
    kind: str
    attrs: tuple[tuple[str, Attr], ...]  # sorted by name
    inputs: tuple[Ref, ...]
    types: tuple[TensorType, ...]  # of the outputs
    constant: bool  # reads weights only: folded at compile time
    signature: int  # number in the pool of (kind, attributes, types, which operands are constant)
    outputs: tuple[Ref, ...] = field(init=False, repr=False)
    operands: tuple[Ref, ...] = field(init=False, repr=False)  # of `inputs` those that are no constants, each once
    below: tuple[Node, ...] = field(init=False, repr=False)  # the operators of `operands`, from the last to the first

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", tuple([Ref(self, port) for port in range(len(self.types))]))
        object.__setattr__(self, "operands", tuple(dict.fromkeys([r for r in self.inputs if not r.node.constant])))
        object.__setattr__(self, "below", tuple([r.node for r in reversed(self.operands)]))

    def __getitem__(self, name: str) -> Attr:
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(name)

    def get(self, name: str, default: Attr = None) -> Attr:
        return next((value for key, value in self.attrs if key == name), default)

    @property
    def result(self) -> Ref:
        """Return the first output, usually the only one."""
        return self.outputs[0]

    @property
    def type(self) -> TensorType:
        return self.types[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.types[0].shape


class Ref(NamedTuple):
    """One output of an operator."""

    node: Node
    port: int

    @property
    def type(self) -> TensorType:
        return self.node.types[self.port]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.types[self.port].shape


class Pool:
    """Interns operators: an append-only table for all graphs in a single search."""

    def __init__(self) -> None:
        self._nodes: dict[tuple, Node] = {}
        self._signatures: dict[tuple, int] = {}
        self._known: dict[tuple, tuple[tuple[TensorType, ...], int]] = {}  # types and signature, by what they depend on
        self._memories: dict[int, tuple[object, dict[int, Any]]] = {}  # owners are kept alive: their ids stay unique

    def memory(self, owner: object) -> dict[int, Any]:
        """Return an object's cache in this pool, for instance a cost function's: values by `Node.signature`."""
        return self._memories.setdefault(id(owner), (owner, {}))[1]

    def input(self, name: str, shape: Iterable[int], dtype: str = "float32") -> Ref:
        return Ref(self.node("input", (), (("name", name),), (TensorType(tuple(shape), dtype),)), 0)

    def weight(self, name: str, shape: Iterable[int], dtype: str = "float32") -> Ref:
        """Return a named constant; the graph does not hold its value."""
        return Ref(self.node("weight", (), (("name", name),), (TensorType(tuple(shape), dtype),)), 0)

    def make(self, kind: str, *inputs: Ref, **attrs: Attr) -> Ref:
        """Return output 0 of an operator, created unless present; types are inferred. Raises `GraphError` for
        unsuitable operands.
        """
        return self.node(kind, inputs, tuple(sorted(attrs.items()))).result

    def like(self, node: Node, *inputs: Ref, **changes: Attr) -> Ref:
        """Return output 0 of an operator like `node` on other operands, with its attributes except `changes`."""
        return self.make(node.kind, *inputs, **{**dict(node.attrs), **changes})

    def split(self, whole: Ref, axis: int, sizes: Iterable[int]) -> tuple[Ref, ...]:
        """Return `split`'s outputs for `whole`, parts with these sizes along an axis."""
        return self.make("split", whole, axis=axis, sizes=tuple(sizes)).node.outputs

    def node(
        self,
        kind: str,
        inputs: tuple[Ref, ...],
        attrs: tuple[tuple[str, Attr], ...],
        types: tuple[TensorType, ...] | None = None,
    ) -> Node:
        """Return the operator with these fields, created unless present. Commutative operands are sorted, so a + b is b
        + a.
        """
        if kind in COMMUTATIVE and len(inputs) == 2 and _position(inputs[1]) < _position(inputs[0]):
            inputs = (inputs[1], inputs[0])
        if kind == "concat" and len(attrs) > 1 and any(r.node.kind not in WRITERS for r in inputs):
            attrs = tuple(a for a in attrs if a[0] != "in_place")
        key = (kind, attrs, inputs, types if kind in _NAMED else None)
        known = self._nodes.get(key)
        if known is not None:
            return known
        read = tuple([r.node.types[r.port] for r in inputs])
        flags = tuple([r.node.constant for r in inputs])
        given = (kind, attrs, read, flags, types)
        if given not in self._known:
            made = infer(kind, read, dict(attrs)) if types is None else types
            self._known[given] = (
                made,
                self._signatures.setdefault((kind, attrs, read, flags, made), len(self._signatures)),
            )
        types, signature = self._known[given]
        constant = kind not in ("input", "opaque") and all(flags)
        new = Node(len(self._nodes), kind, attrs, inputs, types, constant, signature)
        self._nodes[key] = new
        return new


def _position(ref: Ref) -> tuple[int, int]:
    return ref.node.index, ref.port


@dataclass(frozen=True, eq=False)
class Dag:
    """A graph: inputs by position, outputs by reference.

    `nodes` are its operators in topological order, no leaves and no constants among them.
    """

    pool: Pool
    inputs: tuple[Ref, ...]
    outputs: tuple[Ref, ...]
    nodes: tuple[Node, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(_running(self.outputs)))

    def users(self) -> dict[Ref, list[Node]]:
        """Map each reference to its readers, topologically, each once."""
        used: dict[Ref, list[Node]] = {}
        for node in self.nodes:
            for ref in node.inputs:
                seen = used.setdefault(ref, [])
                if not seen or seen[-1] is not node:
                    seen.append(node)
        return used

    def constants(self) -> tuple[Ref, ...]:
        """Return the constants read by operators or outputs, which have to be folded."""
        read = [r for n in self.nodes for r in n.inputs] + list(self.outputs)
        return tuple(dict.fromkeys(r for r in read if r.node.constant))

    def digest(self) -> str:
        """Return a canonical structural hash, equal across pools and runs: hexadecimal SHA-256."""
        names = {ref.node: f"input {i}" for i, ref in enumerate(self.inputs)}
        hashes: dict[Node, str] = {}
        for node in postorder(self.outputs):
            if node in names:
                text = names[node]
            else:
                operands = [f"{hashes[r.node]}.{r.port}" for r in node.inputs]
                if node.kind in COMMUTATIVE:
                    operands.sort()
                text = f"{node.kind}{node.attrs}{node.types}{operands}"
            hashes[node] = hashlib.sha256(text.encode()).hexdigest()
        return hashlib.sha256(" ".join(f"{hashes[r.node]}.{r.port}" for r in self.outputs).encode()).hexdigest()


def postorder(outputs: Iterable[Ref], cut: Callable[[Node], bool] | None = None) -> list[Node]:
    """Return all ancestors of `outputs`, operands first, in a fixed depth-first order; do not follow nodes in `cut`."""
    done: dict[Node, None] = {}
    stack: list[Node] = [r.node for r in reversed(tuple(outputs))]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        end = cut is not None and cut(node)
        waiting = [] if end else [r.node for r in reversed(node.inputs) if r.node not in done]
        if waiting:
            stack.extend(waiting)
        else:
            stack.pop()
            done[node] = None
    return list(done)


def _running(outputs: Iterable[Ref]) -> list[Node]:
    """Return `postorder` without constants and inputs: a constant has only constant ancestors."""
    done: dict[Node, None] = {}
    stack = [r.node for r in reversed(tuple(outputs)) if not r.node.constant]
    while stack:
        node = stack[-1]
        if node not in done:
            height = len(stack)
            for before in node.below:
                if before not in done:
                    stack.append(before)
            if len(stack) > height:
                continue
            done[node] = None
        stack.pop()
    return [n for n in done if n.kind != "input"]


def replaced(dag: Dag, mapping: Mapping[Ref, Ref]) -> tuple[Ref, ...]:
    """Return the outputs of `dag` after replacing all references in `mapping`; replacements are not rewritten."""
    moved: dict[Ref, Ref] = dict(mapping)
    pool = dag.pool
    for node in dag.nodes:
        for r in node.inputs:
            if r in moved:
                break
        else:
            continue
        inputs = tuple([moved.get(r, r) for r in node.inputs])
        types = node.types
        for a, b in zip(inputs, node.inputs, strict=True):
            if a is not b and a.type != b.type:
                types = None
                break
        copy = pool.node(node.kind, inputs, node.attrs, types)
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            moved.setdefault(old, new)
    return tuple([moved.get(r, r) for r in dag.outputs])


def replace(dag: Dag, mapping: Mapping[Ref, Ref]) -> Dag:
    """Return `dag` after replacing all references in `mapping`."""
    return Dag(dag.pool, dag.inputs, replaced(dag, mapping))


def rebuild(outputs: Iterable[Ref], pool: Pool, leaf: Callable[[Ref], Ref | None]) -> tuple[Ref, ...]:
    """Copy `outputs` and their ancestors into `pool`; a reference returned by `leaf` replaces the copy."""
    outputs = tuple(outputs)
    moved: dict[Ref, Ref] = {}
    for node in postorder(outputs, lambda n: all([leaf(r) is not None for r in n.outputs])):
        given = [leaf(r) for r in node.outputs]
        if None in given:
            copy = pool.node(node.kind, tuple(moved[r] for r in node.inputs), node.attrs, node.types)
            given = [r or copied for r, copied in zip(given, copy.outputs, strict=True)]
        moved.update((old, new) for old, new in zip(node.outputs, given, strict=True) if new is not None)
    return tuple(moved[r] for r in outputs)
