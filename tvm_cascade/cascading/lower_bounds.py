"""Lower bounds on the bytes of all segments `[i, j)` of an order, computed as tables before any segment is simulated.

live(j) are the bytes of tensors produced before position j and needed at j or later; dying(i, j) the bytes of tensors
produced before i and read for the last time inside the segment. A tensor produced and read only inside has a ring,
which holds at least the rows for one step of a reader. Outputs can share bytes with dying inputs only. So, for every
interleaving by rows or pixels,

    c(i, j) >= live(j) + sum of the least rings inside + counters + scratch.

In stripes no tensors share bytes: c(i, j) >= live(j) + dying(i, j) + counters + scratch + the rings for the windows of
one output column, plus halo columns if no work is done twice. Searches use these bounds to skip segments and
interleavings that cannot be part of a better plan; no result depends on the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from tvm_cascade.cascading.order_bounds import INFEASIBLE as INFEASIBLE
from tvm_cascade.cascading.order_bounds import OrderBounds, Table
from tvm_cascade.graph import ROW, Tile


class LowerBounds:
    """Lower bounds on the bytes of an order's segments, as tables indexed [i, j].

    `tiles` are the possible tiles of a step, coarse first.
    """

    def __init__(self, of_order: OrderBounds, tiles: Sequence[Tile]) -> None:
        self.of_order, self.tiles_tried = of_order, tuple(tiles)

    def plain(self, tile: Tile) -> Table:
        """Return bounds for segments in steps of `tile`."""
        return self.of_order.plain(tile)

    @property
    def stripes(self) -> Table:
        """Return bounds for segments in stripes, recompute allowed; infeasible if an operator cannot be striped."""
        return self.of_order.stripes

    @property
    def halo_stripes(self) -> Table:
        """Return bounds for segments in stripes without recompute: every tensor's halo columns are stored."""
        return self.of_order.halo_stripes

    @property
    def calls(self) -> Table:
        """Count the kernel calls of each segment in steps of one row, the fewest possible; 0 for an operator that runs
        alone.
        """
        return self.of_order.calls

    @cached_property
    def coarsest(self) -> Table:
        """Return bounds for segments in the coarsest tile.

        A pixel tile with too much scratch is replaced by a finer tile, so for pixels the finest tile is assumed.
        """
        return self.plain(self.tiles_tried[-1] if self.tiles_tried[0].by_pixels else ROW)

    @cached_property
    def tiles(self) -> Table:
        """Bounds of segments with any tile, without stripes."""
        return (
            self.coarsest if len(self.tiles_tried) == 1 else np.minimum(self.coarsest, self.plain(self.tiles_tried[-1]))
        )

    @property
    def least_rings(self) -> list[int]:
        """Return the fewest bytes of each tensor produced and read in one segment, in any form without recompute."""
        forms = [self.of_order.rings.plain(tile) for tile in self.tiles_tried]
        return list(map(min, zip(*forms, self.of_order.rings.in_stripes(kept=True), strict=True)))

    @cached_property
    def without_recompute(self) -> Table:
        """Bounds of segments with any tile or stripes, without recompute."""
        return np.minimum(self.tiles, self.halo_stripes)

    @cached_property
    def any_form(self) -> Table:
        """Bounds of segments with any tile or stripes, recompute allowed."""
        return np.minimum(self.tiles, self.stripes)
