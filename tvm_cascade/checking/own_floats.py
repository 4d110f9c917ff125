"""Float twins of quantized networks, made of the quantized file alone.

The twin has the file's weights, dequantized, and activations that are never rounded. So the difference of a tensor from
its twin's is the error that quantized activations cause; the rounding of the weights is in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade import extras
from tvm_cascade.checking.litert_defects import object_tree, packed
from tvm_cascade.checking.reference import real
from tvm_cascade.checking.sensitivity import read_program, run_exported
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.messages import last_line
from tvm_cascade.plain_files import readable

Arrays = Mapping[str, np.ndarray]
_STORED = {"INT8": np.int8, "UINT8": np.uint8, "INT16": np.int16, "INT32": np.int32}


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
    litert = extras.load("ai-edge-litert", ".interpreter")
    data = readable(path).read_bytes()
    try:
        tree = object_tree(data)
        makers, names = _makers(tree)
        float_data = _as_float(tree)
    except UsageError:
        raise
    except Exception as error:  # flatbuffers raises whatever reading beyond the end gives
        raise LoadError(path, "not a TFLite model, or truncated") from error
    if not makers:
        raise UsageError(f"{path} has no quantized activations: --by-layer is for quantized networks")

    def opened(content: bytes, what: str) -> Any:
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

    stored, floats = opened(data, "reference kernels"), opened(float_data, "float form")
    details = {int(d["index"]): d for d in stored.get_tensor_details()}

    def fed(interpreter: Any, feed: Arrays, as_real: bool) -> None:
        for detail, (_, array) in zip(stored.get_input_details(), feed.items(), strict=True):
            scale, zero = detail["quantization"]
            value = real(array, scale or None, zero) if as_real else array
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()

    def run_stored(feed: Arrays) -> dict[str, np.ndarray]:
        fed(stored, feed, as_real=False)
        pairs = ((names[t], details[t]["quantization"], stored.get_tensor(t)) for t in makers)
        return {name: real(array, scale or None, zero) for name, (scale, zero), array in pairs}

    def run_float(feed: Arrays) -> dict[str, np.ndarray]:
        fed(floats, feed, as_real=True)
        return {names[t]: floats.get_tensor(t) for t in makers}

    return Twins(run_float, run_stored, {names[t]: kind for t, kind in makers.items()})


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
    types = {getattr(schema.TensorType, name): dtype for name, dtype in _STORED.items()}
    for tensor in graph.tensors:
        scale = _scale(tensor)
        if scale is None:
            continue
        data = tree.buffers[tensor.buffer].data if tensor.buffer else None
        if data is not None and len(data):
            if tensor.type not in types:
                raise UsageError("--by-layer needs weights of 8 bits or more")
            raw = np.frombuffer(bytes(bytearray(data)), types[tensor.type])
            values = _dequantized(raw.reshape(tensor.shape), scale, tensor.quantization)
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
    torch = torch_package()
    nodes = list(read_program(path).graph.nodes)
    rounded = {  # dequantized activation -> the tensor that was quantized
        node: node.args[0].args[0]
        for node in nodes
        if _named(node, ".dequantize_per_tensor") and _named(node.args[0], ".quantize_per_tensor")
    }
    if not rounded:
        raise UsageError(f"{path} has no quantized activations: --by-layer is for quantized networks")
    written = {node.name: source for node, source in rounded.items() if source.op == "call_function"}

    def run(feed: Arrays, as_float: bool) -> dict[str, np.ndarray]:
        seen: dict[str, np.ndarray] = {}

        class Watching(torch.fx.Interpreter):
            def run_node(self, n: Any) -> Any:
                source = rounded.get(_twin(nodes, n))
                made = self.env[_by_name(self, source)] if source is not None and as_float else super().run_node(n)
                if n.name in written:
                    seen[written[n.name].name] = made.detach().numpy().astype("float64")
                return made

        program = read_program(path)
        run_exported(
            program,
            feed,
            flat=lambda module, values: Watching(module, garbage_collect_values=False).run(
                *values, enable_io_processing=False
            ),
        )
        return seen

    makers = {source.name: str(source.target).removeprefix("aten.") for source in written.values()}
    return Twins(lambda feed: run(feed, True), lambda feed: run(feed, False), makers)


def _named(node: Any, what: str) -> bool:
    return what in str(getattr(node, "target", ""))


def _twin(nodes: list[Any], node: Any) -> Any:
    """Return the node of the exported graph with this node's name: a module's graph is a copy."""
    return next((one for one in nodes if one.name == node.name), None)


def _by_name(interpreter: Any, node: Any) -> Any:
    return next(one for one in interpreter.module.graph.nodes if one.name == node.name)
