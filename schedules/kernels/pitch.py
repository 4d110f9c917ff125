"""Rewriting a kernel to write pixels `pitch` bytes apart, so the output becomes a part of a join (concat).

before: `out[e] = v`, contiguous pixels of `c` elements
after:  `out[e // c * p + e % c] = v`, `p` elements from pixel to pixel

The quotient and the remainder are simplified by the loops' ranges: `(x * 4 + p) * c + (o * 2 + j)` becomes `(x * 4 + p)
* p' + (o * 2 + j)`, at no cost. If that fails the kernel cannot be rewritten (`NotPitchedError`). A loop over the
elements of several pixels becomes a loop over pixels around a loop over a pixel's elements.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from tvm_cascade.graph import ITEM_BYTES
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.kernels.kernel import Deferred, Param, Role, RowKernel
from tvm_cascade.schedules.tir import Buffer, Expr, PrimFunc, i32, ir, sym, tirx

_KEPT = 256  # rewritten functions
_NO_ROWS = "it does not write one output row by row"


class NotPitchedError(Exception):
    """A kernel unable to write non-contiguous pixels; the message is the reason."""


def pitched(kernel: RowKernel, unit: int, pitch: int) -> RowKernel:
    """Rewrite `kernel` to write its output pixels of `unit` bytes `pitch` bytes apart. Raises `NotPitchedError`."""
    if kernel.whole:
        raise NotPitchedError(_NO_ROWS)
    made = _rewritten(kernel.code, kernel.params, unit, pitch)
    if isinstance(made, str):
        raise NotPitchedError(made)
    return replace(kernel, code=made)


@lru_cache(maxsize=_KEPT)
def _rewritten(code: PrimFunc | Deferred, params: tuple[Param, ...], unit: int, pitch: int) -> PrimFunc | str:
    """Rewrite a row kernel's code, or return why it cannot be; equal operators share code and result."""
    func = code.func if isinstance(code, Deferred) else code
    outputs = [p for p, role in zip(func.params, params, strict=True) if role.role is Role.OUTPUT]
    if len(outputs) != 1:
        return _NO_ROWS
    body = func.body
    views = {d.buffer for d in tir.collect(body, tirx.DeclBuffer) if d.data.same_as(outputs[0])}
    if any(x.source in views for c in _addresses(body) for x in tir.collect(c, ir.TensorLoad)):
        return "it takes the address of its output"
    body = tir.replace(body, tirx.For, lambda loop: _by_pixels(loop, views, unit))
    analyzer = sym.Analyzer()
    for loop in tir.collect(body, tirx.For):
        low, extent = tir.int_value(loop.min), tir.int_value(loop.extent)
        if low is not None and extent is not None:
            analyzer.bind(loop.loop_var, ir.Range(low, low + extent))
    spread = _Spread(analyzer, unit, pitch)
    accesses = [(x.source, x.indices) for x in tir.loads(body)] + [(s.buffer, s.indices) for s in tir.stores(body)]
    try:
        for (
            buffer,
            indices,
        ) in accesses:  # ahead of the rewrite: an exception inside of TVM's map would become TVM's own
            if buffer in views:
                spread.index(buffer, indices[0])
    except NotPitchedError as why:
        return str(why)

    def place(buffer: Buffer, indices: list[Expr]) -> tuple[Buffer, list[Expr]] | None:
        return (buffer, [spread.index(buffer, indices[0])]) if buffer in views else None

    return func.with_body(tir.relocated(body, place))


def _by_pixels(loop: Any, views: set[Buffer], unit: int) -> Any:
    """Split a loop over the elements of several pixels with `unit` bytes in two: over pixels, and inside a pixel; return
    any other loop unchanged.
    """
    count, var = tir.int_value(loop.extent), loop.loop_var
    stored = [s for s in tir.collect(loop.body, tirx.BufferStore) if s.buffer in views]
    steps = {(_step(s.indices[0], var), ITEM_BYTES[tir.dtype_of(s.buffer)]) for s in stored}
    if count is None or tir.int_value(loop.min) != 0 or len(steps) != 1:
        return loop
    step, item = steps.pop()
    if step is None or step < 1 or unit % (step * item):
        return loop
    times = unit // (step * item)  # iterations for a pixel
    if times == 1 or count % times or count == times:
        return loop
    pixel, element = (tirx.Var(name, "int32") for name in (f"{var.name}_pixel", var.name))
    inner = tir.for_range(element, times, tir.substitute(loop.body, {var: pixel * times + element}))
    return tir.for_range(pixel, count // times, inner)


def _step(index: Expr, var: Any) -> int | None:
    """Return the elements by which an index moves from one iteration to the next; None if that is not constant."""
    linear: Any = sym.detect_linear_equation(index.base if isinstance(index, tirx.Ramp) else index, [var])
    return tir.int_value(sym.Analyzer().simplify(linear[0])) if len(linear) == 2 else None


def _addresses(body: Any) -> list[Any]:
    return [c for c in tir.collect(body, ir.Call) if getattr(c.op, "name", "").endswith("address_of")]


class _Spread:
    """Converts indices into contiguous pixels of `unit` bytes to indices into pixels `pitch` bytes apart."""

    def __init__(self, analyzer: Any, unit: int, pitch: int) -> None:
        self.analyzer, self.unit, self.pitch = analyzer, unit, pitch

    def index(self, buffer: Buffer, index: Expr) -> Expr:
        item = ITEM_BYTES[tir.dtype_of(buffer)]
        if self.unit % item or self.pitch % item:
            raise NotPitchedError(f"pixels of {self.unit} bytes, {self.pitch} apart, are no whole elements")
        unit, pitch = self.unit // item, self.pitch // item
        if not isinstance(index, tirx.Ramp):
            return self._spread(index, unit, pitch)
        lanes = int(index.lanes)
        inside = self.analyzer.simplify(tirx.floormod(index.base, i32(unit)))
        if tir.int_value(index.stride) != 1 or not self.analyzer.can_prove(inside + lanes <= unit):
            raise NotPitchedError("its vectors reach beyond a pixel")
        return tirx.Ramp(self._spread(index.base, unit, pitch), index.stride, index.lanes)

    def _spread(self, index: Expr, unit: int, pitch: int) -> Expr:
        pixel = self.analyzer.simplify(tirx.floordiv(index, i32(unit)))
        inside = self.analyzer.simplify(index - pixel * unit)
        if any(_divides(e) > _divides(index) for e in (pixel, inside)):
            raise NotPitchedError("its stores do not tell pixels from channels")
        return self.analyzer.simplify(pixel * pitch + inside)


def _divides(index: Expr) -> int:
    return sum(len(tir.collect(index, kind)) for kind in (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod))
