"""Write takes of constant, evenly spaced indices as slices: `x[:, :, -1]` reads one row of time, and frames see so.

before: y = take(x, 19, axis=2)  # [n, c]      after: a = strided_slice(x, [2], [19], [20])  # [n, c, 1]
                                                      y = reshape(a, [n, c])
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_cascade.passes.main_rewriting import Rewriting, Value, bindings_of, constant_of, name_of, relax, shape_of
from tvm_cascade.passes.relax_functions import substitute


def with_slices(mod: Any) -> Any:
    """Return `mod` with such takes of `main` as slices; `mod` itself without any."""
    found = any(_slice_of(b.value) is not None for b in bindings_of(mod["main"]))
    return _Slices(mod).run().with_attrs(dict(mod.attrs or {})) if found else mod


def _slice_of(call: Value) -> tuple[int, int, int, int] | None:
    """Return the axis, first index, end and step of a take; None for any other call."""
    if name_of(call) != "take" or call.attrs.axis is None or not shape_of(call.args[0]):
        return None
    indices, shape = constant_of(call.args[1]), shape_of(call.args[0])
    axis = int(call.attrs.axis) % len(shape)
    if indices is None or indices.ndim > 1 or not indices.size:
        return None
    places = indices.reshape(-1).astype(np.int64)
    steps = np.diff(places)
    step = int(steps[0]) if steps.size else 1
    if step < 1 or (steps != step).any() or places[0] < 0 or places[-1] >= shape[axis]:
        return None
    return axis, int(places[0]), int(places[-1]) + 1, step


class _Slices(Rewriting):
    def _bind(self, var: Value, value: Value) -> None:
        found = _slice_of(value)
        if found is None:
            self.renamed[var] = self.bb.emit(substitute(value, self.renamed))
            return
        axis, first, end, step = found
        source = substitute(value.args[0], self.renamed)
        cut = self.bb.emit(relax.op.strided_slice(source, [axis], [first], [end], [step]))
        shape = shape_of(var)
        self.renamed[var] = cut if shape_of(cut) == shape else self.bb.emit(relax.op.reshape(cut, list(shape)))
