"""TIR schedules and kernels of operators; exports the schedule primitives `stripe` and `rolling_buffer`."""

from __future__ import annotations

from tvm_cascade.schedules.primitives.stripe import buffer_bytes, rolling_buffer, stripe
from tvm_cascade.schedules.primitives.striping import StripeError

__all__ = ["StripeError", "buffer_bytes", "rolling_buffer", "stripe"]
