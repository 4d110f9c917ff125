"""Legalization of float max pools: a NaN in a window is the maximum, and a window of negative infinities keeps negative
infinity.

TVM's own begin with the least finite number, and let the position of a NaN decide. Padding is negative infinity, which
changes no maximum, so kernels leave it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from tvm_cascade.passes.integer.expressions import shape_of
from tvm_cascade.schedules.tir import te, tirx
from tvm_cascade.schedules.tir.nan import or_nan

_SPATIAL = "DHW"  # of layouts

largest: Any = te.comm_reducer(or_nan(tirx.max), lambda dtype: tirx.const(-inf, dtype), name="max")


def max_pool(bb: Any, call: Any) -> Any:
    """Legalize a max pool over one to three spatial axes; integers or a blocked layout are left to TVM's form."""
    layout, attrs = str(call.attrs.layout), call.attrs
    axes = [k for k, axis in enumerate(layout) if axis in _SPATIAL]
    same = str(attrs.out_layout) in ("", layout)
    if not str(call.ty.dtype).startswith("float") or not same or len(layout) != len(shape_of(call)):
        return call.op.get_attr("FLegalize")(bb, call)
    size, steps, gaps = ([int(v) for v in attrs[name]] for name in ("pool_size", "strides", "dilation"))
    before = [int(p) for p in attrs.padding][: len(axes)]
    shape, outputs = shape_of(call.args[0]), shape_of(call)

    def pooled(data: Any) -> Any:
        padded, window = data, [te.reduce_axis((0, k), f"r{n}") for n, k in enumerate(size)]
        reach = [(outputs[a] - 1) * s + (k - 1) * d + 1 for a, k, s, d in zip(axes, size, steps, gaps, strict=True)]
        after = [max(r - p - shape[a], 0) for a, r, p in zip(axes, reach, before, strict=True)]
        if any(before) or any(after):
            padded = _padded(data, axes, before, after)

        def element(*i: Any) -> Any:
            at = list(i)
            for a, s, d, r in zip(axes, steps, gaps, window, strict=True):
                at[a] = i[a] * s + r * d
            return largest(padded(*at), axis=window)

        return te.compute(outputs, element, name="pool_max")

    return bb.call_te(pooled, call.args[0], primfunc_name_hint=call.op.name.removeprefix("relax.nn."))


def _padded(data: Any, axes: Sequence[int], before: Sequence[int], after: Sequence[int]) -> Any:
    """Pad axes with negative infinity."""
    shape = [int(d) for d in data.shape]
    low, more = [0] * len(shape), [0] * len(shape)
    for a, p, q in zip(axes, before, after, strict=True):
        low[a], more[a] = p, q

    def at(*i: Any) -> Any:
        inside = [i[a] >= p for a, p in enumerate(low) if p]
        inside += [i[a] < low[a] + shape[a] for a, q in enumerate(more) if q]
        place = [i[a] - p if p else i[a] for a, p in enumerate(low)]
        return tirx.if_then_else(tirx.all(*inside), data(*place), tirx.const(-inf, data.dtype))

    return te.compute([sum(d) for d in zip(low, shape, more, strict=True)], at, name="pad_temp")
