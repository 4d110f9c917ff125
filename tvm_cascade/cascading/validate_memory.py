"""The simulated arena of `validate`: every byte carries a tag that says which byte of which tensor was written there last."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from tvm_cascade.cascading.plan import Granularity, Plan
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import ITEM_BYTES, Tensor

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Area:
    """Rows [y0, y1) of a tensor, and of these columns [x0, x1); all columns where `x1` is None."""

    tensor: int
    y0: int
    y1: int
    x0: int = 0
    x1: int | None = None


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a tensor lies and how its pixels are counted; in bytes unless said otherwise."""

    place: int  # address of its first slot
    tag: int  # of its first byte
    columns: int  # pixels
    unit: int  # of a pixel
    pitch: int  # from one pixel to the next
    slots: int  # pixels stored; 0: those of one stripe
    contiguous: bool  # `has_contiguous_pixels`


@dataclass
class Memory:
    """The arena of a plan, byte by byte, while the plan is replayed."""

    plan: Plan
    tags: Indices = field(init=False)
    offset: dict[str, int] = field(init=False)
    streamed: frozenset[int] = field(init=False)  # graph inputs that arrive, and are stored, row by row
    high: int = 0  # highest address written, plus one
    start: dict[int, int] = field(default_factory=dict)  # by tensor: first column in its ring in the current stripe

    def __post_init__(self) -> None:
        self.tags = np.full(self.plan.allocation.peak, -1, np.int64)
        self.streamed = frozenset(t for segment in self.plan.segments for t in segment.streamed)
        self.offset = dict(zip(self.plan.buffers, self.plan.allocation.offsets, strict=True))
        sizes = [t.bytes for t in self.plan.graph.tensors]
        self.base = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.layouts = [self._layout(t) for t in self.plan.graph.tensors]
        self.marks = np.zeros(
            self.plan.allocation.peak, np.bool_
        )  # for `check_clobbering`; all are False outside of it
        self._blocks: dict[tuple[str, int], Indices] = {}

    def _layout(self, tensor: Tensor) -> _Layout:
        storage = self.plan.storages[tensor.index]
        root = tensor.index if storage.root is None else storage.root
        place = self.offset.get(f"tensor {root}", 0) + storage.byte_offset
        tag = int(self.base[root]) + storage.byte_offset
        unit = tensor.row_bytes // max(tensor.columns, 1)
        by_pixels = storage.granularity is Granularity.PIXEL
        slots = 0 if storage.columns else storage.pixels if by_pixels else storage.height * tensor.columns
        fine = has_contiguous_pixels(tensor)
        return _Layout(place, tag, tensor.columns, unit, storage.pitch or unit, slots, fine)

    def write(self, addresses: Indices, tags: Indices | int, what: str) -> None:
        """Write tags to addresses. Raises `ValidationError` for an address outside of the arena."""
        if not addresses.size:
            return
        if addresses.min() < 0 or addresses.max() >= len(self.tags):
            raise ValidationError(f"{what} is written outside of the arena of {len(self.tags)} bytes")
        self.high = max(self.high, int(addresses.max()) + 1)
        self.tags[addresses] = tags

    def check(self, addresses: Indices, tags: Indices | int, what: str) -> None:
        """Raise `ValidationError` unless each address carries its tag."""
        try:
            kept = (self.tags[addresses] == tags).all()
        except IndexError:  # an address outside of the arena
            kept = False
        if not kept:
            raise ValidationError(f"{what} is not in memory any more, or not yet")

    def block(self, name: str, size: int) -> Indices:
        """The addresses of the first `size` bytes of a block."""
        if (name, size) not in self._blocks:
            self._blocks[name, size] = np.arange(size, dtype=np.int64) + (self.offset[name] if size else 0)
        return self._blocks[name, size]

    def area(self, area: Area) -> tuple[Indices, Indices]:
        """The addresses of an area and the tags that belong there, element by element in the same order."""
        at = self.layouts[area.tensor]
        if self.plan.storages[area.tensor].row_addresses:
            return self._by_addresses(area, at)
        x1 = at.columns if area.x1 is None else area.x1
        if not at.contiguous:
            return self._by_elements(area, at)
        if at.slots and at.pitch == at.unit and (area.y1 - area.y0 == 1 or x1 - area.x0 == at.columns):
            first, count = area.y0 * at.columns + area.x0, max((area.y1 - area.y0) * (x1 - area.x0), 0)
            slot = first % at.slots
            if slot + count <= at.slots:  # pixels one behind the other
                size, place, tag = count * at.unit, at.place + slot * at.unit, at.tag + first * at.unit
                return np.arange(place, place + size, dtype=np.int64), np.arange(tag, tag + size, dtype=np.int64)
        rows, columns = np.arange(area.y0, area.y1, dtype=np.int64), np.arange(area.x0, x1, dtype=np.int64)
        pixel = (rows[:, None] * at.columns + columns).reshape(-1)
        slot = pixel % at.slots if at.slots else self._slots_in_stripe(area, rows, columns)
        spread = np.arange(at.unit, dtype=np.int64)
        places, elements = ((p[:, None] * at.pitch + spread).reshape(-1) for p in (slot, pixel))
        return at.place + places, at.tag + elements

    def _by_addresses(self, area: Area, at: _Layout) -> tuple[Indices, Indices]:
        """As `area`, of a tensor whose rows have addresses of their own; always whole rows."""
        tensor = self.plan.graph.tensors[area.tensor]
        starts = np.array(self.plan.storages[area.tensor].row_addresses, np.int64)[area.y0 : area.y1]
        spread = np.arange(tensor.row_bytes, dtype=np.int64)
        tags = at.tag + np.arange(area.y0, area.y1, dtype=np.int64) * tensor.row_bytes
        return (starts[:, None] + spread).reshape(-1), (tags[:, None] + spread).reshape(-1)

    def _by_elements(self, area: Area, at: _Layout) -> tuple[Indices, Indices]:
        """As `area`, of a tensor whose pixels are not contiguous."""
        tensor, storage = self.plan.graph.tensors[area.tensor], self.plan.storages[area.tensor]
        rows = np.arange(area.y0, area.y1, dtype=np.int64)
        within, inner = _row(tensor)
        elements = (rows[:, None] * inner + within).reshape(-1)
        if storage.height >= tensor.rows and area.tensor not in self.streamed:
            return at.place + elements, at.tag + elements
        slot = (rows % storage.height) * tensor.row_bytes
        places = (slot[:, None] + np.arange(tensor.row_bytes, dtype=np.int64)).reshape(-1)
        return at.place + places, at.tag + elements

    def _slots_in_stripe(self, area: Area, rows: Indices, columns: Indices) -> Indices:
        """The pixels of an area in a ring whose rows hold the columns of one stripe."""
        storage = self.plan.storages[area.tensor]
        across = columns - self.start.get(area.tensor, 0)
        if across.size and (across.min() < 0 or across.max() >= storage.columns):
            raise ValidationError(f"columns of {self.plan.graph.tensors[area.tensor].name} lie outside of their stripe")
        return ((rows % storage.height)[:, None] * storage.columns + across).reshape(-1)


def _row(tensor: Tensor) -> tuple[Indices, int]:
    """Byte indices of a tensor's row 0, and the bytes from one row to the next."""
    if tensor.row_axis is None:
        return np.arange(tensor.bytes, dtype=np.int64), 0
    inner = prod(tensor.shape[tensor.row_axis + 1 :]) * ITEM_BYTES[tensor.dtype]
    planes = np.arange(prod(tensor.shape[: tensor.row_axis]), dtype=np.int64)
    return (planes[:, None] * inner * tensor.rows + np.arange(inner, dtype=np.int64)).reshape(-1), inner


def has_contiguous_pixels(tensor: Tensor) -> bool:
    """Whether rows, and the pixels in them, are contiguous, so that they can be addressed one by one."""
    rows, columns = tensor.row_axis, tensor.col_axis
    return rows is not None and columns == rows + 1 and prod(tensor.shape[:rows]) == 1 and tensor.bytes > 0
