"""Mapping between Relax operators and the operator table: kinds, attributes and layouts, in both directions.

The table (`operators.table`) is keyed by the last part of a Relax operator's name, and by aliases (`Operator.also`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from tvm import relax

from tvm_cascade.operators.table import OPERATORS

_GRAPH_KINDS = MappingProxyType({"multiply": "mul", "subtract": "sub", "take": "gather"})
KERNEL_LAYOUTS = ("OIHW", "HWIO", "OHWI", "HWOI")  # of a convolution's weights
_FAMILIES: tuple[Any, ...] = (relax.op, relax.op.nn)


def graph_kind(last_name: str) -> str:
    """Return a Relax operator's kind in stage graphs (`stage_graph`)."""
    return _GRAPH_KINDS.get(last_name, last_name)


def table_kind(last_name: str) -> str:
    """Return a Relax operator's kind in the operator table; "" if the table lacks it."""
    return OPERATORS[last_name].kind if last_name in OPERATORS else ""


def relax_operator(kind: str) -> Any:
    """Return the Relax function for an element-wise operator in the table."""
    names = (kind, *OPERATORS[kind].also)
    return next(getattr(family, name) for name in names for family in _FAMILIES if hasattr(family, name))


def integers(values: Any) -> tuple[int, ...]:
    """Relax's array of integers as a tuple."""
    return tuple(int(v) for v in values)


def axis_of(value: Any, rank: int) -> int:
    """Return an axis counted from the front."""
    return int(value) % rank


def convolution_attributes(attrs: Any) -> dict[str, Any]:
    """Return the table's attributes of a convolution (`tvm_cascade.operators.convolutions`), without the activation."""
    sliding = {k: integers(getattr(attrs, k)) for k in ("strides", "padding", "dilation")}
    return {**sliding, "groups": int(attrs.groups), "layout": str(attrs.data_layout)}


def pool_attributes(kind: str, attrs: Any) -> dict[str, Any]:
    """Return the table's attributes of a pool (`tvm_cascade.operators.pools`)."""
    counted = {"count_pad": bool(attrs.count_include_pad)} if kind == "avg_pool2d" else {}
    return {
        "kernel": integers(attrs.pool_size), "strides": integers(attrs.strides), "padding": integers(attrs.padding),
        "layout": str(attrs.layout), "ceil": bool(attrs.ceil_mode), **counted,
    }  # fmt: skip


def oihw_axes(layout: str) -> tuple[int, ...]:
    """Return the permutation of a convolution's weights to (out, in / groups, height, width)."""
    return tuple(layout.index(letter) for letter in "OIHW")


def row_and_column_axis(attrs: Any) -> tuple[int, int] | None:
    """Return the axes H and W of an operator's layout; None if its attributes name no such layout."""
    layout = getattr(attrs, "data_layout", None) or getattr(attrs, "layout", None)
    return (layout.index("H"), layout.index("W")) if layout and "H" in layout and "W" in layout else None
