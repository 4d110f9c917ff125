"""Lowering of gather, tile, broadcast, mirror pad and resize: outputs are input elements at computed indices.

Bilinear resize blends four of them: int8 and int16 in the reference's 10-bit fixed point, uint8 in float32, term by term
as the reference does; real numbers (ONNX, PyTorch) are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

import numpy as np

from tvm_cascade.passes.integer.fixed_point import (
    INT32_MAX,
    i32,
    range_of,
    round_half_away,
    te_broadcast,
    te_clamp,
    te_rounding_divide,
)
from tvm_cascade.passes.integer.requantize import te_quantized
from tvm_cascade.passes.integer.task import STORED, Output, Task, bounded_multiplier, lowers
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx
from tvm_cascade.program.operator import Quantized
from tvm_cascade.program.quant import NotLowered

_FRACTION_BITS = 10  # of a coordinate in the int8 and int16 bilinear resize


@lowers("take", results=STORED)
def lower_gather(task: Task) -> Value:
    """Gather by constant indices along a single axis."""
    data, table = task.operator.value(0), task.operator.value(1).constant
    shape = data.shape
    if table is None or task.attributes["axis"] is None:
        raise NotLowered("a gather by indices that are not constant")
    axis = task.attributes["axis"] % len(shape)
    if table.size and not (int(table.min()) >= 0 and int(table.max()) < shape[axis]):
        raise NotLowered("a gather by indices outside of its input")

    def element(index: tuple[Index, ...], a: Tensor, t: Tensor) -> Scalar:
        chosen = t[tuple(index[axis : axis + table.ndim])] if table.ndim else t[()]
        return a[(*index[:axis], chosen, *index[axis + table.ndim :])]

    return task.elementwise("gather", element, [data.source, table.astype("int32")], axis=axis)


@lowers("tile", results=STORED)
def lower_tile(task: Task) -> Value:
    """Repeat a tensor along its axes."""
    data = task.operator.value(0)
    shape = data.shape
    extents = task.output.shape[len(task.output.shape) - len(shape) :]

    def element(index: tuple[Index, ...], a: Tensor) -> Scalar:
        own = index[len(index) - len(shape) :]
        return a[tuple(i if d == e else i % d for i, d, e in zip(own, shape, extents, strict=True))]

    return task.elementwise("tile", element, [data.source], repeats=task.attributes["repeats"])


@lowers("broadcast_to", results=STORED)
def lower_broadcast(task: Task) -> Value:
    """Repeat a tensor along axes of extent 1, and along new leading axes."""
    return task.elementwise("broadcast", lambda index, a: te_broadcast(a, index), [task.source(0)])


def lower_moving_pad(task: Task) -> Value:
    """Pad with the tensor's elements: reflect (without the edge), replicate (the edge) or circular.
    `data_movement.lower_pad` pads with constants.
    """
    data, mode, widths = task.operator.value(0), task.attributes["pad_mode"], task.attributes["pad_width"]
    shape = data.shape
    sides = list(zip(shape, widths[::2], widths[1::2], strict=True))
    most = {"reflect": -1, "circular": 0}.get(mode)
    if min(widths) < 0 or (most is not None and any(max(b, e) > d + most for d, b, e in sides)):
        raise NotLowered(f"padding of mode {mode}, negative or wider than its input")
    source_index = {"reflect": _reflected, "replicate": _at_edge, "circular": _around}[mode]

    def element(index: tuple[Index, ...], a: Tensor) -> Scalar:
        return a[tuple(source_index(i, *side) for i, side in zip(index, sides, strict=True))]

    return task.elementwise("mirror_pad", element, [data.source], pad_width=widths, mode=mode)


@lowers("resize2d", results=STORED)
def lower_resize_nearest(task: Task) -> Value:
    """Resize by copying the nearest pixel's stored values."""
    if task.attributes["method"] != "nearest_neighbor":
        raise NotLowered(f"a resize by {task.attributes['method']} on stored values")
    grids = _grids(task)
    sources = [nearest_sources(g) for g in grids]
    exact = [_as_ratio(g, s) for g, s in zip(grids, sources, strict=True)]
    tables = [s.astype("int32") for s, e in zip(sources, exact, strict=True) if e is None]

    def compute(a: Tensor, *given: Tensor) -> Tensor:
        def at(n: Index, y: Index, x: Index, c: Index) -> Scalar:
            rest = list(given)
            indices = [
                rest.pop(0)[i] if ratio is None else (i * ratio[0] // ratio[1])
                for i, ratio in zip((y, x), exact, strict=True)
            ]
            return a[n, indices[0], indices[1], c]

        return te.compute(task.output.shape, at, name="resize_nearest")

    return task.emitter.call("resize_nearest", compute, [task.source(0), *tables], **_flags(grids[0]))


@lowers("resize2d")
def lower_resize_bilinear(task: Task) -> Value:
    """Resize by interpolation between four pixels."""
    if task.attributes["method"] != "linear":
        raise NotLowered(f"a resize by {task.attributes['method']}")
    x, out = task.operator.quantized(0), task.output
    rows, columns = _grids(task)
    if task.real:
        return _bilinear(task, x.source, rows, _rounded_once(x, out, rows, columns))
    if not out.same_as(x):
        raise NotLowered("a resize with unequal scales in TFLite")
    if out.declared != "uint8":
        if any((g.target + 1) * g.fixed_step > INT32_MAX for g in (rows, columns)):
            raise NotLowered("a resize whose coordinates exceed 32 bits")
        return _bilinear(task, x.source, rows, lambda a, n, y, xx, c: _te_blend_fixed(a, n, c, rows, y, columns, xx))

    def unsigned(a: Tensor, n: Index, y: Index, xx: Index, c: Index) -> Scalar:
        at = _te_float_coordinate(rows, y), _te_float_coordinate(columns, xx)
        total = _te_blend(a, n, c, *at, out.offset) + tirx.const(0.5, "float32")
        return (total.astype("int32") - i32(out.offset)).astype(out.dtype)

    return _bilinear(task, x.source, rows, unsigned)


def _rounded_once(x: Quantized, out: Output, rows: Grid, columns: Grid) -> Callable[..., Scalar]:
    """Blend real numbers, rounded once: in integers if all places are multiples of 1/1024, else in float32."""
    ratio = np.float64(x.step) / np.float64(out.scale)
    if x.dtype == "int8" and rows.is_fixed and columns.is_fixed:
        bits = 2 * _FRACTION_BITS
        m, s = bounded_multiplier(ratio / (1 << bits))

        def exact(a: Tensor, n: Index, y: Index, xx: Index, c: Index) -> Scalar:
            total = _te_fixed_total(a, n, c, rows, y, columns, xx) - i32(x.zero_point << bits)
            return out.stored(out.rescaled(total, m, s, x.reach << bits))

        return exact

    def real(a: Tensor, n: Index, y: Index, xx: Index, c: Index) -> Scalar:
        at = _te_float_coordinate(rows, y), _te_float_coordinate(columns, xx)
        return te_quantized(_te_blend(a, n, c, *at, -x.zero_point) * tirx.const(float(ratio), "float32"), out)

    return real


@lowers("resize2d", results="float32")
def lower_float_resize(task: Task) -> Value | None:
    """Lower a float resize in NHWC, with the reference's coordinates and blending; None (left to Relax) for any other
    resize.
    """
    attrs = task.attributes
    modes = ("align_corners", "half_pixel", "asymmetric")
    if attrs["layout"] != "NHWC" or attrs["coordinate_transformation_mode"] not in modes:
        return None
    if attrs["method"] == "nearest_neighbor":
        return lower_resize_nearest(task)
    if attrs["method"] != "linear":
        return None
    rows, columns = _grids(task)
    return _bilinear(
        task,
        task.source(0),
        rows,
        lambda a, n, y, xx, c: _te_blend(a, n, c, _te_float_coordinate(rows, y), _te_float_coordinate(columns, xx)),
    )


def _bilinear(task: Task, source: Value, grid: Grid, element: Callable[..., Scalar]) -> Value:
    def compute(a: Tensor) -> Tensor:
        return te.compute(task.output.shape, lambda n, y, xx, c: element(a, n, y, xx, c), name="resize_bilinear")

    return task.emitter.call("resize_bilinear", compute, [source], **_flags(grid))


@dataclass(frozen=True, slots=True)
class Grid:
    """A resize's coordinate mapping along a single axis."""

    source: int  # extent of the input
    target: int  # extent of the output
    align_corners: bool
    half_pixel: bool

    @property
    def step(self) -> np.float32:
        """Return the input step per output element, in the reference's float32."""
        if self.align_corners and self.target > 1:
            return np.float32(self.source - 1) / np.float32(self.target - 1)
        return np.float32(self.source) / np.float32(self.target)

    @property
    def fixed_step(self) -> int:
        """Return the input step per output element, in units of 1/1024."""
        one = 1 << _FRACTION_BITS
        if self.align_corners and self.target > 1:
            return (one * (self.source - 1) + (self.target - 1) // 2) // (self.target - 1)
        return (one * self.source + self.target // 2) // self.target

    @property
    def is_fixed(self) -> bool:
        """Return True if every output's place is a multiple of 1/1024."""
        if self.align_corners and self.target > 1:
            return (self.source - 1 << _FRACTION_BITS) % (self.target - 1) == 0
        whole = (self.source << _FRACTION_BITS) % self.target == 0
        return whole and not (self.half_pixel and self.fixed_step % 2)


def nearest_sources(grid: Grid) -> np.ndarray:
    """Return each output index's input index, in the reference's float32."""
    offset = np.float32(0.5) if grid.half_pixel else np.float32(0)
    real = (np.arange(grid.target, dtype="float32") + offset) * grid.step
    whole = [round_half_away(v) for v in real] if grid.align_corners else np.floor(real).astype("int64")
    return np.clip(whole, 0, grid.source - 1)


def _as_ratio(grid: Grid, sources: np.ndarray) -> tuple[int, int] | None:
    """Return (p, q) with `sources[i] == i * p // q` for all i, an index form for window analysis; None without one."""
    common = gcd(grid.source, grid.target)
    p, q = grid.source // common, grid.target // common
    return (p, q) if np.array_equal(np.arange(grid.target) * p // q, sources) else None


def _grids(task: Task) -> tuple[Grid, Grid]:
    attrs = task.attributes
    mode = attrs["coordinate_transformation_mode"]
    if attrs["layout"] != "NHWC" or mode not in ("align_corners", "half_pixel", "asymmetric"):
        raise NotLowered(f"a resize of layout {attrs['layout']} and mode {mode}")
    _, height, width, _ = task.operator.value(0).shape
    _, rows, columns, _ = task.output.shape
    flags = (mode == "align_corners", mode == "half_pixel")
    return Grid(height, rows, *flags), Grid(width, columns, *flags)


def _flags(grid: Grid) -> dict[str, int]:
    return {"align_corners": int(grid.align_corners), "half_pixel": int(grid.half_pixel)}


def _reflected(i: Index, extent: int, before: int, after: int) -> Scalar:
    j = tirx.Select(i - before < 0, 0 - (i - before), i - before) if before else i
    return tirx.Select(j > extent - 1, i32(2 * extent - 2) - j, j) if after else j


def _at_edge(i: Index, extent: int, before: int, after: int) -> Scalar:
    j = tirx.max(i - before, i32(0)) if before else i
    return tirx.min(j, i32(extent - 1)) if after else j


def _around(i: Index, extent: int, before: int, after: int) -> Scalar:
    j = tirx.Select(i - before < 0, i - before + extent, i - before) if before else i
    return tirx.Select(j > extent - 1, j - extent, j) if after else j


def _te_fixed_coordinate(grid: Grid, i: Index) -> tuple[Scalar, Scalar, Scalar]:
    """Return the two source indices for output index `i`, and the second's weight in units of 1/1024."""
    one, step = 1 << _FRACTION_BITS, grid.fixed_step
    at = i * step + (step // 2 - one // 2) if grid.half_pixel else i * step
    first = tirx.max(at, i32(0)) >> i32(_FRACTION_BITS)  # as C's division, which truncates negative coordinates to 0
    second = tirx.min((at + i32(one - 1)) >> i32(_FRACTION_BITS), i32(grid.source - 1))
    return tirx.min(first, i32(grid.source - 1)), second, at - first * i32(1 << _FRACTION_BITS)


def _te_blend_fixed(a: Tensor, n: Index, c: Index, rows: Grid, y: Index, columns: Grid, x: Index) -> Scalar:
    """Blend bilinearly in the reference's fixed point: int8 in 32 bits, int16 in 64."""
    # half away from zero by shifts: TVM narrows the comparison of a wide number with zero to 32 bits
    total, wide = _te_fixed_total(a, n, c, rows, y, columns, x), 32 if str(a.dtype) == "int8" else 64
    rounded = te_rounding_divide(total, 2 * _FRACTION_BITS, wide).astype("int32")
    return te_clamp(rounded, *range_of(str(a.dtype)), str(a.dtype))


def _te_fixed_total(a: Tensor, n: Index, c: Index, rows: Grid, y: Index, columns: Grid, x: Index) -> Scalar:
    """Sum the blended stored values in units of 2^-20: int8 in 32 bits, int16 in 64."""
    y0, y1, wy = _te_fixed_coordinate(rows, y)
    x0, x1, wx = _te_fixed_coordinate(columns, x)
    one = i32(1 << _FRACTION_BITS)
    wide = "int32" if str(a.dtype) == "int8" else "int64"

    def part(row: Index, column: Index, weight: Scalar) -> Scalar:
        return a[n, row, column, c].astype(wide) * weight.astype(wide)

    return (
        part(y0, x0, (one - wy) * (one - wx))
        + part(y1, x0, wy * (one - wx))
        + part(y0, x1, (one - wy) * wx)
        + part(y1, x1, wy * wx)
    )


def _te_float_coordinate(grid: Grid, i: Index) -> tuple[Scalar, Scalar, Scalar]:
    """Return the two source indices for output index `i`, and the second's weight in float32."""
    step = tirx.const(float(grid.step), "float32")
    coordinate = i.astype("float32") * step
    if grid.half_pixel:
        coordinate = (i.astype("float32") + tirx.const(0.5, "float32")) * step - tirx.const(0.5, "float32")
    low = tirx.floor(coordinate).astype("int32")
    first, last = tirx.max(low, i32(0)), i32(grid.source - 1)
    above = tirx.ceil(coordinate).astype("int32")
    return tirx.min(first, last), tirx.min(above, last), coordinate - tirx.min(first, last).astype("float32")


def _te_blend(
    a: Tensor,
    n: Index,
    c: Index,
    row: tuple[Scalar, Scalar, Scalar],
    column: tuple[Scalar, Scalar, Scalar],
    offset: int = 0,
) -> Scalar:
    """Blend four neighbours bilinearly, `offset` added to each, in float32, summed in the reference's order."""
    (y0, y1, wy), (x0, x1, wx) = row, column
    one = tirx.const(1.0, "float32")

    def at(y: Scalar, x: Scalar) -> Scalar:
        value = a[n, y, x, c]
        return (value.astype("int32") + i32(offset) if offset else value).astype("float32")

    return (
        at(y0, x0) * (one - wy) * (one - wx)
        + at(y1, x0) * wy * (one - wx)
        + at(y0, x1) * (one - wy) * wx
        + at(y1, x1) * wy * wx
    )
