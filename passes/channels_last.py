"""Images in channels-last layout, `NHWC`, in a Relax function: products on tensor cores read them in whole vectors.

Convolutions, pools, element-wise operators, concats and means over rows and columns take that layout; every other
reader gets the image in the original layout. The function's inputs and outputs keep the original layout.
"""

# TVM has no stubs.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.tirx import IntImm

from tvm_cascade.operators.table import ELEMENTWISE
from tvm_cascade.passes.read.relax_names import graph_kind
from tvm_cascade.passes.relax_functions import add_function

_TO_LAST, _BACK = (0, 2, 3, 1), (0, 3, 1, 2)
_AXIS = {0: 0, 1: 3, 2: 1, 3: 2}  # of an image, where it is with channels last
_POOLS = {"relax.nn.max_pool2d": relax.op.nn.max_pool2d, "relax.nn.avg_pool2d": relax.op.nn.avg_pool2d}
_CONSTANT = type(relax.const(0.0, "float32"))
_VIEWS = ("relax.reshape", "relax.nn.batch_flatten", "relax.squeeze")


def channels_last(mod: tvm.IRModule, function: str = "main") -> tvm.IRModule:
    """Convert `function` to that layout; return the module unchanged without convolutions in `NCHW`."""
    func: Any = mod[function] if function in {g.name_hint for g in mod.get_global_vars()} else None
    if not isinstance(getattr(func, "body", None), relax.SeqExpr):
        return mod
    calls = [b.value for block in func.body.blocks for b in block.bindings if isinstance(b.value, relax.Call)]
    if not any(_is_convolution(c) for c in calls) or not isinstance(func.body.body, (relax.Var, relax.Tuple)):
        return mod
    builder = relax.BlockBuilder(mod.clone())
    del builder.get()[function]
    writer = _Writer(builder)

    def emit() -> Any:
        for block in func.body.blocks:
            for binding in block.bindings:
                writer.write(binding)
        return writer.plain(func.body.body)

    add_function(builder, function, func.params, emit, attrs=dict(func.attrs or {}))
    return builder.get()


def _is_convolution(call: Any) -> bool:
    return getattr(call.op, "name", "") == "relax.nn.conv2d" and str(call.attrs.data_layout) == "NCHW"


class _Writer:
    """Writes bindings anew; `last` holds the images with channels last by the variable they were bound to."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self._last: dict[Any, Any] = {}
        self._plain: dict[Any, Any] = {}

    def write(self, binding: Any) -> None:
        value = binding.value
        made = self._with_last(value) if isinstance(value, relax.Call) else None
        if made is None:
            self._plain[binding.var] = self._builder.emit(self._as_it_is(value))
        elif len(_shape(binding.var)) == 4:
            self._last[binding.var] = self._builder.emit(made)
        else:
            self._plain[binding.var] = self._builder.emit(made)

    def plain(self, expr: Any) -> Any:
        """Return an operand in the original layout."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.plain(f) for f in expr.fields])
        if expr in self._last and expr not in self._plain:
            self._plain[expr] = self._builder.emit(relax.op.permute_dims(self._last[expr], list(_BACK)))
        return self._plain.get(expr, expr) if isinstance(expr, relax.Var) else expr

    def _as_it_is(self, value: Any) -> Any:
        if isinstance(value, relax.Call):
            return relax.Call(value.op, [self.plain(a) for a in value.args], value.attrs, value.ty_args)
        if isinstance(value, relax.TupleGetItem):
            return relax.TupleGetItem(self.plain(value.tuple_value), value.index)
        return self.plain(value)

    def _image(self, expr: Any) -> Any:
        """Return an image with channels last."""
        if isinstance(expr, _CONSTANT):
            return _transposed(expr, _TO_LAST)
        if expr not in self._last:
            self._last[expr] = self._builder.emit(relax.op.permute_dims(self._plain.get(expr, expr), list(_TO_LAST)))
        return self._last[expr]

    def _with_last(self, call: Any) -> Any:
        """Return the call with channels last; None if it has no such form, or reads no such image."""
        name, attrs = getattr(call.op, "name", ""), call.attrs
        if _is_convolution(call):
            named = {k: list(getattr(attrs, k)) for k in ("strides", "padding", "dilation")}
            named |= {
                "groups": int(attrs.groups),
                "kernel_layout": str(attrs.kernel_layout),
                "out_dtype": attrs.out_dtype,
            }
            x = self._image(call.args[0])
            return relax.op.nn.conv2d(x, self.plain(call.args[1]), **named, data_layout="NHWC", out_layout="NHWC")
        if not any(a in self._last for a in _operands(call)):
            return None
        if name in _POOLS and str(attrs.layout) == "NCHW":
            named = {k: list(getattr(attrs, k)) for k in ("pool_size", "strides", "padding", "dilation")}
            named |= {"ceil_mode": bool(attrs.ceil_mode), "count_include_pad": bool(attrs.count_include_pad)}
            return _POOLS[name](self._image(call.args[0]), **named, layout="NHWC", out_layout="NHWC")
        if name == "relax.concat" and attrs.axis is not None and len(_shape(_operands(call)[0])) == 4:
            return relax.op.concat([self._image(f) for f in _operands(call)], _AXIS[int(attrs.axis) % 4])
        if name == "relax.mean" and attrs.axis is not None and {int(a) % 4 for a in attrs.axis} == {2, 3}:
            return relax.op.mean(self._image(call.args[0]), [1, 2], bool(attrs.keepdims))
        if name in _VIEWS and prod(_shape(call.args[0])[2:]) == 1 and len(_shape(call)) != 4:
            return relax.op.reshape(self._image(call.args[0]), list(_shape(call)))
        if graph_kind(name.split(".")[-1]) in ELEMENTWISE:
            return self._element_wise(call)
        return None

    def _element_wise(self, call: Any) -> Any:
        operands = []
        for a in call.args:
            rank = len(_shape(a)) if isinstance(a, (relax.Var, _CONSTANT)) else -1
            if rank == 4:
                operands.append(self._image(a))
            elif rank == 3 and isinstance(a, _CONSTANT):
                operands.append(_transposed(a, (1, 2, 0)))
            elif rank > 0:
                return None
            else:
                operands.append(a)
        return relax.Call(call.op, operands, call.attrs, call.ty_args)


def _operands(call: Any) -> Sequence[Any]:
    first = call.args[0] if len(call.args) else None
    return first.fields if isinstance(first, relax.Tuple) else [a for a in call.args if isinstance(a, relax.Var)]


def _shape(expr: Any) -> tuple[int, ...]:
    shape = getattr(expr.ty, "shape", None)
    return () if shape is None else tuple(int(d) if isinstance(d, IntImm) else -1 for d in shape.values)


def _transposed(expr: Any, axes: Sequence[int]) -> Any:
    value = np.ascontiguousarray(expr.value.numpy().transpose(axes))
    return relax.const(value, str(value.dtype))
