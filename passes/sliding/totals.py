"""Sums over all rows of stored integers: means, sums and average pools with an int32 sum that a frame may keep.

A frame adds the entering rows to the last frame's sum and subtracts the leaving rows. Integers are exact in any order,
so the result of the operator's arithmetic is the same bit for bit. Float sums are not exact, and remain sums over all
rows.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.expressions import dtype_of, shape_of
from tvm_cascade.passes.integer.fixed_point import INT32_MAX, i32
from tvm_cascade.passes.integer.pooling import reduced_axes, rescaled_sum, te_average
from tvm_cascade.passes.integer.task import Output, Task
from tvm_cascade.passes.integer.untyped import Builder, Function, Index, Scalar, Tensor, Value, relax, te
from tvm_cascade.passes.islands.reader import VIEWS, read_operators
from tvm_cascade.passes.lower_quantized import REAL_ATTR
from tvm_cascade.passes.origin import plain
from tvm_cascade.passes.relax_functions import bindings_of
from tvm_cascade.program.operator import Operator, quantized
from tvm_cascade.program.quant import STORED_TYPES, NotLowered

_ITEM = 4  # bytes of an int32


@dataclass(frozen=True)
class Total:
    """An operator computed from the input's sum over some axes."""

    name: str
    source: Value  # what is summed
    axes: tuple[int, ...]
    stored: Callable[[Scalar], Scalar]  # an element of the output from one of the sum
    dtype: str
    result: Value
    chain: tuple[Value, ...]  # the variables behind `source`, up to `result`

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the sum: 1 along the summed axes."""
        return tuple(1 if k in self.axes else d for k, d in enumerate(shape_of(self.source)))

    @property
    def bytes(self) -> int:
        """Return the bytes of the sum."""
        return _ITEM * prod(self.shape)

    def moved(self, builder: Builder, last: Value, entering: Value, leaving: Value) -> Value:
        """Emit a frame's sum from the last frame's, and the rows entering and leaving."""

        def compute(total: Tensor, new: Tensor, old: Tensor) -> Tensor:
            change = self._sum((new, old), lambda a, b: a.astype("int32") - b.astype("int32"))
            return te.compute(self.shape, lambda *index: total[index] + change(index), name="running_sum")

        return self._call(builder, "running_sum", compute, [last, entering, leaving])

    def finished(self, builder: Builder, total: Value, border: Sequence[Value]) -> Value:
        """Emit the output from the sum of the sliding rows and the border rows."""

        def compute(whole: Tensor, *rows: Tensor) -> Tensor:
            sums = [self._sum((r,), lambda a: a.astype("int32")) for r in rows]
            return te.compute(
                self.shape, lambda *index: self.stored(sum((s(index) for s in sums), whole[index])), name="of_sum"
            )

        made = self._call(builder, "of_sum", compute, [total, *border])
        shape = shape_of(self.result)
        return made if shape == self.shape else builder.emit(relax.op.reshape(made, list(shape)))

    def _sum(self, tensors: Sequence[Tensor], element: Callable[..., Scalar]) -> Callable[[Sequence[Index]], Scalar]:
        """Sum `element` over the axes, at an index in the total."""
        summed = [k for k in self.axes if int(tensors[0].shape[k]) > 1]
        if not summed:
            return lambda index: element(*(t[tuple(index)] for t in tensors))
        reduced = {k: te.reduce_axis((0, int(tensors[0].shape[k])), f"r{k}") for k in summed}

        def at(*index: Index) -> Scalar:
            place = tuple(reduced.get(k, i) for k, i in enumerate(index))
            return te.sum(element(*(t[place] for t in tensors)), axis=list(reduced.values()))

        acc = te.compute(self.shape, at, name="sum_acc")
        return lambda index: acc[tuple(index)]

    def _call(self, builder: Builder, kind: str, compute: Callable[..., Tensor], operands: Sequence[Value]) -> Value:
        return Emitter(builder, {}, f"{self.result.name}_{kind}").call(kind, compute, list(operands))


def find_totals(func: Function) -> dict[Value, Total]:
    """Find the operators of a function that sum stored integers, by result."""
    once = REAL_ATTR in dict(func.attrs or {})
    definitions = {b.var: b.value for b in bindings_of(func)}
    operators = read_operators(definitions.items())
    calls = [var for var, value in definitions.items() if isinstance(value, relax.Call)]
    made = {var: _total(var, operators.operator(var), definitions, once) for var in calls}
    return {var: total for var, total in made.items() if total is not None}


def _total(var: Value, operator: Operator | None, definitions: Mapping[Value, Value], once: bool) -> Total | None:
    """Find the sum that ends in a variable; None if there is none."""
    try:
        found = None if operator is None else _sum(var, operator, once)
        chain = None if found is None else _between(definitions, found.source, var)
    except NotLowered:
        return None
    if found is None or chain is None or dtype_of(found.source) not in STORED_TYPES or shape_of(found.source)[0] != 1:
        return None
    return replace(found, chain=chain)


def _sum(var: Value, operator: Operator, once: bool) -> Total | None:
    """Read a mean, a sum or an average pool of stored values, without the chain of its variables."""
    quant, output = operator.quant, operator.output
    if quant is None:
        if operator.kind != "stored_average":
            return None
        return _pooled(var, operator, replace(Output.unbounded(output.shape, output.dtype), once=once))
    out = replace(Output.unbounded(output.shape, quant.dtype, quant.step, quant.zero_point), once=once)
    if not {m.kind for m in operator.moves} <= {*VIEWS} or operator.explicit:
        return None
    if operator.kind == "avg_pool2d":
        return _pooled(var, operator, out) if out.same_as(operator.activation()) else None
    if operator.kind not in ("mean", "sum"):
        return None
    made = rescaled_sum(Task(operator, out, Emitter(relax.BlockBuilder(), {})))
    name, axes = f"{operator.kind} ({plain(var.name)})", tuple(reduced_axes(operator))
    return Total(name, made.x.source, axes, made.stored, dtype_of(var), var, ())


def _pooled(var: Value, pool: Operator, out: Output) -> Total | None:
    """Read an average pool over the whole map, by TFLite's rounding."""
    attrs, source = pool.attributes, quantized(pool.operands[0]) or pool.value(0)
    rows_and_columns = source.shape[1:3]
    whole = attrs["layout"] == "NHWC" and attrs["pool_size"] == rows_and_columns
    unpadded = not any(attrs["padding"]) and {*attrs["dilation"]} == {1}
    count = prod(rows_and_columns)
    if out.once or not whole or not unpadded or pool.output.shape[1:3] != (1, 1) or count << 16 > INT32_MAX:
        return None
    stored = partial(_averaged, out, count)
    return Total(f"avg_pool2d ({plain(var.name)})", source.source, (1, 2), stored, dtype_of(var), var, ())


def _averaged(out: Output, count: int, total: Scalar) -> Scalar:
    return te_average(out, total, i32(count))


def _between(definitions: Mapping[Value, Value], source: Value, result: Value) -> tuple[Value, ...] | None:
    """Return the variables from `source` up to `result`, each computed from the previous; None if there is no such
    chain.
    """
    found: list[Value] = []
    while isinstance(result, relax.Var) and result in definitions and not result.same_as(source):
        found.append(result)
        result = definitions[result].args[0]
    return tuple(reversed(found)) if isinstance(result, relax.Var) and result.same_as(source) else None
