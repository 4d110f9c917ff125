"""`Reshaping`, the base class of rewrites of signals to maps of another shape: a row (`one_row`) or a column (`one_column`).

Integer lowering, fused float layers and the schedules support only two-dimensional convolutions and pools. An operator
without a rule reads operands of the old shape; stored integers stay stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.passes.main_rewriting import (
    Rewriting,
    Value,
    bindings_of,
    constant_of,
    elementwise,
    name_of,
    relax,
    shape_of,
)

REDUCTIONS = ("mean", "sum", "max", "min")
_VIEWS = ("reshape", "squeeze", "flatten", "expand_dims")


class Reshaping(Rewriting):
    """A walk that keeps each signal in its old shape, in the new one, or in both: element order is the same."""

    rank: ClassVar[int]  # of signals
    axes: ClassVar[Mapping[int, int]]  # where an axis of the old shape lies in the new one

    def __init__(self, mod: Any, unary: frozenset[str], binary: frozenset[str]) -> None:
        super().__init__(mod)
        self.new: dict[Value, Value] = {p: p for p in self.main.params}  # old value -> new value, shape kept
        self.wide: dict[Value, Value] = {}  # old value -> new value in the new shape
        self.read: dict[Value, Value] = {}  # old value in the old shape -> in the new one, for all its readers
        # old parts of a split -> the new ones, and the integers that were split
        self.splits: dict[Value, tuple[Value, Stored | None]] = {}
        self.handlers: dict[str, Callable[[Value], Value | None]] = {
            **dict.fromkeys(unary, self._elementwise),
            **dict.fromkeys(binary, self._binary),
            "concat": self._concat,
            "strided_slice": self._slice,
        }

    def reshaped(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the new shape of a signal of this shape; None for a tensor that is no signal."""
        raise NotImplementedError

    def _returned(self, value: Value) -> Value:
        return self._narrow(value)

    def _bind(self, var: Value, value: Value) -> None:
        name, stored = name_of(value), Stored.read_by(value)
        if stored is not None:
            self._bind_stored(var, stored)
            return
        handler = self.handlers.get(name)
        widened = handler(value) if handler is not None and self._is_signal(var) else None
        if widened is not None:
            self.wide[var] = self._emitted(widened)
        elif isinstance(value, relax.Var) and value in self.wide:
            self.wide[var] = self.wide[value]
        elif name == "split" and value.args[0] in self.wide and self._is_split_alone(var):
            self.splits[var] = self._split(value)
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in self.splits:
            parts, whole = self.splits[value.tuple_value]
            part = self.bb.emit(relax.TupleGetItem(parts, value.index))
            self.wide[var] = part if whole is None else self._real(whole.along(part))
        elif name in _VIEWS and (value.args[0] in self.wide or self._is_signal(var)):
            self._view(var, value)
        elif name in REDUCTIONS and value.args[0] in self.wide:
            self._reduction(var, value)
        else:
            self.new[var] = self._emitted(self._narrow(value))

    def _bind_stored(self, var: Value, stored: Stored) -> None:
        wide = stored.tensor in self.wide and self._is_signal(var)
        tensor = self.wide[stored.tensor] if wide else self._narrow(stored.tensor)
        axis = self.axes[stored.axis % self.rank] if wide else stored.axis
        numbers = self._narrow(stored.scale), self._narrow(stored.zero_point)
        (self.wide if wide else self.new)[var] = self._real(Stored(tensor, *numbers, axis))

    def _emitted(self, value: Value) -> Value:
        return value if isinstance(value, relax.Var) else self.bb.emit(value)

    def _narrow(self, value: Value) -> Value:
        """Return a value's counterpart in its old shape."""
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._narrow(f) for f in value.fields])
        if isinstance(value, relax.TupleGetItem):
            return relax.TupleGetItem(self._narrow(value.tuple_value), value.index)
        if isinstance(value, relax.Call):
            return relax.Call(value.op, [self._narrow(a) for a in value.args], value.attrs, value.ty_args)
        if not isinstance(value, relax.Var):
            return value
        if value not in self.new and value in self.wide:
            self.new[value] = self._reshaped(self.wide[value], shape_of(value))
        return self.new.get(value, value)

    def _widened(self, value: Value) -> Value:
        """Return the counterpart of a signal in the new shape, or of an operand that broadcasts against a signal."""
        if value in self.wide:
            return self.wide[value]
        shape = shape_of(value)
        if len(shape) < 2:
            return self._narrow(value)
        shape = self.reshaped((*[1] * (self.rank - len(shape)), *shape))
        if shape is None:
            return self._narrow(value)
        if value not in self.read:
            self.read[value] = self._reshaped(self._narrow(value), shape)
        return self.read[value]

    def _is_signal(self, value: Value) -> bool:
        return self.reshaped(shape_of(value)) is not None

    def _reshaped(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Reshape `value`, or what is cast to it, or its integers under a single scale; fold constants and chains."""
        if shape_of(value) == shape:
            return value
        call = self._definition(value)
        if name_of(call) == "reshape":
            return self._reshaped(call.args[0], shape)
        data = constant_of(call)
        if data is not None:
            return relax.const(data.reshape(shape), str(data.dtype))
        stored = self.stored.get(value)
        if stored is not None and stored.scales == 1:
            return self._real(stored.along(self._reshaped(stored.tensor, shape)))
        if name_of(call) == "astype" and str(value.ty.dtype) == "int32":  # it stays in front of an integer average
            return self.bb.emit(relax.op.astype(self._reshaped(call.args[0], shape), call.attrs.dtype))
        return self._once(relax.op.reshape, value, shape)

    # operators: the widened call, None where there is no rule --------------------------------------------------------

    def _elementwise(self, call: Value) -> Value | None:
        if call.args[0] not in self.wide:
            return None
        return elementwise(call, self.wide[call.args[0]], [self._narrow(a) for a in call.args[1:]], self.axes)

    def _binary(self, call: Value) -> Value | None:
        if not any(a in self.wide for a in call.args):
            return None
        return relax.Call(call.op, [self._widened(a) for a in call.args], call.attrs)

    def _concat(self, call: Value) -> Value | None:
        fields = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
        if not any(f in self.wide for f in fields):
            return None
        return relax.op.concat([self._widened(f) for f in fields], axis=self.axes[int(call.attrs.axis) % self.rank])

    def _slice(self, call: Value) -> Value | None:
        """Slice a signal, or its integers under a single scale, by constant bounds."""
        source = self.wide.get(call.args[0])
        if source is None or any(not isinstance(a, relax.Tuple) for a in call.args[1:]):
            return None
        numbers = [[getattr(f.value, "value", f.value) for f in a.fields] for a in call.args[1:]]
        if not all(isinstance(n, int) for row in numbers for n in row):
            return None
        axes, *bounds = numbers
        axes, inbound = [self.axes[a % self.rank] for a in axes], bool(call.attrs.assume_inbound)
        whole = self.stored.get(source)
        if whole is None or whole.scales != 1:
            return relax.op.strided_slice(source, axes, *bounds, assume_inbound=inbound)
        part = self.bb.emit(relax.op.strided_slice(whole.tensor, axes, *bounds, assume_inbound=inbound))
        return self._real(whole.along(part))

    def _is_split_alone(self, parts: Value) -> bool:
        """Test that nothing reads a tuple of parts but their single readers."""
        readers = [b.value for b in bindings_of(self.main) if parts in relax.analysis.free_vars(b.value)]
        return all(isinstance(r, relax.TupleGetItem) for r in readers) and not parts.same_as(self.main.body.body)

    def _split(self, call: Value) -> tuple[Value, Stored | None]:
        """Split a signal, or its integers under a single scale."""
        wide, sections = self.wide[call.args[0]], call.attrs.indices_or_sections
        whole = self.stored.get(wide)
        whole = whole if whole is not None and whole.scales == 1 else None
        at = [int(v) for v in sections] if hasattr(sections, "__iter__") else int(sections)
        source = wide if whole is None else whole.tensor
        return self.bb.emit(relax.op.split(source, at, self.axes[int(call.attrs.axis) % self.rank])), whole

    def _view(self, var: Value, call: Value) -> None:
        """Rewrite a reshape for the new shapes. A reshape that undoes the change of shape becomes its source."""
        source, shape = call.args[0], shape_of(var)
        if source not in self.wide and shape_of(source) == self.reshaped(shape):
            self.wide[var] = self._narrow(source)
            return
        self.new[var] = self._reshaped(self.wide[source] if source in self.wide else self._narrow(source), shape)

    def _reduction(self, var: Value, call: Value) -> None:
        """Rewrite a reduction for which `reduced_axes` has axes; reduce the old shape elsewhere."""
        axes, kept = call.attrs.axis, bool(call.attrs.keepdims)
        over = None if axes is None else self.reduced_axes(tuple(sorted(int(a) % self.rank for a in axes)))
        if over is None:
            self.new[var] = self._emitted(self._narrow(call))
            return
        reduced = self.bb.emit(getattr(relax.op, name_of(call))(self.wide[call.args[0]], list(over), kept))
        (self.wide if kept and self._is_signal(var) else self.new)[var] = reduced

    def reduced_axes(self, axes: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the axes of the new shape to reduce instead of these; None if results would differ in shape."""
        raise NotImplementedError
