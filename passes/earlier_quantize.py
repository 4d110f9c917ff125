"""Quantize in front of extremes and concats, where the floats of their results are only quantized.

    before: a = nn.max_pool2d(x)                  after: b = quantize(x)
            c = quantize(a)                              c = nn.max_pool2d(b)

    before: a = concat((x, y))                    after: p = quantize(mean(x))
            c = quantize(mean(a))                        q = quantize(mean(y))
                                                         c = concat((p, q))

Exact: a larger number is never stored as a smaller integer, so the extreme of integers is that of the numbers; a reduction
that keeps the axis of a concat is one of each part. PT2E's quantizers leave such operators in floats: pools of one
dimension, means of what is joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.passes.main_rewriting import Rewriting, Value, bindings_of, constant_of, name_of, relax, shape_of
from tvm_cascade.passes.relax_functions import substitute

_EXTREMES = ("nn.max_pool2d", "max", "min")
_REDUCTIONS = ("mean", "sum", "max", "min")
_MOVES = ("reshape", "squeeze", "expand_dims", "flatten", "permute_dims")


def with_earlier_quantize(mod: Any) -> Any:
    """Return `mod` with the quantizes of `main` in front of extremes and concats; `mod` itself if none moves."""
    moving = _Moving(mod)
    return moving.run() if moving.quantizes else mod


class _Moving(Rewriting):
    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        values = (*(b.value for b in bindings_of(self.main)), self.main.body.body)
        self.readers = Counter(v for value in values for v in relax.analysis.free_vars(value))
        self.quantizes = {b.var for b in bindings_of(self.main) if self._moves(b.value)}

    def _moves(self, call: Value) -> bool:
        """Test that a quantize with one scale stands behind an extreme or concat that it may pass."""
        written = Stored.written_by(call)
        return written is not None and written.numbers is not None and self._passes(call.args[0])

    def _passes(self, value: Value) -> bool:
        """Test that an extreme, or a concat of anything but stored integers, computes a value that nothing else reads."""
        call = self._define(value)
        if not isinstance(value, relax.Var) or self.readers[value] != 1:
            return False
        if name_of(call) in _MOVES:
            return self._passes(call.args[0])
        if name_of(call) in _EXTREMES and not self._is_stored(call.args[0]):
            return True
        if self._parts_reduced(call) is not None:
            return True
        joined = name_of(call) == "concat" and isinstance(call.args[0], relax.Tuple)
        return joined and not all(self._is_stored(f) for f in call.args[0].fields)

    def _is_stored(self, value: Value) -> bool:
        """Test that moves alone make a value from a constant or from dequantized integers."""
        call = self._define(value)
        while name_of(call) in _MOVES:
            call = self._define(call.args[0])
        return constant_of(call) is not None or Stored.read_by(call) is not None

    def _parts_reduced(self, call: Value) -> tuple[Sequence[Value], int] | None:
        """Return the parts of the concat that a reduction reads, and their axis in its result; None for anything else."""
        if name_of(call) not in _REDUCTIONS or call.attrs.axis is None:
            return None
        joined = self._define(call.args[0])
        if name_of(joined) != "concat" or not isinstance(joined.args[0], relax.Tuple):
            return None
        rank = len(shape_of(joined))
        axis, reduced = int(joined.attrs.axis) % rank, {int(a) % rank for a in call.attrs.axis}
        if axis in reduced:
            return None
        before = 0 if call.attrs.keepdims else sum(a < axis for a in reduced)
        return joined.args[0].fields, axis - before

    def _bind(self, var: Value, value: Value) -> None:
        if var in self.quantizes:
            self.renamed[var] = self._stored(value.args[0], value)
        else:
            self.renamed[var] = self.bb.emit(substitute(value, self.renamed))

    def _stored(self, value: Value, quantize: Value) -> Value:
        """Emit the integers for a value in the old function, by `quantize`'s scale."""
        call = self._define(value)
        alone = isinstance(value, relax.Var) and self.readers[value] == 1
        if (name_of(call) in _MOVES and alone) or (name_of(call) in _EXTREMES and self._passes(value)):
            rest = [substitute(a, self.renamed) for a in call.args[1:]]
            return self.bb.emit(relax.Call(call.op, [self._stored(call.args[0], quantize), *rest], call.attrs))
        if (found := self._parts_reduced(call)) is not None:
            parts, axis = found
            made = [self.bb.emit(relax.Call(call.op, [substitute(p, self.renamed)], call.attrs)) for p in parts]
            return self.bb.emit(relax.op.concat([self._quantized(m, quantize) for m in made], axis=axis))
        if name_of(call) == "concat" and self._passes(value):
            parts = [self._quantized(substitute(p, self.renamed), quantize) for p in call.args[0].fields]
            return self.bb.emit(relax.op.concat(parts, axis=int(call.attrs.axis)))
        return self._quantized(substitute(value, self.renamed), quantize)

    def _quantized(self, value: Value, quantize: Value) -> Value:
        axis = min(int(quantize.attrs.axis), len(shape_of(value)) - 1)
        dtype = str(quantize.attrs.out_dtype)
        return self.bb.emit(relax.op.quantize(value, *quantize.args[1:], axis=axis, out_dtype=dtype))
