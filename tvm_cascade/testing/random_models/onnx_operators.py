"""Random single ONNX operators of any attribute, rank and type, each with inputs of its own; see `operators`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Generator = Callable[["OnnxBuilder"], None]
OPSETS = range(13, 27)


class OnnxBuilder:
    """Collects nodes, constants and inputs; `rng` and `opset` are those of the case that is added."""

    def __init__(self, opset: int) -> None:
        self.onnx: Any = import_module("onnx")
        self.opset, self.rng = opset, np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.held: list[Any] = []
        self.given: dict[str, np.ndarray] = {}
        self.outputs: list[str] = []

    def file(self) -> bytes:
        """Return the file's bytes; types of outputs are inferred."""
        helper = self.onnx.helper
        inputs = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in self.given.items()
        ]
        ends = [self.onnx.ValueInfoProto(name=name) for name in self.outputs]
        graph = helper.make_graph(self.nodes, "random", inputs, ends, self.held)
        opset = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=helper.find_min_ir_version_for(opset))
        inferred = self.onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        types = {v.name: v for v in (*inferred.value_info, *inferred.output)}
        for output in model.graph.output:
            output.CopyFrom(types.get(output.name, output))
        return model.SerializeToString()

    # What cases are made of.

    def int(self, low: int, high: int) -> int:
        """Return an integer of `[low, high]`."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, *choices: Any) -> Any:
        """Return one of the choices."""
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, probability: float = 0.5) -> bool:
        """Return True now and then."""
        return bool(self.rng.random() < probability)

    def shape(self, least: int = 1, most: int = 4, extent: int = 6) -> Shape:
        """Return a shape of any rank between two."""
        return tuple(self.int(1, extent) for _ in range(self.int(least, most)))

    def axis(self, rank: int) -> int:
        """Return an axis, from either end."""
        return self.int(-rank, rank - 1)

    def axes(self, rank: int) -> list[int]:
        """Return different axes, each from either end, in any order."""
        taken = self.rng.choice(rank, self.int(1, rank), replace=False)
        return [int(a) - (rank if self.chance(0.3) else 0) for a in taken]

    def smaller(self, shape: Shape) -> Shape:
        """Return a shape that broadcasts to another."""
        small = tuple(1 if self.chance(0.4) else d for d in shape)
        return small[self.int(0, len(small)) :] if self.chance(0.3) else small

    def pair(self) -> tuple[Shape, Shape]:
        """Return two shapes that broadcast, either to the other or both to a third."""
        shape = self.shape()
        if self.chance(0.4):
            return shape, shape
        both = self.smaller(shape), shape
        if self.chance(0.3):
            return self.smaller(shape), self.smaller(shape)
        return both if self.chance() else (shape, both[0])

    def values(self, shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
        """Return small values of a type."""
        if dtype == "bool":
            return self.rng.random(shape) < 0.5
        if dtype.startswith(("int", "uint")):
            least, most = (-9, 10) if dtype.startswith("int") else (0, 20)
            return self.rng.integers(least, most, shape).astype(dtype)
        return self.rng.standard_normal(shape).astype(dtype)

    def x(self, data: np.ndarray) -> str:
        """Add an input with its values."""
        name = f"x{len(self.given)}"
        self.given[name] = np.asarray(data)
        return name

    def real(self, *shape: int) -> str:
        """Add a float input."""
        return self.x(self.values(shape))

    def held_or_given(self, data: np.ndarray, held: float = 0.4) -> str:
        """Add a constant or an input."""
        return self.c(data) if self.chance(held) else self.x(data)

    def c(self, data: Any, dtype: str | None = None) -> str:
        """Add a constant."""
        self.held.append(self.onnx.numpy_helper.from_array(np.asarray(data, dtype), f"c{len(self.held)}"))
        return self.held[-1].name

    def ints(self, *values: int) -> str:
        """Add a constant of one axis."""
        return self.c(np.array(values, "int64"))

    def node(self, kind: str, inputs: Sequence[str], outputs: int = 1, **attrs: Any) -> list[str]:
        """Add a node; return its outputs."""
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        attrs = {k: v for k, v in attrs.items() if v is not None}
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), names, **attrs))
        return names

    def out(self, kind: str, inputs: Sequence[str], outputs: int = 1, /, **attrs: Any) -> None:
        """Add a node with which a case ends."""
        self.outputs += self.node(kind, inputs, outputs, **attrs)


# Windows.


def _window(b: OnnxBuilder, most: int = 3) -> tuple[Shape, dict[str, Any]]:
    """Return spatial sizes and the attributes of a window over them."""
    rank = b.pick(1, 1, 2, 2, 2, 3)
    kernel = [b.int(1, most) for _ in range(rank)]
    strides = [b.int(1, 3) if b.chance() else 1 for _ in range(rank)]
    dilations = [b.int(1, 2) if b.chance(0.3) else 1 for _ in range(rank)]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    size = tuple(s + b.int(0, {1: 9, 2: 6, 3: 3}[rank]) for s in spans)
    how: dict[str, Any] = {"kernel_shape": kernel}
    if b.chance(0.8):
        how["strides"] = strides
    if max(dilations) > 1:
        how["dilations"] = dilations
    auto = b.pick(None, None, "SAME_UPPER", "SAME_LOWER", "VALID")
    if auto:
        how["auto_pad"] = auto
        how.pop("dilations", None)  # ONNX Runtime refuses SAME of dilated windows, or leaves the dilation out
    elif b.chance(0.6):
        how["pads"] = [b.int(0, k - 1) for k in (*kernel, *kernel)]
    return size, how


def conv(b: OnnxBuilder) -> None:
    size, how = _window(b)
    groups = b.pick(1, 1, 1, 2, 3)
    own, outs = b.int(1, 4), b.int(1, 4)
    if b.chance(0.2):
        groups, own = b.int(2, 6), 1
    w = b.held_or_given(b.values((groups * outs, own, *how["kernel_shape"])), 0.9)
    given = [b.real(b.int(1, 2), groups * own, *size), w]
    given += [b.c(b.values((groups * outs,)))] if b.chance() else []
    b.out("Conv", given, group=groups, **how)


def conv_transpose(b: OnnxBuilder) -> None:
    size, how = _window(b)
    groups, own, outs = b.pick(1, 1, 2, 3), b.int(1, 3), b.int(1, 3)
    strides = how.get("strides") or [1] * len(size)
    if how.get("auto_pad") and b.chance(0.8):
        del how["auto_pad"]
    if "auto_pad" not in how and b.chance(0.4):
        how["output_padding"] = [b.int(0, max(0, s - 1)) for s in strides]
    size = tuple(b.int(1, 5) for _ in size)
    if "pads" in how:
        spans = [
            (k - 1) * d + 1 for k, d in zip(how["kernel_shape"], how.get("dilations") or [1] * len(size), strict=True)
        ]
        ends = [(n - 1) * s + k for n, s, k in zip(size, strides, spans, strict=True)]
        if any(e - how["pads"][k] - how["pads"][k + len(size)] < 1 for k, e in enumerate(ends)):
            del how["pads"]
    w = b.held_or_given(b.values((groups * own, outs, *how["kernel_shape"])), 0.9)
    given = [b.real(b.int(1, 2), groups * own, *size), w]
    given += [b.c(b.values((groups * outs,)))] if b.chance() else []
    b.out("ConvTranspose", given, group=groups, **how)


def max_pool(b: OnnxBuilder) -> None:
    size, how = _window(b)
    if "auto_pad" not in how:
        how["ceil_mode"] = int(b.chance(0.3))
    dtype = b.pick("float32", "float32", "float32", "int8", "uint8")
    x = b.x(b.values((b.int(1, 2), b.int(1, 4), *size), dtype))
    b.out("MaxPool", [x], 2 if b.chance(0.15) and "dilations" not in how else 1, **how)


def average_pool(b: OnnxBuilder) -> None:
    size, how = _window(b)
    if b.opset < 19:
        how.pop("dilations", None)
    if "auto_pad" not in how:
        how["ceil_mode"] = int(b.chance(0.3) and b.opset >= 19)
    how["count_include_pad"] = int(b.chance())
    b.out("AveragePool", [b.real(b.int(1, 2), b.int(1, 4), *size)], **how)


def lp_pool(b: OnnxBuilder) -> None:
    size, how = _window(b)
    how.pop("dilations", None)
    b.out("LpPool", [b.real(1, b.int(1, 4), *size)], p=b.int(1, 3), **how)


def global_pool(b: OnnxBuilder) -> None:
    kind = b.pick("GlobalAveragePool", "GlobalMaxPool", *(["GlobalLpPool"] if b.opset < 22 else []))
    how = {"p": b.int(1, 3)} if kind == "GlobalLpPool" else {}
    b.out(kind, [b.real(b.int(1, 3), b.int(1, 4), *b.shape(1, 3, 5))], **how)


# Arithmetic.

_UNARY: Mapping[str, tuple[float, float]] = {  # ranges of arguments
    **dict.fromkeys(
        ("Abs", "Neg", "Exp", "Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Sinh", "Cosh", "Atan", "Asinh", "Erf",
         "Sigmoid", "Tanh", "Softplus", "Softsign", "HardSigmoid", "Elu", "Selu", "Celu", "LeakyRelu", "ThresholdedRelu",
         "Shrink", "Relu", "Identity", "Tan"), (-3.0, 3.0)),
    "Log": (0.01, 9.0), "Sqrt": (0.0, 9.0), "Reciprocal": (0.2, 4.0), "Asin": (-0.99, 0.99), "Acos": (-0.99, 0.99),
    "Acosh": (1.01, 9.0), "Atanh": (-0.95, 0.95), "Gelu": (-4.0, 4.0), "Mish": (-4.0, 4.0), "HardSwish": (-5.0, 5.0),
}  # fmt: skip
_SINCE = {"Gelu": 20, "Mish": 18, "HardSwish": 14}


def unary(b: OnnxBuilder) -> None:
    kind = b.pick(*(k for k in _UNARY if b.opset >= _SINCE.get(k, 0)))
    how: dict[str, Any] = {}
    if kind in ("HardSigmoid", "Elu", "Selu", "Celu", "LeakyRelu", "ThresholdedRelu") and b.chance(0.6):
        how["alpha"] = float(b.pick(0.05, 0.25, 0.5, 1.5, 2.0))
    if kind == "HardSigmoid" and b.chance():
        how["beta"] = float(b.pick(0.1, 0.5, 0.75))
    if kind == "Selu" and b.chance():
        how["gamma"] = float(b.pick(0.7, 1.5))
    if kind == "Shrink":
        how = {"lambd": float(b.pick(0.3, 1.0)), "bias": float(b.pick(0.0, 0.25))}
    if kind == "Gelu" and b.chance():
        how["approximate"] = "tanh"
    x = b.rng.uniform(*_UNARY[kind], b.shape(0, 4)).astype("float32")
    if kind in ("Round", "Floor", "Ceil") and b.chance():
        x = np.round(x * 2) / np.float32(2)
    if kind in ("Abs", "Neg", "Sign", "Relu") and b.chance(0.3):
        x = b.values(x.shape, "int32")
    b.out(kind, [b.x(x)], **how)


def _operands(b: OnnxBuilder, dtype: str, nonzero: bool = False, positive: bool = False) -> list[str]:
    arrays = [b.values(shape, dtype) for shape in b.pair()]
    if nonzero:
        arrays[1] = np.where(np.abs(arrays[1]) < 0.2, np.ones_like(arrays[1]), arrays[1]).astype(dtype)
    if positive:
        arrays[0] = np.abs(arrays[0]) + arrays[0].dtype.type(1)
    held = b.int(0, 4)
    return [b.c(a) if k == held else b.x(a) for k, a in enumerate(arrays)]


def arithmetic(b: OnnxBuilder) -> None:
    kind, dtype = b.pick("Add", "Sub", "Mul", "Div"), b.pick("float32", "float32", "int32", "int64")
    b.out(kind, _operands(b, dtype, nonzero=kind == "Div"))


def power(b: OnnxBuilder) -> None:
    if b.chance(0.4):
        exponent = b.c(np.float32(b.pick(2.0, 3.0, 0.5, -1.0, 1.0, 0.0, -2.0)))
        x = np.abs(b.values(b.shape())) + np.float32(0.1)
        b.out("Pow", [b.x(x), exponent])
        return
    b.out("Pow", _operands(b, "float32", positive=True))


def remainder(b: OnnxBuilder) -> None:
    dtype = b.pick("int32", "int64", "float32")
    fmod = int(dtype == "float32" or b.chance())
    b.out("Mod", _operands(b, dtype, nonzero=True), fmod=fmod)


def comparison(b: OnnxBuilder) -> None:
    kind = b.pick("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
    b.out(kind, _operands(b, b.pick("float32", "int32", "int64")))


def logic(b: OnnxBuilder) -> None:
    kind = b.pick("And", "Or", "Xor", "Not")
    if kind == "Not":
        b.out(kind, [b.x(b.values(b.shape(), "bool"))])
    else:
        b.out(kind, _operands(b, "bool"))


def bits(b: OnnxBuilder) -> None:
    if b.opset >= 18 and b.chance():
        b.out(b.pick("BitwiseAnd", "BitwiseOr", "BitwiseXor"), _operands(b, b.pick("int32", "uint8", "int64")))
        return
    dtype = b.pick("uint8", "uint32")
    shape, small = b.pair()
    x, y = b.values(shape, dtype), b.rng.integers(0, 7, small).astype(dtype)
    b.out("BitShift", [b.x(x), b.held_or_given(y)], direction=b.pick("LEFT", "RIGHT"))


def several(b: OnnxBuilder) -> None:
    shape, kind = b.shape(), b.pick("Max", "Min", "Sum", "Mean")
    dtype = "int32" if kind in ("Max", "Min") and b.chance(0.3) else "float32"
    given = [b.x(b.values(b.smaller(shape), dtype)) for _ in range(b.int(1, 3))]
    b.out(kind, [*given, b.x(b.values(shape, dtype))])


def where(b: OnnxBuilder) -> None:
    shape, dtype = b.shape(), b.pick("float32", "int32", "int64")
    condition = b.x(b.values(b.smaller(shape), "bool"))
    b.out("Where", [condition, *(b.held_or_given(b.values(b.smaller(shape), dtype), 0.3) for _ in range(2))])


def clip(b: OnnxBuilder) -> None:
    dtype = b.pick("float32", "float32", "int32", "int8")
    x = b.x(b.values(b.shape(0, 4), dtype))
    low, high = (b.c(np.array(v, dtype)) for v in ((-1, 1) if dtype != "float32" else (-0.5, 0.75)))
    b.out("Clip", b.pick([x, low, high], [x, low], [x, "", high], [x]))


def prelu(b: OnnxBuilder) -> None:
    shape = b.shape(1, 4)
    b.out("PRelu", [b.real(*shape), b.held_or_given(b.values(b.smaller(shape)))])


def cast(b: OnnxBuilder) -> None:
    kinds = ("float32", "int32", "int64", "bool", "uint8", "int8")  # halves become float32
    source, target = b.pick(*kinds), b.pick(*kinds)
    x = b.values(b.shape(), source)
    if target.startswith("u"):
        x = np.abs(x) if source != "bool" else x
    b.out("Cast", [b.x(x)], to=b.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(target)))


# Reductions.


def reduction(b: OnnxBuilder) -> None:
    kind = b.pick("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    shape = b.shape()
    dtype = b.pick("int32", "int64") if kind in ("Sum", "Max", "Min", "Prod") and b.chance(0.3) else "float32"
    x = b.values(shape, dtype)
    if kind == "LogSum":
        x = np.abs(x) + np.float32(0.1)
    if kind == "Prod" and dtype != "float32":
        x = np.sign(x) * np.minimum(np.abs(x), 2)
    how: dict[str, Any] = {"keepdims": int(b.chance())} if b.chance(0.8) else {}
    given, form = [b.x(x.astype(dtype))], b.int(0, 3)
    as_input = b.opset >= (13 if kind == "Sum" else 18)
    if form:
        axes = b.axes(len(shape))
        if as_input:
            given.append(b.ints(*axes))
        else:
            how["axes"] = axes
    elif as_input and b.chance():
        how["noop_with_empty_axes"] = int(b.chance())
        given += [b.ints()] if b.chance() else []
    b.out(f"Reduce{kind}", given, **how)


def extremes(b: OnnxBuilder) -> None:
    shape = b.shape()
    dtype = b.pick("float32", "float32", "int32", "uint8")
    x = b.values(shape, dtype) if b.chance() else b.rng.integers(0, 3, shape).astype(dtype)
    how = {"axis": b.axis(len(shape)), "keepdims": int(b.chance()), "select_last_index": int(b.chance(0.4))}
    b.out(b.pick("ArgMax", "ArgMin"), [b.x(x)], **{k: v for k, v in how.items() if b.chance(0.8)})


def softmax(b: OnnxBuilder) -> None:
    shape = b.shape()
    how = {"axis": b.axis(len(shape))} if b.chance(0.8) else {}
    b.out(b.pick("Softmax", "LogSoftmax", "Hardmax"), [b.real(*shape)], **how)


def top_k(b: OnnxBuilder) -> None:
    shape = b.shape()
    axis = b.axis(len(shape))
    x = b.values(shape)
    k = b.int(1, shape[axis])
    how = {"axis": axis, "largest": int(b.chance()), "sorted": 1}
    b.out("TopK", [b.x(x), b.ints(k)], 2, **how)


def cumulative(b: OnnxBuilder) -> None:
    shape = b.shape()
    x = b.x(b.values(shape, b.pick("float32", "float32", "int32", "int64")))
    axis = b.c(np.array(b.axis(len(shape)), b.pick("int32", "int64")))
    b.out("CumSum", [x, axis], exclusive=int(b.chance()), reverse=int(b.chance()))


# Choices by indices.


def _indices(b: OnnxBuilder, extent: int, shape: Sequence[int], negative: bool = True) -> np.ndarray:
    return b.rng.integers(-extent if negative else 0, extent, shape).astype("int64")


def gather(b: OnnxBuilder) -> None:
    shape = b.shape()
    axis = b.axis(len(shape))
    places = _indices(b, shape[axis], b.shape(0, 2, 4)).astype(b.pick("int32", "int64"))
    x = b.x(b.values(shape, b.pick("float32", "float32", "int32", "bool", "uint8")))
    b.out("Gather", [x, b.held_or_given(places)], axis=axis)


def gather_elements(b: OnnxBuilder) -> None:
    shape = b.shape()
    axis = b.axis(len(shape))
    rows = [b.int(1, d) for d in shape]
    rows[axis] = b.int(1, 5)
    b.out("GatherElements", [b.real(*shape), b.held_or_given(_indices(b, shape[axis], rows))], axis=axis)


def gather_nd(b: OnnxBuilder) -> None:
    shape = b.shape(1, 4, 5)
    batches = b.int(0, len(shape) - 1) if b.chance(0.3) else 0
    depth = b.int(1, len(shape) - batches)
    rows = (*shape[:batches], *b.shape(0, 2, 4))
    places = np.stack([_indices(b, shape[batches + k], rows) for k in range(depth)], -1)
    b.out("GatherND", [b.real(*shape), b.held_or_given(places)], batch_dims=batches)


def scatter_elements(b: OnnxBuilder) -> None:
    shape = b.shape(1, 3)
    axis = b.axis(len(shape))
    modes = ["none", *(["add", "mul"] if b.opset >= 16 else []), *(["max", "min"] if b.opset >= 18 else [])]
    mode = b.pick(*modes)
    rows = [b.int(1, d) for d in shape]
    places = _indices(b, shape[axis], rows)
    if mode == "none":  # else the last of equal places would win, or any
        order = b.rng.permuted(
            np.broadcast_to(
                np.arange(shape[axis]).reshape([-1 if k == axis % len(shape) else 1 for k in range(len(shape))]), shape
            ),
            axis=axis,
        )
        places = order[tuple(slice(r) for r in rows)].astype("int64")
    how: dict[str, Any] = {"reduction": mode} if b.opset >= 16 else {}
    updates = b.held_or_given(b.values(rows))
    b.out("ScatterElements", [b.real(*shape), b.held_or_given(places), updates], axis=axis, **how)


def scatter_nd(b: OnnxBuilder) -> None:
    shape = b.shape(1, 3, 5)
    depth = b.int(1, len(shape))
    modes = ["none", *(["add", "mul"] if b.opset >= 16 else []), *(["max", "min"] if b.opset >= 18 else [])]
    mode = b.pick(*modes)
    count = b.int(1, min(4, prod(shape[:depth])))
    flat = b.rng.choice(prod(shape[:depth]), count, replace=mode != "none")
    places = np.stack(np.unravel_index(flat, shape[:depth]), -1).astype("int64")
    updates = b.held_or_given(b.values((count, *shape[depth:])))
    how: dict[str, Any] = {"reduction": mode} if b.opset >= 16 else {}
    b.out("ScatterND", [b.real(*shape), b.held_or_given(places), updates], **how)


def one_hot(b: OnnxBuilder) -> None:
    depth, shape = b.int(1, 6), b.shape(1, 3, 4)
    dtype = b.pick("float32", "int64")
    places = b.held_or_given(b.rng.integers(-depth, depth, shape).astype("int64"), 0.2)
    pair = b.c(np.array([0, 1] if b.chance() else [-2, 3], dtype))
    b.out("OneHot", [places, b.c(np.array(depth, "int64")), pair], axis=b.int(-len(shape) - 1, len(shape)))


# Moves.


def pad(b: OnnxBuilder) -> None:
    shape = b.shape()
    mode = b.pick("constant", "constant", "reflect", "edge", *(["wrap"] if b.opset >= 19 else []))
    most = [min(3, d - 1) if mode == "reflect" else min(3, d) if mode == "wrap" else 3 for d in shape]
    widths = [[b.int(0, m) if b.chance(0.7) else 0 for m in most] for _ in range(2)]
    if mode == "constant" and b.chance(0.3):
        k = b.int(0, len(shape) - 1)
        widths[b.int(0, 1)][k] = -b.int(0, shape[k] - 1)
    dtype = b.pick("float32", "float32", "int32", "uint8" if b.opset >= 19 else "float32")
    given, axes = [b.x(b.values(shape, dtype))], list(range(len(shape)))
    if b.opset >= 18 and b.chance(0.4):
        axes = b.axes(len(shape))
        given += [b.ints(*(w[a] for w in widths for a in axes))]
        given += [b.c(np.array(3, dtype)) if mode == "constant" and b.chance() else "", b.ints(*axes)]
    else:
        given.append(b.ints(*(w for side in widths for w in side)))
        given += [b.c(np.array(3, dtype))] if mode == "constant" and b.chance() else []
    b.out("Pad", given, mode=mode)


def slice_(b: OnnxBuilder) -> None:
    shape = b.shape()
    axes = b.axes(len(shape))
    begin, end, step = [], [], []
    for a in axes:
        d = shape[a]
        s = b.int(1, 3) * (1 if b.chance(0.7) else -1)
        lo, hi = sorted((b.int(0, d - 1), b.int(0, d - 1)))
        first, last = (lo, hi + 1) if s > 0 else (hi, lo - 1)
        begin.append(first - d if b.chance(0.3) else first)
        if last < 0 or last >= d:
            end.append(b.pick(1 << 40, d, d + 3) if s > 0 else b.pick(-(1 << 40), -d - 1))
        else:
            end.append(last - d if b.chance(0.3) else last)
        step.append(s)
    x = b.x(b.values(shape, b.pick("float32", "float32", "int32", "bool", "uint8")))
    given = [x, b.ints(*begin), b.ints(*end), b.ints(*axes)]
    b.out("Slice", [*given, b.ints(*step)] if b.chance(0.8) or step != [1] * len(step) else given)


def concat(b: OnnxBuilder) -> None:
    shape = list(b.shape())
    axis, dtype = b.axis(len(shape)), b.pick("float32", "float32", "int32", "uint8", "bool")
    parts = []
    for _ in range(b.int(1, 4)):
        shape[axis] = b.int(1, 4)
        parts.append(b.held_or_given(b.values(shape, dtype), 0.2))
    b.out("Concat", [b.x(b.values(shape, dtype)), *parts], axis=axis)


def split(b: OnnxBuilder) -> None:
    shape = b.shape(1, 4, 9)
    axis = b.axis(len(shape))
    extent = shape[axis]
    x = b.real(*shape)
    if b.opset >= 18 and b.chance():
        count = b.int(1, min(4, extent))
        size = -(-extent // count)
        if size * (count - 1) < extent:
            b.out("Split", [x], count, axis=axis, num_outputs=count)
            return
    sizes = np.bincount(b.rng.integers(0, 3, extent), minlength=3)
    sizes = [int(s) for s in sizes if s]
    b.out("Split", [x, b.ints(*sizes)], len(sizes), axis=axis)


def shapes(b: OnnxBuilder) -> None:
    """Draw Squeeze, Unsqueeze, Flatten, Reshape, Transpose, Expand and Tile."""
    kind, shape = b.pick("Squeeze", "Unsqueeze", "Flatten", "Reshape", "Transpose", "Expand", "Tile"), b.shape()
    dtype = b.pick("float32", "float32", "int32", "bool", "uint8")
    if kind == "Squeeze":
        shape = tuple(1 if b.chance() else d for d in shape)
        ones = [k for k, d in enumerate(shape) if d == 1]
        x = b.x(b.values(shape, dtype))
        if ones and b.chance(0.7):
            taken = [k - len(shape) if b.chance(0.3) else k for k in ones if b.chance(0.7)]
            b.out(kind, [x, b.ints(*(taken or ones))])
        else:
            b.out(kind, [x])
        return
    x = b.x(b.values(shape, dtype))
    if kind == "Unsqueeze":
        rank = len(shape) + (count := b.int(1, 2))
        axes = [int(a) - (rank if b.chance(0.3) else 0) for a in b.rng.choice(rank, count, replace=False)]
        b.out(kind, [x, b.ints(*axes)])
    elif kind == "Flatten":
        b.out(kind, [x], axis=b.int(-len(shape), len(shape)))
    elif kind == "Reshape":
        to = list(shape)
        if len(to) > 1 and b.chance():
            k = b.int(0, len(to) - 2)
            to[k : k + 2] = [to[k] * to[k + 1]]
        else:
            to.insert(b.int(0, len(to)), 1)
        if b.chance():
            to[b.int(0, len(to) - 1)] = -1
        if b.chance(0.3) and to[0] == shape[0]:
            to[0] = 0
        b.out(kind, [x, b.ints(*to)])
    elif kind == "Transpose":
        how: dict[str, Any] = {"perm": [int(a) for a in b.rng.permutation(len(shape))]} if b.chance(0.8) else {}
        b.out(kind, [x], **how)
    elif kind == "Expand":
        small = b.smaller(shape)
        to = [1 if b.chance(0.3) else d for d in shape]
        b.out(kind, [b.x(b.values(small, dtype)), b.ints(*to)])
    else:
        b.out(kind, [x, b.ints(*(b.int(1, 3) for _ in shape))])


def blocks(b: OnnxBuilder) -> None:
    s = b.int(1, 3)
    n, c, h, w = b.int(1, 2), b.int(1, 3), b.int(1, 4), b.int(1, 4)
    if b.chance():
        b.out("DepthToSpace", [b.real(n, c * s * s, h, w)], blocksize=s, mode=b.pick("DCR", "CRD"))
    else:
        b.out("SpaceToDepth", [b.real(n, c, h * s, w * s)], blocksize=s)


def trilu(b: OnnxBuilder) -> None:
    if b.opset < 14:
        b.out("Identity", [b.real(2)])
        return
    shape = b.shape(2, 4)
    x = b.x(b.values(shape, b.pick("float32", "int64", "bool")))
    b.out("Trilu", [x, b.c(np.array(b.int(-3, 3), "int64"))] if b.chance(0.7) else [x], upper=int(b.chance()))


def reverse_sequence(b: OnnxBuilder) -> None:
    shape = (b.int(1, 5), b.int(1, 5), *b.shape(0, 2, 4))
    time = b.int(0, 1)
    lengths = b.rng.integers(1, shape[time] + 1, shape[1 - time]).astype("int64")
    b.out("ReverseSequence", [b.real(*shape), b.c(lengths)], time_axis=time, batch_axis=1 - time)


def resize(b: OnnxBuilder) -> None:
    n, c, h, w = b.int(1, 2), b.int(1, 3), b.int(1, 6), b.int(1, 6)
    mode = b.pick("nearest", "linear", "cubic")
    how: dict[str, Any] = {"mode": mode}
    how["coordinate_transformation_mode"] = b.pick(
        "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel",
        *(["half_pixel_symmetric"] if b.opset >= 19 else [])
    )  # fmt: skip
    if mode == "nearest":
        how["nearest_mode"] = b.pick("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    if mode == "cubic":
        how["cubic_coeff_a"] = float(b.pick(-0.75, -0.5))
        how["exclude_outside"] = int(b.chance(0.3))
    if mode != "nearest" and b.opset >= 18 and b.chance(0.2):
        how["antialias"] = 1
        how["coordinate_transformation_mode"] = "half_pixel"
    x = b.real(n, c, h, w)
    if b.chance():
        # exact scales: places at a half of an element are float32's in the reference
        factors = [float(b.pick(1, 2, 3, 0.5) if e % 2 == 0 else b.pick(1, 2, 3)) for e in (h, w)]
        b.out("Resize", [x, "", b.c(np.array([1, 1, *factors], "float32"))], **how)
    else:
        b.out("Resize", [x, "", "", b.ints(n, c, b.int(1, 9), b.int(1, 9))], **how)


# Normalizations and products.


def normalization(b: OnnxBuilder) -> None:
    kinds = ["BatchNormalization", "InstanceNormalization", "LRN", "LpNormalization", "MeanVarianceNormalization"]
    kinds += ["LayerNormalization"] * 2 if b.opset >= 17 else []
    kinds += ["GroupNormalization"] if b.opset >= 21 else []
    kinds += ["RMSNormalization"] if b.opset >= 23 else []
    kind, shape = b.pick(*kinds), (b.int(1, 2), b.int(1, 6), *b.shape(1, 3, 5))
    c, epsilon = shape[1], float(b.pick(1e-5, 1e-3, 0.1))
    channels = [b.c(b.values((c,))) for _ in range(2)]
    if kind == "BatchNormalization":
        x = b.real(*(shape if b.chance(0.8) else shape[:2]))
        statistics = [b.c(b.values((c,))), b.c(np.abs(b.values((c,))) + np.float32(0.1))]
        b.out(kind, [x, *channels, *statistics], epsilon=epsilon)
    elif kind == "InstanceNormalization":
        b.out(kind, [b.real(*shape), *channels], epsilon=epsilon)
    elif kind == "LRN":
        how: dict[str, Any] = {
            "alpha": float(b.pick(1e-4, 0.1)),
            "beta": float(b.pick(0.75, 0.5)),
            "bias": float(b.pick(1.0, 2.0)),
        }
        b.out(kind, [b.real(*shape[:2], 3, 4)], size=b.pick(1, 3, 5), **how)
    elif kind == "LpNormalization":
        b.out(kind, [b.real(*shape)], axis=b.axis(len(shape)), p=b.int(1, 2))
    elif kind == "MeanVarianceNormalization":
        how: dict[str, Any] = (
            {"axes": sorted(int(a) for a in b.rng.choice(4, b.int(1, 3), replace=False))} if b.chance() else {}
        )
        b.out(kind, [b.real(2, 3, 4, 5)], **how)
    elif kind in ("LayerNormalization", "RMSNormalization"):
        axis = b.axis(len(shape))
        own = shape[axis:]
        given = [b.real(*shape), b.held_or_given(b.values(own), 0.8)]
        if kind == "LayerNormalization" and b.chance(0.7):
            given.append(b.c(b.values(own)))
        b.out(kind, given, axis=axis, epsilon=epsilon)
    else:
        groups = b.int(1, 3)
        own = c if b.opset < 21 else c * groups
        shape = (shape[0], c * groups, *shape[2:])
        b.out(kind, [b.real(*shape), b.c(b.values((own,))), b.c(b.values((own,)))], num_groups=groups, epsilon=epsilon)


def matmul(b: OnnxBuilder) -> None:
    m, k, n = b.int(1, 6), b.int(1, 7), b.int(1, 6)
    lead = b.shape(0, 2, 3)
    left, right = (*b.smaller(lead), m, k), (*b.smaller(lead), k, n)
    if b.chance(0.15):
        left = (k,)
    elif b.chance(0.15):
        right = (k,)
    b.out("MatMul", [b.real(*left), b.held_or_given(b.values(right))])


def gemm(b: OnnxBuilder) -> None:
    m, k, n = b.int(1, 6), b.int(1, 7), b.int(1, 6)
    ta, tb = b.chance(0.3), b.chance()
    given = [b.real(*((k, m) if ta else (m, k))), b.held_or_given(b.values((n, k) if tb else (k, n)), 0.7)]
    if b.chance(0.7):
        given.append(b.held_or_given(b.values(b.pick((m, n), (n,), (1, n), (m, 1), (1,), ())), 0.7))
    how: dict[str, Any] = {"alpha": float(b.pick(1.0, 0.5, 2.0)), "beta": float(b.pick(1.0, 0.25))}
    b.out("Gemm", given, transA=int(ta), transB=int(tb), **{k: v for k, v in how.items() if b.chance()})


def einsum(b: OnnxBuilder) -> None:
    terms = b.pick("ij,jk->ik", "bij,bjk->bik", "bhid,bhjd->bhij", "ij->ji", "ij,ij->i", "bij,jk->bik", "i,j->ij",
                   "ijk->j", "bij,bkj->bik", "ii->i", "...ij,...jk->...ik", "ij,kj")  # fmt: skip
    sizes = {letter: b.int(1, 5) for letter in "abcdhijk"}
    given = []
    for term in terms.split("->")[0].split(","):
        lead = (2, 3) if "..." in term else ()
        given.append(b.real(*lead, *(sizes[letter] for letter in term.replace("...", ""))))
    b.out("Einsum", given, equation=terms)


# Recurrent layers.


def recurrent(b: OnnxBuilder) -> None:
    kind = b.pick("LSTM", "GRU", "RNN")
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    direction = b.pick("forward", "reverse", "bidirectional")
    ways = 2 if direction == "bidirectional" else 1
    steps, batch, depth, units = b.int(1, 5), b.int(1, 3), b.int(1, 5), b.int(1, 5)
    x = b.real(steps, batch, depth)
    w = [b.c(b.values((ways, gates * units, e)) * np.float32(0.4)) for e in (depth, units)]
    bias = b.c(b.values((ways, 2 * gates * units))) if b.chance(0.7) else ""
    lengths = b.c(b.rng.integers(1, steps + 1, batch).astype("int32")) if b.chance(0.2) else ""
    first = b.held_or_given(b.values((ways, batch, units))) if b.chance() else ""
    given = [x, *w, bias, lengths, first]
    how: dict[str, Any] = {"direction": direction, "hidden_size": units}
    if kind == "LSTM":
        given.append(b.held_or_given(b.values((ways, batch, units))) if first and b.chance() else "")
        given += [b.c(b.values((ways, 3 * units)))] if b.chance(0.2) else []
    if kind == "GRU":
        how["linear_before_reset"] = int(b.chance())
    if b.chance(0.2):
        how["clip"] = 0.8
    if kind == "RNN" and b.chance(0.3):
        how["activations"] = [b.pick("Relu", "Sigmoid", "Tanh")] * ways
    while given[-1] == "":
        given.pop()
    b.out(kind, given, {"LSTM": 3}.get(kind, 2), **how)


# Stored integers.


def quantizers(b: OnnxBuilder) -> None:
    shape, dtype = (
        b.shape(1, 4),
        b.pick("uint8", "int8", "int16", "uint16") if b.opset >= 21 else b.pick("uint8", "int8"),
    )
    axis = b.axis(len(shape)) if b.chance(0.4) else None
    count = () if axis is None else (shape[axis],)
    scale = b.c(b.rng.uniform(0.01, 0.1, count).astype("float32"))
    zero = b.c(b.rng.integers(0, 20, count).astype(dtype))
    how = {} if axis is None else {"axis": axis}
    if b.chance():
        b.out("QuantizeLinear", [b.real(*shape), scale, zero], **how)
    else:
        info = np.iinfo(dtype)
        x = b.rng.integers(info.min, info.max + 1, shape).astype(dtype)
        b.out("DequantizeLinear", [b.x(x), scale, zero] if b.chance(0.8) else [b.x(x), scale], **how)


def dynamic_dense(b: OnnxBuilder) -> None:
    """Quantize floats at run time, multiply integers, scale back, as dynamic quantization writes it."""
    m, k, n = b.int(1, 5), b.int(1, 9), b.int(1, 6)
    x = b.real(*(((2,) if b.chance(0.3) else ()) + (m, k)))
    stored, scale, zero = b.node("DynamicQuantizeLinear", [x], 3)
    w = b.c(b.rng.integers(-128, 128, (k, n)).astype("int8"))
    w_scale = b.rng.uniform(0.01, 0.03, (n,) if b.chance() else ()).astype("float32")
    (total,) = b.node("MatMulInteger", [stored, w, zero, b.c(np.array(0, "int8"))])
    (real,) = b.node("Cast", [total], to=1)
    (factor,) = b.node("Mul", [scale, b.c(w_scale)])
    b.out("Mul", [real, factor])


def integer_products(b: OnnxBuilder) -> None:
    dtype = b.pick("uint8", "int8")
    if b.chance():
        m, k, n = b.int(1, 5), b.int(1, 9), b.int(1, 6)
        lead = b.shape(0, 1, 3)
        x, w = (*lead, m, k), (k, n)
        zeros = [
            b.c(np.array(b.int(0, 9), dtype)),
            b.c(b.rng.integers(0, 9, (n,) if b.chance(0.3) else ()).astype("int8")),
        ]
        kind: dict[str, Any] = {}
        name = "MatMulInteger"
    else:
        size, kind = _window(b)
        while len(size) > 2:
            size, kind = _window(b)
        c = b.int(1, 3)
        x, w = (1, c, *size), (b.int(1, 4), c, *kind["kernel_shape"])
        zeros = [b.c(np.array(b.int(0, 9), dtype)), b.c(np.array(0, "int8"))]
        name = "ConvInteger"
    data = b.x(b.rng.integers(0, 120, x).astype(dtype))
    b.out(name, [data, b.c(b.rng.integers(-120, 120, w).astype("int8")), *zeros[: b.int(0, 2)]], **kind)


# Attention and sampling.


def sampling(b: OnnxBuilder) -> None:
    if b.opset < 16:
        b.out("Identity", [b.real(2)])
        return
    n, c, h, w, p, q = b.int(1, 2), b.int(1, 3), b.int(1, 5), b.int(1, 5), b.int(1, 4), b.int(1, 4)
    modes = ("linear", "nearest", "cubic") if b.opset >= 20 else ("bilinear", "nearest", "bicubic")
    grid = b.rng.uniform(-1.3, 1.3, (n, p, q, 2)).astype("float32")
    how = {"mode": b.pick(*modes), "padding_mode": b.pick("zeros", "border", "reflection")}
    b.out("GridSample", [b.real(n, c, h, w), b.held_or_given(grid)], align_corners=int(b.chance()), **how)


def columns(b: OnnxBuilder) -> None:
    if b.opset < 18:
        b.out("Identity", [b.real(2)])
        return
    kh, kw, h, w = b.int(1, 3), b.int(1, 3), b.int(3, 5), b.int(3, 5)
    strides = [b.int(1, 2), b.int(1, 2)]
    blocks_ = ((h - kh) // strides[0] + 1) * ((w - kw) // strides[1] + 1)
    x = b.real(1, b.int(1, 2) * kh * kw, blocks_)
    b.out("Col2Im", [x, b.ints(h, w), b.ints(kh, kw)], strides=strides)


def attention(b: OnnxBuilder) -> None:
    if b.opset < 23:
        matmul(b)
        return
    n, heads, q, k, d = b.int(1, 2), b.pick(1, 2, 4), b.int(1, 4), b.int(1, 5), b.int(1, 4)
    kv = b.pick(heads, heads, 1)
    given = [b.real(n, heads, q, d), b.real(n, kv, k, d), b.real(n, kv, k, d)]
    how: dict[str, Any] = {}
    if b.chance(0.4):
        mask = b.values((q, k), "bool")
        mask[:, 0] = True
        given.append(b.held_or_given(mask if b.chance() else b.values((q, k))))
    elif b.chance():
        how["is_causal"] = 1
    if b.chance(0.3):
        how["scale"] = 0.3
    if b.chance(0.2):
        how["softcap"] = 2.0
    b.out("Attention", given, **how)


def rare(b: OnnxBuilder) -> None:
    """Draw operators that few networks have."""
    kinds = ["IsNaN", "IsInf", "Dropout", "EyeLike", "Compress", "RoiAlign", "Size"]
    kinds += ["DFT"] * 2 if b.opset >= 17 else []
    kinds += ["STFT"] if b.opset >= 17 else []
    kinds += ["RotaryEmbedding"] * 2 if b.opset >= 23 else []
    kinds += ["Swish"] if b.opset == 24 else []
    kind, shape = b.pick(*kinds), b.shape()
    if kind in ("IsNaN", "IsInf"):
        x = b.values(shape)
        x.reshape(-1)[:: b.int(1, 3)] = np.inf if b.chance() else -np.inf
        b.out(kind, [b.x(x)], **({"detect_negative": int(b.chance())} if kind == "IsInf" else {}))
    elif kind == "EyeLike":
        b.out(kind, [b.real(b.int(1, 5), b.int(1, 5))], k=b.int(-2, 2))
    elif kind == "Compress":
        axis = b.pick(None, b.axis(len(shape)))
        truths = b.values((prod(shape) if axis is None else shape[axis],), "bool")
        truths[0] = True
        b.out(kind, [b.real(*shape), b.c(truths)], axis=axis)
    elif kind == "RoiAlign":
        boxes = np.sort(b.rng.uniform(0, 7, (3, 2, 2)), axis=1).reshape(3, 4).astype("float32")
        how = {"output_height": b.int(1, 3), "output_width": b.int(1, 3), "sampling_ratio": b.int(1, 2)}
        how["spatial_scale"] = b.pick(1.0, 0.5)
        lines = b.c(b.rng.integers(0, 2, 3).astype("int64"))
        b.out(kind, [b.real(2, b.int(1, 3), 7, 8), b.held_or_given(boxes), lines], **how)
    elif kind == "DFT":
        shape, inverse = (*b.shape(1, 2, 7), b.int(1, 7)), b.int(0, 1)
        complex_ = inverse or b.chance()
        x = b.real(*shape, 2 if complex_ else 1)
        how = {"inverse": int(inverse), "onesided": int(not complex_ and b.chance())}
        if b.opset >= 20:
            b.out(kind, [x, "", b.c(np.array(b.int(0, len(shape) - 1), "int64"))], **how)
        else:
            b.out(kind, [x], axis=b.int(1, len(shape) - 1), **how)
    elif kind == "STFT":
        frame, step = b.pick(4, 8, 5), b.int(1, 4)
        window = b.c(b.rng.uniform(0.1, 1, frame).astype("float32"))
        given = [b.real(b.int(1, 2), b.int(frame, 24), 1), b.c(np.array(step, "int64")), window]
        b.out(kind, [*given, b.c(np.array(frame, "int64"))], onesided=int(b.chance()))
    elif kind == "RotaryEmbedding":
        n, heads, steps, width = b.int(1, 2), b.int(1, 3), b.int(1, 5), 2 * b.int(1, 4)
        caches = [b.c(b.values((9, width // 2))) for _ in range(2)]
        places = b.held_or_given(b.rng.integers(0, 9, (n, steps)).astype("int64"))
        b.out(kind, [b.real(n, heads, steps, width), *caches, places], interleaved=int(b.chance()))
    else:
        b.out(kind, [b.real(*shape)])


GENERATORS: Mapping[str, Generator] = {
    g.__name__.rstrip("_"): g
    for g in (
        conv, conv, conv_transpose, max_pool, average_pool, lp_pool, global_pool, unary, arithmetic, power, remainder,
        comparison, logic, bits, several, where, clip, prelu, cast, reduction, extremes, softmax, top_k, cumulative,
        gather, gather_elements, gather_nd, scatter_elements, scatter_nd, one_hot, pad, slice_, concat, split, shapes,
        blocks, trilu, reverse_sequence, resize, normalization, matmul, gemm, einsum, recurrent, quantizers,
        dynamic_dense, integer_products, sampling, columns, attention, rare,
    )
}  # fmt: skip
