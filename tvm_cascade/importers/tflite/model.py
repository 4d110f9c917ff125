"""Validated access to a TFLite flatbuffer, by subclasses of the accessors used in Relax's importer.

The importer reads through the `tflite` package. Subclasses correct five defects there, without patching global state:
duplicate tensor names are made unique (the importer's table is keyed by name); constants behind the flatbuffer are
found; 4-bit and 2-bit constants, unknown to the package, are read as int8, like LiteRT; `BuiltinCode` is the larger of
the new and the old field (the package ignores new values below 127, so a new file's PAD reads as ADD); and absent
vectors, such as a scalar's shape, are empty (the package gives the number 0).

Flatbuffers carry no checksum. `check_model` follows every offset the importer will follow, within bounds on counts and
sizes, before the importer sees the file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import flatbuffers as _flatbuffers
import numpy as np
import tflite as _tflite
from flatbuffers import number_types

from tvm_cascade.errors import about
from tvm_cascade.importers.interface import MAX_ELEMENTS
from tvm_cascade.importers.tflite.coded import CodedTensor, MalformedCode, by_table, decoded
from tvm_cascade.tensor_spec import free_name

# the package's generated classes type every accessor as optional: here it is untyped
tflite: Any = _tflite
flatbuffers: Any = _flatbuffers

_CODES = 6  # the slot of the operator codes in the table of a model
_BEHIND = (6, 8)  # the slots of offset and size in the table of a buffer
DECODE = "TFLM_DECODE (custom)"  # kind of the operator of TensorFlow Lite Micro that decodes constants
MAX_COUNT = 1 << 17  # tensors, operators or buffers of one model

_SMALL = {17: 4, 19: 2}  # bits of the element types INT4 and INT2, which the package does not know
_BFLOAT16 = 18  # an element type that the package does not know either
_STORED = (tflite.TensorType.INT8, tflite.TensorType.UINT8, tflite.TensorType.INT16)  # of activations with a scale
_HALVES = {tflite.TensorType.FLOAT16: "float16"}
ELEMENT_TYPES = {
    tflite.TensorType.FLOAT32: "float32",
    tflite.TensorType.FLOAT16: "float16",
    tflite.TensorType.INT32: "int32",
    tflite.TensorType.UINT8: "uint8",
    tflite.TensorType.INT64: "int64",
    tflite.TensorType.BOOL: "bool",
    tflite.TensorType.INT16: "int16",
    tflite.TensorType.INT8: "int8",
}
_SIZED = ELEMENT_TYPES | {tflite.TensorType.UINT32: "uint32", tflite.TensorType.UINT64: "uint64"}


class MalformedModel(ValueError):
    """The flatbuffer contradicts itself or its own length."""


class _OperatorCode(tflite.OperatorCode):
    __slots__ = ()

    def BuiltinCode(self) -> int:
        new = number_types.UOffsetTFlags.py_type(self._tab.Offset(10))
        code = self._tab.Get(number_types.Int32Flags, new + self._tab.Pos) if new else 0
        return max(code, self.DeprecatedBuiltinCode())


def _vector(read: Callable[[Any], Any]) -> Callable[[Any], np.ndarray]:
    """Return an accessor for an int32 vector that gives an empty array for an absent one."""

    def accessor(self: Any) -> np.ndarray:
        values = read(self)
        return values if isinstance(values, np.ndarray) else np.zeros(0, "int32")

    return accessor


class _Operator(tflite.Operator):
    __slots__ = ()

    InputsAsNumpy = _vector(tflite.Operator.InputsAsNumpy)
    OutputsAsNumpy = _vector(tflite.Operator.OutputsAsNumpy)


class _Tensor(tflite.Tensor):
    __slots__ = ("bits", "coded", "index", "names", "widened")

    def Buffer(self) -> int:
        return super().Buffer() if self.coded is None else self.coded

    def Type(self) -> int:
        if self.widened:
            return tflite.TensorType.FLOAT32
        return tflite.TensorType.INT8 if self.bits else super().Type()

    ShapeAsNumpy = _vector(tflite.Tensor.ShapeAsNumpy)

    def Name(self) -> bytes:
        return self.names[self.index].encode()  # as its subgraph names it now: states are renamed


class _Buffer(tflite.Buffer):
    """A buffer whose bytes may lie behind the flatbuffer: ai-edge-quantizer writes them there from 256 KiB on."""

    __slots__ = ()

    def _behind(self) -> tuple[int, int] | None:
        """Return offset in the file and byte count; None if they lie in the flatbuffer."""
        slots = (self._tab.Offset(slot) for slot in _BEHIND)
        first, count = (self._tab.Get(number_types.Uint64Flags, at + self._tab.Pos) if at else 0 for at in slots)
        if first <= 1:  # 1: a placeholder
            return None
        _require(first + count <= len(self._tab.Bytes), f"a buffer of {count} bytes at {first} exceeds the file")
        return first, count

    def DataLength(self) -> int:
        behind = self._behind()
        return behind[1] if behind else super().DataLength()

    def DataAsNumpy(self) -> Any:
        behind = self._behind()
        return np.frombuffer(self._tab.Bytes, "uint8", behind[1], behind[0]) if behind else super().DataAsNumpy()


class _DecodedBuffer:
    """The decoded data of a constant that the file holds coded."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = np.frombuffer(data, "uint8")

    def DataLength(self) -> int:
        return len(self.data)

    def DataAsNumpy(self) -> np.ndarray:
        return self.data


class _SmallIntegers(_Buffer):
    """A buffer with 4-bit or 2-bit constants, low bits first, read as int8."""

    __slots__ = ("bits", "count")

    def DataLength(self) -> int:
        return self.count

    def DataAsNumpy(self) -> np.ndarray:
        shifts = np.arange(0, 8, self.bits, dtype="uint8")
        packed = np.asarray(super().DataAsNumpy(), "uint8")
        values = (packed[:, None] >> shifts << (8 - self.bits)).astype("uint8").reshape(-1)[: self.count]
        return (values.view("int8") >> (8 - self.bits)).view("uint8")


class _BrainFloats(_Buffer):
    """A buffer with constants of bfloat16, the upper halves of float32, read as float32."""

    __slots__ = ()

    def DataLength(self) -> int:
        return 2 * super().DataLength()

    def DataAsNumpy(self) -> np.ndarray:
        halves = np.asarray(super().DataAsNumpy(), "uint8")[: super().DataLength() // 2 * 2].view("<u2")
        return (halves.astype("<u4") << 16).view("uint8")


class _SubGraph(tflite.SubGraph):
    __slots__ = ("model", "names", "number", "tensors")

    InputsAsNumpy = _vector(tflite.SubGraph.InputsAsNumpy)
    OutputsAsNumpy = _vector(tflite.SubGraph.OutputsAsNumpy)

    def Operators(self, j: int) -> _Operator:
        return _as(_Operator, super().Operators(j))

    def Tensors(self, j: int) -> _Tensor:
        if j not in self.tensors:
            tensor = self.tensors[j] = _as(_Tensor, super().Tensors(j))
            tensor.names, tensor.index, tensor.bits = self.names, j, 0
            tensor.coded, tensor.widened = self.model._coded.get((self.number, j)), False
            self.model._note_small(tensor)
        return self.tensors[j]


class Model(tflite.Model):
    """`tflite.Model` with the defects in the module's docstring corrected; subgraphs, tensors and operator kinds are
    read once.
    """

    __slots__ = ("_coded", "_decoded", "_graphs", "_kinds", "_small", "_widened")

    def Subgraphs(self, j: int) -> _SubGraph:
        if j not in self._graphs:
            plain = super().Subgraphs(j)
            graph = self._graphs[j] = _as(_SubGraph, plain)
            graph.names, graph.tensors, graph.model, graph.number = _unique_names(plain), {}, self, j
        return self._graphs[j]

    def Buffers(self, j: int) -> Any:
        if j >= super().BuffersLength() > 0 and j - super().BuffersLength() < len(self._decoded):
            return self._decoded[j - super().BuffersLength()]
        plain = super().Buffers(j)
        if plain is not None and j in self._widened:
            return _as(_BrainFloats, plain)
        if plain is None or j not in self._small:
            return None if plain is None else _as(_Buffer, plain)
        small = _as(_SmallIntegers, plain)
        small.bits, small.count = self._small[j]
        return small

    @property
    def small_constants(self) -> bool:
        """Return True if the file has constants of 4 or 2 bits, or coded ones."""
        return bool(self._small or self._coded)

    @property
    def small_floats(self) -> set[str]:
        """Return the kinds of 16-bit floats among the file's constants."""
        graphs = [self.Subgraphs(j) for j in range(self.SubgraphsLength())]
        tensors = [g.Tensors(i) for g in graphs if g is not None for i in range(g.TensorsLength())]
        held = {t.Type() for t in tensors if t is not None and self.Buffers(t.Buffer()).DataLength() > 0}
        return {kind for code, kind in _HALVES.items() if code in held} | ({"bfloat16"} if self._widened else set())

    def _note_small(self, tensor: _Tensor) -> None:
        """Note a constant of 4 or 2 bits, which is read as int8 from then on, or of bfloat16, read as float32."""
        bits, j = _SMALL.get(tensor.Type(), 0), tensor.Buffer()
        if tensor.Type() == _BFLOAT16 and 0 <= j < self.BuffersLength():
            buffer = self.Buffers(j)
            tensor.widened = buffer is not None and buffer.DataLength() > 0
            self._widened |= {j} if tensor.widened else set()
            return
        buffer = self.Buffers(j) if bits and 0 <= j < self.BuffersLength() else None
        if buffer is None or buffer.DataLength() == 0:
            return
        count = prod(int(d) for d in tensor.ShapeAsNumpy())
        if j not in self._small:
            held, name = buffer.DataLength(), tensor.names[tensor.index]
            fits = held * 8 // bits >= count > (held - 1) * 8 // bits
            _require(fits, f"tensor {name} of {count} elements has {held} bytes of data")
        self._small[j], tensor.bits = (bits, count), bits

    def OperatorCodes(self, j: int) -> _OperatorCode:
        return _as(_OperatorCode, super().OperatorCodes(j))


def _as(kind: type, plain: Any) -> Any:
    """Return `plain`'s flatbuffers table as a `kind` object."""
    table = kind()
    table.Init(plain._tab.Bytes, plain._tab.Pos)
    return table


def open_model(data: bytes) -> Model:
    """Open the model in `data`.

    Raises
    ------
    MalformedModel
        When the bytes are no TFLite model, or a broken one.
    """
    if len(data) < 8 or data[4:8] != b"TFL3":
        raise MalformedModel("not a TFLite model (no TFL3 identifier)")
    model = Model()
    model._graphs, model._kinds, model._small, model._coded, model._decoded = {}, {}, {}, {}, []
    model._widened = set()
    try:
        model.Init(data, flatbuffers.encode.Get(flatbuffers.packer.uoffset, data, 0))
        _note_coded(model, len(data))
        check_model(model, len(data))
    except MalformedModel:
        raise
    except (struct.error, IndexError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise MalformedModel("truncated or corrupt: an offset points outside of the file") from error
    return model


def coded_tensors(model: Model) -> dict[tuple[int, int], bytes]:
    """Return the decoded data of tensors that the file holds coded, by subgraph and tensor."""
    first = model.BuffersLength()
    return {at: model._decoded[j - first].data.tobytes() for at, j in model._coded.items()}


def _note_coded(model: Model, size: int) -> None:
    """Decode the constants of TensorFlow Lite Micro's compression: a tensor has its decoded data from then on."""
    made: dict[tuple[int, int], bytes] = {}
    _check_counts(model, size)
    if any(_kind(model.OperatorCodes(k)) == DECODE for k in range(model.OperatorCodesLength())):
        check_model(model, size)
        for g in range(model.SubgraphsLength()):
            graph = model.Subgraphs(g)
            for i in range(graph.OperatorsLength()):
                if kind_of(model, graph.Operators(i)) == DECODE:
                    made |= _decoded_by(model, graph, i)
    made |= _decoded_by_tables(model)
    for at, data in made.items():
        model._coded[at] = model.BuffersLength() + len(model._decoded)
        model._decoded.append(_DecodedBuffer(data))
    model._graphs.clear()  # their tensors were read without


def _decoded_by(model: Model, graph: _SubGraph, i: int) -> dict[tuple[int, int], bytes]:
    """Decode the outputs of an operator `TFLM_DECODE`."""
    op = graph.Operators(i)
    given, outputs = [int(t) for t in op.InputsAsNumpy()], [int(t) for t in op.OutputsAsNumpy()]
    _require(
        len(given) == 2 * len(outputs) and min(given, default=0) >= 0, f"operator {i} decodes {len(given)} tensors"
    )
    made = {}
    for k, t in enumerate(outputs):
        coded, ancillary = (_bytes_of(model, graph.Tensors(s).Buffer()) for s in given[2 * k : 2 * k + 2])
        with _naming(graph, t):
            made[graph.number, t] = decoded(coded, ancillary, _coded_tensor(graph.Tensors(t)))
    return made


def _decoded_by_tables(model: Model) -> dict[tuple[int, int], bytes]:
    """Decode the tensors that the metadata `COMPRESSION_METADATA` lists."""
    made: dict[tuple[int, int], bytes] = {}
    for k in range(min(model.MetadataLength(), MAX_COUNT)):
        entry = model.Metadata(k)
        if entry.Name() != b"COMPRESSION_METADATA":
            continue
        data = _bytes_of(model, entry.Buffer())
        root = flatbuffers.table.Table(data, 4 + flatbuffers.encode.Get(flatbuffers.packer.uoffset, data, 4))
        version = root.Get(number_types.Uint32Flags, at + root.Pos) if (at := root.Offset(4)) else 1
        _require(version == 1, f"version {version} of COMPRESSION_METADATA; known is 1")
        for g, listed in enumerate(_tables(root, 6)):
            _require(g < model.SubgraphsLength(), f"COMPRESSION_METADATA speaks of subgraph {g}")
            graph = model.Subgraphs(g)
            for lut in _tables(listed, 4):
                flags = (number_types.Int32Flags, number_types.Uint32Flags, number_types.Uint8Flags)
                slots = [(kind, lut.Offset(slot)) for kind, slot in zip(flags, (4, 6, 8), strict=True)]
                t, values, bits = (lut.Get(kind, at + lut.Pos) if at else 0 for kind, at in slots)
                _require(0 <= t < graph.TensorsLength(), f"COMPRESSION_METADATA names tensor {t}")
                table, tensor = _bytes_of(model, values), _coded_tensor(graph.Tensors(t))
                stride = len(table) // np.dtype(tensor.dtype).itemsize // max(len(tensor.zero_points), 1)
                with _naming(graph, t):
                    made[g, t] = by_table(_bytes_of(model, graph.Tensors(t).Buffer()), table, bits, stride, tensor)
    return made


def _tables(table: Any, slot: int) -> list[Any]:
    """Return the tables in the vector of a field."""
    at = table.Offset(slot)
    if not at:
        return []
    count, first = table.VectorLen(at), table.Vector(at)
    _require(count <= len(table.Bytes) // 4, "COMPRESSION_METADATA exceeds its buffer")
    return [flatbuffers.table.Table(table.Bytes, table.Indirect(first + 4 * k)) for k in range(count)]


def _bytes_of(model: Model, j: int) -> bytes:
    """Return the data of a buffer."""
    _require(0 <= j < model.BuffersLength(), f"coded data lie in buffer {j} of {model.BuffersLength()}")
    buffer = model.Buffers(j)
    return bytes(buffer.DataAsNumpy()) if buffer is not None and buffer.DataLength() > 0 else b""


def _coded_tensor(tensor: _Tensor) -> CodedTensor:
    """Return shape, type and zero points, one for every scale, of a tensor."""
    shape, q = tuple(int(d) for d in tensor.ShapeAsNumpy()), tensor.Quantization()
    _require(tensor.Type() in ELEMENT_TYPES, "a coded tensor has an element type that is not supported")
    _require(0 <= prod(shape) <= MAX_ELEMENTS and min(shape, default=0) >= 0, f"a coded tensor has the shape {shape}")
    if q is None or q.ScaleLength() == 0:
        return CodedTensor(shape, ELEMENT_TYPES[tensor.Type()])
    zeros = q.ZeroPointAsNumpy() if q.ZeroPointLength() else np.zeros(1, "int64")
    _require(len(zeros) in (1, q.ScaleLength()), f"a coded tensor has {len(zeros)} zero points")
    each = np.broadcast_to(zeros, q.ScaleLength())
    return CodedTensor(shape, ELEMENT_TYPES[tensor.Type()], tuple(int(z) for z in each), q.QuantizedDimension())


@contextmanager
def _naming(graph: _SubGraph, tensor: int) -> Iterator[None]:
    """Add the tensor's name to errors of its code."""
    try:
        yield
    except MalformedCode as error:
        raise MalformedModel(f"truncated or corrupt: the coded tensor {graph.names[tensor]}: {error}") from error


def original_name(model: Model, tensor: int) -> str:
    """Return the file's own name for a main-subgraph tensor (names may repeat there)."""
    return _name_of(tflite.Model.Subgraphs(model, 0), tensor)


_KINDS = {code: name for name, code in vars(tflite.BuiltinOperator).items() if isinstance(code, int)}


def kind_of(model: Model, op: Any) -> str:
    """Return an operator's name in TFLite, such as CONV_2D, or a custom operator's name in the file."""
    k = op.OpcodeIndex()
    if k not in model._kinds:
        model._kinds[k] = _kind(model.OperatorCodes(k))
    return model._kinds[k]


def _kind(code: _OperatorCode) -> str:
    name = _KINDS.get(code.BuiltinCode(), f"number {code.BuiltinCode()}")
    if name != "CUSTOM":
        return name
    custom = code.CustomCode() or b"?"
    return f"{re.sub(r'[^ -~]', '?', custom.decode('utf-8', 'replace'))[:60]} (custom)"


def check_model(model: Model, size: int) -> None:
    """Raise `MalformedModel` for a wrong offset, count or size in the importer's reach; `size`: bytes of the file."""
    _check_counts(model, size)
    for g in range(model.SubgraphsLength()):
        _check_subgraph(model, g, size)


def _check_counts(model: Model, size: int) -> None:
    _require(1 <= model.SubgraphsLength() <= MAX_COUNT, "it has no subgraph")
    _require(model.BuffersLength() * 4 <= size and model.BuffersLength() <= MAX_COUNT, "its buffers exceed the file")
    codes = model.OperatorCodesLength()
    end = model._tab.Vector(model._tab.Offset(_CODES)) + 4 * codes if codes else 0
    _require(codes <= MAX_COUNT and end <= size, "its operator codes exceed the file")
    _require(all(model.OperatorCodes(k)._tab.Pos >= end for k in range(codes)), "its operator codes overlap")


def _check_subgraph(model: Model, g: int, size: int) -> None:
    plain = tflite.Model.Subgraphs(model, g)
    tensors = plain.TensorsLength()
    for count in (tensors, plain.OperatorsLength(), plain.InputsLength(), plain.OutputsLength()):
        _require(count * 4 <= size and count <= MAX_COUNT, "its tables exceed the file")
    graph = model.Subgraphs(g)
    for t in range(tensors):
        _check_tensor(model, graph.Tensors(t), graph.names[t], size)
    for index in (*graph.InputsAsNumpy(), *graph.OutputsAsNumpy()):
        _require(0 <= index < tensors, f"it names tensor {index} of {tensors} as an input or output")
    given = {int(index) for index in graph.InputsAsNumpy()}
    for i in range(graph.OperatorsLength()):
        op = graph.Operators(i)
        _require(0 <= op.OpcodeIndex() < model.OperatorCodesLength(), f"operator {i} has no operator code")
        kind = kind_of(model, op)
        with about(kind):
            for index in op.InputsAsNumpy():
                _require(-1 <= index < tensors, f"operator {i} reads tensor {index} of {tensors}")
            for index in op.OutputsAsNumpy():
                _require(0 <= index < tensors, f"operator {i} writes tensor {index} of {tensors}")
                is_state = kind == "READ_VARIABLE"  # an input of networks whose states are inputs
                _require(is_state or index not in given, f"operator {i} writes tensor {graph.names[index]}, an input")
        op.BuiltinOptionsType()


def _check_tensor(model: Model, tensor: _Tensor, name: str, size: int) -> None:
    shape = [int(d) for d in tensor.ShapeAsNumpy()]
    _require(len(shape) <= 8 and all(d >= 0 for d in shape), f"tensor {name} has the shape {shape}")
    _require(prod(shape) <= MAX_ELEMENTS, f"tensor {name} has {prod(shape)} elements")
    _require(
        tensor.coded is not None or 0 <= tensor.Buffer() < max(model.BuffersLength(), 1),
        f"tensor {name} has no buffer",
    )
    tensor.IsVariable()
    _check_quantization(tensor, name, size)
    buffer = model.Buffers(tensor.Buffer())
    if buffer is None or buffer.DataLength() == 0:
        q = tensor.Quantization()
        if tensor.Type() in _STORED and q is not None and q.ScaleLength() > 0:
            divides = bool(np.all(q.ScaleAsNumpy()))
            _require(divides, f"tensor {name} has a scale of 0: values are divided by it")
        return
    held = buffer.DataLength() // (2 if tensor.widened else 1)
    fits = bool(tensor.bits) or tensor.coded is not None or held <= size
    _require(fits, f"the data of tensor {name} exceed the file")
    buffer.DataAsNumpy()
    if tensor.Type() in _SIZED and tensor.Sparsity() is None:
        _require(
            buffer.DataLength() == prod(shape) * np.dtype(_SIZED[tensor.Type()]).itemsize,
            f"tensor {name} of shape {shape} has {buffer.DataLength()} bytes of data",
        )


def _check_quantization(tensor: _Tensor, name: str, size: int) -> None:
    q = tensor.Quantization()
    if q is None or q.ScaleLength() == 0:
        return
    _require(q.ScaleLength() * 4 <= size and q.ZeroPointLength() * 8 <= size, f"the scales of {name} exceed the file")
    scales, zeros = np.asarray(q.ScaleAsNumpy()), np.asarray(q.ZeroPointAsNumpy())
    _require(bool(np.all(np.isfinite(scales)) and np.all(scales >= 0)), f"tensor {name} has a scale that is no number")
    of = np.iinfo(_SIZED[tensor.Type()] if tensor.Type() in _STORED else "int32")
    held = bool(np.all((of.min <= zeros) & (zeros <= of.max)))
    _require(held, f"tensor {name} has a zero point that {of.dtype} does not hold")


def _unique_names(graph: Any) -> list[str]:
    taken: set[str] = set()
    names = []
    for t in range(graph.TensorsLength()):
        name = _name_of(graph, t)
        names.append(free_name(name if name not in taken else f"{name}_{t}", taken))
        taken.add(names[-1])
    return names


def _name_of(graph: Any, t: int) -> str:
    raw = graph.Tensors(t).Name()
    return raw.decode("utf-8", "replace") if raw else f"tensor_{t}"


def _require(holds: bool, complaint: str) -> None:
    if not holds:
        raise MalformedModel(f"truncated or corrupt: {complaint}")
