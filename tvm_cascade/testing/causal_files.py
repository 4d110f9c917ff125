"""One causal network, three dilated convolutions along time and their mean, as a file of every kind.

Padding is an operator of its own, as Keras, PyTorch and PyTorch's quantizer write it. Weights are random, from a seed, and
the same in every file. Frameworks are imported where they are used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.testing.tflite import ModelWriter

STEPS, CHANNELS, DILATIONS = 96, 8, (1, 2, 4)
_SCALE, _WEIGHT, _ZERO = 0.02, 0.0041, -128


def weights() -> list[np.ndarray]:
    """Return the int8 weights of every layer, [out, in, window]."""
    rng = np.random.default_rng(3)
    return [rng.integers(-127, 128, (CHANNELS, CHANNELS, 3)).astype("int8") for _ in DILATIONS]


def write_tflite(path: Path, dtype: str) -> None:
    """Write PAD, EXPAND_DIMS, CONV_2D and RESHAPE for every layer."""
    writer = ModelWriter()
    x, zero = writer.activation((1, STEPS, CHANNELS), dtype, _SCALE, 0, name="x"), 0
    for data, dilation in zip(weights(), DILATIONS, strict=True):
        long = STEPS + 2 * dilation
        widths = writer.constant(np.array([[0, 0], [2 * dilation, 0], [0, 0]], "int32"))
        padded = writer.tensor((1, long, CHANNELS), dtype, _SCALE, zero)
        writer.operator("PAD", [x, widths], [padded], "PadOptions", inner=True)
        row = writer.tensor((1, 1, long, CHANNELS), dtype, _SCALE, zero)
        axis = writer.constant(np.array(1, "int32"))
        writer.operator("EXPAND_DIMS", [padded, axis], [row], "ExpandDimsOptions", inner=True)
        kernel, zero = data.transpose(0, 2, 1)[:, None], _ZERO
        held = kernel if dtype == "int8" else kernel * np.float32(_WEIGHT)
        kernel = writer.tensor(kernel.shape, dtype, np.full(CHANNELS, _WEIGHT), data=held)
        offset = np.zeros(CHANNELS, "int32" if dtype == "int8" else "float32")
        bias = writer.tensor((CHANNELS,), str(offset.dtype), np.full(CHANNELS, _SCALE * _WEIGHT), data=offset)
        made = writer.tensor((1, 1, STEPS, CHANNELS), dtype, _SCALE, zero)
        writer.operator(
            "CONV_2D", [row, kernel, bias], [made], "Conv2DOptions", inner=True, version=3, padding=1,
            strideH=1, strideW=1, dilationHFactor=1, dilationWFactor=dilation, fusedActivationFunction=1,
        )  # fmt: skip
        x = writer.tensor((1, STEPS, CHANNELS), dtype, _SCALE, zero)
        shape = writer.constant(np.array([1, STEPS, CHANNELS], "int32"))
        writer.operator("RESHAPE", [made, shape], [x], "ReshapeOptions", inner=True)
    mean = writer.tensor((1, CHANNELS), dtype, _SCALE, zero)
    writer.operator("MEAN", [x, writer.constant(np.array([1], "int32"))], [mean], "ReducerOptions")
    path.write_bytes(writer.finish())


def write_onnx(path: Path, dtype: str) -> None:
    """Write Pad and Conv for every layer; of int8, each operator between dequantized and quantized values."""
    import onnx
    from onnx import helper, numpy_helper

    nodes, constants = list[Any](), list[Any]()

    def constant(data: Any) -> str:
        constants.append(numpy_helper.from_array(np.asarray(data), f"c{len(constants)}"))
        return constants[-1].name

    def node(kind: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, list(inputs), [f"v{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def stored(x: str, zero: int) -> str:
        pair = (constant(np.float32(_SCALE)), constant(np.int8(zero)))
        return x if dtype != "int8" else node("DequantizeLinear", node("QuantizeLinear", x, *pair), *pair)

    x, zero = stored("x", 0), 0
    for data, dilation in zip(weights(), DILATIONS, strict=True):
        x = stored(node("Pad", x, constant(np.array([0, 0, 2 * dilation, 0, 0, 0])), constant(np.float32(0))), zero)
        w = constant(data if dtype == "int8" else data * np.float32(_WEIGHT))
        if dtype == "int8":
            w = node("DequantizeLinear", w, constant(np.float32(_WEIGHT)), constant(np.int8(0)))
        zero = _ZERO
        x = stored(node("Relu", node("Conv", x, w, dilations=[dilation])), zero)
    y = stored(node("ReduceMean", x, axes=[2], keepdims=0), zero)
    info, kind = helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    ends = [info("x", kind, (1, CHANNELS, STEPS))], [info(y, kind, (1, CHANNELS))]
    graph = helper.make_graph(nodes, "g", *ends, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def write_torch(path: Path, dtype: str) -> None:
    """Write what torch.export makes of padded convolutions; of int8, as PT2E leaves them."""
    torch = torch_package()
    ops, functional = torch.ops.quantized_decomposed, torch.nn.functional

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for k, data in enumerate(weights()):
                held = torch.from_numpy(data)
                self.register_buffer(f"w{k}", held if dtype == "int8" else held.float() * _WEIGHT)

        def stored(self, x: Any, zero: int) -> Any:
            how = (_SCALE, zero, -128, 127, torch.int8)
            return ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *how), *how) if dtype == "int8" else x

        def forward(self, x: Any) -> Any:
            x, zero = self.stored(x, 0), 0
            for k, dilation in enumerate(DILATIONS):
                w, x = getattr(self, f"w{k}"), self.stored(functional.pad(x, (2 * dilation, 0)), zero)
                if dtype == "int8":
                    w = ops.dequantize_per_tensor(w, _WEIGHT, 0, -127, 127, torch.int8)
                zero = _ZERO
                x = self.stored(functional.relu(functional.conv1d(x, w, dilation=dilation)), zero)
            return self.stored(x.mean(2), zero)

    example = (torch.zeros(1, CHANNELS, STEPS),)
    torch.export.save(torch.export.export(Network().eval(), example), str(path))


WRITERS = {".tflite": write_tflite, ".onnx": write_onnx, ".pt2": write_torch}
