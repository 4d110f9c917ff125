"""The facts an arena depends on: graphs that differ only otherwise, such as an estimate and the network built, are
planned once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tvm_cascade.graph import Graph, Op

_KEPT = "beside"  # the attribute that orders depend on (`ordering.model`)


@lru_cache(maxsize=32)
def structure(graph: Graph) -> Graph:
    """Copy the graph without names, kinds, weights and attributes, none of which changes a search's result."""
    tensors = tuple(replace(t, name="") for t in graph.tensors)
    return replace(graph, tensors=tensors, ops=tuple(_plain(op) for op in graph.ops), name="")


def _plain(op: Op) -> Op:
    attrs = {_KEPT: True} if op.attrs.get(_KEPT) else {}
    return replace(
        op, name="", kind="", opaque=op.opaque and "opaque", weight_bytes=0, storage="", saved_bytes=0, attrs=attrs
    )
