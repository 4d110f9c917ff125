"""Pixel tiles: steps over some neighbouring pixels of an output row.

If the operator has a performance schedule, a step calls narrow row kernels (`schedules.forms.narrow_rows`), after a
helper that fills the row table of each windowed input. Without a schedule, or without room for the tables in the plan's
scratch, it calls the generic pixel kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm_cascade.cascading.row_tables import ring_slots, table_bytes
from tvm_cascade.footprints import KernelFootprints
from tvm_cascade.graph import ITEM_BYTES, Tensor
from tvm_cascade.operators.table import SLIDING
from tvm_cascade.schedules.driver.calls import BuiltKernel, Caller
from tvm_cascade.schedules.driver.places import Place, is_whole, tiles_are_contiguous
from tvm_cascade.schedules.forms import narrow_rows
from tvm_cascade.schedules.forms.form import KernelForm, Site, Use, Way
from tvm_cascade.schedules.forms.narrow_rows import Columns, Runs
from tvm_cascade.schedules.forms.row_table import RowTable, row_table
from tvm_cascade.schedules.kernels.kernel import Role
from tvm_cascade.schedules.kernels.pixel_kernel import has_pixels, reads_pixels
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Expr, PrimFunc, Stmt, for_range, i32, scalar, sequence, tirx


class PixelTiles(KernelForm):
    """The form of pixel tiles, by narrow row kernels if possible, else by the generic pixel kernel."""

    way = Way.PIXELS

    def footprint(self, site: Site, known: KernelFootprints) -> KernelFootprints | str:
        made = pixel_tiles(site, 1)
        if isinstance(made, str):
            return made
        tables = tuple(None if t is None else t.footprint for t in made.tables)
        return replace(known, row_tables=tables if any(tables) else ())

    def build(self, site: Site, use: Use) -> BuiltKernel | str:
        made = pixel_tile_kernel(site, use.segment.tile.columns)
        if not isinstance(made, str) and not made.has_rows(use):
            made = "rows that it reads whole lie in two parts"
        used = made if isinstance(made, str) else made.used(use)
        if not isinstance(used, str) and used.scratch_bytes <= use.segment.scratch_bytes:
            return used
        generic = site.computed.pixel_kernel
        return generic if isinstance(generic, str) else GenericPixelKernel((generic,))


FORM = PixelTiles()


@dataclass(frozen=True)
class GenericPixelKernel(BuiltKernel):
    """Steps with calls to the generic pixel kernel (`schedules.kernels.pixel_kernel`)."""

    def step(self, caller: Caller, step: Expr) -> Stmt:
        bound, y, x0, x1 = caller.tile(step, caller.output()[1].columns, caller.segment.tile.columns)

        def told_pixels(i: int) -> bool:
            tensor = caller.input(i)[1]
            window = caller.op.windows[i] if caller.op.windows else None
            return reads_pixels(tensor.shape, tensor.row_axis, window)

        def start(i: int) -> Expr | None:
            place, tensor = caller.output(i)
            return caller.pointer(place, i32(0)) if has_pixels(tensor.shape, tensor.row_axis) else None

        own = {
            Role.SLOT: lambda i: caller.input_pixel(i, y, x0) if told_pixels(i) else None,
            Role.SLOTS: lambda i: i32(caller.input(i)[0].pixels) if told_pixels(i) else None,
            Role.OUTPUT: start,
            Role.OUTPUT_SLOT: lambda i: caller.output_pixel(i, y, x0),
            Role.OUTPUT_SLOTS: lambda i: i32(caller.output(i)[0].pixels),
            Role.BEGIN: lambda _: x0,
            Role.END: lambda _: x1,
        }
        return sequence([*bound, caller.call(y, own)])


@dataclass(frozen=True)
class PixelTileKernel(BuiltKernel):
    """Narrow row kernels for steps of `pixels` pixels.

    `tables` has an entry per input, None if the input is read directly, without a row table. A step with pixels that
    wrap around the end of a ring read directly or written runs pixel by pixel instead, by the variants in `singles`.
    """

    pixels: int
    tables: tuple[RowTable | None, ...]
    valid: tuple[int, ...]  # by variant: input columns that it reads inside of the tensor
    steps: Runs  # the variant of a step, by its first column
    singles: Runs  # the variant of a step of one pixel, by its column
    table_bytes: tuple[int, ...] = ()  # by input: of its row table and the run behind it
    wrapping: tuple[tuple[int | None, int], ...] = ()  # tensors that may wrap: (input position or None: output, tensor)
    by_rows: tuple[int, ...] = ()  # inputs, by position, with rows read whole

    def has_rows(self, use: Use) -> bool:
        """Return True if every row that is read whole lies in one piece."""
        tensors = [use.op.inputs[i] for i in self.by_rows]
        return all(tiles_are_contiguous(use.plan, t, use.plan.graph.tensors[t].columns) for t in tensors)

    @property
    def helpers(self) -> tuple[PrimFunc, ...]:
        return tuple(t.fill.func for t in self.tables if t is not None)

    @property
    def scratch_bytes(self) -> int:
        own = max(v.scratch_bytes for v in self.variants)
        return self.own_offset + own if own else self.table_offset(len(self.tables))

    def table_offset(self, position: int) -> int:
        """Return the byte offset in scratch of input `position`'s row table."""
        return sum(self.table_bytes[:position])

    @property
    def own_offset(self) -> int:
        """Return the byte offset in scratch of the row kernel's own scratch, behind the row tables."""
        return -(-self.table_offset(len(self.tables)) // 8) * 8

    def used(self, use: Use) -> PixelTileKernel:
        """Return the kernel specialized to a plan's rings: sizes of row tables, tables of whole inputs, and no single-pixel
        variants if no step can wrap.
        """
        slots = [ring_slots(use.plan.storages[t]) for t in use.op.inputs]
        sizes = table_bytes(use.plan.graph, use.op, self.pixels, slots)
        whole = [is_whole(use.plan, t) for t in use.op.inputs]
        tables = tuple(t and replace(t, fill=t.fill_whole) if w else t for t, w in zip(self.tables, whole, strict=True))
        read = [k for k, table in enumerate(self.tables) if table is None and k not in self.by_rows]
        direct = [(k, use.op.inputs[k]) for k in read]
        written = [(None, t) for t in use.op.outputs]
        wraps = tuple((k, t) for k, t in (*direct, *written) if not tiles_are_contiguous(use.plan, t, self.pixels))
        if wraps:
            return replace(self, wrapping=wraps, table_bytes=sizes, tables=tables)
        kept = sorted({v for _, v in self.steps})
        steps = tuple((x, kept.index(v)) for x, v in self.steps)
        variants, valid = (tuple(own[v] for v in kept) for own in (self.variants, self.valid))
        fixed = {"singles": (), "table_bytes": sizes, "tables": tables}
        return replace(self, variants=variants, valid=valid, steps=steps, **fixed)

    def step(self, caller: Caller, step: Expr) -> Stmt:
        bound, y, x0, x1 = caller.tile(step, caller.output()[1].columns, caller.segment.tile.columns)
        body = narrow_rows.by_run(self.steps, x0, lambda which: self._call(caller, which, y, x0))
        wraps: list[Expr] = []
        for position, t in self.wrapping:
            slot = caller.output_pixel(0, y, x0) if position is None else caller.input_pixel(position, y, x0)
            wraps.append(tirx.GT(slot + (x1 - x0), i32(caller.calls.places[t].pixels)))
        if wraps:
            offset = scalar(f"pixel_{caller.op.index}", "int32")
            at = x0 + offset
            single = narrow_rows.by_run(self.singles, at, lambda which: self._call(caller, which, y, at))
            each = for_range(offset, x1 - x0, single)
            body = tirx.IfThenElse(tirx.any(*wraps) if len(wraps) > 1 else wraps[0], each, body)
        return sequence([*bound, body])

    def _call(self, caller: Caller, which: int, y: Expr, x0: Expr) -> Stmt:
        """Fill the row tables for the pixels from (y, x0) on, and call one of the variants."""
        calls: list[Stmt] = []
        for position, table in enumerate(self.tables):
            if table is not None:
                calls.append(self._fill(caller, len(calls), position, (y, x0), self.valid[which]))

        def read(i: int) -> Expr:
            return _pixel(caller, caller.input(i), caller.input_pixel(i, y, i32(0) if i in self.by_rows else x0))

        address, scratch = caller.memory.address, lambda: caller.scratch_address
        own = {
            Role.INPUT: lambda i: None if self.tables[i] else read(i),
            Role.ROW_TABLE: lambda i: address(scratch() + self.table_offset(i), "int32"),
            Role.OUTPUT: lambda i: _pixel(caller, caller.output(i), caller.output_pixel(i, y, x0)),
            Role.SCRATCH: lambda _: address(scratch() + self.own_offset, "int8"),
            **narrow_rows.narrow_values(y if any(self.tables) else i32(0)),
        }
        return sequence([*calls, caller.call(y, own, which)])

    def _fill(self, caller: Caller, helper: int, position: int, at: tuple[Expr, Expr], valid: int) -> Stmt:
        """Call the helper that fills input `position`'s row table for the tile beginning at pixel `at`."""
        table, place = self.tables[position], caller.input(position)[0]
        assert table is not None
        slot, item = caller.input_pixel(position, *at), ITEM_BYTES[place.dtype]
        at_table = caller.scratch_address + self.table_offset(position)
        away = at_table // item + table.run_offset // item - place.address // item
        source = caller.memory.address(place.address, place.dtype)
        to = caller.memory.address(at_table, "int32")
        return caller.help(helper, [source, slot, i32(place.pixels), to, i32(away), i32(valid), at[0]])


@dataclass(frozen=True)
class _Tiles:
    """Steps of some pixels, before kernels are built."""

    tables: tuple[RowTable | None, ...]
    steps: Sequence[Columns]  # what each step of a row computes
    singles: Sequence[Columns]  # by column of the output, what a step of one pixel computes
    variants: dict[Columns, Variant]
    by_rows: tuple[int, ...]  # inputs, by position, with rows read whole


def pixel_tile_kernel(site: Site, pixels: int) -> PixelTileKernel | str:
    """Build an operator's narrow row kernels for steps of `pixels` pixels, or return why there are none."""
    made = pixel_tiles(site, pixels)
    if isinstance(made, str):
        return made
    pixels, order = made.steps[0].pixels, list(made.variants)
    starts = range(0, len(made.singles), pixels)
    steps = narrow_rows.runs_of(starts, (order.index(c) for c in made.steps))
    singles = narrow_rows.runs_of(range(len(made.singles)), (order.index(c) for c in made.singles))
    kernels = tuple(v.make() for v in made.variants.values())
    valid = tuple(c.valid for c in order)
    return PixelTileKernel(kernels, pixels, made.tables, valid, steps, singles, by_rows=made.by_rows)


def pixel_tiles(site: Site, pixels: int) -> _Tiles | str:
    """Plan how narrow row kernels compute an operator in steps of `pixels` pixels, or return why they cannot."""
    windows = narrow_rows.windows_of(site, by_rows=True)
    if isinstance(windows, str):
        return windows
    assert site.core is not None
    op, inputs, out = site.op, site.tensors[:-1], site.tensors[-1]
    by_rows = tuple(i for i, pair in enumerate(windows) if i and narrow_rows.reads_rows(pair))
    tables = tuple(
        None
        if narrow_rows.is_single(pair) or narrow_rows.reads_rows(pair)
        else row_table(tensor, out.rows, *pair, site.core)
        for tensor, pair in zip(inputs, windows, strict=True)
    )
    if any(tables) and op.kind.removeprefix("concat_") not in SLIDING:
        return f"kernels of {op.kind} read through no row table"
    if len(tables) > 1 and any(t is not None and t.footprint.pixel_bytes % 4 for t in tables):
        return "its row tables would not lie at words"
    across, width, pixels = windows[0][1], inputs[0].columns, min(pixels, out.columns)
    starts = range(0, out.columns, pixels)
    whole = [narrow_rows.columns_of(across, x, min(pixels, out.columns - x), width) for x in starts]
    single = [narrow_rows.columns_of(across, x, 1, width) for x in range(out.columns)]
    made = narrow_rows.narrow_variants(
        site,
        windows,
        [*whole, *single],
        lambda c: 4 * max(whole.count(c) / len(whole), single.count(c) / len(single)) < 1,
    )
    return made if isinstance(made, str) else _Tiles(tables, whole, single, made, by_rows)


def _pixel(caller: Caller, at: tuple[Place, Tensor], slot: Expr) -> Expr:
    """Return a pointer to pixel slot `slot` of a tensor's storage."""
    place, tensor = at
    return caller.pointer(place, slot * (place.row_bytes // tensor.columns // ITEM_BYTES[place.dtype]))
