"""Constant indices of gathers as kernels take them: int32, counted from the start of their axis.

Relax's `take` reads out of bounds by a negative index; torch.export writes one for `x[:, -1]`. Indices that are computed
from constants (`_ARITHMETIC`) are constants too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import tvm

from tvm_cascade.importers.values import Rewriting, Value, constant_of, name_of, relax, shape_of

_Array = np.ndarray
_ARITHMETIC: Mapping[str, Callable[..., _Array]] = MappingProxyType(
    {"abs": np.abs, "add": np.add, "floor_mod": np.mod, "multiply": np.multiply, "subtract": np.subtract}
)


def wrap_indices(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with the constant indices of `take` and `gather_elements` in `[0, extent)`, as int32.

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
        if kind not in ("take", "gather_elements"):
            return value
        data, indices = value.args[:2]
        shape, axis = shape_of(data), value.attrs.axis
        extents = shape if axis is None else shape[int(axis) % len(shape) :][:1]
        places = self._places(indices, int(np.prod(extents)))
        return value if places is indices else relax.Call(value.op, [data, places], value.attrs)

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
        if data is not None or not (kind == "astype" or kind in _ARITHMETIC):
            return data
        operands = [self._evaluated(a) for a in found.args]
        known = [o for o in operands if o is not None]
        if len(known) < len(operands):
            return None
        return known[0].astype(str(found.attrs.dtype)) if kind == "astype" else _ARITHMETIC[kind](*known)
