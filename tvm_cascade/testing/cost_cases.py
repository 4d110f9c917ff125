"""Networks of a convolution and one operator behind it, by form of file: what `benchmarks/operator_costs.py` prices.

The convolution reads and writes 16 channels of 16 x 16 pixels, so an operator can be cascaded with it. Forms are `float`
(ONNX), `qdq` (the same operators in ONNX, quantized) and `int8` (TFLite).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from onnx import helper

import tvm_cascade
from tvm_cascade.testing.onnx_nodes import save_network
from tvm_cascade.testing.tflite import ModelWriter

Form = Literal["float", "qdq", "int8"]
CHANNELS, SIDE = 16, 16
ALONE = "convolution"
_SCALE, _ZERO = 0.05, 3  # of every quantized activation, unless an operator's output has a range of its own


@dataclass(frozen=True)
class Case:
    """A network of a convolution and an operator."""

    name: str
    form: Form
    kind: str  # of cost: "moves", "adds", "tables", "float functions", "pools", "products", ...
    write: Callable[[Path], Path]  # writes the file into a folder, returns the path

    @property
    def label(self) -> str:
        """Return a name that is unique among all cases."""
        return f"{self.name} ({self.form})"


def cases() -> tuple[Case, ...]:
    """Return all cases; those of the convolution alone are the first of each form."""
    return (*_onnx_cases("float"), *_onnx_cases("qdq"), *_tflite_cases())


# --- ONNX: float and quantized by DequantizeLinear and QuantizeLinear

_Node = Callable[..., Any]
_node: _Node = helper.make_node


@dataclass(frozen=True)
class _Onnx:
    nodes: Sequence[Any]
    constants: Mapping[str, np.ndarray]
    kind: str


def _int64(values: Sequence[int]) -> np.ndarray:
    return np.array(values, "int64")


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def _onnx_cases(form: Form) -> Iterator[Case]:
    shape = (1, CHANNELS, SIDE, SIDE)
    for name, case in _onnx_operators().items():

        def write(folder: Path, case: _Onnx = case, name: str = name) -> Path:
            conv = _node("Conv", ["x", "w"], ["c"], pads=[1] * 4)
            nodes = [conv, *case.nodes]
            constants = {"w": _random(CHANNELS, CHANNELS, 3, 3) / 12, **case.constants}
            if form == "qdq":
                nodes, constants = _quantized(nodes, constants)
            last = nodes[-1].output[0]
            return save_network(folder / f"{form}.onnx", nodes, {"x": np.zeros(shape, "float32")}, [last], constants)

        yield Case(name, form, case.kind, write)


def _quantized(nodes: Sequence[Any], constants: Mapping[str, np.ndarray]) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Return nodes with every float activation behind QuantizeLinear and DequantizeLinear, and weights of int8."""
    held = {**constants, "scale": np.float32(_SCALE), "zero": np.int8(_ZERO), "wscale": np.float32(0.01)}
    held["unit"], held["low"] = np.float32(1 / 256), np.int8(-128)
    made: list[Any] = []

    def stored(name: str, kind: str) -> None:
        pair = ["unit", "low"] if kind in ("Softmax", "Sigmoid", "HardSigmoid") else ["scale", "zero"]
        made.append(_node("QuantizeLinear", [name, *pair], [f"{name}.q"]))
        made.append(_node("DequantizeLinear", [f"{name}.q", *pair], [f"{name}.dq"]))

    activations = {"x"}
    stored("x", "")
    for node in nodes:
        given = [f"{i}.dq" if i in activations else i for i in node.input]
        if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul", "PRelu") or (
            node.op_type in ("Add", "Mul", "Sub", "Div", "Max", "Min")
        ):
            for k, name in enumerate(given):
                if name in constants and constants[name].dtype == np.float32 and constants[name].ndim:
                    held[f"{name}.w"] = np.clip(np.round(constants[name] / 0.01), -127, 127).astype("int8")
                    held["wzero"] = np.int8(0)
                    made.append(_node("DequantizeLinear", [f"{name}.w", "wscale", "wzero"], [f"{name}.{node.name}d"]))
                    held.pop(name, None)
                    given[k] = f"{name}.{node.name}d"
        copy = helper.make_node(node.op_type, given, list(node.output))
        copy.attribute.extend(node.attribute)
        made.append(copy)
        for output in node.output if node.op_type not in ("ArgMax", "ArgMin") else ():
            stored(output, node.op_type)
            activations.add(output)
    return made, held


def _onnx_operators() -> dict[str, _Onnx]:
    """Return the operators behind the convolution's output `c`."""
    n, f, c = _node, _random, CHANNELS
    found: dict[str, _Onnx] = {ALONE: _Onnx([], {}, "none")}

    def add(name: str, kind: str, nodes: Sequence[Any], **constants: Any) -> None:
        found[name] = _Onnx(nodes, {k: np.asarray(v) for k, v in constants.items()}, kind)

    for op in ("Relu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "HardSwish", "Abs", "Neg"):
        add(op, "adds", [n(op, ["c"], ["y"])])
    for op in ("Floor", "Ceil", "Round", "Sign", "Reciprocal", "Sqrt", "Softsign"):
        add(op, "roots", [n(op, ["c"], ["y"])])
    for op in ("Sigmoid", "Tanh", "Elu", "Selu", "Celu", "Erf", "Exp", "Log", "Sin", "Gelu"):
        add(op, "functions", [n(op, ["c"], ["y"])])
    for op in ("Softplus", "Mish"):
        add(op, "exponentials and logarithms", [n(op, ["c"], ["y"])])
    add("Gelu (tanh)", "functions", [n("Gelu", ["c"], ["y"], approximate="tanh")])
    add("SiLU", "functions", [n("Sigmoid", ["c"], ["s"]), n("Mul", ["c", "s"], ["y"])])
    add("Clip", "adds", [n("Clip", ["c", "a", "b"], ["y"])], a=np.float32(0), b=np.float32(6))
    add("PRelu", "adds", [n("PRelu", ["c", "a"], ["y"])], a=f(c, 1, 1))
    for op in ("Add", "Sub", "Mul", "Div", "Max"):
        kind = "roots" if op == "Div" else "adds"
        add(f"{op} by channels", kind, [n(op, ["c", "a"], ["y"])], a=np.abs(f(1, c, 1, 1)) + 0.1)
        add(f"{op} by pixels", kind, [n(op, ["c", "a"], ["y"])], a=np.abs(f(1, 1, SIDE, SIDE)) + 0.1)
        add(f"{op} of the input", kind, [n(op, ["c", "x"], ["y"])])
    add("Pow 2", "adds", [n("Pow", ["c", "a"], ["y"])], a=np.float32(2))
    mean = n("ReduceMean", ["c", "ax"], ["m"], keepdims=1)
    square = [mean, n("Sub", ["c", "m"], ["d"]), n("Mul", ["d", "d"], ["y"])]
    add("Squared difference to the mean", "norms", square, ax=_int64([2, 3]))
    add("BatchNormalization", "norms", [n("BatchNormalization", ["c", "a", "b", "mu", "v"], ["y"])],
        a=f(c), b=f(c), mu=f(c), v=np.abs(f(c)))  # fmt: skip
    add("InstanceNormalization", "norms", [n("InstanceNormalization", ["c", "a", "b"], ["y"])], a=f(c), b=f(c))
    groups = n("GroupNormalization", ["c", "a", "b"], ["y"], num_groups=4)
    add("GroupNormalization", "norms", [groups], a=f(4), b=f(4))
    layer = n("LayerNormalization", ["c", "a", "b"], ["y"], axis=1)
    add("LayerNormalization of planes", "norms", [layer], a=f(c, SIDE, SIDE), b=f(c, SIDE, SIDE))
    last = n("Transpose", ["c"], ["t"], perm=[0, 2, 3, 1]), n("LayerNormalization", ["t", "a", "b"], ["y"], axis=-1)
    add("LayerNormalization of channels", "norms", last, a=f(c), b=f(c))
    root = [
        n("Mul", ["c", "c"], ["q"]), n("ReduceMean", ["q", "ax"], ["m"], keepdims=1), n("Add", ["m", "e"], ["m2"]),
        n("Sqrt", ["m2"], ["r"]), n("Div", ["c", "r"], ["y"])]  # fmt: skip
    add("RMS normalization", "norms", root, ax=_int64([1]), e=np.float32(1e-6))
    add("LRN", "norms", [n("LRN", ["c"], ["y"], size=5)])
    add("LpNormalization", "norms", [n("LpNormalization", ["c"], ["y"], axis=1, p=2)])
    for name, axis in (("channels", 1), ("rows", 2), ("columns", 3)):
        add(f"Softmax over {name}", "softmax", [n("Softmax", ["c"], ["y"], axis=axis)])
        add(f"LogSoftmax over {name}", "softmax", [n("LogSoftmax", ["c"], ["y"], axis=axis)])
    twice = {"s": np.array([1, 1, 2, 2], "float32")}
    add("Resize nearest", "moves", [n("Resize", ["c", "", "s"], ["y"], mode="nearest")], **twice)
    add("Resize linear", "pools", [n("Resize", ["c", "", "s"], ["y"], mode="linear")], **twice)
    add("Resize cubic", "cubic", [n("Resize", ["c", "", "s"], ["y"], mode="cubic")], **twice)
    for op in ("MaxPool", "AveragePool"):
        add(f"{op} 2x2/2", "pools", [n(op, ["c"], ["y"], kernel_shape=[2, 2], strides=[2, 2])])
        add(f"{op} 3x3 padded", "pools", [n(op, ["c"], ["y"], kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])])
        add(f"{op} 3x3/2 padded", "pools", [n(op, ["c"], ["y"], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])])
    counted = n("AveragePool", ["c"], ["y"], kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1], count_include_pad=1)
    add("AveragePool 3x3 with padding counted", "pools", [counted])
    add("LpPool", "pools", [n("LpPool", ["c"], ["y"], kernel_shape=[2, 2], strides=[2, 2])])
    add("GlobalAveragePool", "means", [n("GlobalAveragePool", ["c"], ["y"])])
    add("GlobalMaxPool", "means", [n("GlobalMaxPool", ["c"], ["y"])])
    for name, axes in (("channels", [1]), ("rows", [2]), ("columns", [3])):
        for op in ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2"):
            add(f"{op} over {name}", "means", [n(op, ["c", "ax"], ["y"], keepdims=1)], ax=_int64(axes))
    add("ArgMax over channels", "means", [n("ArgMax", ["c"], ["y"], axis=1, keepdims=0)])
    sides = _int64([0, 0, 1, 1, 0, 0, 1, 1])
    for mode in ("constant", "reflect", "edge"):
        add(f"Pad {mode}", "moves", [n("Pad", ["c", "p"], ["y"], mode=mode)], p=sides)
    add("DepthToSpace", "moves", [n("DepthToSpace", ["c"], ["y"], blocksize=2)])
    add("SpaceToDepth", "moves", [n("SpaceToDepth", ["c"], ["y"], blocksize=2)])
    shuffle = [
        n("Reshape", ["c", "s1"], ["r"]), n("Transpose", ["r"], ["t"], perm=[0, 2, 1, 3, 4]),
        n("Reshape", ["t", "s2"], ["y"])]  # fmt: skip
    add("Channel shuffle", "moves", shuffle, s1=_int64([1, 4, 4, SIDE, SIDE]), s2=_int64([1, c, SIDE, SIDE]))
    add("Transpose of rows and columns", "moves", [n("Transpose", ["c"], ["y"], perm=[0, 1, 3, 2])])
    add("Concat", "moves", [n("Concat", ["c", "x"], ["y"], axis=1)])
    add("Concat of rows", "moves", [n("Concat", ["c", "x"], ["y"], axis=2)])
    halves = [n("Split", ["c"], ["a1", "a2"], axis=1, num_outputs=2), n("Add", ["a1", "a2"], ["y"])]
    add("Split and Add", "adds", halves)
    bounds = {"b": _int64([1, 1]), "e": _int64([15, 15]), "ax": _int64([2, 3]), "st": _int64([2, 2])}
    add("Slice with strides", "moves", [n("Slice", ["c", "b", "e", "ax", "st"], ["y"])], **bounds)
    add("Gather of channels", "moves", [n("Gather", ["c", "i"], ["y"], axis=1)], i=_int64([3, 1, 7, 15, 0, 2, 9, 4]))
    add("Tile", "moves", [n("Tile", ["c", "r"], ["y"])], r=_int64([1, 2, 1, 1]))
    add("CumSum", "means", [n("CumSum", ["c", "ax"], ["y"])], ax=np.int64(3))
    excite = [
        n("GlobalAveragePool", ["c"], ["g"]), n("Conv", ["g", "w1"], ["h1"], name="one"), n("Relu", ["h1"], ["h2"]),
        n("Conv", ["h2", "w2"], ["h3"], name="two"), n("Sigmoid", ["h3"], ["h4"]), n("Mul", ["c", "h4"], ["y"])]  # fmt: skip
    add("Squeeze and excite", "means", excite, w1=f(4, c, 1, 1), w2=f(c, 4, 1, 1))

    def conv(name: str, kernel: tuple[int, ...], kind: str = "products", **attrs: Any) -> None:
        add(name, kind, [n("Conv", ["c", "w3"], ["y"], name="last", **attrs)], w3=f(*kernel) / 12)

    conv("Conv 1x1", (c, c, 1, 1))
    conv("Conv 3x3", (c, c, 3, 3), pads=[1] * 4)
    conv("Conv 3x3/2", (c, c, 3, 3), pads=[1] * 4, strides=[2, 2])
    conv("Conv 3x3 dilated", (c, c, 3, 3), pads=[2] * 4, dilations=[2, 2])
    conv("Conv 3x3 in 4 groups", (c, 4, 3, 3), pads=[1] * 4, group=4)
    conv("Conv 1x5", (c, c, 1, 5), pads=[0, 2, 0, 2])
    conv("Depthwise 3x3", (c, 1, 3, 3), "depthwise", pads=[1] * 4, group=c)
    conv("Depthwise 3x3/2", (c, 1, 3, 3), "depthwise", pads=[1] * 4, group=c, strides=[2, 2])
    conv("Depthwise 5x5", (c, 1, 5, 5), "depthwise", pads=[2] * 4, group=c)
    conv("Depthwise 3x3 dilated", (c, 1, 3, 3), "depthwise", pads=[2] * 4, dilations=[2, 2], group=c)
    conv("Depthwise 3x3 with 2 outputs a channel", (2 * c, 1, 3, 3), "depthwise", pads=[1] * 4, group=c)

    def transposed(name: str, kernel: tuple[int, ...], kind: str = "products", **attrs: Any) -> None:
        deconv = n("ConvTranspose", ["c", "w3"], ["y"], name="last", **attrs)
        add(f"ConvTranspose {name}", kind, [deconv], w3=f(*kernel) / 12)

    transposed("2x2/2", (c, c, 2, 2), strides=[2, 2])
    transposed("3x3/2 padded", (c, c, 3, 3), strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])
    transposed("3x3/2 of odd size", (c, c, 3, 3), strides=[2, 2], pads=[1] * 4)
    transposed("4x4/2 padded", (c, c, 4, 4), strides=[2, 2], pads=[1] * 4)
    transposed("3x3/2 unpadded", (c, c, 3, 3), strides=[2, 2])
    transposed("1x1/2", (c, c, 1, 1), strides=[2, 2])
    transposed("3x3", (c, c, 3, 3), pads=[1] * 4)
    transposed("3x3/2 depthwise", (c, 1, 3, 3), "depthwise", strides=[2, 2], pads=[1] * 4, output_padding=[1, 1],
               group=c)  # fmt: skip
    transposed("3x3/2 in 4 groups", (c, 4, 3, 3), strides=[2, 2], pads=[1] * 4, output_padding=[1, 1], group=4)
    dense = [n("Flatten", ["c"], ["fl"]), n("Gemm", ["fl", "w3"], ["y"], name="last")]
    add("Flatten and Gemm", "products", dense, w3=f(c * SIDE * SIDE, 10) / 64)
    matrices = [
        n("Reshape", ["c", "s1"], ["r"]), n("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
        n("MatMul", ["r", "t"], ["y"])]  # fmt: skip
    add("MatMul of activations", "products", matrices, s1=_int64([1, c, SIDE * SIDE]))
    return found


# --- TFLite, int8


@dataclass(frozen=True)
class _Lite:
    write: Callable[[ModelWriter, int, int], None]  # adds an operator to a writer, given the convolution and the input
    kind: str


def _tflite_cases() -> Iterator[Case]:
    for name, case in _tflite_operators().items():

        def write(folder: Path, case: _Lite = case, name: str = name) -> Path:
            writer, rng = ModelWriter(), np.random.default_rng(0)
            x = writer.activation((1, SIDE, SIDE, CHANNELS), "int8", 0.1, 0)
            y = writer.convolution(x, CHANNELS, 3, 1, rng)
            if name != ALONE:
                writer.outputs.remove(y)
                case.write(writer, y, x)
            path = folder / "int8.tflite"
            path.write_bytes(writer.finish())
            return path

        yield Case(name, "int8", case.kind, write)


def _tflite_operators() -> dict[str, _Lite]:
    """Return the operators behind the convolution's output, int8 of scale 0.1 around zero in NHWC."""
    c, s = CHANNELS, SIDE
    found: dict[str, _Lite] = {ALONE: _Lite(lambda w, y, x: None, "none")}
    rng = np.random.default_rng(0)
    same = (0.1, 0)

    def add(
        name: str,
        kind: str,
        operator: str,
        shape: Sequence[int] = (1, s, s, c),
        options: str | None = None,
        quant: tuple[float, int] = (0.08, 5),
        constants: Sequence[Any] = (),
        before: Sequence[Any] = (),
        other: bool = False,
        dtype: str = "int8",
        version: int = 1,
        **values: Any,
    ) -> None:
        """Add an operator that reads constants, the convolution (and the input, if `other`), and constants."""

        def held(w: ModelWriter, value: Any) -> int:
            if isinstance(value, tuple):
                data, scale = value
                return w.constant(data, scale)
            return w.constant(value)

        def write(w: ModelWriter, y: int, x: int) -> None:
            ahead = [held(w, v) for v in before]
            operands = [*ahead, y, *([x] if other else []), *(held(w, v) for v in constants)]
            real = dtype == "int8" or dtype == "int16"
            out = w.tensor(shape, dtype, *quant) if real else w.tensor(shape, dtype)
            w.operator(operator, operands, [out], options, version=version, **values)

        found[name] = _Lite(write, kind)

    def i32(*v: Any) -> np.ndarray:
        return np.array(v, "int32")

    for op in ("RELU", "RELU6", "RELU_N1_TO_1"):
        add(op, "adds", op)
    add("LEAKY_RELU", "tables", "LEAKY_RELU", options="LeakyReluOptions", alpha=0.2)
    add("PRELU", "adds", "PRELU", constants=[(rng.integers(-99, 99, (1, 1, c)).astype("int8"), 0.01)])
    add("LOGISTIC", "tables", "LOGISTIC", quant=(1 / 256, -128))
    add("TANH", "tables", "TANH", quant=(1 / 128, 0))
    for op in ("HARD_SWISH", "ELU", "ABS", "NEG", "EXP", "LOG", "GELU"):
        options = {"HARD_SWISH": "HardSwishOptions", "ABS": "AbsOptions", "NEG": "NegOptions", "EXP": "ExpOptions",
                   "GELU": "GeluOptions"}.get(op)  # fmt: skip
        add(op, "tables", op, options=options)
    add("RSQRT", "tables", "RSQRT")
    shapes = {
        "of the input": None,
        "by channels": (1, 1, 1, c),
        "by pixels": (1, s, s, 1),
        "by a number": (1, 1, 1, 1),
        "by columns": (1, 1, s, 1),
    }
    for op, options in (("ADD", "AddOptions"), ("SUB", "SubOptions"), ("MUL", "MulOptions"),
                        ("MAXIMUM", "MaximumMinimumOptions"), ("SQUARED_DIFFERENCE", "SquaredDifferenceOptions")):  # fmt: skip
        for what, shape in shapes.items():
            quant = same if op == "MAXIMUM" else (0.08, 5)
            scale = 0.1 if op == "MAXIMUM" else 0.03
            constants = () if shape is None else [(rng.integers(-99, 99, shape).astype("int8"), scale)]
            kind = "adds"
            add(f"{op} {what}", kind, op, options=options, quant=quant, other=shape is None, constants=constants)

    def gated(w: ModelWriter, y: int, x: int) -> None:
        mean = w.tensor((1, 1, 1, c), "int8", *same)
        w.operator("MEAN", [y, w.constant(i32(1, 2))], [mean], "ReducerOptions", inner=True, keepDims=True)
        gate = w.tensor((1, 1, 1, c), "int8", 1 / 256, -128)
        w.operator("LOGISTIC", [mean], [gate], inner=True)
        w.operator("MUL", [y, gate], [w.tensor((1, s, s, c), "int8", 0.08, 5)], "MulOptions")

    found["MUL by a mean of it"] = _Lite(gated, "means")
    for op, options in (("LESS", "LessOptions"), ("EQUAL", "EqualOptions")):
        add(op, "adds", op, options=options, other=True, dtype="bool")
    for name, padding, k, stride in (
        ("2x2/2", 1, 2, 2),
        ("3x3 SAME", 0, 3, 1),
        ("3x3/2 SAME", 0, 3, 2),
        ("3x3/2 VALID", 1, 3, 2),
        ("16x16", 1, s, s),
    ):
        side = -(-s // stride) if padding == 0 else (s - k) // stride + 1
        for op in ("MAX_POOL_2D", "AVERAGE_POOL_2D"):
            values: dict[str, Any] = dict(
                padding=padding, strideH=stride, strideW=stride, filterHeight=k, filterWidth=k
            )
            kind = "means" if k == s else "pools"
            add(f"{op} {name}", kind, op, (1, side, side, c), "Pool2DOptions", same, **values)
    kept = {"rows and columns": ((1, 2), (1, 1, 1, c)), "channels": ((3,), (1, s, s, 1)),
            "rows": ((1,), (1, 1, s, c)), "columns": ((2,), (1, s, 1, c))}  # fmt: skip
    for op in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"):
        for what, (axes, shape) in kept.items():
            quant = same if op.startswith("REDUCE") else (0.08, 5)
            add(f"{op} over {what}", "means", op, shape, "ReducerOptions", quant, [i32(*axes)], keepDims=True)
    for op, options in (("ARG_MAX", "ArgMaxOptions"), ("ARG_MIN", "ArgMinOptions")):
        add(f"{op} over channels", "means", op, (1, s, s), options, dtype="int32", constants=[i32(3)[0]], outputType=2)
    add("SOFTMAX", "softmax", "SOFTMAX", options="SoftmaxOptions", quant=(1 / 256, -128), beta=1.0)
    add("LOG_SOFTMAX", "softmax", "LOG_SOFTMAX", options="LogSoftmaxOptions", quant=(16 / 256, 127))
    add("L2_NORMALIZATION", "norms", "L2_NORMALIZATION", options="L2NormOptions", quant=(1 / 128, 0))
    double = (1, 2 * s, 2 * s, c)
    for op, what in (("RESIZE_BILINEAR", "pools"), ("RESIZE_NEAREST_NEIGHBOR", "moves")):
        options = "ResizeBilinearOptions" if op == "RESIZE_BILINEAR" else "ResizeNearestNeighborOptions"
        for name, align, half in (("", False, False), (" half pixels", False, True), (" aligned corners", True, False)):
            add(f"{op}{name}", what, op, double, options, same, [i32(2 * s, 2 * s)], alignCorners=align,
                halfPixelCenters=half, version=3)  # fmt: skip
    around = i32([0, 0], [1, 1], [1, 1], [0, 0])
    add("PAD", "moves", "PAD", (1, s + 2, s + 2, c), "PadOptions", same, [around])
    add("PAD of channels", "moves", "PAD", (1, s, s, c + 2), "PadOptions", same, [i32([0, 0], [0, 0], [0, 0], [1, 1])])
    add("MIRROR_PAD", "moves", "MIRROR_PAD", (1, s + 2, s + 2, c), "MirrorPadOptions", same, [around], mode=0)
    for name, axes in (("rows and columns", (0, 2, 1, 3)), ("channels first", (0, 3, 1, 2))):
        shape = [(1, s, s, c)[a] for a in axes]
        add(f"TRANSPOSE to {name}", "moves", "TRANSPOSE", shape, "TransposeOptions", same, [i32(*axes)])
    add(
        "DEPTH_TO_SPACE", "moves", "DEPTH_TO_SPACE", (1, 2 * s, 2 * s, c // 4), "DepthToSpaceOptions", same, blockSize=2
    )
    half = (1, s // 2, s // 2, 4 * c)
    add("SPACE_TO_DEPTH", "moves", "SPACE_TO_DEPTH", half, "SpaceToDepthOptions", same, blockSize=2)
    for axis, shape in ((3, (1, s, s, 2 * c)), (1, (1, 2 * s, s, c)), (2, (1, s, 2 * s, c))):
        for what, quant in (("", same), (" of another scale", (0.08, 5))):
            add(f"CONCATENATION along axis {axis}{what}", "moves" if quant == same else "adds", "CONCATENATION", shape,
                "ConcatenationOptions", quant, other=True, axis=axis)  # fmt: skip
    bounds = [i32(0, 1, 1, 0), i32(1, s - 1, s - 1, c), i32(1, 2, 2, 1)]
    seven = (1, s // 2 - 1, s // 2 - 1, c)
    add("STRIDED_SLICE", "moves", "STRIDED_SLICE", seven, "StridedSliceOptions", same, bounds)
    add("SLICE of channels", "moves", "SLICE", (1, s, s, 8), "SliceOptions", same, [i32(0, 0, 0, 4), i32(1, s, s, 8)])
    add(
        "GATHER of channels",
        "moves",
        "GATHER",
        (1, s, s, 8),
        "GatherOptions",
        same,
        [i32(3, 1, 7, 15, 0, 2, 9, 4)],
        axis=3,
    )
    add("TILE of channels", "moves", "TILE", (1, s, s, 2 * c), "TileOptions", same, [i32(1, 1, 1, 2)])
    add("REVERSE_V2 of columns", "moves", "REVERSE_V2", (1, s, s, c), "ReverseV2Options", same, [i32(2)], version=3)
    add("QUANTIZE", "adds", "QUANTIZE", options="QuantizeOptions")
    add("QUANTIZE to int16", "adds", "QUANTIZE", options="QuantizeOptions", quant=(0.001, 0), dtype="int16")
    add("DEQUANTIZE", "adds", "DEQUANTIZE", options="DequantizeOptions", dtype="float32")
    add("BATCH_MATMUL", "products", "BATCH_MATMUL", options="BatchMatMulOptions", other=True, adjY=True)

    def several(
        name: str, operator: str, options: str, parts: int, shape: Sequence[int], before: bool, **values: Any
    ) -> None:
        def write(w: ModelWriter, y: int, x: int) -> None:
            operands = [w.constant(i32(3)[0]), y] if before else [y]
            w.operator(operator, operands, [w.tensor(shape, "int8", *same) for _ in range(parts)], options, **values)

        found[name] = _Lite(write, "moves")

    several("SPLIT of channels", "SPLIT", "SplitOptions", 2, (1, s, s, c // 2), True, numSplits=2)
    several("UNPACK of rows", "UNPACK", "UnpackOptions", s, (1, s, c), False, axis=1, num=s)

    def conv(name: str, kernel: Sequence[int], kind: str = "products", stride: int = 1, dilation: int = 1,
             operator: str = "CONV_2D", **values: Any) -> None:  # fmt: skip
        def write(w: ModelWriter, y: int, x: int) -> None:
            channels = kernel[3] if operator == "DEPTHWISE_CONV_2D" else kernel[0]
            scales = np.full(channels, 0.01)
            data = rng.integers(-127, 128, kernel).astype("int8")
            axis = 3 if operator == "DEPTHWISE_CONV_2D" else 0
            weights = w.tensor(kernel, "int8", scales, axis=axis, data=data)
            bias = w.tensor((channels,), "int32", scales * 0.1, data=rng.integers(-99, 99, channels).astype("int32"))
            out = w.tensor((1, -(-s // stride), -(-s // stride), channels), "int8", 0.3)
            options = "Conv2DOptions" if operator == "CONV_2D" else "DepthwiseConv2DOptions"
            w.operator(operator, [y, weights, bias], [out], options, padding=0, strideH=stride, strideW=stride,
                       dilationHFactor=dilation, dilationWFactor=dilation, **values)  # fmt: skip

        found[name] = _Lite(write, kind)

    conv("CONV_2D 1x1", (c, 1, 1, c))
    conv("CONV_2D 3x3", (c, 3, 3, c))
    conv("CONV_2D 3x3/2", (c, 3, 3, c), stride=2)
    conv("CONV_2D 3x3 dilated", (c, 3, 3, c), dilation=2)
    conv("CONV_2D 3x3 in 4 groups", (c, 3, 3, 4))
    conv("CONV_2D 3x3 to 3 channels", (3, 3, 3, c))
    depthwise: dict[str, Any] = {"operator": "DEPTHWISE_CONV_2D", "kind": "depthwise"}
    conv("DEPTHWISE_CONV_2D 3x3", (1, 3, 3, c), **depthwise, depthMultiplier=1)
    conv("DEPTHWISE_CONV_2D 3x3/2", (1, 3, 3, c), **depthwise, stride=2, depthMultiplier=1)
    conv("DEPTHWISE_CONV_2D 3x3 dilated", (1, 3, 3, c), **depthwise, dilation=2, depthMultiplier=1)
    conv("DEPTHWISE_CONV_2D 5x5", (1, 5, 5, c), **depthwise, depthMultiplier=1)
    conv("DEPTHWISE_CONV_2D 3x3 with 2 outputs a channel", (1, 3, 3, 2 * c), **depthwise, depthMultiplier=2)

    def transposed(k: int, stride: int, padding: int) -> None:
        side = s * stride if padding == 0 else (s - 1) * stride + k
        given = ((s - 1) * stride + k - side) if padding == 0 else 0
        assert given >= 0 or padding == 0

        def write(w: ModelWriter, y: int, x: int) -> None:
            data = rng.integers(-127, 128, (c, k, k, c)).astype("int8")
            weights = w.tensor(data.shape, "int8", np.full(c, 0.01), data=data)
            out = w.tensor((1, side, side, c), "int8", 0.3)
            shape = w.constant(i32(1, side, side, c))
            w.operator("TRANSPOSE_CONV", [shape, weights, y], [out], "TransposeConvOptions", padding=padding,
                       strideH=stride, strideW=stride)  # fmt: skip

        found[f"TRANSPOSE_CONV {k}x{k}/{stride} {('SAME', 'VALID')[padding]}"] = _Lite(write, "products")

    for k, stride, padding in ((2, 2, 0), (3, 2, 0), (4, 2, 0), (3, 2, 1), (4, 2, 1), (3, 1, 0), (1, 2, 0), (5, 3, 0),
                               (5, 3, 1), (2, 3, 0)):  # fmt: skip
        transposed(k, stride, padding)

    def dense(w: ModelWriter, y: int, x: int) -> None:
        weights = w.tensor((10, c * s * s), "int8", 0.01, data=rng.integers(-127, 128, (10, c * s * s)).astype("int8"))
        w.operator("FULLY_CONNECTED", [y, weights], [w.tensor((1, 10), "int8", 5.0)], "FullyConnectedOptions")

    found["FULLY_CONNECTED"] = _Lite(dense, "products")
    return found


# --- prices


@dataclass(frozen=True)
class Price:
    """Estimates for a case on a core."""

    case: Case
    cycles: float  # of the operator, without the convolution and moves between layouts
    elements: int  # of the operator's input or its outputs, whichever are more
    products: int  # of the operator
    peak: int  # bytes of the arena
    alone: int  # bytes of the arena of the convolution alone
    written: int  # bytes of the network's outputs
    instructions: float  # of the whole network

    @property
    def by_element(self) -> float:
        """Return cycles by element."""
        return self.cycles / self.elements

    @property
    def by_product(self) -> float:
        """Return cycles by product; 0 without products."""
        return self.cycles / self.products if self.products else 0.0

    @property
    def arena(self) -> float:
        """Return the arena's bytes relative to the convolution's alone, or the outputs' where these are more."""
        return self.peak / max(self.alone, self.written)


_OF_CONVOLUTION = {"x.q", "x.dq", "w.d", "c", "c.q", "t3"}  # tensors of the convolution


def priced(chosen: Iterable[Case], target: str) -> Iterator[Price]:
    """Plan cases for a core by default; the convolution alone of each form is planned once, for comparison."""
    for case in chosen:
        yield _price(case, _planned(case, target), _alone(case.form, target))


@lru_cache
def _alone(form: Form, target: str) -> Any:
    return _planned(next(c for c in cases() if c.form == form), target).to_dict()


def _planned(case: Case, target: str) -> Any:
    with TemporaryDirectory() as folder:
        return tvm_cascade.plan(case.write(Path(folder)), target=target, stored_io=case.form == "qdq")


def _price(case: Case, plan: Any, alone: Any) -> Price:
    told, graph, cycles = plan.to_dict(), plan.plan.graph, 0.0
    for layer in told["layers"]:
        own = set(layer["origin"]) - _OF_CONVOLUTION
        moves = layer["name"].startswith(("transpose", "dequantize")) or layer["name"].endswith("transposed)")
        if moves or (layer["origin"] and not own):
            continue
        fused = {"c", "t3"} & set(layer["origin"])
        cycles += layer["cycles"]
        if fused:
            cycles -= max(kept["cycles"] for kept in alone["layers"])
    outputs = [prod(graph.tensors[t].shape) for t in graph.outputs]
    elements = max(CHANNELS * SIDE * SIDE, sum(outputs))
    return Price(
        case,
        max(cycles, 0.0),
        elements,
        told["macs"] - alone["macs"],
        plan.peak_bytes,
        alone["peak_bytes"],
        sum(graph.tensors[t].bytes for t in graph.outputs),
        plan.estimated_instructions or 0,
    )
