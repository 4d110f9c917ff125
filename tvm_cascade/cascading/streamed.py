"""The arena of a network with inputs row by row, by one quick search: an upper bound for `stream_input`.

The plans run by whole rows, in the file's order: in rings, from the first layouts by the allocator's heuristics, and if
rings are no smaller, with separate row addresses. A plan with `stream_input` is the best among these and more plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from tvm_cascade.cascading.assemble import simple_arena
from tvm_cascade.cascading.cuts import least_peak
from tvm_cascade.cascading.geometry import reads_rows, streamable
from tvm_cascade.cascading.layout_search import LARGE, Search
from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.row_addresses import smallest_with_row_addresses
from tvm_cascade.cascading.search_cache import plain_costs
from tvm_cascade.graph import Graph, Op, rebuilt
from tvm_cascade.search_monitor import SearchStopped, monitor

_MOST_ROWS = 2_000  # of all tensors: the lives of more take seconds to work out
_LAYOUTS = 3  # whose arenas are laid out


def streamed_peak(graph: Graph, options: PlanOptions, below: int) -> int | None:
    """Compute the bytes of an arena below `below` in which the inputs of `with_inputs_by_rows` lie as rows.

    Returns None if the search finds none, if a limit has struck already, or if the graph is large.
    """
    if not monitor().left() or len(graph.ops) > LARGE:
        return None
    asked = replace(options.untimed, stream_input=True, granularity="row", stripes=False, max_macs=1.0, sram=None)
    with suppress(SearchStopped), monitor().shield():
        return _in_rings(graph, asked, below) or _in_rows(graph, asked, below)
    return None


def _in_rings(graph: Graph, options: PlanOptions, below: int) -> int | None:
    costs = plain_costs(graph, options)
    search = Search(costs.tables, costs.order, options, known=costs)
    if least_peak(search.least_bytes) >= below or search.bound >= below:
        return None
    layouts = islice(search.layouts(search.bound, search.smallest, lambda: below), _LAYOUTS)
    arenas = (simple_arena(search.costs, layout).peak for layout in layouts)
    return next((peak for peak in arenas if peak < below), None)


def _in_rows(graph: Graph, options: PlanOptions, below: int) -> int | None:
    if sum(t.rows for t in graph.tensors) > _MOST_ROWS:
        return None
    plan = smallest_with_row_addresses(graph, options, below) if options.row_addresses else None
    return None if plan is None else plan.peak


def with_inputs_by_rows(graph: Graph) -> tuple[Graph, tuple[int, ...]]:
    """Return the graph with reshapes of inputs as inputs, as plans with `stream_input` have, and the inputs by rows.

    Only reshapes that alone read an input count. Inputs by rows are inputs every operator reads row by row.
    """
    behind = {t: _behind_views(graph, t) for t in graph.inputs}
    skipped = {op for t, (_, ops) in behind.items() for op in ops}
    made = graph
    if skipped:
        kept = [op for op in graph.ops if op.index not in skipped]
        made = rebuilt(graph.tensors, kept, [read for read, _ in behind.values()], graph.outputs, graph.name)
    return made, tuple(t for t in made.inputs if _comes_by_rows(made, t))


def _comes_by_rows(graph: Graph, tensor: int) -> bool:
    by_rows = all(reads_rows(graph, op, k) for op, k in _reads(graph, tensor)) and bool(graph.consumers[tensor])
    return by_rows and graph.tensors[tensor].rows > 1 and tensor not in graph.outputs and streamable(graph, tensor)


def _behind_views(graph: Graph, tensor: int) -> tuple[int, tuple[int, ...]]:
    """Return the tensor read in place of an input, and the reshapes in front: each is read by the next alone."""
    views: list[int] = []
    readers = graph.consumers[tensor]
    while (
        not graph.states
        and len(readers) == 1
        and graph.ops[readers[0]].view
        and len(graph.ops[readers[0]].outputs) == 1
    ):
        if tensor in graph.outputs or graph.ops[readers[0]].part_offsets:
            break
        views.append(readers[0])
        (tensor,) = graph.ops[readers[0]].outputs
        readers = graph.consumers[tensor]
    return tensor, tuple(views)


def _reads(graph: Graph, tensor: int) -> Iterator[tuple[Op, int]]:
    """Yield the operators that read a tensor, each with the position among the inputs."""
    return (
        (graph.ops[i], k) for i in graph.consumers[tensor] for k, t in enumerate(graph.ops[i].inputs) if t == tensor
    )
