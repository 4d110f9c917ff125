"""The simulated arena for `validate`: every byte carries a tag naming the tensor and byte written there last.

Stored is the tag less the byte's address: consecutive bytes of a tensor all store the same number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tvm_cascade.cascading.plan import Granularity, Plan
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import ITEM_BYTES, Tensor

Indices = NDArray[np.int64]
# stored in bytes that nothing was written to, and, less the kind, in those of working memory: no tag less an address is as low
_UNWRITTEN = -(1 << 62)
_WORKING = -(1 << 61)


class Area(NamedTuple):
    """Rows [y0, y1) of a tensor, limited to columns [x0, x1); all columns if `x1` is None."""

    tensor: int
    y0: int
    y1: int
    x0: int = 0
    x1: int | None = None


class Bytes(NamedTuple):
    """Arena bytes in some order, and the values stored if the content is right."""

    where: slice | Indices  # their addresses, ascending one by one where it is a slice
    shift: int | Indices  # tag less address: of all, or byte by byte
    low: int  # the lowest address
    high: int  # the highest address, plus one

    @classmethod
    def run(cls, address: int, tag: int, size: int) -> Bytes:
        """Make a run of bytes from an address on; the first carries `tag`, the others the tags after."""
        return cls(slice(address, address + size), tag - address, address, address + size)

    @classmethod
    def of(cls, addresses: Indices, tags: Indices) -> Bytes:
        """Make bytes anywhere, each with a tag."""
        if not addresses.size:
            return cls.run(0, 0, 0)
        return cls(addresses, tags - addresses, int(addresses.min()), int(addresses.max()) + 1)

    @property
    def addresses(self) -> Indices:
        """Return the address of every byte."""
        return np.arange(self.low, self.high, dtype=np.int64) if isinstance(self.where, slice) else self.where

    @property
    def by_tag(self) -> Indices:
        """Return the address of every byte, in the tags' order: that of a tensor's elements, whatever its rows are."""
        return self.addresses[np.argsort(self.addresses + self.shift, kind="stable")]

    def at(self, address: int) -> Bytes:
        """Copy the tags to the bytes from an address on."""
        tags = self.addresses + self.shift
        return Bytes.of(np.arange(address, address + len(tags), dtype=np.int64), tags)

    def may_meet(self, other: Bytes) -> bool:
        """Test whether the address ranges, from lowest to highest byte, overlap; False means no byte is common."""
        return self.low < other.high and other.low < self.high


@dataclass(frozen=True, slots=True)
class _Layout:
    """A tensor's place and pixel addressing; in bytes unless said otherwise."""

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
    shifts: Indices = field(init=False)  # by address: tag less address
    offset: dict[str, int] = field(init=False)
    streamed: frozenset[int] = field(init=False)  # graph inputs that arrive, and are stored, row by row
    high: int = 0  # highest address written, plus one
    start: dict[int, int] = field(default_factory=dict)  # by tensor: first column in its ring in the current stripe

    def __post_init__(self) -> None:
        self.shifts = np.full(self.plan.allocation.peak, _UNWRITTEN, np.int64)
        self.streamed = frozenset(t for segment in self.plan.segments for t in segment.streamed)
        self.offset = dict(zip(self.plan.buffers, self.plan.allocation.offsets, strict=True))
        sizes = [t.bytes for t in self.plan.graph.tensors]
        self.base = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.layouts = [self._layout(t) for t in self.plan.graph.tensors]
        # for `check_clobbering`; all are False outside of it
        self.marks = np.zeros(self.plan.allocation.peak, np.bool_)

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

    def write(self, there: Bytes, what: str, *of: object) -> None:
        """Write bytes, called `what.format(*of)` in messages. Raises `ValidationError` for an address outside the
        arena.
        """
        if there.low < 0 or there.high > len(self.shifts):
            raise ValidationError(f"{what.format(*of)} is written outside of the arena of {len(self.shifts)} bytes")
        self.high = max(self.high, there.high)
        self.shifts[there.where] = there.shift

    def check(self, there: Bytes, what: str, *of: object) -> None:
        """Raise `ValidationError`, with `what.format(*of)`, unless the bytes hold the right content."""
        inside = there.low >= 0 and there.high <= len(self.shifts)
        if not inside or np.count_nonzero(self.shifts[there.where] != there.shift):
            raise ValidationError(f"{what.format(*of)} is not in memory any more, or not yet")

    def block(self, name: str, size: int, kind: int) -> Bytes:
        """Return the first `size` bytes in a working-memory block of a `kind`, without any tensor."""
        start = self.offset[name] if size else 0
        return Bytes(slice(start, start + size), _WORKING - kind, start, start + size)

    def area(self, area: Area) -> Bytes:
        """Return the bytes of an area, element by element, with the tags that belong there."""
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
                return Bytes.run(at.place + slot * at.unit, at.tag + first * at.unit, count * at.unit)
        rows, columns = np.arange(area.y0, area.y1, dtype=np.int64), np.arange(area.x0, x1, dtype=np.int64)
        pixel = (rows[:, None] * at.columns + columns).reshape(-1)
        slot = pixel % at.slots if at.slots else self._slots_in_stripe(area, rows, columns)
        spread = np.arange(at.unit, dtype=np.int64)
        places, elements = ((p[:, None] * at.pitch + spread).reshape(-1) for p in (slot, pixel))
        return Bytes.of(at.place + places, at.tag + elements)

    def _by_addresses(self, area: Area, at: _Layout) -> Bytes:
        """Return the bytes as `area` does, for a tensor with row addresses; always whole rows."""
        tensor = self.plan.graph.tensors[area.tensor]
        addresses = self.plan.storages[area.tensor].row_addresses[area.y0 : area.y1]
        if len(addresses) == 1:
            return Bytes.run(addresses[0], at.tag + area.y0 * tensor.row_bytes, tensor.row_bytes)
        starts = np.array(addresses, np.int64)
        spread = np.arange(tensor.row_bytes, dtype=np.int64)
        tags = at.tag + np.arange(area.y0, area.y1, dtype=np.int64) * tensor.row_bytes
        return Bytes.of((starts[:, None] + spread).reshape(-1), (tags[:, None] + spread).reshape(-1))

    def _by_elements(self, area: Area, at: _Layout) -> Bytes:
        """Return the bytes as `area` does, for a tensor without contiguous pixels."""
        tensor, storage = self.plan.graph.tensors[area.tensor], self.plan.storages[area.tensor]
        rows = np.arange(area.y0, area.y1, dtype=np.int64)
        within, inner = _row(tensor)
        elements = (rows[:, None] * inner + within).reshape(-1)
        if storage.height >= tensor.rows and area.tensor not in self.streamed:
            return Bytes.of(at.place + elements, at.tag + elements)
        slot = (rows % storage.height) * tensor.row_bytes
        places = (slot[:, None] + np.arange(tensor.row_bytes, dtype=np.int64)).reshape(-1)
        return Bytes.of(at.place + places, at.tag + elements)

    def _slots_in_stripe(self, area: Area, rows: Indices, columns: Indices) -> Indices:
        """Return an area's pixels in a ring with a single stripe's columns per row."""
        storage = self.plan.storages[area.tensor]
        across = columns - self.start.get(area.tensor, 0)
        if across.size and (across.min() < 0 or across.max() >= storage.columns):
            raise ValidationError(f"columns of {self.plan.graph.tensors[area.tensor].name} lie outside of their stripe")
        return ((rows % storage.height)[:, None] * storage.columns + across).reshape(-1)


def _row(tensor: Tensor) -> tuple[Indices, int]:
    """Return the byte indices of a tensor's row 0, and the bytes from one row to the next."""
    if tensor.row_axis is None:
        return np.arange(tensor.bytes, dtype=np.int64), 0
    inner = prod(tensor.shape[tensor.row_axis + 1 :]) * ITEM_BYTES[tensor.dtype]
    planes = np.arange(prod(tensor.shape[: tensor.row_axis]), dtype=np.int64)
    return (planes[:, None] * inner * tensor.rows + np.arange(inner, dtype=np.int64)).reshape(-1), inner


def has_contiguous_pixels(tensor: Tensor) -> bool:
    """Test whether rows, and the pixels in rows, are contiguous, so each can be addressed separately."""
    rows, columns = tensor.row_axis, tensor.col_axis
    return rows is not None and columns == rows + 1 and prod(tensor.shape[:rows]) == 1 and tensor.bytes > 0
