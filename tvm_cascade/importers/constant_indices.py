"""Constant indices of gathers as kernels take them: int32, counted from the start of their axis.

Relax's `take` reads out of bounds by a negative index; torch.export writes one for `x[:, -1]`. Indices that are computed
from constants (`_ARITHMETIC`, `_VIEWS`, ranges) are constants too, as those of `torch.roll`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import tvm

from tvm_cascade.importers.values import Rewriting, Value, constant_of, name_of, relax, shape_of

_Array = np.ndarray
_ARITHMETIC: Mapping[str, Callable[..., _Array]] = MappingProxyType(
    {
        "abs": np.abs,
        "add": np.add,
        "floor_mod": np.mod,
        "mod": np.fmod,  # rounds towards zero, as C does
        "multiply": np.multiply,
        "subtract": np.subtract,
    }
)
# operators that give each output element an element of their first argument, of as many elements or fewer
_VIEWS: Mapping[str, Callable[[_Array, tuple[int, ...]], _Array]] = MappingProxyType(
    {"broadcast_to": np.broadcast_to, "expand_dims": np.reshape, "reshape": np.reshape}
)


def wrap_indices(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with the constant indices of `take`, `gather_elements` and `scatter_elements` in `[0, extent)`, as int32.

    Raises
    ------
    ValueError
        For an index outside of its axis.
    """
    return _Wrapping(mod).run()


class _Wrapping(Rewriting):
    def _bind(self, var: Value, value: Value) -> None:
        self.renamed[var] = self.bb.emit(self._returned(self._wrapped(value)), name_hint=var.name)

    def _wrapped(self, value: Value) -> Value:
        kind = name_of(value)
        if kind not in ("take", "gather_elements", "scatter_elements"):
            return value
        data, indices, *others = value.args
        shape, axis = shape_of(data), value.attrs.axis
        extents = shape if axis is None else shape[int(axis) % len(shape) :][:1]
        places = self._places(indices, int(np.prod(extents)))
        return value if places is indices else relax.Call(value.op, [data, places, *others], value.attrs)

    def _places(self, indices: Value, extent: int) -> Value:
        """Constant indices into an axis of `extent`; others as they are."""
        data = self._evaluated(indices)
        if data is None or data.dtype.kind != "i":
            return indices
        if data.size and (data.min() < -extent or data.max() >= extent):
            raise ValueError(f"an index outside of an axis of {extent}")
        return relax.const((data % extent).reshape(data.shape), "int32")

    def _evaluated(self, value: Value) -> _Array | None:
        """The number or array that a value is computed to from constants; None where it depends on an input."""
        found = self._define(value)
        kind, data = name_of(found), constant_of(found)
        if data is not None:
            return data
        if kind == "arange":
            return _range_of(found)
        if kind in _VIEWS:
            given = self._evaluated(found.args[0])
            return None if given is None else _VIEWS[kind](given, shape_of(found))
        if not (kind == "astype" or kind in _ARITHMETIC):
            return None
        operands = [self._evaluated(a) for a in found.args]
        known = [o for o in operands if o is not None]
        if len(known) < len(operands):
            return None
        return known[0].astype(str(found.attrs.dtype)) if kind == "astype" else _ARITHMETIC[kind](*known)


def _range_of(call: Value) -> _Array | None:
    """The integers of an `arange`; None where its bounds are no numbers."""
    bounds = [int(a.value) for a in call.args if hasattr(a, "value")]  # symbolic sizes have none
    known = len(bounds) == len(call.args) and "int" in str(call.attrs.dtype)
    return np.arange(*bounds, dtype=str(call.attrs.dtype)) if known else None
