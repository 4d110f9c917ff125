"""Maxima and minima of a NaN and a constant, which stay NaN in built code.

Back ends write the larger of `a` and `b` as `a > b ? a : b`, which is `b` if either is NaN. TVM's simplifier puts
constants second, so a clamped NaN would become its bound.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tvm

from tvm_cascade.schedules.tir import PrimFunc, dtype_of, replace, tirx, tvm_ffi
from tvm_cascade.schedules.tir.rounded_products import fenced

ir: Any = tvm.ir  # nodes of TVM get their fields at run time
_IS_NAN: Any = tvm.ir.Op.get("tirx.isnan")


def or_nan(operator: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return `operator`, the larger or smaller of two floats, as NaN if an operand is: back ends return the second
    operand if the first is NaN.
    """
    return lambda a, b: tirx.Select(tirx.isnan(a), a, operator(a, b))


def without_nan(value: Any) -> Any:
    """Return the maximum or minimum in the result of `or_nan`; `value` itself if there is none."""
    if isinstance(value, tirx.Select) and isinstance(value.condition, ir.Call) and value.condition.op.same_as(_IS_NAN):
        return value.false_value
    return value


def keep_nan(func: PrimFunc) -> PrimFunc:
    """Move the constant operand of every float maximum and minimum to the front. Simplifying undoes it."""
    changes = [(kind, _constant_first) for kind in (tirx.Max, tirx.Min)]
    return func.with_body(tvm_ffi.structural_map(func.body, changes, order="post"))


def bounds_as_choices(func: PrimFunc) -> PrimFunc:
    """Return `func` with every constant bound of floats written as a choice, which keeps NaN and survives simplifying."""
    body = func.body
    for kind, beyond in ((tirx.Max, tirx.LT), (tirx.Min, tirx.GT)):
        body = replace(body, kind, partial(_chosen, beyond=beyond))
    return func.with_body(body)


def choices_for_bounds() -> Any:
    """Return the pass applying `bounds_as_choices` to every function in a module."""
    return tirx.transform.prim_func_pass(
        lambda func, _mod, _context: bounds_as_choices(func), opt_level=0, name="BoundsAsChoices"
    )


def _chosen(node: Any, beyond: Any) -> Any:
    value, bound = (node.a, node.b) if _is_constant(node.b) else (node.b, node.a)
    is_bound = "float" in dtype_of(node) and _is_constant(bound) and not _is_constant(value)
    return tirx.Select(beyond(value, bound), bound, value) if is_bound else node


def keep_nan_in_vectors(func: PrimFunc) -> PrimFunc:
    """Rewrite float32 maxima, minima and comparisons in `func` into forms that handle NaN on cores with MVE.

    LLVM 22 takes `not a < b` for `a >= b` there, so a float vector is never found to be NaN, and reordered choices lose
    NaN. Here bits reveal NaN, and compared values are behind a fence, which keeps loops from being vectorized, but not
    scalars from being gathered in vectors. LT and LE of such vectors are true for NaN, other comparisons are not, so
    that `a < b` asks for the bits too.
    """
    body = func.body
    for kind, name in ((tirx.Max, "llvm.maxnum"), (tirx.Min, "llvm.minnum")):
        body = replace(body, kind, partial(_by_bits, name=name))
    for kind in (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE):
        body = replace(body, kind, _fenced)
    return func.with_body(replace(body, ir.Call, _nan_by_bits))


def _by_bits(node: Any, name: str) -> Any:
    dtype = dtype_of(node)
    if not dtype.startswith("float32"):
        return node
    made = tirx.call_llvm_pure_intrin(dtype, name, node.a, node.b)
    for operand in (node.b, node.a):
        made = made if _is_constant(operand) else tirx.Select(_has_bits_of_nan(operand), operand, made)
    return made


def _fenced(node: Any) -> Any:
    dtype = dtype_of(node.a)
    if dtype != "float32":
        return node
    made = type(node)(fenced(node.a), node.b)
    if isinstance(node, (tirx.LT, tirx.LE)):
        for operand in (node.a, node.b):
            made = made if _is_constant(operand) else tirx.And(made, tirx.Not(_has_bits_of_nan(operand)))
    return made


def _nan_by_bits(node: Any) -> Any:
    of_nan = node.op.same_as(_IS_NAN) and dtype_of(node.args[0]).startswith("float32")
    return _has_bits_of_nan(node.args[0]) if of_nan else node


def _has_bits_of_nan(value: Any) -> Any:
    dtype = dtype_of(value).replace("float", "int")
    mask, infinity = (tirx.const(bits, dtype) for bits in (0x7FFFFFFF, 0x7F800000))
    return tirx.GT(tirx.bitwise_and(tirx.reinterpret(dtype, value), mask), infinity)


def nan_kept() -> Any:
    """Return the pass applying `keep_nan` to every function in a module."""
    return tirx.transform.prim_func_pass(lambda func, _mod, _context: keep_nan(func), opt_level=0, name="KeepNan")


def _constant_first(node: Any) -> Any:
    return type(node)(node.b, node.a) if "float" in dtype_of(node) and _is_constant(node.b) else node


def _is_constant(value: Any) -> bool:
    return isinstance(value.value if isinstance(value, tirx.Broadcast) else value, tirx.FloatImm)
