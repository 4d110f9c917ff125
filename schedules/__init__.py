"""TIR schedules and kernels of operators; exports the schedule primitives `stripe` and `rolling_buffer`.

They are imported when they are first asked for: kernels are written without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm_cascade.schedules.primitives.stripe import buffer_bytes, rolling_buffer, stripe
    from tvm_cascade.schedules.primitives.striping import StripeError

__all__ = ["StripeError", "buffer_bytes", "rolling_buffer", "stripe"]

_MODULES = {
    "StripeError": "primitives.striping",
    "buffer_bytes": "primitives.stripe",
    "rolling_buffer": "primitives.stripe",
    "stripe": "primitives.stripe",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
