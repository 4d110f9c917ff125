"""A `RandomModel` as a `.tflite` file."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tvm_cascade.testing.random_models.model import RandomModel, Step, Weights, drawn, weights
from tvm_cascade.testing.tflite import ModelWriter

_ACTIVATIONS = {None: 0, "relu": 1, "relu6": 3}
_BINARY = {"add": ("ADD", "AddOptions"), "sub": ("SUB", "SubOptions"), "mul": ("MUL", "MulOptions"),
           "div": ("DIV", "DivOptions"), "maximum": ("MAXIMUM", "MaximumMinimumOptions"),
           "minimum": ("MINIMUM", "MaximumMinimumOptions")}  # fmt: skip
_UNARY = {"relu": ("RELU", None), "relu6": ("RELU6", None), "sigmoid": ("LOGISTIC", None), "tanh": ("TANH", None),
          "hard_swish": ("HARD_SWISH", "HardSwishOptions"), "abs": ("ABS", "AbsOptions"), "neg": ("NEG", "NegOptions"),
          "square": ("SQUARE", "SquareOptions"), "sin": ("SIN", None)}  # fmt: skip
_REDUCE = {"mean": "MEAN", "sum": "SUM", "max": "REDUCE_MAX", "min": "REDUCE_MIN"}


def tflite_bytes(model: RandomModel) -> bytes:
    """Return the file's bytes."""
    return _Writer(model).file()


class _Writer:
    def __init__(self, model: RandomModel) -> None:
        self.model, self.w, self.form = model, ModelWriter(), model.form
        self.tensors: dict[int, int] = {}
        self.shared: dict[Any, int] = {}  # constants by what they are made of

    def file(self) -> bytes:
        for t in self.model.inputs:
            self.tensors[t] = self.w.activation(self.model.operands[t].shape, self.form, *self.quantization(t))
        for step in self.model.steps:
            getattr(self, step.kind)(
                step, [self.tensors[t] for t in step.inputs], [self.tensor(t) for t in step.outputs]
            )
        self.w.outputs = [self.tensors[t] for t in self.model.outputs]
        return self.w.finish()

    def quantization(self, t: int) -> tuple[float, int]:
        return self.model.operands[t].scale, self.model.operands[t].zero_point

    def tensor(self, t: int) -> int:
        operand = self.model.operands[t]
        if operand.kind == "index":
            self.tensors[t] = self.w.tensor(operand.shape, "int32")
        else:
            self.tensors[t] = self.w.tensor(operand.shape, self.form, *self.quantization(t))
        return self.tensors[t]

    def inner(self, like: int, shape: Any = None, kind: str | None = None) -> int:
        """Add a tensor on the way, of the quantization of operand `like`."""
        operand = self.model.operands[like]
        shape = operand.shape if shape is None else shape
        if kind:
            return self.w.tensor(shape, kind)
        return self.w.tensor(shape, self.form, *self.quantization(like))

    def ints(self, values: Any) -> int:
        return self.w.constant(np.asarray(values, "int32"))

    def op(self, name: str, inputs: list[int], outputs: list[int], options: str | None = None, **values: Any) -> None:
        self.w.operator(name, inputs, outputs, options, inner=True, **values)

    # Layers.

    def parameters(self, step: Step, shape: tuple[int, ...], axis: int, channels: int) -> tuple[int, int]:
        """Return the constants of weights and biases. Layers without biases have zeros, which convolutions require."""
        made, (x,) = weights(step.attrs["weights"], shape, axis, channels, step.attrs["terms"]), step.inputs
        key = (step.kind, step.attrs["weights"], shape)
        if key not in self.shared:
            self.shared[key] = self.filters(made, axis)
        biases = made.bias if step.attrs["bias"] else np.zeros(channels)
        if self.form == "float32":
            return self.shared[key], self.w.constant(biases.astype("float32"))
        scales = made.scales if self.form != "uint8" else np.full(1, made.scales.max(), "float32")
        scale = (scales * np.float32(self.model.operands[x].scale)).astype("float32")
        data = np.round(biases / scale).astype("int64" if self.form == "int16" else "int32")
        return self.shared[key], self.w.tensor(data.shape, str(data.dtype), scale, 0, data=data)

    def filters(self, made: Weights, axis: int) -> int:
        if self.form == "float32":
            return self.w.constant(made.real(axis))
        if self.form == "uint8":
            scale = float(made.scales.max())
            return self.w.constant((made.stored.astype("int16") + 128).astype("uint8"), scale, 128)
        return self.w.tensor(made.stored.shape, "int8", made.scales, 0, axis=axis, data=made.stored)

    def conv(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        a = step.attrs
        depth = self.model.operands[step.inputs[0]].shape[3] // a["groups"]
        filters, bias = self.parameters(step, (a["channels"], *a["kernel"], depth), 0, a["channels"])
        self.op("CONV_2D", [*inputs, filters, bias], outputs, "Conv2DOptions", **_window(a))

    def depthwise(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        a = step.attrs
        filters, bias = self.parameters(step, (1, *a["kernel"], a["channels"]), 3, a["channels"])
        options = {**_window(a), "depthMultiplier": a["channels"] // a["groups"]}
        self.op("DEPTHWISE_CONV_2D", [*inputs, filters, bias], outputs, "DepthwiseConv2DOptions", **options)

    def deconv(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        a, shape = step.attrs, self.model.operands[step.outputs[0]].shape
        depth = self.model.operands[step.inputs[0]].shape[3]
        filters, bias = self.parameters(step, (a["channels"], *a["kernel"], depth), 0, a["channels"])
        given = [self.ints(shape), filters, *inputs, *([bias] if a["bias"] else [])]
        how = {"padding": 1, "strideH": a["stride"][0], "strideW": a["stride"][1]}
        self.op("TRANSPOSE_CONV", given, outputs, "TransposeConvOptions", version=3, **how)

    def dense(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        a, depth = step.attrs, self.model.operands[step.inputs[0]].shape[-1]
        filters, bias = self.parameters(step, (a["units"], depth), 0, a["units"])
        keep = len(self.model.operands[step.inputs[0]].shape) > 2
        how = {"fusedActivationFunction": _ACTIVATIONS[a["activation"]], "keepNumDims": keep}
        given = [*inputs, filters, bias if a["bias"] else -1]
        self.op("FULLY_CONNECTED", given, outputs, "FullyConnectedOptions", version=5, **how)

    def matmul(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        self.op("BATCH_MATMUL", inputs, outputs, "BatchMatMulOptions", adjX=False, adjY=False)

    def _pool(self, step: Step, inputs: list[int], outputs: list[int], name: str) -> None:
        a, window = step.attrs, _window(step.attrs)
        how = {k: window[k] for k in ("padding", "strideH", "strideW")}
        self.op(name, inputs, outputs, "Pool2DOptions", filterHeight=a["kernel"][0], filterWidth=a["kernel"][1], **how)

    def max_pool(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        self._pool(step, inputs, outputs, "MAX_POOL_2D")

    def avg_pool(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        self._pool(step, inputs, outputs, "AVERAGE_POOL_2D")

    # Arithmetic.

    def unary(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        op = step.attrs["op"]
        if op == "leaky_relu":
            self.op("LEAKY_RELU", inputs, outputs, "LeakyReluOptions", alpha=0.125)
        elif op in ("root", "exp_tanh"):  # of what keeps them finite
            names = {"root": ("ABS", "SQRT"), "exp_tanh": ("TANH", "EXP")}[op]
            between = self.inner(step.outputs[0])
            self.op(names[0], inputs, [between])
            self.op(names[1], [between], outputs)
        elif op == "gelu":
            self.op("GELU", inputs, outputs, "GeluOptions", approximate=False)
        elif op == "logs":
            between = [self.inner(step.outputs[0]) for _ in range(2)]
            self.op("ABS", inputs, between[:1], "AbsOptions")
            self.op("ADD", [between[0], self.w.constant(np.array(1, "float32"))], between[1:], "AddOptions")
            self.op("LOG", between[1:], outputs)
        else:
            name, options = _UNARY[op]
            self.op(name, inputs, outputs, options)

    def binary(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        a = step.attrs
        if "constant" in a:
            inputs = [self.operand_constant(step), *inputs] if a["left"] else [*inputs, self.operand_constant(step)]
        name, options = _BINARY[a["op"]]
        values: dict[str, Any] = {"potScaleInt16": False} if a["op"] in ("add", "sub") else {}
        if a["op"] not in ("maximum", "minimum"):
            values["fusedActivationFunction"] = _ACTIVATIONS[a["activation"]]
        self.op(name, inputs, outputs, options, **values)

    def operand_constant(self, step: Step) -> int:
        rng, shape = np.random.default_rng(step.attrs["weights"]), step.attrs["constant"]
        if self.form == "float32":
            return self.w.constant(rng.uniform(0.5, 1.5, shape).astype("float32"))
        info = np.iinfo(self.form)
        zero = 0 if self.form == "int16" else int(rng.integers(info.min, info.max + 1))
        return self.w.constant(rng.integers(info.min, info.max + 1, shape).astype(self.form), 1.5 / info.max, zero)

    def prelu(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        slopes = drawn(step.attrs["weights"], (1, 1, self.model.operands[step.inputs[0]].shape[3]))[0]
        self.op("PRELU", [*inputs, self.w.constant(slopes)], outputs)

    def cumsum(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        how = {k: step.attrs[k] for k in ("exclusive", "reverse")}
        self.op("CUMSUM", [*inputs, self.ints(step.attrs["axis"])], outputs, "CumsumOptions", **how)

    def top_k(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        places = self.w.tensor(self.model.operands[step.outputs[0]].shape, "int32")
        self.op("TOPK_V2", [*inputs, self.ints(step.attrs["k"])], [*outputs, places], "TopKV2Options")

    def lookup(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        a, shape = step.attrs, self.model.operands[step.outputs[0]].shape
        places = self.w.tensor(shape[:-1], "int32")
        self.op("ARG_MAX", [*inputs, self.ints(a["axis"])], [places], "ArgMaxOptions", outputType=2)
        table = self.w.constant(drawn(a["weights"], (a["rows"], a["depth"]))[1])
        self.op("GATHER", [table, places], outputs, "GatherOptions", axis=0)

    def softmax(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        self.op("SOFTMAX", inputs, outputs, "SoftmaxOptions", beta=1.0)

    def reduce(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        a = step.attrs
        self.op(_REDUCE[a["op"]], [*inputs, self.ints(a["axes"])], outputs, "ReducerOptions", keepDims=a["keepdims"])

    def choose(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        flag = self.inner(step.outputs[0], kind="bool")
        self.op("LESS", inputs, [flag], "LessOptions")
        self.op("SELECT_V2", [flag, *inputs[::-1]], outputs, "SelectV2Options")

    def argmax(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        axis = self.ints(step.attrs["axis"])
        self.op("ARG_MAX", [*inputs, axis], outputs, "ArgMaxOptions", outputType=2)

    def requantize(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        self.op("QUANTIZE", inputs, outputs, "QuantizeOptions")

    # Moves.

    def concat(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        self.op("CONCATENATION", inputs, outputs, "ConcatenationOptions", axis=step.attrs["axis"])

    def stack(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        self.op("PACK", inputs, outputs, "PackOptions", axis=step.attrs["axis"], valuesCount=len(inputs))

    def split(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        given = [*inputs, self.ints(step.attrs["sizes"]), self.ints(step.attrs["axis"])]
        self.op("SPLIT_V", given, outputs, "SplitVOptions", numSplits=len(outputs))

    def slice(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        a = step.attrs
        if max(a["step"]) == 1 and a["begin"][0] % 2:
            sizes = [e - b for b, e in zip(a["begin"], a["end"], strict=True)]
            self.op("SLICE", [*inputs, self.ints(a["begin"]), self.ints(sizes)], outputs, "SliceOptions")
            return
        bounds = [self.ints(a[k]) for k in ("begin", "end", "step")]
        self.op("STRIDED_SLICE", [*inputs, *bounds], outputs, "StridedSliceOptions")

    def gather(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        indices = self.ints(step.attrs["indices"])
        self.op("GATHER", [*inputs, indices], outputs, "GatherOptions", axis=step.attrs["axis"])

    def pad(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        widths = self.ints(step.attrs["widths"])
        if step.attrs["mode"] == "reflect":
            self.op("MIRROR_PAD", [*inputs, widths], outputs, "MirrorPadOptions", mode=0)
        else:
            self.op("PAD", [*inputs, widths], outputs, "PadOptions")

    def resize(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        a = step.attrs
        name, options = ("RESIZE_BILINEAR", "ResizeBilinearOptions")
        if a["mode"] == "nearest":
            name, options = "RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions"
        how = {"alignCorners": a["corners"] == "align_corners", "halfPixelCenters": a["corners"] == "half_pixel"}
        self.op(name, [*inputs, self.ints(a["size"])], outputs, options, version=3, **how)

    def transpose(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        self.op("TRANSPOSE", [*inputs, self.ints(step.attrs["axes"])], outputs, "TransposeOptions")

    def reshape(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        shape = step.attrs["shape"]
        source = self.model.operands[step.inputs[0]].shape
        if (
            prod(shape)
            and len(shape) == len(source) + 1
            and [e for e in shape if e != 1] == [e for e in source if e != 1]
        ):
            axis = next(
                (k for k in range(len(shape)) if shape[k] == 1 and (*shape[:k], *shape[k + 1 :]) == source), None
            )
            if axis is not None:
                self.op("EXPAND_DIMS", [*inputs, self.ints(axis)], outputs, "ExpandDimsOptions")
                return
        self.op("RESHAPE", [*inputs, self.ints(shape)], outputs, "ReshapeOptions", newShape=np.array(shape, "int32"))

    def expand(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        self.op("BROADCAST_TO", [*inputs, self.ints(step.attrs["shape"])], outputs, "BroadcastToOptions", version=3)

    def tile(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        self.op("TILE", [*inputs, self.ints(step.attrs["times"])], outputs, "TileOptions")

    def reverse(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        self.op("REVERSE_V2", [*inputs, self.ints(step.attrs["axes"])], outputs, "ReverseV2Options", version=3)

    def depth_to_space(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        self.op("DEPTH_TO_SPACE", inputs, outputs, "DepthToSpaceOptions", blockSize=step.attrs["block"])

    def space_to_depth(self, step: Step, inputs: list[int], outputs: list[int]) -> None:
        self.op("SPACE_TO_DEPTH", inputs, outputs, "SpaceToDepthOptions", blockSize=step.attrs["block"])


def _window(attrs: Any) -> dict[str, Any]:
    made = {"padding": 0 if attrs["padding"] == "same" else 1}
    made |= {"strideH": attrs["stride"][0], "strideW": attrs["stride"][1]}
    made |= {"dilationHFactor": attrs["dilation"][0], "dilationWFactor": attrs["dilation"][1]}
    return made | {"fusedActivationFunction": _ACTIVATIONS[attrs.get("activation")]}
