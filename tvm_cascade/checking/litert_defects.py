"""Known defects in LiteRT's reference kernels, and models without these operators: the arbiter for `run --check`.

`_REPAIRS` rewrites an operator into operators that the reference computes as TFLite defines, or adds a field missing in
the file. `doubts` reports defects without a repair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from tvm_cascade.importers.tflite.model import coded_tensors, open_model

Model: TypeAlias = Any  # the schema's object tree


def repaired(data: bytes, like: str = "") -> tuple[bytes, tuple[str, ...]]:
    """Rewrite a model so that the reference is right, and return the model with the changes made; `data` itself if
    nothing changed. With `like` "tflm", fully connected layers become convolutions, which LiteRT rounds as TensorFlow Lite
    Micro rounds both.

    Raises whatever flatbuffers raises for a file that is no model.
    """
    from ai_edge_litert import schema_py_generated as schema

    model = object_tree(data)
    decoded = _decode(schema, model, coded_tensors(open_model(data)))
    repairs = {**_REPAIRS, **_OF_TFLM} if like == "tflm" else _REPAIRS
    notes = [note for graph in model.subgraphs or () for note in _Editor(schema, model, graph).repair(repairs)]
    return (packed(model), tuple(dict.fromkeys(notes))) if notes or decoded else (data, ())


def _decode(schema: Any, model: Model, coded: Mapping[tuple[int, int], bytes]) -> bool:
    """Give coded tensors their decoded data, without the operators and metadata of the code, which LiteRT lacks; return
    True if any is coded."""
    for (g, t), data in coded.items():
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(data, "uint8")
        model.buffers.append(buffer)
        model.subgraphs[g].tensors[t].buffer = len(model.buffers) - 1
    is_decode = [code.customCode in (b"TFLM_DECODE", "TFLM_DECODE") for code in model.operatorCodes or ()]
    for graph in model.subgraphs if coded else ():
        graph.operators = [op for op in graph.operators or () if not is_decode[op.opcodeIndex]]
    for k in (k for k, gone in enumerate(is_decode) if gone and coded):
        model.operatorCodes[k] = copy(model.operatorCodes[is_decode.index(False)]) if not all(is_decode) else None
    names = (b"COMPRESSION_METADATA", "COMPRESSION_METADATA")
    model.metadata = [m for m in model.metadata or () if m.name not in names] if coded else model.metadata
    return bool(coded)


def object_tree(data: bytes) -> Model:
    """Read the object tree of a file, constants behind the flatbuffer included: packing changes the flatbuffer's
    length.
    """
    from ai_edge_litert import schema_py_generated as schema

    model: Model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(bytearray(data), 0))
    for buffer in model.buffers or ():
        if buffer.offset > 1:
            buffer.data = np.frombuffer(data, "uint8", buffer.size, buffer.offset)
            buffer.offset = buffer.size = 0
    return model


def packed(model: Model) -> bytes:
    """Write an object tree as a file."""
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


class _Editor:
    """Editor for the operators of a subgraph."""

    def __init__(self, schema: Any, model: Model, graph: Any) -> None:
        self.schema, self._model, self._graph = schema, model, graph
        self.made: list[Any] = []
        self._names = {v: k for k, v in vars(schema.BuiltinOperator).items() if isinstance(v, int)}

    def repair(self, repairs: Mapping[str, Callable[[_Editor, Any], str]]) -> list[str]:
        """Rewrite every operator with a repair; return a note for each."""
        notes, old = [], list(self._graph.operators or ())
        for op in old:
            code = self._model.operatorCodes[op.opcodeIndex]
            name = self._names.get(max(code.builtinCode, code.deprecatedBuiltinCode), "")
            note = repairs[name](self, op) if name in repairs else ""
            notes += [f"{name}: {note}"] if note else []
            self.made.append(op)
        self._graph.operators = self.made
        return notes

    def tensor(self, index: int) -> Any:
        return self._graph.tensors[index]

    def kind(self, index: int) -> int:
        return int(self.tensor(index).type)

    def like(self, index: int, dtype: int, shift: int = 0) -> int:
        """Add a tensor of type `dtype` with the shape and quantization of tensor `index`, and the zero point moved by
        `shift`.
        """
        old, made = self.tensor(index), self.schema.TensorT()
        made.name, made.shape, made.shapeSignature = f"{len(self._graph.tensors)}", old.shape, old.shapeSignature
        made.type, made.buffer = dtype, 0
        if old.quantization is not None and old.quantization.scale is not None:
            made.quantization = self.schema.QuantizationParametersT()
            made.quantization.scale = old.quantization.scale
            made.quantization.zeroPoint = np.asarray(old.quantization.zeroPoint) + shift
        self._graph.tensors.append(made)
        return len(self._graph.tensors) - 1

    def new(self, shape: Sequence[int], dtype: int, scale: float | None = None, zero_point: int = 0) -> int:
        """Add a tensor, quantized if `scale` is given."""
        made = self.schema.TensorT()
        made.name, made.shape, made.type, made.buffer = (
            f"{len(self._graph.tensors)}",
            np.array(shape, "int32"),
            dtype,
            0,
        )
        if scale is not None:
            made.quantization = self.schema.QuantizationParametersT()
            made.quantization.scale = np.array([scale], "float32")
            made.quantization.zeroPoint = np.array([zero_point], "int64")
        self._graph.tensors.append(made)
        return len(self._graph.tensors) - 1

    def constant(self, data: np.ndarray, dtype: str = "float32", scale: float | None = None) -> int:
        """Add a constant."""
        index, buffer = (
            self.new(data.shape, getattr(self.schema.TensorType, dtype.upper()), scale),
            self.schema.BufferT(),
        )
        buffer.data = np.frombuffer(np.ascontiguousarray(data, dtype).tobytes(), "uint8")
        self._model.buffers.append(buffer)
        self.tensor(index).buffer = len(self._model.buffers) - 1
        return index

    def bytes(self, index: int) -> bytearray:
        """Return the bytes of a constant."""
        return bytearray(self._model.buffers[self.tensor(index).buffer].data)

    def data(self, index: int, dtype: str) -> np.ndarray:
        """Return the elements of a constant."""
        return np.frombuffer(bytes(self.bytes(index)), dtype).reshape(self.tensor(index).shape)

    def quantization(self, index: int) -> tuple[np.float32, int]:
        """Return the scale and zero point of a tensor quantized by one scale."""
        found = self.tensor(index).quantization
        return np.float32(found.scale[0]), int(found.zeroPoint[0])

    def reshaping(self, index: int, shape: Sequence[int]) -> list[int]:
        """Return the operands for a RESHAPE, which copies elements whatever the quantization."""
        return [index, self.constant(np.asarray(shape), "int32")]

    def before(self, name: str, inputs: list[int], output: int, options: str = "", **values: Any) -> int:
        """Add an operator before the repaired operator; return the output."""
        op, code = self.schema.OperatorT(), self.schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = getattr(self.schema.BuiltinOperator, name)
        code.version = 2 if name == "QUANTIZE" else 1
        self._model.operatorCodes.append(code)
        op.opcodeIndex = len(self._model.operatorCodes) - 1
        op.inputs, op.outputs = np.array(inputs, "int32"), np.array([output], "int32")
        if options:
            op.builtinOptionsType = getattr(self.schema.BuiltinOptions, options)
            op.builtinOptions = getattr(self.schema, f"{options}T")()
            for key, value in values.items():
                setattr(op.builtinOptions, key, value)
        self.made.append(op)
        return output


def _bias(edit: _Editor, op: Any) -> str:
    """Set the bias type to int32: without it the reference reads an int32 bias as int64."""
    types = edit.schema.TensorType
    if len(op.inputs) < 3 or op.inputs[2] < 0 or op.builtinOptions is None:
        return ""
    if edit.kind(op.inputs[0]) != types.INT16 or edit.kind(op.inputs[2]) != types.INT32:
        return ""
    if op.builtinOptions.quantizedBiasType == types.INT32:
        return ""
    op.builtinOptions.quantizedBiasType = types.INT32
    return "told that its bias has 32 bits"


def _dense(edit: _Editor, op: Any) -> str:
    """Repair a dense layer: weights with a scale for each block, in any other layer the bias (`_bias`)."""
    return _of_blocks(edit, op) or _bias(edit, op)


def unpacked(data: bytes | bytearray, bits: int) -> np.ndarray:
    """Read numbers of 2, 4 or 8 bits with signs, the first in the lowest bits of a byte: an int8 array of all in `data`."""
    raw = np.frombuffer(bytes(data), np.uint8)[:, None]
    first = np.arange(0, 8, bits, dtype=np.uint8)
    return ((raw >> first << (8 - bits)).astype(np.uint8).view(np.int8) >> (8 - bits)).reshape(-1)


def _of_blocks(edit: _Editor, op: Any) -> str:
    """Make floats of weights with a scale for each block: the reference gives zeros, or reads no scale."""
    types, weights = edit.schema.TensorType, int(op.inputs[1])
    held = edit.tensor(weights).quantization
    bits = {types.INT8: 8, types.INT4: 4, types.INT2: 2}.get(edit.kind(weights), 0)
    if held is None or held.detailsType != edit.schema.QuantizationDetails.BlockwiseQuantization or not bits:
        return ""
    shape = edit.tensor(weights).shape
    numbers = unpacked(edit.bytes(weights), bits)
    kind = {types.FLOAT16: "float16", types.FLOAT32: "float32"}[edit.kind(held.details.scales)]
    scales = edit.data(held.details.scales, kind).astype("float32").reshape(shape[0], -1)
    real = numbers[: np.prod(shape)].reshape(shape) * np.repeat(scales, held.details.blockSize, 1)
    op.inputs = np.array([op.inputs[0], edit.constant(real), *op.inputs[2:]], "int32")
    return "with float weights, of scales for blocks"


def _convolution(edit: _Editor, op: Any) -> str:
    """Store misread weights of a convolution in 8 bits, or else repair its bias (`_bias`)."""
    return _of_few_bits(edit, op) or _bias(edit, op)


def _of_few_bits(edit: _Editor, op: Any) -> str:
    """Store weights in 8 bits where the reference misreads those of 2, or those of 4 of a depthwise layer.

    It reads INT2 as bytes, and INT4 of depthwise layers of floats or int16.
    """
    types, x, weights = edit.schema.TensorType, int(op.inputs[0]), int(op.inputs[1])
    depthwise = isinstance(op.builtinOptions, edit.schema.DepthwiseConv2DOptionsT)
    misread = {types.INT2: 2} | ({types.INT4: 4} if depthwise and edit.kind(x) != types.INT8 else {})
    bits = misread.get(edit.kind(weights), 0)
    if not bits:
        return ""
    old = edit.tensor(weights)
    made = edit.constant(unpacked(edit.bytes(weights), bits)[: np.prod(old.shape)].reshape(old.shape), "int8")
    edit.tensor(made).quantization = old.quantization
    op.inputs = np.array([x, made, *op.inputs[2:]], "int32")
    return f"with weights of {bits} bits in 8"


def _batches(edit: _Editor, op: Any) -> str:
    """Multiply floats of several batch axes by a matrix of int8 weights as a single axis: scales of later batches are misread."""
    types, shape_of = edit.schema.TensorType, lambda index: tuple(int(d) for d in edit.tensor(index).shape)
    x, weights, y = int(op.inputs[0]), int(op.inputs[1]), int(op.outputs[0])
    lead, how = shape_of(x)[:-2], op.builtinOptions
    one = np.prod(shape_of(weights)[:-2], dtype=int) == 1
    if edit.kind(x) != types.FLOAT32 or edit.kind(weights) != types.INT8 or len(lead) < 2 or not one:
        return ""
    count = int(np.prod(lead))
    flat = edit.new((count, *shape_of(x)[-2:]), types.FLOAT32)
    edit.before("RESHAPE", edit.reshaping(x, shape_of(flat)), flat, "ReshapeOptions")
    matrix = edit.new((count, *shape_of(y)[-2:]), types.FLOAT32)
    edit.before("BATCH_MATMUL", [flat, weights], matrix, "BatchMatMulOptions", **({} if how is None else vars(how)))
    _become(edit, op, "RESHAPE", edit.reshaping(matrix, shape_of(y)), "ReshapeOptions")
    return "with one batch axis"


def _rounded_twice(edit: _Editor, op: Any) -> str:
    """Compute a fully connected layer by a 1x1 convolution of a single row, which is rounded twice.

    int16 are rounded once, by a multiplier of 16 bits.
    """
    types, shape_of = edit.schema.TensorType, lambda index: [int(d) for d in edit.tensor(index).shape]
    x, weights, *bias = (int(i) for i in op.inputs if i >= 0)
    if edit.kind(x) not in (types.INT8, types.INT16) or len(shape_of(weights)) != 2:
        return ""
    y, (units, depth), (x_scale, zero) = int(op.outputs[0]), shape_of(weights), edit.quantization(x)
    row = (1, 1, np.prod(shape_of(x), dtype=int) // depth, depth)
    quantization = copy(edit.tensor(weights).quantization)
    held = [edit.new(row, edit.kind(x), float(x_scale), zero)]
    edit.before("RESHAPE", edit.reshaping(x, row), held[0], "ReshapeOptions")
    if np.any(quantization.zeroPoint):  # of a tensor alone: the input twice, each with about half of w - zero point
        stored = edit.data(weights, "int8").astype("int16") - np.int16(quantization.zeroPoint[0])
        halves = np.concatenate([stored // 2, stored - stored // 2], axis=1)
        twice = edit.new((*row[:3], 2 * depth), edit.kind(x), float(x_scale), zero)
        held[0] = edit.before("CONCATENATION", held * 2, twice, "ConcatenationOptions", axis=3)
        kernel, depth = edit.constant(halves, "int8", float(quantization.scale[0])), 2 * depth
    else:
        edit._graph.tensors.append(copy(edit.tensor(weights)))
        kernel = len(edit._graph.tensors) - 1
        edit.tensor(kernel).quantization, edit.tensor(kernel).name = quantization, f"{kernel}"
    edit.tensor(kernel).shape, edit.tensor(kernel).shapeSignature = [units, 1, 1, depth], None
    edit.tensor(kernel).quantization.quantizedDimension = 0
    held.append(kernel)
    wide = edit.kind(x) == types.INT16
    held += bias or [edit.constant(np.zeros(units), "int64" if wide else "int32", 1.0)]
    y_scale, y_zero = edit.quantization(y)
    made = edit.new((*row[:3], units), edit.kind(y), float(y_scale), y_zero)
    how = {"fusedActivationFunction": op.builtinOptions.fusedActivationFunction if op.builtinOptions is not None else 0}
    edit.before("CONV_2D", held, made, "Conv2DOptions", **_WINDOW, **how)
    _become(edit, op, "RESHAPE", edit.reshaping(made, shape_of(y)), "ReshapeOptions")
    return "rounded twice, as in TensorFlow Lite Micro"


def _sum(edit: _Editor, op: Any) -> str:
    """Sum int8 as uint8: the reference reads signed bytes as unsigned."""
    types, inputs, outputs = edit.schema.TensorType, list(op.inputs), list(op.outputs)
    if edit.kind(inputs[0]) != types.INT8 or edit.tensor(inputs[0]).quantization is None:
        return ""
    x, y = edit.like(inputs[0], types.UINT8, 128), edit.like(outputs[0], types.UINT8, 128)
    edit.before("QUANTIZE", inputs[:1], x, "QuantizeOptions")
    options = {"keepDims": op.builtinOptions.keepDims if op.builtinOptions is not None else False}
    edit.before("SUM", [x, *inputs[1:]], y, "ReducerOptions", **options)
    _become(edit, op, "QUANTIZE", [y], "QuantizeOptions")
    return "of int8 computed as of uint8"


def _response(edit: _Editor, op: Any) -> str:
    """Compute the windows by a convolution that sums squares: the reference leaves the last channel out."""
    x, how = int(op.inputs[0]), op.builtinOptions
    if edit.kind(x) != edit.schema.TensorType.FLOAT32:
        return ""
    channels = np.arange(int(edit.tensor(x).shape[-1]))
    band = np.abs(channels[:, None] - channels) <= how.radius
    square, total, power = (edit.like(x, edit.schema.TensorType.FLOAT32) for _ in range(3))
    edit.before("MUL", [x, x], square, "MulOptions")
    weights = edit.constant((how.alpha * band).reshape(len(channels), 1, 1, len(channels)))
    bias = edit.constant(np.full(len(channels), how.bias))
    edit.before("CONV_2D", [square, weights, bias], total, "Conv2DOptions", **_WINDOW)
    edit.before("POW", [total, edit.constant(np.array([-how.beta]))], power)
    _become(edit, op, "MUL", [x, power], "MulOptions")
    return "computed by TensorFlow's definition"


_LARGE = 1 << 16  # numbers that a float network hardly reaches


def _quantize(edit: _Editor, op: Any) -> str:
    """Clip floats before QUANTIZE, and quantize 8 bits to 32 by way of 16.

    The reference casts numbers beyond 2^31 steps to the least integer, whatever the sign, and adds the zero point.
    TFLite Micro also quantizes 8 bits to 32, which LiteRT refuses.
    """
    types, x, y = edit.schema.TensorType, int(op.inputs[0]), int(op.outputs[0])
    scales = [q.scale for q in (edit.tensor(x).quantization, edit.tensor(y).quantization) if q is not None]
    if edit.kind(y) == types.INT32 and edit.kind(x) in (types.INT8, types.UINT8) and len(scales) == 2:
        middle = edit.like(x, types.INT16, -int(edit.tensor(x).quantization.zeroPoint[0]))
        op.inputs = np.array([edit.before("QUANTIZE", [x], middle, "QuantizeOptions")], "int32")
        return "of 8 bits to 32 computed by way of 16"
    if edit.kind(x) != types.FLOAT32 or not scales or (1 << 31) * float(scales[-1][0]) > _LARGE:
        return ""
    below, bounded = (edit.like(x, types.FLOAT32) for _ in range(2))
    most = np.array([(1 << 30) * float(scales[-1][0])])
    edit.before("MINIMUM", [x, edit.constant(most)], below, "MaximumMinimumOptions")
    edit.before("MAXIMUM", [below, edit.constant(-most)], bounded, "MaximumMinimumOptions")
    op.inputs = np.array([bounded], "int32")
    return "told numbers within 2^30 steps"


_WINDOW = {"padding": 1, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}


def _svdf(edit: _Editor, op: Any) -> str:
    """Convert an int8 state to int16, with the features computed by a 1x1 convolution in int8.

    TensorFlow Lite Micro has int8 time weights and states; LiteRT reads them as int16, beyond the end.
    """
    types, out = edit.schema.TensorType, int(op.outputs[0])
    x, features, times, bias, state = (int(i) for i in op.inputs)
    if edit.kind(x) != types.INT8 or edit.kind(times) != types.INT8:
        return ""
    weights = edit.data(features, "int8")
    (batch, depth), count = edit.tensor(x).shape, len(weights)
    scales, zeros = zip(*(edit.quantization(i) for i in (x, features, state, times, out)), strict=True)
    seen = edit.new((batch, 1, 1, depth), types.INT8, scales[0] * scales[1] / scales[2], zeros[0])
    edit.before("RESHAPE", edit.reshaping(x, (batch, 1, 1, depth)), seen, "ReshapeOptions")
    kernel = edit.constant(weights.reshape(count, 1, 1, depth), "int8", 1.0)
    pixel, row = (edit.new(shape, types.INT8, 1.0, zeros[2]) for shape in ((batch, 1, 1, count), (batch, count)))
    held = [seen, kernel, edit.constant(np.zeros(count), "int32", float(edit.quantization(seen)[0]))]
    edit.before("CONV_2D", held, pixel, "Conv2DOptions", **_WINDOW)
    edit.before("RESHAPE", edit.reshaping(pixel, (batch, count)), row, "ReshapeOptions")
    kept = edit.new(tuple(edit.tensor(state).shape), types.INT16, 1.0)
    edit.tensor(kept).isVariable = True
    later = edit.constant(edit.data(times, "int8"), "int16", float(scales[2] * scales[3]))
    op.inputs = np.array([row, edit.constant(np.eye(count), "int8", 1.0), later, bias, kept], "int32")
    return "with a state of int8 computed as one of int16"


def _both_ways(edit: _Editor, op: Any) -> str:
    """Merge both directions of a batch by a concatenation: the reference reads beyond states and outputs there."""
    how, shape = op.builtinOptions, edit.tensor(op.outputs[0]).shape
    if how is None or how.timeMajor or not how.mergeOutputs or shape[0] < 2:
        return ""
    ways = [edit.new((*shape[:2], edit.tensor(op.inputs[k]).shape[1]), edit.kind(op.outputs[0])) for k in (35, 37)]
    first = copy(op)
    first.builtinOptions = copy(how)
    first.builtinOptions.mergeOutputs, first.outputs = False, np.array(ways, "int32")
    edit.made.append(first)
    _become(edit, op, "CONCATENATION", ways, "ConcatenationOptions", axis=2)
    return "merged by a concatenation"


def _become(edit: _Editor, op: Any, name: str, inputs: list[int], options: str, **values: Any) -> None:
    """Make `op` another operator, with the same output."""
    edit.before(name, inputs, int(op.outputs[0]), options, **values)
    made = edit.made.pop()
    op.opcodeIndex, op.inputs = made.opcodeIndex, made.inputs
    op.builtinOptionsType, op.builtinOptions = made.builtinOptionsType, made.builtinOptions


_REPAIRS: Mapping[str, Callable[[_Editor, Any], str]] = MappingProxyType(
    {
        "BATCH_MATMUL": _batches,
        "BIDIRECTIONAL_SEQUENCE_LSTM": _both_ways,
        "FULLY_CONNECTED": _dense,
        "EMBEDDING_LOOKUP": _of_blocks,
        "CONV_2D": _convolution,
        "DEPTHWISE_CONV_2D": _of_few_bits,
        "SUM": _sum,
        "LOCAL_RESPONSE_NORMALIZATION": _response,
        "QUANTIZE": _quantize,
        "SVDF": _svdf,
    }
)
_OF_TFLM: Mapping[str, Callable[[_Editor, Any], str]] = {"FULLY_CONNECTED": _rounded_twice}


Tensor: TypeAlias = Mapping[str, Any]  # what the interpreter tells of one


def _no_meaning(operands: Sequence[Tensor], _made: Tensor) -> bool:
    return any(np.dtype(t["dtype"]).itemsize == 1 and t["quantization"][0] >= 1 for t in operands)


def _overflows(operands: Sequence[Tensor], made: Tensor) -> bool:
    scale, out = operands[0]["quantization"][0], made["quantization"][0]
    return bool(operands[0]["dtype"] is np.int16 and out and scale / out >= 1 << 14)


def _shifts(operands: Sequence[Tensor], made: Tensor) -> bool:
    scale, out = operands[0]["quantization"][0], made["quantization"][0]
    return bool(operands[0]["dtype"] is np.int8 and np.sqrt(scale) * out > 1 << 12)


def _is_infinite(operands: Sequence[Tensor], _made: Tensor) -> bool:
    largest = operands[0]["quantization"][0] * np.iinfo("int16").max
    return bool(operands[0]["dtype"] is np.int16 and largest > np.log(np.finfo("float32").max))


_UNREPAIRED: Mapping[str, tuple[Callable[[Sequence[Tensor], Tensor], bool], str]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"),
            (_no_meaning, "has no meaning where a scale is 1 or more"),
        ),
        "SUM": (lambda operands, _: operands[0]["dtype"] is np.int16, "reads int16 as unsigned bytes"),
        "LEAKY_RELU": (_overflows, "of int16 overflows where scales are so far apart"),
        "EXP": (_is_infinite, "of int16 casts infinity to an integer where scales are so large"),
        "RSQRT": (_shifts, "of int8 shifts by more than 31 bits where scales are so large"),
    }
)


def doubts(interpreter: Any) -> str:
    """Return the defect without a repair (`_UNREPAIRED`) that affects this model; "" if there is none."""
    tensors = {d["index"]: d for d in interpreter.get_tensor_details()}
    for operator in interpreter._get_ops_details():
        name, operands = operator["op_name"], [tensors[index] for index in operator["inputs"] if index in tensors]
        if name in _UNREPAIRED and operands:
            wrong, said = _UNREPAIRED[name]
            if wrong(operands, tensors[operator["outputs"][0]]):
                return f"LiteRT's reference {name} {said}"
    return ""
