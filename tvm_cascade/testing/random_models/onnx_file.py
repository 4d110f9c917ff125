"""A `RandomModel` as an `.onnx` file of any opset: float, with QuantizeLinear and DequantizeLinear, or with QLinear operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from tvm_cascade.testing.random_models.model import RandomModel, Step, drawn, weights

_BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "maximum": "Max", "minimum": "Min"}
_UNARY = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "abs": "Abs", "neg": "Neg", "sin": "Sin"}
_REDUCE = {"mean": "ReduceMean", "sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin"}
BIASES_STORED_SINCE = 13  # opset; those of older QDQ networks are float
_BACK = -(1 << 31)  # an end before the first element


def onnx_bytes(model: RandomModel, unrounded: bool = False) -> bytes:
    """Return the file's bytes; `unrounded` outputs of a quantized network are those before their quantization."""
    return _Writer(model, unrounded).file()


class _Writer:
    def __init__(self, model: RandomModel, unrounded: bool) -> None:
        self.onnx: Any = import_module("onnx")
        self.model, self.opset, self.unrounded = model, model.opset, unrounded
        self.nodes: list[Any] = []
        self.held: list[Any] = []
        self.real: dict[int, str] = {}  # names of floats, by operand
        self.stored: dict[int, str] = {}  # names of stored integers, by operand
        self.exact: dict[int, str] = {}  # names of floats before they were quantized, by operand
        self.shared: dict[Any, str] = {}

    def file(self) -> bytes:
        helper, kinds = self.onnx.helper, self.onnx.TensorProto
        model, info = self.model, helper.make_tensor_value_info
        inputs, outputs = [], []
        for t in model.inputs:
            name, shape = f"x{t}", list(model.operands[t].shape)
            inputs.append(info(name, kinds.FLOAT, shape))
            if model.quantized:
                self.store(t, name)
            else:
                self.real[t] = name
        for step in model.steps:
            getattr(self, step.kind)(step)
        for k, t in enumerate(model.outputs):
            name = f"y{k}"
            source = self.exact.get(t, self.real[t]) if self.unrounded else self.real[t]
            self.nodes.append(helper.make_node("Identity", [source], [name]))
            kind = kinds.INT64 if model.operands[t].kind == "index" else kinds.FLOAT
            outputs.append(info(name, kind, list(model.operands[t].shape)))
        graph = helper.make_graph(self.nodes, "random", inputs, outputs, self.held)
        opset = [helper.make_opsetid("", self.opset)]
        version = max(4, helper.find_min_ir_version_for(opset))  # from 4 on initializers are no inputs
        made = helper.make_model(graph, opset_imports=opset, ir_version=version)
        return made.SerializeToString()

    # Names.

    def node(self, kind: str, inputs: Sequence[str], outputs: int = 1, **attrs: Any) -> Any:
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), names, **attrs))
        return names[0] if outputs == 1 else names

    def constant(self, data: Any, dtype: str | None = None) -> str:
        array = np.asarray(data, dtype)
        key = (array.tobytes(), array.shape, str(array.dtype))
        if key not in self.shared:
            self.shared[key] = f"c{len(self.held)}"
            self.held.append(self.onnx.numpy_helper.from_array(array, self.shared[key]))
        return self.shared[key]

    def ints(self, values: Any) -> str:
        return self.constant(values, "int64")

    def quantization(self, t: int) -> list[str]:
        operand = self.model.operands[t]
        return [self.constant(operand.scale, "float32"), self.constant(operand.zero_point, self.model.stored_type)]

    def store(self, t: int, real: str) -> None:
        """Quantize floats to the integers of operand `t`, and dequantize them for readers."""
        self.exact[t] = real
        self.stored[t] = self.node("QuantizeLinear", [real, *self.quantization(t)])
        self.real[t] = self.node("DequantizeLinear", [self.stored[t], *self.quantization(t)])

    def inputs(self, step: Step) -> list[str]:
        return [self.real[t] for t in step.inputs]

    def done(self, step: Step, *names: str) -> None:
        """Say under which names a step's results lie, in floats."""
        for t, name in zip(step.outputs, names, strict=True):
            if self.model.quantized and self.model.operands[t].kind == "real":
                self.store(t, name)
            else:
                self.real[t] = name

    def with_axes(self, kind: str, x: str, axes: Sequence[int], since: int, **attrs: Any) -> str:
        """Add an operator whose axes are an attribute before an opset and an input from it on."""
        if self.opset >= since:
            return self.node(kind, [x, self.ints(axes)], **attrs)
        return self.node(kind, [x], axes=list(axes), **attrs)

    # Layers.

    def layer(self, step: Step, shape: tuple[int, ...], axis: int, channels: int) -> tuple[str, str, str, np.ndarray]:
        """Return names of real weights, stored ones, biases (or ""), and the scales."""
        made = weights(step.attrs["weights"], shape, axis, channels, step.attrs["terms"])
        if not self.model.quantized:
            bias = self.constant(made.bias, "float32") if step.attrs["bias"] else ""
            return self.constant(made.real(axis)), "", bias, made.scales
        scales = made.scales if self.opset >= 13 else made.scales.max()
        zero = np.zeros(np.shape(scales), "int8")
        how = {"axis": axis} if self.opset >= 13 else {}
        stored = self.constant(made.stored)
        real = self.node("DequantizeLinear", [stored, self.constant(scales, "float32"), self.constant(zero)], **how)
        if not step.attrs["bias"]:
            return real, stored, "", scales
        steps = (scales * np.float32(self.model.operands[step.inputs[0]].scale)).astype("float32")
        data = self.constant(np.round(made.bias / steps), "int32")
        if step.attrs.get("stored_bias"):
            return real, stored, data, scales
        zeros, how = np.zeros(np.shape(steps), "int32"), {"axis": 0} if self.opset >= 13 else {}
        if self.opset < BIASES_STORED_SINCE:
            return real, stored, self.constant(made.bias, "float32"), scales
        return (
            real,
            stored,
            self.node("DequantizeLinear", [data, self.constant(steps), self.constant(zeros)], **how),
            scales,
        )

    def activated(self, name: str, activation: str | None) -> str:
        if activation is None:
            return name
        return self.node("Relu", [name]) if activation == "relu" else self.clip(name)

    def clip(self, x: str) -> str:
        if self.opset < 11:
            return self.node("Clip", [x], min=0.0, max=6.0)
        return self.node("Clip", [x, self.constant(0.0, "float32"), self.constant(6.0, "float32")])

    def conv(self, step: Step) -> None:
        a = step.attrs
        depth = self.model.operands[step.inputs[0]].shape[1] // a["groups"]
        window = {"kernel_shape": a["kernel"], "strides": a["stride"], "dilations": a["dilation"], "pads": a["pads"]}
        shape = (a["channels"], depth, *a["kernel"])
        if self.model.form == "qlinear":
            made = Step(step.kind, step.inputs, step.outputs, {**a, "stored_bias": True})
            _, stored, bias, scales = self.layer(made, shape, 0, a["channels"])
            zero = self.constant(np.zeros(np.shape(scales), "int8"))
            (x,), (y,) = step.inputs, step.outputs
            given = [self.stored[x], *self.quantization(x), stored, self.constant(scales, "float32"), zero]
            given += [*self.quantization(y), *([bias] if bias else [])]
            self.leave(y, self.node("QLinearConv", given, group=a["groups"], **window), a["activation"])
            return
        real, _, bias, _ = self.layer(step, shape, 0, a["channels"])
        made = self.node("Conv", [*self.inputs(step), real, *([bias] if bias else [])], group=a["groups"], **window)
        self.done(step, self.activated(made, a["activation"]))

    depthwise = conv

    def leave(self, t: int, stored: str, activation: str | None) -> None:
        """Take stored integers as those of operand `t`, behind an activation."""
        real = self.node("DequantizeLinear", [stored, *self.quantization(t)])
        if activation is None:
            self.stored[t], self.real[t] = stored, real
        else:
            self.store(t, self.activated(real, activation))

    def deconv(self, step: Step) -> None:
        a = step.attrs
        depth = self.model.operands[step.inputs[0]].shape[1]
        real, _, bias, _ = self.layer(step, (depth, a["channels"], *a["kernel"]), 1, a["channels"])
        given = [*self.inputs(step), real, *([bias] if bias else [])]
        self.done(step, self.node("ConvTranspose", given, kernel_shape=a["kernel"], strides=a["stride"]))

    def dense(self, step: Step) -> None:
        a, rank = step.attrs, len(self.model.operands[step.inputs[0]].shape)
        depth = self.model.operands[step.inputs[0]].shape[-1]
        gemm = rank == 2 and a["weights"] % 2 and self.opset >= 11
        shape = (a["units"], depth) if gemm else (depth, a["units"])
        if self.model.form == "qlinear" and not a["bias"]:
            _, stored, _, scales = self.layer(step, (depth, a["units"]), 1, a["units"])
            zero = self.constant(np.zeros(np.shape(scales), "int8"))
            (x,), (y,) = step.inputs, step.outputs
            given = [self.stored[x], *self.quantization(x), stored, self.constant(scales, "float32"), zero]
            self.leave(y, self.node("QLinearMatMul", [*given, *self.quantization(y)]), a["activation"])
            return
        real, _, bias, _ = self.layer(step, shape, 0 if gemm else 1, a["units"])
        if gemm:
            made = self.node("Gemm", [*self.inputs(step), real, *([bias] if bias else [])], transB=1)
        else:
            made = self.node("MatMul", [*self.inputs(step), real])
            made = self.node("Add", [made, bias]) if bias else made
        self.done(step, self.activated(made, a["activation"]))

    def matmul(self, step: Step) -> None:
        self.done(step, self.node("MatMul", self.inputs(step)))

    def max_pool(self, step: Step) -> None:
        a = step.attrs
        self.done(
            step, self.node("MaxPool", self.inputs(step), kernel_shape=a["kernel"], strides=a["stride"], pads=a["pads"])
        )

    def avg_pool(self, step: Step) -> None:
        a = step.attrs
        window = {"kernel_shape": a["kernel"], "strides": a["stride"], "pads": a["pads"]}
        self.done(
            step, self.node("AveragePool", self.inputs(step), count_include_pad=int(a["count_include_pad"]), **window)
        )

    # Arithmetic.

    def unary(self, step: Step) -> None:
        (x,), op = self.inputs(step), step.attrs["op"]
        if op in _UNARY:
            made = self.node(_UNARY[op], [x])
        elif op == "relu6":
            made = self.clip(x)
        elif op == "leaky_relu":
            made = self.node("LeakyRelu", [x], alpha=0.125)
        elif op == "hard_swish" and self.opset >= 14:
            made = self.node("HardSwish", [x])
        elif op == "hard_swish":
            made = self.node("Mul", [x, self.node("HardSigmoid", [x], alpha=1 / 6, beta=0.5)])
        elif op == "square":
            made = self.node("Mul", [x, x])
        elif op in ("elu", "softplus", "erf"):
            made = self.node(op.title(), [x])
        elif op == "logs":
            made = self.node("Log", [self.node("Add", [self.node("Abs", [x]), self.constant(1.0, "float32")])])
        elif op == "gelu" and self.opset >= 20:
            made = self.node("Gelu", [x])
        elif op == "gelu":
            part = self.node("Erf", [self.node("Div", [x, self.constant(np.sqrt(2), "float32")])])
            part = self.node("Add", [part, self.constant(1.0, "float32")])
            made = self.node("Mul", [self.node("Mul", [x, part]), self.constant(0.5, "float32")])
        else:
            names = {"root": ("Abs", "Sqrt"), "exp_tanh": ("Tanh", "Exp")}[op]
            made = self.node(names[1], [self.node(names[0], [x])])
        self.done(step, made)

    def binary(self, step: Step) -> None:
        a, given = step.attrs, self.inputs(step)
        if "constant" in a:
            held = self.constant(np.random.default_rng(a["weights"]).uniform(0.5, 1.5, a["constant"]), "float32")
            if self.model.quantized:
                pair = [self.constant(1.5 / 255, "float32"), self.constant(0, "uint8")]
                array = np.random.default_rng(a["weights"]).integers(0, 256, a["constant"])
                held = self.node("DequantizeLinear", [self.constant(array, "uint8"), *pair])
            given = [held, *given] if a["left"] else [*given, held]
        self.done(step, self.activated(self.node(_BINARY[a["op"]], given), a["activation"]))

    def layer_norm(self, step: Step) -> None:
        a, shape = step.attrs, self.model.operands[step.inputs[0]].shape
        held = [self.constant(v) for v in drawn(a["weights"], shape[a["axis"] :])]
        given = [*self.inputs(step), *held[: 2 if a["bias"] else 1]]
        self.done(step, self.node("LayerNormalization", given, axis=a["axis"]))

    def group_norm(self, step: Step) -> None:
        held = [self.constant(v) for v in drawn(step.attrs["weights"], (step.attrs["groups"],))]
        self.done(step, self.node("InstanceNormalization", [*self.inputs(step), *held]))

    def prelu(self, step: Step) -> None:
        slopes = drawn(step.attrs["weights"], (self.model.operands[step.inputs[0]].shape[1], 1, 1))[0]
        self.done(step, self.node("PRelu", [*self.inputs(step), self.constant(slopes)]))

    def cumsum(self, step: Step) -> None:
        a = step.attrs
        how = {k: int(a[k]) for k in ("exclusive", "reverse")}
        self.done(step, self.node("CumSum", [*self.inputs(step), self.constant(a["axis"], "int64")], **how))

    def top_k(self, step: Step) -> None:
        a = step.attrs
        self.done(step, self.node("TopK", [*self.inputs(step), self.ints([a["k"]])], 2, axis=a["axis"])[0])

    def recurrent(self, step: Step) -> None:
        a, depth = step.attrs, self.model.operands[step.inputs[0]].shape[2]
        gates = 4 if a["op"] == "lstm" else 3
        shapes = [(1, gates * a["units"], e) for e in (depth, a["units"])]
        held = [self.constant(drawn(a["weights"] + k, shape)[1]) for k, shape in enumerate(shapes)]
        held.append(self.constant(drawn(a["weights"], (1, 2 * gates * a["units"]))[1]))
        made = self.node(a["op"].upper(), [*self.inputs(step), *held], hidden_size=a["units"])
        self.done(step, self.with_axes("Squeeze", made, [1], 13))

    def lookup(self, step: Step) -> None:
        a = step.attrs
        places = self.node("ArgMax", self.inputs(step), axis=a["axis"], keepdims=0)
        table = self.constant(drawn(a["weights"], (a["rows"], a["depth"]))[1])
        self.done(step, self.node("Gather", [table, places]))

    def softmax(self, step: Step) -> None:
        self.done(step, self.node("Softmax", self.inputs(step), axis=step.attrs["axis"]))

    def reduce(self, step: Step) -> None:
        a, (x,) = step.attrs, self.inputs(step)
        if (
            a["op"] == "mean"
            and a["axes"] == (2, 3)
            and a["keepdims"]
            and len(self.model.operands[step.inputs[0]].shape) == 4
        ):
            self.done(step, self.node("GlobalAveragePool", [x]))
            return
        since = 13 if a["op"] == "sum" else 18
        self.done(step, self.with_axes(_REDUCE[a["op"]], x, a["axes"], since, keepdims=int(a["keepdims"])))

    def choose(self, step: Step) -> None:
        x, y = self.inputs(step)
        self.done(step, self.node("Where", [self.node("Less", [x, y]), y, x]))

    def argmax(self, step: Step) -> None:
        self.done(step, self.node("ArgMax", self.inputs(step), axis=step.attrs["axis"], keepdims=0))

    def requantize(self, step: Step) -> None:
        self.done(step, *self.inputs(step))

    # Moves.

    def concat(self, step: Step) -> None:
        self.done(step, self.node("Concat", self.inputs(step), axis=step.attrs["axis"]))

    def stack(self, step: Step) -> None:
        axis = step.attrs["axis"]
        parts = [self.with_axes("Unsqueeze", x, [axis], 13) for x in self.inputs(step)]
        self.done(step, self.node("Concat", parts, axis=axis))

    def split(self, step: Step) -> None:
        (x,), a, count = self.inputs(step), step.attrs, len(step.outputs)
        if self.opset >= 13:
            made = self.node("Split", [x, self.ints(a["sizes"])], count, axis=a["axis"])
        else:
            made = self.node("Split", [x], count, axis=a["axis"], split=a["sizes"])
        self.done(step, *made)

    def slices(self, x: str, begin: Sequence[int], end: Sequence[int], axes: Sequence[int], step: Sequence[int]) -> str:
        if self.opset < 10:
            return self.node("Slice", [x], starts=begin, ends=end, axes=axes)
        return self.node("Slice", [x, *(self.ints(v) for v in (begin, end, axes, step))])

    def slice(self, step: Step) -> None:
        a, (x,) = step.attrs, self.inputs(step)
        self.done(step, self.slices(x, a["begin"], a["end"], range(len(a["begin"])), a["step"]))

    def reverse(self, step: Step) -> None:
        axes, (x,) = step.attrs["axes"], self.inputs(step)
        count = len(axes)
        self.done(step, self.slices(x, [-1] * count, [_BACK] * count, axes, [-1] * count))

    def gather(self, step: Step) -> None:
        indices = self.ints(step.attrs["indices"])
        self.done(step, self.node("Gather", [*self.inputs(step), indices], axis=step.attrs["axis"]))

    def pad(self, step: Step) -> None:
        widths, (x,) = step.attrs["widths"], self.inputs(step)
        pads = [*(a for a, _ in widths), *(b for _, b in widths)]
        if self.opset < 11:
            self.done(step, self.node("Pad", [x], pads=pads, mode=step.attrs["mode"]))
        else:
            self.done(step, self.node("Pad", [x, self.ints(pads)], mode=step.attrs["mode"]))

    def resize(self, step: Step) -> None:
        a, (x,) = step.attrs, self.inputs(step)
        before, after = (self.model.operands[t].shape for t in (step.inputs[0], step.outputs[0]))
        scales = self.constant([b / a for a, b in zip(before, after, strict=True)], "float32")
        if self.opset < 9:
            made = self.node(
                "Upsample", [x], scales=[b / a for a, b in zip(before, after, strict=True)], mode=a["mode"]
            )
        elif self.opset < 11:
            made = self.node("Upsample" if self.opset < 10 else "Resize", [x, scales], mode=a["mode"])
        else:
            how: Mapping[str, Any] = {"coordinate_transformation_mode": a["corners"], "mode": a["mode"]}
            how = {**how, "nearest_mode": "floor"} if a["mode"] == "nearest" else how
            empty = self.constant(np.zeros(0, "float32")) if self.opset < 13 else ""
            made = self.node("Resize", [x, empty, empty, self.ints(after)], **how)
        self.done(step, made)

    def transpose(self, step: Step) -> None:
        self.done(step, self.node("Transpose", self.inputs(step), perm=step.attrs["axes"]))

    def reshape(self, step: Step) -> None:
        self.done(step, self.node("Reshape", [*self.inputs(step), self.ints(step.attrs["shape"])]))

    def expand(self, step: Step) -> None:
        self.done(step, self.node("Expand", [*self.inputs(step), self.ints(step.attrs["shape"])]))

    def tile(self, step: Step) -> None:
        self.done(step, self.node("Tile", [*self.inputs(step), self.ints(step.attrs["times"])]))

    def depth_to_space(self, step: Step) -> None:
        self.done(step, self.node("DepthToSpace", self.inputs(step), blocksize=step.attrs["block"]))

    def space_to_depth(self, step: Step) -> None:
        self.done(step, self.node("SpaceToDepth", self.inputs(step), blocksize=step.attrs["block"]))
