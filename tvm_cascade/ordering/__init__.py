"""Memory-optimal operator ordering (Serenity): the execution order of lowest peak, and graph rewriting that lowers it."""

from __future__ import annotations

from tvm_cascade.ordering.baselines import (
    BASELINES,
    file_order,
    greedy,
    kahn_fifo,
    list_scheduler,
    reverse_post_order,
)
from tvm_cascade.ordering.solve import Ordering, OrderOptions, order
from tvm_cascade.ordering.validate import footprint, peak_of, validate

__all__ = [
    "BASELINES",
    "OrderOptions",
    "Ordering",
    "file_order",
    "footprint",
    "greedy",
    "kahn_fifo",
    "list_scheduler",
    "order",
    "peak_of",
    "reverse_post_order",
    "validate",
]
