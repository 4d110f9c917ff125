"""Sums of int8 and of int8 products, in kernels without a performance schedule (an LSTM, a convolution of floats by
int8 weights), by instructions that add several terms at once.

A loop `s = s + x[i + a] * w[i + b]` or `s = s + x[i + a]` over all i below n becomes

- with MVE: sums of sixteen products an instruction, then of eight and of four, which are widened as they are loaded;
- with the DSP instructions: words of four elements, whose bytes are widened to pairs that `smlad` multiplies;

and a loop as before over the rest, three elements at most. Compilers would choose by n whether to make vectors of the
loop, with which length, and whether to write it out: a kernel's cost would follow from no rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.lanes import vector
from tvm_cascade.schedules.tir import Expr, PrimFunc, Stmt, Var, for_range, i32, ir, sequence, sym, tirx, tvm_ffi

_LANES = (16, 8, 4)  # products of an instruction with MVE: of bytes, or of bytes that are widened as they are loaded
_WORD = 4  # bytes
_ONES = 1 << 16 | 1  # a pair
_FITS = (1 << 15) - 129  # of offsets whose sums with bytes fit 16 bits


@dataclass(frozen=True)
class Factor:
    """int8 elements, of which the next iteration reads the next, plus a constant (less a zero point)."""

    load: Any
    offset: int

    @classmethod
    def of(cls, value: Any, var: Var) -> Factor | None:
        """Read a factor of a product in a loop over `var`; None for any other expression."""
        offset: int | None = 0
        if isinstance(value, (tirx.Add, tirx.Sub)):
            offset = tir.int_value(value.b)
            offset = -offset if offset is not None and isinstance(value, tirx.Sub) else offset
            value = value.a
        load: Any = value.value if isinstance(value, tirx.Cast) else None
        if offset is None or abs(offset) > _FITS or not isinstance(load, ir.TensorLoad):
            return None
        if tir.dtype_of(load) != "int8" or len(load.indices) != 1:
            return None
        linear: Any = sym.detect_linear_equation(load.indices[0], [var])
        steps = tir.int_value(sym.Analyzer().simplify(linear[0])) if len(linear) == 2 else None
        return cls(load, offset) if steps == 1 else None


@dataclass(frozen=True)
class DotProduct:
    """A loop that adds `count` products, or elements, to the element overwritten by `store`."""

    loop: Any
    store: Any
    count: int
    factors: tuple[Factor, ...]  # two, or one of a sum of elements

    @classmethod
    def of(cls, loop: Any) -> DotProduct | None:
        """Read a loop as such a sum; None for any other loop, and for too few products for an instruction."""
        count, store = tir.int_value(loop.extent), loop.body
        if count is None or count < _WORD or tir.int_value(loop.min) != 0 or not isinstance(store, tirx.BufferStore):
            return None
        if not isinstance(store.value, tirx.Add) or not tir.is_own(store.value.a, store):
            return None
        added = store.value.b
        if tir.dtype_of(added) != "int32":
            return None
        values = (added.a, added.b) if isinstance(added, tirx.Mul) else (added,)
        factors = tuple(f for value in values if (f := Factor.of(value, loop.loop_var)) is not None)
        return cls(loop, store, count, factors) if len(factors) == len(values) else None

    @property
    def plain(self) -> bool:
        """Return True if nothing is added to either factor."""
        return not any(f.offset for f in self.factors)

    def place(self, factor: Factor, i: Expr) -> Expr:
        """Return the index of a factor's element `i`."""
        return tir.substitute(factor.load.indices[0], {self.loop.loop_var: i})

    def added(self, total: Callable[[Expr], Expr]) -> Stmt:
        """Write the statement replacing the sum by `total(sum)`."""
        own = tirx.BufferLoad(self.store.buffer, self.store.indices)
        return tirx.BufferStore(self.store.buffer, total(own), self.store.indices)

    def each(self, passes: int, step: Callable[[Expr], Stmt], apart: int) -> Stmt:
        """Write `step(i)` for the first elements i of `passes` passes, `apart` elements apart."""
        if passes == 1:
            return step(i32(0))
        var = tirx.Var("ib", "int32")
        return for_range(var, passes, step(var * apart))

    def rest(self, done: int) -> list[Stmt]:
        """Write the loop over the products from element `done` on."""
        if done == self.count:
            return []
        var: Var = tirx.Var("i", "int32")
        return [for_range(var, self.count - done, tir.substitute(self.store, {self.loop.loop_var: var + done}))]


def _vectors(dot: DotProduct) -> list[Stmt]:
    """Write the sum with MVE: over plain bytes, or over values widened with the constant added."""
    stmts: list[Stmt] = []
    done = 0
    for lanes in _LANES if dot.plain else _LANES[1:]:
        if not (passes := (dot.count - done) // lanes):
            continue

        def step(i: Expr, lanes: int = lanes, done: int = done) -> Stmt:
            kind = f"int{128 // lanes}"
            loaded = (vector(f.load.source, dot.place(f, i + done), lanes) for f in dot.factors)
            x, *w = (
                v.astype(f"{kind}x{lanes}") + tirx.Broadcast(tirx.const(f.offset, kind), lanes)
                if f.offset
                else v.astype(f"{kind}x{lanes}")
                for v, f in zip(loaded, dot.factors, strict=True)
            )
            intrinsic = tirx.call_llvm_pure_intrin
            if w:
                return dot.added(lambda own: intrinsic("int32", "llvm.arm.mve.vmldava", 0, 0, 0, own, x, *w))
            return dot.added(lambda own: own + intrinsic("int32", "llvm.arm.mve.addv", x, 0))

        stmts.append(dot.each(passes, step, lanes))
        done += passes * lanes
    return [*stmts, *dot.rest(done)]


def _pairs(dot: DotProduct) -> list[Stmt]:
    """Write the sum with the DSP instructions."""

    def widened(factor: Factor, word: Var, turned: str) -> Expr:
        if not factor.offset:
            return call(f"sxtb16{turned}", word)
        low = factor.offset & 0xFFFF
        both = low << 16 | low
        return call(f"sxtab16{turned}", i32(both - (1 << 32) if both >> 31 else both), word)

    def step(i: Expr) -> Stmt:
        words = [tir.scalar(name, "int32") for name in ("xw", "ww")[: len(dot.factors)]]
        addresses = (tir.address_of(f.load.source[dot.place(f, i)]) for f in dot.factors)
        bound = [tirx.Bind(word, call("ld32", at)) for word, at in zip(words, addresses, strict=True)]
        pairs = [
            [widened(f, word, turned) for f, word in zip(dot.factors, words, strict=True)] for turned in ("", "_ror8")
        ]
        once = [] if len(dot.factors) > 1 else [i32(_ONES)]
        return sequence([*bound, *(dot.added(lambda own, p=pair: call("smlad", *p, *once, own)) for pair in pairs)])

    passes = dot.count // _WORD
    return [dot.each(passes, step, _WORD), *dot.rest(passes * _WORD)]


def with_dot_products(kernel: RowKernel, target: KernelTarget) -> RowKernel | None:
    """Rewrite a generic kernel's sums to the target's instructions; None without such a sum or instruction."""
    if not (target.vectors or target.dsp):
        return None
    func = _rewritten(kernel.func, target.vectors)
    name = "vectors" if target.vectors else "pairs"
    return None if func is None else replace(kernel, code=func, rule=f"dot_products.{name}")


@lru_cache(maxsize=512)  # candidates of a network share most of their kernels
def _rewritten(func: PrimFunc, vectors: bool) -> PrimFunc | None:
    """Rewrite a function's sums; None without sums."""
    found: list[DotProduct] = []

    def rewritten(loop: Any) -> Any:
        dot = DotProduct.of(loop)
        if dot is None:
            return loop
        found.append(dot)
        return sequence(_vectors(dot) if vectors else _pairs(dot))

    body = tvm_ffi.structural_map(func.body, (tirx.For, rewritten), order="post")
    return func.with_body(body) if found else None
