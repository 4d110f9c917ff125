"""Float twins of quantized networks: the float file that a network was made from, or one made of the quantized file.

The latter has the file's weights, dequantized, and activations that are never rounded. So the difference of a tensor from
its twin's is the error that quantized activations cause; the rounding of the weights is in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade import extras
from tvm_cascade.checking.litert_defects import object_tree, packed, unpacked
from tvm_cascade.checking.reference import real
from tvm_cascade.checking.sensitivity import read_program, run_exported
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.messages import last_line
from tvm_cascade.plain_files import readable

Arrays = Mapping[str, np.ndarray]
_STORED = {"INT8": np.int8, "UINT8": np.uint8, "INT16": np.int16, "INT32": np.int32}
_SMALL = {"INT4": 4, "INT2": 2}  # bits


@dataclass(frozen=True, slots=True)
class Twins:
    """Two runs of one network that give the same tensors by name, in real values, and the operators that write them."""

    run_float: Callable[[Arrays], dict[str, np.ndarray]]
    run_stored: Callable[[Arrays], dict[str, np.ndarray]]
    makers: Mapping[str, str]  # tensor -> kind of its operator


def twins_of(path: Path) -> Twins:
    """Open a quantized `.tflite` or `.pt2` file and its float twin.

    Raises `UsageError` for a network without quantized activations, and one that has no float form; `LoadError` for a
    file that is no model.
    """
    return _tflite_twins(path) if path.suffix == ".tflite" else _torch_twins(path)


def _tflite_twins(path: Path) -> Twins:
    data = readable(path).read_bytes()
    with _reading(path):
        tree = object_tree(data)
        makers, names = _makers(tree)
        float_data = _as_float(tree)
    if not makers:
        raise UsageError(f"{path} has no quantized activations: --by-layer is for quantized networks")
    stored, floats = _opened(path, data, "reference kernels"), _opened(path, float_data, "float form")
    return _interpreted(stored, floats, {t: t for t in makers}, {names[t]: (t, kind) for t, kind in makers.items()})


def original_twins(path: Path, original: Path) -> Twins:
    """Pair the quantized tensors of a `.tflite` file with those of the float file of which a converter or quantizer
    made them, by name.

    Raises `UsageError` unless both files have common tensors with the same shapes, and inputs.
    """
    data, float_data = readable(path).read_bytes(), readable(original).read_bytes()
    with _reading(path):
        makers, names = _makers(object_tree(data))
    with _reading(original):
        computed = _computed(object_tree(float_data))
    stored, floats = _opened(path, data, "reference kernels"), _opened(original, float_data, "reference kernels")
    shapes = {int(d["index"]): tuple(d["shape"]) for d in stored.get_tensor_details()}
    twins = {t: computed[names[t], shapes[t]] for t in makers if (names[t], shapes[t]) in computed}
    if not twins:
        raise UsageError(f"{path} has no quantized tensor that {original} computes: was it made from this file?")
    given = [[tuple(d["shape"]) for d in one.get_input_details()] for one in (stored, floats)]
    if given[0] != given[1]:
        raise UsageError(f"{path} and {original} have different inputs: was it made from this file?")
    return _interpreted(stored, floats, twins, {names[t]: (t, makers[t]) for t in twins})


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # flatbuffers raises whatever reading beyond the end gives
        raise LoadError(path, "not a TFLite model, or truncated") from error


def _computed(tree: Any) -> dict[tuple[str, tuple[int, ...]], int]:
    """Return the float tensors that operators write, by name and shape."""
    graph, floats = tree.subgraphs[0], _schema().TensorType.FLOAT32
    written = [(int(t), graph.tensors[int(t)]) for op in graph.operators for t in op.outputs]
    return {(_text(x.name), tuple(int(d) for d in x.shape)): t for t, x in written if x.type == floats}


def _opened(path: Path, content: bytes, what: str) -> Any:
    """Open a model in LiteRT's reference kernels, which keep all tensors."""
    litert = extras.load("ai-edge-litert", ".interpreter")
    try:
        made = litert.Interpreter(
            model_content=content,
            experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF,
            experimental_preserve_all_tensors=True,
            num_threads=1,
        )
        made.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise UsageError(f"{path}: LiteRT refuses its {what}: {last_line(error)}") from error
    return made


def _interpreted(stored: Any, floats: Any, twins: Mapping[int, int], named: Mapping[str, tuple[int, str]]) -> Twins:
    """Run two interpreters on inputs, and read tensors of both: `twins` by number, `named` with numbers in the quantized
    file and operators.
    """
    details = {int(d["index"]): d for d in stored.get_tensor_details()}

    def fed(interpreter: Any, feed: Arrays, as_real: bool) -> None:
        for detail, (_, array) in zip(stored.get_input_details(), feed.items(), strict=True):
            scale, zero = detail["quantization"]
            value = real(array, scale or None, zero) if as_real else array
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()

    def run_stored(feed: Arrays) -> dict[str, np.ndarray]:
        fed(stored, feed, as_real=False)
        pairs = ((name, details[t]["quantization"], stored.get_tensor(t)) for name, (t, _) in named.items())
        return {name: real(array, scale or None, zero) for name, (scale, zero), array in pairs}

    def run_float(feed: Arrays) -> dict[str, np.ndarray]:
        fed(floats, feed, as_real=True)
        return {name: floats.get_tensor(twins[t]) for name, (t, _) in named.items()}

    return Twins(run_float, run_stored, {name: kind for name, (_, kind) in named.items()})


def _makers(tree: Any) -> tuple[dict[int, str], dict[int, str]]:
    """Return the quantized tensors that operators write, with the operators' kinds, and all names by tensor."""
    if len(tree.subgraphs) != 1:
        raise UsageError("--by-layer is for networks without control flow")
    graph, schema = tree.subgraphs[0], _schema()
    kinds = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    makers: dict[int, str] = {}
    for op in graph.operators:
        kind = _kind(tree, op, kinds)
        if kind not in ("QUANTIZE", "DEQUANTIZE"):
            makers |= {int(t): kind for t in op.outputs if _scale(graph.tensors[t]) is not None}
    names = {t: f"{_text(tensor.name)}" or f"tensor_{t}" for t, tensor in enumerate(graph.tensors)}
    return makers, names


def _as_float(tree: Any) -> bytes:
    """Rewrite an object tree: quantized tensors become float32, and conversions between the two are left out."""
    graph, schema = tree.subgraphs[0], _schema()
    kinds = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    names = {value: name for name, value in vars(schema.TensorType).items() if isinstance(value, int)}
    for tensor in graph.tensors:
        scale = _scale(tensor)
        if scale is None:
            continue
        data = tree.buffers[tensor.buffer].data if tensor.buffer else None
        if data is not None and len(data):
            stored = _stored(names[tensor.type], bytes(bytearray(data)), tensor.shape)
            values = _dequantized(stored, scale, tensor.quantization)
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(values.astype("<f4").tobytes(), "uint8")
            tree.buffers.append(buffer)
            tensor.buffer = len(tree.buffers) - 1
        tensor.type, tensor.quantization = schema.TensorType.FLOAT32, None
    same: dict[int, int] = {}  # output of a conversion -> tensor in its place
    kept = []
    for op in graph.operators:
        op.inputs = [same.get(int(t), int(t)) for t in op.inputs]
        if _kind(tree, op, kinds) in ("QUANTIZE", "DEQUANTIZE"):
            same[int(op.outputs[0])] = int(op.inputs[0])
        else:
            kept.append(op)
    graph.operators = kept
    graph.outputs = [same.get(int(t), int(t)) for t in graph.outputs]
    tree.signatureDefs = []
    return packed(tree)


def _stored(kind: str, data: bytes, shape: Any) -> np.ndarray:
    """Read a constant's numbers; of fewer than 8 bits, too."""
    if kind in _SMALL:
        return unpacked(data, _SMALL[kind])[: prod(shape)].reshape(shape)
    if kind not in _STORED:
        raise UsageError(f"--by-layer takes no weights of type {kind}")
    return np.frombuffer(data, _STORED[kind]).reshape(shape)


def _dequantized(stored: np.ndarray, scale: np.ndarray, how: Any) -> np.ndarray:
    """Dequantize weights, by tensor or by channel."""
    zero = np.zeros(1) if how.zeroPoint is None or not len(how.zeroPoint) else np.asarray(how.zeroPoint)
    shape = [1] * stored.ndim
    if scale.size > 1:
        shape[how.quantizedDimension] = scale.size
        scale = scale.reshape(shape)
        zero = np.broadcast_to(zero, scale.size).reshape(shape)
    return (stored.astype("float64") - zero) * scale


def _scale(tensor: Any) -> np.ndarray | None:
    how = tensor.quantization
    return None if how is None or how.scale is None or not len(how.scale) else np.asarray(how.scale, "float64")


def _kind(tree: Any, op: Any, kinds: Mapping[int, str]) -> str:
    code = tree.operatorCodes[op.opcodeIndex]
    return kinds.get(max(code.builtinCode, code.deprecatedBuiltinCode), "CUSTOM")


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name or "")


def _schema() -> Any:
    from ai_edge_litert import schema_py_generated as schema

    return schema


def _torch_twins(path: Path) -> Twins:
    rounded = _rounded(path)
    written = {node.name: source.name for node, source in rounded.items() if source.op == "call_function"}
    replaced = {node.name: source.name for node, source in rounded.items()}

    def run(feed: Arrays, as_float: bool) -> dict[str, np.ndarray]:
        return _watched(path, feed, written, replaced if as_float else {})

    makers = {source.name: _kind_of(source) for source in rounded.values() if source.op == "call_function"}
    return Twins(lambda feed: run(feed, True), lambda feed: run(feed, False), makers)


def exported_twins(quantized: Path, original: Path) -> Twins:
    """Pair the quantized tensors of a `.pt2` file with those of the float file that PT2E quantized.

    Exporting again names nodes anew, so the k-th operator of a kind corresponds to the k-th, if both files have equally
    many. A batch normalization is part of the quantized layer: its result is compared.

    Raises `UsageError` unless both files have common tensors.
    """
    rounded = _rounded(quantized)
    ours, theirs = _by_kind(quantized), _by_kind(original)
    folded = not any("batch_norm" in kind for kind in ours)
    same = {
        own.name: _behind_norms(twin) if folded else twin
        for kind, nodes in ours.items()
        if len(nodes) == len(theirs.get(kind, ()))
        for own, twin in zip(nodes, theirs[kind], strict=True)
    }
    sources = {n: source for n, source in rounded.items() if source.name in same and source.op == "call_function"}
    if not sources:
        raise UsageError(f"{quantized} has no quantized tensor that {original} computes: was it made from this file?")
    written = {node.name: source.name for node, source in sources.items()}
    wanted = {same[source.name].name: source.name for source in sources.values()}

    def run_float(feed: Arrays) -> dict[str, np.ndarray]:
        return _watched(original, feed, wanted, {})

    makers = {source.name: _kind_of(source) for source in sources.values()}
    return Twins(run_float, lambda feed: _watched(quantized, feed, written, {}), makers)


def _rounded(path: Path) -> dict[Any, Any]:
    """Return every dequantized activation with the tensor that was quantized. Raises `UsageError` without any."""
    rounded = {
        node: node.args[0].args[0]
        for node in read_program(path).graph.nodes
        if _named(node, ".dequantize_per_tensor") and _named(node.args[0], ".quantize_per_tensor")
    }
    if not rounded:
        raise UsageError(f"{path} has no quantized activations: --by-layer is for quantized networks")
    return rounded


def _by_kind(path: Path) -> dict[str, list[Any]]:
    """Return the nodes that compute, by operator and in program order."""
    kinds: dict[str, list[Any]] = {}
    for node in read_program(path).graph.nodes:
        if node.op == "call_function" and "quantize_per_" not in str(node.target):
            kinds.setdefault(str(node.target), []).append(node)
    return kinds


def _behind_norms(node: Any) -> Any:
    """Return the batch normalization of the value of `node` if nothing else reads this value, else `node`."""
    readers = list(node.users)
    return _behind_norms(readers[0]) if len(readers) == 1 and _named(readers[0], ".batch_norm") else node


def _kind_of(node: Any) -> str:
    return str(node.target).removeprefix("aten.")


def _watched(path: Path, feed: Arrays, wanted: Mapping[str, str], replaced: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Run a program; return the values of the nodes `wanted` under new names. `replaced` nodes take another's value."""
    torch = torch_package()
    seen: dict[str, np.ndarray] = {}

    class Watching(torch.fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            other = replaced.get(n.name)
            made = self.env[_by_name(self, other)] if other is not None else super().run_node(n)
            if n.name in wanted:
                seen[wanted[n.name]] = made.detach().numpy().astype("float64")
            return made

    run_exported(
        read_program(path),
        feed,
        flat=lambda module, values: Watching(module, garbage_collect_values=False).run(
            *values, enable_io_processing=False
        ),
    )
    return seen


def _named(node: Any, what: str) -> bool:
    return what in str(getattr(node, "target", ""))


def _by_name(interpreter: Any, name: str) -> Any:
    return next(node for node in interpreter.module.graph.nodes if node.name == name)
