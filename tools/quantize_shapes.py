"""Post-training quantization of the demo's network, and the `.tflite` file."""

from __future__ import annotations

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from train_shapes import Layer, forward

ADD, CONV_2D, DEPTHWISE_CONV_2D, FULLY_CONNECTED, SOFTMAX, MEAN = 0, 3, 4, 9, 25, 40
INT8, INT32 = 9, 2


class _File:
    """One subgraph under construction."""

    def __init__(self) -> None:
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.description = "shapes: circle, square, triangle, cross, ring, star"
        self.model.operatorCodes, self.model.buffers = [], [schema.BufferT()]
        self.graph = schema.SubGraphT()
        self.graph.name, self.graph.tensors, self.graph.operators = "main", [], []
        self.model.subgraphs = [self.graph]
        self.codes: dict[int, int] = {}

    def tensor(self, name, shape, dtype, scale=None, zero=0, axis=0, data=None) -> int:
        t = schema.TensorT()
        t.name, t.shape, t.type = name, np.array(shape, np.int32), dtype
        if scale is not None:
            q = schema.QuantizationParametersT()
            q.scale = np.atleast_1d(np.asarray(scale, np.float32))
            q.zeroPoint = np.full(q.scale.shape, zero, np.int64)
            q.quantizedDimension = axis
            t.quantization = q
        buffer = schema.BufferT()
        if data is not None:
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        self.model.buffers.append(buffer)
        t.buffer = len(self.model.buffers) - 1
        self.graph.tensors.append(t)
        return len(self.graph.tensors) - 1

    def op(self, code: int, ins, out: int, options: str, **fields) -> None:
        if code not in self.codes:
            c = schema.OperatorCodeT()
            c.builtinCode = c.deprecatedBuiltinCode = code
            c.version = 1
            self.codes[code] = len(self.model.operatorCodes)
            self.model.operatorCodes.append(c)
        o = schema.OperatorT()
        o.opcodeIndex = self.codes[code]
        o.inputs, o.outputs = np.array(ins, np.int32), np.array([out], np.int32)
        o.builtinOptionsType = getattr(schema.BuiltinOptions, options)
        o.builtinOptions = getattr(schema, f"{options}T")()
        for key, value in fields.items():
            setattr(o.builtinOptions, key, value)
        self.graph.operators.append(o)

    def bytes(self, inputs: list[int], outputs: list[int]) -> bytes:
        self.graph.inputs, self.graph.outputs = np.array(inputs, np.int32), np.array(outputs, np.int32)
        builder = flatbuffers.Builder(1 << 16)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def _range(a: np.ndarray, relu: bool) -> tuple[float, int]:
    """Scale and zero point of an activation."""
    lo, hi = min(float(a.min()), 0.0), max(float(a.max()), 0.0)
    lo = 0.0 if relu else lo
    scale = np.float32((hi - lo) / 255)
    return float(scale), int(np.clip(round(-128 - lo / float(scale)), -128, 127))


def _weights(w: np.ndarray, axis: int | None) -> tuple[np.ndarray, np.ndarray]:
    """int8 weights and their scales, per channel along `axis` or per tensor."""
    over = None if axis is None else tuple(i for i in range(w.ndim) if i != axis)
    peak = np.abs(w).max(axis=over, keepdims=True)
    scale = np.maximum(peak / 127, 1e-9).astype(np.float32)
    return np.clip(np.round(w / scale), -127, 127).astype(np.int8), scale.reshape(-1)


def write(net: list[Layer], images: np.ndarray) -> bytes:
    """The network as a quantized `.tflite` file; activation ranges from `images`."""
    acts = forward(net, images - 0.5)
    f = _File()
    quant = [(1 / 255, 0)]  # an 8-bit pixel less 128
    ids = [f.tensor("image", acts[0][:1].shape, INT8, *quant[0])]
    for i, layer in enumerate(net):
        y = acts[i + 1]
        quant.append(_range(y, layer.relu))
        ids.append(f.tensor(f"{layer.kind}_{i}", (1, *y.shape[1:]), INT8, *quant[-1]))
        act, source, target = int(layer.relu), ids[i], ids[i + 1]
        if layer.kind == "add":
            f.op(ADD, [source, ids[layer.skip + 1]], target, "AddOptions", fusedActivationFunction=act)
            continue
        if layer.kind == "mean":
            axes = f.tensor("axes", (2,), INT32, data=np.array([1, 2], np.int32))
            f.op(MEAN, [source, axes], target, "ReducerOptions", keepDims=False)
            continue
        if layer.kind == "dense":
            (w, ws), axis = _weights(layer.w.T, None), 0
        elif layer.kind == "dw":
            (w, ws), axis = _weights(layer.w[None], 3), 3
        else:
            (w, ws), axis = _weights(layer.w.transpose(3, 0, 1, 2), 0), 0
        weights = f.tensor(f"w_{i}", w.shape, INT8, ws, axis=axis, data=w)
        bs = np.float32(quant[i][0]) * ws
        bias = f.tensor(f"b_{i}", layer.b.shape, INT32, bs, data=np.round(layer.b / bs).astype(np.int32))
        common = {"fusedActivationFunction": act, "padding": 0, "strideW": layer.stride, "strideH": layer.stride}
        if layer.kind == "conv":
            f.op(CONV_2D, [source, weights, bias], target, "Conv2DOptions", **common)
        elif layer.kind == "dw":
            f.op(
                DEPTHWISE_CONV_2D,
                [source, weights, bias],
                target,
                "DepthwiseConv2DOptions",
                depthMultiplier=1,
                **common,
            )
        else:
            f.op(FULLY_CONNECTED, [source, weights, bias], target, "FullyConnectedOptions", fusedActivationFunction=0)
    scores = f.tensor("scores", (1, acts[-1].shape[1]), INT8, 1 / 256, -128)
    f.op(SOFTMAX, [ids[-1]], scores, "SoftmaxOptions", beta=1.0)
    return f.bytes([ids[0]], [scores])
