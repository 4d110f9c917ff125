"""Interleaving: how a segment's operators take turns, by the tile of a step and the width of a stripe."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from tvm_cascade.graph import ROW, Tile


@dataclass(frozen=True, slots=True)
class Interleaving:
    """The tile that each step of a segment computes, and whether the segment runs in stripes.

    With stripes the whole segment runs once for every vertical stripe of the last map (`cascading.stripes`); a step
    then computes the part of a row in the current stripe.
    """

    tile: Tile = ROW  # always `ROW` in stripes
    stripe_columns: int = 0  # columns of the last map in a stripe; 0: the map is not cut into stripes
    halo_tensors: int = 0  # in stripes: this many tensors, those of fewest bytes a column, store halo columns
    _hash: int = field(init=False, repr=False, compare=False, default=0)  # caches of costs ask for it again and again

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.tile, self.stripe_columns, self.halo_tensors)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def striped(self) -> bool:
        """Test whether the segment runs in stripes."""
        return self.stripe_columns > 0

    @property
    def sort_key(self) -> tuple[int, ...]:
        """Return the key of a total order over interleavings, which breaks ties between plans."""
        return -self.halo_tensors, -self.stripe_columns, self.tile.columns, self.tile.rows, self.tile.channels


BY_ROWS = Interleaving()


@cache
def without_stripes(tile: Tile) -> Interleaving:
    """Return the single interleaving in steps of `tile` without stripes."""
    return BY_ROWS if tile == ROW else Interleaving(tile)
