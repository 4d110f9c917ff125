"""TE helpers for operators along the last axis, such as softmax: stages with a single value per row, then elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, te

Row: TypeAlias = "tuple[Index, ...]"
Stage = Callable[[str, Callable[..., Scalar]], Tensor]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of `x`, along its last axis; a vector is a single row. TE stage names begin with `kind`."""

    x: Tensor
    kind: str

    @property
    def shape(self) -> list[int]:
        """Return the shape of `x`."""
        return [int(d) for d in self.x.shape]

    def element(self, row: Row, k: object) -> Scalar:
        """Return element `k` in a row, as int32."""
        return self.of(self.x, row, k).astype("int32")

    def of(self, tensor: Tensor, row: Row, k: object) -> Scalar:
        """Return element `k` in a row of `tensor`, in the shape of `x`."""
        return tensor[k] if len(self.shape) == 1 else tensor[(*row, k)]

    def axis(self, name: str) -> Index:
        """Return a reduction axis along a row."""
        return te.reduce_axis((0, self.shape[-1]), name)

    def stage(self, name: str, at: Callable[..., Scalar]) -> Tensor:
        """Add a TE stage with a single value per row, `at(*row indices)`."""
        return te.compute(self.shape[:-1] or [1], at, name=f"{self.kind}_{name}")

    def elements(self, at: Callable[[Row, Index], Scalar], name: str = "") -> Tensor:
        """Return a tensor in the shape of `x` with elements `at(row, k)`: the result, or the stage `name`."""

        def split(*index: Index) -> Scalar:
            return at((0,), index[0]) if len(index) == 1 else at(index[:-1], index[-1])

        return te.compute(self.shape, split, name=f"{self.kind}_{name}" if name else self.kind)
