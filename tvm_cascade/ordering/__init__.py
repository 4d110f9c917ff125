"""Memory-optimal operator ordering (Serenity): the execution order with the lowest peak, and graph rewriting for a
lower peak.

The solver is imported at first use: few plans order operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_cascade.lazy import exports
from tvm_cascade.ordering.baselines import (
    BASELINES,
    file_order,
    greedy,
    kahn_fifo,
    list_scheduler,
    reverse_post_order,
)
from tvm_cascade.ordering.validate import footprint, peak_of, validate

if TYPE_CHECKING:
    from tvm_cascade.ordering.solve import Ordering, OrderOptions, order

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

_MODULES = {"OrderOptions": "solve", "Ordering": "solve", "order": "solve"}

__getattr__, __dir__ = exports(__name__, _MODULES)
