"""Memory layout of a running plan: constants in the flash image, tensors in memories, slots of rings, and pointers."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np

from tvm_cascade.cascading.plan import Granularity, Plan
from tvm_cascade.cascading.state_areas import area_at, areas
from tvm_cascade.graph import ITEM_BYTES, Op, Tensor, Window
from tvm_cascade.schedules.tir import Expr, Stmt, Var, i32, pointer_var, tirx


@dataclass(frozen=True, slots=True)
class FlashItem:
    """A constant in the flash image: `offset` and `size` in bytes."""

    label: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass
class Flash:
    """The flash image under construction: constants one behind another, equal constants stored once."""

    data: bytearray = field(default_factory=bytearray)
    items: list[FlashItem] = field(default_factory=list)
    known: dict[tuple[bytes, int], int] = field(default_factory=dict)

    def add(self, label: str, array: np.ndarray) -> int:
        raw = np.ascontiguousarray(array).tobytes()
        align = 8 if array.dtype.itemsize == 8 else 4
        if (raw, align) in self.known:
            return self.known[raw, align]
        self.data.extend(b"\0" * (-len(self.data) % align))
        offset = len(self.data)
        self.data.extend(raw)
        self.items.append(FlashItem(label, str(array.dtype), tuple(array.shape), offset, len(raw)))
        self.known[raw, align] = offset
        return offset


class Memory:
    """The driver's pointer parameters: one per plan area, `flash` and `context`; typed views of all but the last.

    Addresses are the plan's. `spare_bytes` follow the last area.
    """

    def __init__(self, plan: Plan, spare_bytes: int, flash_bytes: int) -> None:
        self.plan, self.areas = plan, areas(plan)
        self.bases = {area.label: pointer_var(area.label, "int8") for area in self.areas}
        self.flash = pointer_var("flash", "int8")
        self.context = pointer_var("context", "int8")
        self.sizes = {area.label: max(area.bytes, 8) for area in self.areas}
        last = self.areas[-1]
        self.sizes[last.label] = max(last.bytes + spare_bytes, 8)
        self.sizes["flash"] = max(flash_bytes, 8)
        self.views: dict[tuple[str, str], Var] = {}

    def view(self, where: str, dtype: str) -> Var:
        """Return the area called `where`, or "flash", as a buffer of `dtype` elements."""
        key = (where, dtype)
        if key not in self.views:
            count = -(-self.sizes[where] // ITEM_BYTES[dtype])
            self.views[key] = tirx.decl_buffer((count,), dtype, f"{where}_{dtype}", data=self._base(where))
        return self.views[key]

    def _base(self, where: str) -> Var:
        return self.flash if where == "flash" else self.bases[where]

    def element(self, address: int, dtype: str, further: Expr | int = 0) -> tuple[Var, Expr]:
        """Return the view and index of the element `further` elements behind an address in the plan."""
        area = area_at(self.areas, address)
        first = (address - area.start) // ITEM_BYTES[dtype]
        index = i32(first + further) if isinstance(further, int) else first + further
        return self.view(area.label, dtype), index

    def address(self, address: int, dtype: str, further: Expr | int = 0) -> Expr:
        """Return a typed pointer to `element`."""
        view, index = self.element(address, dtype, further)
        return tirx.address_of(view[index])

    def row(self, tensor: int, entry: Expr | int, dtype: str) -> Expr:
        """Return a typed pointer to the element named by an entry in a tensor's row table (`row_table`)."""
        return self.address(_first_address(self.plan, tensor), dtype, entry)

    def constant(self, offset: int, dtype: str) -> Expr:
        """Return a typed pointer to the byte `offset` in flash."""
        return tirx.address_of(self.view("flash", dtype)[i32(offset // ITEM_BYTES[dtype])])

    def declarations(self) -> list[Stmt]:
        return [tirx.DeclBuffer(view, data=self._base(where)) for (where, _), view in self.views.items()]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a tensor's rows or pixels in the plan's memories."""

    address: int  # of slot 0
    height: int  # row slots
    pixels: int  # pixel slots
    row_bytes: int  # from one row slot to the next
    dtype: str
    by_pixels: bool  # a ring of pixels, not necessarily of whole rows
    scattered: bool = False  # every row at an address of its own
    apart: bool = False  # part of a join: the distance of pixels (and of rows) is larger than their size
    streamed: bool = False  # a streamed input: each row is stored with all its planes


def places(plan: Plan) -> list[Place]:
    """List the place of every tensor in a plan's graph, in order."""
    found: list[Place] = []
    streamed = {t for segment in plan.segments for t in segment.streamed}
    for tensor, storage in zip(plan.graph.tensors, plan.storages, strict=True):
        by_pixels = storage.granularity is Granularity.PIXEL
        pixels = storage.pixels if by_pixels else storage.height * tensor.columns
        row = storage.pitch * tensor.columns or tensor.row_bytes
        apart = storage.pitch > 0
        start, comes = place_of(plan, tensor.index), tensor.index in streamed
        scattered = bool(storage.row_addresses)
        found.append(Place(start, storage.height, pixels, row, tensor.dtype, by_pixels, scattered, apart, comes))
    return found


def strides(tensor: Tensor, place: Place) -> tuple[int, int]:
    """Return the strides in elements from plane to plane and from row to row.

    Rings and streamed inputs store row r of all planes together; all other tensors are stored plane by plane.
    """
    row = place.row_bytes // ITEM_BYTES[place.dtype]
    if tensor.row_axis is None or place.apart:
        return row, row
    across = prod(tensor.shape[tensor.row_axis + 1 :])
    whole = place.height >= tensor.rows and not place.streamed
    return (across * tensor.rows, across) if whole and row != across else (across, row)


def place_of(plan: Plan, tensor: int) -> int:
    """Return a tensor's address; a view lies inside the tensor that owns the memory."""
    storage, shift = plan.storages[tensor], 0
    while storage.root is not None:
        shift += storage.byte_offset
        storage = plan.storages[storage.root]
    if storage.row_addresses:
        return storage.row_addresses[0]
    return plan.allocation.offsets[plan.buffers.index(f"tensor {storage.tensor}")] + shift


def _first_address(plan: Plan, tensor: int) -> int:
    """Return the first address of the area around a tensor."""
    return area_at(areas(plan), place_of(plan, tensor)).start


def tiles_are_contiguous(plan: Plan, tensor: int, pixels: int) -> bool:
    """Test that no tile with `pixels` pixels wraps around the end of a tensor's ring."""
    columns, slots = plan.graph.tensors[tensor].columns, _slots(plan, tensor)
    return is_whole(plan, tensor) or pixels == 1 or (slots % pixels == 0 and columns % pixels == 0)


def is_whole(plan: Plan, tensor: int) -> bool:
    """Test whether a tensor's storage holds every pixel of the tensor at once."""
    seen = plan.graph.tensors[tensor]
    return _slots(plan, tensor) >= seen.rows * seen.columns


def _slots(plan: Plan, tensor: int) -> int:
    """Count the pixels that a tensor's storage holds."""
    storage = plan.storages[tensor]
    by_pixels = storage.granularity is Granularity.PIXEL
    return storage.pixels if by_pixels else storage.height * plan.graph.tensors[tensor].columns


def overwrites(plan: Plan, op: Op) -> bool:
    """Test whether an operator's first output shares bytes with an input it may overwrite (`Op.in_place`)."""
    if not op.outputs:
        return False
    start, end = _span(plan, op.outputs[0])
    spans = [_span(plan, op.inputs[p]) for p in op.in_place]
    return any(low < end and start < high for low, high in spans)


def _span(plan: Plan, tensor: int) -> tuple[int, int]:
    """Return the addresses `[low, high)` around a tensor."""
    storage = plan.storages[tensor]
    if storage.row_addresses:
        return min(storage.row_addresses), max(storage.row_addresses) + plan.graph.tensors[tensor].row_bytes
    start = place_of(plan, tensor)
    return start, start + storage.size


def rows_by_table(plan: Plan) -> list[int]:
    """List the tensors with rows found by a table: tensors with scattered rows, and tensors read together with them."""
    around = [op for op in plan.graph.ops if any(plan.storages[t].row_addresses for t in (*op.inputs, *op.outputs))]
    read = [
        t
        for op in around
        for t, window in zip(op.inputs, op.windows, strict=False)
        if window is not None and window.stride
    ]
    scattered = [s.tensor for s in plan.storages if s.row_addresses]
    return sorted({*read, *scattered})


def row_table(plan: Plan, tensor: int) -> tuple[np.ndarray, int]:
    """Build a tensor's row table: each row's start, in elements of the memory, and the entry for row 0.

    Rows of padding, before and behind the tensor's rows, have entries too; kernels never read there.
    """
    seen, storage = plan.graph.tensors[tensor], plan.storages[tensor]
    before = behind = 0
    for op in plan.graph.ops:
        for t, window in zip(op.inputs, op.windows, strict=False):
            if t == tensor and window is not None:
                rows = plan.graph.tensors[op.outputs[0]].rows
                before = max(before, window.padding)
                behind = max(behind, window.first(rows - 1) + window.span - seen.rows)
    start, height = place_of(plan, tensor), min(storage.height, seen.rows)
    at = storage.row_addresses or [start + r % height * seen.row_bytes for r in range(seen.rows)]
    entries = [at[0]] * before + [*at] + [at[-1]] * behind
    return (np.array(entries, np.int32) - _first_address(plan, tensor)) // ITEM_BYTES[seen.dtype], before


def first_of(window: Window, position: Expr) -> Expr:
    """Return the first row or column read by an output position, counted from the first row or column of padding."""
    first = position * window.stride
    if window.denominator > 1:
        first = tirx.truncdiv(first, i32(window.denominator))
    return first


def first_inside(window: Window, position: Expr) -> Expr:
    """Return the first row or column inside the tensor that an output position may read."""
    first = first_of(window, position) - window.padding
    return tirx.max(first, i32(0)) if window.padding > 0 else first


def slot_of(row: Expr, place: Place, tensor: Tensor) -> Expr:
    """Return a row's slot in a tensor's storage."""
    return row if place.height >= tensor.rows else tirx.truncmod(row, i32(place.height))


def pixel_slot(pixel: Expr, place: Place, tensor: Tensor) -> Expr:
    """Return a pixel's slot in a tensor's storage."""
    return pixel if place.pixels >= tensor.rows * tensor.columns else tirx.truncmod(pixel, i32(place.pixels))


def row_slot(window: Window | None, row: Expr, place: Place, rows: int) -> Expr:
    """Return the slot of the first row in output row `row`'s window: its number modulo the ring's height, also for
    padding rows.
    """
    if window is None or window.stride == 0:
        return i32(0)
    first = first_of(window, row)
    if place.height >= rows and window.padding == 0:
        return first
    shift = -(-window.padding // place.height) * place.height - window.padding
    return tirx.truncmod(first + shift, i32(place.height))
