"""TASO's generated substitutions (Jia et al., SOSP 2019) as rules, each verified by our evaluation.

TASO proves its rules by axioms about its own operators. Here each rule's source and target compute random tensors in
several small shapes (matrices, batches, images), and one difference refuses the rule. Concatenating rules match only
tensors with as many axes as they name. Rules with two outputs from operators without a common operand are refused too,
as no pattern joins them.

Open points follow TASO's loader: convolutions have one group and stride 1 and keep the image size, images are NCHW,
operands in sums and products share a shape, and a split undoes its concatenation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations, islice, product
from pathlib import Path

import numpy as np

from tvm_cascade.errors import GraphError
from tvm_cascade.operators.table import COMMUTATIVE
from tvm_cascade.substitution.dag import Node, Pool, Ref
from tvm_cascade.substitution.evaluate import evaluate
from tvm_cascade.substitution.pattern import Rule, Target, op
from tvm_cascade.substitution.taso_file import TasoOperator, TasoRule, read_taso_rules

Values = dict[int, Ref]  # of a rule's variables
Ends = dict[int, dict[int, int]]  # by operator: by axis, where the first part of a concatenation ends
_ACTIVATIONS = {0: "", 2: "relu"}
_NO_COMMON = "its two outputs come from operators that read nothing in common"
_SHAPES = (
    ((2, 3), (3, 2), (2, 2), (4, 3), (3, 4), (2, 4), (4, 2)),
    ((2, 2, 3), (2, 3, 2), (2, 3, 3), (3, 2), (3, 3)),
    ((1, 2, 4, 5), (1, 4, 4, 5), (2, 2, 4, 5), (2, 2, 3, 3), (4, 2, 3, 3), (2, 4, 3, 3), (2, 2, 1, 1), (2, 4, 1, 1)),
)  # of matrices, of batches of matrices, of images and weights
_CASES = 4  # of each kind of shapes that a rule is verified on
_TRIES = 1500  # assignments of shapes that are looked at for them
_TOLERANCE = 1e-9  # relative to the largest value, in float64


@dataclass(frozen=True)
class TasoRules:
    """A file's verified rules, and the reasons against all others, by name."""

    rules: tuple[Rule, ...]
    names: tuple[str, ...]  # of verified rules, each once
    refused: Mapping[str, str]


def load_taso_rules(path: Path) -> TasoRules:
    """Read, verify and convert the rules of TASO's file. Raises `LoadError` as `read_taso_rules`."""
    rules, names, refused = list[Rule](), list[str](), dict[str, str]()
    for rule in read_taso_rules(path):
        name = f"taso_{rule.number}"
        why = _defect(rule)
        if why is None:
            names.append(name)
            rules += _converted(rule, name)
        else:
            refused[name] = why
    return TasoRules(tuple(rules), tuple(names), refused)


def _converted(rule: TasoRule, name: str) -> Iterator[Rule]:
    """Yield the rule once per operand order in its sums and products, which are commutative."""
    turned = [k for k, o in enumerate(rule.source) if o.kind in COMMUTATIVE and o.inputs[0] != o.inputs[1]]
    roots = tuple(op(f"n{k}", rule.source[o].kind) for k, ((o, _), _) in enumerate(rule.outputs))
    shared = _common(rule) or 0
    for swapped in chain.from_iterable(combinations(turned, n) for n in range(len(turned) + 1)):
        target = partial(_rewritten, rule, frozenset(swapped))
        yield Rule(name, f"source of rule {rule.number}", f"target of rule {rule.number}", roots, target, shared, True)


def _common(rule: TasoRule) -> int | None:
    """Return the operand shared by the two operators behind a rule's outputs; None without one, or for one output."""
    operators = [rule.source[o] for (o, _), _ in rule.outputs]
    if len(operators) != 2 or operators[0].kind != operators[1].kind:
        return None
    pairs = zip(operators[0].inputs, operators[1].inputs, strict=False)
    return next((k for k, (a, b) in enumerate(pairs) if a == b), None)


def _rewritten(rule: TasoRule, swapped: frozenset[int], pool: Pool, **roots: Node) -> Target:
    """Return a match's replacements; None if the operators lack the source's form."""
    match = _Match(rule.source, (*rule.source, *rule.target), swapped, {}, {})
    with suppress(GraphError):
        if not all(match.binds(o, roots[f"n{k}"]) for k, ((o, _), _) in enumerate(rule.outputs)):
            return None
        made = build(pool, rule.target, match.values)
        new = {match.nodes[a].outputs[p]: made[b][q] for (a, p), (b, q) in rule.outputs}
        if all(old.type == ref.type for old, ref in new.items()) and any(old != ref for old, ref in new.items()):
            return new
    return None


@dataclass
class _Match:
    """The graph operators and variable values matched to a rule's source."""

    source: Sequence[TasoOperator]
    ranked: Sequence[TasoOperator]  # all operators of the rule: its concatenations say how many axes tensors have
    swapped: frozenset[int]  # operators whose operands are matched in the other order
    nodes: dict[int, Node]
    values: Values

    def binds(self, k: int, node: Node) -> bool:
        """Return True if source operator k can be `node`, given earlier bindings."""
        if k in self.nodes:
            return self.nodes[k] is node
        operator = self.source[k]
        if node.kind != operator.kind or not _fits(operator, node):
            return False
        ranks = {o.parameters["rank"] for o in self.ranked if o.kind == "concat"}
        if any(len(r.shape) not in (ranks or {len(r.shape)}) for r in node.inputs):
            return False  # axes are numbers: in other tensors they mean something else
        self.nodes[k] = node
        read = tuple(reversed(node.inputs)) if k in self.swapped else node.inputs
        for (o, port), ref in zip(operator.inputs, read, strict=True):
            if o < 0:
                if self.values.setdefault(o, ref) != ref:
                    return False
            elif ref.port != port or not self.binds(o, ref.node):
                return False
        return operator.kind != "split" or node["sizes"] == _parts(node.inputs[0], operator, self._ends())

    def _ends(self) -> Ends:
        """Return the ends of concatenations read by bound operators."""
        ends: Ends = {}
        for k in sorted(self.nodes):
            ends[k] = _ends_of(self.source[k], [r.shape for r in self.nodes[k].inputs], ends)
        return ends


def _fits(operator: TasoOperator, node: Node) -> bool:
    """Return True if a graph operator has the form TASO means by its kind."""
    if len(node.inputs) != len(operator.inputs):
        return False
    if operator.kind == "concat":
        return node["axis"] == operator.parameters["axis"] and len(node.shape) == operator.parameters["rank"]
    if operator.kind == "split":
        return node["axis"] == operator.parameters["axis"] and len(node.types) == 2
    if operator.kind in COMMUTATIVE:
        return all(r.shape == node.shape for r in node.inputs)
    if operator.kind == "matmul":
        return node["act"] == _ACTIVATIONS.get(operator.parameters.get("activation", 0))
    return operator.kind != "conv2d" or dict(node.attrs) == _convolution(operator, node.inputs[1].shape)


def _convolution(operator: TasoOperator, weights: Sequence[int]) -> dict[str, object]:
    """Return the attributes for TASO's convolution with weights in this shape, which keeps the image size."""
    kh, kw = weights[2:]
    strides = operator.parameters.get("stride_h", 1), operator.parameters.get("stride_w", 1)
    return {
        "strides": strides,
        "padding": ((kh - 1) // 2, (kw - 1) // 2, kh // 2, kw // 2),
        "dilation": (1, 1),
        "groups": 1,
        "act": _ACTIVATIONS.get(operator.parameters.get("activation", 0)),
        "layout": "NCHW",
    }


def _ends_of(operator: TasoOperator, shapes: Sequence[tuple[int, ...]], ends: Ends) -> dict[int, int]:
    """Return by axis the end of a concatenation's first part in an operator's result."""
    known = [ends.get(o, {}) for o, _ in operator.inputs]
    if operator.kind == "concat":
        return {operator.parameters["axis"]: shapes[0][operator.parameters["axis"]]}
    if operator.kind == "matmul":
        return {a: at[a] for a, at in zip((0, 1), known, strict=True) if a in at}
    if operator.kind == "conv2d":  # images of the batch; channels of the result are rows of the weights
        return {a: at[0] for a, at in zip((0, 1), known, strict=True) if 0 in at}
    return (
        {} if operator.kind == "split" else {a: n for a, n in known[0].items() if all(at.get(a) == n for at in known)}
    )


def _parts(whole: Ref, operator: TasoOperator, ends: Ends) -> tuple[int, int]:
    """Return the sizes of a split's two parts. Raises `GraphError` without an earlier concatenation."""
    axis, (producer, _) = operator.parameters["axis"], operator.inputs[0]
    end = ends.get(producer, {}).get(axis)
    if end is None or end >= whole.shape[axis]:
        raise GraphError(f"a split of {whole.shape} along axis {axis}, where nothing was concatenated")
    return end, whole.shape[axis] - end


def build(pool: Pool, operators: Sequence[TasoOperator], values: Mapping[int, Ref]) -> list[tuple[Ref, ...]]:
    """Return every operator's outputs on one side of a rule, for these variables. Raises `GraphError` for unsuitable
    operands.
    """
    made: list[tuple[Ref, ...]] = []
    ends: Ends = {}
    for k, operator in enumerate(operators):
        read = [values[o] if o < 0 else made[o][port] for o, port in operator.inputs]
        made.append(_build(pool, operator, read, ends))
        ends[k] = _ends_of(operator, [r.shape for r in read], ends)
    return made


def _build(pool: Pool, operator: TasoOperator, read: Sequence[Ref], ends: Ends) -> tuple[Ref, ...]:
    """Return a single operator's outputs. Raises `GraphError` for unsuitable operands."""
    ranks = {len(r.shape) for r in read}
    if operator.kind == "concat":
        if ranks != {operator.parameters["rank"]}:
            raise GraphError(f"a concatenation of {operator.parameters['rank']} axes, of other tensors")
        return pool.make("concat", *read, axis=operator.parameters["axis"]).node.outputs
    if operator.kind == "split":
        return pool.split(read[0], operator.parameters["axis"], _parts(read[0], operator, ends))
    if operator.kind in COMMUTATIVE and read[0].shape != read[1].shape:
        raise GraphError("TASO's sums and products have operands of one shape")
    if operator.kind == "conv2d":
        if ranks != {4}:
            raise GraphError("a convolution of no images")
        return pool.make("conv2d", *read, **_convolution(operator, read[1].shape)).node.outputs
    act = {"act": _ACTIVATIONS.get(operator.parameters.get("activation", 0))} if operator.kind == "matmul" else {}
    return pool.make(operator.kind, *read, **act).node.outputs


def _defect(rule: TasoRule) -> str | None:
    """Return the reason against a rule; None if it holds."""
    if any(o.parameters.get("activation", 0) not in _ACTIVATIONS for o in (*rule.source, *rule.target)):
        return "it has activations other than relu"
    if len(rule.outputs) != 1 and _common(rule) is None:
        return _NO_COMMON
    checked, random = 0, np.random.default_rng(rule.number)
    for pool, values in small_cases(rule):
        source = build(pool, rule.source, values)
        try:
            target = build(pool, rule.target, values)
        except GraphError:
            continue  # where the target has no shape the rule does not apply
        arrays = {f"v{-v}": random.standard_normal(ref.shape) for v, ref in values.items()}
        pairs = [(source[a][p], target[b][q]) for (a, p), (b, q) in rule.outputs]
        if any(old.shape != new.shape for old, new in pairs):
            continue
        computed = evaluate((ref for pair in pairs for ref in pair), arrays)
        for old, new in pairs:
            scale = max(float(np.abs(computed[old]).max()), 1.0)
            if not np.abs(computed[old] - computed[new]).max() <= _TOLERANCE * scale:
                shapes = ", ".join(str(ref.shape) for ref in values.values())
                return f"source and target differ on tensors of {shapes}"
        checked += 1
    return None if checked else "no small shapes fit both of its sides, with convolutions of one group"


def small_cases(rule: TasoRule) -> Iterator[tuple[Pool, Values]]:
    """Yield inputs in different shapes for a rule's variables on which its source can be built."""
    for shapes in _SHAPES:
        found = 0
        for values in islice(_assigned(rule, shapes, {}), _TRIES):
            if values is not None:
                found += 1
                pool = Pool()
                yield pool, {v: pool.input(f"v{-v}", shape) for v, shape in values.items()}
            if found == _CASES:
                break


def _assigned(
    rule: TasoRule, allowed: Sequence[tuple[int, ...]], shapes: Mapping[int, tuple[int, ...]]
) -> Iterator[dict[int, tuple[int, ...]] | None]:
    """Yield shapes for all variables with which the source can be built, operator by operator; None for every dead end."""
    pool = Pool()
    known = {v: pool.input(f"v{-v}", shape) for v, shape in shapes.items()}
    ready = 0
    while ready < len(rule.source) and all(o >= 0 or o in shapes for o, _ in rule.source[ready].inputs):
        ready += 1
    try:
        build(pool, rule.source[:ready], known)
    except (GraphError, IndexError):
        yield None
        return
    if ready == len(rule.source):
        yield dict(shapes)
        return
    asked = tuple(dict.fromkeys(o for o, _ in rule.source[ready].inputs if o < 0 and o not in shapes))
    for chosen in product(allowed, repeat=len(asked)):
        yield from _assigned(rule, allowed, {**shapes, **dict(zip(asked, chosen, strict=True))})
