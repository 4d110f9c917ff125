"""Reference outputs of ONNX models: by ONNX's `ReferenceEvaluator`, or by ONNX Runtime where the evaluator is wrong or fails.

The evaluator is ONNX's definition of its operators in Python, and agrees best with quantized networks to the bit. Some of
its operators deviate from the specification; `untrusted` finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade import extras
from tvm_cascade.checking.sensitivity import in_own_types, onnx_evaluator
from tvm_cascade.errors import LoadError, MissingToolError
from tvm_cascade.importers.onnx.file import read_model
from tvm_cascade.messages import last_line
from tvm_cascade.tensor_spec import unique_names

Arrays = Mapping[str, np.ndarray]
ONNX_FLOATS = (1, 10, 11, 16)  # onnx.TensorProto.FLOAT, FLOAT16, DOUBLE and BFLOAT16
_INSTALL = f"{extras.remedy('onnxruntime')}, whose ONNX Runtime --check then uses"
_ALONG_THE_REST = ("Softmax", "LogSoftmax", "Hardmax")  # before opset 13: over `axis` and all later axes
_PADS = {
    "ConvTranspose": (b"SAME_UPPER", b"SAME_LOWER"),
    "MaxPool": (b"SAME_LOWER",),
}  # operator -> values of auto_pad that the evaluator gets wrong


def read_onnx(path: Path) -> Any:
    """The model in a file.

    Raises `MissingToolError` without the `onnx` package, `LoadError` for a file that holds no model, and for external data
    that is not beside it.
    """
    model = read_model(path)
    if not model.graph.node:
        raise LoadError(path, "not an ONNX model: its graph has no operator")
    return model


def onnx_outputs(path: Path, inputs: Arrays) -> tuple[dict[str, np.ndarray], str]:
    """Outputs of one inference by name, and a note.

    The note is empty where ONNX's evaluator made the outputs and is right about every operator. Else it says what made
    them, or which operators the evaluator gets wrong.

    Raises `MissingToolError` where the evaluator refuses the model and ONNX Runtime is not installed, `LoadError` where both
    refuse it.
    """
    model = read_onnx(path)
    from tvm_cascade.importers.onnx.qoperators import spell_out  # needs onnx, as the line before does

    inputs = in_own_types(model, inputs)
    doubts = ", ".join(dict.fromkeys(untrusted(spell_out(model))))
    refusal = None
    try:
        session = onnx_evaluator(path)
        made = _by_name(session.output_names, session.run(None, dict(inputs)))
    except Exception as error:  # whatever an operator breaks at first
        refusal, made = last_line(error), {}
    if refusal is None and not doubts:
        return made, ""
    try:
        other = _runtime(path, inputs)
    except ImportError:
        if refusal is not None:
            raise MissingToolError("onnxruntime", f"{_INSTALL}: ONNX's evaluator says: {refusal}") from None
        note = f"ONNX's evaluator, which is wrong about {doubts}: {_INSTALL}"
        return made, note
    except Exception as error:
        remedy = "; for an input that the network takes only some values of, give --inputs FILE.npz"
        raise LoadError(path, f"ONNX Runtime refuses it: {last_line(error)}{remedy}") from error
    why = f"refuses: {refusal}" if refusal is not None else f"is wrong about {doubts}"
    return other, f"ONNX Runtime, since ONNX's evaluator {why}"


def _runtime(path: Path, inputs: Arrays) -> dict[str, np.ndarray]:
    return runtime_function(path)(inputs)


def runtime_function(path: Path) -> Callable[[Arrays], dict[str, np.ndarray]]:
    """The model in a file as a function from inputs to outputs by name, computed by ONNX Runtime without optimizations.

    Raises `ImportError` without ONNX Runtime, and its own exceptions where it refuses the model or the inputs.
    """
    import onnxruntime  # pyright: ignore[reportMissingImports]

    from tvm_cascade.importers.onnx.halves import as_floats

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it refuses is said once, by the error
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = read_onnx(path)
    floats = as_floats(model)
    session = onnxruntime.InferenceSession(floats.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: _by_name(names, session.run(names, dict(in_own_types(model, inputs))))


def _by_name(names: Iterable[object], values: Iterable[object]) -> dict[str, np.ndarray]:
    return {n: np.asarray(v) for n, v in zip(unique_names(map(str, names)), values, strict=True)}


def untrusted(model: Any) -> Iterator[str]:
    """The operators of a model that ONNX's evaluator computes by another definition than the specification's."""
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)
    ranks = _ranks(model)
    for node in model.graph.node:
        attrs = {a.name: a for a in node.attribute}
        rank = ranks.get(node.input[0], 0) if node.input else 0
        if node.op_type in _ALONG_THE_REST and opset < 13:
            axis = attrs["axis"].i if "axis" in attrs else 1
            if axis not in (-1, rank - 1):
                yield f"{node.op_type} of opset {opset}"
        elif node.op_type == "BatchNormalization" and 9 <= opset < 14:
            yield f"BatchNormalization of opset {opset}"  # it takes the statistics of the batch
        elif node.op_type == "LRN":
            yield "LRN"
        elif node.op_type == "LpNormalization" and "p" in attrs and attrs["p"].i == 1:
            yield "LpNormalization of p 1"  # it adds signed values
        elif node.op_type == "SequenceInsert" and len(node.input) > 2:
            yield "SequenceInsert at the end"  # it inserts at the front
        elif "auto_pad" in attrs and attrs["auto_pad"].s in _PADS.get(node.op_type, ()):
            yield f"{node.op_type} of {attrs['auto_pad'].s.decode()}"
        elif node.op_type == "GlobalMaxPool" and rank != 4:
            yield "GlobalMaxPool of another rank than 4"


def _ranks(model: Any) -> dict[str, int]:
    import onnx

    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # malformed: the evaluator says so
        return {}
    values = (v for v in (*graph.input, *graph.value_info) if v.type.tensor_type.HasField("shape"))
    return {v.name: len(v.type.tensor_type.shape.dim) for v in values}
