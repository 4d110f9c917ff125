"""`Stored`: Relax integers with their quantization.

Relax has no type for quantized values, but calls: dequantize reads integers, scale and zero point; quantize makes
integers. A rewrite keeps `Stored` records in place of these calls, so moves act on integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm_cascade.passes.integer.expressions import constant_of, name_of
from tvm_cascade.passes.integer.untyped import Value, relax

BOUNDARIES = ("quantize", "dequantize")  # Relax's operators between stored integers and real numbers


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """Integers with their quantization, as Relax expressions."""

    tensor: Value
    scale: Value  # one element, or one for each channel
    zero_point: Value
    axis: int  # of the channels; it may count from the end

    @classmethod
    def read_by(cls, expr: Value) -> Stored | None:
        """Return the integers that an expression makes real; None for an expression that does something else."""
        return cls._of(expr.args[0], expr) if name_of(expr) == "relax.dequantize" else None

    @classmethod
    def written_by(cls, expr: Value) -> Stored | None:
        """Return the integers made from real numbers by a quantize; None for any other expression."""
        return cls._of(expr, expr) if name_of(expr) == "relax.quantize" else None

    @classmethod
    def _of(cls, tensor: Value, call: Value) -> Stored:
        return cls(tensor, call.args[1], call.args[2], int(call.attrs.axis))

    @property
    def reals(self) -> Value:
        """Return the call that dequantizes the integers."""
        return relax.op.dequantize(self.tensor, self.scale, self.zero_point, axis=self.axis)

    @property
    def scales(self) -> int:
        """Count the scales; 0 unless they are constant."""
        scale = constant_of(self.scale)
        return 0 if scale is None else int(scale.size)

    @property
    def numbers(self) -> tuple[float, float] | None:
        """Return the only scale and zero point; None for several, or unless they are constant."""
        data = [constant_of(v) for v in (self.scale, self.zero_point)]
        scale, zero = (None if d is None or d.size != 1 else float(d.reshape(-1)[0]) for d in data)
        return None if scale is None or zero is None else (scale, zero)

    def along(self, tensor: Value, axis: int = 0) -> Stored:
        """Return other integers, with the channels along `axis`, by the same scale and zero point."""
        return replace(self, tensor=tensor, axis=axis)

    def moved(self, move: Callable[[Value], Value], order: Sequence[int] | None = None) -> Stored | None:
        """Apply `move` to the integers; return None if channel scales would have to move along. `order` gives the new
        place of each axis for a permutation.
        """
        if self.scales == 0 or (self.scales > 1 and order is None):
            return None
        axis = 0 if self.scales == 1 or order is None else list(order).index(self.axis % len(order))
        return self.along(move(self.tensor), axis)
