"""Requantize behind max pools, where other operators read the integers in front.

    before: q = quantize(dequantize(x))           after: p = nn.max_pool2d(x)
            m = nn.max_pool2d(q)                         m = quantize(dequantize(p))
            y = nn.conv2d(dequantize(x))                 y = nn.conv2d(dequantize(x))

Exact: a larger integer is never requantized to a smaller one, so the maximum may be taken first. The map is then stored by
one scale instead of two. PT2E observes a pool's input apart from those of other readers, so that their scales differ.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.passes.main_rewriting import Rewriting, Value, bindings_of, name_of, relax, shape_of
from tvm_cascade.passes.relax_functions import substitute

_POOL = "nn.max_pool2d"
_MOVES = {"reshape": relax.op.reshape, "permute_dims": relax.op.permute_dims}


def with_later_requantize(mod: Any) -> Any:
    """Return `mod` with the requantizes of `main` behind max pools; `mod` itself if none moves."""
    moving = _Moving(mod)
    return moving.run() if moving.requantizes else mod


class _Moving(Rewriting):
    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        bindings = bindings_of(self.main)
        values = [*(b.value for b in bindings), self.main.body.body]
        self.readers = Counter(v for value in values for v in relax.analysis.free_vars(value))
        self.calls = {b.value.args[0]: b for b in bindings if name_of(b.value) in (*_MOVES, _POOL)}
        self.requantizes = {b.var for b in bindings if self._moves(b)}
        # old integers behind a requantize -> the new ones in front of the requantize, and the requantize
        self.before: dict[Value, tuple[Value, Value]] = {}

    def _moves(self, binding: Any) -> bool:
        """Test that a requantize of integers that are read elsewhere leads, past moves, to a max pool alone."""
        written, reals = Stored.written_by(binding.value), self._read(binding.value)
        if written is None or reals is None or written.numbers is None or reals.numbers is None:
            return False
        shared = isinstance(reals.tensor, relax.Var) and self.readers[reals.tensor] > 1
        return shared and self.readers[binding.value.args[0]] == 1 and self._is_pooled(binding.var)

    def _read(self, quantize: Value) -> Stored | None:
        """Return the integers whose real numbers a quantize reads, if they are of the type that it makes."""
        if name_of(quantize) != "quantize":
            return None
        read = Stored.read_by(self._define(quantize.args[0]))
        return read if read is not None and read.tensor.ty.dtype == quantize.ty.dtype else None

    def _is_pooled(self, value: Value) -> bool:
        """Test that a max pool is the only reader of `value`, past moves."""
        behind = self.calls.get(value)
        if behind is None or self.readers[value] != 1:
            return False
        return name_of(behind.value) == _POOL or self._is_pooled(behind.var)

    def _bind(self, var: Value, value: Value) -> None:
        source = value.args[0] if isinstance(value, relax.Call) and value.args else None
        if var in self.requantizes:
            read = self._read(value)
            assert read is not None
            self.before[var] = substitute(read.tensor, self.renamed), value
        elif source in self.before:
            integers, requantize = self.before[source]
            if name_of(value) == _POOL:
                self.renamed[var] = self._requantized(
                    self.bb.emit(relax.Call(value.op, [integers], value.attrs)), requantize
                )
            else:
                self.before[var] = self._moved(value, integers), requantize
        elif self._is_move(value):
            self.renamed[var] = self._moved(value, substitute(source, self.renamed))
        else:
            self.renamed[var] = self.bb.emit(substitute(value, self.renamed))

    def _is_move(self, value: Value) -> bool:
        return name_of(value) in _MOVES and isinstance(value.args[0], relax.Var) and bool(shape_of(value))

    def _moved(self, call: Value, source: Value) -> Value:
        """Emit a reshape or permutation of `source`, once for all that read it."""
        name = name_of(call)
        if name == "permute_dims" and call.attrs.axes is None:
            return self._once(_MOVES[name], source, list(reversed(range(len(shape_of(call))))))
        numbers = shape_of(call) if name == "reshape" else [int(a) for a in call.attrs.axes]
        return self._once(_MOVES[name], source, numbers)

    def _requantized(self, integers: Value, quantize: Value) -> Value:
        read = self._read(quantize)
        assert read is not None
        reals = self.bb.emit(read.along(integers).reals)
        dtype = str(quantize.attrs.out_dtype)
        return self.bb.emit(relax.op.quantize(reals, *quantize.args[1:], axis=0, out_dtype=dtype))
