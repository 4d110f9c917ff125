"""Statements of recurrent layers with int8 weights and float activations: a product's operand is stored as int8 for
that product (`passes.integer.hybrid`), or rather rounded to the real numbers such integers stand for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm_cascade.passes.integer.fixed_point import i32
from tvm_cascade.passes.integer.hybrid import te_rounded
from tvm_cascade.passes.integer.statements import loop, sequence, store
from tvm_cascade.passes.integer.untyped import Scalar, Value, tirx
from tvm_cascade.passes.recurrent.functions import number
from tvm_cascade.schedules.tir.stored_reals import Storing, factors


@dataclass(frozen=True, slots=True)
class Rounding:
    """How a layer with int8 weights computes: the weights' scales, and whether activations have a zero point."""

    asymmetric: bool
    by_input: tuple[float, ...]  # of each gate
    by_state: tuple[float, ...]
    projection: float = 1.0


class Rounder:
    """Rounder of vectors, with scratch."""

    def __init__(self, rounding: Rounding) -> None:
        self.rounding = rounding
        self.ends = tirx.decl_buffer((2,), "float32", "ends")  # smallest and largest element
        self.factors = tirx.decl_buffer((3,), "float32", "factors")

    def rounded(self, target: Value, extent: int, read: Callable[[Scalar], Scalar]) -> Value:
        """Write the rounded elements `read(i)` into `target`, which may be the source."""
        low, high = self.ends[0], self.ends[1]
        storing = Storing.ASYMMETRIC if self.rounding.asymmetric else Storing.SYMMETRIC
        found = factors(low, high, storing)
        held = [self.factors[k] for k in range(3)]

        def wider(i: Scalar) -> Value:
            return sequence(store(self.ends, 0, tirx.min(low, read(i))), store(self.ends, 1, tirx.max(high, read(i))))

        return sequence(
            *(store(self.ends, k, read(i32(0))) for k in range(2)),
            loop("i", extent, wider),
            *(store(self.factors, k, value) for k, value in enumerate(found)),
            loop("i", extent, lambda i: store(target, i, te_rounded(read(i), held, storing))),
        )


def weight(element: Scalar, scale: float) -> Scalar:
    """Return a weight as a real number: an int8 times a scale; floats unchanged."""
    return element if element.ty.dtype == "float32" else element.astype("float32") * number(scale)
