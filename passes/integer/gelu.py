"""The reference's two gelus, step by step in its float32: by the error function, and by its approximation."""

from __future__ import annotations

import math

import numpy as np

_SQRT_HALF = np.float32(math.sqrt(0.5))
_SQRT_2_OVER_PI = np.float32(math.sqrt(2 / math.pi))
_CUBIC = np.float32(0.044715)


def gelu(x: np.ndarray) -> np.ndarray:
    """`x / 2 (1 + erf(x / sqrt(2)))`, float32 to float32."""
    scaled = (x * _SQRT_HALF).astype("float32")
    return _half(x) * (np.float32(1) + np.array([math.erf(v) for v in scaled.tolist()], "float32"))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """`x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, float32 to float32."""
    inner = (_SQRT_2_OVER_PI * (x + _CUBIC * x * x * x)).astype("float32")
    return _half(x) * (np.float32(1) + np.array([math.tanh(v) for v in inner.tolist()], "float32"))


def _half(x: np.ndarray) -> np.ndarray:
    return np.float32(0.5) * x
