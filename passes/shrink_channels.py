"""`ShrinkChannels`: removes channels computed in vain in quantized networks (`substitution.dead_channels`).

The weights tell first whether a network has any, so all other networks cost next to nothing.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import IRModule

from tvm_cascade.errors import GraphError
from tvm_cascade.operators.table import PRODUCTS
from tvm_cascade.passes.base import CascadePass, PassResult
from tvm_cascade.passes.integer.expressions import dtype_of, is_constant
from tvm_cascade.passes.islands.reader import is_boundary, read_operators
from tvm_cascade.passes.lower_quantized import LIKE_ATTR, REAL_ATTR
from tvm_cascade.passes.lower_quantized import TFLM as LIKE_TFLM
from tvm_cascade.passes.read.opaque_channels import OpaqueChannels
from tvm_cascade.passes.relax_functions import OF_OTHERS, bindings_of
from tvm_cascade.passes.static_regions import loses_calls_out
from tvm_cascade.passes.substitution_read import read_function
from tvm_cascade.passes.substitution_write import write_function
from tvm_cascade.program.operator import Operand, Operator, Quantized, Value, computed
from tvm_cascade.program.quant import BYTE_TYPES
from tvm_cascade.schema.plan import Removed
from tvm_cascade.substitution.dag import Node, Ref
from tvm_cascade.substitution.dead_channels import has_dead_channels, without_dead_channels
from tvm_cascade.substitution.integer_arithmetic import REAL, TFLITE, TFLM

_VIEWS = ("reshape", "permute_dims")


@dataclass(frozen=True, slots=True)
class RemovedChannels:
    """The channels lost by a layer."""

    layer: str  # the tensor of the file that it writes, or its number among the layers
    channels: int  # outputs removed
    of: int  # outputs of the file
    weight_bytes: int  # of weights and biases removed

    def to_dict(self) -> Removed:
        """Return the JSON object of `plan --json`."""
        return {"layer": self.layer, "channels": self.channels, "of": self.of, "weight_bytes": self.weight_bytes}


@dataclass(frozen=True)
class ShrinkChannels(CascadePass):
    """Remove channels that are constant or unread, in every entry function with quantized layers.

    Works on every module as imported: unreadable functions are not changed. Ensures that every result keeps every bit.

    Before, quantized operators where all weights of filter 2 of `v` are the zero point, so that `a` has one value there::

        a = conv2d(x, v)  # R.Tensor((1, 8, 8, 4), "int8")
        b = conv2d(a, w)

    After, with that value's share in `b` added to the bias::

        a = conv2d(x, v')  # R.Tensor((1, 8, 8, 3), "int8")
        b = conv2d(a, w', bias)
    """

    def call(self, mod: IRModule) -> PassResult:
        """Return the module without dead channels."""
        made, removed = shrink_channels(mod)
        return PassResult(made, bool(removed))


def shrink_channels(mod: IRModule) -> tuple[IRModule, tuple[RemovedChannels, ...]]:
    """Copy `mod` without dead channels, and each layer's losses; `mod` itself if there are none."""
    made, removed = mod, tuple[RemovedChannels, ...]()
    for gv, func in list(mod.functions_items()):
        if not isinstance(func, relax.Function) or not _is_entry(func) or not _may_shrink(func):
            continue
        try:
            shrunk, lost = _shrunk(func)
        except GraphError:
            continue
        if not lost:
            continue
        updated = made.clone()
        updated.update_func(gv, shrunk)
        if not loses_calls_out(made, updated):
            made, removed = updated, removed + lost
    return made, removed


def file_weight_bytes(mod: IRModule) -> int:
    """Return the bytes of `main`'s constants as in the file, without scales and zero points."""
    func = next((f for gv, f in mod.functions_items() if gv.name_hint == "main"), None)
    if func is None or not isinstance(func.body, relax.SeqExpr):
        return 0
    found: dict[Any, int] = {}
    for block in func.body.blocks:
        for binding in block.bindings:
            for constant in _constants(binding.value):
                found[constant] = prod(constant.value.shape) * constant.value.dtype.itemsize
    return sum(found.values())


def _constants(value: Any) -> Iterator[Any]:
    """Yield the constants read by a binding, except scales and zero points."""
    waiting = [*value.args] if isinstance(value, relax.Call) else [value]
    if is_boundary(value):
        del waiting[1:]
    while waiting:
        expr = waiting.pop()
        if isinstance(expr, relax.Tuple):
            waiting.extend(expr.fields)
        elif is_constant(expr):
            yield expr


def _shrunk(func: relax.Function) -> tuple[relax.Function, tuple[RemovedChannels, ...]]:
    marks = dict(func.attrs or {})
    real, of_files = REAL_ATTR in marks, TFLM if marks.get(LIKE_ATTR) == LIKE_TFLM else TFLITE
    read = read_function(func, OpaqueChannels(real))
    done = without_dead_channels(read.dag, read.constants, REAL if real else of_files)
    if not done.layers:
        return func, ()
    names = {ref: name for name, ref in read.files.items()}
    users = read.dag.users()
    lost = tuple(
        RemovedChannels(_name(s.output, names, users) or f"layer {n}", s.channels, s.of, s.weight_bytes)
        for n, s in enumerate(done.layers)
    )
    files = {name: done.moved.get(ref, ref) for name, ref in read.files.items()}
    now = replace(read, dag=done.dag, constants=dict(done.constants), files=files)
    return write_function(done.dag, now, func.attrs), lost


def _name(ref: Ref, names: Mapping[Ref, str], users: Mapping[Ref, Sequence[Node]]) -> str:
    """Return the file's name for a value, or for its only reader's result, such as a clip; empty without a name."""
    while ref not in names:
        readers = users.get(ref, ())
        if len(readers) != 1 or len(readers[0].inputs) != 1:
            return ""
        ref = readers[0].result
    return names[ref]


def _is_entry(func: relax.Function) -> bool:
    """Return True for a function called from outside the module, and not left to foreign TVM passes."""
    attrs = dict(func.attrs or {})
    return "global_symbol" in attrs and not attrs.keys() & set(OF_OTHERS)


def _may_shrink(func: relax.Function) -> bool:
    """Return True if a quantized convolution or product has an output or an input of which all weights are zero."""
    if not isinstance(func.body, relax.SeqExpr):
        return False
    operators = read_operators((b.var, b.value) for b in bindings_of(func))
    products = (operators.of(b.var) for b in bindings_of(func))
    return any(_has_dead_weights(p) for p in products if isinstance(p, Operator) and p.kind in PRODUCTS)


def _has_dead_weights(product: Operator) -> bool:
    weights = _behind_views(product.operands[1])
    if not isinstance(weights, Quantized):
        return False
    stored = weights if weights.producer is None else _behind_views(weights.producer)
    return isinstance(stored, Value) and _is_dead(stored.source, weights.zero_point)


def _behind_views(operand: Operand) -> Operand:
    while (view := computed(operand, *_VIEWS)) is not None:
        operand = view.operands[0]
    return operand


def _is_dead(stored: Any, zero: int) -> bool:
    if not is_constant(stored) or dtype_of(stored) not in BYTE_TYPES:
        return False
    weights = np.from_dlpack(stored.value)  # a copy of all weights would take most of the time
    if weights.ndim < 2 or 0 in weights.shape:
        return False
    return has_dead_channels(weights, zero, (weights.ndim - 2, weights.ndim - 1))
