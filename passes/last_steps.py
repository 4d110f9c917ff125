"""Keep the last step alone of the result of a scan (`schedules.kernels.scan`) or a recurrent layer (`passes.recurrent`)
where nothing reads another step.

rewrite: `ys = scan(...)  # [steps, ...]`, `y = ys[-1]` --> `y = scan(...)  # [...]`

Steps that a file writes out itself are parts of a concatenation, of which the last part alone is then read.

Operators that move elements may stand in between (slices, splits, takes, reshapes, transposes), and quantizations by one
scale. They are evaluated on the numbers of the result's elements, which tell the step of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import tvm

from tvm_cascade.passes.integer.expressions import constant_of
from tvm_cascade.passes.main_rewriting import Rewriting, Value, bindings_of, name_of, relax, shape_of
from tvm_cascade.passes.recurrent.last_step import keeping_last_step, steps_of
from tvm_cascade.passes.relax_functions import substitute
from tvm_cascade.passes.scan_operator import keeping_last
from tvm_cascade.schedules.kernels.scan import scan_of

_SHAPES = ("reshape", "expand_dims", "squeeze", "flatten")
_CONVERSIONS = ("quantize", "dequantize")


def with_last_steps(mod: Any) -> tvm.IRModule:
    """Return the module whose scans and recurrent layers keep no result of which the last step's part alone is read."""
    functions = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    written_out = any(name_of(b.value) == "concat" for b in bindings_of(mod["main"]))
    if not written_out and not any(scan_of(f) is not None or steps_of(f) is not None for f in functions):
        return mod
    reads = _Reads(mod)
    return _Writer(mod, reads).run() if reads.kept else mod


@dataclass(frozen=True, slots=True)
class _Moved:
    """A variable whose elements are moved ones of a scan's result."""

    result: Value  # the variable of the result
    elements: np.ndarray  # numbers of the result's elements, in the variable's shape
    conversions: tuple[Value, ...] = ()  # quantizations and dequantizations in between, in order


class _Stacked(NamedTuple):
    """A result of all steps."""

    output: int  # of the call
    result: int  # of the scan; 0 of a recurrent layer
    axis: int  # of the steps
    backward: bool  # whether the first step is made last


def _stacked(func: Any) -> list[_Stacked]:
    """List what all steps of a scan or a recurrent layer return."""
    steps, scan = steps_of(func), scan_of(func)
    if steps is not None:
        return [_Stacked(0, 0, *steps)]
    results = [] if scan is None else [(k, which - scan.states) for k, which in enumerate(scan.outputs)]
    return [
        _Stacked(k, r, 0, scan.is_backward(scan.sequences + r))
        for k, r in results
        if scan is not None and r >= 0 and scan.stacked[r] == "1"
    ]


class _Reads:
    """The results of scans and recurrent layers whose last step alone is read."""

    def __init__(self, mod: Any) -> None:
        self.mod = mod
        bindings = bindings_of(mod["main"])
        self.values: dict[Value, Value] = {b.var: b.value for b in bindings}
        self.kept: dict[Value, tuple[int, ...]] = {}  # by variable of a call: those results
        self.ends: dict[Value, _Moved | None] = {}  # variables that hold the last step; None: others in between
        self.users: dict[Value, list[Value]] = {}
        for b in bindings:
            for v in relax.analysis.free_vars(b.value):
                self.users.setdefault(v, []).append(b.var)
        self.returned = set(relax.analysis.free_vars(mod["main"].body.body))
        for b in bindings:
            if name_of(b.value) == "concat":
                self._look_at_parts(b.var, b.value)
            elif name_of(b.value) == "call_tir":
                self._look(b.var, _stacked(mod[b.value.args[0]]), len(getattr(b.var.ty, "fields", [b.var.ty])))

    def _look(self, call: Value, stacked: Sequence[_Stacked], outputs: int) -> None:
        """Find those of a call's stacked results."""
        users = self.users.get(call, [])
        if outputs > 1 and (call in self.returned or not all(self._is_part(u) for u in users)):
            return
        for k, result, axis, backward in stacked:
            ends = dict[Value, _Moved | None]()
            for var in [call] if outputs == 1 else [u for u in users if self.values[u].index == k]:
                every = np.arange(np.prod(shape_of(var)), dtype="int64").reshape(shape_of(var))
                last = every.take(0 if backward else -1, axis).ravel()
                if every.size == last.size or not self._end(var, _Moved(var, every), last, ends):
                    break  # of one step nothing is left out
            else:
                self.kept[call] = (*self.kept.get(call, ()), result)
                self.ends |= ends

    def _look_at_parts(self, var: Value, concat: Value) -> None:
        """Add a concatenation of which the last part alone is read."""
        if not isinstance(concat.args[0], relax.Tuple) or not shape_of(var):
            return
        axis, last = int(concat.attrs.axis) % len(shape_of(var)), concat.args[0].fields[-1]
        every, ends = (
            np.arange(np.prod(shape_of(var)), dtype="int64").reshape(shape_of(var)),
            dict[Value, _Moved | None](),
        )
        rows = range(shape_of(var)[axis] - shape_of(last)[axis], shape_of(var)[axis])
        if len(concat.args[0].fields) > 1 and self._end(var, _Moved(var, every), every.take(rows, axis).ravel(), ends):
            self.kept[var] = ()
            self.ends |= ends

    def _is_part(self, var: Value) -> bool:
        return isinstance(self.values[var], relax.TupleGetItem)

    def _end(self, var: Value, moved: _Moved, last: np.ndarray, ends: dict[Value, _Moved | None]) -> bool:
        """Add the variables made of `var` that hold the last step; return False where another step is read."""
        if np.array_equal(moved.elements.ravel(), last):
            ends[var] = moved
            return True
        if var is not moved.result:
            ends[var] = None
        return var not in self.returned and all(
            made is not None and self._end(user, made, last, ends) for user, made in self._made(var, moved, ends)
        )

    def _made(
        self, var: Value, moved: _Moved, ends: dict[Value, _Moved | None]
    ) -> Iterator[tuple[Value, _Moved | None]]:
        """Yield the variables computed directly from `var`, each with the elements moved into it; None if more than a
        move is computed.
        """
        for user in self.users.get(var, []):
            value, elements = self.values[user], moved.elements
            if name_of(value) == "split":
                sections, axis = value.attrs.indices_or_sections, int(value.attrs.axis)
                sections = int(sections) if isinstance(sections, int) else [int(n) for n in sections]
                parts = np.split(elements, sections, axis)
                ends[user] = None
                for part in self.users.get(user, []):
                    yield part, replace(moved, elements=parts[self.values[part].index]) if self._is_part(part) else None
            elif name_of(value) in _CONVERSIONS:
                by_one = [c is not None and c.size == 1 for c in map(constant_of, value.args[1:])]
                yield user, replace(moved, conversions=(*moved.conversions, value)) if all(by_one) else None
            else:
                elements = elements if isinstance(value, relax.Var) else _moved(value, elements, shape_of(user))
                yield user, None if elements is None else replace(moved, elements=elements)


def _moved(value: Value, elements: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the elements of a call that moves its first operand's; None for other calls."""
    kind = name_of(value)
    if kind in _SHAPES:
        return elements.reshape(shape)
    if kind == "permute_dims":
        axes = value.attrs.axes
        return elements.transpose(None if axes is None else [int(a) for a in axes])
    if kind == "take":
        index, axis = constant_of(value.args[1]), value.attrs.axis
        return None if index is None or axis is None else elements.take(index, int(axis), mode="wrap")
    if kind == "strided_slice":
        axes, begin, end, *rest = ([int(n.value) for n in some.fields] for some in value.args[1:])
        where = [slice(None)] * elements.ndim
        for k, axis in enumerate(axes):
            where[axis] = slice(begin[k], end[k], rest[0][k] if rest else None)
        made = elements[tuple(where)]
        return made if made.shape == shape else None
    return None


class _Writer(Rewriting):
    """Writer of the module whose scans keep last steps."""

    def __init__(self, mod: Any, reads: _Reads) -> None:
        super().__init__(mod)
        self.mod, self.reads = mod, reads

    def _bind(self, var: Value, value: Value) -> None:
        if var in self.reads.ends:
            moved = self.reads.ends[var]
            if moved is not None:
                self.renamed[var] = self._last(moved, shape_of(var))
            return
        source: Any = value.tuple_value if isinstance(value, relax.TupleGetItem) else None
        if var in self.reads.kept and name_of(value) == "concat":
            self.renamed[var] = substitute(value.args[0].fields[-1], self.renamed)
            return
        if var in self.reads.kept:
            value = self._called(self.reads.kept[var], value)
        elif source in self.reads.kept:
            value = relax.TupleGetItem(self.renamed[source], value.index)
        else:
            value = substitute(value, self.renamed)
        self.renamed[var] = self.bb.emit(value)

    def _called(self, results: tuple[int, ...], value: Value) -> Value:
        """Return the call of a scan or a recurrent layer that keeps the last step of `results`."""
        func, types = self.mod[value.args[0]], list(getattr(value.ty, "fields", [value.ty]))
        if (steps := steps_of(func)) is not None:
            shape = [1 if k == steps[0] else d for k, d in enumerate(int(n) for n in types[0].shape.values)]
            types[0] = relax.TensorType(shape, str(types[0].dtype))
            called = self.bb.add_func(keeping_last_step(func), str(func.attrs["op_kind"]))
            return relax.call_tir(
                called, substitute(value.args[1], self.renamed), types if len(types) > 1 else types[0]
            )
        scan = func.attrs["scan"]
        for k, which in enumerate(scan.outputs):
            if which - scan.states in results:
                types[k] = relax.TensorType([int(d) for d in types[k].shape.values[1:]], str(types[k].dtype))
        called = self.bb.add_func(keeping_last(func, results), "scan")
        return relax.call_tir(called, substitute(value.args[1], self.renamed), types if len(types) > 1 else types[0])

    def _last(self, moved: _Moved, shape: tuple[int, ...]) -> Value:
        """Emit the last step's part of a result, converted, in a shape."""
        made = self.renamed[moved.result]
        for value in moved.conversions:
            call = relax.op.quantize if name_of(value) == "quantize" else relax.op.dequantize
            made = self.bb.emit(call(made, *value.args[1:], out_dtype=str(value.attrs.out_dtype)))
        return self.bb.emit(relax.op.reshape(made, list(shape)))
