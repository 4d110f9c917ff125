"""Activations for recurrent cells on a single element: ONNX's, defined for all of LSTM, GRU and RNN, and Clip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import nan
from types import MappingProxyType
from typing import NamedTuple

from tvm_cascade.passes.integer.untyped import Scalar, tirx


@dataclass(frozen=True, slots=True)
class Activation:
    """A function of a single element; `alpha` and `beta` are ignored by functions without such a parameter."""

    name: str  # a key of `FUNCTIONS`, or Clip: between `alpha` and `beta`
    alpha: float = 0.0
    beta: float = 0.0

    def __call__(self, x: Scalar) -> Scalar:
        """Return the TIR expression of the value at `x`."""
        return (FUNCTIONS.get(self.name) or _OTHERS[self.name]).value(x, self.alpha, self.beta)


class _Function(NamedTuple):
    value: Callable[[Scalar, float, float], Scalar]
    alpha: float | None = None  # the default; None without such a parameter, NaN where readers do not agree on one
    beta: float | None = None


def number(value: float) -> Scalar:
    """Make a float32 constant."""
    return tirx.const(value, "float32")


def _relu(x: Scalar, _alpha: float, _beta: float) -> Scalar:
    return tirx.max(x, number(0))


def _affine(x: Scalar, alpha: float, beta: float) -> Scalar:
    return x * number(alpha) + number(beta)


def _hard_sigmoid(x: Scalar, alpha: float, beta: float) -> Scalar:
    return tirx.max(tirx.min(_affine(x, alpha, beta), number(1)), number(0))


def _clip(x: Scalar, alpha: float, beta: float) -> Scalar:
    return tirx.max(tirx.min(x, number(beta)), number(alpha))


def _elu(x: Scalar, alpha: float, _beta: float) -> Scalar:
    return tirx.Select(x < number(0), number(alpha) * (tirx.exp(tirx.min(x, number(0))) - number(1)), x)


def _softsign(x: Scalar, _alpha: float, _beta: float) -> Scalar:
    return x / (number(1) + tirx.abs(x))


def _softplus(x: Scalar, _alpha: float, _beta: float) -> Scalar:
    return tirx.max(x, number(0)) + tirx.log(number(1) + tirx.exp(number(0) - tirx.abs(x)))


FUNCTIONS: Mapping[str, _Function] = MappingProxyType(
    {
        "Sigmoid": _Function(lambda x, _alpha, _beta: tirx.sigmoid(x)),
        "Tanh": _Function(lambda x, _alpha, _beta: tirx.tanh(x)),
        "Relu": _Function(_relu),
        "Affine": _Function(_affine, nan, 0.0),
        "LeakyRelu": _Function(lambda x, alpha, _beta: tirx.Select(x < number(0), x * number(alpha), x), 0.01),
        "ThresholdedRelu": _Function(lambda x, alpha, _beta: tirx.Select(x > number(alpha), x, number(0)), nan),
        "ScaledTanh": _Function(lambda x, alpha, beta: number(alpha) * tirx.tanh(number(beta) * x), nan, nan),
        "HardSigmoid": _Function(_hard_sigmoid, 0.2, 0.5),
        "Elu": _Function(_elu, 1.0),
        "Softsign": _Function(_softsign),
        "Softplus": _Function(_softplus),
    }
)
_OTHERS: Mapping[str, _Function] = MappingProxyType({"Clip": _Function(_clip, nan, nan)})
SIGMOID, TANH, RELU = Activation("Sigmoid"), Activation("Tanh"), Activation("Relu")
IDENTITY = Activation("Affine", 1.0, 0.0)
