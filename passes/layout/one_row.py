"""Rewrite rank-3 networks (Conv1d) to rank 4 with a single row, exactly: `[n, c, w]` becomes `[n, c, 1, w]`.

Integer lowering, fused float layers and the schedules support only two-dimensional convolutions and pools. An operator
without a rule reads rank-3 operands; stored integers stay stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm

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

_AXIS = {0: 0, 1: 1, 2: 3}  # where an axis of rank 3 lies in rank 4
_CONVOLUTIONS = {
    "nn.conv1d": ("nn.conv2d", "OIW", "OIHW"),
    "nn.conv1d_transpose": ("nn.conv2d_transpose", "IOW", "IOHW"),
}
_POOLS = {"nn.max_pool1d": relax.op.nn.max_pool2d, "nn.avg_pool1d": relax.op.nn.avg_pool2d}
_REDUCTIONS = ("mean", "sum", "max", "min")
_VIEWS = ("reshape", "squeeze", "flatten", "expand_dims")


def to_one_row(mod: tvm.IRModule, unary: frozenset[str], binary: frozenset[str]) -> tvm.IRModule:
    """Return `mod` with rank-3 convolutions and pools in rank 4, and the operators between: elementwise operators in
    `unary` and `binary`, concats, reshapes and reductions.
    """
    known = {*_CONVOLUTIONS, *_POOLS}
    if not any(name_of(b.value) in known for b in bindings_of(mod["main"])):
        return mod
    return _Widening(mod, unary, binary).run()


class _Widening(Rewriting):
    def __init__(self, mod: Any, unary: frozenset[str], binary: frozenset[str]) -> None:
        super().__init__(mod)
        self.new: dict[Value, Value] = {p: p for p in self.main.params}  # old value -> new value, rank kept
        self.wide: dict[Value, Value] = {}  # old value of rank 3 -> new value of rank 4
        self.handlers: dict[str, Callable[[Value], Value | None]] = {
            **dict.fromkeys(_CONVOLUTIONS, self._convolution),
            **dict.fromkeys(_POOLS, self._pool),
            **dict.fromkeys(unary, self._elementwise),
            **dict.fromkeys(binary, self._binary),
            "concat": self._concat,
        }

    def _returned(self, value: Value) -> Value:
        return self._narrow(value)

    def _bind(self, var: Value, value: Value) -> None:
        name, stored = name_of(value), Stored.read_by(value)
        if stored is not None:
            self._bind_stored(var, stored)
            return
        handler = self.handlers.get(name)
        widened = handler(value) if handler is not None and len(shape_of(var)) == 3 else None
        if widened is not None:
            self.wide[var] = self.bb.emit(widened)
        elif isinstance(value, relax.Var) and value in self.wide:
            self.wide[var] = self.wide[value]
        elif name in _VIEWS and (value.args[0] in self.wide or len(shape_of(var)) == 3):
            self._view(var, value)
        elif name in _REDUCTIONS and value.args[0] in self.wide:
            self._reduction(var, value)
        else:
            self.new[var] = self._emitted(self._narrow(value))

    def _bind_stored(self, var: Value, stored: Stored) -> None:
        wide = stored.tensor in self.wide and len(shape_of(var)) == 3
        tensor = self.wide[stored.tensor] if wide else self._narrow(stored.tensor)
        axis = _AXIS[stored.axis % 3] if wide else stored.axis
        numbers = self._narrow(stored.scale), self._narrow(stored.zero_point)
        (self.wide if wide else self.new)[var] = self._real(Stored(tensor, *numbers, axis))

    def _emitted(self, value: Value) -> Value:
        return value if isinstance(value, relax.Var) else self.bb.emit(value)

    def _narrow(self, value: Value) -> Value:
        """Return a value's counterpart in its old rank."""
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
        """Return the rank-4 counterpart of a `value` with rank 3, or with a rank that broadcasts against 3."""
        if value in self.wide:
            return self.wide[value]
        shape = shape_of(value)
        if len(shape) < 2:
            return self._narrow(value)
        shape = (*[1] * (3 - len(shape)), *shape)
        return self._reshaped(self._narrow(value), (*shape[:2], 1, shape[2]))

    def _reshaped(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Reshape `value`, or its integers under a single scale; fold constants and chains."""
        if shape_of(value) == shape:
            return value
        call = self._definition(value)
        if name_of(call) == "reshape":
            return self._reshaped(call.args[0], shape)
        data = constant_of(call)
        if data is not None:
            return relax.const(data.reshape(shape), str(data.dtype))
        stored = self.stored.get(value)
        if stored is not None and stored.scales == 1 and constant_of(stored.tensor) is None:
            return self._real(stored.along(self._reshaped(stored.tensor, shape)))
        return self.bb.emit(relax.op.reshape(value, list(shape)))

    # operators: the widened call, None where there is no rule --------------------------------------------------------

    def _convolution(self, call: Value) -> Value | None:
        attrs, (kind, old, new) = call.attrs, _CONVOLUTIONS[name_of(call)]
        weights = self._narrow(call.args[1])
        stored = self.stored.get(weights)
        data = constant_of(self._definition(weights) if stored is None else stored.tensor)
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NCW", old) or data is None:
            return None
        kernel = relax.const(data.reshape(*data.shape[:2], 1, data.shape[2]), str(data.dtype))
        if stored is not None:
            kernel = self._real(stored.along(kernel, _AXIS[stored.axis % 3]))
        window = {**_window(attrs), "groups": int(attrs.groups), "kernel_layout": new}
        if kind == "nn.conv2d":
            return relax.op.nn.conv2d(self._widened(call.args[0]), kernel, **window)
        extra = [0, int(attrs.output_padding[0])]
        return relax.op.nn.conv2d_transpose(self._widened(call.args[0]), kernel, output_padding=extra, **window)

    def _pool(self, call: Value) -> Value | None:
        attrs = call.attrs
        if str(attrs.layout) != "NCW":
            return None
        return _POOLS[name_of(call)](
            self._widened(call.args[0]),
            pool_size=[1, int(attrs.pool_size[0])],
            **_window(attrs),
            ceil_mode=bool(attrs.ceil_mode),
            count_include_pad=bool(attrs.count_include_pad),
        )

    def _elementwise(self, call: Value) -> Value | None:
        if call.args[0] not in self.wide:
            return None
        return elementwise(call, self.wide[call.args[0]], [self._narrow(a) for a in call.args[1:]], _AXIS)

    def _binary(self, call: Value) -> Value | None:
        if not any(a in self.wide for a in call.args):
            return None
        return relax.Call(call.op, [self._widened(a) for a in call.args], call.attrs)

    def _concat(self, call: Value) -> Value | None:
        fields = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
        if not any(f in self.wide for f in fields):
            return None
        return relax.op.concat([self._widened(f) for f in fields], axis=_AXIS[int(call.attrs.axis) % 3])

    def _view(self, var: Value, call: Value) -> None:
        """Rewrite a reshape; removing the one-row axis is the source itself, as a rank-4 value."""
        source, shape = call.args[0], shape_of(var)
        if source not in self.wide and shape_of(source) == (*shape[:2], 1, shape[2]):
            self.wide[var] = self._narrow(source)
            return
        self.new[var] = self._reshaped(self.wide[source] if source in self.wide else self._narrow(source), shape)

    def _reduction(self, var: Value, call: Value) -> None:
        """Rewrite a reduction over the width: in rank 4 also over the one row. Other reductions stay in rank 3."""
        axes, kept = call.attrs.axis, bool(call.attrs.keepdims)
        if axes is None or [int(a) % 3 for a in axes] != [2]:
            self.new[var] = self._emitted(self._narrow(call))
            return
        reduced = self.bb.emit(getattr(relax.op, name_of(call))(self.wide[call.args[0]], [2, 3], kept))
        (self.wide if kept else self.new)[var] = reduced


def _window(attrs: Any) -> dict[str, list[int]]:
    """Return strides, padding and dilation for rank 4."""
    widths = [int(p) for p in attrs.padding]
    padding = [0, widths[0], 0, widths[-1]]  # top, left, bottom, right
    return {"strides": [1, int(attrs.strides[0])], "padding": padding, "dilation": [1, int(attrs.dilation[0])]}
