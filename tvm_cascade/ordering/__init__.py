"""Memory-optimal operator ordering (Serenity): the execution order of lowest peak, and graph rewriting that lowers it.

The solver is imported when it is first asked for: few plans take its order.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

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

_SOLVER = ("OrderOptions", "Ordering", "order")


def __getattr__(name: str) -> object:
    if name not in _SOLVER:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.solve"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
