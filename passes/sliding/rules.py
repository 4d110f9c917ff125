"""Rules for how Relax operators slide over time; `rule_of` finds an operator's rule.

A rule raises `NotSliding` for a call that does not slide. An operator without a rule does not slide either, which is
always correct.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tvm_cascade.graph import ITEM_BYTES, Window
from tvm_cascade.operators.table import OPERATORS
from tvm_cascade.passes.integer.untyped import Value, relax
from tvm_cascade.passes.islands.stored import BOUNDARIES
from tvm_cascade.passes.sliding.site import NotSliding, Site, Sliding, row_for_row, same_call, shape_of
from tvm_cascade.passes.sliding.windowed import convolution, pool
from tvm_cascade.sliding.network import Rows

Rule = Callable[[Site], Sliding]
_REDUCTIONS = ("mean", "sum", "max", "min", "prod", "variance", "std")


def rule_of(name: str) -> Rule | None:
    """Find the rule of an operator by name without namespace; None if there is none."""
    operator = OPERATORS.get(name)
    return _RULES.get(name) or (elementwise if operator is not None and operator.elementwise else None)


def elementwise(site: Site) -> Sliding:
    """Apply to element-wise operators with broadcast operands: constants may not differ from row to row."""
    rank = len(site.shape)
    along = {axis + rank - len(shape_of(v)) for v, axis in zip(site.inputs, site.axes, strict=True)}
    axis = along.pop()
    if along or any(shape_of(v)[a] != site.shape[axis] for v, a in zip(site.inputs, site.axes, strict=True)):
        raise NotSliding
    for constant in site.constants:
        shape = shape_of(constant)
        place = axis - rank + len(shape)
        if place >= 0 and shape[place] != 1:
            raise NotSliding
    return row_for_row(site, axis, free=_widens(site))


def quantization(site: Site) -> Sliding:
    """Apply between stored integers and real numbers: a single scale, or a scale per slice along another axis."""
    axis = site.axes[0]
    per_axis = any(prod(shape_of(c)) > 1 for c in site.constants)
    if len(site.inputs) > 1 or (per_axis and int(site.call.attrs.axis) % len(site.shape) == axis):
        raise NotSliding
    return row_for_row(site, axis, free=_widens(site))


def _widens(site: Site) -> bool:
    """Test whether an operator only widens values: then the input is kept instead."""
    only = site.name in (*BOUNDARIES, "astype")
    return only and ITEM_BYTES[site.dtype] > ITEM_BYTES[str(site.inputs[0].ty.dtype)]


def reshape(site: Site) -> Sliding:
    """Apply to reshapes that keep the rows, or merge several rows into a single row."""
    before, after, axis, rows = shape_of(site.inputs[0]), site.shape, site.axes[0], site.rows
    outer = prod(before[:axis])
    for place, extent in enumerate(after):
        if prod(after[:place]) != outer or extent < 2 or rows % extent:
            continue
        each = rows // extent

        def part(args: Sequence[Value], wanted: Rows, _read: Sequence[Rows], place: int = place) -> Value:
            shape = (*after[:place], wanted[1] - wanted[0], *after[place + 1 :])
            return relax.op.reshape(args[0], shape)

        return Sliding(place, (Window(each, each),), part, free=True)
    raise NotSliding


def permute(site: Site) -> Sliding:
    """Transposes."""
    rank = len(site.shape)
    axes = site.call.attrs.axes
    order = [int(a) % rank for a in axes] if axes is not None else list(reversed(range(rank)))
    return row_for_row(site, order.index(site.axes[0]), free=True)


def concat(site: Site) -> Sliding:
    """Apply to concatenations along another axis than time, of tensors with rows alone."""
    axis = int(site.call.attrs.axis) % len(site.shape)
    if site.constants or len(set(site.axes)) > 1 or axis == site.axes[0]:
        raise NotSliding
    return row_for_row(site, site.axes[0])


def slices(site: Site) -> Sliding:
    """Slices along any axes, with a positive stride along time."""
    time, rank = site.axes[0], len(site.shape)
    given = [[int(v.value if hasattr(v, "value") else v) for v in a.fields] for a in site.call.args[1:]]
    axes = [a % rank for a in given[0]]
    strides = given[3] if len(given) > 3 else [1] * len(axes)
    if time not in axes:
        return row_for_row(site, time)
    place = axes.index(time)
    begin, step = given[1][place], strides[place]
    begin = max(begin + site.rows, 0) if begin < 0 else min(begin, site.rows)
    if step < 1:
        raise NotSliding

    def part(args: Sequence[Value], rows: Rows, read: Sequence[Rows]) -> Value:
        first = begin + rows[0] * step - read[0][0]
        last = begin + (rows[1] - 1) * step + 1 - read[0][0]
        begins, ends = list(given[1]), list(given[2])
        begins[place], ends[place] = first, last
        return relax.op.strided_slice(args[0], axes, begins, ends, strides)

    return Sliding(time, (Window(1, step, padding=-begin),), part, free=True)


def pad(site: Site) -> Sliding:
    """Apply to padding of any axes with a constant."""
    widths = [int(w) for w in site.call.attrs.pad_width]
    time = site.axes[0]
    before = widths[2 * time]
    if str(site.call.attrs.pad_mode) != "constant":
        raise NotSliding
    value = site.call.attrs.pad_value if hasattr(site.call.attrs, "pad_value") else 0.0

    def part(args: Sequence[Value], rows: Rows, read: Sequence[Rows]) -> Value:
        first, last = rows[0] - before, rows[1] - before
        low, high = read[0][0] - first, last - read[0][1]
        if low < 0 or high < 0:
            raise NotSliding
        own = list(widths)
        own[2 * time], own[2 * time + 1] = low, high
        return relax.op.nn.pad(args[0], own, pad_value=float(value))

    return Sliding(time, (Window(1, padding=before),), part, free=True)


def reduction(site: Site) -> Sliding:
    """Apply to reductions over axes besides time."""
    rank, axes = len(shape_of(site.inputs[0])), site.call.attrs.axis
    over = {int(a) % rank for a in axes} if axes is not None else set(range(rank))
    time = site.axes[0]
    if time in over:
        raise NotSliding
    lost = 0 if bool(site.call.attrs.keepdims) else sum(a < time for a in over)
    return row_for_row(site, time - lost)


def softmax(site: Site) -> Sliding:
    """Apply to normalizations over an axis besides time."""
    if int(site.call.attrs.axis) % len(site.shape) == site.axes[0]:
        raise NotSliding
    return row_for_row(site, site.axes[0])


def normalization(site: Site) -> Sliding:
    """Apply to normalizations over several axes, not including time."""
    if site.axes[0] in {int(a) % len(site.shape) for a in site.call.attrs.axes} or not site.is_input(0):
        raise NotSliding
    return row_for_row(site, site.axes[0])


def product(site: Site) -> Sliding:
    """Apply to a dense layer: rows times constant weights."""
    rank = len(shape_of(site.inputs[0]))
    if not site.constants or not site.is_input(0) or site.axes[0] == rank - 1:
        raise NotSliding
    if len(shape_of(site.constants[0])) != 2 or len(site.shape) != rank:
        raise NotSliding
    macs = prod(site.shape) // site.rows * shape_of(site.inputs[0])[-1]
    return row_for_row(site, site.axes[0], same_call(site), macs=macs)


_RULES: dict[str, Rule] = {
    "matmul": product, "concat": concat, "strided_slice": slices, "pad": pad, "permute_dims": permute,
    "softmax": softmax, "log_softmax": softmax, "layer_norm": normalization,
    **dict.fromkeys(BOUNDARIES, quantization),
    **dict.fromkeys(("reshape", "expand_dims", "squeeze", "flatten"), reshape),
    **dict.fromkeys(("conv1d", "conv2d"), convolution),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d"), pool),
    **dict.fromkeys(_REDUCTIONS, reduction),
}  # fmt: skip
