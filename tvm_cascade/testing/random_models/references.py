"""What the frameworks compute of a random model, and the rules by which they are known to be wrong or to refuse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_cascade.checking.litert_defects import doubts, repaired
from tvm_cascade.checking.unsigned_weights import with_unsigned_weights
from tvm_cascade.testing.random_models.model import RandomModel
from tvm_cascade.testing.random_models.onnx_file import onnx_bytes
from tvm_cascade.testing.random_models.operators import Operators
from tvm_cascade.testing.random_models.tflite_file import tflite_bytes
from tvm_cascade.testing.reference import Reference, random_inputs
from tvm_cascade.testing.single_operators import small

_NO_QUANTIZERS = 28  # opset whose QuantizeLinear ONNX Runtime 1.32 has not: the file is stamped as of the one before


class Disputed(Exception):
    """The reference takes no such model, or is known to be wrong: the rule, a colon, and what it says."""


@dataclass(frozen=True, slots=True)
class Referred:
    """A model's file, inputs for it, and the reference's outputs."""

    file: bytes
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]


def reference(model: RandomModel | Operators) -> Referred:
    """Return the outputs of the file's framework on random inputs. Raises `Disputed`."""
    return {"tflite": _litert, "onnx": _onnx, "pt2": _torch}[model.door](model)


def file_bytes(model: RandomModel | Operators) -> bytes:
    """Return the bytes of a model's file."""
    if model.door == "pt2":
        return _archive(_exported(model)[0])
    if isinstance(model, Operators):
        return model.tflite() if model.door == "tflite" else model.onnx().file()
    return onnx_bytes(model) if model.door == "onnx" else tflite_bytes(model)


def _litert(model: RandomModel | Operators) -> Referred:
    file = file_bytes(model)
    data, _ = repaired(file)
    try:
        run = Reference(data)
        inputs = [small(a) for a in random_inputs(run.inputs, model.seed % 64)]
        made = run.run(inputs)
    except (ValueError, RuntimeError) as error:
        raise Disputed(f"LiteRT refuses: {str(error).strip().splitlines()[-1]}") from error
    if doubt := doubts(run.interpreter):
        raise Disputed(doubt)
    return Referred(file, inputs, made)


def _floats(model: RandomModel) -> list[np.ndarray]:
    rng = np.random.default_rng([model.seed, 5])
    return [rng.standard_normal(model.operands[t].shape).astype("float32") for t in model.inputs]


def _onnx(model: RandomModel | Operators) -> Referred:
    if isinstance(model, Operators):
        made = model.onnx()
        try:
            file = made.file()
        except Exception as error:  # of several types of its own
            raise Disputed(f"ONNX refuses: {str(error).strip().splitlines()[-1]}") from error
        inputs = list(made.given.values())
        return Referred(file, inputs, _session(file, inputs))
    inputs = _floats(model)
    return Referred(onnx_bytes(model), inputs, _run(model, inputs, model.outputs))


def runtime(model: RandomModel, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the outputs of a quantized network of one operator, and the same before they are quantized."""
    return _run(model, inputs, model.outputs), _run(model, inputs, model.outputs, unrounded=True)


def _run(model: RandomModel, inputs: list[np.ndarray], outputs: Any, unrounded: bool = False) -> list[np.ndarray]:
    if model.quantized and model.opset >= _NO_QUANTIZERS:
        model = replace(model, opset=_NO_QUANTIZERS - 1)
    return _session(onnx_bytes(replace(model, outputs=tuple(outputs)), unrounded=unrounded), inputs)


def _session(file: bytes, inputs: list[np.ndarray]) -> list[np.ndarray]:
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        precise = with_unsigned_weights(onnx.load_from_string(file)).SerializeToString()
        session = onnxruntime.InferenceSession(precise, options, providers=["CPUExecutionProvider"])
        names = [given.name for given in session.get_inputs()]
        return [np.asarray(a) for a in session.run(None, dict(zip(names, inputs, strict=True)))]
    except Exception as error:  # of several types of its own
        raise Disputed(f"ONNX Runtime refuses: {str(error).strip().splitlines()[-1]}") from error


def _torch(model: RandomModel | Operators) -> Referred:
    from tvm_cascade.importers.torch.package import torch_package

    torch = torch_package()
    torch.set_num_threads(1)
    try:
        program, inputs = _exported(model)
        file = _archive(program)
        with torch.no_grad():
            made = program.module()(*(torch.from_numpy(a) for a in inputs))
    except Exception as error:  # of many types
        raise Disputed(f"torch.export refuses: {str(error).strip().splitlines()[0]}") from error
    return Referred(file, inputs, [np.array(m.numpy()) for m in made])


def _exported(model: RandomModel | Operators) -> tuple[Any, list[np.ndarray]]:
    """Return the program of torch.export, and inputs for it."""
    from tvm_cascade.testing.random_models.torch_file import export, module

    if isinstance(model, Operators):
        made = model.torch()
        return export(made.module(), made.given), made.given
    inputs = _floats(model)
    return export(module(model), inputs), inputs


def _archive(program: Any) -> bytes:
    import io

    from tvm_cascade.importers.torch.package import torch_package

    file = io.BytesIO()
    torch_package().export.save(program, file)
    return file.getvalue()
