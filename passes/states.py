"""States: what a network keeps from one call to the next, as operators of its graph.

A network with states is a pure function: its last parameters are the states as a call finds them, its last results the
states as it leaves them, pair by pair; the attribute `STATES_ATTR` of the function says how many. `with_states` ends each
pair with an operator that copies the result into the bytes of the parameter (`Op.target`), as soon as all that read the
state have run. So a state takes one block that lives from the first operator to the last (rfc/0016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm_cascade.graph import Tensor
from tvm_cascade.passes.relax_ops import Call, Source, copy_func
from tvm_cascade.passes.views import view_offsets
from tvm_cascade.schedules.tir import PrimFunc, te

STATES_ATTR = "cascade_states"  # of a Relax function: how many of its last parameters and results are states
ASSIGN = "assign_state"  # kind of the operator that writes a state


def state_count(mod: Any, function: str = "main") -> int:
    """How many states a function declares."""
    main = next((f for g, f in mod.functions.items() if g.name_hint == function), None)
    return int(dict(main.attrs or {}).get(STATES_ATTR, 0)) if main is not None else 0


def with_states(source: Source, count: int) -> Source:
    """`source` whose last `count` results are written into the last `count` inputs, from where the next call reads them."""
    if not count:
        return source
    made = _Assigned(source)
    inputs, values = source.inputs[-count:], source.outputs[-count:]
    own = [made.apart(t, inputs) for t in source.outputs[:-count]]
    kept = [made.apart(t, inputs) for t in values]
    states = tuple(made.assign(value, state) for value, state in zip(kept, inputs, strict=True))
    return Source(tuple(made.tensors), tuple(made.calls), source.inputs, (*own, *states))


class _Assigned:
    """The calls of a source, to which copies and assignments are added."""

    def __init__(self, source: Source) -> None:
        self.tensors, self.calls = list(source.tensors), list(source.calls)
        self.viewed: dict[int, int] = {}  # the tensor in whose bytes a view lies
        for call in source.calls:
            if not (call.constants or call.must_copy) and view_offsets(call.func, len(call.inputs)) is not None:
                self.viewed |= dict.fromkeys(call.outputs, call.inputs[0])

    def _root(self, tensor: int) -> int:
        while tensor in self.viewed:
            tensor = self.viewed[tensor]
        return tensor

    def apart(self, tensor: int, states: Sequence[int]) -> int:
        """`tensor`, or a copy of it where it lies in the bytes of a state, which are about to be overwritten."""
        if self._root(tensor) not in states:
            return tensor
        like = self.tensors[tensor]
        copied = self._tensor(f"{like.name}_copy", like)
        call = Call(f"{like.name}_copy", "copy", copy_func(like), (tensor,), (), (copied,), must_copy=True)
        self.calls.insert(self._after([tensor]), call)
        return copied

    def assign(self, value: int, state: int) -> int:
        """The tensor of `state` after a call that leaves `value` in it."""
        like = self.tensors[state]
        name = f"{like.name}_next"
        after = self._tensor(name, like)
        call = Call(name, ASSIGN, _assignment(like), (value, state), (), (after,), must_copy=True, target=1)
        readers = [k for k, c in enumerate(self.calls) if any(self._root(t) == state for t in c.inputs)]
        self.calls.insert(max(self._after([value]), *(k + 1 for k in readers), 0), call)
        return after

    def _after(self, tensors: Sequence[int]) -> int:
        """The first place behind the calls that write `tensors`."""
        return max((k + 1 for k, c in enumerate(self.calls) if set(c.outputs) & set(tensors)), default=0)

    def _tensor(self, name: str, like: Tensor) -> int:
        self.tensors.append(replace(like, index=len(self.tensors), name=name))
        return len(self.tensors) - 1


def _assignment(state: Tensor) -> PrimFunc:
    """A PrimFunc of (value, state, output) that copies the value; the output lies in the bytes of the state."""
    value, before = (te.placeholder(state.shape, state.dtype, name=name) for name in ("value", "state"))
    copied = te.compute(state.shape, lambda *i: value(*i), "after")
    return te.create_prim_func([value, before, copied], index_dtype_override="int32")
