"""Quantized NCHW networks (ONNX with QuantizeLinear and DequantizeLinear) in the form that integer lowering knows.

Two things are rewritten, each exactly: rank-4 tensors between convolutions move to NHWC, weights with them, one
transpose where a tensor enters and one where it leaves; and operators that move or compare values go before the
dequantize that feeds them, so that `reshape(dequantize(x))` becomes `dequantize(reshape(x))` and stays on integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax as _relax

from tvm_cascade.importers.one_row import to_one_row

ir: Any = tvm.ir  # nodes of TVM get their fields at run time
relax: Any = _relax
Value: TypeAlias = Any

_TO_LAST = [0, 2, 3, 1]
_TO_FIRST = [0, 3, 1, 2]
_LAST_AXIS = {0: 0, 1: 3, 2: 1, 3: 2}  # where an axis of NCHW lies in NHWC
_BINARY = frozenset({"add", "subtract", "multiply", "divide", "maximum", "minimum", "power"})
_UNARY = frozenset(
    {
        "quantize",
        "dequantize",
        "nn.relu",
        "clip",
        "nn.leakyrelu",
        "sigmoid",
        "tanh",
        "exp",
        "log",
        "abs",
        "negative",
        "square",
        "sqrt",
        "rsqrt",
        "sign",
        "floor",
        "ceil",
        "round",
        "erf",
        "sin",
        "cos",
        "nn.silu",
        "nn.softplus",
        "nn.gelu",
        "nn.gelu_tanh",
    }
)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A value of the new function; `last` where its channels are, and were the second axis of the old one."""

    value: Value
    last: bool = False


def is_quantized(mod: tvm.IRModule) -> bool:
    """Whether anything in `main` is dequantized."""
    main: Any = mod["main"]
    return any(_name(b.value) == "dequantize" for block in main.body.blocks for b in block.bindings)


def to_channels_last(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with `main` rewritten; its parameters and results keep their layout."""
    return _Rewriting(to_one_row(mod, _UNARY, _BINARY)).run()


class _Rewriting:
    """One walk over `main`, emitting its replacement."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod
        self.main: Any = mod["main"]
        untyped: Any = mod
        self.bb: Any = relax.BlockBuilder(
            tvm.IRModule({gv: f for gv, f in untyped.functions.items() if gv.name_hint != "main"})
        )
        self.placed: dict[Value, _Placed] = {}
        self.moved: dict[tuple[Value, bool], Value] = {}
        self.split: dict[Value, Value] = {}  # parts of stored integers, with the dequantize that follows each
        self.handlers: dict[str, Callable[[Value], _Placed]] = {
            "nn.conv2d": self._conv2d,
            "nn.max_pool2d": self._pool,
            "nn.avg_pool2d": self._pool,
            **dict.fromkeys(("mean", "sum", "max", "min"), self._reduce),
            **dict.fromkeys(("nn.softmax", "nn.log_softmax"), self._softmax),
            "matmul": self._matmul,
            "nn.conv2d_transpose": self._conv2d_transpose,
            "concat": self._concat,
            "split": self._split,
            "strided_slice": self._slice,
            "reshape": self._view,
            "squeeze": self._view,
            "flatten": self._view,
            "expand_dims": self._view,
            "permute_dims": self._permute,
            "nn.pad": self._pad,
            "image.resize2d": self._resize,
            **dict.fromkeys(_BINARY, self._binary),
            **dict.fromkeys(_UNARY, self._unary),
        }

    def run(self) -> tvm.IRModule:
        attrs = {str(k): v for k, v in self.main.attrs.items() if str(k) != "global_symbol"}
        for param in self.main.params:
            self.placed[param] = _Placed(param)
        with self.bb.function("main", list(self.main.params), attrs=attrs):
            with self.bb.dataflow():
                for binding in (b for block in self.main.body.blocks for b in block.bindings):
                    handler = self.handlers.get(_name(binding.value), self._other)
                    self.placed[binding.var] = handler(binding.value)
                result = self.bb.emit_output(self._first_of(self.main.body.body))
            self.bb.emit_func_output(result)
        return _relax.transform.DeadCodeElimination()(self.bb.finalize())

    # where values are ------------------------------------------------------------------------------------------------

    def _place(self, value: Value) -> _Placed:
        return self.placed.get(value, _Placed(value)) if isinstance(value, relax.Var) else _Placed(value)

    def _first_of(self, value: Value) -> Value:
        """`value` of the old function in its own layout."""
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._first_of(f) for f in value.fields])
        placed = self._place(value)
        return self._transposed(placed.value, last=False) if placed.last else placed.value

    def _last_of(self, value: Value) -> Value:
        """`value` of the old function, of rank 4, with its channels last."""
        placed = self._place(value)
        return placed.value if placed.last else self._transposed(placed.value, last=True)

    def _transposed(self, value: Value, last: bool) -> Value:
        """Transposed before its dequantize, if it has one; a constant at once."""
        key = (value, last)
        if key not in self.moved:
            order = _TO_LAST if last else _TO_FIRST
            self.moved[key] = self._before_dequantize(value, lambda v: self._permuted(v, order), order)
        return self.moved[key]

    def _permuted(self, value: Value, order: Sequence[int]) -> Value:
        data = _data(value)
        if data is not None:
            return relax.const(np.ascontiguousarray(data.transpose(order)), str(data.dtype))
        return self.bb.emit(relax.op.permute_dims(value, list(order)))

    def _before_dequantize(
        self, value: Value, move: Callable[[Value], Value], order: Sequence[int] | None = None
    ) -> Value:
        """`move(value)`, done on stored integers where `value` is dequantized with one scale or along a kept axis."""
        call = self._definition(value)
        if _name(call) != "dequantize":
            return move(value)
        axis, scale = int(call.attrs.axis), _data(call.args[1])
        if scale is None or (scale.size > 1 and order is None):
            return move(value)
        axis = 0 if scale.size == 1 or order is None else list(order).index(axis % len(order))
        return self.bb.emit(relax.op.dequantize(move(call.args[0]), call.args[1], call.args[2], axis=axis))

    def _definition(self, value: Value) -> Value:
        return self.bb.lookup_binding(value) if isinstance(value, relax.Var) else value

    # operators -------------------------------------------------------------------------------------------------------

    def _other(self, value: Value) -> _Placed:
        """Whatever has no rule: in the old layout."""
        if isinstance(value, relax.Call):
            return _Placed(
                self.bb.emit(relax.Call(value.op, [self._first_of(a) for a in value.args], value.attrs, value.ty_args))
            )
        if isinstance(value, relax.TupleGetItem):
            return self._part(value)
        return self._place(value) if isinstance(value, relax.Var) else _Placed(self.bb.emit(self._first_of(value)))

    def _conv2d(self, call: Value) -> _Placed:
        attrs = call.attrs
        weights = self._definition(self._place(call.args[1]).value)
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NCHW", "OIHW") or _name(weights) != "dequantize":
            return self._other(call)
        if _scales(weights) > 1 and int(weights.attrs.axis) % 4 != 0:
            return self._other(self._with_real_weights(call))
        data, groups = _data(weights.args[0]), int(attrs.groups)
        channels = _shape(call.args[0])[1]
        depthwise = groups > 1 and groups == channels
        if data is None:
            return self._other(call)
        order, layout, axis = ([2, 3, 0, 1], "HWOI", 2) if depthwise else ([2, 3, 1, 0], "HWIO", 3)
        kernel = relax.op.dequantize(
            self._permuted(weights.args[0], order), weights.args[1], weights.args[2], axis=axis
        )
        result = relax.op.nn.conv2d(
            self._last_of(call.args[0]),
            self.bb.emit(kernel),
            strides=[int(v) for v in attrs.strides],
            padding=[int(v) for v in attrs.padding],
            dilation=[int(v) for v in attrs.dilation],
            groups=groups,
            data_layout="NHWC",
            kernel_layout=layout,
        )
        return _Placed(self.bb.emit(result), last=True)

    def _conv2d_transpose(self, call: Value) -> _Placed:
        """Its weights stay `[in, out, h, w]`, the layout that lowering reads."""
        attrs = call.attrs
        weights = self._definition(self._place(call.args[1]).value)
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NCHW", "IOHW") or _name(weights) != "dequantize":
            return self._other(call)
        if _scales(weights) > 1 and int(weights.attrs.axis) % 4 != 1:
            return self._other(self._with_real_weights(call))
        result = relax.op.nn.conv2d_transpose(
            self._last_of(call.args[0]),
            self._place(call.args[1]).value,
            strides=[int(v) for v in attrs.strides],
            padding=[int(v) for v in attrs.padding],
            output_padding=[int(v) for v in attrs.output_padding],
            dilation=[int(v) for v in attrs.dilation],
            groups=int(attrs.groups),
            data_layout="NHWC",
            kernel_layout="IOHW",
        )
        return _Placed(self.bb.emit(result), last=True)

    def _pool(self, call: Value) -> _Placed:
        attrs = call.attrs
        if str(attrs.layout) != "NCHW":
            return self._other(call)
        kind = getattr(relax.op.nn, _name(call).removeprefix("nn."))
        window = {
            "pool_size": [int(v) for v in attrs.pool_size],
            "strides": [int(v) for v in attrs.strides],
            "padding": [int(v) for v in attrs.padding],
            "dilation": [int(v) for v in attrs.dilation],
            "ceil_mode": bool(attrs.ceil_mode),
            "count_include_pad": bool(attrs.count_include_pad),
            "layout": "NHWC",
        }
        source = self._last_of(call.args[0])
        if _name(call) == "nn.avg_pool2d":
            return _Placed(self.bb.emit(kind(source, **window)), last=True)
        return _Placed(self._before_dequantize(source, lambda v: self.bb.emit(kind(v, **window))), last=True)

    def _reduce(self, call: Value) -> _Placed:
        """Where every axis that is left stands in the order that it had: the channels, or rows and columns."""
        if not self._place(call.args[0]).last or call.attrs.axis is None:
            return self._other(call)
        axes, kept = sorted(_LAST_AXIS[int(a) % 4] for a in call.attrs.axis), bool(call.attrs.keepdims)
        if not kept and 3 not in axes and not {1, 2} <= set(axes):
            return self._other(call)
        reduction = getattr(relax.op, _name(call))
        return _Placed(self.bb.emit(reduction(self._last_of(call.args[0]), axes, kept)), last=kept)

    def _softmax(self, call: Value) -> _Placed:
        """Along the channels, which lowering wants last."""
        if len(_shape(call)) != 4 or int(call.attrs.axis) % 4 != 1:
            return self._other(call)
        softmax = getattr(relax.op.nn, _name(call).removeprefix("nn."))
        return _Placed(self.bb.emit(softmax(self._last_of(call.args[0]), axis=3)), last=True)

    def _matmul(self, call: Value) -> _Placed:
        weights = self._definition(self._place(call.args[1]).value)
        rank = len(_shape(call.args[1]))
        odd = _name(weights) == "dequantize" and _scales(weights) > 1 and int(weights.attrs.axis) % rank != rank - 1
        return self._other(self._with_real_weights(call) if odd else call)

    def _with_real_weights(self, call: Value) -> Value:
        """With weights as floats: integer kernels have no scale for every input, only one for every output."""
        weights = self._definition(self._place(call.args[1]).value)
        stored, scale, zero = (_data(a) for a in weights.args)
        if stored is None or scale is None or zero is None:
            return call
        along = [1] * stored.ndim
        along[int(weights.attrs.axis) % stored.ndim] = -1
        centred = stored.astype("int64") - (zero.reshape(along) if zero.size > 1 else zero.reshape(()))
        real = (centred.astype("float32") * scale.reshape(along)).astype("float32")
        return relax.Call(
            call.op, [call.args[0], relax.const(real, "float32"), *call.args[2:]], call.attrs, call.ty_args
        )

    def _concat(self, call: Value) -> _Placed:
        tuple_value = call.args[0]
        fields = list(tuple_value.fields) if isinstance(tuple_value, relax.Tuple) else []
        if not any(self._place(f).last for f in fields):
            return self._other(call)
        axis = _LAST_AXIS[int(call.attrs.axis) % 4]
        return _Placed(self.bb.emit(relax.op.concat([self._last_of(f) for f in fields], axis=axis)), last=True)

    def _split(self, call: Value) -> _Placed:
        """Parts of stored integers, each dequantized, where the whole was dequantized with one scale."""
        placed, sections = self._place(call.args[0]), call.attrs.indices_or_sections
        axis = int(call.attrs.axis) % len(_shape(call.args[0]))
        axis = _LAST_AXIS[axis] if placed.last else axis
        at = int(sections) if isinstance(sections, (int, tvm.tirx.IntImm)) else [int(v) for v in sections]
        whole = self._definition(placed.value)
        stored = _name(whole) == "dequantize" and _scales(whole) == 1
        parts = self.bb.emit(relax.op.split(whole.args[0] if stored else placed.value, at, axis))
        if stored:
            self.split[parts] = whole
        return _Placed(parts, placed.last)

    def _part(self, item: Value) -> _Placed:
        placed = self._place(item.tuple_value)
        part = self.bb.emit(relax.TupleGetItem(placed.value, item.index))
        whole = self.split.get(placed.value)
        if whole is not None:
            part = self.bb.emit(relax.op.dequantize(part, whole.args[1], whole.args[2], axis=0))
        return _Placed(part, placed.last)

    def _slice(self, call: Value) -> _Placed:
        placed, rank = self._place(call.args[0]), len(_shape(call.args[0]))
        axes, *rest = ([int(getattr(f.value, "value", f.value)) for f in a.fields] for a in call.args[1:])
        axes = [_LAST_AXIS[a % rank] if placed.last else a % rank for a in axes]
        inbound = bool(call.attrs.assume_inbound)

        def sliced(value: Value) -> Value:
            return self.bb.emit(relax.op.strided_slice(value, axes, *rest, assume_inbound=inbound))

        return _Placed(self._before_dequantize(placed.value, sliced), placed.last)

    def _view(self, call: Value) -> _Placed:
        """A reshape of one pixel reads the same in both layouts."""
        placed, shape = self._place(call.args[0]), _shape(call)
        source = placed.value if placed.last and _shape(call.args[0])[2:] == (1, 1) else self._first_of(call.args[0])
        if self._is_bias(source):
            return _Placed(self.bb.emit(relax.op.reshape(source, list(shape))))
        return _Placed(self._before_dequantize(source, lambda v: self.bb.emit(relax.op.reshape(v, list(shape)))))

    def _permute(self, call: Value) -> _Placed:
        axes = call.attrs.axes
        order = [int(a) for a in axes] if axes is not None else list(reversed(range(len(_shape(call)))))
        source = self._first_of(call.args[0])
        return _Placed(self._before_dequantize(source, lambda v: self._permuted(v, order), order))

    def _pad(self, call: Value) -> _Placed:
        """A pad by zero goes before its dequantize, as a pad by the zero point."""
        if not self._place(call.args[0]).last:
            return self._other(call)
        widths = [int(w) for w in call.attrs.pad_width]
        moved = [w for axis in _TO_LAST for w in widths[2 * axis : 2 * axis + 2]]
        mode, value = str(call.attrs.pad_mode), float(call.attrs.pad_value)
        source = self._last_of(call.args[0])
        call = self._definition(source)
        if _name(call) != "dequantize" or value != 0.0 or mode != "constant":
            return _Placed(self.bb.emit(relax.op.nn.pad(source, moved, mode, value)), last=True)
        fill = _data(call.args[2])
        zero = 0.0 if fill is None else float(fill.reshape(-1)[0])
        return _Placed(
            self._before_dequantize(source, lambda v: self.bb.emit(relax.op.nn.pad(v, moved, mode, zero))), last=True
        )

    def _resize(self, call: Value) -> _Placed:
        if str(call.attrs.layout) != "NCHW" or not self._place(call.args[0]).last:
            return self._other(call)
        attrs = call.attrs
        nearest = str(attrs.method) == "nearest_neighbor"
        floored = (str(attrs.coordinate_transformation_mode), str(attrs.rounding_method)) == ("asymmetric", "floor")
        if nearest and not floored:  # other roundings have no rule where channels are last
            return self._other(call)
        size = tuple(_shape(call)[2:])
        how = {
            "layout": "NHWC",
            "method": str(attrs.method),
            "coordinate_transformation_mode": str(attrs.coordinate_transformation_mode),
            "rounding_method": str(attrs.rounding_method),
        }
        source = self._last_of(call.args[0])

        def resized(value: Value) -> Value:
            return self.bb.emit(relax.op.image.resize2d(value, size, **how))

        return _Placed(self._before_dequantize(source, resized) if nearest else resized(source), last=True)

    def _binary(self, call: Value) -> _Placed:
        if len(_shape(call)) != 4 or not any(self._place(a).last for a in call.args):
            return self._other(call)
        operands = [self._broadcast_last(a) for a in call.args]
        return _Placed(self.bb.emit(relax.Call(call.op, operands, call.attrs)), last=True)

    def _broadcast_last(self, value: Value) -> Value:
        """An operand that broadcasts against channels that are last; a bias as the plain vector it was given as."""
        shape = self._shape_of(value)
        if prod(shape) == 1 and len(shape) < 4:
            return self._place(value).value
        reshaped = self._definition(self._place(value).value)
        if (
            _name(reshaped) == "reshape"
            and len(shape) == 4
            and shape == (1, shape[1], 1, 1)
            and self._is_bias(reshaped.args[0])
        ):
            return reshaped.args[0]
        if len(shape) == 4:
            return self._last_of(value)
        unit = [1] * (4 - len(shape)) + list(shape)
        data = _data(self._place(value).value)
        wide = relax.op.reshape(self._place(value).value, unit)
        return self._transposed(
            relax.const(data.reshape(unit), str(data.dtype)) if data is not None else self.bb.emit(wide), last=True
        )

    def _unary(self, call: Value) -> _Placed:
        """Elementwise in whatever layout the input has; quantization along the channels follows them."""
        placed = self._place(call.args[0])
        rest = list(call.args[1:])
        if not placed.last or _name(call) not in ("quantize", "dequantize"):
            return _Placed(self.bb.emit(relax.Call(call.op, [placed.value, *rest], call.attrs)), placed.last)
        axis = _LAST_AXIS[int(call.attrs.axis) % 4]
        if _name(call) == "dequantize":
            return _Placed(self.bb.emit(relax.op.dequantize(placed.value, *rest, axis=axis)), last=True)
        stored = relax.op.quantize(placed.value, *rest, axis=axis, out_dtype=str(call.attrs.out_dtype))
        return _Placed(self.bb.emit(stored), last=True)

    def _shape_of(self, value: Value) -> tuple[int, ...]:
        return _shape(self._place(value).value)

    def _is_bias(self, value: Value) -> bool:
        call = self._definition(value)
        return _name(call) == "dequantize" and len(_shape(value)) == 1 and _data(call.args[0]) is not None


def _name(value: Value) -> str:
    return str(getattr(value.op, "name", "")).removeprefix("relax.") if isinstance(value, relax.Call) else ""


def _scales(dequantize: Value) -> int:
    """How many scales it has; 0 where they are not constant."""
    scale = _data(dequantize.args[1])
    return 0 if scale is None else int(scale.size)


def _data(value: Value) -> np.ndarray | None:
    return value.value.numpy() if isinstance(value, ir.GenericConst) else None


def _shape(value: Value) -> tuple[int, ...]:
    return tuple(int(d) for d in value.ty.shape.values)
