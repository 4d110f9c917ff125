"""One network, a residual one with a depthwise convolution, as files of every kind but `.tflite`: for tests and
benchmarks of the whole way from a file to a board.

Weights are random, from a seed. Images are square, of three channels. The `onnx` and `torch` extras are imported where
they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tvm_cascade.importers.torch.package import torch_package

CLASSES = 10


class _Onnx:
    """Collects the nodes of one graph. With `quantized`, a Q/DQ pair behind every operator and stored weights."""

    def __init__(self, channels: int, quantized: bool) -> None:
        self.onnx: Any = import_module("onnx")
        self.channels, self.quantized = channels, quantized
        self.rng = np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.scales: dict[str, float] = {}

    def constant(self, data: Any) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(self.onnx.numpy_helper.from_array(np.asarray(data), name))
        return name

    def node(self, kind: str, inputs: list[str], **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [name], **attrs))
        return name

    def stored(self, x: str, scale: float, zero_point: int) -> str:
        if not self.quantized:
            return x
        operands = [self.constant(np.float32(scale)), self.constant(np.array(zero_point, "uint8"))]
        result = self.node("DequantizeLinear", [self.node("QuantizeLinear", [x, *operands]), *operands])
        self.scales[result] = scale
        return result

    def parameter(self, shape: tuple[int, ...]) -> tuple[str, np.ndarray]:
        """Weights and the scale of every output channel."""
        scales = self.rng.uniform(0.001, 0.01, shape[0]).astype("float32")
        data = self.rng.integers(-127, 128, shape).astype("int8")
        if not self.quantized:
            return self.constant(data * scales.reshape(-1, *[1] * (len(shape) - 1))), scales
        zero = self.constant(np.zeros(shape[0], "int8"))
        return self.node("DequantizeLinear", [self.constant(data), self.constant(scales), zero], axis=0), scales

    def bias(self, scales: np.ndarray, x: str) -> str:
        steps = (scales * np.float32(self.scales.get(x, 0.02))).astype("float32")
        data = self.rng.integers(-500, 500, scales.size).astype("int32")
        if not self.quantized:
            return self.constant((data * steps).astype("float32"))
        zero = self.constant(np.zeros(scales.size, "int32"))
        return self.node("DequantizeLinear", [self.constant(data), self.constant(steps), zero], axis=0)

    def convolution(self, x: str, cin: int, cout: int, kernel: int, groups: int = 1, **attrs: Any) -> str:
        w, scales = self.parameter((cout, cin // groups, kernel, kernel))
        return self.node("Conv", [x, w, self.bias(scales, x)], group=groups, **attrs)

    def network(self) -> str:
        c = self.channels
        x = self.stored("x", 1 / 255, 0)
        a = self.convolution(x, 3, c, 3, strides=[2, 2], pads=[1, 1, 1, 1])
        a = self.stored(self.node("Relu", [a]), 0.02, 0)
        d = self.stored(self.node("Relu", [self.convolution(a, c, c, 3, groups=c, pads=[1, 1, 1, 1])]), 0.03, 0)
        p = self.stored(self.convolution(d, c, c, 1), 0.05, 120)
        e = self.stored(self.node("Add", [p, a]), 0.06, 100)
        m = self.stored(self.node("MaxPool", [e], kernel_shape=[2, 2], strides=[2, 2]), 0.06, 100)
        g = self.stored(self.node("GlobalAveragePool", [m]), 0.04, 90)
        w, scales = self.parameter((CLASSES, c))
        y = self.node("Gemm", [self.node("Flatten", [g], axis=1), w, self.bias(scales, g)], transB=1)
        return self.stored(y, 0.1, 128)

    def save(self, path: Path, size: int) -> None:
        result = self.network()
        kind, make = self.onnx.TensorProto.FLOAT, self.onnx.helper.make_tensor_value_info
        inputs, outputs = [make("x", kind, [1, 3, size, size])], [make(result, kind, [1, CLASSES])]
        graph = self.onnx.helper.make_graph(self.nodes, "network", inputs, outputs, self.weights)
        opset = [self.onnx.helper.make_opsetid("", 19)]
        self.onnx.save(self.onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), path)


def write_onnx(path: Path, size: int, channels: int) -> None:
    """Float."""
    _Onnx(channels, quantized=False).save(path, size)


def write_onnx_qdq(path: Path, size: int, channels: int) -> None:
    """QuantizeLinear and DequantizeLinear: uint8 activations, int8 weights by channel."""
    _Onnx(channels, quantized=True).save(path, size)


def write_torch(path: Path, size: int, channels: int) -> None:
    """torch.export of a float module."""
    _export(path, size, channels, quantized=False)


def write_torch_pt2e(path: Path, size: int, channels: int) -> None:
    """torch.export of what PT2E leaves: int8 activations, int8 weights by channel, float biases."""
    _export(path, size, channels, quantized=True)


def _export(path: Path, size: int, channels: int, quantized: bool) -> None:
    torch = torch_package()
    ops, functional = torch.ops.quantized_decomposed, torch.nn.functional
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"first": (channels, 3, 3, 3), "depth": (channels, 1, 3, 3)}
    shapes |= {"point": (channels, channels, 1, 1), "last": (CLASSES, channels)}

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, shape in shapes.items():
                self.register_buffer(f"w_{name}", torch.randint(-127, 128, shape, generator=generator).to(torch.int8))
                self.register_buffer(f"s_{name}", torch.rand(shape[0], generator=generator) * 0.009 + 0.001)
                self.register_buffer(f"z_{name}", torch.zeros(shape[0], dtype=torch.int64))
                setattr(self, f"b_{name}", torch.nn.Parameter(torch.randn(shape[0], generator=generator) * 0.1))

        def weights(self, name: str) -> Any:
            w, s, z = (getattr(self, f"{part}_{name}") for part in "wsz")
            if quantized:
                return ops.dequantize_per_channel(w, s, z, 0, -127, 127, torch.int8)
            return w.to(torch.float32) * s.reshape(-1, *[1] * (w.dim() - 1))

        def stored(self, x: Any, scale: float, zero: int) -> Any:
            if not quantized:
                return x
            how = (scale, zero, -128, 127, torch.int8)
            return ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *how), *how)

        def forward(self, x: Any) -> Any:
            conv = functional.conv2d
            x = self.stored(x, 1 / 32, 0)
            a = self.stored(functional.relu(conv(x, self.weights("first"), self.b_first, 2, 1)), 0.05, -128)
            d = functional.relu(conv(a, self.weights("depth"), self.b_depth, 1, 1, groups=channels))
            p = self.stored(conv(self.stored(d, 0.05, -128), self.weights("point"), self.b_point), 0.1, 0)
            e = self.stored(p + a, 0.1, 0)
            g = self.stored(
                functional.adaptive_avg_pool2d(self.stored(functional.max_pool2d(e, 2), 0.1, 0), 1), 0.05, 0
            )
            y = functional.linear(self.stored(g.flatten(1), 0.05, 0), self.weights("last"), self.b_last)
            return self.stored(y, 0.1, 0)

    exported = torch.export.export(Network().eval(), (torch.zeros((1, 3, size, size)),))
    torch.export.save(exported, path)


def write_torchao(path: Path, size: int, channels: int) -> None:
    """torch.export of a float module that torchao quantized by PT2E: prepared, calibrated, converted, exported again.

    Needs torchao, whose quantizer for XNNPACK (int8 activations, int8 weights by channel) is the one it ships for tests.
    """
    torch = torch_package()
    pt2e = import_module("torchao.quantization.pt2e.quantize_pt2e")
    quantizers = import_module("torchao.testing.pt2e._xnnpack_quantizer")
    torch.manual_seed(0)
    nn, example = torch.nn, (torch.zeros((1, 3, size, size)),)

    def layer(cin: int, cout: int, kernel: int, *after: Any, **how: Any) -> Any:
        normalize = nn.BatchNorm2d(cout)
        normalize.running_var.uniform_(0.5, 1.5)
        return nn.Sequential(nn.Conv2d(cin, cout, kernel, padding=kernel // 2, bias=False, **how), normalize, *after)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = layer(3, channels, 3, nn.ReLU(), stride=2)
            self.depth = layer(channels, channels, 3, nn.ReLU6(), groups=channels)
            self.point = layer(channels, channels, 1)
            self.last = nn.Linear(channels, CLASSES)

        def forward(self, x: Any) -> Any:
            a = self.first(x)
            y = nn.functional.max_pool2d(self.point(self.depth(a)) + a, 2)
            return self.last(nn.functional.adaptive_avg_pool2d(y, 1).flatten(1))

    quantizer = quantizers.XNNPACKQuantizer().set_global(quantizers.get_symmetric_quantization_config(True))
    prepared = pt2e.prepare_pt2e(torch.export.export(Network().eval(), example).module(), quantizer)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        prepared(torch.rand((1, 3, size, size), generator=generator) * 2 - 1)
    torch.export.save(torch.export.export(pt2e.convert_pt2e(prepared), example), path)


Writer = Callable[[Path, int, int], None]
WAYS: Mapping[str, tuple[str, Writer]] = MappingProxyType(
    {
        "ONNX, float": ("float.onnx", write_onnx),
        "ONNX, QDQ": ("qdq.onnx", write_onnx_qdq),
        "torch.export, float": ("float.pt2", write_torch),
        "torch.export, PT2E": ("pt2e.pt2", write_torch_pt2e),
        "torch.export, PT2E by torchao": ("torchao.pt2", write_torchao),
    }
)
