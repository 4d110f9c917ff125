"""`Rewriting`, the base class of rewrites of `main` by importers and layouts, and queries on Relax expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import tvm

from tvm_cascade.passes.integer.expressions import constant_of  # noqa: F401  for importers
from tvm_cascade.passes.integer.untyped import Value, relax
from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.passes.origin import NamingBuilder
from tvm_cascade.passes.relax_functions import substitute


def name_of(value: Value) -> str:
    """Return the operator's name of a call, without `relax.`; empty for anything else."""
    return str(getattr(value.op, "name", "")).removeprefix("relax.") if isinstance(value, relax.Call) else ""


def shape_of(value: Value) -> tuple[int, ...]:
    """Return the static shape of a tensor; empty for anything but a tensor of a known rank."""
    dims = getattr(getattr(value.ty, "shape", None), "values", None)
    return tuple(int(d) for d in dims) if dims is not None else ()


def window_of(attrs: Any, *names: str) -> dict[str, list[int]]:
    """Return the window attributes `names` (strides, padding, ...) as keyword arguments."""
    return {name: [int(v) for v in attrs[name]] for name in names}


def bindings_of(main: Any) -> list[Any]:
    """Return the bindings of a function, in order."""
    return [b for block in main.body.blocks for b in block.bindings]


def is_quantized(mod: Any) -> bool:
    """Return True if anything in `main` reads stored integers as real numbers."""
    return any(Stored.read_by(b.value) is not None for b in bindings_of(mod["main"]))


def elementwise(call: Value, source: Value, rest: Sequence[Value], axes: Mapping[int, int]) -> Value:
    """Build an elementwise call with `source` as the first operand; `axes` maps the old operand's axes to `source`'s."""
    if name_of(call) != "quantize":
        return relax.Call(call.op, [source, *rest], call.attrs)
    axis = axes[int(call.attrs.axis) % len(axes)]
    return relax.op.quantize(source, *rest, axis=axis, out_dtype=str(call.attrs.out_dtype))


class Rewriting:
    """Walks over the bindings of `main` and emits a new `main`. Subclasses define the treatment of a binding (`_bind`), mostly
    by a new value for the variable (`renamed`), and some the treatment of the returned value (`_returned`).
    """

    def __init__(self, mod: Any) -> None:
        self.main: Any = mod["main"]
        self.bb: Any = NamingBuilder(tvm.IRModule({g: f for g, f in mod.functions.items() if g.name_hint != "main"}))
        self.definitions: dict[Value, Value] = {b.var: b.value for b in bindings_of(self.main)}
        self.renamed: dict[Value, Value] = {}  # variables of the old function -> values of the new one
        self.stored: dict[Value, Stored] = {}  # real numbers of the new function -> the integers that stand for them
        self.moves: dict[tuple[Value, str, tuple[int, ...]], Value] = {}  # by value, operator, and its axes or shape

    def run(self, params: Sequence[Value] = ()) -> tvm.IRModule:
        """Return the module with the new `main`, without dead code. Attributes stay, and parameters too unless `params` are
        given.
        """
        attrs = {str(k): v for k, v in self.main.attrs.items() if str(k) != "global_symbol"} if self.main.attrs else {}
        with self.bb.function("main", list(params or self.main.params), attrs=attrs):
            with self.bb.dataflow():
                for binding in bindings_of(self.main):
                    self.bb.name = binding.var.name
                    self._bind(binding.var, binding.value)
                body = self.main.body.body
                self.bb.name = body.name if isinstance(body, relax.Var) else ""
                value = self.bb.emit_output(self._returned(body))
            self.bb.emit_func_output(value)
        return relax.transform.DeadCodeElimination()(self.bb.finalize())

    def _definition(self, value: Value) -> Value:
        """Return the expression bound to a variable of the new function; other values unchanged."""
        return self.bb.lookup_binding(value) if isinstance(value, relax.Var) else value

    def _define(self, value: Value) -> Value:
        """Return the expression bound to a variable of the old function, through aliases; other values unchanged."""
        while isinstance(value, relax.Var) and value in self.definitions:
            value = self.definitions[value]
        return value

    def _real(self, stored: Stored) -> Value:
        """Emit the real numbers of stored integers in the new function, and remember which integers they are."""
        made = self.bb.emit(stored.reals)
        self.stored[made] = stored
        return made

    def _once(self, move: Callable[[Value, list[int]], Value], value: Value, numbers: Sequence[int]) -> Value:
        """Emit `move(value, numbers)`, such as a reshape to a shape; return the one emitted before for the same value."""
        key = (value, move.__name__, tuple(numbers))
        if key not in self.moves:
            self.moves[key] = self.bb.emit(move(value, list(numbers)))
        return self.moves[key]

    def _bind(self, var: Value, value: Value) -> None:
        raise NotImplementedError

    def _returned(self, value: Value) -> Value:
        return substitute(value, self.renamed)


@contextmanager
def blocks_closed(builders: Sequence[Any]) -> Iterator[None]:
    """Close all open blocks of `builders` on an exception; TVM would print a warning for each."""
    try:
        yield
    except BaseException:
        for builder in builders:
            with suppress(Exception):  # says that none is open
                while True:
                    builder._end_block()
        raise
