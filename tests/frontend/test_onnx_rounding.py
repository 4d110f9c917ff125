"""Quantized `.onnx` operators round once, half to even: equal to ONNX Runtime in every element, ties among them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_cascade.frontend import load
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.schedules.rules.requantize import plan_requantize, reference
from tvm_cascade.testing.reference import Compiled

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

CHANNELS, DEPTH = 8, 40
KINDS = ["Add", "Sub", "Mul", "Conv", "Depthwise", "Gemm", "Relu", "Clip", "Transpose", "LeakyRelu", "AveragePool"]
KINDS += ["GlobalAveragePool", "ReduceMean", "Quantize", "Softmax"]
IMAGE, ROW = [1, CHANNELS, 6, 6], [1, DEPTH]


class Case:
    """A network of one quantized operator; powers of two as scales give ties."""

    def __init__(self, kind: str, seed: int, ties: bool) -> None:
        self.rng, self.ties, self.kind = np.random.default_rng(seed), ties, kind
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs: list[Any] = []
        self.shape = ROW if kind == "Gemm" else IMAGE
        result, scale = self.operator()
        zero = np.int8(self.rng.integers(-20, 20))
        named = [self.constant(np.float32(scale)), self.constant(zero)]
        self.nodes.append(onnx.helper.make_node("QuantizeLinear", [result, *named], ["q"]))
        output = onnx.helper.make_tensor_value_info("q", onnx.TensorProto.INT8, None)
        graph = onnx.helper.make_graph(self.nodes, "one", self.inputs, [output], self.weights)
        self.model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)

    def constant(self, data: Any) -> str:
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(data), f"c{len(self.weights)}"))
        return self.weights[-1].name

    def node(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        self.nodes.append(onnx.helper.make_node(kind, inputs, [f"n{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]

    def factor(self, low: float, high: float) -> np.float32:
        """A number in a range; a power of two for `ties`."""
        drawn = self.rng.uniform(np.log2(low), np.log2(high))
        return np.float32(2.0 ** (round(drawn) if self.ties else drawn))

    def stored(self) -> tuple[str, np.float32]:
        """A quantized input, dequantized, and its scale."""
        name, scale = f"x{len(self.inputs)}", self.factor(2**-8, 2**-2)
        self.inputs.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT8, self.shape))
        zero = np.int8(self.rng.integers(-20, 20))
        return self.node("DequantizeLinear", [name, self.constant(scale), self.constant(zero)]), scale

    def weighted(self, shape: tuple[int, ...], scales: np.ndarray, units: np.ndarray) -> list[str]:
        data = self.rng.integers(-127, 128, shape).astype("int8")
        bias = self.rng.integers(-2000, 2000, len(scales)).astype("int32")
        zeros = np.zeros(len(scales))
        parts = ((data, scales, zeros.astype("int8")), (bias, units, zeros.astype("int32")))
        return [self.node("DequantizeLinear", [self.constant(p) for p in part], axis=0) for part in parts]

    def operator(self) -> tuple[str, Any]:
        """The operator's result and the scale by which it is quantized."""
        kind = self.kind
        if kind == "Quantize":
            self.inputs.append(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, self.shape))
            return self.node("Transpose", ["x"], perm=[0, 1, 3, 2]), np.float32(0.5)
        x, s = self.stored()
        if kind == "Softmax":
            return self.node(kind, [x], axis=3), self.factor(2**-7, 2**-4)
        if kind in ("Add", "Sub", "Mul"):
            y, t = self.stored()
            unit = s * t * 64 if kind == "Mul" else 2 * max(s, t)
            return self.node(kind, [x, y]), unit * self.factor(0.6, 1.4)
        if kind in ("Conv", "Depthwise", "Gemm"):
            count, depth = (12, DEPTH) if kind == "Gemm" else (CHANNELS, CHANNELS * 9)
            scales = np.array([self.factor(2**-9, 2**-6) for _ in range(count)], "float32")
            unit = s * scales.max() * self.factor(300, 1500)
            if kind == "Gemm":
                return self.node("Gemm", [x, *self.weighted((count, depth), scales, s * scales)], transB=1), unit
            groups = CHANNELS if kind == "Depthwise" else 1
            parts = self.weighted((count, CHANNELS // groups, 3, 3), scales, s * scales)
            return self.node("Conv", [x, *parts], group=groups, pads=[1, 1, 1, 1]), unit
        attributes: dict[str, Any] = {
            "LeakyRelu": {"alpha": 0.25},
            "AveragePool": {"kernel_shape": [2, 2], "strides": [2, 2]},
            "ReduceMean": {"axes": [2, 3], "keepdims": 0},
            "Clip": {},
            "Transpose": {"perm": [0, 1, 3, 2]},
        }.get(kind, {})
        more = [self.constant(np.float32(0)), self.constant(np.float32(s * 90.5))] if kind == "Clip" else []
        mean = kind in ("GlobalAveragePool", "ReduceMean")
        return self.node(kind, [x, *more], **attributes), s * self.factor(*((0.2, 0.4) if mean else (0.5, 2)))

    def draw(self) -> list[np.ndarray]:
        if self.kind == "Quantize":
            return [(self.rng.integers(-400, 400, self.shape) * 0.25).astype("float32")]
        return [self.rng.integers(-128, 128, self.shape).astype("int8") for _ in self.inputs]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    "kind",
    KINDS,
)
def test_equal_to_onnx_runtime(tmp_path: Path, kind: str, ties: bool) -> None:
    lower: Any = LowerQuantized()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    case = Case(kind, 1, ties)
    onnx.save(case.model, tmp_path / "one.onnx")
    run = Compiled(lower(load(tmp_path / "one.onnx")))
    session = onnxruntime.InferenceSession(case.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for _ in range(3):
        arrays = case.draw()
        (want,) = session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)})
        np.testing.assert_array_equal(run(*arrays)[0].reshape(want.shape), want)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_linear_resizes_round_once(tmp_path: Path, dtype: str) -> None:
    """Blends of pixels are not rounded to steps of the input first: places in steps of a quarter, of 2/3, and of 5/11."""
    from tvm_cascade.testing.onnx_nodes import check_network

    rng, info = np.random.default_rng(5), np.iinfo(dtype)
    constants: dict[str, Any] = {"twice": np.float32([1, 1, 2, 2]), "half_more": np.float32([1, 1, 1.5, 1.5])}
    inputs, nodes, outputs = {}, [], []
    forms = [("half_pixel", "twice"), ("asymmetric", "half_more"), ("align_corners", "twice")]
    for k, ((how, scales), ratio) in enumerate(itertools.product(forms, (0.371, 1.013, 2.719))):
        step, zero, out, shift = (f"{name}{k}" for name in ("step", "zero", "out", "shift"))
        constants |= {step: np.float32(0.02), out: np.float32(0.02 * ratio)}
        constants |= {name: rng.integers(info.min + 60, info.max - 60, (), dtype) for name in (zero, shift)}
        inputs[f"q{k}"] = rng.integers(info.min, info.max, (1, 3, 6, 6), dtype, endpoint=True)
        nodes += [
            onnx.helper.make_node("DequantizeLinear", [f"q{k}", step, zero], [f"x{k}"]),
            onnx.helper.make_node(
                "Resize", [f"x{k}", "", scales], [f"r{k}"], mode="linear", coordinate_transformation_mode=how
            ),
            onnx.helper.make_node("QuantizeLinear", [f"r{k}", out, shift], [f"y{k}"]),
        ]
        outputs.append(f"y{k}")
    check_network(tmp_path, nodes, inputs, outputs, constants)


def test_the_short_form_rounds_once() -> None:
    """`(2 acc m >> 32) + r >> e` equals the definition wherever it is planned; ties are left to the general form."""
    rng, reach, planned = np.random.default_rng(0), 1 << 20, 0
    acc = np.concatenate([rng.integers(-reach, reach + 1, 2000), np.arange(-300, 300)])
    for _ in range(200):
        m = int(rng.integers(1 << 30, 1 << 31)) if rng.random() < 0.8 else 1 << 30
        e, zero = int(rng.integers(1, 20)), int(rng.integers(-128, 128))
        q = plan_requantize(
            np.array([m]), np.array([-e]), np.array([-reach]), np.array([reach]), zero, (-128, 127), True
        )
        exact = acc.astype(object) * m
        want = [round(v / (1 << (31 + e))) if v % (1 << (30 + e)) else _tie(int(v), 31 + e) for v in exact]
        want = np.clip(np.array(want) + zero, -128, 127)
        assert (reference(acc, np.array(m), np.array(-e), zero, (-128, 127), True) == want).all()
        if q.short:
            planned += 1
            h = (2 * acc * m >> 32) + int(q.table[0, 1])
            assert (np.clip(h >> e, -128, 127) == want).all() and not q.sign
        else:
            assert q.even and (m & (m - 1) == 0 or q.reason != "an accumulator may lie halfway" or m % 1024 == 0)
    assert planned > 100


def _tie(value: int, bits: int) -> int:
    """`value / 2^bits` of a multiple of half of 2^bits, half to even."""
    whole, rest = value >> bits, value & ((1 << bits) - 1)
    return whole + (whole & 1 if rest else 0)


_TABLES = [
    "Tanh",
    "Sigmoid",
    "Exp",
    "Gelu",
]  # of int16: parabolas, less than 1/32 of a step off before they are rounded
_LARGE = (1, 8, 32, 32)


@pytest.mark.parametrize("kind", ["Conv", "LeakyRelu", *_TABLES, "Softmax"])
def test_fixed_points_beside_onnx_runtime(tmp_path: Path, kind: str) -> None:
    """Sums of int16 take multipliers of 31 bits, softmax has one rounding to larger steps; tables differ near ties alone."""
    helper, rng, dtype = onnx.helper, np.random.default_rng(0), "int8" if kind == "Softmax" else "int16"
    shape = (2, 12) if kind == "Softmax" else _LARGE if kind in _TABLES else (1, 8, 6, 6)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    scales = {"Conv": 1 / 1500, "LeakyRelu": 1 / 9117.3, "Tanh": 1 / 32768, "Exp": 1 / 550, "Gelu": 1 / 8300}
    scales["Sigmoid"] = 1 / 32768
    step = {"Softmax": 1 / 16, "Exp": 1 / 8192, "Tanh": 1 / 4096, "Sigmoid": 1 / 4096}.get(kind, 1 / 8000)
    held: dict[str, Any] = {
        "step": np.float32(step), "zero": np.zeros((), dtype), "out": np.float32(scales.get(kind, 1 / 100)),
        "low": np.array(-128 if kind == "Softmax" else 0, dtype),
    }  # fmt: skip
    operands = ["x"]
    nodes = [helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["x"])]
    if kind == "Conv":
        held |= {"w": rng.integers(-127, 128, (8, 8, 3, 3)).astype("int8"), "wz": np.zeros(8, "int8")}
        held["ws"] = rng.uniform(0.003, 0.006, 8).astype("float32")
        nodes.append(helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["weights"], axis=0))
        operands.append("weights")
    nodes.append(helper.make_node(kind, operands, ["y"], **({"alpha": 0.1} if kind == "LeakyRelu" else {})))
    nodes.append(helper.make_node("QuantizeLinear", ["y", "out", "low"], ["z"]))
    ends = [helper.make_tensor_value_info(name, code, form) for name, form in (("q", shape), ("z", None))]
    weights = [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in held.items()]
    graph = helper.make_graph(nodes, "one", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "one.onnx")
    lower: Any = LowerQuantized()
    mod = lower(load(tmp_path / "one.onnx"))
    assert not float_remains(mod)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
    (want,) = session.run(None, {"q": x})
    (made,) = Compiled(mod)(x)
    off = np.abs(made.reshape(want.shape).astype(int) - want.astype(int))
    assert off.max() <= (kind in _TABLES)
    assert off.mean() <= 1 / 200


def test_a_softmax_of_int16_is_computed_in_floats(tmp_path: Path) -> None:
    """TFLite's tables are up to nine steps off."""
    helper, rng = onnx.helper, np.random.default_rng(0)
    held = {"s": np.float32(1 / 4096), "z": np.int16(0), "o": np.float32(1 / 32768)}
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["x"]),
        helper.make_node("Softmax", ["x"], ["y"]),
        helper.make_node("QuantizeLinear", ["y", "o", "z"], ["r"]),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.INT16, [32, 8]) for name in "qr"]
    weights = [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in held.items()]
    graph = helper.make_graph(nodes, "one", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "one.onnx")
    lower: Any = LowerQuantized()
    x = rng.integers(-(1 << 15), 1 << 15, (32, 8)).astype("int16")
    (made,) = Compiled(lower(load(tmp_path / "one.onnx")))(x)
    real = x.astype("float64") / 4096
    exact = np.exp(real - real.max(-1, keepdims=True))
    exact = exact / exact.sum(-1, keepdims=True) * 32768
    assert np.abs(made - np.minimum(exact, 32767)).max() < 0.51


def test_a_table_that_is_far_off_is_not_taken(tmp_path: Path) -> None:
    """Of logarithms near 0: a table was 1441 steps off."""
    helper = onnx.helper
    held = {"s": np.float32(1 / 4096), "z": np.int16(0), "o": np.float32(1 / 3600)}
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["x"]),
        helper.make_node("Log", ["x"], ["y"]),
        helper.make_node("QuantizeLinear", ["y", "o", "z"], ["r"]),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.INT16, [1, 8]) for name in "qr"]
    weights = [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in held.items()]
    graph = helper.make_graph(nodes, "one", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "one.onnx")
    lower: Any = LowerQuantized()
    mod = lower(load(tmp_path / "one.onnx"))
    assert float_remains(mod)
    x = np.array([[1, 2, 3, 5, 80, 300, 4000, 32767]], "int16")
    np.testing.assert_array_equal(Compiled(mod)(x)[0], np.rint(np.log(x / 4096) * 3600))
