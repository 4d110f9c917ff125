"""Reductions of floats over all rows as reductions of hops, of which a frame keeps the results in place of rows.

    before: y = mean(x, rows)        after: h = avg_pool(x[r:], window=s - r, stride=s)  # the older rows of each hop
                                            t = avg_pool(x, window=r, stride=s)          # the newer ones
                                            y = ((s - r) * sum(h) + r * sum(t)) / rows

With s new rows a frame and r = rows mod s. A row of `h` or `t` moves by one every frame, so a frame computes the last of
each and keeps the rest: bytes of a row for every hop, not for every row. Rows that depend on padding, in front of the
interior and behind it, are added. Maxima and minima likewise. Sums of floats are added in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from tvm_cascade.passes.main_rewriting import Rewriting, Value, bindings_of, name_of, relax, shape_of
from tvm_cascade.passes.relax_functions import substitute
from tvm_cascade.passes.sliding.read import read_sliding
from tvm_cascade.passes.sliding.totals import find_totals
from tvm_cascade.sliding.interior import Interior, interiors

_POOLS = {"mean": relax.op.nn.avg_pool2d, "sum": relax.op.nn.avg_pool2d, "max": relax.op.nn.max_pool2d}
_FEWEST = 3  # rows of a hop: two parts of it are kept for them


def with_hop_sums(mod: Any, hop: int, axis: int) -> Any:
    """Return `mod` with reductions of `main` by hops, where a frame of `hop` rows along `axis` keeps less so; `mod` itself
    without any.

    Raises `GraphError` and `UsageError` as `read_sliding` does.
    """
    read = read_sliding(mod["main"], axis)
    reach, totals = interiors(read.network), find_totals(mod["main"])
    summed = {v for total in totals.values() for v in (total.result, *total.chain)}
    numbers = {v: k for k, v in enumerate(read.variables)}
    found = dict[Value, tuple[int, int, Interior]]()
    for binding in bindings_of(mod["main"]):
        call = binding.value
        if name_of(call) not in _POOLS or binding.var in summed or call.args[0] not in read.axes:
            continue
        interior, time = reach.interiors[numbers[call.args[0]]], read.axes[call.args[0]]
        if interior is not None and _by_hops(call, time, interior, hop):
            found[binding.var] = time, interior.shift(hop), interior
    return _Hops(mod, found).run().with_attrs(dict(mod.attrs or {})) if found else mod


def _by_hops(call: Value, time: int, interior: Interior, hop: int) -> bool:
    """Test that a reduction reads all rows in a channels-last map with several whole hops."""
    shape = shape_of(call.args[0])
    if len(shape) != 4 or time not in (1, 2) or call.attrs.axis is None or interior.period(hop) != 1:
        return False
    over, shift = {int(a) % 4 for a in call.attrs.axis}, interior.shift(hop)
    across = 3 - time
    return (
        time in over and 3 not in over and shape[0] == 1 and (across in over or shape[across] == 1)
        and shift >= _FEWEST and interior.end - interior.first > shift
    )  # fmt: skip


class _Hops(Rewriting):
    def __init__(self, mod: Any, found: Mapping[Value, tuple[int, int, Interior]]) -> None:
        super().__init__(mod)
        self.found = found

    def _bind(self, var: Value, value: Value) -> None:
        if var not in self.found:
            self.renamed[var] = self.bb.emit(substitute(value, self.renamed))
            return
        made = self._reduced(name_of(value), substitute(value.args[0], self.renamed), *self.found[var])
        shape = shape_of(var)
        self.renamed[var] = made if shape == shape_of(made) else self.bb.emit(relax.op.reshape(made, list(shape)))

    def _reduced(self, kind: str, source: Value, time: int, shift: int, interior: Interior) -> Value:
        """Emit the reduction of `source` over both spatial axes, which stay."""
        first, end, rows = interior.first, interior.end, shape_of(source)[time]
        left = (end - first) % shift
        parts = [self._pooled(kind, self._rows(source, time, first, end), time, left, shift)] if left else []
        parts.append(self._pooled(kind, self._rows(source, time, first + left, end), time, shift - left, shift))
        border = [self._rows(source, time, *part) for part in ((0, first), (end, rows)) if part[0] < part[1]]
        if kind == "max":
            made = [self.bb.emit(relax.op.max(part, [1, 2], True)) for part in (*parts, *border)]
            while len(made) > 1:
                made = [self.bb.emit(relax.op.maximum(made[0], made[1])), *made[2:]]
            return made[0]
        across, whole = shape_of(source)[3 - time], prod(shape_of(source)[1:3]) if kind == "mean" else 1
        weights = [*([left] if left else []), shift - left]
        terms = [(part, n * across / whole) for part, n in zip(parts, weights, strict=True)]
        made = [self._weighed(*term) for term in (*terms, *((part, 1 / whole) for part in border))]
        while len(made) > 1:
            made = [self.bb.emit(relax.op.add(made[0], made[1])), *made[2:]]
        return made[0]

    def _weighed(self, part: Value, weight: float) -> Value:
        total = self.bb.emit(relax.op.sum(part, [1, 2], True))
        return total if weight == 1 else self.bb.emit(relax.op.multiply(total, relax.const(weight, str(part.ty.dtype))))

    def _rows(self, source: Value, time: int, first: int, end: int) -> Value:
        if (first, end) == (0, shape_of(source)[time]):
            return source
        return self.bb.emit(relax.op.strided_slice(source, [time], [first], [end], [1]))

    def _pooled(self, kind: str, source: Value, time: int, window: int, stride: int) -> Value:
        """Emit the mean or maximum for every row window; each is a row in the result."""
        size, strides = [shape_of(source)[1], shape_of(source)[2]], [1, 1]
        size[time - 1], strides[time - 1] = window, stride
        return self.bb.emit(_POOLS[kind](source, size, strides, layout="NHWC"))
