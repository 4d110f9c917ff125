"""In-place transpose from NCHW to NHWC, with scratch for a row of most planes, or for a sixteenth if planes are signals.

Two passes over all bytes. First whole rows are permuted: row (c, h) of the planes moves to position h * C + c. The
cycles of this permutation of C * H rows are known at compile time; a table in flash lists their rows, each cycle behind
a spare row. Then the C rows of each image row lie together, and are interleaved through scratch; of few planes, the
last row moves within the image, always to where everything is read already. If nothing divides a signal's length, the
last samples move behind the planes first, as pixels, and the planes close up.
`schedules.forms.transpose_back_in_place` is the inverse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.footprints import KernelFootprints
from tvm_cascade.graph import ITEM_BYTES
from tvm_cascade.schedules.driver.calls import BuiltKernel
from tvm_cascade.schedules.forms.form import KernelForm, Site, Use, Way
from tvm_cascade.schedules.forms.rows import RowSteps
from tvm_cascade.schedules.kernels.kernel import Param, Role, RowKernel
from tvm_cascade.schedules.rules.emit import Builder, Value, best_step
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.lanes import LANES, put, vector
from tvm_cascade.schedules.tir import dtype_of, i32, ir, leaf_blocks, outputs_of, pointer_var, shape_of, stores, tirx

_UNROLL = 4  # most elements per loop iteration, or most planes of which the last moves within the image
TO_NHWC, TO_NCHW = (0, 3, 1, 2), (0, 2, 3, 1)  # axes of the output that the axes of the input become


@dataclass(frozen=True, slots=True)
class Planes:
    """The tensor to transpose, in NCHW shape: `count` planes with `height` rows of `width` elements, then `tail` more."""

    count: int
    height: int
    width: int
    dtype: str
    tail: int = 0

    @property
    def through_scratch(self) -> int:
        """Return the number of planes with rows that pass through scratch: all, or all but the last."""
        return self.count - 1 if self.count <= _UNROLL else self.count

    @property
    def whole(self) -> int:
        """Return the elements of a plane in whole rows."""
        return self.height * self.width

    @property
    def scratch_bytes(self) -> int:
        return max(self.through_scratch * self.width, self.count * self.tail) * ITEM_BYTES[self.dtype]


class TransposeInPlace(KernelForm):
    """The form of transposes from NCHW to NHWC, in place."""

    way = Way.IN_PLACE
    axes: ClassVar[tuple[int, ...]] = TO_NHWC
    refusal: ClassVar[str] = "it is no transpose from NCHW to NHWC"

    def footprint(self, site: Site, known: KernelFootprints) -> KernelFootprints | str:
        planes = planes_of(site, self.axes)
        return self.refusal if planes is None else replace(known, in_place_workspace_bytes=planes.scratch_bytes)

    def build(self, site: Site, use: Use) -> BuiltKernel | str:
        planes = planes_of(site, self.axes)
        return self.refusal if planes is None else RowSteps((self.kernel(planes, site.core),))

    def kernel(self, planes: Planes, core: KernelTarget | None) -> RowKernel:
        passes = InPlacePasses(planes, row_moves(planes.count, planes.height), core)
        passes.close_up()
        passes.move_rows()
        passes.turn_rows(to_pixels=True)
        return passes.kernel()


FORM = TransposeInPlace()


def planes_of(site: Site, axes: tuple[int, ...]) -> Planes | None:
    """Return the tensor's planes if an operator is a transpose with these `axes` (`TO_NHWC` or `TO_NCHW`); else None."""
    func = site.computed.func
    if site.computed.constants or len(func.params) != 2:
        return None
    outputs, blocks = outputs_of(func), leaf_blocks(func)
    if len(outputs) != 1 or len(blocks) != 1:
        return None
    shape, made = shape_of(func.params[0]), stores(blocks[0].block.body)[0]
    if not isinstance(made.value, ir.TensorLoad) or not made.value.source.same_as(func.params[0]):
        return None
    if len(shape) != 4 or shape[0] != 1 or dtype_of(func.params[0]) != dtype_of(outputs[0]):
        return None
    turned = all(i.same_as(made.indices[a]) for i, a in zip(made.value.indices, axes, strict=True))
    indices = zip(made.indices[1:], shape_of(outputs[0])[1:], strict=True)
    if not turned or not all(isinstance(i, tirx.Var) or extent == 1 for i, extent in indices):
        return None
    (count, height, width), tail = shape[1:] if axes == TO_NHWC else (shape[3], *shape[1:3]), 0
    if height == 1 or width == 1:
        height, width, tail = _folded(height * width, ITEM_BYTES[dtype_of(outputs[0])])
    return None if min(count, height, width) == 1 else Planes(count, height, width, dtype_of(outputs[0]), tail)


def _unit_bytes(planes: Planes, core: KernelTarget | None) -> int:
    """Return the bytes to copy at once when rows are copied whole: a vector, four words, a word or an element."""
    item = ITEM_BYTES[planes.dtype]
    unit = item
    if core is not None and core.vectors:
        unit = 16
    elif core is not None and core.backend == "c":
        unit = 16 if item == 4 else max(item, 4)  # four words at once need their alignment
    return unit if planes.width * item % unit == 0 else item


def _folded(length: int, item: int) -> tuple[int, int, int]:
    """Return number and width of the rows into which a plane of a single row or column, as of a signal, is divided,
    and the elements left: none if anything divides the length, else one.

    Return (1, length, 0) for a plane of a few elements. Scratch is the share of the tensor that a row has of the plane:
    of bytes a sixteenth at most, in rows of whole words; a quarter where these would be many more than sixteen, and of
    wider elements, which are moved singly in short rows.
    """
    for tail in (0, 1):
        whole = length - tail
        divisors = [n for n in range(2, whole // 4 + 1) if whole % n == 0]
        words = [n for n in divisors if n % 4 == 0 and whole // 32 <= n <= whole // 16 and item == 1]
        if divisors:
            row = max(words or divisors)
            return whole // row, row, tail
    return 1, length, 0


def row_moves(planes: int, height: int) -> np.ndarray:
    """List rows, in order; each takes what the next one holds. Row `planes * height` is the spare row.

    The moves permute `planes` planes with `height` rows into `height` groups with `planes` rows.
    """
    spare = planes * height
    rows = [spare]
    done = [False] * spare
    for start in range(spare):
        place = start
        while not done[place] and place % planes * height + place // planes != place:
            done[place] = True
            rows.append(place)
            place = place % planes * height + place // planes
        if rows[-1] != spare:
            rows.append(spare)
    return np.array(rows, np.min_scalar_type(spare))


class InPlacePasses:
    """Builder for a whole in-place transpose's kernel, pass by pass.

    The kernel has no parameter for its input, which lies at the output's address.
    """

    def __init__(self, planes: Planes, moves: np.ndarray, core: KernelTarget | None) -> None:
        self.planes, self.moves, self.k = planes, moves, Builder()
        self.unit, self.vectors = _unit_bytes(planes, core), core is not None and core.vectors
        names = (("moves", str(moves.dtype)), ("scratch", "int8"), ("out", planes.dtype))
        self.handles = [pointer_var(n, d) for n, d in names]
        table, scratch, out = self.handles
        self.rows = self.k.view(table, str(moves.dtype), "rows")
        self.image = self.k.view(out, planes.dtype, "image")
        self.spare = self.k.view(scratch, planes.dtype, "spare")

    def _copy(self, to: Value, start: Value, source: Value, begin: Value, elements: int) -> None:
        k, lanes = self.k, self.unit // ITEM_BYTES[self.planes.dtype]
        step = best_step(elements // lanes, _UNROLL)
        with k.loop(elements // lanes // step, "i") as i:
            places = [(start + (i * step + u) * lanes, begin + (i * step + u) * lanes) for u in range(step)]
            if lanes == 1:
                values = [k.let(source[at], "value", self.planes.dtype) for _, at in places]
                for (at, _), value in zip(places, values, strict=True):
                    k.store(to, at, value)  # all loads first: a compiler cannot know that the rows lie apart
            for at, origin in places if lanes > 1 else ():
                if self.vectors:
                    put(k, to, at, vector(source, origin, lanes), lanes)
                else:
                    k.evaluate(call(f"copy{self.unit}", tirx.address_of(to[at]), tirx.address_of(source[origin])))

    def close_up(self) -> None:
        """Move the planes' last elements behind all whole rows, as pixels, and close the gaps."""
        k, p = self.k, self.planes
        length, count = p.whole + p.tail, p.count
        if not p.tail:
            return
        with k.loop(count, "c") as c, k.loop(p.tail, "i") as i:
            k.store(self.spare, c * p.tail + i, self.image[c * length + p.whole + i])
        with k.loop(count - 1, "c") as c:
            self._shift(c * p.whole + p.whole, c * length + length, descending=False)
        with k.loop(p.tail, "i") as i, k.loop(count, "c") as c:
            k.store(self.image, count * p.whole + i * count + c, self.spare[c * p.tail + i])

    def open_up(self) -> None:
        """Undo `close_up`."""
        k, p = self.k, self.planes
        length, count = p.whole + p.tail, p.count
        if not p.tail:
            return
        with k.loop(count * p.tail, "i") as i:
            k.store(self.spare, i, self.image[count * p.whole + i])
        with k.loop(count - 1, "c") as c:
            plane = k.let(i32(count - 1) - c, "plane")
            self._shift(plane * length, plane * p.whole, descending=True)
        with k.loop(count, "c") as c, k.loop(p.tail, "i") as i:
            k.store(self.image, c * length + p.whole + i, self.spare[i * count + c])

    def _shift(self, to: Value, begin: Value, descending: bool) -> None:
        """Move a plane's whole rows within the image, to a place that overlaps; the last elements first if
        `descending`.
        """
        k, p = self.k, self.planes
        step = best_step(p.whole, _UNROLL)
        with k.loop(p.whole // step, "i") as i:
            first = (p.whole // step - 1 - i if descending else i) * step
            values = [k.let(self.image[begin + first + u], "value", p.dtype) for u in range(step)]
            for u, value in enumerate(values):
                k.store(self.image, to + first + u, value)

    def move_rows(self) -> None:
        """Permute whole rows by the table of rows (`row_moves`)."""
        k, width, last = self.k, self.planes.width, self.planes.count * self.planes.height
        with k.loop(len(self.moves) - 1, "m") as m:
            to = k.let(self.rows[m].astype("int32"), "to")
            source = k.let(self.rows[m + 1].astype("int32"), "source")
            with k.when(tirx.EQ(to, i32(last))):
                self._copy(self.spare, i32(0), self.image, source * width, width)
            with k.when(tirx.EQ(source, i32(last))):
                self._copy(self.image, to * width, self.spare, i32(0), width)
            with k.when(tirx.all(to < last, source < last)):
                self._copy(self.image, to * width, self.image, source * width, width)

    def turn_rows(self, to_pixels: bool) -> None:
        """Interleave in each image row the rows of all planes into pixels (`to_pixels`), or split pixels into rows."""
        k, width, count = self.k, self.planes.width, self.planes.count
        passing = self.planes.through_scratch
        turn = self._turn_few if passing < count else self._turn_many
        with k.loop(self.planes.height, "h") as h:
            first = k.let(h * (width * count), "first")
            if to_pixels or passing == count:
                self._copy(self.spare, i32(0), self.image, first, passing * width)
            turn(first, to_pixels)
            if not to_pixels and passing < count:
                self._copy(self.image, first, self.spare, i32(0), passing * width)

    def _turn_many(self, first: Value, to_pixels: bool) -> None:
        """Turn the rows of an image row, which lie in scratch."""
        k, axes = self.k, [(self.planes.width, "w"), (self.planes.count, "c")]
        (outer, first_name), (inner, second_name) = axes if to_pixels else reversed(axes)
        step = best_step(inner, _UNROLL)
        with k.loop(outer, first_name) as a, k.loop(inner // step, second_name) as b:
            for u in range(step):
                k.store(self.image, first + a * inner + b * step + u, self.spare[(b * step + u) * outer + a])

    def _turn_few(self, first: Value, to_pixels: bool) -> None:
        """Turn an image row between pixels in the image and rows in scratch, but for the last plane's row, in the image.

        Pixels are written in ascending order and read in descending order: a pixel ends in front of the last plane's
        unread elements, or begins behind unread pixels.
        """
        k, width, count, passing = self.k, self.planes.width, self.planes.count, self.planes.through_scratch
        wide = self.vectors and ITEM_BYTES[self.planes.dtype] == 4 and width % LANES == 0  # its lanes are registers
        lanes = LANES if wide else 1
        step = lanes * best_step(width // lanes, 2 if wide else _UNROLL)
        rows = [(self.spare, i32(c * width)) for c in range(passing)] + [(self.image, first + passing * width)]

        def elements(at: Value, stride: int) -> list[Value]:
            places = [i32(at + u * stride) for u in range(0, step, lanes)]
            return [tirx.Ramp(place, i32(stride), LANES) for place in places] if wide else places

        with k.loop(width // step, "w") as block:
            start = (block if to_pixels else width // step - 1 - block) * step
            pixels = [(self.image, elements(first + start * count + c, count)) for c in range(count)]
            runs = [(buffer, elements(begin + start, 1)) for buffer, begin in rows]
            sources, targets = (runs, pixels) if to_pixels else (pixels, runs)
            dtype = f"{self.planes.dtype}x{LANES}" if wide else self.planes.dtype
            values = [[k.let(tirx.BufferLoad(buffer, [at]), "value", dtype) for at in ats] for buffer, ats in sources]
            for (buffer, ats), held in zip(targets, values, strict=True):
                for at, value in zip(ats, held, strict=True):
                    k.store(buffer, at, value)

    def kernel(self) -> RowKernel:
        table, dtype = str(self.moves.dtype), self.planes.dtype
        params = (Param(Role.CONSTANT, 0, table), Param(Role.SCRATCH, 0, "int8"), Param(Role.OUTPUT, 0, dtype))
        body = tirx.SeqStmt([*self.k.statements(), tirx.Return(i32(0))])
        attrs = ir.make_node("ir.DictAttrs", **{"global_symbol": "in_place"})
        func = tirx.PrimFunc(self.handles, body, ir.PrimType("int32"), attrs=attrs)
        return RowKernel(func, (self.moves,), self.planes.scratch_bytes, params, whole=True)
