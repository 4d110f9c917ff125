"""Choice of the execution order, together with the cuts into segments.

The cost of a segment depends on the set of operators that ran before it and on the set that it runs, not on the order
within either: steps inside a segment are driven by demand (`simulate`). So a plan is a chain of down-closed sets
{} = S0 < S1 < ... < Sm = all, and its peak is the largest c(S, T) along it. With few such sets dynamic programming over
all pairs finds the best chain. With more, the planner compares the file's order with orders that need little memory
without cascading, and its bounds hold for these orders only.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm_cascade.graph import Graph
from tvm_cascade.ordering.masks import members

Pair = Callable[[tuple[int, ...], int, int], int]  # bytes of positions [i, j) of an order

MOST_SETS = 200  # down-closed sets up to which all pairs are tried


def down_sets(graph: Graph, most: int = MOST_SETS) -> list[int] | None:
    """All down-closed sets of operators (with a member they hold its predecessors) as masks, by size; None above `most`."""
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


def best_order(graph: Graph, cost: Pair, ceiling: int, most: int = MOST_SETS) -> tuple[tuple[int, ...], bool]:
    """The order whose best cuts need the fewest bytes, and whether that is proven over all orders.

    Ties go to the fewest segments, then to the smaller set.

    Parameters
    ----------
    cost : Callable
        `cost(order, i, j)` are the bytes of positions [i, j) of an order.
    ceiling : int
        Bytes that the file's order needs. That order is returned unless another needs fewer bytes.
    most : int
        Limit on the number of down-closed sets; above it the file's order is returned and nothing is proven.
    """
    n = len(graph.ops)
    filed = tuple(range(n))
    sets = down_sets(graph, most)
    if sets is None or len(sets) == n + 1:
        return filed, sets is not None
    full = (1 << n) - 1
    useful = [s for s in sets if s in (0, full) or _live_bytes(graph, s) < ceiling]
    best: dict[int, tuple[int, int, int]] = {0: (0, 0, 0)}  # set -> bytes, segments, the set before
    for after in useful[1:]:
        best_way: tuple[int, int, int] | None = None
        for before in useful:
            if before & ~after or before == after or before not in best:
                continue
            needed, segments, _ = best[before]
            if needed >= (best_way[0] + 1 if best_way else ceiling):
                continue
            order = (*members(before), *members(after & ~before), *members(full & ~after))
            needed = max(needed, cost(order, before.bit_count(), after.bit_count()))
            if needed < ceiling and (best_way is None or (needed, segments + 1) < best_way[:2]):
                best_way = (needed, segments + 1, before)
        if best_way is not None:
            best[after] = best_way
    return (_unwind(best, full) if full in best else filed), True


def _live_bytes(graph: Graph, done: int) -> int:
    """Bytes of tensors that the operators in `done` wrote and others still read; views and graph inputs do not count."""
    live = 0
    for t in graph.tensors:
        maker = graph.producer[t.index]
        if maker is None or not done >> maker & 1 or graph.ops[maker].view:
            continue
        if any(not done >> c & 1 and not graph.ops[c].view for c in graph.consumers[t.index]):
            live += t.bytes
    return live


def _unwind(best: dict[int, tuple[int, int, int]], full: int) -> tuple[int, ...]:
    """The order of the best chain, traced back from the full set through its predecessors in `best`."""
    order: tuple[int, ...] = ()
    at = full
    while at:
        before = best[at][2]
        order = (*members(at & ~before), *order)
        at = before
    return order
