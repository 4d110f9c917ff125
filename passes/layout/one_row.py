"""Rewrite rank-3 networks (Conv1d) to rank 4 with a single row, exactly: `[n, c, w]` becomes `[n, c, 1, w]`."""

from __future__ import annotations

from typing import Any, ClassVar

import tvm

from tvm_cascade.passes.layout.reshaping import Reshaping
from tvm_cascade.passes.main_rewriting import Value, bindings_of, constant_of, name_of, relax

_CONVOLUTIONS = {
    "nn.conv1d": ("nn.conv2d", "OIW", "OIHW"),
    "nn.conv1d_transpose": ("nn.conv2d_transpose", "IOW", "IOHW"),
}
_POOLS = {"nn.max_pool1d": relax.op.nn.max_pool2d, "nn.avg_pool1d": relax.op.nn.avg_pool2d}


def to_one_row(mod: tvm.IRModule, unary: frozenset[str], binary: frozenset[str]) -> tvm.IRModule:
    """Return `mod` with rank-3 convolutions and pools in rank 4, and the operators between: elementwise operators in
    `unary` and `binary`, concats, reshapes and reductions.
    """
    known = {*_CONVOLUTIONS, *_POOLS}
    if not any(name_of(b.value) in known for b in bindings_of(mod["main"])):
        return mod
    return _OneRow(mod, unary, binary).run()


class _OneRow(Reshaping):
    rank: ClassVar = 3
    axes: ClassVar = {0: 0, 1: 1, 2: 3}

    def __init__(self, mod: Any, unary: frozenset[str], binary: frozenset[str]) -> None:
        super().__init__(mod, unary, binary)
        self.handlers |= {**dict.fromkeys(_CONVOLUTIONS, self._convolution), **dict.fromkeys(_POOLS, self._pool)}

    def reshaped(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        return (*shape[:2], 1, shape[2]) if len(shape) == 3 else None

    def reduced_axes(self, axes: tuple[int, ...]) -> tuple[int, ...] | None:
        return (2, 3) if axes == (2,) else None

    def _convolution(self, call: Value) -> Value | None:
        attrs, (kind, old, new) = call.attrs, _CONVOLUTIONS[name_of(call)]
        weights = self._narrow(call.args[1])
        stored = self.stored.get(weights)
        data = constant_of(self._definition(weights) if stored is None else stored.tensor)
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NCW", old) or data is None:
            return None
        kernel = relax.const(data.reshape(*data.shape[:2], 1, data.shape[2]), str(data.dtype))
        if stored is not None:
            kernel = self._real(stored.along(kernel, self.axes[stored.axis % 3]))
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


def _window(attrs: Any) -> dict[str, list[int]]:
    """Return strides, padding and dilation for rank 4."""
    widths = [int(p) for p in attrs.padding]
    padding = [0, widths[0], 0, widths[-1]]  # top, left, bottom, right
    return {"strides": [1, int(attrs.strides[0])], "padding": padding, "dilation": [1, int(attrs.dilation[0])]}
