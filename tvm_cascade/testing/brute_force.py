"""Optima of small graphs by exhaustive search, to compare the searches of the product with."""

from __future__ import annotations

from tvm_cascade.graph import Graph
from tvm_cascade.ordering import footprint


def least_peak_by_sets(graph: Graph, in_place: bool = True) -> int:
    """The least peak in bytes over all topological orders, by the sets of operators that are done.

    For graphs with too many orders to walk; every step is measured by the validator on one order of its set.
    """
    best: dict[frozenset[int], tuple[int, tuple[int, ...]]] = {frozenset(): (0, ())}
    n = len(graph.ops)
    for _ in range(n):
        following: dict[frozenset[int], tuple[int, tuple[int, ...]]] = {}
        for done, (peak, prefix) in best.items():
            for i in range(n):
                if i in done or not done.issuperset(graph.predecessors[i]):
                    continue
                rest = [k for k in range(n) if k not in done and k != i]
                step = footprint(graph, (*prefix, i, *rest), in_place)[len(prefix)]
                after = done | {i}
                if after not in following or max(peak, step) < following[after][0]:
                    following[after] = (max(peak, step), (*prefix, i))
        best = following
    return best[frozenset(range(n))][0]
