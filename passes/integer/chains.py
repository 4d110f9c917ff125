"""Turn chains of elementwise float operators on one byte tensor, with byte results, into lookup tables.

The compiler evaluates the chain for all 256 stored values, in float32 like the operators, and quantizes like the
reference. So functions without integer arithmetic (sine, softplus, polynomials) cost 256 bytes of flash and no float
operation at run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from tvm_cascade.passes.integer.lookup import exactly, lookup
from tvm_cascade.passes.integer.requantize import stored_numbers
from tvm_cascade.passes.integer.task import Task
from tvm_cascade.passes.integer.untyped import Value
from tvm_cascade.program.operator import Operand, Operator, Quantized, constant, quantized
from tvm_cascade.program.quant import BYTE_TYPES, NotLowered

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
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "silu": lambda x: x * exactly(_sigmoid)(x),
    "softplus": exactly(lambda v: math.log1p(math.exp(v)) if v < 30 else v),
}


def lower_chain(task: Task) -> Value:
    """Lower a chain to a table. Raises `NotLowered` unless it reads only one byte tensor and scalar constants."""
    chain = _Chain(task)
    with np.errstate(all="ignore"):
        values = chain.value(task.operator.in_file)
    if chain.source is None:
        raise NotLowered("no operand that is dequantized from integers")
    if values.dtype != np.float32:
        raise NotLowered(f"a result of type {values.dtype} between quantizations")
    table = stored_numbers(np.broadcast_to(values, (256,)), task.output)
    return lookup(task, chain.source, table)


class _Chain:
    """Evaluates a float operator chain for every value that the byte tensor stores."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._known: dict[int, np.ndarray] = {}
        self.source: Quantized | None = None

    def value(self, operand: Operand) -> np.ndarray:
        """Return an operand's values for the 256 stored values; a single value if independent of the tensor."""
        key = id(operand)
        if key not in self._known:
            if len(self._known) > _LONGEST:
                raise NotLowered("a chain of too many operators")
            stored = quantized(operand)
            self._known[key] = self._leaf(stored) if stored is not None else self._inner(operand)
        return self._known[key]

    def _leaf(self, operand: Quantized) -> np.ndarray:
        if operand.scale.size != 1:
            raise NotLowered("an operand without one constant scale")
        if operand.constant is not None:
            return self._number(operand.constant.astype("int64") - operand.zero_point) * operand.step
        if operand.dtype not in BYTE_TYPES:
            raise NotLowered(f"no integer form of {self._task.operator.kind} on {operand.dtype}")
        if self.source is not None and not self.source.source.same_as(operand.source):
            raise NotLowered(f"no integer form of {self._task.operator.kind} of two tensors")
        self.source = operand
        info = np.iinfo(operand.dtype)
        return operand.step * (np.arange(info.min, info.max + 1) - operand.zero_point).astype("float32")

    def _inner(self, operand: Operand) -> np.ndarray:
        data = constant(operand)
        if data is not None:
            return self._number(data)
        if not isinstance(operand, Operator):
            raise NotLowered("no integer form of a float input")
        kind, operands = operand.kind, operand.operands
        if kind == "requantize" or (not kind and operand.quant is not None):
            return self.value(operands[0])
        if kind == "clip":
            lo, hi = (np.float32(bound) for bound in operands[1:3])  # type: ignore[arg-type]
            return np.minimum(np.maximum(self.value(operands[0]), lo), hi)
        if kind == "leakyrelu":
            x = self.value(operands[0])
            return np.where(x > 0, x, x * np.float32(operand.attributes["alpha"]))
        if kind == "astype" and str(operand.attributes["dtype"]) == "float32":
            return self.value(operands[0]).astype("float32")
        function = _FUNCTIONS.get(kind)
        if function is None or any(isinstance(o, (int, float)) for o in operands):
            raise NotLowered(f"no integer form of {kind}" if kind else "no integer form of a float input")
        return function(*(self.value(o) for o in operands))

    def _number(self, data: np.ndarray) -> np.ndarray:
        if data.size != 1:
            raise NotLowered(f"no integer form of {self._task.operator.kind} with constants by channel")
        return data.reshape(-1).astype("float32")
