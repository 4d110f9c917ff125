"""TIR utilities shared by schedules and passes: queries, constructors and rewrites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from numbers import Integral
from typing import Any, TypeAlias

import tvm
import tvm_ffi as _tvm_ffi
from tvm import relax as _relax
from tvm import s_tir as _s_tir
from tvm import sym as _sym
from tvm import te as _te
from tvm import tirx as _tirx

# TVM's nodes get their fields at run time, invisible to type checkers: so its modules and nodes are `Any` here.
ir: Any = tvm.ir
relax: Any = _relax
s_tir: Any = _s_tir
sym: Any = _sym
te: Any = _te
tirx: Any = _tirx
tvm_ffi: Any = _tvm_ffi

Expr: TypeAlias = Any
Value: TypeAlias = Any  # an expression or a Python number
Stmt: TypeAlias = Any
Var: TypeAlias = Any
Buffer: TypeAlias = Any  # a variable with a BufferType
PrimFunc: TypeAlias = Any
PASSES = "tvm_cascade.passes"  # annotation of a loop: the value of its extent, which compilers are not to know
IF_THEN_ELSE = "prim.if_then_else"
_CALL, _VAR = (_tvm_ffi.get_global_func(f"ir.{name}") for name in ("Call", "Var"))
_SEQUENCE, _FUNCTION, _BUFFER = (
    _tvm_ffi.get_global_func(f"tirx.{name}") for name in ("SeqStmt", "PrimFunc", "BufferVar")
)
_SIZE, _ITEM = (_tvm_ffi.get_global_func(f"ffi.Array{name}") for name in ("Size", "GetItem"))
_ADDRESS = ir.Op.get("tirx.address_of")
_type = cache(ir.PrimType)
_names: dict[
    int, tuple[Any, str]
] = {}  # by address: a primitive type, of which TVM makes one for each name, and its name


def elements(array: Any) -> list[Any]:
    """List a TVM array's elements, in half the time of the array's own listing."""
    return [_ITEM(array, k) for k in range(_SIZE(array))]


def shape_of(buffer: Buffer) -> tuple[int, ...]:
    """Return a buffer's static extents."""
    return tuple(int(d) for d in elements(buffer.ty.shape))


def dtype_of(buffer: Buffer) -> str:
    """Return a buffer's element type, or an expression's type. Names are cached, since this is called most often."""
    kind = buffer.ty
    if type(kind) is not ir.PrimType:
        kind = kind.dtype
    if type(kind) is not ir.PrimType:
        return str(kind)
    known = _names.get(kind.__chandle__())
    if known is None:
        known = _names[kind.__chandle__()] = kind, str(kind.dtype)
    return known[1]


def i32(value: Value) -> Expr:
    """Convert a Python integer to an int32 constant; return expressions unchanged."""
    if type(value) is int:
        return _constant(value)
    return tirx.const(int(value), "int32") if isinstance(value, Integral) else value


@cache
def _constant(value: int) -> Expr:
    return tirx.const(value, "int32")


def scalar(name: str, dtype: str) -> Var:
    """Make a variable with a primitive type; `tirx.Var` makes its type anew and imports modules in every call."""
    return _VAR(name, _type(dtype), None)


def call(op: Any, args: Sequence[Expr], dtype: str) -> Expr:
    """Call an operation; like `scalar`, in place of `tvm.ir.Call`."""
    return _CALL(_type(dtype), op, args, None, [], None)


def address_of(load: Expr) -> Expr:
    """Return the address of a buffer's element; like `scalar`, in place of `tirx.address_of`."""
    source = load.source
    return _CALL(_pointer(dtype_of(source), source.ty.storage_scope), _ADDRESS, [load], None, [], None)


@cache
def _pointer(dtype: str, scope: str) -> Any:
    return ir.PointerType(_type(dtype), scope)


def pointer_var(name: str, dtype: str) -> Var:
    """Make a variable for a pointer parameter to `dtype` elements."""
    return _VAR(name, _pointer(dtype, ""), None)


def flat_buffer(name: str, size: int, dtype: str) -> Buffer:
    """Make a buffer with `size` elements; like `scalar`, in place of `tirx.decl_buffer`."""
    return _BUFFER(name, _flat(size, dtype), None)


@cache
def _flat(size: int, dtype: str) -> Any:
    """Return the type of such buffers."""
    return tirx.decl_buffer((size,), dtype).ty


def for_range(var: Var, extent: Value, body: Stmt, kind: Any = tirx.ForKind.SERIAL) -> Stmt:
    """Build `for var in range(extent): body`."""
    return tirx.For(var, i32(0), i32(extent), kind, body)


def sequence(stmts: Sequence[Stmt]) -> Stmt:
    """Build a SeqStmt from `stmts`; return a single statement unchanged."""
    return _SEQUENCE(stmts, None) if len(stmts) > 1 else stmts[0]


def kernel_function(name: str, params: Sequence[Var], stmts: Sequence[Stmt]) -> PrimFunc:
    """Build a function that runs `stmts` and returns 0; pointers do not alias."""
    attrs = ir.make_node("ir.DictAttrs", **{"global_symbol": name, "tirx.noalias": True})
    body = _SEQUENCE([*stmts, tirx.Return(i32(0))], None)
    return _FUNCTION(list(params), body, _type("int32"), attrs, None)


def int_value(expr: Any) -> int | None:
    """Return an integer constant's value, None for anything else."""
    if isinstance(expr, int):
        return expr
    return int(expr.value) if type(expr) is tirx.IntImm else None


def is_if_then_else(expr: Any) -> bool:
    return isinstance(expr, ir.Call) and getattr(expr.op, "name", "") == IF_THEN_ELSE


def collect(node: Any, kind: type) -> list[Any]:
    """Collect all nodes of a kind in `node`, inner nodes first."""
    nodes: list[Any] = []
    tvm_ffi.structural_walk(node, (kind, nodes.append))
    return nodes


def loads(node: Any) -> list[Any]:
    return collect(node, ir.TensorLoad)


def uses(expr: Any, var: Var) -> bool:
    return any(v.same_as(var) for v in collect(expr, tirx.Var))


def substitute(node: Any, mapping: Mapping[Var, Expr]) -> Any:
    """Replace variables by expressions."""
    return tvm_ffi.structural_map(node, (tirx.Var, lambda v: mapping.get(v, v)))


def replace(node: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Rewrite every node of a kind, innermost first."""
    return tvm_ffi.structural_map(node, [(kind, change)], order="post")


def relocated(node: Any, target: Callable[[Buffer, list[Expr]], tuple[Buffer, list[Expr]] | None]) -> Any:
    """Redirect loads and stores to the buffer and indices that `target` returns; None leaves an access unchanged."""

    def load(access: Any) -> Any:
        at = target(access.source, list(access.indices))
        return access if at is None else tirx.BufferLoad(*at)

    def store(access: Any) -> Any:
        at = target(access.buffer, list(access.indices))
        return access if at is None else tirx.BufferStore(at[0], access.value, at[1])

    return tvm_ffi.structural_map(node, [(ir.TensorLoad, load), (tirx.BufferStore, store)], order="post")


def conjuncts(condition: Expr) -> list[Expr]:
    if isinstance(condition, tirx.And):
        return conjuncts(condition.a) + conjuncts(condition.b)
    return [condition]


def leaf_blocks(func: PrimFunc) -> list[Any]:
    """List a PrimFunc's storing blocks without inner blocks, in program order."""
    realizes: list[Any] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlockRealize, realizes.append), order="post")
    return [r for r in realizes if not collect(r.block.body, s_tir.SBlockRealize) and stores(r.block.body)]


def stores(node: Any) -> list[Any]:
    return collect(node, tirx.BufferStore)


def is_own(value: Any, store: Any) -> bool:
    """Test whether `value` is the element overwritten by the store."""
    if not isinstance(value, ir.TensorLoad) or not value.source.same_as(store.buffer):
        return False
    return all(tvm_ffi.structural_equal(a, b) for a, b in zip(value.indices, store.indices, strict=True))


def outputs_of(func: PrimFunc) -> tuple[Buffer, ...]:
    """List the parameters written by the function, in order."""
    written = {s.buffer for s in stores(func.body)}
    return tuple(p for p in elements(func.params) if p in written)


def without_blocks(func: PrimFunc, dropped: Sequence[Any], params: Sequence[Buffer]) -> PrimFunc | None:
    """Copy `func` with new parameters and without some blocks; None if no block would be left.

    Allocated buffers turned into parameters are no longer allocated.
    """

    def keeps(stmt: Stmt) -> bool:
        return not any(r.same_as(d) for r in collect(stmt, s_tir.SBlockRealize) for d in dropped)

    root = func.body.block
    rest = [s for s in getattr(root.body, "seq", [root.body]) if keeps(s)]
    if not rest:
        return None
    own = [b for b in root.alloc_buffers if not any(b.same_as(p) for p in params)]
    body = rest[0] if len(rest) == 1 else tirx.SeqStmt(rest)
    block = s_tir.SBlock([], [], [], root.name_hint, body, None, own, [], root.annotations)
    realize = s_tir.SBlockRealize([], func.body.predicate, block)
    return tirx.PrimFunc(list(params), realize, func.ret_type, attrs=func.attrs)
