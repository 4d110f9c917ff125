"""Report on float operators left by `LowerQuantized`, with activation bytes, MACs and flash bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import prod

import numpy as np

from tvm_cascade.passes.integer.expressions import attributes, dtype_of, is_constant, name_of, shape_of
from tvm_cascade.passes.integer.untyped import Call, Function, Module, Value, relax
from tvm_cascade.passes.islands.reader import is_dequantize
from tvm_cascade.passes.relax_functions import bindings_of
from tvm_cascade.program.quant import NotLowered

REMAINS_ATTR = "cascade_float_remains"
_CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")
_TRANSPOSED = ("relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose", "relax.nn.conv3d_transpose")
_PRODUCTS = ("relax.matmul", *_CONVOLUTIONS, *_TRANSPOSED)


@dataclass(frozen=True, slots=True)
class FloatRemain:
    """An operator left in float by `LowerQuantized`."""

    name: str  # of the tensor it writes
    operator: str
    bytes: int  # of the float tensor it writes
    reason: str
    macs: int = 0  # multiply-accumulates on floats
    flash_bytes: int = 0  # of the float constants it reads


def float_remains(mod: Module) -> tuple[FloatRemain, ...]:
    """List the float operators of `main` after `LowerQuantized`, in program order; empty for an all-integer network."""
    text = str(attributes(mod["main"]).get(REMAINS_ATTR, "[]"))
    return tuple(FloatRemain(**entry) for entry in json.loads(text))


def with_remains(main: Function, reasons: Mapping[str, str]) -> Function:
    """Add the list of float operators to `main` as an attribute; `reasons` maps tensor names to why they are float."""
    return main.with_attr(REMAINS_ATTR, json.dumps([asdict(r) for r in _remains(main, reasons)]))


def _remains(main: Function, reasons: Mapping[str, str]) -> Iterable[FloatRemain]:
    values = {b.var: b.value for b in bindings_of(main)}
    for binding in bindings_of(main):
        kind, call = dtype_of(binding.var), binding.value
        if not kind.startswith("float") or not isinstance(call, relax.Call) or _is_constant(call, values):
            continue
        name, shape, operator = binding.var.name, shape_of(binding.var), name_of(call)
        if operator == "relax.call_tir":
            operator = call.args[0].name_hint.rstrip("0123456789")
        reason, size = reasons.get(name, "float in the model"), prod(shape) * (int(kind[5:]) // 8)
        flash = sum(4 * prod(shape_of(a)) for a in _operands(call) if _is_constant(a, values))
        yield FloatRemain(name, operator, size, reason, _macs(call, shape), flash)


def products_of(mod: Module) -> int:
    """Return the multiply-accumulates of `main`'s products and convolutions, taps on padding left out."""
    found = ((b.value, shape_of(b.var)) for b in bindings_of(mod["main"]) if name_of(b.value) in _PRODUCTS)
    return sum(_macs(call, shape) - _padded(call, shape) for call, shape in found)


def _padded(call: Call, shape: tuple[int, ...]) -> int:
    """Return a convolution's multiply-accumulates on padding; 0 for any other operator."""
    if name_of(call) not in _CONVOLUTIONS:
        return 0
    attrs, whole = call.attrs, _macs(call, shape)
    spatial = [axis for axis in str(attrs.data_layout) if axis not in "NC"]
    inside, taps = 1, 1
    for n, axis in enumerate(spatial):
        size = shape_of(call.args[0])[str(attrs.data_layout).index(axis)]
        count = shape[str(attrs.out_layout or attrs.data_layout).index(axis)]
        kernel = shape_of(call.args[1])[str(attrs.kernel_layout).index(axis)]
        first = np.arange(count)[:, None] * int(attrs.strides[n]) - int(attrs.padding[n])
        read = first + np.arange(kernel) * int(attrs.dilation[n])
        inside, taps = inside * int(((read >= 0) & (read < size)).sum()), taps * read.size
    return whole - whole * inside // taps


def _operands(call: Call) -> list[Value]:
    """List the float tensors read by an operator, tuples taken apart."""
    fields = (f for a in call.args for f in (a.fields if isinstance(a, relax.Tuple) else [a]))
    return [f for f in fields if dtype_of(f).startswith("float") and getattr(f.ty, "shape", None) is not None]


def _is_constant(value: Value, values: Mapping[Value, Value]) -> bool:
    """Test that a value is known at compile time: a constant, also dequantized, transposed or reshaped, or
    `relax.zeros`.
    """
    while isinstance(value, relax.Var) and value in values:
        value = values[value]
    if is_dequantize(value) or name_of(value) in ("relax.permute_dims", "relax.reshape"):
        return _is_constant(value.args[0], values)
    return is_constant(value) or name_of(value) == "relax.zeros"


def _macs(call: Call, shape: tuple[int, ...]) -> int:
    """Count the multiply-accumulates of a product or convolution with output `shape`; 0 for any other operator."""
    name = name_of(call)
    try:
        if name == "relax.matmul":
            return prod(shape) * shape_of(call.args[0])[-1]
        if name in _CONVOLUTIONS:
            layout = str(call.attrs.out_layout or call.attrs.data_layout)
            return prod(shape) * prod(shape_of(call.args[1])) // shape[layout.index("C")]
        if name in _TRANSPOSED:
            source = shape_of(call.args[0])
            return prod(source) * prod(shape_of(call.args[1])) // source[str(call.attrs.data_layout).index("C")]
    except (NotLowered, ValueError, IndexError):  # shapes that are not static, packed layouts
        return 0
    return 0
