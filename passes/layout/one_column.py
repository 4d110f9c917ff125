"""Rewrite signals to maps of a single column, exactly: `[n, 1, w, c]` becomes `[n, w, 1, c]`, so time runs along rows.

Rows are what arrives from a sensor one by one, and what plans give addresses of their own. Element order stays, and so
do the bytes of weights: `[1, k, i, o]` becomes `[k, 1, i, o]`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import tvm

from tvm_cascade.passes.layout.channels_last import BINARY, UNARY
from tvm_cascade.passes.layout.reshaping import REDUCTIONS, Reshaping
from tvm_cascade.passes.main_rewriting import Value, bindings_of, constant_of, name_of, relax, shape_of

_CONVOLUTIONS = ("nn.conv2d", "nn.conv2d_transpose")
_POOLS = {"nn.max_pool2d": relax.op.nn.max_pool2d, "nn.avg_pool2d": relax.op.nn.avg_pool2d}
_CHANNELS_LAST = [0, 2, 3, 1]


def to_one_column(mod: tvm.IRModule) -> tvm.IRModule:
    """Return `mod` with the signals of `main` in one column; `mod` itself if no window slides along a signal."""
    return _OneColumn(mod, UNARY, BINARY).run() if any(_slides(b.value) for b in bindings_of(mod["main"])) else mod


def _slides(call: Value) -> bool:
    """Test whether a convolution or pool, channels last, goes along a map of one row and makes one."""
    name = name_of(call)
    if name not in _CONVOLUTIONS and name not in _POOLS:
        return False
    layout = str(call.attrs.layout if name in _POOLS else call.attrs.data_layout)
    made, read, padding = shape_of(call), shape_of(call.args[0]), [int(p) for p in call.attrs.padding]
    flat = layout == "NHWC" and len(made) == 4 and made[1] == read[1] == 1 and read[2] > 1
    return flat and padding[0] == padding[2] == 0 and _height(call) == 1


def _height(call: Value) -> int:
    """Return the rows of a window."""
    if name_of(call) in _POOLS:
        return int(call.attrs.pool_size[0])
    return shape_of(call.args[1])[str(call.attrs.kernel_layout).index("H")]


class _OneColumn(Reshaping):
    rank: ClassVar = 4
    axes: ClassVar = {0: 0, 1: 2, 2: 1, 3: 3}

    def __init__(self, mod: Any, unary: frozenset[str], binary: frozenset[str]) -> None:
        super().__init__(mod, unary, binary)
        self.handlers |= {
            **dict.fromkeys(_CONVOLUTIONS, self._convolution),
            **dict.fromkeys(_POOLS, self._pool),
            "permute_dims": self._turned,
            "nn.softmax": self._along_channels,
            "nn.pad": self._pad,
        }

    def _bind(self, var: Value, value: Value) -> None:
        """Rewrite a reduction over the time of a signal without its row; else as other values."""
        shape = shape_of(value.args[0]) if name_of(value) in REDUCTIONS else ()
        if len(shape) != 3 or bool(value.attrs.keepdims) or [int(a) % 3 for a in value.attrs.axis or ()] != [1]:
            super()._bind(var, value)
            return
        column = self._reshaped(self._narrow(value.args[0]), (*shape[:2], 1, shape[2]))
        self.new[var] = self.bb.emit(getattr(relax.op, name_of(value))(column, [1, 2], False))

    def reshaped(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        return (shape[0], shape[2], 1, shape[3]) if len(shape) == 4 and shape[1] == 1 else None

    def reduced_axes(self, axes: tuple[int, ...]) -> tuple[int, ...] | None:
        return tuple(sorted(self.axes[a] for a in axes)) if {1, 2} & set(axes) else None

    def _convolution(self, call: Value) -> Value | None:
        if not _slides(call):
            return None
        attrs, kernel = call.attrs, self._kernel(call)
        if kernel is None:
            return None
        window = {
            **_window(attrs),
            "groups": int(attrs.groups),
            "data_layout": "NHWC",
            "kernel_layout": str(attrs.kernel_layout),
            "out_dtype": str(attrs.out_dtype or "") or None,
        }
        if name_of(call) == "nn.conv2d":
            return relax.op.nn.conv2d(self._widened(call.args[0]), kernel, **window)
        extra = [int(p) for p in attrs.output_padding][::-1]
        return relax.op.nn.conv2d_transpose(self._widened(call.args[0]), kernel, output_padding=extra, **window)

    def _kernel(self, call: Value) -> Value | None:
        """Return constant weights with rows and columns exchanged; None if they are computed."""
        weights = self._narrow(call.args[1])
        definition, stored = self._definition(weights), self.stored.get(weights)
        h, w = (str(call.attrs.kernel_layout).index(axis) for axis in "HW")
        if stored is None and name_of(definition) == "reshape":  # of .tflite's depthwise weights, [1, k, c * m]
            source = self.stored.get(definition.args[0])
            if constant_of(self._definition(definition.args[0]) if source is None else source.tensor) is None:
                return None
            shape = list(shape_of(weights))
            shape[h], shape[w] = shape[w], shape[h]
            return self.bb.emit(relax.op.reshape(definition.args[0], shape))  # a window of one row: the same order
        data = constant_of(definition if stored is None else stored.tensor)
        if data is None:
            return None
        kernel = relax.const(data.swapaxes(h, w), str(data.dtype))
        return kernel if stored is None else self._real(stored.along(kernel, stored.axis))

    def _pool(self, call: Value) -> Value | None:
        if not _slides(call):
            return None
        attrs = call.attrs
        return _POOLS[name_of(call)](
            self._widened(call.args[0]),
            pool_size=[int(attrs.pool_size[1]), 1],
            **_window(attrs),
            ceil_mode=bool(attrs.ceil_mode),
            count_include_pad=bool(attrs.count_include_pad),
            layout="NHWC",
        )

    def _turned(self, call: Value) -> Value | None:
        """Rewrite a signal's transpose from channel planes."""
        if [int(a) for a in call.attrs.axes or ()] != _CHANNELS_LAST:
            return None
        n, c, _, w = shape_of(call.args[0])
        planes = self._reshaped(self._narrow(call.args[0]), (n, c, w, 1))
        view = self._definition(planes)
        first = self._definition(view.args[0]) if name_of(view) == "reshape" else view
        if (
            name_of(first) == "permute_dims"
            and shape_of(first) == (n, c, w)
            and [int(a) for a in first.attrs.axes] == [0, 2, 1]
        ):
            return relax.op.reshape(first.args[0], [n, w, 1, c])  # the file turned channels first before
        return relax.op.permute_dims(planes, _CHANNELS_LAST)

    def _along_channels(self, call: Value) -> Value | None:
        if call.args[0] not in self.wide or int(call.attrs.axis) % 4 != 3:
            return None
        return relax.op.nn.softmax(self.wide[call.args[0]], axis=3)

    def _pad(self, call: Value) -> Value | None:
        if call.args[0] not in self.wide:
            return None
        widths = [int(p) for p in call.attrs.pad_width]
        moved = [*widths[:2], *widths[4:6], *widths[2:4], *widths[6:]]
        value = self._narrow(call.args[1]) if len(call.args) > 1 else call.attrs.pad_value
        if isinstance(value, relax.Expr):
            return relax.Call(call.op, [self.wide[call.args[0]], value], call.attrs) if moved == widths else None
        return relax.op.nn.pad(self.wide[call.args[0]], moved, str(call.attrs.pad_mode), value)


def _window(attrs: Any) -> dict[str, list[int]]:
    """Return strides, padding and dilation, with rows and columns exchanged."""
    strides, dilation = ([int(v) for v in values][::-1] for values in (attrs.strides, attrs.dilation))
    _, left, _, right = (int(p) for p in attrs.padding)
    return {"strides": strides, "padding": [left, 0, right, 0], "dilation": dilation}
