"""Convolutions and pools: rows at the window's border keep their padding, all inner rows are computed without."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

from tvm_cascade.graph import Window
from tvm_cascade.passes.integer.untyped import Value, relax
from tvm_cascade.passes.read.relax_names import integers
from tvm_cascade.passes.sliding.site import NotSliding, Part, Site, Sliding, shape_of
from tvm_cascade.sliding.network import Rows


def convolution(site: Site) -> Sliding:
    """Apply to a convolution with constant weights over one or two axes, including time."""
    attrs = site.call.attrs
    layout, weights_layout = str(attrs.data_layout), str(attrs.kernel_layout)
    if len(site.inputs) > 1 or not site.is_input(0) or str(attrs.out_layout) not in ("", layout):
        raise NotSliding
    weights = shape_of(site.call.args[1])
    place = _place(layout, site.axes[0])
    extent = weights[weights_layout.index(layout[site.axes[0]])]
    window = _window(extent, attrs, place)
    macs = int(prod(weights) // extent * _across(site, weights, layout, weights_layout))
    options = {k: str(getattr(attrs, k)) for k in ("data_layout", "kernel_layout", "out_layout")}
    options |= {"groups": int(attrs.groups), "out_dtype": str(attrs.out_dtype or "") or None}
    part = _part(site, window, place, {**options, **_strides(attrs)})
    return Sliding(site.axes[0], (window,), part, macs=macs)


def _across(site: Site, weights: tuple[int, ...], layout: str, weights_layout: str) -> Fraction:
    """Count the taps along the second spatial axis over all output positions, as a factor of the kernel extent; padding
    not counted.
    """
    others = [axis for axis, letter in enumerate(layout) if letter in "DHW" and axis != site.axes[0]]
    factor = Fraction(1)
    for axis in others:
        extent = weights[weights_layout.index(layout[axis])]
        window = _window(extent, site.call.attrs, _place(layout, axis))
        columns = shape_of(site.inputs[0])[axis]
        factor *= Fraction(sum(window.taps(x, columns) for x in range(site.shape[axis])), extent)
    return factor


def pool(site: Site) -> Sliding:
    """Apply to a pool over one or two axes, including time."""
    attrs = site.call.attrs
    layout, ceil, counted = str(attrs.layout), bool(attrs.ceil_mode), bool(attrs.count_include_pad)
    if (ceil and counted) or str(attrs.out_layout) not in ("", layout):
        raise NotSliding
    place = _place(layout, site.axes[0])
    window = _window(integers(attrs.pool_size)[place], attrs, place)
    options = {"layout": layout, "out_layout": str(attrs.out_layout), "ceil_mode": ceil, "count_include_pad": counted}
    part = _part(site, window, place, {"pool_size": integers(attrs.pool_size), **options, **_strides(attrs)})
    reduction = {"avg_pool2d": relax.op.mean, "max_pool2d": relax.op.max}.get(site.name)
    whole = [layout.index(letter) for letter in "HW" if letter in layout]

    def one_row(args: Sequence[Value], rows: Rows, read: Sequence[Rows]) -> Value:
        """Reduce a map that a single window covers: kernels then need no map, but take its rows as they are made."""
        across = [p for k, p in enumerate(integers(attrs.padding)) if k % len(whole) != place]
        covered = rows[1] - rows[0] == 1 and not any(across) and {*integers(attrs.dilation)} == {1}
        covered = covered and integers(attrs.pool_size) == [shape_of(args[0])[a] for a in whole]
        return reduction(args[0], whole, True) if covered and reduction is not None else part(args, rows, read)

    return Sliding(site.axes[0], (window,), one_row)


def _place(layout: str, axis: int) -> int:
    """Return an axis's number among a layout's spatial axes, in the order of strides and padding."""
    spatial = [letter for letter in "DHW" if letter in layout]
    if axis >= len(layout) or layout[axis] not in spatial:
        raise NotSliding
    return spatial.index(layout[axis])


def _strides(attrs: Any) -> dict[str, Any]:
    return {k: integers(getattr(attrs, k)) for k in ("strides", "dilation")}


def _window(extent: int, attrs: Any, place: int) -> Window:
    strides, dilation, padding = (integers(getattr(attrs, k)) for k in ("strides", "dilation", "padding"))
    return Window(extent, strides[place], dilation[place], padding[place])


def _part(site: Site, window: Window, place: int, options: dict[str, Any]) -> Part:
    build = getattr(relax.op.nn, site.name)
    padding = integers(site.call.attrs.padding)

    def part(args: Sequence[Value], rows: Rows, read: Sequence[Rows]) -> Value:
        before = read[0][0] - window.first(rows[0])
        after = window.first(rows[1] - 1) + window.span - read[0][1]
        if before < 0 or after < 0:
            raise NotSliding
        own = list(padding)
        own[place], own[place + len(padding) // 2] = before, after
        return build(*args, padding=own, **options)

    return part
