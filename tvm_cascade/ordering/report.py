"""The report of `tvm-cascade order`: the memory-optimal order as a JSON object."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from tvm_cascade.graph import Graph
from tvm_cascade.memory.traffic import traffic
from tvm_cascade.ordering.rewriting import fold_concats, nodes
from tvm_cascade.ordering.solve import OrderOptions, order
from tvm_cascade.ordering.validate import footprint, peak_of, validate
from tvm_cascade.schema.searches import Order
from tvm_cascade.search_monitor import SearchMonitor, above


def order_report(
    graph: Graph, rewrite: bool = False, on_chip: int | None = None, time_limit: float | None = None
) -> Order:
    """Search the order with least memory and return a JSON object; sizes in bytes, `order` as operator names.

    `rewrite` removes concats, so consumers read the parts, if that lowers the peak (`rewritten` tells). Sizes count
    whole tensors, without scratch or overwriting, as in the literature. `traffic_bytes` is null without `on_chip`.
    `limited` tells that `time_limit` seconds ended the search.
    """
    began = perf_counter()
    options = OrderOptions(in_place=False)
    plain = without_scratch(graph)
    chosen, rewritten = plain, False
    with SearchMonitor(time_limit) as limit:
        solution = order(plain, options)
        if rewrite:
            folded = fold_concats(plain)
            other = order(folded, options)
            if other.peak < solution.peak:
                solution, chosen, rewritten = other, folded, True
    validate(chosen, solution.order, solution.peak, solution.bound, solution.optimal, in_place=False)
    moved = None if on_chip is None else traffic(chosen, solution.order, on_chip)
    return {
        "nodes": nodes(chosen),
        "partitions": solution.partitions,
        "file_order_peak_bytes": peak_of(plain, range(len(plain.ops)), in_place=False),
        "peak_bytes": solution.peak,
        "bound_bytes": solution.bound,
        "optimal": solution.optimal,
        "gap_percent": round(above(solution.peak, solution.bound), 2),
        "limited": limit.limited,
        "rewritten": rewritten,
        "order": [chosen.ops[i].name for i in solution.order],
        "file_order_step_bytes": list(footprint(plain, range(len(plain.ops)), in_place=False)),
        "step_bytes": list(footprint(chosen, solution.order, in_place=False)),
        "traffic_bytes": None if moved is None else moved.bytes,
        "compulsory_bytes": None if moved is None else moved.compulsory,
        "states": solution.states,
        "seconds": round(perf_counter() - began, 3),
    }


def without_scratch(graph: Graph) -> Graph:
    """Remove scratch from the graph, so only tensors count."""
    return replace(graph, ops=tuple(replace(op, scratch_bytes=0) for op in graph.ops))
