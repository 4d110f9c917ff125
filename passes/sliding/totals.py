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
from math import prod

from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.expressions import NotLowered, dtype_of, name_of, shape_of
from tvm_cascade.passes.integer.fixed_point import INT32_MAX, i32
from tvm_cascade.passes.integer.island import VIEWS, Island, Output, Reader
from tvm_cascade.passes.integer.pooling import reduced_axes, rescaled_sum, te_average
from tvm_cascade.passes.integer.untyped import Binding, Builder, Call, Index, Scalar, Tensor, Value, relax, te
from tvm_cascade.passes.read.relax_names import integers

_ITEM = 4  # bytes of an int32
_STORED = ("int8", "uint8", "int16")


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


def find_totals(bindings: Sequence[Binding]) -> dict[Value, Total]:
    """Find a function's sums over stored integers, by result."""
    found = _Finder(Reader({b.var: b.value for b in bindings}))
    made = {b.var: found.total(b.var, b.value) for b in bindings}
    return {var: total for var, total in made.items() if total is not None}


@dataclass(frozen=True)
class _Finder:
    reader: Reader

    def total(self, var: Value, value: Value) -> Total | None:
        """Find the sum ending in a variable; None if there is none."""
        try:
            if name_of(value) == "relax.quantize":
                return self._island(var, value)
            if name_of(value) == "relax.astype" and dtype_of(var) in _STORED:
                return self._average(var, self.reader.define(value.args[0]))
        except NotLowered:
            pass
        return None

    def _island(self, var: Value, quantize: Call) -> Total | None:
        found = self.reader.island(quantize)
        moves = {name_of(self.reader.define(m)) for m in found.moves}
        out = Output.unbounded(shape_of(found.source), found.dtype, found.step, found.zero_point)
        out = replace(out, once=self.reader.real_operators)
        island = Island(found.core, out, self.reader, Emitter(relax.BlockBuilder(), {}))
        if not moves <= VIEWS or island.explicit:
            return None
        if name_of(found.core) == "relax.nn.avg_pool2d":
            x = island.activation(found.core.args[0])
            return self._pooled(var, found.core, x.value, out) if out.same_as(x) else None
        if name_of(found.core) not in ("relax.mean", "relax.sum"):
            return None
        made = rescaled_sum(island)
        return self._made(var, found.core, made.x.value, tuple(reduced_axes(island)), made.stored)

    def _average(self, var: Value, pool: Value) -> Total | None:
        """Read an average pool of stored values, between casts."""
        widened = self.reader.define(pool.args[0]) if name_of(pool) == "relax.nn.avg_pool2d" else None
        if widened is None or name_of(widened) != "relax.astype":
            return None
        return self._pooled(var, pool, widened.args[0], Output.unbounded(shape_of(var), dtype_of(var)))

    def _pooled(self, var: Value, pool: Call, source: Value, out: Output) -> Total | None:
        """Read an average pool over the whole map."""
        shape, attrs = shape_of(source), pool.attrs
        whole = str(attrs.layout) == "NHWC" and integers(attrs.pool_size) == shape[1:3]
        plain = not any(integers(attrs.padding)) and set(integers(attrs.dilation)) == {1}
        count = prod(shape[1:3])
        if not whole or not plain or shape_of(pool)[1:3] != (1, 1) or count << 16 > INT32_MAX:
            return None
        return self._made(var, pool, source, (1, 2), lambda total: te_average(out, total, i32(count)))

    def _made(
        self, var: Value, core: Call, source: Value, axes: tuple[int, ...], stored: Callable[[Scalar], Scalar]
    ) -> Total | None:
        chain = _between(self.reader.definitions, source, var)
        if chain is None or dtype_of(source) not in _STORED or shape_of(source)[0] != 1:
            return None
        name = f"{name_of(core).rpartition('.')[2]} ({var.name})"
        return Total(name, source, axes, stored, dtype_of(var), var, chain)


def _between(definitions: Mapping[Value, Value], source: Value, result: Value) -> tuple[Value, ...] | None:
    """Return the variables from `source` up to `result`, each computed from the previous; None if there is no such
    chain.
    """
    found: list[Value] = []
    while isinstance(result, relax.Var) and result in definitions and not result.same_as(source):
        found.append(result)
        result = definitions[result].args[0]
    return tuple(reversed(found)) if isinstance(result, relax.Var) and result.same_as(source) else None
