"""Unroll ONNX's Loop and Scan if the step count is known at compile time.

A Loop continues while its condition holds: each step's condition, and carried values such as a counter, are evaluated
from constants. A Scan takes one step for each part of its inputs; in opset 8 for every element in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tvm_cascade.importers.onnx.folding import (
    computation,
    constant_tensor,
    copied,
    evaluated,
    static_shapes,
    tensor_names,
    with_input_shapes,
)
from tvm_cascade.importers.onnx.graph import read_names
from tvm_cascade.importers.onnx.inlined import inlined, without_weights
from tvm_cascade.tensor_spec import free_name

MAX_UNROLLED = 1 << 13  # operators of all steps together
LOOPS = ("Loop", "Scan")
_TOO_MANY = f"of more than {MAX_UNROLLED} operators in all of its steps"
_LARGEST = 64  # elements of a carried value that is evaluated: counters, never activations
_AXES_ARE_INPUTS = 13  # opset from which on those of Unsqueeze are
_SCANS_WITHOUT_BATCH = 9  # opset


class NotUnrolled(Exception):
    """A loop whose steps are not known; the message says why, to be read after the operator's name."""


def unrolled(model: Any, shapes: Mapping[str, Sequence[int]], at: int) -> Any:
    """Copy `model` with the Loop or Scan at `at` unrolled; `shapes` are the model's input shapes.

    Raises
    ------
    NotUnrolled
        Where the number of steps is not known, or there are too many.
    """
    made = copied(model)
    node = copied(made.graph.node[at])
    steps = _Steps(made, node)
    results = _loop(steps, node) if node.op_type == "Loop" else _scan(steps, node, _shapes(model, shapes))
    ends = [helper.make_node("Identity", [r], [o]) for r, o in zip(results, node.output, strict=True) if o]
    rest = [copied(n) for n in made.graph.node]
    del made.graph.node[:]
    made.graph.node.extend([*rest[:at], *steps.nodes, *ends, *rest[at + 1 :]])
    return made


def _shapes(model: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    return static_shapes(with_input_shapes(model, shapes))


class _Steps:
    """Writes a loop's steps as nodes, and keeps the values known while the file is read."""

    def __init__(self, model: Any, node: Any) -> None:
        self.model = model
        self.opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
        self.taken = set(tensor_names(model.graph))
        self.prefix = next(o for o in node.output if o)
        while any(name.startswith(f"{self.prefix}/") for name in self.taken):
            self.prefix += "_"
        self.body = without_weights(
            model, next(a.g for a in node.attribute if a.name == "body"), f"{self.prefix}/weights"
        )
        self.read = {name for n in self.body.node for name in read_names(n)} | {o.name for o in self.body.output}
        self.nodes: list[Any] = []
        self.constants = {w.name: w for w in model.graph.initializer}
        self.constants |= {n.output[0]: t for n in model.graph.node if (t := constant_tensor(n)) is not None}

    def constant(self, value: np.ndarray) -> str:
        """Add a constant; return its name."""
        name = self._free("constant")
        self.constants[name] = numpy_helper.from_array(value, name)
        self.model.graph.initializer.append(self.constants[name])
        return name

    def node(self, kind: str, inputs: Sequence[str], **attrs: Any) -> str:
        """Append a node; return its output's name."""
        output = self._free(kind)
        self.nodes.append(helper.make_node(kind, inputs, [output], **attrs))
        return output

    def step(self, given: Sequence[str]) -> list[str]:
        """Append one step of the body; return its output names. Small outputs that follow from constants are known."""
        names = dict(zip((i.name for i in self.body.input), given, strict=True))
        nodes, results = inlined(self.model, self.body, f"{self.prefix}/{len(self.nodes)}", names, ())
        self.nodes += nodes
        if len(self.nodes) > MAX_UNROLLED:
            raise NotUnrolled(_TOO_MANY)
        producers = {name: n for n in nodes for name in n.output}
        for name in dict.fromkeys(results):
            found = computation(name, producers, self.constants) if name not in self.constants else []
            if found and (value := self._evaluated(found, name)) is not None and value.size <= _LARGEST:
                self.constants[name] = numpy_helper.from_array(value, name)
        return results

    def known(self, name: str) -> np.ndarray | None:
        """Return a tensor's value if it follows from constants."""
        return numpy_helper.to_array(self.constants[name]) if name in self.constants else None

    def joined(self, parts: Sequence[str], axis: int) -> str:
        """Join all steps' results in a single tensor, along a new axis."""
        if not parts:
            raise NotUnrolled("of no step that has outputs of all steps")
        axes = {} if self.opset >= _AXES_ARE_INPUTS else {"axes": [axis]}
        given = () if axes else (self.constant(np.array([axis], "int64")),)
        return self.node("Concat", [self.node("Unsqueeze", [p, *given], **axes) for p in parts], axis=axis)

    def _evaluated(self, nodes: Sequence[Any], name: str) -> np.ndarray | None:
        used = [self._named(i) for i in {i for n in nodes for i in n.input} if i in self.constants]
        try:
            return evaluated(nodes, name, used, self.model)
        except Exception:  # malformed, or reads what only a graph inside of it names: not known
            return None

    def _named(self, name: str) -> Any:
        tensor = copied(self.constants[name])
        tensor.name = name
        return tensor

    def _free(self, kind: str) -> str:
        name = free_name(f"{self.prefix}/{len(self.nodes)}/{kind}", self.taken)
        self.taken.add(name)
        return name


def _loop(steps: _Steps, node: Any) -> list[str]:
    """Return the names of a Loop's outputs: final carried values, then all steps' results."""
    trips, going = (steps.known(name) if name else None for name in (*node.input[:2], "", "")[:2])
    if trips is None and len(node.input) > 0 and node.input[0]:
        raise NotUnrolled("with a trip count (M) that the network computes")
    if going is None and len(node.input) > 1 and node.input[1]:
        raise NotUnrolled("with a condition (cond) that the network computes")
    carried = list(node.input[2:])
    lists: list[list[str]] = [[] for _ in node.output[len(carried) :]]
    at, holds = 0, True if going is None else bool(going.all())
    while holds and (trips is None or at < int(trips.reshape(-1)[0])):
        own = [i.name for i in steps.body.input[:2]]
        values = (np.array(at, "int64"), np.array(True))
        made = steps.step(
            [*(steps.constant(v) if n in steps.read else "" for n, v in zip(own, values, strict=True)), *carried]
        )
        condition, carried = steps.known(made[0]), made[1 : 1 + len(carried)]
        if condition is None:
            raise NotUnrolled("whose body computes its condition from what the network computes")
        at, holds = at + 1, bool(condition.all())
        for parts, name in zip(lists, made[1 + len(carried) :], strict=True):
            parts.append(name)
    return [*carried, *(steps.joined(parts, 0) for parts in lists)]


def _scan(steps: _Steps, node: Any, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the names of a Scan's outputs: final states, then all steps' results."""
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    count = int(attrs["num_scan_inputs"])
    if not 0 < count <= len(node.input):
        raise NotUnrolled(f"whose num_scan_inputs is {count} of {len(node.input)} inputs")
    if steps.opset < _SCANS_WITHOUT_BATCH:
        return _scan_of_batch(steps, node, shapes, count, attrs.get("directions", [0] * count))
    states, inputs = list(node.input[: len(node.input) - count]), list(node.input[len(node.input) - count :])
    outputs = len(node.output) - len(states)
    axes, behind = attrs.get("scan_input_axes", [0] * count), attrs.get("scan_output_axes", [0] * outputs)
    turned, back = attrs.get("scan_input_directions", [0] * count), attrs.get("scan_output_directions", [0] * outputs)
    ways = [(axis, bool(way)) for axis, way in zip(axes, turned, strict=True)]
    states, lists = _scanned(steps, states, inputs, ways, _parts(steps, inputs, axes, shapes))
    ordered = [parts[::-1] if way else parts for parts, way in zip(lists, back, strict=True)]
    return [*states, *(steps.joined(parts, axis) for parts, axis in zip(ordered, behind, strict=True))]


def _scan_of_batch(
    steps: _Steps, node: Any, shapes: Mapping[str, tuple[int, ...]], count: int, turned: Sequence[int]
) -> list[str]:
    """Return the output names of an opset 8 Scan: first axes are batches, input parts lie along the second axis."""
    lengths, *rest = node.input
    if lengths:
        raise NotUnrolled("with sequence_lens")
    states, inputs = rest[: len(rest) - count], rest[len(rest) - count :]
    total = _parts(steps, inputs, [1] * count, shapes)
    made: list[list[str]] = []
    for at in range(shapes[inputs[0]][0]):
        index = steps.constant(np.array(at, "int64"))
        first, parts = ([steps.node("Gather", [name, index], axis=0) for name in names] for names in (states, inputs))
        last, lists = _scanned(steps, first, parts, [(0, bool(way)) for way in turned], total)
        made.append([*last, *(steps.joined(found, 0) for found in lists)])
    return [steps.joined(found, 0) for found in zip(*made, strict=True)]


def _parts(steps: _Steps, inputs: Sequence[str], axes: Sequence[int], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Count the parts a Scan's inputs have along their axes."""
    if any(name not in shapes for name in inputs):
        raise NotUnrolled("over an input whose shape is not static")
    extents = {shapes[name][axis] for name, axis in zip(inputs, axes, strict=True)}
    if len(extents) != 1:
        raise NotUnrolled("whose inputs have unequal numbers of parts")
    total = extents.pop()
    if total * len(steps.body.node) > MAX_UNROLLED:
        raise NotUnrolled(_TOO_MANY)
    return total


def _scanned(
    steps: _Steps, states: Sequence[str], inputs: Sequence[str], ways: Sequence[tuple[int, bool]], total: int
) -> tuple[list[str], list[list[str]]]:
    """Return the final states, and for every output the results of `total` steps; `ways` are each input's axis, and
    True if read backwards.
    """
    held, lists = list(states), [[] for _ in steps.body.output[len(states) :]]
    for at in range(total):
        parts = [
            steps.node("Gather", [name, steps.constant(np.array(total - 1 - at if last else at, "int64"))], axis=axis)
            for name, (axis, last) in zip(inputs, ways, strict=True)
        ]
        made = steps.step([*held, *parts])
        held = made[: len(held)]
        for found, name in zip(lists, made[len(held) :], strict=True):
            found.append(name)
    return held, lists
