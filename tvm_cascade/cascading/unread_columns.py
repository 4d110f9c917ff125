"""Columns of a tensor nobody reads, such as every second column before a 1x1 convolution with stride 2.

Stripes make only the columns needed by readers, so plans in stripes leave unread columns out. If that saves more than
columns made twice cost, a plan does less work than the network: the plan is within `max_macs` of 1.0, and found by the
search that lets stripes make columns twice, with no work to spend.
"""

from __future__ import annotations

from dataclasses import replace
from math import nextafter

from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.graph import Graph, Op


def may_leave_out_columns(graph: Graph, options: PlanOptions) -> PlanOptions:
    """Return options for stripes without unread columns at no more work; `options` itself if they suffice.

    A streamed input would be delivered once for every stripe, which only users who ask for more work get.
    """
    if not options.stripes or options.stream_input or options.max_macs > 1.0 or not has_unread_columns(graph):
        return options
    return replace(options, max_macs=nextafter(1.0, 2.0))


def has_unread_columns(graph: Graph) -> bool:
    """Test whether all readers of some tensor in the graph skip columns."""
    made = (t for op in graph.ops for t in op.outputs if t not in graph.outputs)
    return any(graph.consumers[t] and all(_skips(graph.ops[o], t) for o in graph.consumers[t]) for t in made)


def _skips(op: Op, tensor: int) -> bool:
    """Test whether an operator's windows of `tensor` lie further apart than they are wide."""
    columns = op.columns or (None,) * len(op.inputs)
    windows = [window for t, window in zip(op.inputs, columns, strict=True) if t == tensor]
    return all(w is not None and w.denominator == 1 and w.stride > w.span for w in windows)
