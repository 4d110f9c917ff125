"""Intermediate values in the output: what a kernel keeps for every element of its output lies in the output's own bytes.

    before: for i: e[i] = exp(x[i] - top)         after: for i: y[i] = exp(x[i] - top)
            for i: total += e[i]                         for i: total += y[i]
            for i: y[i] = e[i] / total                   for i: y[i] = y[i] / total

Exact: the loop that writes the output reads of the intermediate buffer the very element that it writes, and nothing reads the
buffer afterwards. Softmax of floats then needs no scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.tir import Buffer, Expr, Stmt, i32, tirx, tvm_ffi
from tvm_cascade.schedules.tir.flatten import REGISTER_ELEMENTS


def in_outputs(body: Stmt, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
    """Return `body` with the allocated buffers that outputs can hold moved to them, as far as registers do not.

    No input is read behind the loop that fills such a buffer: an output may overwrite an input, element for element.
    """
    for buffer in [a.buffer for a in tir.collect(body, tirx.AllocBuffer)]:
        places = (_place(body, buffer, inputs, output) for output in outputs) if _is_large(buffer) else ()
        place = next((p for p in places if p is not None), None)
        if place is not None:
            body = _moved(body, buffer, place)
    return body


def _is_large(buffer: Buffer) -> bool:
    return prod(tir.shape_of(buffer)) > REGISTER_ELEMENTS


def _moved(body: Stmt, buffer: Buffer, place: Callable[[Buffer, list[Expr]], Any]) -> Stmt:
    """Redirect the accesses to a buffer, and drop its allocation."""

    def dropped(alloc: Any) -> Any:
        return tirx.Evaluate(i32(0)) if alloc.buffer.same_as(buffer) else alloc

    return tvm_ffi.structural_map(tir.relocated(body, place), (tirx.AllocBuffer, dropped))


@dataclass(frozen=True, slots=True)
class _Written:
    """The only store to a buffer: the statement's place, the loops around it, and the store."""

    at: int
    loops: tuple[Any, ...]
    store: Any


def _place(
    body: Stmt, buffer: Buffer, inputs: Sequence[Buffer], output: Buffer
) -> Callable[[Buffer, list[Expr]], Any] | None:
    """Return where the output holds the elements of `buffer`, for `relocated`; None if it cannot."""
    parts = list(_statements(body))
    first, last = _written(parts, buffer), _written(parts, output)
    same = tir.dtype_of(buffer) == tir.dtype_of(output) and len(tir.shape_of(buffer)) == len(tir.shape_of(output))
    if first is None or last is None or first.at >= last.at or not same or _reads(body, output):
        return None
    if any(_reads(part, x) for part in parts[first.at + 1 :] for x in inputs):
        return None
    fixed = _fixed(first, last, tir.shape_of(buffer), tir.shape_of(output))
    if fixed is None:
        return None

    def placed(indices: Sequence[Expr]) -> list[Expr]:
        return [fixed.get(axis, index) for axis, index in enumerate(indices)]

    ends = {axis for axis, index in enumerate(last.store.indices) if not _uses(index, last.loops)}
    for at, part in enumerate(parts):
        for load in _reads(part, buffer):
            own = (
                at < last.at
                and at > first.at
                and all(_equal(placed(load.indices)[a], last.store.indices[a]) for a in ends)
            )
            if not own and not (at == last.at and _all_equal(placed(load.indices), last.store.indices)):
                return None
    if len(_reads(parts[last.at], buffer)) != len(_reads(last.store.value, buffer)):
        return None
    return lambda of, indices: (output, placed(indices)) if of.same_as(buffer) else None


def _fixed(first: _Written, last: _Written, held: Sequence[int], whole: Sequence[int]) -> dict[int, Expr] | None:
    """Return the output's indices on axes of which the buffer holds one element; None unless both are written alike."""
    if [tir.int_value(f.extent) for f in first.loops] != [tir.int_value(f.extent) for f in last.loops]:
        return None
    renamed = {a.loop_var: b.loop_var for a, b in zip(first.loops, last.loops, strict=True)}
    fixed = dict[int, Expr]()
    for axis, (made, final) in enumerate(zip(first.store.indices, last.store.indices, strict=True)):
        if held[axis] == whole[axis] and _equal(tir.substitute(made, renamed), final):
            continue
        if held[axis] != 1 or _uses(final, last.loops):
            return None
        fixed[axis] = final
    return fixed


def _statements(body: Stmt) -> Iterator[Stmt]:
    """Yield the statements that run one after another."""
    if isinstance(body, tirx.SeqStmt):
        for statement in body.seq:
            yield from _statements(statement)
    else:
        yield body


def _written(parts: Sequence[Stmt], buffer: Buffer) -> _Written | None:
    """Return the only store to a buffer; None for several, or under a condition."""
    found = [(at, s) for at, part in enumerate(parts) for s in tir.stores(part) if s.buffer.same_as(buffer)]
    if len(found) != 1:
        return None
    at, store = found[0]
    loops, inner = list[Any](), parts[at]
    while isinstance(inner, tirx.For) and tir.int_value(inner.min) == 0:
        loops.append(inner)
        inner = inner.body
    return _Written(at, tuple(loops), store) if isinstance(inner, tirx.BufferStore) else None


def _reads(node: Any, buffer: Buffer) -> list[Any]:
    return [load for load in tir.loads(node) if load.source.same_as(buffer)]


def _uses(index: Expr, loops: Sequence[Any]) -> bool:
    return any(tir.uses(index, f.loop_var) for f in loops)


def _equal(one: Expr, other: Expr) -> bool:
    return bool(tvm_ffi.structural_equal(one, other))


def _all_equal(some: Sequence[Expr], others: Sequence[Expr]) -> bool:
    return all(_equal(a, b) for a, b in zip(some, others, strict=True))
