"""Choice of the execution order, together with the cuts into segments.

A segment's cost depends on the set of operators run before and on the set run inside, not on the order within either:
steps inside a segment are driven by demand (`simulate`). So a plan is a chain of down-closed sets {} = S0 < S1 < ... <
Sm = all, and the peak is the largest c(S, T) along the chain. With few such sets dynamic programming over all pairs
finds the best chain. With more, or with too many pairs to cost, the planner compares the file's order with orders that
need little memory without cascading, and the bounds hold for these orders only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.cuts import within_reach
from tvm_cascade.cascading.lower_bounds import INFEASIBLE
from tvm_cascade.graph import Graph
from tvm_cascade.ordering.masks import members
from tvm_cascade.search_monitor import monitor

Pair = Callable[[tuple[int, ...], int, int], int]  # bytes of positions [i, j) of an order

MOST_SETS = 200  # down-closed sets up to which all pairs are tried
MOST_COSTS = 2_000  # pairs whose bytes are worked out: more than irregular networks of ten operators need


def down_sets(graph: Graph, most: int = MOST_SETS) -> list[int] | None:
    """List the down-closed sets of operators (closed under predecessors) as masks, by size; None for more than `most`."""
    needs = [sum(1 << p for p in preds) for preds in graph.predecessors]
    seen = {0}
    layer = [0]
    while layer:
        following: dict[int, None] = {}
        for s in layer:
            for o, need in enumerate(needs):
                if not s >> o & 1 and need & ~s == 0:
                    following[s | 1 << o] = None
        layer = sorted(following)
        seen.update(layer)
        if len(seen) > most:
            return None
    return sorted(seen, key=lambda s: (s.bit_count(), s))


def best_order(
    tables: AccessTables,
    cost: Pair,
    most_bytes: Callable[[], int],
    rings: Sequence[int],
    most: int = MOST_SETS,
    most_costs: int = MOST_COSTS,
) -> tuple[tuple[int, ...], bool]:
    """Find the order with the smallest peak after the best cuts; return also whether that is proven over all orders.

    Ties go to the fewest segments, then to the smaller set.

    Parameters
    ----------
    cost : Callable
        `cost(order, i, j)` are the bytes of positions [i, j) of an order.
    most_bytes : Callable
        Returns the bytes that the file's order needs, and is called if the sets are few. That order is returned unless
        another needs fewer bytes.
    rings : Sequence[int]
        The fewest bytes of each tensor where it is produced and read in a single segment.
    most : int
        Limit on the number of down-closed sets; above it the file's order is returned and nothing is proven.
    most_costs : int
        Limit on the calls of `cost`, with the same result above it.

    Raises `SearchStopped` if a limit strikes first.
    """
    graph = tables.graph
    n = len(graph.ops)
    filed = tuple(range(n))
    sets = down_sets(graph, most)
    if sets is None or len(sets) == n + 1:
        return filed, sets is not None
    full, costed, ceiling = (1 << n) - 1, 0, most_bytes()
    floors = _lower_bounds(tables, sets, rings)
    useful = within_reach(floors, ceiling)
    best: dict[int, tuple[int, int, int]] = {0: (0, 0, 0)}  # index of a set -> bytes, segments, index of the set before
    for k, after in enumerate(sets):
        before = [s for s in np.flatnonzero(useful[:k, k]).tolist() if s in best]
        tries = sorted((max(best[s][0], int(floors[s, k])), best[s][1] + 1, s) for s in before)
        best_way: tuple[int, int, int] | None = None
        for least, segments, s in tries:
            if least >= ceiling or (best_way is not None and (least, segments, s) > best_way):
                break
            monitor().check()
            if costed == most_costs:
                return filed, False
            costed += 1
            order = (*members(sets[s]), *members(after & ~sets[s]), *members(full & ~after))
            needed = max(least, cost(order, sets[s].bit_count(), after.bit_count()))
            if needed < ceiling and (best_way is None or (needed, segments, s) < best_way):
                best_way = (needed, segments, s)
        if best_way is not None:
            best[k] = best_way
    return (_unwind(best, sets) if len(sets) - 1 in best else filed), True


def _lower_bounds(tables: AccessTables, sets: Sequence[int], rings: Sequence[int]) -> NDArray[np.int64]:
    """Compute lower bounds on a segment's bytes, by the indices of the sets before and after.

    The bytes are live before, or after together with the rings inside; `INFEASIBLE` if the second set does not hold the
    first.
    """
    ran = np.array([[s >> o & 1 for o in range(len(tables.graph.ops))] for s in sets], np.bool_)
    roots = [t for t, root in enumerate(tables.roots) if root.tensor == t]
    born, dead = np.zeros((2, len(sets), len(roots)), np.bool_)
    for k, t in enumerate(roots):
        writers, readers = tables.readers[t] if t in tables.streamed else tables.writers(t), tables.readers[t]
        born[:, k] = ran[:, writers].any(axis=1) if writers else t not in tables.streamed
        dead[:, k] = (ran[:, readers].all(axis=1) if readers else born[:, k]) & (t not in tables.leaves)
    live = (born & ~dead) @ np.array([tables.tensor_bytes[t] for t in roots], np.int64)
    inside = (~born).astype(np.int64) @ ((born & dead) * np.array([rings[t] for t in roots], np.int64)).T
    holds = ran.astype(np.int64) @ ran.T.astype(np.int64) == ran.sum(axis=1)[:, None]
    return np.where(holds, np.maximum(live[:, None], live[None, :] + inside), INFEASIBLE)


def _unwind(best: dict[int, tuple[int, int, int]], sets: Sequence[int]) -> tuple[int, ...]:
    """Return the order of the best chain, traced back from the last of `sets` through the indices in `best`."""
    order: tuple[int, ...] = ()
    at = len(sets) - 1
    while at:
        before = best[at][2]
        order = (*members(sets[at] & ~sets[before]), *order)
        at = before
    return order
