"""32-bit loop variables and indices for functions on 64-bit integers: `x[i] + 1` keeps the width, `i` loses it.

    before: for i: T.int64(10): out[i] = x[i] + i             after: for i: 10: out[i] = x[i] + Cast("int64", i)

TVM's own pass (`ForceNarrowIndexToInt32`) takes no function that reads or writes 64-bit integers. Comparisons between
loop variables and constants, such as padding's, are narrow too if no operand can exceed 32 bits.
"""

from __future__ import annotations

from typing import Any

import tvm

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.tir import Buffer, Expr, PrimFunc, Stmt, Var, i32, ir, s_tir, sym, tirx, tvm_ffi

_COMPARED = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
_COMPUTED = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max)
_LEAST, _MOST = -(2**31), 2**31 - 1


def narrow_indices(func: PrimFunc) -> PrimFunc:
    """Narrow loop variables, block axes, shapes and indices to int32; elements keep their types.

    Return the function unchanged if all loop variables are already int32.
    """
    if all(tir.dtype_of(f.loop_var) == "int32" for f in tir.collect(func.body, tirx.For)):
        return func
    if not any(tir.dtype_of(b) == "int64" for b in (*func.params, *_allocated(func))):
        return tirx.transform.ForceNarrowIndexToInt32()(tvm.IRModule({"main": func}))["main"]
    return _Narrowing().func(func)


def _allocated(func: PrimFunc) -> list[Buffer]:
    return [b for block in tir.collect(func.body, s_tir.SBlock) for b in block.alloc_buffers]


class _Narrowing:
    """The new loop variables, block axes and buffers of a function."""

    def __init__(self) -> None:
        self.vars: dict[Var, Var] = {}
        self.buffers: dict[Buffer, Buffer] = {}
        self.analyzer = sym.Analyzer()

    def func(self, func: PrimFunc) -> PrimFunc:
        params = [self.buffer(p) for p in func.params]
        return tirx.PrimFunc(params, self.mutated(func.body), func.ret_type, attrs=func.attrs)

    def mutated(self, node: Any) -> Any:
        handlers = [(tirx.For, self.loop), (s_tir.SBlockRealize, self.realize), (tirx.BufferStore, self.store)]
        handlers += [(ir.TensorLoad, self.load), (tirx.Var, lambda v, _: self.value_of(v))]
        return tvm_ffi.structural_mutate(node, [*handlers, *((kind, self.compared) for kind in _COMPARED)])

    def buffer(self, buffer: Buffer) -> Buffer:
        if buffer not in self.buffers:
            shape = [self.index(d) for d in buffer.shape]
            self.buffers[buffer] = tirx.decl_buffer(shape, tir.dtype_of(buffer), buffer.name)
        return self.buffers[buffer]

    def variable(self, var: Var, begin: Expr, extent: Expr) -> Var:
        self.vars[var] = made = tirx.Var(var.name, "int32")
        self.analyzer.bind(made, ir.Range.from_min_extent(begin, extent))
        return made

    def value_of(self, var: Var) -> Expr:
        """Return a variable's new value, cast to the variable's type."""
        made = self.vars.get(var)
        return self.buffers.get(var, var) if made is None else _as(made, tir.dtype_of(var))

    def loop(self, node: Any, _: Any) -> Stmt:
        begin, extent = self.index(node.min), self.index(node.extent)
        var = self.variable(node.loop_var, begin, extent)
        return tirx.For(var, begin, extent, node.kind, self.mutated(node.body), node.thread_binding, node.annotations)

    def realize(self, node: Any, _: Any) -> Stmt:
        block, axes = node.block, []
        values = [self.index(v) for v in node.iter_values]
        for axis in block.iter_vars:
            begin, extent = self.index(axis.dom.min), self.index(axis.dom.extent)
            var = self.variable(axis.var, begin, extent)
            axes.append(tirx.IterVar(ir.Range.from_min_extent(begin, extent), var, axis.iter_type))
        allocated = [self.buffer(b) for b in block.alloc_buffers]
        reads, writes = ([self.region(r) for r in regions] for regions in (block.reads, block.writes))
        init = None if block.init is None else self.mutated(block.init)
        body = self.mutated(block.body)
        made = s_tir.SBlock(axes, reads, writes, block.name_hint, body, init, allocated, [], block.annotations)
        return s_tir.SBlockRealize(values, self.mutated(node.predicate), made)

    def region(self, node: Any) -> Any:
        parts = [(self.index(r.min), self.index(r.extent)) for r in node.region]
        return tirx.BufferRegion(self.buffer(node.source), [ir.Range.from_min_extent(*part) for part in parts])

    def store(self, node: Any, _: Any) -> Stmt:
        places = [self.index(i) for i in node.indices]
        return tirx.BufferStore(self.buffer(node.buffer), self.mutated(node.value), places)

    def load(self, node: Any, _: Any) -> Expr:
        return tirx.BufferLoad(self.buffer(node.source), [self.index(i) for i in node.indices])

    def compared(self, node: Any, mutator: Any) -> Expr:
        sides = [self.index(side) for side in (node.a, node.b)] if self.is_position(node) else []
        return type(node)(*sides) if sides and all(map(self.fits, sides)) else mutator.default_mutate(node)

    def is_position(self, node: Any) -> bool:
        """Test that an expression consists of loop variables and constants alone."""
        known = (tirx.Var, tirx.IntImm, *_COMPUTED, *_COMPARED)
        return (
            tir.dtype_of(node.a) == "int64"
            and not tir.loads(node)
            and all(isinstance(n, known) for n in tir.collect(node, ir.Expr))
        )

    def fits(self, side: Expr) -> bool:
        parts = [side, *(p for kind in _COMPUTED for p in tir.collect(side, kind))]
        bounds = [self.analyzer.const_int_bound(p) for p in parts]
        return all(b.min_value >= _LEAST and b.max_value <= _MOST for b in bounds)

    def index(self, node: Any) -> Expr:
        """Convert an expression to an index: int32, with 64-bit loads cast."""
        if isinstance(node, tirx.Var) and node in self.vars:
            return self.vars[node]
        if isinstance(node, tirx.IntImm) and tir.dtype_of(node) != "bool":
            return i32(int(node))
        if isinstance(node, (*_COMPUTED, *_COMPARED, tirx.And, tirx.Or)):
            return type(node)(self.index(node.a), self.index(node.b))
        if isinstance(node, tirx.Not):
            return tirx.Not(self.index(node.a))
        if isinstance(node, tirx.Select):
            return tirx.Select(*map(self.index, (node.condition, node.true_value, node.false_value)))
        if isinstance(node, tirx.Cast) and tir.dtype_of(node) == "int64":
            return _as(self.mutated(node.value), "int32")
        made = self.mutated(node)
        return _as(made, "int32") if tir.dtype_of(made) == "int64" else made


def _as(value: Expr, dtype: str) -> Expr:
    return value if tir.dtype_of(value) == dtype else tirx.Cast(dtype, value)
