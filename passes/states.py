"""States: tensors kept from one call to the next, as operators in the graph.

A network with states is a pure function: the last parameters are the states at the call's start, the last results the
states at the end, pair by pair; the function's attribute `STATES_ATTR` tells how many. `with_states` ends each pair
with an operator that copies the result into the parameter's bytes (`Op.target`), as soon as all readers of the state
have run. So a state takes one block that lives from the first operator to the last (rfc/0016). Rows that move up in a
state, and new rows behind, are written by a single pass over the state's bytes. An output equal to a state after a call
is read there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm_cascade.graph import ITEM_BYTES, Tensor
from tvm_cascade.passes.relax_ops import Call, Source, copy_func
from tvm_cascade.passes.views import view_offsets
from tvm_cascade.schedules.kernels.spec import Attributes, read_attributes, with_spec
from tvm_cascade.schedules.tir import PrimFunc, te, tirx

STATES_ATTR = "cascade_states"  # of a Relax function: how many of its last parameters and results are states
ASSIGN = "assign_state"  # kind of the operator that writes a state
_JOINS = ("concat", "concatenate")  # kinds of concatenations, of integers and of floats


def state_count(mod: Any, function: str = "main") -> int:
    """Return how many states a function declares."""
    main = next((f for g, f in mod.functions.items() if g.name_hint == function), None)
    return int(dict(main.attrs or {}).get(STATES_ATTR, 0)) if main is not None else 0


def with_states(source: Source, count: int) -> Source:
    """Write the last `count` results of `source` into the last `count` inputs, for the next call to read."""
    if not count:
        return source
    inputs, values = source.inputs[-count:], source.outputs[-count:]
    made = _Assigned(source, inputs)
    own = [t if t in values else made.apart(t, inputs) for t in source.outputs[:-count]]
    kept = [made.apart(t, inputs) for t in values]
    states = tuple(made.assign(value, state) for value, state in zip(kept, inputs, strict=True))
    own = [states[values.index(t)] if t in values else t for t in own]
    return _without_unused(Source(tuple(made.tensors), tuple(made.calls), source.inputs, (*own, *states)))


def _without_unused(source: Source) -> Source:
    """Remove tensors that nobody writes, and renumber the rest."""
    written = {*source.inputs, *(t for c in source.calls for t in c.outputs)}
    kept = [t for t in source.tensors if t.index in written]
    number = {t.index: k for k, t in enumerate(kept)}

    def renamed(tensors: Sequence[int]) -> tuple[int, ...]:
        return tuple(number[t] for t in tensors)

    calls = tuple(replace(c, inputs=renamed(c.inputs), outputs=renamed(c.outputs)) for c in source.calls)
    tensors = tuple(replace(t, index=k) for k, t in enumerate(kept))
    return Source(tensors, calls, renamed(source.inputs), renamed(source.outputs))


@dataclass(frozen=True, slots=True)
class _Run:
    """Elements of a tensor that go to a state contiguously."""

    tensor: int
    start: int
    count: int


class _Assigned:
    """The calls of a source, to which copies and assignments are added."""

    def __init__(self, source: Source, states: Sequence[int]) -> None:
        self.tensors, self.calls = list(source.tensors), list(source.calls)
        self.states = frozenset(states)
        self.instead: dict[int, int] = {}  # of a tensor that is made in a state's bytes alone: the state after
        self.viewed: dict[
            int, tuple[int, int]
        ] = {}  # of a view: the tensor in whose bytes it lies, and its first element
        for call in source.calls:
            offsets = None if call.constants or call.must_copy else view_offsets(call.func, len(call.inputs))
            for tensor, offset in zip(call.outputs, offsets or (), strict=False):
                self.viewed[tensor] = call.inputs[0], offset

    def root(self, tensor: int) -> tuple[int, int]:
        """Return the tensor that contains a tensor's bytes, and the first element there."""
        start = 0
        while tensor in self.viewed:
            tensor, offset = self.viewed[tensor]
            start += offset
        return tensor, start

    def _root(self, tensor: int) -> int:
        return self.root(tensor)[0]

    def apart(self, tensor: int, states: Sequence[int]) -> int:
        """Return `tensor`, or a copy if it lies in a state's bytes, which are about to be overwritten."""
        if self._root(tensor) not in states:
            return tensor
        like = self.tensors[tensor]
        copied = self._tensor(f"{like.name}_copy", like)
        call = Call(f"{like.name}_copy", "copy", copy_func(like), (tensor,), (), (copied,), must_copy=True)
        self.calls.insert(self._after([tensor]), call)
        return copied

    def assign(self, value: int, state: int) -> int:
        """Return the tensor of `state` after a call that leaves `value` there.

        A value concatenated from the state's own later elements and from other tensors is made in the state's bytes,
        and every reader reads it there, also another state, and the caller if it is an output. The same holds if the
        value has another shape than the concatenation.
        """
        like, value = self.tensors[state], self.instead.get(value, value)
        name = f"{like.name}_next"
        after, joined = self._tensor(name, like), self._whole(value)
        runs, seen = self._moved(joined, state), list[Call]()
        if runs is None:
            runs = [_Run(value, 0, prod(like.shape))]
        else:
            seen = self._forget(joined, value, state, after)
        given = tuple(dict.fromkeys(r.tensor for r in runs if r.tensor != state))
        func = _assignment([self.tensors[t] for t in given], like, [((*given, state).index(r.tensor), r) for r in runs])
        call = Call(name, ASSIGN, func, (*given, state), (), (after,), must_copy=True, target=len(given))
        readers = [k for k, c in enumerate(self.calls) if any(self._root(t) == state for t in c.inputs)]
        place = max(self._after(given), *(k + 1 for k in readers), 0)
        self.calls[place:place] = [call, *seen]
        return after

    def _whole(self, tensor: int) -> int:
        """Return the tensor with all bytes of a tensor: the tensor itself, unless a view of a whole tensor."""
        root, start = self.root(tensor)
        same = start == 0 and prod(self.tensors[root].shape) == prod(self.tensors[tensor].shape)
        return root if same else tensor

    def _moved(self, value: int, state: int) -> list[_Run] | None:
        """Return the parts concatenated to `value`, if it can be made in the state's bytes; else None.

        The parts must be later elements of the state and tensors apart from all states, and nobody may read the state
        after the first reader of `value`.
        """
        makers = [k for k, c in enumerate(self.calls) if value in c.outputs]
        if not makers or not _joins(self.calls[makers[0]], self.tensors):
            return None
        runs: list[_Run] = []
        for part in self.calls[makers[0]].inputs:
            root, start = self.root(part)
            own = root == state
            if (root in self.states and not own) or (own and start < sum(r.count for r in runs)):
                return None
            runs.append(_Run(*((state, start) if own else (part, 0)), prod(self.tensors[part].shape)))
        feeding = self._feeding(makers[0], state)
        others = [
            k for k, c in enumerate(self.calls) if k not in feeding and any(self._root(t) == state for t in c.inputs)
        ]
        readers = [k for k, c in enumerate(self.calls) if any(self._root(t) == value for t in c.inputs)]
        late = max(others, default=-1) > min(readers, default=len(self.calls))
        return None if late or all(r.tensor != state for r in runs) else runs

    def _feeding(self, maker: int, state: int) -> set[int]:
        """Return the call that makes a state's value, and the state's views nobody else reads."""
        found = {maker}
        for k in reversed(range(maker)):
            made = self.calls[k].outputs
            readers = {i for i, c in enumerate(self.calls) if set(made) & set(c.inputs)}
            if all(t in self.viewed and self._root(t) == state for t in made) and readers <= found:
                found.add(k)
        return found

    def _forget(self, joined: int, value: int, state: int, after: int) -> list[Call]:
        """Remove the calls that make `joined`, which is or contains `value`: readers read `after` instead.

        Return the calls that view `after` in `joined`'s shape.
        """
        self.instead[value] = after
        maker = next(k for k, c in enumerate(self.calls) if joined in c.outputs)
        gone = self._feeding(maker, state)
        calls = [c for k, c in enumerate(self.calls) if k not in gone]
        if joined == value:
            self.calls = _reading(calls, joined, after)
            self.viewed = {t: (after if source == joined else source, at) for t, (source, at) in self.viewed.items()}
            return []
        self.calls = _without_unread(_reading(calls, value, after), value)
        self.viewed[joined] = after, 0
        like = self.tensors[joined]
        return [Call(like.name, "reshape", _reshaped(self.tensors[after], like), (after,), (), (joined,))]

    def _after(self, tensors: Sequence[int]) -> int:
        """Return the first position behind the calls writing `tensors`."""
        return max((k + 1 for k, c in enumerate(self.calls) if set(c.outputs) & set(tensors)), default=0)

    def _tensor(self, name: str, like: Tensor) -> int:
        self.tensors.append(replace(like, index=len(self.tensors), name=name))
        return len(self.tensors) - 1


def _reading(calls: Sequence[Call], tensor: int, instead: int) -> list[Call]:
    """Copy calls with `tensor` replaced by another tensor in the inputs."""
    return [replace(c, inputs=tuple(instead if t == tensor else t for t in c.inputs)) for c in calls]


def _without_unread(calls: Sequence[Call], tensor: int) -> list[Call]:
    """Remove the call that makes the unread `tensor`, and all calls needed only for this."""
    kept, unread = list(calls), {tensor}
    while gone := [c for c in kept if set(c.outputs) <= unread]:
        kept = [c for c in kept if c not in gone]
        read = {t for c in kept for t in c.inputs}
        unread = {t for c in gone for t in c.inputs if t not in read}
    return kept


def _reshaped(tensor: Tensor, like: Tensor) -> PrimFunc:
    """Build a PrimFunc (tensor, output) for the tensor's elements in another shape."""
    value = te.placeholder(tensor.shape, tensor.dtype, name="value")

    def element(*index: Any) -> Any:
        return _element(value, _flat(index, like.shape))

    return te.create_prim_func([value, te.compute(like.shape, element, "shaped")], index_dtype_override="int32")


def _flat(index: Sequence[Any], shape: Sequence[int]) -> Any:
    """Return an element's position, counted through all axes."""
    at: Any = tirx.const(0, "int32")
    for i, extent in zip(index, shape, strict=True):
        at = at * extent + i
    return at


def _joins(call: Call, tensors: Sequence[Tensor]) -> bool:
    """Test that a call writes all inputs in sequence, unchanged."""
    given = read_attributes(call.func)
    if call.kind not in _JOINS or call.constants or set(given.table_of_input or (-1,)) != {-1} or given.axis is None:
        return False
    return prod(tensors[call.outputs[0]].shape[: given.axis]) == 1


def _assignment(given: Sequence[Tensor], state: Tensor, runs: Sequence[tuple[int, _Run]]) -> PrimFunc:
    """Build a PrimFunc (given..., state, output) that fills a new state with runs of elements, one behind another.

    A run is the source tensor's number, the state being the last, and the place there.
    """
    tensors = [te.placeholder(t.shape, t.dtype, name=f"value{k}") for k, t in enumerate((*given, state))]

    def element(*index: Any) -> Any:
        if len(runs) == 1:
            return tensors[0](*index)
        at = _flat(index, state.shape)
        made, end = None, prod(state.shape)
        for number, run in reversed(runs):
            first = end - run.count
            value = _element(tensors[number], at - first + run.start)
            made = value if made is None else tirx.if_then_else(at >= end, made, value)
            end = first
        return made

    after = te.compute(state.shape, element, "after")
    func = te.create_prim_func([*tensors, after], index_dtype_override="int32")
    item = ITEM_BYTES[state.dtype]
    told = [n for number, run in runs for n in (number, run.start * item, run.count * item)]
    return with_spec(func, ASSIGN, len(tensors), Attributes(runs=tuple(told)))


def _element(tensor: Any, at: Any) -> Any:
    """Return element `at` of a tensor, counted through all axes."""
    shape = [int(d) for d in tensor.shape]
    strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
    return tensor(*(tirx.floormod(tirx.floordiv(at, s), d) for s, d in zip(strides, shape, strict=True)))
