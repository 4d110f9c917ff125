"""Import ONNX's Scan, or a Loop with a known step count, as a single operator that runs its body in every step
(`passes.scan_operator`).

A kept node is a Scan whose body reads no outside tensor: constants move into the body, other values become unchanging
states. A Loop gets its step number as a sequence. A scale before a node moves into its body, as do the scales of
sequences and results, so stored integers pass between steps.

Unrolled instead (`importers.onnx.loops`): nodes with one step, opsets before 9, and bodies that cannot be imported
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper

from tvm_cascade.importers.onnx.folding import constant_tensor, copied, tensor_names, with_input_shapes
from tvm_cascade.importers.onnx.graph import read_names
from tvm_cascade.importers.onnx.inference import inferred
from tvm_cascade.passes.integer.expressions import constant_of, dtype_of, shape_of
from tvm_cascade.passes.main_rewriting import Value, relax
from tvm_cascade.passes.scan_operator import Steps, lower_scan
from tvm_cascade.tensor_spec import free_name

_KEPT = "cascade: kept"  # documentation of a node that is not written out
_READ = "outputs_read"
_LEAST_OPSET = 9  # before it, a Scan has a batch
_STATES = frozenset(("float32", "int8", "uint8", "int16", "int32", "bool"))  # element types that are passed on
MAX_STEPS = 1 << 16
_BODY = Path("body.onnx")
_Type = tuple[int, tuple[int, ...]]  # an element type of ONNX, and a static shape
Attributes = dict[str, Any]


def is_kept(node: Any) -> bool:
    """Return True for a Scan imported as a single operator."""
    return node.op_type == "Scan" and node.doc_string == _KEPT


def kept(model: Any, shapes: Mapping[str, Sequence[int]], at: int) -> Any | None:
    """Copy `model` with the Loop or Scan at `at` kept as a single operator; None if it must be unrolled."""
    made = copied(model)
    node = made.graph.node[at]
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    if opset < _LEAST_OPSET or node.domain not in ("", "ai.onnx"):
        return None
    types = _types(model, shapes)
    writer = _Writer(made, node, types)
    if not (writer.as_scan() if node.op_type == "Loop" else writer.is_plain()):
        return None
    writer.drop_unread()
    writer.pass_stored()
    if not writer.closed():
        return None
    node.doc_string = _KEPT
    body = _body(node)
    given = [writer.types.get(name) or writer.constant_type(name) for name in node.input]
    if any(t is None for t in given):
        return None
    count = _attributes(node)["num_scan_inputs"]
    parts = [t for t in given if t is not None]
    axes = _axes(node, "scan_input_axes", count)
    inner = _inner(parts, count, axes)
    steps = {parts[len(parts) - count + k][1][axis] for k, axis in enumerate(axes)}
    names = [helper.tensor_dtype_to_np_dtype(kind).name for kind, _ in inner]
    states = len(parts) - count
    if len(steps) != 1 or min(steps) < 2 or any(n not in _STATES for n in names[:states]):
        return None
    try:
        module = _loaded(body, inner, opset)
    except Exception:  # whatever is wrong with it is said where it is written out
        return None
    results = module["main"].ret_ty
    fields = list(results.fields) if hasattr(results, "fields") else [results]
    same = all(
        (str(f.dtype), tuple(int(d) for d in f.shape.values))
        == (str(p.ty.dtype), tuple(int(d) for d in p.ty.shape.values))
        for f, p in zip(fields[:states], module["main"].params, strict=False)
    )
    return made if same else None


def _types(model: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, _Type]:
    """Return the element types and static shapes that ONNX infers."""
    try:
        graph = inferred(with_input_shapes(model, shapes))
    except onnx.shape_inference.InferenceError:
        return {}
    found: dict[str, _Type] = {w.name: (w.data_type, tuple(int(d) for d in w.dims)) for w in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim):
            found[value.name] = kind.elem_type, tuple(int(d.dim_value) for d in kind.shape.dim)
    return found


def _body(node: Any) -> Any:
    return next(a.g for a in node.attribute if a.name == "body")


def _attributes(node: Any) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name != "body"}


def _axes(node: Any, name: str, count: int) -> list[int]:
    return list(_attributes(node).get(name, [0] * count))


def _inner(types: Sequence[_Type], count: int, axes: Sequence[int]) -> list[_Type]:
    """Return the body's input types from the node's; the last `count` inputs are sequences."""
    found = list(types)
    for k, axis in enumerate(axes):
        at = len(types) - count + k
        kind, shape = types[at]
        axis %= len(shape)
        found[at] = kind, (*shape[:axis], *shape[axis + 1 :])
    return found


class Bodies:
    """Bodies of loops as networks. The last is kept: a body is read while loops are looked at, and again for import."""

    def __init__(self) -> None:
        # set by the importer, which uses this module
        self.load: Callable[[Path, Any, Mapping[str, tuple[int, ...]]], tvm.IRModule] | None = None
        self.last: tuple[bytes, tvm.IRModule] | None = None

    def of(self, model: Any) -> tvm.IRModule:
        """Return the network for a body that stands in a separate model."""
        assert self.load is not None
        key = model.SerializeToString(deterministic=True)
        if self.last is None or self.last[0] != key:
            self.last = key, self.load(_BODY, model, {})
        return self.last[1]


BODIES = Bodies()


def _loaded(body: Any, types: Sequence[_Type], opset: int) -> tvm.IRModule:
    """Import a body as a network."""
    graph = copied(body)
    for value, (kind, shape) in zip(graph.input, types, strict=True):
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, shape))
    for value in graph.output:
        value.CopyFrom(onnx.ValueInfoProto(name=value.name))
    graph.name = "body"
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    for value in model.graph.output:
        inferred = _types(model, {}).get(value.name)
        if inferred is not None:
            value.CopyFrom(helper.make_tensor_value_info(value.name, *inferred))
    return BODIES.of(model)


class _Writer:
    """Rewriter for a single model node, in place."""

    def __init__(self, model: Any, node: Any, types: Mapping[str, _Type]) -> None:
        self.model, self.node, self.types, self.body = model, node, dict(types), _body(node)
        self.constants = {w.name: w for w in model.graph.initializer}
        self.constants |= {n.output[0]: t for n in model.graph.node if (t := constant_tensor(n)) is not None}
        self.taken = set(tensor_names(model.graph))

    def constant_type(self, name: str) -> _Type | None:
        held = self.constants.get(name)
        return None if held is None else (held.data_type, tuple(int(d) for d in held.dims))

    def is_plain(self) -> bool:
        """Return whether the numbers of a Scan's inputs and outputs agree."""
        count = int(_attributes(self.node)["num_scan_inputs"])
        return 0 < count <= len(self.node.input) == len(self.body.input) and len(self.node.output) == len(
            self.body.output
        )

    def as_scan(self) -> bool:
        """Turn a Loop with a known step count into a Scan; return False for any other."""
        node, body = self.node, self.body
        trips, going = (self.known(name) for name in (*node.input[:2], "", "")[:2])
        if trips is None or (going is None and len(node.input) > 1 and node.input[1]):
            return False
        if going is not None and not going.all():
            return False
        number, condition = (i.name for i in body.input[:2])
        if not self._goes_on(body.output[0].name, condition):
            return False
        steps = int(trips.reshape(-1)[0])
        if not 1 < steps <= MAX_STEPS:
            return False
        carried = len(node.input) - 2
        parts = self._parts(number, steps)
        every = self._constant(np.arange(steps, dtype="int64"))
        inputs = [*body.input[2:], *(helper.make_value_info(name, onnx.TypeProto()) for name, _ in parts)]
        sequences = [name for _, name in parts]
        read = {name for n in body.node for name in read_names(n)} | {o.name for o in body.output}
        if any(condition in read_names(n) for n in body.node if n.op_type != "Identity"):
            return False
        if number in read or not parts:
            inputs.append(body.input[0])
            sequences.append(every)
        kept_inputs = [copied(i) for i in inputs]
        outputs = [copied(o) for o in body.output[1:]]
        used = {o.name for o in outputs} | {name for n in body.node for name in read_names(n)}
        nodes = [copied(n) for n in body.node if any(o in used for o in n.output) and condition not in n.input]
        del body.input[:], body.output[:], body.node[:]
        body.input.extend(kept_inputs)
        body.output.extend(outputs)
        body.node.extend(nodes)
        made = helper.make_node(
            "Scan",
            [*node.input[2 : 2 + carried], *sequences],
            list(node.output),
            node.name,
            body=body,
            num_scan_inputs=len(sequences),
        )
        node.CopyFrom(made)
        self.body = _body(node)
        return True

    def known(self, name: str) -> np.ndarray | None:
        return numpy_helper.to_array(self.constants[name]) if name in self.constants else None

    def _goes_on(self, name: str, condition: str) -> bool:
        """Return True if a Loop's body passes its condition on, or always continues."""
        made = {o: n for n in self.body.node for o in n.output}
        held = {w.name: w for w in self.body.initializer}
        while name in made and made[name].op_type == "Identity":
            name = made[name].input[0]
        if name in made and (tensor := constant_tensor(made[name])) is not None:
            return bool(numpy_helper.to_array(tensor).all())
        if name in (outside := {**self.constants, **held}):
            return bool(numpy_helper.to_array(outside[name]).all())
        return name == condition

    def _parts(self, number: str, steps: int) -> list[tuple[str, str]]:
        """Remove the nodes in a Loop's body that read a step's row from an outside tensor; return for each the row's
        name and the tensor's.
        """
        inner = {i.name for i in self.body.input} | {o for n in self.body.node for o in n.output}
        found, rest = list[tuple[str, str]](), list[Any]()
        for n in self.body.node:
            of_axis = {a.name: a.i for a in n.attribute}.get("axis", 0)
            reads = n.op_type == "Gather" and n.input[1] == number and n.input[0] not in inner and not of_axis
            kind = self.types.get(n.input[0]) if reads else None
            if kind is not None and n.input[0] not in self.constants and kind[1][:1] == (steps,):
                found.append((n.output[0], n.input[0]))
            else:
                rest.append(copied(n))
        del self.body.node[:]
        self.body.node.extend(rest)
        return found

    def closed(self) -> bool:
        """Move outside tensors into the body: constants as its own, other values as unchanging states."""
        own = {i.name for i in self.body.input} | {w.name for w in self.body.initializer}
        own |= {o for n in self.body.node for o in n.output}
        read = {name for n in self.body.node for name in read_names(n)} | {o.name for o in self.body.output}
        states = len(self.node.input) - int(_attributes(self.node)["num_scan_inputs"])
        for name in sorted(read - own - {""}):
            if name in self.constants:
                tensor = copied(self.constants[name])
                tensor.name = name
                self.body.initializer.append(tensor)
                continue
            if name not in self.types:
                return False
            passed = self._free(f"{name}/same")
            self.body.node.append(helper.make_node("Identity", [name], [passed]))
            self._insert(states, name, name, passed, "")
            states += 1
        return True

    def _insert(self, at: int, outer: str, inner: str, result: str, output: str) -> None:
        """Add a state behind the `at` first ones."""
        inputs, outputs = list(self.node.input), list(self.node.output)
        self.node.input[:] = [*inputs[:at], outer, *inputs[at:]]
        self.node.output[:] = [*outputs[:at], output or self._free(f"{inner}/final"), *outputs[at:]]
        for values, name in ((self.body.input, inner), (self.body.output, result)):
            listed = [copied(v) for v in values]
            listed.insert(at, helper.make_value_info(name, onnx.TypeProto()))
            del values[:]
            values.extend(listed)

    def drop_unread(self) -> None:
        """Drop results that nothing reads."""
        states = len(self.node.input) - int(_attributes(self.node)["num_scan_inputs"])
        results = self.node.output[states:]
        axes = _axes(self.node, "scan_output_axes", len(results))
        ways = _axes(self.node, "scan_output_directions", len(results))
        read = {name for n in self.model.graph.node for name in read_names(n)}
        read |= {o.name for o in self.model.graph.output}
        self._drop(states, [k for k, name in enumerate(results) if name not in read], axes, ways)

    def pass_stored(self) -> None:
        """Pass stored integers between steps for quantized sequences, results and states."""
        count = int(_attributes(self.node)["num_scan_inputs"])
        states = len(self.node.input) - count
        inside = {w.name: w for w in self.body.initializer}
        inside |= {n.output[0]: t for n in self.body.node if (t := constant_tensor(n)) is not None}
        inside = {**self.constants, **inside}
        outer = {o: n for n in self.model.graph.node for o in n.output}
        read = {name for n in self.model.graph.node for name in read_names(n)}
        read |= {o.name for o in self.model.graph.output}
        for k in range(states, len(self.node.input)):
            n = outer.get(self.node.input[k])
            if n is not None and (quant := _stored(n, self.constants)) is not None and n.input[0] in self.types:
                self.node.input[k] = n.input[0]
                self._enter(k, quant)
        for k in range(len(self.node.output)):
            made = {o: n for n in self.body.node for o in n.output}
            n = made.get(_named(self.body.output[k].name, made))
            quant = None if n is None else _stored(n, inside)
            if n is None or quant is None or n.input[0] not in made or not self.node.output[k]:
                continue
            if k >= states and self.node.output[k] not in read:
                continue
            if k < states:
                initial = self._stored_initial(self.node.input[k], quant, outer)
                if initial is None:
                    continue
                self.node.input[k] = initial
                self._enter(k, quant)
            self.body.output[k].CopyFrom(onnx.ValueInfoProto(name=n.input[0]))
            name = self.node.output[k]
            self.node.output[k] = self._free(f"{name}/stored")
            if name not in read:
                continue
            self.model.graph.node.append(self._dequantized(self.node.output[k], name, quant))
        _without_pairs(self.body, {**inside, **self.constants})

    def _enter(self, k: int, quant: tuple[np.ndarray, np.ndarray]) -> None:
        """Make body input `k` a stored-integer input, dequantized inside the body."""
        name = self.body.input[k].name
        stored = self._free(f"{name}/stored")
        self.body.input[k].CopyFrom(onnx.ValueInfoProto(name=stored))
        nodes = [self._dequantized(stored, name, quant), *(copied(n) for n in self.body.node)]
        del self.body.node[:]
        self.body.node.extend(nodes)

    def _dequantized(self, stored: str, name: str, quant: tuple[np.ndarray, np.ndarray]) -> Any:
        return helper.make_node("DequantizeLinear", [stored, *(self._constant(q) for q in quant)], [name])

    def _stored_initial(self, name: str, quant: tuple[np.ndarray, np.ndarray], outer: Mapping[str, Any]) -> str | None:
        """Return an initial state's stored integers; None unless stored with this scale."""
        scale, zero = quant
        if name in self.constants:
            value, limits = numpy_helper.to_array(self.constants[name]), np.iinfo(zero.dtype)
            stored = np.clip(np.rint(value / scale) + zero, limits.min, limits.max).astype(zero.dtype)
            same = np.array_equal((stored.astype("int32") - zero).astype("float32") * scale, value)
            return self._constant(stored) if same else None
        n = outer.get(name)
        own = None if n is None else _stored(n, self.constants)
        if n is None or own is None or not _same(own, quant) or n.input[0] not in self.types:
            return None
        return str(n.input[0])

    def _drop(self, states: int, dropped: Sequence[int], axes: Sequence[int], ways: Sequence[int]) -> None:
        if not dropped:
            return
        left = [k for k in range(len(axes)) if k not in dropped]
        outputs = [copied(o) for o in self.body.output]
        del self.body.output[:]
        self.body.output.extend([*outputs[:states], *(outputs[states + k] for k in left)])
        names = list(self.node.output)
        self.node.output[:] = [*names[:states], *(names[states + k] for k in left)]
        rest = [a for a in self.node.attribute if a.name not in ("scan_output_axes", "scan_output_directions")]
        kept_attributes = [copied(a) for a in rest]
        del self.node.attribute[:]
        self.node.attribute.extend(kept_attributes)
        if left:
            self.node.attribute.append(helper.make_attribute("scan_output_axes", [axes[k] for k in left]))
            self.node.attribute.append(helper.make_attribute("scan_output_directions", [ways[k] for k in left]))
        self.body = _body(self.node)

    def _constant(self, value: np.ndarray) -> str:
        name = self._free(f"{self.node.output[0]}/constant")
        self.constants[name] = numpy_helper.from_array(value, name)
        self.model.graph.initializer.append(self.constants[name])
        return name

    def _free(self, name: str) -> str:
        name = free_name(name, self.taken)
        self.taken.add(name)
        return name


def _stored(
    node: Any, constants: Mapping[str, Any], kind: str = "DequantizeLinear"
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return scale and zero point for a `kind` node that has one each; None for other nodes."""
    if node.op_type != kind or len(node.input) < 3:
        return None
    if any(name not in constants for name in node.input[1:3]):
        return None
    scale, zero = (numpy_helper.to_array(constants[name]) for name in node.input[1:3])
    plain = scale.size == zero.size == 1 and scale.dtype == np.float32 and zero.dtype.name in _STATES
    return (scale.reshape(()), zero.reshape(())) if plain else None


def _same(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> bool:
    return all(a.dtype == b.dtype and a == b for a, b in zip(one, other, strict=True))


def _without_pairs(body: Any, constants: Mapping[str, Any]) -> None:
    """Remove quantizations of values dequantized by the same scale, in place."""
    made, new = {o: n for n in body.node for o in n.output}, dict[str, str]()
    for n in body.node:
        before = made.get(_named(n.input[0], made)) if n.op_type == "QuantizeLinear" else None
        if before is None or before.op_type != "DequantizeLinear":
            continue
        own, other = _stored(n, constants, "QuantizeLinear"), _stored(before, constants)
        if own is not None and other is not None and _same(own, other):
            new[n.output[0]] = before.input[0]
    for n in body.node:
        n.input[:] = [_last(name, new) for name in n.input]
    for value in body.output:
        value.name = _last(value.name, new)


def _last(name: str, new: Mapping[str, str]) -> str:
    while name in new:
        name = new[name]
    return name


def scan(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert a Scan that was not unrolled to a call of its body's loop."""
    body, count = attrs["body"], int(attrs["num_scan_inputs"])
    states = len(inputs) - count
    outputs = len(body.output)
    axes = [int(a) for a in attrs.get("scan_input_axes", [0] * count)]
    ways = [bool(w) for w in attrs.get("scan_input_directions", [0] * count)]
    behind = [int(a) for a in attrs.get("scan_output_axes", [0] * (outputs - states))]
    back = [bool(w) for w in attrs.get("scan_output_directions", [0] * (outputs - states))]
    read = [bool(r) for r in attrs.get(_READ, [1] * outputs)]
    types = [(helper.np_dtype_to_tensor_dtype(np.dtype(dtype_of(v))), shape_of(v)) for v in inputs]
    inner = _inner(types, count, axes)
    graph = copied(body)
    made = {o: n for n in graph.node for o in n.output}
    used = {name for n in graph.node for name in read_names(n)} | {o.name for o in graph.output}
    same, last, proper = list[int](), list[int](), list[int]()
    for k in range(states):
        name, result = graph.input[k].name, _named(graph.output[k].name, made)
        (same if result == name else proper if name in used else last).append(k)
    sequences = list(range(states, len(inputs)))
    numbers = [k for k in sequences if _counts(inputs[k])]
    counter, sequences = numbers[:1], [k for k in sequences if k not in numbers[:1]]
    counter = [k for k in counter if graph.input[k].name in used]
    order = [*proper, *sequences, *same, *counter]
    results = [*(k for k in last if read[k]), *(k for k in range(states, outputs) if read[k])]
    chosen_inputs, chosen_outputs = ([copied(v) for v in some] for some in (graph.input, graph.output))
    del graph.input[:], graph.output[:]
    graph.input.extend(chosen_inputs[k] for k in order)
    graph.output.extend(chosen_outputs[k] for k in (*proper, *results))
    module = _loaded(graph, [inner[k] for k in order], int(attrs["tvm_custom"]["opset"]))
    steps = types[-1][1][axes[-1]]
    how = Steps(
        steps,
        len(proper),
        len(sequences),
        len(same),
        bool(counter),
        (*(ways[k - states] for k in sequences), *(k >= states and back[k - states] for k in results)),
        tuple(k >= states for k in results),
        tuple(read[k] for k in proper),
    )
    given = [_front(bb, inputs[k], axes[k - states]) for k in sequences]
    found = lower_scan(bb, module, how, [inputs[k] for k in proper], [*given, *(inputs[k] for k in same)])
    ends = [*(k for k in proper if read[k]), *results]
    by_output = dict(zip(ends, found, strict=True)) | {k: inputs[k] for k in same}
    for k in range(states, outputs):
        if k in by_output and (axis := behind[k - states]):
            by_output[k] = _moved(bb, by_output[k], axis)
    zero = relax.const(0, "float32")
    values = [by_output.get(k, zero) for k in range(outputs)]
    return values[0] if outputs == 1 else relax.Tuple(values)


def _named(name: str, made: Mapping[str, Any]) -> str:
    while name in made and made[name].op_type == "Identity":
        name = made[name].input[0]
    return name


def _counts(value: Value) -> bool:
    data = constant_of(value)
    return data is not None and data.ndim == 1 and np.array_equal(data, np.arange(data.size))


def _front(bb: Any, value: Value, axis: int) -> Value:
    """Move an axis to the front."""
    rank = len(shape_of(value))
    axis %= rank
    order = [axis, *(k for k in range(rank) if k != axis)]
    return value if axis == 0 else bb.emit(relax.op.permute_dims(value, order))


def _moved(bb: Any, value: Value, axis: int) -> Value:
    """Move the first axis to `axis`."""
    rank = len(shape_of(value))
    order = list(range(1, rank))
    order.insert(axis % rank, 0)
    return bb.emit(relax.op.permute_dims(value, order))
