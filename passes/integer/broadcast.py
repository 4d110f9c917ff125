"""Reading a tensor where one of the broadcast shape is read."""

from __future__ import annotations

from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor


def te_broadcast(x: Tensor, index: tuple[Index, ...]) -> Scalar:
    """The element of `x` at `index` of the shape that it broadcasts to."""
    own = index[len(index) - len(x.shape) :]
    return x[tuple(0 if int(d) == 1 else i for d, i in zip(x.shape, own, strict=True))]
