"""TIR statements for kernels beyond TE: loops whose steps depend on earlier steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm_cascade.passes.integer.fixed_point import i32
from tvm_cascade.passes.integer.untyped import Function, Scalar, Value, ir, s_tir, tirx


def store(buffer: Value, index: Scalar | int, value: Scalar) -> Value:
    """Build `buffer[index] = value` for a one-axis buffer."""
    return tirx.BufferStore(buffer, value, [i32(index) if isinstance(index, int) else index])


def loop(name: str, extent: int, body: Callable[[Scalar], Value]) -> Value:
    """Build `body(i)` for every i below `extent`, in order."""
    var = tirx.Var(name, "int32")
    return tirx.For(var, i32(0), i32(extent), tirx.ForKind.SERIAL, body(var))


def sequence(*statements: Value) -> Value:
    """Build the statements in sequence."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def one_block(block: Value, loops: Sequence[tuple[Scalar, int]], params: Sequence[Value]) -> Function:
    """Build a PrimFunc over the buffers `params` that runs `block` for every index within its axes' extents: `loops`
    has both, the outermost first.
    """
    always = tirx.const(True, "bool")
    nest = s_tir.SBlockRealize([index for index, _ in loops], always, block)
    for index, extent in reversed(loops):
        nest = tirx.For(index, i32(0), i32(extent), tirx.ForKind.SERIAL, nest)
    root = s_tir.SBlockRealize([], always, s_tir.SBlock([], [], [], "root", nest, None, [], [], {}))
    attrs = ir.make_node("ir.DictAttrs", **{"tirx.noalias": True, "s_tir": True})
    return tirx.PrimFunc(list(params), root, ir.TupleType([]), attrs=attrs)
