"""Arrangement of weights that may be constants, which are arranged here, or computed, for which operators are emitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_cascade.passes.integer.expressions import constant, constant_of, dtype_of
from tvm_cascade.passes.integer.untyped import Builder, Value, relax

Array = Value | np.ndarray  # a Relax value, or the data of a constant


def data_or_value(value: Array) -> Array:
    """Return a constant's data; any other value unchanged."""
    data = value if isinstance(value, np.ndarray) else constant_of(value)
    return value if data is None else data


def as_value(array: Array) -> Value:
    """Return a Relax value; data become a constant."""
    return constant(array) if isinstance(array, np.ndarray) else array


@dataclass(frozen=True, slots=True)
class Arranger:
    """Moves and sums of arrays, computed on data and emitted for values."""

    builder: Builder

    def reshape(self, array: Array, shape: Sequence[int]) -> Array:
        """Return the elements of `array` in another shape."""
        if isinstance(array, np.ndarray):
            return array.reshape(shape)
        return self.builder.emit(relax.op.reshape(array, list(shape)))

    def take(self, array: Array, places: Sequence[int], axis: int) -> Array:
        """Return the elements at `places` along an axis."""
        if isinstance(array, np.ndarray):
            return array.take(places, axis)
        return self.builder.emit(relax.op.take(array, relax.const(list(places), "int32"), axis, "clip"))

    def permute(self, array: Array, axes: Sequence[int]) -> Array:
        """Permute the array's axes."""
        if isinstance(array, np.ndarray):
            return array.transpose(axes)
        return self.builder.emit(relax.op.permute_dims(array, list(axes)))

    def extend(self, array: Array, axis: int) -> Array:
        """Append a zero element at the end of an axis."""
        shape = [int(d) for d in (array.shape if isinstance(array, np.ndarray) else array.ty.shape.values)]
        shape[axis] = 1
        zeros = np.zeros(shape, array.dtype if isinstance(array, np.ndarray) else dtype_of(array))
        if isinstance(array, np.ndarray):
            return np.concatenate([array, zeros], axis)
        return self.builder.emit(relax.op.concat([array, as_value(zeros)], axis))

    def add(self, a: Array, b: Array) -> Array:
        """Add two arrays of equal shape."""
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            return a + b
        return self.builder.emit(relax.op.add(as_value(a), as_value(b)))
