"""TIR schedules and kernels of operators; exports the schedule primitives `stripe` and `rolling_buffer`.

The primitives are imported at first use: kernels are written without primitives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_cascade.lazy import exports

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

__getattr__, __dir__ = exports(__name__, _MODULES)
