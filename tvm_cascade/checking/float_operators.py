"""Operators of a network that compute in floats after `LowerQuantized`."""

from __future__ import annotations

from typing import Any

import tvm

from tvm_cascade.passes.float_remains import FloatRemain, float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized


def float_operators(mod: Any) -> tuple[FloatRemain, ...]:
    """List the operators of a network's module that stay float, in program order."""
    return float_remains(tvm.transform.Sequential([LowerQuantized()])(mod))
