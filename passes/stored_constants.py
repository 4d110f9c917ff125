"""Constants that are kept in flash as a file stores them: integers of 8, 4 or 2 bits, with scales and zero points, or
floats of 16 or 8 bits, also with scales.

`read_stored` reads a constant expression (a dequantized constant, also transposed, reshaped, or written out as a cast,
a difference and a product) as a `StoredConstant`; `packed` is what a kernel keeps of it. Kernels compute
`(number - zero point) * scale` where they read an element, which are the float32 numbers of the file's definition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import gcd, prod

import numpy as np

from tvm_cascade.passes.integer.expressions import constant_of, dtype_of, name_of, shape_of
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, relax, tirx
from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.schedules.kernels.storage import Storage
from tvm_cascade.schedules.rules.packing import in_bytes
from tvm_cascade.schedules.rules.small_floats import KINDS, small_floats

FEWEST = 64  # elements; a smaller constant is kept as floats, which are faster to read
_STORED = ("int8", "uint8")
_MOVES = ("relax.permute_dims", "relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")


@dataclass(frozen=True, slots=True, eq=False)
class Blocked:
    """Numbers that are equal in blocks of a tensor's elements: the element at `i` has `values[i // block]`."""

    values: np.ndarray
    block: tuple[int, ...]  # axis by axis; `values` has an element for each block

    @classmethod
    def of(cls, whole: np.ndarray) -> Blocked:
        """Find the largest blocks of equal numbers."""
        block = []
        for axis, size in enumerate(whole.shape):
            lines = np.moveaxis(whole, axis, 0).reshape(size, -1)
            changes = np.flatnonzero((lines[1:] != lines[:-1]).any(axis=1)) + 1
            block.append(reduce(gcd, (int(c) for c in changes), 0) or size)
            whole = whole.take(range(0, size, block[-1]), axis)
        return cls(np.ascontiguousarray(whole), tuple(block))

    @property
    def uniform(self) -> bool:
        """Return True if a single number serves all elements."""
        return self.values.size == 1

    def only_along(self, axes: Sequence[int]) -> bool:
        """Return True if elements differ along these axes alone."""
        return all(n == 1 for axis, n in enumerate(self.values.shape) if axis not in axes)

    def at(self, tensor: Tensor, index: Sequence[Index]) -> Scalar:
        """Read the number of an element from `tensor`, which holds `values`."""
        places = zip(index, self.block, self.values.shape, strict=True)
        return tensor[tuple(0 if n == 1 else i if b == 1 else tirx.floordiv(i, b) for i, b, n in places)]


@dataclass(frozen=True, slots=True, eq=False)
class StoredConstant:
    """A constant tensor of float32 numbers `(values - zero) * scale`."""

    values: np.ndarray  # int8 or uint8, or the bits of floats
    zero: np.ndarray  # int32, of the shape of `values`
    scale: np.ndarray | None  # float32, likewise; None before the first product
    floats: str = ""  # of `small_floats.KINDS`: what the numbers are; empty for integers

    def moved(self, move: Callable[[np.ndarray], np.ndarray]) -> StoredConstant:
        """Apply a function that moves elements, such as a transpose."""
        scale = None if self.scale is None else move(self.scale)
        return replace(self, values=move(self.values), zero=move(self.zero), scale=scale)

    @property
    def complete(self) -> bool:
        """Return True for float32 numbers, False for integers without a scale."""
        return self.scale is not None or self.floats != ""

    def packed(self) -> Packed:
        """Pack the numbers in as few bits as hold them."""
        if self.floats:
            ones = np.ones([1] * self.values.ndim, np.float32) if self.scale is None else self.scale
            shape, kind = self.values.shape, KINDS[self.floats]
            zero, scale = Blocked(np.zeros([1] * len(shape), np.int8), shape), Blocked.of(ones)
            scale = Blocked(ones, shape) if self.scale is None else scale
            return Packed(np.ascontiguousarray(self.values), shape, kind.bits, zero, scale, self.floats)
        low, high = int(self.values.min()), int(self.values.max())
        bits = next((b for b in (2, 4) if high - low < 1 << b), 8)
        scale = self.scale if self.scale is not None else np.ones(self.values.shape, np.float32)
        values, zero = self.values, self.zero
        if bits < 8:
            values, zero = (values.astype(np.int32) - low).astype(np.uint8), zero - low
        else:
            centred = values.astype(np.int32) - zero
            if centred.min() >= -128 and centred.max() <= 127:
                values, zero = centred.astype(np.int8), np.zeros_like(zero)
        return Packed(in_bytes(values, bits), values.shape, bits, Blocked.of(_smallest(zero)), Blocked.of(scale))


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A stored constant as kernels keep it."""

    values: np.ndarray  # int8 or uint8; of 4 and 2 bits several in a byte, the first lowest, along the last axis
    shape: tuple[int, ...]  # of the constant
    bits: int  # of a number
    zero: Blocked
    scale: Blocked
    floats: str = ""  # as of `StoredConstant`

    @property
    def scaled(self) -> bool:
        """Return True if the numbers have scales; False for floats that are the constant itself."""
        return not self.floats or not self.scale.uniform or float(self.scale.values.ravel()[0]) != 1

    @property
    def bytes(self) -> int:
        """Return the bytes of all arrays."""
        return sum(a.nbytes for a in self.arrays)

    @property
    def storage(self) -> Storage:
        """Return the storage beside the same constant as float32."""
        name = self.floats.partition("_")[0] or f"{self.bits} bits"
        return Storage(name, 4 * prod(self.shape) - self.bytes)

    @property
    def zero_point(self) -> int | None:
        """Return the zero point of all elements; None if they have several."""
        return int(self.zero.values.ravel()[0]) if self.zero.uniform else None

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Return the kernel's constants: numbers, zero points if there are several, scales if there are any."""
        zeros = () if self.zero.uniform else (self.zero.values,)
        return (self.values, *zeros, *((self.scale.values,) if self.scaled else ()))

    def worth_keeping(self) -> bool:
        """Return True if the constant takes fewer bytes so than as float32."""
        return prod(self.shape) >= FEWEST and self.bytes < 4 * prod(self.shape)

    def centred(self, tensors: Sequence[Tensor], index: Sequence[Index]) -> Scalar:
        """Read an element's `number - zero point`, or float, as float32; `tensors` hold `arrays`."""
        *outer, last = index
        if self.floats:
            return KINDS[self.floats].bits_32(tensors[0][tuple(index)].astype("int32"))
        if self.bits == 8:
            number = tensors[0][tuple(index)].astype("int32")
        else:
            per = 8 // self.bits
            byte = tensors[0][(*outer, tirx.floordiv(last, per))].astype("int32")
            number = (byte >> (tirx.floormod(last, per) * self.bits)) & tirx.const((1 << self.bits) - 1, "int32")
        if self.zero_point is None:
            number = number - self.zero.at(tensors[1], index).astype("int32")
        elif self.zero_point:
            number = number - tirx.const(self.zero_point, "int32")
        return number.astype("float32")

    def scales(self, axes: Sequence[int]) -> np.ndarray | None:
        """Return a scale for each element along `axes`, or a single one; None if scales differ along others, too."""
        if not self.scale.only_along(axes):
            return None
        whole = self.scale.values
        for axis in () if self.scale.uniform else axes:
            whole = np.repeat(whole, self.scale.block[axis], axis).take(range(self.shape[axis]), axis)
        return whole.ravel()

    def element(self, tensors: Sequence[Tensor], index: Sequence[Index]) -> Scalar:
        """Compute an element; `tensors` hold `arrays`."""
        number = self.centred(tensors, index)
        return number * self.scale.at(tensors[-1], index) if self.scaled else number


def _smallest(numbers: np.ndarray) -> np.ndarray:
    """Return integers in the smallest type that holds them."""
    low, high = int(numbers.min()), int(numbers.max())
    kinds = ("int8", "uint8", "int16", "int32")
    return numbers.astype(next(k for k in kinds if np.iinfo(k).min <= low and high <= np.iinfo(k).max))


def read_stored(
    value: Value, definitions: Mapping[Value, Value], floats: Collection[str] = ()
) -> StoredConstant | None:
    """Read an expression as a constant that a file stores in integers of 8 bits; None for any other expression.

    `definitions` are the expressions of variables. `floats` are the kinds of small floats that the file holds: constants of
    such numbers are read, too.
    """
    made = _read(value, definitions, floats)
    if made is None and floats and dtype_of(value) == "float32":
        data = constant_data(value, definitions)
        return None if data is None else _of_floats(data, floats)
    return made


def _read(value: Value, definitions: Mapping[Value, Value], floats: Collection[str]) -> StoredConstant | None:
    """Read an expression that is not a constant of floats."""
    while isinstance(value, relax.Var) and value in definitions:
        value = definitions[value]
    if dtype_of(value) in _STORED:
        data = constant_of(value)
        return None if data is None else StoredConstant(data, np.zeros(data.shape, np.int32), None)
    name, args = name_of(value), value.args if isinstance(value, relax.Call) else ()
    if dtype_of(value) not in (*_STORED, "int32", "float32") or not args:
        return None
    if (stored := Stored.read_by(value)) is not None:
        return _dequantized(stored, definitions)
    if name in _MOVES:
        source = read_stored(args[0], definitions, floats)
        return None if source is None else source.moved(_move(value))
    if name == "relax.astype":
        return read_stored(args[0], definitions)
    if name in ("relax.subtract", "relax.multiply"):
        sides = [read_stored(a, definitions, floats) for a in args]
        return _computed(name, sides, [constant_data(a, definitions) for a in args])
    return None


def _of_floats(data: np.ndarray, kinds: Collection[str]) -> StoredConstant | None:
    """Return float32 numbers as small floats; None if these do not hold them, or if they are few."""
    encoded = small_floats(data, kinds) if data.size >= FEWEST else None
    if encoded is None:
        return None
    kind, bits, factor = encoded
    scale = None if factor == 1 else np.full(data.shape, factor, np.float32)
    return StoredConstant(bits, np.zeros(data.shape, np.int32), scale, kind)


def constant_data(value: Value, definitions: Mapping[Value, Value]) -> np.ndarray | None:
    """Return a constant, also moved or cast."""
    while isinstance(value, relax.Var) and value in definitions:
        value = definitions[value]
    if name_of(value) in (*_MOVES, "relax.astype"):
        source = constant_data(value.args[0], definitions)
        if source is None:
            return None
        return source.astype(dtype_of(value)) if name_of(value) == "relax.astype" else _move(value)(source)
    return constant_of(value)


def _move(call: Value) -> Callable[[np.ndarray], np.ndarray]:
    """Return the numpy function (reshape or transpose) equal to a call that moves elements."""
    if name_of(call) != "relax.permute_dims":
        shape = shape_of(call)
        return lambda a: a.reshape(shape)
    axes = call.attrs.axes
    return lambda a: a.transpose(None if axes is None else [int(x) for x in axes])


def _dequantized(stored: Stored, definitions: Mapping[Value, Value]) -> StoredConstant | None:
    values, scale, zero = (constant_data(v, definitions) for v in (stored.tensor, stored.scale, stored.zero_point))
    if values is None or scale is None or zero is None or str(values.dtype) not in _STORED:
        return None
    along = [1] * values.ndim
    if scale.size > 1 or zero.size > 1:
        along[stored.axis] = -1

    def spread(numbers: np.ndarray) -> np.ndarray:
        return np.broadcast_to(numbers.reshape(along if numbers.size > 1 else [1] * values.ndim), values.shape)

    return StoredConstant(values, spread(zero.astype(np.int32)), spread(scale.astype(np.float32)))


def _computed(
    name: str, stored: Sequence[StoredConstant | None], data: Sequence[np.ndarray | None]
) -> StoredConstant | None:
    """Return the difference or product of a stored constant and another constant, None if it is not stored so."""
    first = 0 if stored[0] is not None and (stored[1] is None or stored[0].values.size >= stored[1].values.size) else 1
    source, other = stored[first], data[1 - first]
    if source is None or other is None or not _takes_scale(source):
        return None
    shape = source.values.shape
    try:
        wide = np.broadcast_to(other, shape)
    except ValueError:
        return None
    if name == "relax.multiply":
        scale = wide if source.scale is None else wide * source.scale
        return replace(source, scale=scale) if other.dtype == np.float32 else None
    if source.floats:
        return None
    whole = wide.astype(np.int32)
    if first == 1 or (whole != wide).any() or np.abs(whole).max(initial=0) >= 1 << 15:
        return None
    return replace(source, zero=source.zero + whole)


def _takes_scale(source: StoredConstant) -> bool:
    """Test whether a constant can take one more factor: it has no scale yet, or only a power of two."""
    if source.scale is None:
        return True
    first = source.scale.ravel()[0]
    return source.floats != "" and bool((source.scale == first).all()) and float(np.frexp(first)[0]) == 0.5
