"""Where things are when a plan runs: constants in the flash image, tensors in the arena, and pointers to both."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np

from tvm_cascade.cascading.plan import Granularity, Plan
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
    """Constants laid out one behind the other, equal ones once."""

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
    """Typed views of the arena and of flash inside one function."""

    def __init__(self, arena_bytes: int, flash_bytes: int) -> None:
        self.arena = pointer_var("arena", "int8")
        self.flash = pointer_var("flash", "int8")
        self.context = pointer_var("context", "int8")
        self.sizes = {"arena": max(arena_bytes, 8), "flash": max(flash_bytes, 8)}
        self.views: dict[tuple[str, str], Var] = {}

    def view(self, where: str, dtype: str) -> Var:
        key = (where, dtype)
        if key not in self.views:
            handle = self.arena if where == "arena" else self.flash
            count = -(-self.sizes[where] // ITEM_BYTES[dtype])
            self.views[key] = tirx.decl_buffer((count,), dtype, f"{where}_{dtype}", data=handle)
        return self.views[key]

    def address(self, where: str, dtype: str, byte_offset: Expr | int) -> Expr:
        """Pointer to `byte_offset`, which is a multiple of the type's size."""
        item = ITEM_BYTES[dtype]
        index = i32(byte_offset // item) if isinstance(byte_offset, int) else byte_offset
        return tirx.address_of(self.view(where, dtype)[index])

    def declarations(self) -> list[Stmt]:
        return [
            tirx.DeclBuffer(view, data=self.arena if where == "arena" else self.flash)
            for (where, _), view in self.views.items()
        ]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor's rows or pixels are: byte offset of slot 0, row slots, pixel slots, bytes of a row."""

    offset: int
    height: int
    pixels: int
    row_bytes: int
    dtype: str
    by_pixels: bool  # the ring holds no whole number of rows
    apart: bool = False  # part of a join: pixels lie further apart than they are long, and so do rows
    streamed: bool = False  # rows come with all their planes, and lie so


def places(plan: Plan) -> list[Place]:
    """The place of every tensor."""
    found: list[Place] = []
    streamed = {t for segment in plan.segments for t in segment.streamed}
    for tensor, storage in zip(plan.graph.tensors, plan.storages, strict=True):
        by_pixels = storage.granularity is Granularity.PIXEL
        pixels = storage.pixels if by_pixels else storage.height * tensor.columns
        row = storage.pitch * tensor.columns or tensor.row_bytes
        apart = storage.pitch > 0
        start, comes = place_of(plan, tensor.index), tensor.index in streamed
        found.append(Place(start, storage.height, pixels, row, tensor.dtype, by_pixels, apart, comes))
    return found


def strides(tensor: Tensor, place: Place) -> tuple[int, int]:
    """Elements from plane to plane and from row to row: a ring, and a tensor that comes by rows, keeps the rows of all
    planes together."""
    row = place.row_bytes // ITEM_BYTES[place.dtype]
    if tensor.row_axis is None or place.apart:
        return row, row
    across = prod(tensor.shape[tensor.row_axis + 1 :])
    whole = place.height >= tensor.rows and not place.streamed
    return (across * tensor.rows, across) if whole and row != across else (across, row)


def place_of(plan: Plan, tensor: int) -> int:
    """Byte offset of a tensor in the arena, through its views."""
    storage, shift = plan.storages[tensor], 0
    while storage.root is not None:
        shift += storage.byte_offset
        storage = plan.storages[storage.root]
    return plan.allocation.offsets[plan.buffers.index(f"tensor {storage.tensor}")] + shift


def tiles_are_contiguous(plan: Plan, tensor: int, pixels: int) -> bool:
    """Whether the pixels of every tile of `pixels` are neighbours in a tensor's storage: none wraps around a ring's end."""
    storage, columns = plan.storages[tensor], plan.graph.tensors[tensor].columns
    slots = storage.pixels if storage.granularity is Granularity.PIXEL else storage.height * columns
    whole = slots >= plan.graph.tensors[tensor].rows * columns
    return whole or pixels == 1 or (slots % pixels == 0 and columns % pixels == 0)


def overwrites(plan: Plan, op: Op) -> bool:
    """Whether an element-wise operator writes where it reads, or into bytes of that tensor that are behind it."""
    if not op.outputs:
        return False
    start = place_of(plan, op.outputs[0])
    end = start + plan.storages[op.outputs[0]].size
    spans = [(place_of(plan, op.inputs[p]), plan.storages[op.inputs[p]].size) for p in op.in_place]
    return any(at < end and start < at + size for at, size in spans)


def first_of(window: Window, position: Expr) -> Expr:
    """The first row or column that an output position reads, padding not taken off."""
    first = position * window.stride
    if window.denominator > 1:
        first = tirx.truncdiv(first, i32(window.denominator))
    return first


def first_inside(window: Window, position: Expr) -> Expr:
    """The first row or column inside of the tensor that an output position may read."""
    first = first_of(window, position) - window.padding
    return tirx.max(first, i32(0)) if window.padding > 0 else first


def slot_of(row: Expr, place: Place, tensor: Tensor) -> Expr:
    """Slot of a row in a tensor's storage."""
    return row if place.height >= tensor.rows else tirx.truncmod(row, i32(place.height))


def pixel_slot(pixel: Expr, place: Place, tensor: Tensor) -> Expr:
    """Slot of a pixel in a tensor's storage."""
    return pixel if place.pixels >= tensor.rows * tensor.columns else tirx.truncmod(pixel, i32(place.pixels))


def row_slot(window: Window | None, row: Expr, place: Place, rows: int) -> Expr:
    """Slot of the window's first row, counted modulo the ring also where it is padding."""
    if window is None or window.stride == 0:
        return i32(0)
    first = first_of(window, row)
    if place.height >= rows and window.padding == 0:
        return first
    shift = -(-window.padding // place.height) * place.height - window.padding
    return tirx.truncmod(first + shift, i32(place.height))
