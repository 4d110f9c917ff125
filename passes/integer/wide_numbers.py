"""Element-wise operators that compute integers of 64 bits, with indices of 32. TVM's own have indices of 64 bits too, which its
passes narrow only where no tensor has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tvm_cascade.passes.integer.emitter import Operand
from tvm_cascade.passes.integer.expressions import constant_of, dtype_of, is_constant, name_of
from tvm_cascade.passes.integer.fixed_point import i64, te_broadcast
from tvm_cascade.passes.integer.island import WIDE, Island
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, tirx

_OPERATORS: Mapping[str, Callable[..., Scalar]] = {
    "abs": lambda x: tirx.Select(x < i64(0), i64(0) - x, x),
    "add": lambda x, y: x + y,
    "astype": lambda x: x.astype("int64"),
    "maximum": tirx.max,
    "minimum": tirx.min,
    "multiply": lambda x, y: x * y,
    "negative": lambda x: i64(0) - x,
    "subtract": lambda x, y: x - y,
}


@WIDE.lowers(*_OPERATORS)
def lower_wide(island: Island) -> Value | None:
    """An operator of integers, or a cast of them; None, left to Relax, for any other."""
    name = name_of(island.core).removeprefix("relax.")
    args = [island.reader.define(a) if is_constant(island.reader.define(a)) else a for a in island.core.args]
    data = [constant_of(a) for a in args]
    integers = all(np.dtype(dtype_of(a)).kind in "iu" for a in args)
    if not integers or all(d is not None for d in data) or any(island.reader.offset(a) for a in args):
        return None
    operands: list[Operand] = [a if d is None else d for a, d in zip(args, data, strict=True)]

    def element(index: tuple[Index, ...], *given: Tensor) -> Scalar:
        return _OPERATORS[name](*(te_broadcast(x, index) for x in given))

    return island.elementwise("cast" if name == "astype" else name, element, operands)
