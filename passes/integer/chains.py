"""Lookup tables for chains of element-wise float operators between the dequantize of one byte tensor and a quantize.

The chain is evaluated at compile time for all 256 stored values, in float32 as the operators would compute it, and
quantized as the reference quantizes floats. So functions that have no integer arithmetic of their own (a sine, a softplus,
a polynomial) cost 256 bytes of flash and no float operations at run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from tvm_cascade.passes.integer.expressions import NotLowered, constant_of, name_of, number_of
from tvm_cascade.passes.integer.island import BYTE_TYPES, Island, Quantized
from tvm_cascade.passes.integer.lookup import exactly, lookup
from tvm_cascade.passes.integer.requantize import stored_numbers
from tvm_cascade.passes.integer.untyped import Call, Value, relax

_LONGEST = 64  # most operators of a chain


def _sigmoid(v: float) -> float:
    return 1 / (1 + math.exp(-v)) if v > -700 else 0.0


_EXACT = (  # numpy's float32 results are correctly rounded
    *("abs", "add", "ceil", "divide", "equal", "floor", "greater", "greater_equal", "less", "less_equal", "maximum"),
    *("minimum", "multiply", "negative", "not_equal", "power", "sign", "sqrt", "square", "subtract", "where"),
)
_FUNCTIONS: Mapping[str, Callable[..., np.ndarray]] = {
    **{name: getattr(np, name) for name in _EXACT},
    **{name: exactly(getattr(math, name)) for name in ("cos", "erf", "exp", "log", "sin", "tan", "tanh")},
    "round": np.rint,
    "rsqrt": lambda x: np.float32(1) / np.sqrt(x),
    "sigmoid": exactly(_sigmoid),
    "nn.relu": lambda x: np.maximum(x, np.float32(0)),
    "nn.silu": lambda x: x * exactly(_sigmoid)(x),
    "nn.softplus": exactly(lambda v: math.log1p(math.exp(v)) if v < 30 else v),
}


def lower_chain(island: Island) -> Value:
    """Lowers a chain to a table. Raises `NotLowered` unless it is a function of one byte tensor and scalar constants."""
    chain = _Chain(island)
    with np.errstate(all="ignore"):
        values = chain.value(island.core)
    if chain.source is None:
        raise NotLowered("no operand that is dequantized from integers")
    if values.dtype != np.float32:
        raise NotLowered(f"a result of type {values.dtype} between quantizations")
    table = stored_numbers(np.broadcast_to(values, (256,)), island.output)
    return lookup(island, chain.source, table)


class _Chain:
    """Evaluates a chain of float operators for every stored value of the one byte tensor that it reads."""

    def __init__(self, island: Island) -> None:
        self._island = island
        self._known: dict[Value, np.ndarray] = {}
        self.source: Quantized | None = None

    def value(self, expr: Value) -> np.ndarray:
        """The values of an expression for the 256 stored values; a single one if it does not depend on the tensor."""
        define = self._island.reader.define
        call = define(expr)
        if call not in self._known:
            if len(self._known) > _LONGEST:
                raise NotLowered("a chain of too many operators")
            self._known[call] = self._leaf(call) if name_of(call) == "relax.dequantize" else self._inner(call)
        return self._known[call]

    def _leaf(self, call: Call) -> np.ndarray:
        operand = self._island.reader.dequantized(call)
        if operand is None or operand.scale.size != 1:
            raise NotLowered("an operand without one constant scale")
        if operand.constant is not None:
            return self._number(operand.constant.astype("int64") - operand.zero_point) * operand.step
        if operand.dtype not in BYTE_TYPES:
            raise NotLowered(f"no integer form of {name_of(self._island.core)} on {operand.dtype}")
        if self.source is not None and not self.source.value.same_as(operand.value):
            raise NotLowered(f"no integer form of {name_of(self._island.core)} of two tensors")
        self.source = operand
        info = np.iinfo(operand.dtype)
        return operand.step * (np.arange(info.min, info.max + 1) - operand.zero_point).astype("float32")

    def _inner(self, call: Call) -> np.ndarray:
        data = constant_of(call)
        if data is not None:
            return self._number(data)
        name = name_of(call).removeprefix("relax.")
        if name == "clip":
            lo, hi = (np.float32(number_of(a)) for a in call.args[1:3])
            return np.minimum(np.maximum(self.value(call.args[0]), lo), hi)
        if name == "nn.leakyrelu":
            x = self.value(call.args[0])
            return np.where(x > 0, x, x * np.float32(call.attrs.alpha))
        if name == "astype" and str(call.attrs.dtype) == "float32":
            return self.value(call.args[0]).astype("float32")
        function = _FUNCTIONS.get(name)
        if function is None or not all(isinstance(a, relax.Expr) for a in call.args):
            raise NotLowered(f"no integer form of relax.{name}" if name else "no integer form of a float input")
        return function(*(self.value(a) for a in call.args))

    def _number(self, data: np.ndarray) -> np.ndarray:
        if data.size != 1:
            raise NotLowered(f"no integer form of {name_of(self._island.core)} with constants by channel")
        return data.reshape(-1).astype("float32")
