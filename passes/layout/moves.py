"""Convert layouts from NCHW to NHWC: track each value's layout, and rewrite operators that only move elements.

`Moves` is the base class for the rewrite in `channels_last`, which adds arithmetic rules. Moves act on stored integers
where these stand for real numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import tvm

from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.passes.layout.nearest import NEAREST_MODES, nearest_sources
from tvm_cascade.passes.main_rewriting import Rewriting, Value, constant_of, name_of, relax, shape_of

TO_LAST = [0, 2, 3, 1]
TO_FIRST = [0, 3, 1, 2]
LAST_AXIS = {0: 0, 1: 3, 2: 1, 3: 2}  # where an axis of NCHW lies in NHWC
_EXACT = 1e-3  # quantization steps by which a number may miss a stored integer


@dataclass(frozen=True, slots=True)
class Placed:
    """A value in the new function. `last`: in NHWC, with a counterpart in NCHW in the old function."""

    value: Value
    last: bool = False
    order: tuple[int, ...] = ()  # neither layout: by axis of `value`, the axis of its counterpart
    image: tuple[int, ...] = ()  # merged into the last axis: channels, rows, columns; in `value` the channels come last

    @property
    def axes(self) -> Mapping[int, int]:
        """Map the counterpart's axes to `value`'s axes; empty if the axes agree."""
        return LAST_AXIS if self.last else {axis: at for at, axis in enumerate(self.order)}


class Moves(Rewriting):
    """Rules for operators that move elements, and the layouts of values."""

    def __init__(self, mod: Value) -> None:
        super().__init__(mod)
        self.placed: dict[Value, Placed] = {}
        self.moved: dict[tuple[Value, bool], Value] = {}
        self.arranged: dict[tuple[Value, tuple[int, ...]], Value] = {}
        self.split: dict[Value, Stored] = {}  # split of stored integers -> what was split

    def _other(self, value: Value) -> Placed:
        """Rewrite an operator without a rule: it reads and writes the old layout (NCHW)."""
        if isinstance(value, relax.Call):
            return Placed(
                self.bb.emit(relax.Call(value.op, [self._first_of(a) for a in value.args], value.attrs, value.ty_args))
            )
        if isinstance(value, relax.TupleGetItem):
            return self._part(value)
        return self._place(value) if isinstance(value, relax.Var) else Placed(self.bb.emit(self._first_of(value)))

    # where values are ------------------------------------------------------------------------------------------------

    def _place(self, value: Value) -> Placed:
        """Return a value's place, in NHWC or in the old layout."""
        placed = self._ordered(value)
        if placed.image:
            return Placed(self._in_planes(placed))
        return Placed(self._arranged(placed, range(len(placed.order)))) if placed.order else placed

    def _ordered(self, value: Value) -> Placed:
        """Return a value's place, in any axis order."""
        return self.placed.get(value, Placed(value)) if isinstance(value, relax.Var) else Placed(value)

    def _in_planes(self, placed: Placed) -> Value:
        """Return a merged image in the order of the old layout, plane by plane."""
        key = (placed.value, placed.image)
        if key not in self.arranged:
            shape, (channels, rows, columns) = shape_of(placed.value), placed.image

            def move(value: Value) -> Value:
                pixels = self._reshaped(value, [prod(shape[:-1]), rows, columns, channels])
                return self._reshaped(self._permuted(pixels, TO_FIRST), shape)

            self.arranged[key] = self._rearranged(placed.value, move)
        return self.arranged[key]

    def _arranged(self, placed: Placed, axes: Sequence[int]) -> Value:
        """Return a value in the given order of its counterpart's axes."""
        order = tuple(placed.order.index(axis) for axis in axes)
        key = (placed.value, order)
        if key not in self.arranged:
            self.arranged[key] = self._rearranged(placed.value, lambda v: self._permuted(v, order), order)
        return self.arranged[key]

    def _first_of(self, value: Value) -> Value:
        """Return the old `value` in its own layout."""
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._first_of(f) for f in value.fields])
        placed = self._place(value)
        return self._transposed(placed.value, last=False) if placed.last else placed.value

    def _last_of(self, value: Value) -> Value:
        """Return the old rank-4 `value` with channels last."""
        placed = self._ordered(value)
        if placed.order:
            return self._arranged(placed, TO_LAST)
        placed = self._place(value)
        return placed.value if placed.last else self._transposed(placed.value, last=True)

    def _last_where(self, value: Value, kept: bool) -> Placed:
        """Return `value` in NHWC if it has that layout and `kept` allows it, else in the old layout."""
        placed = self._place(value)
        return placed if placed.last and kept else Placed(self._first_of(value))

    def _moved(self, placed: Placed, move: Callable[[Value], Value]) -> Placed:
        """Emit `move` of a value, which keeps its place."""
        return replace(placed, value=self._rearranged(placed.value, lambda v: self.bb.emit(move(v))))

    def _transposed(self, value: Value, last: bool) -> Value:
        """Transpose `value` to NHWC (`last`) or NCHW; fold a constant."""
        key = (value, last)
        if key not in self.moved:
            order = TO_LAST if last else TO_FIRST
            named, self.bb.name = self.bb.name, ""  # the file has no such tensor
            self.moved[key] = self._rearranged(value, lambda v: self._permuted(v, order), order)
            self.bb.name = named
        return self.moved[key]

    def _permuted(self, value: Value, order: Sequence[int]) -> Value:
        data = constant_of(value)
        if data is not None:
            return relax.const(np.ascontiguousarray(data.transpose(order)), str(data.dtype))
        source = self._definition(value)
        if name_of(source) == "permute_dims" and source.attrs.axes is not None:
            inner = [int(a) for a in source.attrs.axes]
            return self._permuted(source.args[0], [inner[axis] for axis in order])
        if list(order) == sorted(order):
            return value
        shape = shape_of(value)
        moved = [axis for axis in order if shape[axis] != 1]
        if moved == sorted(moved):  # elements stay where they are
            return self._reshaped(value, [shape[axis] for axis in order])
        return self._once(relax.op.permute_dims, value, order)

    def _rearranged(self, value: Value, move: Callable[[Value], Value], order: Sequence[int] | None = None) -> Value:
        """Return `move(value)`, applied to stored integers if `Stored.moved` allows it."""
        stored = self.stored.get(value)
        moved = None if stored is None else stored.moved(move, order)
        return move(value) if moved is None else self._real(moved)

    def _made_real(self, stored: Stored) -> Placed:
        """Dequantize integers of the old function, in their layout."""
        placed = self._ordered(stored.tensor)
        if placed.image and stored.scales != 1:
            placed = self._place(stored.tensor)
        axis = placed.axes[stored.axis % len(placed.axes)] if placed.axes else stored.axis
        numbers = self._first_of(stored.scale), self._first_of(stored.zero_point)
        return replace(placed, value=self._real(Stored(placed.value, *numbers, axis)))

    # operators -------------------------------------------------------------------------------------------------------

    def _concat(self, call: Value) -> Placed:
        tuple_value = call.args[0]
        fields = list(tuple_value.fields) if isinstance(tuple_value, relax.Tuple) else []
        if not any(self._place(f).last for f in fields):
            return self._other(call)
        axis = LAST_AXIS[int(call.attrs.axis) % 4]
        return Placed(self.bb.emit(relax.op.concat([self._last_of(f) for f in fields], axis=axis)), last=True)

    def _split(self, call: Value) -> Placed:
        """Rewrite a split; of stored integers if a single scale serves the whole and each part."""
        placed, sections = self._place(call.args[0]), call.attrs.indices_or_sections
        axis = int(call.attrs.axis) % len(shape_of(call.args[0]))
        axis = LAST_AXIS[axis] if placed.last else axis
        at = int(sections) if isinstance(sections, (int, tvm.tirx.IntImm)) else [int(v) for v in sections]
        whole = self.stored.get(placed.value)
        if whole is None or whole.scales != 1:
            return Placed(self.bb.emit(relax.op.split(placed.value, at, axis)), placed.last)
        parts = self.bb.emit(relax.op.split(whole.tensor, at, axis))
        self.split[parts] = whole
        return Placed(parts, placed.last)

    def _part(self, item: Value) -> Placed:
        placed = self._place(item.tuple_value)
        part = self.bb.emit(relax.TupleGetItem(placed.value, item.index))
        whole = self.split.get(placed.value)
        if whole is not None:
            part = self._real(whole.along(part))
        return Placed(part, placed.last)

    def _slice(self, call: Value) -> Placed:
        placed, rank = self._place(call.args[0]), len(shape_of(call.args[0]))
        axes, *rest = ([int(getattr(f.value, "value", f.value)) for f in a.fields] for a in call.args[1:])
        axes = [LAST_AXIS[a % rank] if placed.last else a % rank for a in axes]
        inbound = bool(call.attrs.assume_inbound)
        return self._moved(placed, lambda v: relax.op.strided_slice(v, axes, *rest, assume_inbound=inbound))

    def _view(self, call: Value) -> Placed:
        """Rewrite a reshape; a source with a single pixel reads the same in both layouts.

        An image merged into the last axis keeps channels last: what reads it moves the elements, or its weights.
        """
        placed, shape = self._ordered(call.args[0]), shape_of(call)
        if placed.image or placed.last:
            image = placed.image or shape_of(call.args[0])[1:]
            if image[0] > 1 and prod(image[1:]) > 1 and shape and shape[-1] == prod(image):
                return Placed(self._rearranged(placed.value, lambda v: self._reshaped(v, shape)), image=tuple(image))
        if (placed.last or placed.order) and (seen := self._view_in_order(placed, call)) is not None:
            return seen
        source = placed.value if placed.last and shape_of(call.args[0])[2:] == (1, 1) else self._first_of(call.args[0])
        if self._is_bias(source):
            return Placed(self.bb.emit(relax.op.reshape(source, list(shape))))
        return Placed(self._rearranged(source, lambda v: self._reshaped(v, shape)))

    def _view_in_order(self, placed: Placed, call: Value) -> Placed | None:
        """Rewrite a reshape that splits axes, in its source's order, or that merges axes into an image, in NHWC."""
        old, shape = shape_of(call.args[0]), shape_of(call)
        order = placed.order or tuple(TO_LAST)
        if (parts := _splits(old, shape)) is not None:
            axes = tuple(part for axis in order for part in parts[axis])
            made = self._rearranged(placed.value, lambda v: self._reshaped(v, [shape[a] for a in axes]))
            return Placed(made, last=True) if axes == tuple(TO_LAST) else Placed(made, order=axes)
        if not placed.order or len(shape) != 4 or (parts := _splits(shape, old)) is None:
            return None
        whole = self._arranged(placed, [part for axis in TO_LAST for part in parts[axis]])
        made = self._rearranged(whole, lambda v: self._reshaped(v, [shape[a] for a in TO_LAST]))
        return Placed(made, last=True)

    def _reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        """Reshape `value`; fold a constant."""
        data = constant_of(value)
        if data is not None:
            return relax.const(data.reshape(shape), str(data.dtype))
        return self._once(relax.op.reshape, value, shape)

    def _permute(self, call: Value) -> Placed:
        axes = call.attrs.axes
        order = [int(a) for a in axes] if axes is not None else list(reversed(range(len(shape_of(call)))))
        placed = self._ordered(call.args[0])
        if placed.order:  # the next reader moves the elements, once
            return Placed(placed.value, order=tuple(order.index(axis) for axis in placed.order))
        source = self._first_of(call.args[0])
        return Placed(self._rearranged(source, lambda v: self._permuted(v, order), order))

    def _pad(self, call: Value) -> Placed:
        """Rewrite a pad; of stored integers if the mode repeats elements or an integer stands for the pad value."""
        placed, widths = self._ordered(call.args[0]), [int(w) for w in call.attrs.pad_width]
        placed = self._place(call.args[0]) if placed.image else placed
        order = TO_LAST if placed.last else placed.order or range(len(widths) // 2)
        widths = [w for axis in order for w in widths[2 * axis : 2 * axis + 2]]
        mode, value = str(call.attrs.pad_mode), float(call.attrs.pad_value)
        source = self._rearranged(placed.value, lambda v: self._cropped(v, widths))
        widths = [max(w, 0) for w in widths]
        whole = self.stored.get(source)
        fill = _stored_number(whole, value) if whole is not None and mode == "constant" else 0.0
        if fill is None or whole is None or whole.scales != 1:
            return replace(placed, value=self.bb.emit(relax.op.nn.pad(source, widths, mode, value)))
        return self._moved(replace(placed, value=source), lambda v: relax.op.nn.pad(v, widths, mode, fill))

    def _cropped(self, value: Value, widths: list[int]) -> Value:
        """Return `value` without the elements cut off by negative widths."""
        for axis, (before, after) in enumerate(zip(widths[::2], widths[1::2], strict=True)):
            if min(before, after) < 0:
                end = shape_of(value)[axis] + min(after, 0)
                value = self.bb.emit(relax.op.strided_slice(value, [axis], [max(-before, 0)], [end], [1]))
        return value

    def _resize(self, call: Value) -> Placed:
        attrs, placed = call.attrs, self._place(call.args[0])
        mode, method = str(attrs.coordinate_transformation_mode), str(attrs.method)
        stored = placed.value in self.stored
        if str(attrs.layout) != "NCHW" or not (placed.last or stored) or mode not in NEAREST_MODES:
            return self._other(call)
        source, size = self._last_of(call.args[0]), shape_of(call)[2:]
        if method == "nearest_neighbor":
            move = self._nearest(shape_of(call.args[0])[2:], size, mode, str(attrs.rounding_method) or "round")
            return Placed(self._rearranged(source, move), last=True)
        if mode == "pytorch_half_pixel" and 1 not in size:  # the modes agree for these sizes
            mode = "half_pixel"
        resized = relax.op.image.resize2d(
            source,
            size,
            layout="NHWC",
            method=method,
            coordinate_transformation_mode=mode,
            cubic_alpha=float(attrs.cubic_alpha),
            cubic_exclude=int(attrs.cubic_exclude),
        )
        return Placed(self.bb.emit(resized), last=True)

    def _nearest(
        self, extents: Sequence[int], size: Sequence[int], mode: str, rounding: str
    ) -> Callable[[Value], Value]:
        """Return a function that resizes by nearest neighbours: one `resize2d` if kernels have a schedule for this
        form, else a gather per axis.
        """
        places = [nearest_sources(d, n, n / d, mode, rounding) for d, n in zip(extents, size, strict=True)]
        if places == [[i * d // n for i in range(n)] for d, n in zip(extents, size, strict=True)]:
            how = {"method": "nearest_neighbor", "coordinate_transformation_mode": "asymmetric"}
            return lambda v: self.bb.emit(
                relax.op.image.resize2d(v, tuple(size), layout="NHWC", rounding_method="floor", **how)
            )

        def gathered(value: Value) -> Value:
            for axis, at in enumerate(places, 1):
                if at != list(range(shape_of(value)[axis])):
                    value = self.bb.emit(relax.op.take(value, relax.const(list(at), "int32"), axis))
            return value

        return gathered

    def _take(self, call: Value) -> Placed:
        indices = self._first_of(call.args[1])
        if call.attrs.axis is None or constant_of(indices) is None:
            return self._other(call)
        placed = self._last_where(call.args[0], len(shape_of(indices)) == 1)
        axis = int(call.attrs.axis) % len(shape_of(call.args[0]))
        axis = LAST_AXIS[axis] if placed.last else axis
        return self._moved(placed, lambda v: relax.op.take(v, indices, axis))

    def _tile(self, call: Value) -> Placed:
        repeats = [int(r) for r in call.attrs.repeats]
        placed = self._last_where(call.args[0], len(repeats) <= 4)
        if placed.last:
            repeats = [([1] * (4 - len(repeats)) + repeats)[axis] for axis in TO_LAST]
        return self._moved(placed, lambda v: relax.op.tile(v, repeats))

    def _broadcast_to(self, call: Value) -> Placed:
        """Rewrite a broadcast; fold a broadcast constant, such as weights filled with a single number."""
        shape, data = list(shape_of(call)), constant_of(self._place(call.args[0]).value)
        if data is not None:
            return Placed(relax.const(np.broadcast_to(data, shape), str(data.dtype)))
        placed = self._last_where(call.args[0], len(shape) == 4)
        shape = [shape[axis] for axis in TO_LAST] if placed.last else shape
        return self._moved(placed, lambda v: relax.op.broadcast_to(v, shape))

    def _is_bias(self, value: Value) -> bool:
        stored = self.stored.get(value)
        return stored is not None and len(shape_of(value)) == 1 and constant_of(stored.tensor) is not None


def _splits(whole: Sequence[int], parts: Sequence[int]) -> list[list[int]] | None:
    """Return the axes in shape `parts` into which each axis of shape `whole` is split; None for any other reshape."""
    found, at = list[list[int]](), 0
    for extent in whole:
        start, size = at, 1
        while at < len(parts) and (size < extent or at == start):
            size, at = size * parts[at], at + 1
        if size != extent or at == start:
            return None
        found.append(list(range(start, at)))
    return found if at == len(parts) else None


def _stored_number(stored: Stored, value: float) -> float | None:
    """Return the stored integer for `value`; None without one."""
    numbers = stored.numbers
    if numbers is None or not np.isfinite(value) or numbers[0] <= 0:
        return None
    scaled, info = value / numbers[0] + numbers[1], np.iinfo(str(stored.tensor.ty.dtype))
    return float(round(scaled)) if abs(scaled - round(scaled)) < _EXACT and info.min <= scaled <= info.max else None
