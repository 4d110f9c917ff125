"""Search over the cuts and interleavings of one execution order: bounds, Pareto fronts and the layouts worth allocating."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.assemble import Layout
from tvm_cascade.cascading.cached_method import cached_method
from tvm_cascade.cascading.cuts import cuts_within, pareto_cuts, smallest_peak, within_reach
from tvm_cascade.cascading.interleaving import BY_ROWS, Interleaving, without_stripes
from tvm_cascade.cascading.lower_bounds import INFEASIBLE, LowerBounds
from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.regions import Partition, partition
from tvm_cascade.cascading.segments import SegmentCosts
from tvm_cascade.cascading.stripes import Striped
from tvm_cascade.memory import Allocation

# most operators of a segment in steps of pixels: rings cost most where maps are large and segments short, and longer
# segments take longer to simulate
LONGEST_BY_PIXELS = 24
# networks of more than LARGE operators have too many segments to try all: at most LONGEST_IN_LARGE operators in each
LARGE, LONGEST_IN_LARGE = 200, 32
_PRICES = (0, 10, 30, 100, 300, 1_000, 3_000, 10_000, 10**9)  # penalties for each segment, in kernel calls
_FEW = (0, 100, 3_000, 10**9)  # the same where fewer are tried
_BEYOND = (32, 16, 8, 4)  # n: layouts may have 1/n more live bytes than the least


class Search:
    """Costs of an order's segments in every interleaving, and the layouts worth trying."""

    def __init__(
        self,
        tables: AccessTables,
        order: Sequence[int],
        options: PlanOptions,
        like: Search | None = None,
        known: SegmentCosts | None = None,
    ) -> None:
        """Parameters
        ----------
        like : Search, optional
            A search with the same options over this or another order of the same graph, whose results are shared.
        known : SegmentCosts, optional
            Costs of this order, or of another order of the same graph; without them those of `like`.
        """
        known = like.costs if known is None and like is not None else known
        self.costs = SegmentCosts(tables, order, options.settings) if known is None else known.in_order(order)
        self.options = options
        self._interleavings = tuple(map(without_stripes, options.tiles))  # coarse first
        self.lower_bounds = LowerBounds(self.costs.bounds, options.tiles)
        self._like = like
        self._floor = 0  # lower bound of `bound`
        self.regions: Partition = partition(tables.graph) if like is None else like.regions

    def possible(self, i: int, j: int) -> bool:
        """Test whether [i, j) may be a segment: in a single region or a single operator, and not too long."""
        if j - i > self.longest:
            return False
        if self.regions.whole:
            return True
        working = [o for o in self.costs.members(i, j) if o >= 0]
        places = {self.regions.region_of[o] for o in working}
        return len(working) < 2 or (len(places) == 1 and None not in places)

    def interleavings(self, i: int, j: int, cap: int = INFEASIBLE) -> Iterator[Interleaving]:
        """Yield interleavings without stripes to try for [i, j), coarse first.

        Only the coarsest if the segment is long, or has several sinks and maps of several rows: along a signal whole
        rows keep no ring. Pixel tiles with too much scratch are left out; whole rows are always possible. Interleavings
        that need more than `cap` bytes may be missing. A single operator runs by whole rows, and along a signal by the
        fewest pixels, for an output that follows a dying input closely.
        """
        costs, count, tried = self.costs, len(self.costs.members(i, j)), 0
        for interleaving in self._interleavings if count > 1 else self._of_one(i, j):
            if tried and (count > LONGEST_BY_PIXELS or not (costs.one_sink(i, j) or costs.along_signal(i, j))):
                return
            if tried and self.lower_bounds.plain(interleaving.tile)[i, j] > cap:
                continue
            if self.costs.little_scratch(i, j, interleaving):
                yield interleaving
                tried += 1
        if not tried:
            yield BY_ROWS

    def _of_one(self, i: int, j: int) -> tuple[Interleaving, ...]:
        """Return the interleavings of one operator: whole rows, and the fewest pixels if the output then trails."""
        finest = self._interleavings[-1:] if self.costs.trails_by_pixels(i, j) else ()
        return (BY_ROWS, *finest) if BY_ROWS in self._interleavings else finest

    def without_ring_constraints(self) -> Search:
        """Make a search over the same order in which rings do not follow dying inputs through the same memory."""
        return Search(
            self.costs.tables, self.costs.order, self.options, self, known=self.costs.without_ring_constraints()
        )

    def with_recompute(self, options: PlanOptions) -> Search:
        """Copy this search for plans with more multiply-accumulates; `options` differ in nothing else.

        All knowledge on plans without recompute is kept. Not for streamed inputs (`striped`).
        """
        other = copy(self)
        other.options = options
        for name in ("coarsest", "frontier", "least_bytes", "_within"):  # results that depend on it
            vars(other).pop(name, None)
        return other

    @cached_method
    def _bytes(self, i: int, j: int) -> tuple[int, int]:
        """Compute the bytes of [i, j) in the best interleaving without recompute: blocks aligned, and exact.

        A segment above `by_rows` even with all possible sharing gets only a lower bound.
        """
        if not self.possible(i, j):
            return INFEASIBLE, INFEASIBLE
        costs, tried = self.costs, tuple(self.interleavings(i, j))
        lower_bound = min(costs.exact_apart(i, j, c) for c in tried) - costs.most_shared(i, j)
        if lower_bound > self.by_rows:
            rounded = exact = [lower_bound]
        else:
            rounded, exact = ([cost(i, j, c) for c in tried] for cost in (costs.cost, costs.exact_cost))
        if self.options.stripes and self.lower_bounds.halo_stripes[i, j] < min(self.by_rows + 1, *exact):
            striped = [s for s in self.striped(i, j) if not s.extra_macs]
            rounded, exact = [*rounded, *(s.bytes for s in striped)], [*exact, *(s.exact for s in striped)]
        return min(rounded), min(exact)

    @property
    def longest(self) -> int:
        """Return the most operators a segment may have."""
        return self.size if self.size <= LARGE else LONGEST_IN_LARGE

    def _short(self, bytes_of: NDArray[np.int64]) -> NDArray[np.int64]:
        """Copy a table of lower bounds, with too long segments marked infeasible."""
        if self.size <= LARGE:
            return bytes_of
        place = np.arange(self.size + 1)
        return np.where(place[None, :] - place[:, None] > self.longest, INFEASIBLE, bytes_of)

    @cached_property
    def longer_bound(self) -> int:
        """Compute a lower bound in bytes on all segments that are too long to be searched; `INFEASIBLE` without any."""
        if self.size <= self.longest:
            return INFEASIBLE
        bounds = self.lower_bounds.any_form if self.recompute else self.lower_bounds.without_recompute
        return min(int(np.diagonal(bounds, length).min()) for length in range(self.longest + 1, self.size + 1))

    @cached_property
    def by_rows(self) -> int:
        """Compute the bytes of the best cuts with every segment in the coarsest interleaving, for the first order
        searched.
        """
        return self._like.by_rows if self._like is not None else self._own_by_rows()

    def use_own_rows(self) -> None:
        """Replace `by_rows` by this order's if that is smaller."""
        self.by_rows = min(self.by_rows, self._own_by_rows(self.by_rows))

    def _own_by_rows(self, most: int = INFEASIBLE) -> int:
        """Compute `by_rows` of this order; a lower bound above `most` for more."""

        def coarsest(i: int, j: int) -> int:
            return self.costs.cost(i, j, next(self.interleavings(i, j))) if self.possible(i, j) else INFEASIBLE

        apart = (self.costs.apart(k, k + 1, next(self.interleavings(k, k + 1))) for k in range(self.size))
        return self._smallest_peak(coarsest, self._short(self.lower_bounds.coarsest), max(apart, default=0), most)

    def _smallest_peak(
        self, cost: Callable[[int, int], int], lower_bound: NDArray[np.int64], known: int, most: int = INFEASIBLE
    ) -> int:
        """Compute the smallest peak over all cuts; some cuts have a peak of `known` bytes.

        `cost(i, j)` is at most the need of segment [i, j) in the coarsest interleaving.
        """

        def up_to(i: int, j: int, peak: int) -> int:
            """Return `peak` if the coarsest interleaving fits within `peak` bytes without sharing, else the exact cost,
            which takes longer.
            """
            little = self.possible(i, j) and self.costs.apart(i, j, next(self.interleavings(i, j))) <= peak
            return peak if little else cost(i, j)

        return smallest_peak(self.size, up_to, lower_bound, known, most)

    @property
    def size(self) -> int:
        """Count the operators."""
        return len(self.costs.order)

    @cached_property
    def bound(self) -> int:
        """Lower bound in bytes on the arena of this order without recompute."""
        return self._smallest_peak(self.least_exact, self._without_recompute, self.by_rows)

    def bound_up_to(self, most: int) -> int:
        """Return `bound` if it is at most `most`, else a lower bound of it that is more."""
        if "bound" in vars(self):
            return self.bound
        if self._floor <= most:
            self._floor = self._smallest_peak(self.least_exact, self._without_recompute, self.by_rows, most)
            if self._floor <= most:
                self.bound = self._floor
        return self._floor

    @cached_property
    def smallest(self) -> int:
        """Compute the live bytes of the best cuts without recompute, blocks rounded to the alignment."""
        return self._smallest_peak(self.least, self._without_recompute, self.by_rows)

    def least(self, i: int, j: int) -> int:
        """Return the bytes of [i, j) in the best interleaving without recompute, blocks rounded to the alignment.

        A lower bound if that exceeds `by_rows`, since no best plan uses such a segment; `INFEASIBLE` if no segment is
        possible.
        """
        return self._bytes(i, j)[0]

    def least_exact(self, i: int, j: int) -> int:
        """Return the bytes as `least` does, blocks not rounded."""
        return self._bytes(i, j)[1]

    def striped(self, i: int, j: int) -> tuple[Striped, ...]:
        """Compute the costs of [i, j) for each stripe width and number of halo tensors, least work first.

        A streamed input is delivered once for every stripe, so such segments are striped only if recompute is allowed.
        """
        members = self.costs.members(i, j)
        again = bool(members) and members[0] < 0 and self.options.max_macs == 1.0
        possible = self.options.stripes and not again and self.possible(i, j)
        possible = possible and self.lower_bounds.stripes[i, j] < INFEASIBLE
        return self.costs.striped(i, j, self.options.narrowest) if possible else ()

    @property
    def recompute(self) -> bool:
        """Test whether plans may execute more multiply-accumulates than the network has."""
        return self.options.stripes and self.options.max_macs > 1.0

    @cached_method
    def coarsest(self, i: int, j: int, cap: int) -> Interleaving | None:
        """Return the interleaving of [i, j) within `cap` bytes with least work; among equals the coarsest.

        Returns None if none fits.
        """
        if not self.possible(i, j):
            return None
        plain = next((c for c in self.interleavings(i, j, cap) if self._fits(i, j, c, cap)), None)
        in_stripes = self.lower_bounds.stripes if self.recompute else self.lower_bounds.halo_stripes
        if plain is not None or in_stripes[i, j] > cap:
            return plain
        striped = (s for s in self.striped(i, j) if self.recompute or not s.extra_macs)
        return next((s.interleaving for s in striped if s.bytes <= cap), None)

    def _fits(self, i: int, j: int, interleaving: Interleaving, cap: int) -> bool:
        """Test whether [i, j) needs at most `cap` bytes; offset constraints are computed only if decisive."""
        return self.lower_bounds.plain(interleaving.tile)[i, j] <= cap and self.costs.fits(i, j, interleaving, cap)

    @cached_method
    def frontier(self, exact: bool = False) -> tuple[tuple[int, int], ...]:
        """Compute the Pareto front of (live bytes, extra multiply-accumulates) over all cuts: ascending bytes,
        descending work.
        """
        ceiling = self.bound if exact else self.smallest
        most = int(self.costs.tables.graph.macs * (self.options.max_macs - 1.0))

        def below_ceiling(i: int, j: int) -> list[tuple[int, int]]:
            return self.forms(i, j, ceiling, exact)

        trades = pareto_cuts(self.size, below_ceiling, within_reach(self.least_bytes, ceiling), most)
        return (*trades, (ceiling, 0)) if not trades or trades[-1][1] > 0 else trades

    def forms(self, i: int, j: int, ceiling: int, exact: bool = False) -> list[tuple[int, int]]:
        """List (bytes, extra multiply-accumulates) of [i, j) for every interleaving below `ceiling` bytes."""
        striped = self.striped(i, j) if self.lower_bounds.stripes[i, j] < ceiling else ()
        forms = [(s.exact if exact else s.bytes, s.extra_macs) for s in striped]
        if self.lower_bounds.tiles[i, j] < ceiling:
            forms.append(((self.least_exact if exact else self.least)(i, j), 0))
        return [f for f in forms if f[0] < ceiling]

    def layouts(self, cap: int, least: int, most: Callable[[], int]) -> Iterator[Layout]:
        """Yield layouts of at most `cap` live bytes, by least work and overhead, each once.

        An arena may be larger than the live bytes, above all if many outputs and inputs share memory. So some layouts
        stay further below the cap, and some have fewer segments. `least` are the fewest live bytes of any layout. If
        the cap is no larger, layouts with somewhat more live bytes come last, since their arenas may be smaller: up to
        `most()` bytes, asked once all others have been tried.
        """
        seen: set[Layout] = set()
        limits = (cap, (cap + least) // 2, (cap + 7 * least) // 8, least)
        yield from self._fresh(limits, _PRICES, seen)
        if cap <= least and (worth := most()) > least:
            beyond = [min(least + least // n, worth) for n in _BEYOND]
            yield from self._fresh(beyond, _FEW, seen)

    def _fresh(self, limits: Iterable[int], prices: Sequence[int], seen: set[Layout]) -> list[Layout]:
        """Return the layouts within `limits` not yet in `seen`, sorted by work and overhead, and add them there."""
        fresh = {layout for limit in dict.fromkeys(limits) for layout in self._of_prices(limit, prices)} - seen
        seen |= fresh
        return sorted(fresh, key=self._sort_key)

    def _of_prices(self, limit: int, prices: Sequence[int]) -> list[Layout]:
        """List the layouts of least overhead within `limit` bytes for ascending prices of a segment; empty if none
        fits.

        Overhead and segments are two sums, so a layout that is best at two prices is best at all prices between.
        """
        first, last = self._layout(limit, prices[0]), self._layout(limit, prices[-1])
        if first is None or last is None:
            return []
        found, pending = [first, last], [(0, first, len(prices) - 1, last)]
        while pending:
            low, cheap, high, dear = pending.pop()
            middle = (low + high) // 2
            if cheap == dear or middle == low:
                continue
            between = self._layout(limit, prices[middle])
            assert between is not None
            found.append(between)
            pending += [(low, cheap, middle, between), (middle, between, high, dear)]
        return found

    def _layout(self, limit: int, price: int) -> Layout | None:
        """Find the layout of least work, then least overhead plus `price` a segment, within `limit` bytes; None if none
        fits.
        """

        def weight(i: int, j: int) -> tuple[int, int] | None:
            interleaving = self.coarsest(i, j, limit)
            if interleaving is None:
                return None
            return self.costs.extra_macs(i, j, interleaving), self._overhead(i, j, interleaving)

        cuts = cuts_within(self.size, weight, self._within(limit), price)
        if cuts is None:
            return None
        return Layout(cuts, tuple(self.coarsest(i, j, limit) or BY_ROWS for i, j in pairwise(cuts)))

    @cached_property
    def least_bytes(self) -> NDArray[np.int64]:
        """Compute lower bounds on every segment's bytes, in any interleaving the options allow."""
        return self._short(self.lower_bounds.any_form) if self.recompute else self._without_recompute

    @cached_property
    def _without_recompute(self) -> NDArray[np.int64]:
        """Return lower bounds on every segment's bytes without recompute."""
        return self._short(self.lower_bounds.without_recompute if self.options.stripes else self.lower_bounds.tiles)

    @cached_method
    def _within(self, limit: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """List, by position i, the ends j of segments [i, j) that cuts within `limit` bytes may contain, by lower
        bounds.

        Each comes with a lower bound of the kernel calls.
        """
        useful, calls = within_reach(self.least_bytes, limit + 1), self.lower_bounds.calls
        ends = [i + 1 + np.flatnonzero(row[i + 1 :]) for i, row in enumerate(useful)]
        return [(after, calls[i, after]) for i, after in enumerate(ends)]

    def _sort_key(self, layout: Layout) -> tuple[object, ...]:
        """Return a layout's extra multiply-accumulates, kernel calls inside cascades, and tie breakers."""
        work = sum(self.costs.extra_macs(*segment) for segment in layout.segments)
        calls = sum(self._overhead(*segment) for segment in layout.segments)
        return work, calls, layout.cuts, [interleaving.sort_key for interleaving in layout.interleavings]

    def _overhead(self, i: int, j: int, interleaving: Interleaving) -> int:
        """Count the kernel calls of a segment, which are overhead if there are several operators; else 0."""
        return self.costs.calls(i, j, interleaving) if len(self.costs.members(i, j)) > 1 else 0


class Leaders:
    """The `count` layouts with the smallest arenas so far, each with the arena; of equal arenas the earlier is first.

    `tightest` is the layout with the fewest live bytes, whose arena may be the smallest after a search. Layouts with
    arenas of at least `below` bytes are left out in any case.
    """

    def __init__(self, count: int, below: int = INFEASIBLE) -> None:
        self.count, self.below = count, below
        self.first: list[tuple[Allocation, Search, Layout]] = []
        self.tightest: tuple[Allocation, Search, Layout] | None = None

    def add(self, arena: Allocation, search: Search, layout: Layout) -> None:
        """Add a layout if the arena is among the smallest."""
        if arena.bound >= self.below:
            return
        if self.tightest is None or arena.bound < self.tightest[0].bound:
            self.tightest = (arena, search, layout)
        self.first = sorted([*self.first, (arena, search, layout)], key=lambda entry: entry[0].peak)[: self.count]

    def beyond(self, lower_bound: int) -> bool:
        """Test whether layouts with arenas of at least `lower_bound` bytes would all be refused."""
        return lower_bound >= self._limit

    def worth(self, bound: int) -> int:
        """Return the most live bytes of a layout worth laying out, given that no arena is below `bound` bytes.

        0 if an arena is at the bound already, so none can be smaller.
        """
        if self.first and self.first[0][0].peak <= bound:
            return 0
        return self._limit - 1

    @property
    def _limit(self) -> int:
        """Return the bytes an arena has to be below to be kept."""
        return min(self.below, self.first[-1][0].peak if len(self.first) == self.count else INFEASIBLE)
