"""s_tir schedule rules and hand-use primitives."""

from __future__ import annotations

from tvm_cascade.schedules.primitives.stripe import buffer_bytes, rolling_buffer, stripe
from tvm_cascade.schedules.primitives.striping import StripeError

__all__ = ["StripeError", "buffer_bytes", "rolling_buffer", "stripe"]
