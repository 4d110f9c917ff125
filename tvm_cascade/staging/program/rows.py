"""Proof that a network computes every row of a batch by itself, in the same way for every row and every batch.

A folder for several batches pads an input to the next program's batch. That is exact if the network has independent rows:
row n of each output depends on row n of the inputs alone, by a function that is the same for all n and for all batches.

The proof is about the loops that Relax operators are legalized to, for no operator by name. A buffer is *batched* if it is
an input with rows or computed from one; its first extent above 1 is then a multiple of the batch, and index // (extent /
batch) is the row. For every store to a batched buffer three things are proven with TVM's analyzer:

* some loop shifts the store from row to row: v -> v + k moves the stored place by one row;
* all batched loads behind it are of the row that is stored;
* shifted by a row, the stored value is the same expression: batched loads one row on, all others and all conditions as
  they were.

What remains of a store without the row is a text (`row_function`): programs for two batches have the same rows if all their
texts and constants are equal. What cannot be proven is refused.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm

from tvm_cascade.errors import GraphError
from tvm_cascade.passes.casts import saturates
from tvm_cascade.passes.legalizations import legalizations
from tvm_cascade.passes.relax_functions import bindings_of
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.tir import ir, relax, s_tir, sym, tirx, tvm_ffi
from tvm_cascade.staging.program.graph import StageGraph

Conditions = tuple[Any, ...]


class _Unproven(Exception):
    """A reason for which rows may depend on one another."""


def row_function(net: StageGraph, batch: int, batched: Collection[int]) -> tuple[str, ...]:
    """Prove that rows of a network are independent, and return what is computed for a row as texts, in order.

    `batch`: rows of the inputs with the numbers `batched`; 1 proves nothing, and has the same texts. Raises `GraphError`
    with the operator that cannot be proven to be independent.
    """
    if batch > 1 and not batched:
        raise GraphError("no input has rows")
    legal = relax.transform.LegalizeOps(legalizations(saturates(net.mod)))(net.mod)
    main = legal["main"]
    classes: dict[Any, Any] = {p: k in batched for k, p in enumerate(main.params)}
    numbers: dict[Any, int] = {p: k for k, p in enumerate(main.params)}
    texts: list[str] = []
    for binding in bindings_of(main):
        try:
            classes[binding.var] = _value(binding.value, classes, legal, batch, texts)
            texts.append(f"%{len(numbers)} of {_read(binding.value, numbers)}")
            numbers[binding.var] = len(numbers)
        except _Unproven as error:
            raise GraphError(f"{binding.var.name}: {error}") from None
    result = _flat(_class_of(main.body.body, classes, texts))
    if not all(result):
        raise GraphError("an output does not depend on the batch")
    return (*texts, f"results {_read(main.body.body, numbers)}")


def require_same_rows(functions: Mapping[int, Sequence[str]]) -> None:
    """Raise `GraphError` unless `row_function` gives the same texts for all batches."""
    (first, one), *others = functions.items()
    for batch, texts in others:
        if list(one) != list(texts):
            raise GraphError(f"its programs for batches of {first} and {batch} compute rows in different ways")


def _read(value: Any, numbers: Mapping[Any, int]) -> list[str]:
    """Name the values that a binding reads, in order, with the numbers of tuples' members."""
    if isinstance(value, relax.Var):
        return [f"%{numbers[value]}"]
    if isinstance(value, relax.TupleGetItem):
        return [f"{_read(value.tuple_value, numbers)}[{int(value.index)}]"]
    parts = value.fields if isinstance(value, relax.Tuple) else getattr(value, "args", ())
    return [name for part in parts for name in _read(part, numbers)]


def _flat(value: Any) -> list[bool]:
    return [one for part in value for one in _flat(part)] if isinstance(value, tuple) else [bool(value)]


def _class_of(expr: Any, classes: Mapping[Any, Any], texts: list[str]) -> Any:
    """Return whether an argument is batched; of a tuple, for each member. Constants are told in `texts`."""
    if isinstance(expr, relax.Var):
        return classes[expr]
    if isinstance(expr, relax.Tuple):
        return tuple(_class_of(e, classes, texts) for e in expr.fields)
    if isinstance(expr, relax.TupleGetItem):
        return _class_of(expr.tuple_value, classes, texts)[int(expr.index)]
    if hasattr(expr, "value") and hasattr(expr.value, "numpy"):
        array = np.ascontiguousarray(expr.value.numpy())
        texts.append(f"constant {array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}")
        return False
    raise _Unproven(f"an argument {type(expr).__name__} is not read")


def _value(value: Any, classes: Mapping[Any, Any], mod: tvm.IRModule, batch: int, texts: list[str]) -> Any:
    """Return whether a binding's value is batched, proven for a call."""
    if not isinstance(value, ir.Call):
        return _class_of(value, classes, texts)
    name = getattr(value.op, "name", "")
    if name != "relax.call_tir":
        raise _Unproven(f"{name.removeprefix('relax.') or 'a call'} is no loops over values")
    given = _class_of(value.args[1], classes, texts)
    func = mod[value.args[0]]
    outputs = func.params[len(given) :]
    if len(value.args) > 2 or not all(hasattr(p.ty, "shape") for p in func.params):
        raise _Unproven("it has symbolic arguments")
    proven = _Function(func, dict(zip(func.params, given, strict=False)), batch)
    texts += proven.texts()
    made = tuple(proven.batched[p] for p in outputs)
    return made if isinstance(value.ty, relax.TupleType) else made[0]


@dataclass(frozen=True)
class _Store:
    """A store with the loops around: each variable's extent, from 0."""

    buffer: Any
    indices: tuple[Any, ...]
    value: Any
    loops: tuple[tuple[Any, int], ...]
    conditions: Conditions


@dataclass
class _Function:
    """The loops of a PrimFunc. `given`: which of the parameters that are read are batched."""

    func: Any
    given: Mapping[Any, bool]
    batch: int
    batched: dict[Any, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stores = list(_stores(self.func.body, (), ()))
        self.batched = dict.fromkeys([*(s.buffer for s in self.stores), *self.func.params], False) | dict(self.given)
        changed = True
        while changed:  # what is computed from a batched buffer is batched
            changed = False
            for store in self.stores:
                if not self.batched[store.buffer] and any(self.batched[r.source] for r in _loads(store)):
                    self.batched[store.buffer] = changed = True
        for buffer in [b for b, known in self.batched.items() if not known and b not in self.given]:
            self._repeat(buffer)

    def _repeat(self, buffer: Any) -> None:
        """Make a buffer batched that holds the same for every row, such as a token repeated for each of them."""
        self.batched[buffer] = True
        try:
            for store in self.stores:
                if store.buffer.same_as(buffer):
                    self._row(store)
        except _Unproven:
            self.batched[buffer] = False

    def texts(self) -> list[str]:
        """Return a text for every store, proven to be the same for each row."""
        stores = [self._row(s) if self.batched[s.buffer] else self._text(s, None, 0, 0) for s in self.stores]
        return [str([f"{tir.dtype_of(b)}{self._shape(b)}" for b in self.batched]), *stores]

    def _row(self, store: _Store) -> str:
        if self.batch == 1:
            return self._text(store, None, 0, 0)
        own, place = self._row_of(store.buffer, store.indices)
        analyzer = _bound(store.loops)
        for load in _loads(store):
            if self.batched[load.source]:
                row, _ = self._row_of(load.source, load.indices)
                if not analyzer.can_prove_equal(row, own):
                    raise _Unproven(f"a row reads {load}, which may be of another row")
        for var, extent in store.loops:
            step = extent // self.batch
            if extent % self.batch or not tir.uses(store.indices[place], var):
                continue
            if self._shifts(store, place, var, extent, step):
                return self._text(store, var, step, step)
        raise _Unproven("rows are not computed in the same way")

    def _shifts(self, store: _Store, place: int, var: Any, extent: int, step: int) -> bool:
        """Return True if the store for `var + step` is the store for `var`, one row on."""
        most = extent - step
        size = tir.shape_of(store.buffer)[place] // self.batch
        analyzer = _bound([(v, most if v.same_as(var) else e) for v, e in store.loops])
        index = store.indices[place]
        moved = _with(index, var, step)
        if not analyzer.can_prove_equal(moved, index + tirx.const(size, str(tir.dtype_of(index)))):
            return False
        return self._text(store, var, most, 0) == self._text(store, var, most, 0, step)

    def _text(self, store: _Store, var: Any, most: int, extent: int, step: int = 0) -> str:
        """Format a store, in which `var` is below `most` and shifted by `step`, relative to the row it has shifted by.

        Loops are named by their number; `extent` is what the text says of the extent of `var`.
        """
        names = {v: tirx.Var(f"v{k}", tir.dtype_of(v)) for k, (v, _) in enumerate(store.loops)}
        loops = [(names[v], most if var is not None and v.same_as(var) else e) for v, e in store.loops]
        analyzer, seen = _bound(loops), dict[str, Any]()
        rows = 1 if step else 0

        def renamed(expr: Any) -> Any:
            shifted = expr if var is None or not step else _with(expr, var, step)
            return tvm_ffi.structural_map(shifted, (tirx.Var, lambda v: names.get(v, v)))

        def place(buffer: Any, indices: Sequence[Any]) -> str:
            made = [analyzer.simplify(i) for i in indices]
            if rows and self.batched[buffer]:
                at = self._row_of(buffer, indices)[1]
                size = tir.shape_of(buffer)[at] // self.batch
                made[at] = analyzer.simplify(made[at] - tirx.const(rows * size, str(tir.dtype_of(made[at]))))
            return f"{self._number(buffer)}{[str(i) for i in made]}"

        def loaded(load: Any) -> Any:
            key = place(load.source, list(load.indices))
            return seen.setdefault(key, tirx.Var(f"load{len(seen)}", tir.dtype_of(load.source)))

        def plain(expr: Any) -> str:
            value = tvm_ffi.structural_map(renamed(expr), (ir.TensorLoad, loaded), order="post")
            known = [*names.values(), *seen.values()]
            if not all(any(v.same_as(k) for k in known) for v in tir.collect(value, tirx.Var)):
                raise _Unproven("it reads memory by address")
            if any("packed" in str(call.op) or "extern" in str(call.op) for call in tir.collect(value, ir.Call)):
                raise _Unproven("it calls a function that is not known")
            return str(analyzer.simplify(value))

        stored = place(store.buffer, [renamed(i) for i in store.indices])
        parts = [plain(c) for c in store.conditions] + [plain(store.value)]
        told = [extent if var is not None and v.same_as(var) else e for v, e in store.loops]
        return f"{told} {stored} = {parts} of {list(seen)}"

    def _shape(self, buffer: Any) -> list[int]:
        """Return a buffer's shape, of a batched one that of a row."""
        shape = list(tir.shape_of(buffer))
        axis = next((k for k, d in enumerate(shape) if d > 1), None)
        if self.batched[buffer] and self.batch > 1 and axis is not None:
            shape[axis] //= self.batch
        return shape

    def _number(self, buffer: Any) -> int:
        return next(k for k, b in enumerate(self.batched) if b.same_as(buffer))

    def _row_of(self, buffer: Any, indices: Sequence[Any]) -> tuple[Any, int]:
        """Return the row of an access, and the axis that has the rows. Accesses are within bounds where they are made."""
        shape = tir.shape_of(buffer)
        axis = next((k for k, d in enumerate(shape) if d > 1), None)
        if axis is None or shape[axis] % self.batch:
            raise _Unproven(f"a tensor of shape {list(shape)} has no rows for a batch of {self.batch} in front")
        index = indices[axis]
        return tirx.floordiv(index, tirx.const(shape[axis] // self.batch, str(tir.dtype_of(index)))), axis


def _bound(loops: Sequence[tuple[Any, int]]) -> Any:
    analyzer = sym.Analyzer()
    for var, extent in loops:
        dtype = str(tir.dtype_of(var))
        analyzer.bind(var, tvm.ir.Range(tirx.const(0, dtype), tirx.const(max(extent, 1), dtype)))
    return analyzer


def _with(expr: Any, var: Any, step: int) -> Any:
    """Return the expression with `var + step` for `var`."""
    more = var + tirx.const(step, str(tir.dtype_of(var)))
    return tvm_ffi.structural_map(expr, (tirx.Var, lambda v: more if v.same_as(var) else v))


def _loads(store: _Store) -> list[Any]:
    """List all loads behind a store, those in indices and conditions included."""
    return [
        load for expr in (*store.indices, store.value, *store.conditions) for load in tir.collect(expr, ir.TensorLoad)
    ]


def _stores(stmt: Any, loops: tuple[tuple[Any, int], ...], conditions: Conditions) -> Iterator[_Store]:
    """List the stores of a statement in order, with loops and conditions around. Raises `_Unproven` for other statements."""
    if isinstance(stmt, tirx.SeqStmt):
        for part in stmt.seq:
            yield from _stores(part, loops, conditions)
    elif isinstance(stmt, tirx.For):
        yield from _stores(stmt.body, (*loops, _loop(stmt.loop_var, stmt.min, stmt.extent)), conditions)
    elif isinstance(stmt, tirx.IfThenElse):
        yield from _stores(stmt.then_case, loops, (*conditions, stmt.condition))
        if stmt.else_case is not None:
            yield from _stores(stmt.else_case, loops, (*conditions, tirx.Not(stmt.condition)))
    elif isinstance(stmt, s_tir.SBlockRealize):
        block = stmt.block
        if block.match_buffers or tir.int_value(stmt.predicate) != 1:
            raise _Unproven("its loops have parts of buffers, or conditions")
        own = tuple(_loop(i.var, i.dom.min, i.dom.extent) for i in block.iter_vars)
        inner = (*_unbound(loops, own, stmt.iter_values), *own)
        if block.init is not None:
            yield from _stores(block.init, inner, conditions)
        yield from _stores(block.body, inner, conditions)
    elif isinstance(stmt, tirx.BufferStore):
        yield _Store(stmt.buffer, tuple(stmt.indices), stmt.value, loops, conditions)
    else:
        raise _Unproven(f"its loops hold a statement {type(stmt).__name__}")


def _unbound(
    loops: Sequence[tuple[Any, int]], own: Sequence[tuple[Any, int]], values: Sequence[Any]
) -> list[tuple[Any, int]]:
    """Return the loops that a block's variables do not stand for: each is a loop of the same extent, or 0."""
    left = list(loops)
    for (_, extent), value in zip(own, values, strict=True):
        at = next((k for k, (var, size) in enumerate(left) if var.same_as(value) and size == extent), None)
        if at is not None:
            del left[at]
        elif extent != 1 or tir.int_value(value) != 0:
            raise _Unproven("a block's variables are no loops")
    return left


def _loop(var: Any, least: Any, extent: Any) -> tuple[Any, int]:
    size = tir.int_value(extent)
    if tir.int_value(least) != 0 or size is None:
        raise _Unproven("a loop's bounds are computed")
    return var, size
