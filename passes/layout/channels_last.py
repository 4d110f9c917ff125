"""Convert layouts from NCHW to NHWC: quantized networks after import, float networks for planning, images for tensor
cores, whose loads are whole vectors.

Two rewrites, both exact. Rank-4 tensors between convolutions move to NHWC, with the weights; a single transpose where a
tensor enters, one where it leaves. Operators that move or compare values work on stored integers, like the same
operators in a `.tflite` file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import tvm

from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.passes.layout.moves import LAST_AXIS, Moves, Placed
from tvm_cascade.passes.layout.one_row import to_one_row
from tvm_cascade.passes.main_rewriting import (
    Value,
    bindings_of,
    constant_of,
    elementwise,
    name_of,
    relax,
    shape_of,
    window_of,
)
from tvm_cascade.passes.phases import Phases

_CONVOLUTIONS = {"nn.conv2d": ("OIHW", 0), "nn.conv2d_transpose": ("IOHW", 1)}  # layout of weights, axis of outputs
_TESTS = frozenset({"equal", "not_equal", "greater", "greater_equal", "less", "less_equal"})
BINARY = _TESTS | {
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "mod", "floor_mod", "floor_divide", "atan2",
    "logical_and", "logical_or", "logical_xor",
}  # fmt: skip
_IMAGE_AS_DEPTH = (0, 3, 4, 1, 2)  # `Placed.order` of an image in NHWC, with channels as depth of a rank-5 tensor
_VIEWS = ("reshape", "squeeze", "flatten", "expand_dims")
UNARY = frozenset((
    "quantize", "nn.relu", "clip", "nn.leakyrelu", "sigmoid", "tanh", "exp", "log", "abs", "negative", "square",
    "sqrt", "rsqrt", "sign", "floor", "ceil", "round", "erf", "sin", "cos", "nn.silu", "nn.softplus", "nn.gelu",
    "nn.gelu_tanh", "astype", "tan", "acos", "asin", "atan", "sinh", "cosh", "acosh", "asinh", "atanh", "trunc", "isnan", "isinf",
    "isfinite", "logical_not",
))  # fmt: skip


def to_channels_last(mod: tvm.IRModule, by_pixel: bool = True) -> tvm.IRModule:
    """Return `mod` with `main` rewritten; parameters and results keep their layout. With `by_pixel`, transposed float
    convolutions without overlapping windows become 1 x 1 convolutions, which are faster but do not run row by row.
    """
    return _ChannelsLast(to_one_row(mod, UNARY, BINARY), by_pixel).run()


def images_last(mod: tvm.IRModule) -> tvm.IRModule:
    """Return `mod` with a float network's images in NHWC: at convolutions, pools, concats, means and elementwise
    operators. Weights keep their layout. Return `mod` itself without such an image, or if unreadable.
    """
    reads_planes = any(_reads_planes(b.value) for b in bindings_of(mod["main"])) if _is_straight(mod) else False
    return _Images(mod).run() if reads_planes else mod


def in_one_row(mod: tvm.IRModule) -> tvm.IRModule:
    """Return `mod` with the one-dimensional convolutions and pools of `main` as two-dimensional ones (`one_row`); `mod`
    itself if `main` has none, or cannot be read.
    """
    return to_one_row(mod, UNARY, BINARY) if _is_straight(mod) else mod


def _is_straight(mod: tvm.IRModule) -> bool:
    """Test whether `main` is pure straight-line code of known sizes."""
    untyped: Any = mod
    main: Any = next((f for g, f in untyped.functions.items() if g.name_hint == "main"), None)
    if not isinstance(getattr(main, "body", None), relax.SeqExpr) or not main.is_pure:
        return False
    plain = all(isinstance(b, relax.VarBinding) for b in bindings_of(main))
    return plain and not relax.analysis.defined_symbolic_vars(main) and not relax.analysis.free_symbolic_vars(main)


def _reads_planes(call: Value) -> bool:
    return name_of(call) == "nn.conv2d" and str(call.attrs.data_layout) == "NCHW"


@dataclass(frozen=True, eq=False)
class _Phases:
    """An image put together from the results of convolutions within each row, and how."""

    parts: tuple[Value, ...]
    whole: Callable[[Sequence[Value]], Value]  # of parts that were changed element by element


class _ChannelsLast(Moves):
    def __init__(self, mod: tvm.IRModule, by_pixel: bool) -> None:
        super().__init__(mod)
        self.by_pixel = by_pixel
        self.phases: dict[Value, _Phases] = {}  # images in the new function
        values = (*(b.value for b in bindings_of(self.main)), self.main.body.body)
        self.reads = Counter(v for value in values for v in _operands(value))
        self.handlers: dict[str, Callable[[Value], Placed]] = {
            **dict.fromkeys(_CONVOLUTIONS, self._convolution),
            **dict.fromkeys(("nn.max_pool2d", "nn.avg_pool2d"), self._pool),
            "nn.avg_pool3d": self._pool_over_channels,
            **dict.fromkeys(("mean", "sum", "max", "min", "prod", "variance", "std"), self._reduce),
            **dict.fromkeys(("nn.softmax", "nn.log_softmax"), self._softmax),
            "matmul": self._matmul,
            "concat": self._concat,
            "split": self._split,
            "strided_slice": self._slice,
            **dict.fromkeys(_VIEWS, self._view),
            "permute_dims": self._permute,
            "nn.pad": self._pad,
            "image.resize2d": self._resize,
            "take": self._take,
            "tile": self._tile,
            "broadcast_to": self._broadcast_to,
            "nn.prelu": self._prelu,
            **dict.fromkeys(("where", *BINARY), self._broadcast),
            **dict.fromkeys(UNARY, self._unary),
        }

    def _bind(self, var: Value, value: Value) -> None:
        stored = Stored.read_by(value)
        handler = self.handlers.get(name_of(value), self._other)
        self.placed[var] = handler(value) if stored is None else self._made_real(stored)

    def _returned(self, value: Value) -> Value:
        return self._first_of(value)

    # operators -------------------------------------------------------------------------------------------------------

    def _convolution(self, call: Value) -> Placed:
        """Rewrite a convolution to NHWC. Transposed weights stay `[in, out, h, w]`, the layout for lowering."""
        attrs, (own_layout, outputs) = call.attrs, _CONVOLUTIONS[name_of(call)]
        kernel = self._place(call.args[1]).value
        weights = self.stored.get(kernel)
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NCHW", own_layout):
            return self._other(call)
        if weights is None and own_layout == "OIHW" and self._is_of_constants(kernel):
            turned = self._permuted(kernel, [2, 3, 1, 0])  # stays an expression of stored integers (`stored_constants`)
            window = window_of(attrs, "strides", "padding", "dilation")
            source, groups = self._last_of(call.args[0]), int(attrs.groups)
            layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
            return Placed(
                self.bb.emit(relax.op.nn.conv2d(source, turned, groups=groups, **layouts, **window)), last=True
            )
        if weights is None:
            return self._float_convolution(call, constant_of(self._definition(kernel)))
        if weights.scales > 1 and weights.axis % 4 != outputs:
            return self._float_convolution(call, _real_weights(weights))
        groups, window = int(attrs.groups), window_of(attrs, "strides", "padding", "dilation")
        if own_layout == "IOHW":
            source, layout = self._last_of(call.args[0]), own_layout
            window |= window_of(attrs, "output_padding")
        elif constant_of(weights.tensor) is None:
            return self._other(call)
        else:
            depthwise = 1 < groups == shape_of(call.args[0])[1]
            order, layout, axis = ([2, 3, 0, 1], "HWOI", 2) if depthwise else ([2, 3, 1, 0], "HWIO", 3)
            stored, source = self._permuted(weights.tensor, order), self._last_of(call.args[0])
            kernel = self._real(weights.along(stored, axis))
        operator = getattr(relax.op.nn, name_of(call).removeprefix("nn."))
        result = operator(source, kernel, groups=groups, data_layout="NHWC", kernel_layout=layout, **window)
        return Placed(self.bb.emit(result), last=True)

    def _is_of_constants(self, value: Value) -> bool:
        """Return whether operators compute a value from constants alone."""
        made = self._definition(value)
        if not isinstance(made, relax.Call):
            return False
        tensors = [a for a in made.args if isinstance(a.ty, relax.TensorType)]
        return bool(tensors) and all(
            constant_of(self._definition(a)) is not None or self._is_of_constants(a) for a in tensors
        )

    def _float_convolution(self, call: Value, weights: np.ndarray | None) -> Placed:
        """Rewrite a convolution with constant float weights to NHWC; use `_other` for computed weights."""
        if weights is None:
            return self._other(call)
        attrs, transposed = call.attrs, name_of(call) == "nn.conv2d_transpose"
        if transposed and self.by_pixel and _windows_apart(attrs, weights):
            return self._by_pixel(call, weights)
        window = window_of(attrs, "strides", "padding", "dilation")
        if transposed and self.by_pixel:
            extents, outputs = (shape_of(v)[2:] for v in (call.args[0], call))
            strides, padding, dilation = window["strides"], window["padding"], window["dilation"]
            return self._by_phase(
                call, Phases.of(weights, extents, outputs, strides, padding, dilation, int(attrs.groups))
            )
        kernel, layout = (weights, "IOHW") if transposed else (weights.transpose(2, 3, 1, 0), "HWIO")
        if transposed:
            window |= window_of(attrs, "output_padding")
        operator = getattr(relax.op.nn, name_of(call).removeprefix("nn."))
        made = operator(
            self._last_of(call.args[0]),
            relax.const(np.ascontiguousarray(kernel), str(weights.dtype)),
            groups=int(attrs.groups),
            data_layout="NHWC",
            kernel_layout=layout,
            **window,
        )
        return Placed(self.bb.emit(made), last=True)

    def _by_pixel(self, call: Value, weights: np.ndarray) -> Placed:
        """Rewrite a transposed convolution without overlapping windows: a 1 x 1 convolution turns each pixel into a
        window.
        """
        (n, _, h, w), (depth, outputs, kh, kw) = shape_of(call.args[0]), weights.shape
        kernel = np.ascontiguousarray(weights.transpose(0, 2, 3, 1).reshape(1, 1, depth, kh * kw * outputs))
        made = self.bb.emit(
            relax.op.nn.conv2d(
                self._last_of(call.args[0]),
                relax.const(kernel, str(weights.dtype)),
                data_layout="NHWC",
                kernel_layout="HWIO",
            )
        )
        windows = self._permuted(self._reshaped(made, [n, h, w, kh, kw, outputs]), [0, 1, 3, 2, 4, 5])
        return Placed(self._reshaped(windows, [n, h * kh, w * kw, outputs]), last=True)

    def _by_phase(self, call: Value, parts: Phases) -> Placed:
        """Rewrite a transposed convolution with overlapping windows: a convolution for every place of an output within
        a stride, and the places put side by side. Concats and views do that: first columns, then rows.
        """
        source, (sy, sx), (height, width) = self._last_of(call.args[0]), parts.strides, parts.counts
        n, channels = shape_of(call)[0], shape_of(call)[1]
        shape = [n, height * sy, width * sx, channels]
        ends = [min(a, b) for a, b in zip(shape[1:3], shape_of(call)[2:], strict=True)]

        def whole(made: Sequence[Value]) -> Value:
            columns = [list(made[k : k + sx]) for k in range(0, sy * sx, sx)]
            rows = [row[0] if sx == 1 else self.bb.emit(relax.op.concat(row, axis=3)) for row in columns]
            wide = [self._reshaped(row, [n, height, 1, width * sx * channels]) for row in rows]
            joined = rows[0] if sy == 1 else self.bb.emit(relax.op.concat(wide, axis=3))
            image = joined if list(shape_of(joined)) == shape else self._reshaped(joined, shape)
            cut = ends != shape[1:3]
            return self.bb.emit(relax.op.strided_slice(image, [1, 2], [0, 0], ends, [1, 1])) if cut else image

        made = tuple(self._phase(source, parts, (j, i)) for j in range(sy) for i in range(sx))
        return self._put_together(_Phases(made, whole)) if sy == 1 else Placed(whole(made), last=True)

    def _put_together(self, phases: _Phases) -> Placed:
        image = phases.whole(phases.parts)
        self.phases[image] = phases
        return Placed(image, last=True)

    def _in_phases(self, call: Value, operands: Sequence[Value]) -> Placed | None:
        """Apply an elementwise operator to the parts of an image before they are put together: convolutions take it in.

        None unless `call` alone reads one such image, beside numbers and a number for each channel.
        """
        at = [k for k, o in enumerate(operands) if o in self.phases]
        if len(at) != 1 or len(call.args) != len(operands) or self.reads[call.args[at[0]]] != 1:
            return None
        phases, channels = self.phases[operands[at[0]]], shape_of(operands[at[0]])[-1]
        rest = {k: o for k, o in enumerate(operands) if k != at[0] and prod(shape_of(o)) != 1}
        data = {k: constant_of(self._definition(o)) for k, o in rest.items()}
        if any(d is None or d.shape[-1] != d.size or d.size != channels for d in data.values()):
            return None
        spread = {k: relax.const(d.reshape(-1), str(d.dtype)) for k, d in data.items() if d is not None}
        made = list[Value]()
        for part in phases.parts:
            own = [part if k == at[0] else spread.get(k, o) for k, o in enumerate(operands)]
            made.append(self.bb.emit(elementwise(call, own[0], own[1:], LAST_AXIS)))
        return self._put_together(replace(phases, parts=tuple(made)))

    def _phase(self, source: Value, parts: Phases, place: tuple[int, int]) -> Value:
        """Emit the convolution for the outputs at `place` within each stride."""
        weights, (top, left, bottom, right) = parts.weights(place), parts.padding(place)
        cropped = self._cropped(source, [0, 0, top, bottom, left, right, 0, 0])
        padding = [max(p, 0) for p in (top, left, bottom, right)]
        kernel = relax.const(weights, str(weights.dtype))
        how = {"groups": parts.groups, "dilation": parts.dilation, "data_layout": "NHWC", "kernel_layout": "HWIO"}
        return self.bb.emit(relax.op.nn.conv2d(cropped, kernel, padding=padding, **how))

    def _pool(self, call: Value) -> Placed:
        attrs = call.attrs
        if str(attrs.layout) != "NCHW":
            return self._other(call)
        kind = getattr(relax.op.nn, name_of(call).removeprefix("nn."))
        window = {
            **window_of(attrs, "pool_size", "strides", "padding", "dilation"),
            "ceil_mode": bool(attrs.ceil_mode),
            "count_include_pad": bool(attrs.count_include_pad),
            "layout": "NHWC",
        }
        source = self._last_of(call.args[0])
        if name_of(call) == "nn.avg_pool2d":
            return Placed(self.bb.emit(kind(source, **window)), last=True)
        return self._moved(Placed(source, last=True), lambda v: kind(v, **window))

    def _pool_over_channels(self, call: Value) -> Placed:
        """Rewrite an average over neighbouring channels of an image, as local response normalization has it: the
        channels of NHWC are the depth of the rank-5 tensor, a view.
        """
        attrs, placed = call.attrs, self._ordered(call.args[0])
        if str(attrs.layout) != "NCDHW" or placed.order != _IMAGE_AS_DEPTH or shape_of(call)[1] != 1:
            return self._other(call)
        n, h, w, _, channels = shape_of(placed.value)
        window = window_of(attrs, "pool_size", "strides", "padding", "dilation")
        window = {name: _depth_behind(sizes) for name, sizes in window.items()}
        how = {"ceil_mode": bool(attrs.ceil_mode), "count_include_pad": bool(attrs.count_include_pad)}
        source = self._reshaped(placed.value, [n, h, w, channels, 1])
        made = relax.op.nn.avg_pool3d(source, **window, **how, layout="NDHWC")
        return Placed(self.bb.emit(made), order=(0, 3, 4, 2, 1))

    def _reduce(self, call: Value) -> Placed:
        """Reduce in NHWC if the remaining axes keep their order: kept axes, or a reduction over channels, or over all
        rows and columns.
        """
        if call.attrs.axis is None and name_of(call) in ("max", "min") and not call.attrs.keepdims:  # in any order
            return Placed(self.bb.emit(relax.Call(call.op, [self._place(call.args[0]).value], call.attrs)))
        if not self._place(call.args[0]).last or call.attrs.axis is None:
            return self._other(call)
        axes, kept = sorted(LAST_AXIS[int(a) % 4] for a in call.attrs.axis), bool(call.attrs.keepdims)
        if not kept and 3 not in axes and not {1, 2} <= set(axes):
            return self._other(call)
        reduction, source = getattr(relax.op, name_of(call)), Placed(self._last_of(call.args[0]), last=kept)
        if name_of(call) in ("max", "min"):  # of stored integers, which keep their order
            return self._moved(source, lambda v: reduction(v, axes, kept))
        return replace(source, value=self.bb.emit(reduction(source.value, axes, kept)))

    def _softmax(self, call: Value) -> Placed:
        """Compute a channel softmax in NHWC: lowering requires the last axis."""
        if len(shape_of(call)) != 4 or int(call.attrs.axis) % 4 != 1:
            return self._other(call)
        softmax = getattr(relax.op.nn, name_of(call).removeprefix("nn."))
        return Placed(self.bb.emit(softmax(self._last_of(call.args[0]), axis=3)), last=True)

    def _matmul(self, call: Value) -> Placed:
        if (merged := self._matmul_of_image(call)) is not None:
            return merged
        weights, rank = self.stored.get(self._place(call.args[1]).value), len(shape_of(call.args[1]))
        odd = weights is not None and weights.scales > 1 and weights.axis % rank != rank - 1
        return self._other(call if weights is None or not odd else self._with_real_weights(call, weights))

    def _matmul_of_image(self, call: Value) -> Placed | None:
        """Rewrite a product of a merged image with constant weights, whose rows move; None for any other product."""
        placed, weights = self._ordered(call.args[0]), self._place(call.args[1]).value
        if not placed.image or len(shape_of(weights)) != 2:
            return None
        stored = self.stored.get(weights)
        constant = constant_of(self._definition(weights) if stored is None else stored.tensor)
        if constant is None or (stored is not None and stored.scales > 1 and stored.axis % 2 != 1):
            return None
        turned = np.ascontiguousarray(np.moveaxis(constant.reshape(*placed.image, -1), 0, 2)).reshape(constant.shape)
        moved = relax.const(turned, str(constant.dtype))
        moved = moved if stored is None else self._real(stored.along(moved, stored.axis))
        return Placed(
            self.bb.emit(relax.Call(call.op, [placed.value, moved, *call.args[2:]], call.attrs, call.ty_args))
        )

    def _with_real_weights(self, call: Value, weights: Stored) -> Value:
        """`call` with float weights: integer kernels support a single scale per output channel, not per input."""
        real = _real_weights(weights)
        if real is None:
            return call
        return relax.Call(
            call.op, [call.args[0], relax.const(real, "float32"), *call.args[2:]], call.attrs, call.ty_args
        )

    def _broadcast(self, call: Value) -> Placed:
        if len(shape_of(call)) != 4 or not any(self._place(a).last for a in call.args):
            return self._other(call)
        operands = [self._broadcast_last(a) for a in call.args]
        if name_of(call) not in ("where", *_TESTS) and (phased := self._in_phases(call, operands)) is not None:
            return phased
        return Placed(self.bb.emit(relax.Call(call.op, operands, call.attrs)), last=True)

    def _broadcast_last(self, value: Value) -> Value:
        """Return an operand in a form that broadcasts against NHWC; a bias as the vector before its reshape."""
        shape = shape_of(self._place(value).value)
        if prod(shape) == 1 and len(shape) < 4:
            return self._place(value).value
        reshaped = self._definition(self._place(value).value)
        if (
            name_of(reshaped) == "reshape"
            and len(shape) == 4
            and shape == (1, shape[1], 1, 1)
            and self._is_bias(reshaped.args[0])
        ):
            return reshaped.args[0]
        if len(shape) == 4:
            return self._last_of(value)
        unit = [1] * (4 - len(shape)) + list(shape)
        wide = self._rearranged(self._place(value).value, lambda v: self._reshaped(v, unit))
        return self._transposed(wide, last=True)

    def _prelu(self, call: Value) -> Placed:
        placed, axis = self._place(call.args[0]), int(call.attrs.axis) % len(shape_of(call))
        axis = LAST_AXIS[axis] if placed.last else axis
        slopes = self._place(call.args[1]).value
        return Placed(self.bb.emit(relax.op.nn.prelu(placed.value, slopes, axis)), placed.last)

    def _unary(self, call: Value) -> Placed:
        """Rewrite an elementwise operator in its input's layout; a quantization axis moves with the channels."""
        placed = self._ordered(call.args[0])
        rest = [self._place(a).value if isinstance(a, relax.Var) else a for a in call.args[1:]]
        if placed.image and any(prod(shape_of(a)) > 1 for a in rest if isinstance(a.ty, relax.TensorType)):
            placed = self._place(call.args[0])
        if placed.last and (phased := self._in_phases(call, [placed.value, *rest])) is not None:
            return phased
        if not placed.axes:
            return replace(placed, value=self.bb.emit(relax.Call(call.op, [placed.value, *rest], call.attrs)))
        return replace(placed, value=self.bb.emit(elementwise(call, placed.value, rest, placed.axes)))


class _Images(_ChannelsLast):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod, by_pixel=False)
        kinds = {
            "nn.conv2d",
            "nn.max_pool2d",
            "nn.avg_pool2d",
            "concat",
            "mean",
            "permute_dims",
            *_VIEWS,
            *BINARY,
            *UNARY,
        }
        self.handlers = {kind: handler for kind, handler in self.handlers.items() if kind in kinds}

    def _ordered(self, value: Value) -> Placed:
        """Return a value's place: NHWC if turned before, for another reader."""
        placed = super()._ordered(value)
        turned = None if placed.axes else self.moved.get((placed.value, True))
        return placed if turned is None else Placed(turned, last=True)

    def _convolution(self, call: Value) -> Placed:
        if not _reads_planes(call):
            return self._other(call)
        attrs = call.attrs
        window = window_of(attrs, "strides", "padding", "dilation")
        made = relax.op.nn.conv2d(
            self._last_of(call.args[0]),
            self._first_of(call.args[1]),
            groups=int(attrs.groups),
            data_layout="NHWC",
            kernel_layout=str(attrs.kernel_layout),
            out_dtype=attrs.out_dtype,
            **window,
        )
        return Placed(self.bb.emit(made), last=True)

    def _pool(self, call: Value) -> Placed:
        return super()._pool(call) if self._place(call.args[0]).last else self._other(call)


def _real_weights(weights: Stored) -> np.ndarray | None:
    """Return the real numbers that constant weights stand for; None if any of them is computed."""
    stored, scale, zero = (constant_of(v) for v in (weights.tensor, weights.scale, weights.zero_point))
    if stored is None or scale is None or zero is None:
        return None
    along = [1] * stored.ndim
    along[weights.axis % stored.ndim] = -1
    centred = stored.astype("int64") - (zero.reshape(along) if zero.size > 1 else zero.reshape(()))
    return (centred.astype("float32") * scale.reshape(along)).astype("float32")


def _operands(value: Value) -> list[Value]:
    """Return the variables that an expression reads, as often as it reads them."""
    if isinstance(value, relax.Call):
        return [v for a in value.args for v in _operands(a)]
    if isinstance(value, relax.Tuple):
        return [v for f in value.fields for v in _operands(f)]
    return [value] if isinstance(value, relax.Var) else list(relax.analysis.free_vars(value))


def _depth_behind(sizes: Sequence[int]) -> list[int]:
    """Return sizes of depth, rows and columns, or two of each, as those of rows, columns and depth."""
    return [size for k in range(0, len(sizes), 3) for size in (*sizes[k + 1 : k + 3], sizes[k])]


def _windows_apart(attrs: Any, weights: np.ndarray) -> bool:
    """Return True if a transposed convolution's windows lie side by side and cover the whole output."""
    window = window_of(attrs, "strides", "padding", "output_padding", "dilation")
    side_by_side = window["strides"] == list(weights.shape[2:]) and set(window["dilation"]) == {1}
    return side_by_side and int(attrs.groups) == 1 and not any(window["padding"] + window["output_padding"])
