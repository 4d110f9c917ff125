"""Costs of every segment of an order in every interleaving, and the layouts that are worth an arena."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

from tvm_cascade.cascading.assemble import Layout
from tvm_cascade.cascading.cuts import cuts_within, pareto_cuts, smallest_peak
from tvm_cascade.cascading.floors import Floors
from tvm_cascade.cascading.flow import Flow
from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.regions import Partition, partition
from tvm_cascade.cascading.segments import SegmentCosts, Settings

# operators of a segment that is tried by pixels: rings cost most where maps are large and segments short, while each
# longer segment takes a longer simulation
LONGEST_BY_PIXELS = 24
_NEVER = 1 << 62  # bytes of a segment that leaves its region
_PRICES = (0, 10, 30, 100, 300, 1_000, 3_000, 10_000, 10**9)  # of a segment, in kernel calls
_FEW = (0, 100, 3_000, 10**9)
_BEYOND = (32, 16, 8, 4)  # parts of the least bytes that layouts may need beyond them


class Search:
    """Costs of every segment in every interleaving, and the layouts worth an arena."""

    def __init__(
        self,
        flow: Flow,
        order: Sequence[int],
        options: PlanOptions,
        like: Search | None = None,
        rings_follow: bool = True,
    ) -> None:
        settings = Settings(options.alignment, options.overlap, options.in_place, rings_follow)
        known = None if like is None else like.costs
        if known is not None and (known.order, known.settings) == (tuple(order), settings):
            self.costs = known
        else:
            self.costs = SegmentCosts(flow, order, settings, known)
        self.options = options
        self.floors = Floors(self.costs, options.chunks)
        self._least: dict[tuple[int, int], tuple[int, int]] = {}
        self._modes: dict[tuple[int, int], tuple[int, ...]] = {}
        self._coarsest: dict[tuple[int, int, int], int | None] = {}
        self._ceiling: int | None = None if like is None else like.by_rows
        self.regions: Partition = partition(flow.graph) if like is None else like.regions

    def possible(self, i: int, j: int) -> bool:
        """Whether what runs in `[i, j)` lies in one region, or is a single operator."""
        if self.regions.whole:
            return True
        working = [o for o in self.costs.members(i, j) if o >= 0]
        places = {self.regions.region_of[o] for o in working}
        return len(working) < 2 or (len(places) == 1 and None not in places)

    def chunks(self, i: int, j: int) -> tuple[int, ...]:
        """Interleavings of `[i, j)`, coarse first: the coarsest alone where it has several sinks or is long."""
        count = len(self.costs.members(i, j))
        if count < 2:
            return (0,)
        fine = count <= LONGEST_BY_PIXELS and self.costs.one_sink(i, j)
        return self.options.chunks if fine else self.options.chunks[:1]

    def _bytes(self, i: int, j: int) -> tuple[int, int]:
        """Bytes of the best interleaving, rounded and exact.

        A segment that cannot come below the best plan by rows, whatever it shares, is not looked at further: the bytes
        that it needs at least stand for it.
        """
        if (i, j) not in self._least and not self.possible(i, j):
            self._least[i, j] = _NEVER, _NEVER
        if (i, j) not in self._least:
            costs, chunks = self.costs, self.chunks(i, j)
            floor = min(sum(costs.blocks(i, j, c)) for c in chunks) - costs.most_shared(i, j)
            if len(chunks) > 1 and floor > self.by_rows:
                self._least[i, j] = floor, floor
            else:
                found = [(costs.cost(i, j, c), costs.exact_cost(i, j, c)) for c in chunks]
                self._least[i, j] = min(f[0] for f in found), min(f[1] for f in found)
        return self._least[i, j]

    @property
    def by_rows(self) -> int:
        """Bytes of the best cuts when every segment goes by its coarsest interleaving; of the first order searched."""
        if self._ceiling is None:
            self._ceiling = smallest_peak(self.size, self._coarse, self.floors.by_rows)
        return self._ceiling

    def _coarse(self, i: int, j: int) -> int:
        return self.costs.cost(i, j, self.chunks(i, j)[0]) if self.possible(i, j) else _NEVER

    @property
    def size(self) -> int:
        return len(self.costs.order)

    @property
    def bound(self) -> int:
        """Bytes that no arena of this order goes below."""
        return smallest_peak(self.size, self.least_exact, self.floors.least)

    @property
    def smallest(self) -> int:
        """Bytes, rounded, of the best cuts at 1.00x."""
        return smallest_peak(self.size, self.least, self.floors.least)

    def least(self, i: int, j: int) -> int:
        """Bytes of `[i, j)`, rounded, in its best interleaving."""
        return self._bytes(i, j)[0]

    def least_exact(self, i: int, j: int) -> int:
        return self._bytes(i, j)[1]

    def modes(self, i: int, j: int) -> tuple[int, ...]:
        """All interleavings of `[i, j)`: those at 1.00x, coarse first, then stripes, least work first."""
        key = (i, j)
        if key not in self._modes and not self.possible(i, j):
            self._modes[key] = ()
        if key not in self._modes:
            striped = self.costs.stripe_chunks(i, j) if self.recompute else ()
            least_work = sorted(striped, key=lambda c: (self.costs.extra_macs(i, j, c), c))
            self._modes[key] = (*self.chunks(i, j), *least_work)
        return self._modes[key]

    @property
    def recompute(self) -> bool:
        """Whether plans may compute things twice."""
        return self.options.stripes and self.options.max_macs > 1.0

    def coarsest(self, i: int, j: int, cap: int) -> int | None:
        """The interleaving of `[i, j)` within the cap that makes least work and, of these, is coarsest."""
        if not self.recompute and self.least(i, j) > cap:
            return None
        key = (i, j, cap)
        if key not in self._coarsest:
            self._coarsest[key] = next((c for c in self.modes(i, j) if self.costs.cost(i, j, c) <= cap), None)
        return self._coarsest[key]

    def frontier(self, exact: bool = False) -> tuple[tuple[int, int], ...]:
        """Bytes live and extra multiply-accumulates of the best cuts: ascending bytes, descending work."""
        cost = self.costs.exact_cost if exact else self.costs.cost

        def ways(i: int, j: int) -> list[tuple[int, int]]:
            return [(cost(i, j, c), self.costs.extra_macs(i, j, c)) for c in self.modes(i, j)]

        return pareto_cuts(self.size, ways)

    def layouts(self, cap: int, least: int) -> Iterator[Layout]:
        """Layouts within the cap, that of least work and overhead first, each once; `least` bytes are possible.

        An arena may need more than the sum of what is live, most of all where outputs trail their inputs downwards one
        segment after the other: so there are layouts that stay further below the cap, some of fewer segments, and at
        last some beyond a cap that leaves no room, whose arenas may yet be smaller.
        """
        seen: set[Layout] = set()
        beyond = [least + least // n for n in _BEYOND] if cap <= least else []
        for limits, prices in (((cap, (cap + least) // 2, (cap + 7 * least) // 8, least), _PRICES), (beyond, _FEW)):
            found = [self._layout(limit, price) for limit in dict.fromkeys(limits) for price in prices]
            fresh = {layout: self._weight(layout) for layout in found if layout is not None and layout not in seen}
            seen |= fresh.keys()
            yield from sorted(fresh, key=lambda layout: (fresh[layout], layout.cuts, layout.chunks))

    def _layout(self, limit: int, price: int) -> Layout | None:
        """The layout of least work, then of least overhead, whose segments stay within `limit` bytes."""
        floor, calls = self._floor, self._calls

        def bound(i: int, j: int) -> tuple[int, int] | None:
            return (0, calls[i][j] + price) if floor[i][j] <= limit else None

        def weight(i: int, j: int) -> tuple[int, int] | None:
            chunk = self.coarsest(i, j, limit)
            if chunk is None:
                return None
            return self.costs.extra_macs(i, j, chunk), self._overhead(i, j, chunk) + price

        cuts = cuts_within(self.size, weight, bound)
        if cuts is None:
            return None
        return Layout(cuts, tuple(self.coarsest(i, j, limit) or 0 for i, j in pairwise(cuts)))

    @cached_property
    def _floor(self) -> list[list[int]]:
        return (self.floors.any if self.recompute else self.floors.least).tolist()

    @cached_property
    def _calls(self) -> list[list[int]]:
        return self.floors.calls.tolist()

    def _weight(self, layout: Layout) -> tuple[int, int]:
        """Extra multiply-accumulates, and kernel calls inside cascades."""
        return (
            sum(self.costs.extra_macs(*piece) for piece in layout.pieces),
            sum(self._overhead(*piece) for piece in layout.pieces),
        )

    def _overhead(self, i: int, j: int, chunk: int) -> int:
        """Kernel calls that a cascade makes dearer; none where an operator runs alone."""
        return self.costs.calls(i, j, chunk) if len(self.costs.members(i, j)) > 1 else 0
