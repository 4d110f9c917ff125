"""Writes `.tflite` files of a few operators, for tests; needs no TensorFlow, only the flatbuffer schema of the `test`
extra.

A `ModelWriter` may hold many independent operators, each with inputs and outputs of its own: one file, one
compilation and one run of the oracle for tens of cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np

ELEMENT_TYPES = {
    "float32": 0,
    "float16": 1,
    "bfloat16": 18,
    "int32": 2,
    "uint8": 3,
    "int64": 4,
    "bool": 6,
    "int16": 7,
    "complex64": 8,
    "int8": 9,
    "resource": 13,
}


@dataclass(slots=True)
class ModelWriter:
    """Collects tensors and operators in the order in which they are added. Tensors are named by their index."""

    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    _tensors: list[Any] = field(default_factory=list)
    _operators: list[Any] = field(default_factory=list)
    _codes: list[Any] = field(default_factory=list)
    _buffers: list[Any] = field(default_factory=list)
    _bodies: list[ModelWriter] = field(default_factory=list)

    def tensor(
        self,
        shape: Sequence[int],
        dtype: str,
        scale: float | np.ndarray | None = None,
        zero_point: int = 0,
        *,
        axis: int = 0,
        data: np.ndarray | None = None,
        name: str | None = None,
        variable: bool = False,
        signature: Sequence[int] | None = None,
    ) -> int:
        """Adds a tensor; returns its index. `data` makes it a constant, many `scale`s quantize it along `axis`; floats
        have none. `signature` is the shape with -1 for extents that the file leaves open."""
        schema = _schema()
        scale = None if dtype == "float32" else scale
        tensor = schema.TensorT()
        tensor.name = name if name is not None else f"t{len(self._tensors)}"
        tensor.shape = np.array(shape, "int32")
        tensor.shapeSignature = None if signature is None else np.array(signature, "int32")
        tensor.type = ELEMENT_TYPES[dtype]
        tensor.isVariable = variable  # a state that the interpreter keeps
        if scale is not None:
            q = schema.QuantizationParametersT()
            q.scale = np.atleast_1d(np.asarray(scale, "float32"))
            q.zeroPoint = np.full(q.scale.shape, zero_point, "int64")
            q.quantizedDimension = axis
            tensor.quantization = q
        buffer = schema.BufferT()
        if data is not None:
            raw = np.ascontiguousarray(data, dtype).tobytes()
            buffer.data = np.frombuffer(raw, "uint8")
        self._buffers.append(buffer)
        tensor.buffer = len(self._buffers)  # buffer 0 is the empty one of every file
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def activation(
        self,
        shape: Sequence[int],
        dtype: str,
        scale: float | None = None,
        zero_point: int = 0,
        name: str | None = None,
        signature: Sequence[int] | None = None,
    ) -> int:
        """Adds an input of the model."""
        index = self.tensor(shape, dtype, scale, zero_point, name=name, signature=signature)
        self.inputs.append(index)
        return index

    def constant(self, data: np.ndarray, scale: float | None = None, zero_point: int = 0) -> int:
        """Adds a constant of the type and shape of `data`."""
        return self.tensor(data.shape, str(data.dtype), scale, zero_point, data=data)

    def small(self, data: np.ndarray, scale: float | np.ndarray) -> int:
        """Add a constant of four bits."""
        index = self.tensor(data.shape, "int8", scale, data=data)
        pairs = np.append(data.reshape(-1), np.zeros(data.size % 2, "int8")).astype("uint8").reshape(-1, 2) & 15
        self._tensors[index].type = _schema().TensorType.INT4
        self._buffers[-1].data = pairs[:, 0] | pairs[:, 1] << 4
        return index

    def sparse(self, data: np.ndarray, block: int = 0, scale: float | None = None) -> int:
        """Adds a constant without its zeros: its last axis is compressed, in blocks of `block` elements if given."""
        schema = _schema()
        index = self.tensor(data.shape, str(data.dtype), scale, data=np.zeros(0, data.dtype))
        width = block or 1
        blocks = data.reshape(-1, data.shape[-1] // width, width)
        kept = (blocks != 0).any(axis=-1)
        levels = [_level(size) for size in data.shape[:-1]]
        levels.append(_level(0, np.cumsum([0, *kept.sum(axis=1)]), np.nonzero(kept)[1]))
        sparsity = schema.SparsityParametersT()
        sparsity.dimMetadata = [*levels, *([_level(block)] if block else [])]
        sparsity.traversalOrder = np.arange(len(sparsity.dimMetadata), dtype="int32")
        sparsity.blockMap = np.array([data.ndim - 1], "int32") if block else None
        self._tensors[index].sparsity = sparsity
        self._buffers[-1].data = np.frombuffer(blocks[kept].tobytes(), "uint8")
        return index

    def operator(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: str | None = None,
        *,
        version: int = 1,
        intermediates: Sequence[int] = (),
        inner: bool = False,
        custom: str | None = None,
        **values: object,
    ) -> None:
        """Adds an operator whose outputs are outputs of the model, unless `inner`.

        Parameters
        ----------
        name : str
            Of `BuiltinOperator`, such as "CONV_2D".
        inputs, outputs : tensors; -1 is an input left out
        options : str, optional
            The table of options, such as "Conv2DOptions"; `values` are its fields as the schema spells them.
        custom : name of a "CUSTOM" operator
        intermediates : tensors that tell an operator the scales of what it computes on the way
        """
        schema = _schema()
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version, code.customCode = version, custom
        self._codes.append(code)
        op = schema.OperatorT()
        op.opcodeIndex = len(self._codes) - 1
        op.inputs, op.outputs = np.array(inputs, "int32"), np.array(outputs, "int32")
        op.intermediates = np.array(intermediates, "int32") if intermediates else None
        if options is not None:
            table = getattr(schema, f"{options}T")()
            for key, value in values.items():
                if not hasattr(table, key):
                    raise AttributeError(f"{options} has no field {key}")
                setattr(table, key, value)
            op.builtinOptionsType, op.builtinOptions = getattr(schema.BuiltinOptions, options), table
        self._operators.append(op)
        self.outputs.extend([] if inner else outputs)

    def variable(self, name: str) -> int:
        """Adds a VAR_HANDLE; returns its handle, which READ_VARIABLE and ASSIGN_VARIABLE take."""
        handle = self.tensor((), "resource")
        self.operator("VAR_HANDLE", [], [handle], "VarHandleOptions", inner=True, container="", sharedName=name)
        return handle

    def begin_with(self, values: Mapping[str, np.ndarray], scale: float | None = None, zero_point: int = 0) -> None:
        """Adds a CALL_ONCE that sets variables by name."""
        first = ModelWriter()
        for name, data in values.items():
            handle = first.variable(name)
            first.operator("ASSIGN_VARIABLE", [handle, first.constant(data, scale, zero_point)], [], inner=True)
        self.operator("CALL_ONCE", [], [], "CallOnceOptions", inner=True, initSubgraphIndex=self.body(first))
        self._operators.insert(0, self._operators.pop())

    def put_inside(self) -> None:
        """Makes uint8 inputs and outputs inner tensors: QUANTIZE operators of equal scales stand between them and the
        model's own."""
        for side, swap in ((self.inputs, False), (self.outputs, True)):
            for k, inner in enumerate(side):
                like = self._tensors[inner]
                if like.type != ELEMENT_TYPES["uint8"] or like.quantization is None:
                    continue
                scale, zero = float(like.quantization.scale[0]), int(like.quantization.zeroPoint[0])
                side[k] = self.tensor(like.shape, "uint8", scale, zero)
                ends = (inner, side[k]) if swap else (side[k], inner)
                self.operator("QUANTIZE", [ends[0]], [ends[1]], "QuantizeOptions", inner=True)
                if not swap:
                    self._operators.insert(0, self._operators.pop())

    def convolution(
        self, x: int, channels: int, kernel: int, stride: int, rng: np.random.Generator, name: str | None = None
    ) -> int:
        """Adds an int8 convolution of random weights over `kernel` x `kernel` pixels, padded as SAME; returns its output."""
        rows, columns, depth = (int(d) for d in self._tensors[x].shape[1:])
        shape = (channels, kernel, kernel, depth)
        weights = self.tensor(shape, "int8", 0.01, data=rng.integers(-127, 128, shape).astype("int8"))
        bias = self.tensor((channels,), "int32", 0.001, data=rng.integers(-99, 99, channels).astype("int32"))
        out = self.tensor((1, -(-rows // stride), -(-columns // stride), channels), "int8", 0.1, name=name)
        how: dict[str, Any] = {
            "padding": 0,
            "strideH": stride,
            "strideW": stride,
            "dilationHFactor": 1,
            "dilationWFactor": 1,
        }
        self.operator("CONV_2D", [x, weights, bias], [out], "Conv2DOptions", **how)
        return out

    def body(self, graph: ModelWriter) -> int:
        """Adds a subgraph that operators such as WHILE run, with the inputs and outputs of `graph`; returns its index."""
        for op in graph._operators:
            op.opcodeIndex += len(self._codes)
        for tensor in graph._tensors:
            tensor.buffer += len(self._buffers)
        self._codes += graph._codes
        self._buffers += graph._buffers
        self._bodies.append(graph)
        return len(self._bodies)

    def finish(self, lean: bool = False, signature: str = "") -> bytes:
        """Return the file; a `lean` one leaves out empty vectors, as TensorFlow's converter does. `signature` names inputs
        and outputs as their tensors.
        """
        schema = _schema()
        for graph in (self, *self._bodies) if lean else ():
            graph._leave_out_empty_vectors()
        model = schema.ModelT()
        model.version, model.description = 3, "made for a test"
        model.operatorCodes, model.subgraphs = self._codes, [g._subgraph() for g in (self, *self._bodies)]
        model.buffers = [schema.BufferT(), *self._buffers]
        if signature:
            model.signatureDefs = [self._signature(signature)]
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _leave_out_empty_vectors(self) -> None:
        for op in self._operators:
            op.inputs, op.outputs = (v if len(v) else None for v in (op.inputs, op.outputs))
        for tensor in self._tensors:
            tensor.shape = tensor.shape if len(tensor.shape) else None

    def _signature(self, key: str) -> Any:
        schema, made = _schema(), _schema().SignatureDefT()
        made.signatureKey = key
        made.inputs, made.outputs = [], []
        for indices, maps in ((self.inputs, made.inputs), (self.outputs, made.outputs)):
            for index in indices:
                entry = schema.TensorMapT()
                entry.name, entry.tensorIndex = self._tensors[index].name, index
                maps.append(entry)
        return made

    def _subgraph(self) -> Any:
        graph = _schema().SubGraphT()
        graph.name, graph.tensors, graph.operators = "main", self._tensors, self._operators
        graph.inputs, graph.outputs = np.array(self.inputs, "int32"), np.array(self.outputs, "int32")
        return graph


def _level(size: int, segments: np.ndarray | None = None, indices: np.ndarray | None = None) -> Any:
    """A dimension of a sparse tensor: dense of `size`, or compressed."""
    schema = _schema()
    level = schema.DimensionMetadataT()
    level.format, level.denseSize = (0 if segments is None else 1), size
    if segments is None or indices is None:
        return level
    level.arraySegmentsType = level.arrayIndicesType = schema.SparseIndexVector.Int32Vector
    level.arraySegments, level.arrayIndices = schema.Int32VectorT(), schema.Int32VectorT()
    level.arraySegments.values, level.arrayIndices.values = segments.astype("int32"), indices.astype("int32")
    return level


def _schema() -> Any:
    from ai_edge_litert import schema_py_generated

    return schema_py_generated
