"""How the operators of a segment take turns."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_cascade.graph import ROW, Tile


@dataclass(frozen=True, slots=True)
class Interleaving:
    """What a step of a segment makes, and whether the segment runs in stripes.

    With stripes the whole segment runs once for every vertical stripe of its last map (`cascading.stripes`); a step then
    makes the part of a row that lies in the running stripe.
    """

    tile: Tile = ROW  # in stripes single rows
    stripe_columns: int = 0  # columns of the last map in a stripe; 0: the map is not cut into stripes
    halo_tensors: int = 0  # in stripes: so many tensors, those with the fewest bytes a column, keep their halo columns

    @property
    def striped(self) -> bool:
        """Whether the segment runs in stripes."""
        return self.stripe_columns > 0

    @property
    def sort_key(self) -> tuple[int, ...]:
        """A total order over interleavings, which breaks ties between plans."""
        return -self.halo_tensors, -self.stripe_columns, self.tile.columns, self.tile.rows, self.tile.channels


BY_ROWS = Interleaving()
