"""The reference for ONNX models: ONNX Runtime without optimizations, or ONNX's `ReferenceEvaluator` for models refused
by it.

The evaluator is ONNX's definition of operators in Python. Some operators deviate from the specification; `untrusted`
finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade import extras
from tvm_cascade.checking.sensitivity import in_own_types, onnx_evaluator
from tvm_cascade.checking.unsigned_weights import with_unsigned_weights
from tvm_cascade.errors import LoadError, MissingToolError
from tvm_cascade.importers.onnx.file import read_model
from tvm_cascade.messages import last_line
from tvm_cascade.tensor_spec import unique_names

Arrays = Mapping[str, np.ndarray]
ONNX_FLOATS = (1, 10, 11, 16)  # onnx.TensorProto.FLOAT, FLOAT16, DOUBLE and BFLOAT16
_INSTALL = f"{extras.remedy('onnxruntime')}, whose ONNX Runtime --check then uses"
_SAME, _POOLS = (b"SAME_UPPER", b"SAME_LOWER"), ("AveragePool", "LpPool", "MaxPool")
_ALONG_THE_REST = ("Softmax", "LogSoftmax", "Hardmax")  # before opset 13: over `axis` and all later axes
# operator -> values of auto_pad that the evaluator gets wrong
_PADS = {"ConvTranspose": _SAME, "MaxPool": (b"SAME_LOWER",)}


def read_onnx(path: Path) -> Any:
    """Read the model in a file.

    Raises `MissingToolError` without the `onnx` package, `LoadError` for a file without a model, and for missing
    external data.
    """
    model = read_model(path)
    if not model.graph.node:
        raise LoadError(path, "not an ONNX model: its graph has no operator")
    return model


class OnnxReference:
    """The outputs of the model in a file, inference by inference."""

    def __init__(self, path: Path) -> None:
        self._path, self._model = path, read_onnx(path)
        self._session: Callable[[Arrays], dict[str, np.ndarray]] | None = None
        self._evaluator: Any = None
        self._refusal, self._lacks_runtime = "", False
        self._disputed = ""  # operators that ONNX Runtime computes otherwise than ONNX, where the evaluator is right
        try:
            self._session = runtime_function(path)
        except ImportError:
            self._lacks_runtime = True
        except Exception as error:  # of types of its own
            self._refusal = last_line(error)
        else:
            trusted = not any(untrusted(self._model))
            self._disputed = ", ".join(dict.fromkeys(disputed(self._model))) if trusted else ""

    @property
    def by(self) -> str:
        """Return the computing program's name."""
        return "ONNX's evaluator" if self._session is None or self._disputed else "ONNX Runtime without optimizations"

    @property
    def note(self) -> str:
        """Return the reason for the evaluator in place of ONNX Runtime, and the operators it gets wrong; "" if there is
        nothing to say.
        """
        if self._disputed:
            return f"ONNX Runtime is wrong about {self._disputed}"
        if self._session is not None:
            told = ", ".join(dict.fromkeys(node.op_type for node in _dilated(self._model)))
            return f"with the padding of {told} written out: it leaves the dilation out of SAME" if told else ""
        from tvm_cascade.importers.onnx.qoperators import spell_out  # needs onnx, which reading the model has found

        doubts = ", ".join(dict.fromkeys(untrusted(spell_out(self._model))))
        wrong = [f"it is wrong about {doubts}"] if doubts else []
        if self._lacks_runtime:
            return f"{wrong[0]}: {_INSTALL}" if doubts else ""
        return "; ".join([f"ONNX Runtime refuses it: {self._refusal}", *wrong])

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Run an inference and return outputs by name.

        Raises `MissingToolError` if the evaluator refuses the model and ONNX Runtime is not installed, `LoadError` if
        both refuse the model.
        """
        inputs = in_own_types(self._model, inputs)
        if self._disputed:
            try:
                return self._evaluated(inputs)
            except Exception:  # whatever an operator breaks at first
                self._disputed = ""
        if self._session is not None:
            try:
                return self._session(inputs)
            except Exception as error:  # of types of its own
                self._session, self._refusal = None, last_line(error)
        try:
            return self._evaluated(inputs)
        except Exception as error:  # whatever an operator breaks at first
            said = f"ONNX's evaluator says: {last_line(error)}"
            if self._lacks_runtime:
                raise MissingToolError("onnxruntime", f"{_INSTALL}: {said}") from None
            remedy = "for an input that the network takes only some values of, give --inputs FILE.npz"
            raise LoadError(self._path, f"ONNX Runtime refuses it: {self._refusal}; {said}; {remedy}") from error

    def _evaluated(self, inputs: Arrays) -> dict[str, np.ndarray]:
        self._evaluator = self._evaluator or onnx_evaluator(self._path)
        return _by_name(self._evaluator.output_names, self._evaluator.run(None, dict(inputs)))


def runtime_function(path: Path) -> Callable[[Arrays], dict[str, np.ndarray]]:
    """Return `model_function` of a file."""
    return model_function(read_onnx(path))


def model_function(model: Any) -> Callable[[Arrays], dict[str, np.ndarray]]:
    """Return a function from inputs to outputs by name, computed by ONNX Runtime without optimizations.

    Raises `ImportError` without ONNX Runtime, and ONNX Runtime's own exceptions if the model or the inputs are refused.
    """
    import onnxruntime  # pyright: ignore[reportMissingImports]

    from tvm_cascade.importers.onnx.halves import as_floats

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it refuses is said once, by the error
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    floats = with_unsigned_weights(_with_explicit_pads(as_floats(model)))
    session = onnxruntime.InferenceSession(floats.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: _by_name(names, session.run(names, dict(in_own_types(model, inputs))))


def _dilated(model: Any) -> list[Any]:
    """Find the pools whose padding ONNX Runtime computes as if their windows were not dilated."""
    import onnx

    def is_dilated(node: Any) -> bool:
        attrs = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        return attrs.get("auto_pad") in _SAME and any(d > 1 for d in attrs.get("dilations", ()))

    return [node for node in model.graph.node if node.op_type in _POOLS and is_dilated(node)]


def _with_explicit_pads(model: Any) -> Any:
    """Write out the padding of the pools that `_dilated` finds, in a copy; those with unknown extents stay."""
    import onnx

    from tvm_cascade.importers.onnx.folding import copied

    if not _dilated(model):
        return model
    made, extents = copied(model), _extents(model)
    for node in _dilated(made):
        attrs = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        sizes, kernel = extents.get(node.input[0], [])[2:], attrs["kernel_shape"]
        if len(sizes) != len(kernel) or min(sizes) < 1:
            continue
        strides = attrs.get("strides", [1] * len(kernel))
        spans = zip(sizes, kernel, strides, attrs["dilations"], strict=True)
        totals = [max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0) for n, k, s, d in spans]
        first = [-(-t // 2) if attrs["auto_pad"] == b"SAME_LOWER" else t // 2 for t in totals]
        kept = [a for a in node.attribute if a.name not in ("auto_pad", "pads")]
        pads = onnx.helper.make_attribute("pads", [*first, *(t - f for t, f in zip(totals, first, strict=True))])
        del node.attribute[:]
        node.attribute.extend([*kept, pads])
    return made


def _by_name(names: Iterable[object], values: Iterable[object]) -> dict[str, np.ndarray]:
    return {n: np.asarray(v) for n, v in zip(unique_names(map(str, names)), values, strict=True)}


def untrusted(model: Any) -> Iterator[str]:
    """Find the operators that ONNX's evaluator computes differently from the specification."""
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)
    extents, dilated = _extents(model), _dilated(model)
    for node in model.graph.node:
        attrs = {a.name: a for a in node.attribute}
        rank = len(extents.get(node.input[0], ())) if node.input else 0
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
        elif node.op_type == "AveragePool" and node in dilated:
            yield "AveragePool of SAME with dilation"
        elif "auto_pad" in attrs and attrs["auto_pad"].s in _PADS.get(node.op_type, ()):
            yield f"{node.op_type} of {attrs['auto_pad'].s.decode()}"
        elif node.op_type == "GlobalMaxPool" and rank != 4:
            yield "GlobalMaxPool of another rank than 4"
        elif node.op_type == "Resize" and _narrows_to_one(node, attrs, extents):
            yield "Resize to one element by pytorch_half_pixel"  # it places the element before the first


def disputed(model: Any) -> Iterator[str]:
    """Find the operators that ONNX Runtime computes differently from the specification."""
    import onnx

    extents = _extents(model)
    held = {tensor.name: tensor for tensor in model.graph.initializer}
    held |= {
        n.output[0]: a.t for n in model.graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"
    }
    for node in model.graph.node:
        attrs = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        corners = attrs.get("coordinate_transformation_mode") == b"align_corners" and attrs.get("mode") in (
            b"linear",
            b"cubic",
        )
        if node.op_type != "Resize" or not corners or len(node.input) < 3 or node.input[2] not in held:
            continue
        shape, scales = extents.get(node.input[0], ()), onnx.numpy_helper.to_array(held[node.input[2]])
        chosen = [shape[a] for a in attrs.get("axes", range(len(shape)))]
        if len(chosen) == len(scales) and any(e * s % 1 for e, s in zip(chosen, scales, strict=True)):
            yield "Resize with aligned corners by scales that give no whole size"


def _narrows_to_one(node: Any, attrs: dict[str, Any], extents: dict[str, list[int]]) -> bool:
    """Return True if torch's rule for axes of one element decides a place, or if the sizes are unknown."""
    rule = attrs.get("coordinate_transformation_mode")
    before, after = extents.get(node.input[0], []), extents.get(node.output[0], [])
    known = len(before) == len(after) > 0
    return (
        rule is not None
        and rule.s == b"pytorch_half_pixel"
        and (not known or any(b != 1 == a for b, a in zip(before, after, strict=True)))
    )


def _extents(model: Any) -> dict[str, list[int]]:
    import onnx

    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # malformed: the evaluator says so
        return {}
    values = (v for v in (*graph.input, *graph.value_info, *graph.output) if v.type.tensor_type.HasField("shape"))
    return {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
