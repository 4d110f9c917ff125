"""Let states hold the rows that a call reads, the new ones too, so that no tensor beside them does.

    before: whole = concat(state, new)       after: whole = concat(state[k:], new)
            state = whole[k:]                       state = whole

Networks written for streams, as microWakeWord's and kws_streaming's, join the rows kept and the new ones for every call.
A state of k more rows is the joined tensor itself, written in place (`passes.states`). Exact: the first k rows are read
by nobody before they have been written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import tvm

from tvm_cascade.importers.interface import attach, has_interface, io_spec
from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.passes.main_rewriting import Rewriting, Value, name_of, relax, shape_of
from tvm_cascade.passes.relax_functions import substitute
from tvm_cascade.passes.states import state_count
from tvm_cascade.tensor_spec import State


@dataclass(frozen=True)
class _Join:
    """A state that is the last rows of a tensor made of it and of new rows."""

    state: Value  # parameter
    whole: Value  # variable of the joined tensor
    axis: int
    more: int  # rows that the state gains

    @property
    def row_bytes(self) -> int:
        return prod(shape_of(self.whole)[self.axis + 1 :]) * np.dtype(str(self.whole.ty.dtype)).itemsize

    @property
    def bytes(self) -> int:
        """Return the bytes of the joined tensor."""
        return shape_of(self.whole)[self.axis] * self.row_bytes


def with_wider_states(mod: tvm.IRModule) -> tvm.IRModule:
    """Return `mod` with the states that hold joined tensors afterwards; `mod` itself if there are none, or if no arena
    is expected to shrink.
    """
    if not state_count(mod) or not has_interface(mod):
        return mod
    joins = _worthwhile(_Wider(mod, ()).joins())
    return _Wider(mod, joins).wider() if joins else mod


def _worthwhile(joins: Sequence[_Join]) -> list[_Join]:
    """Choose the joined tensors, the largest first, with the fewest bytes of new rows and of the largest one that is left."""
    ordered = sorted(joins, key=lambda j: -j.bytes)
    grown = [sum(j.more * j.row_bytes for j in ordered[:n]) for n in range(len(ordered) + 1)]
    left = [*(j.bytes for j in ordered), 0]
    best = min(range(len(ordered) + 1), key=lambda n: grown[n] + left[n])
    return ordered[:best]


class _Wider(Rewriting):
    def __init__(self, mod: tvm.IRModule, joins: Sequence[_Join]) -> None:
        super().__init__(mod)
        self.mod, self.by_state = mod, {j.state: j for j in joins}

    def joins(self) -> list[_Join]:
        """List the states that could be wider."""
        count = state_count(self.mod)
        results = self._define(self.main.body.body).fields[-count:]
        pairs = zip(self.main.params[-count:], results, strict=True)
        return [join for state, result in pairs if (join := self._join(state, result)) is not None]

    def _join(self, state: Value, result: Value) -> _Join | None:
        cut = self._define(result)
        if name_of(cut) != "strided_slice" or not isinstance(cut.args[0], relax.Var):
            return None
        numbers = [[int(v.value) for v in given.fields] for given in cut.args[1:]]
        joined, whole = self._joined(cut.args[0]), shape_of(cut.args[0])
        if (
            joined is None
            or not joined[0].same_as(state)
            or len(numbers) not in (3, 4)
            or set(*numbers[3:] or [[1]]) != {1}
        ):
            return None
        axis, rows = joined[1], shape_of(state)
        places = dict(zip(numbers[0], zip(numbers[1], numbers[2], strict=True), strict=True))
        more = whole[axis] - rows[axis]
        first, end = places.pop(axis, (0, whole[axis]))
        full = all(b == 0 and e >= whole[a] for a, (b, e) in places.items())
        if not full or more < 1 or prod(whole[:axis]) != 1 or (first, min(end, whole[axis])) != (more, whole[axis]):
            return None
        return _Join(state, cut.args[0], axis, more)

    def _joined(self, value: Value) -> tuple[Value, int] | None:
        """Return the first part and the axis of a concatenation, through quantization by the same numbers."""
        made = self._define(value)
        written = Stored.written_by(made)
        made = self._define(made.args[0]) if written is not None else made
        if name_of(made) != "concat" or not isinstance(made.args[0], relax.Tuple):
            return None
        parts = [Stored.read_by(self._define(p)) if written is not None else p for p in made.args[0].fields]
        if written is not None and any(p is None or p.numbers is None or p.numbers != written.numbers for p in parts):
            return None
        first = parts[0].tensor if isinstance(parts[0], Stored) else parts[0]
        return first, int(made.attrs.axis) % len(shape_of(value))

    def wider(self) -> tvm.IRModule:
        """Return the module with the chosen states wider, and its interface."""
        spec, params = io_spec(self.mod), list(self.main.params)
        self.params = [self._param(p) for p in params]
        made = self.run(self.params)
        count = len(spec.states)
        inputs, outputs, states = list(spec.inputs), list(spec.outputs), list(spec.states)
        for k, param in enumerate(params[-count:]):
            if (join := self.by_state.get(param)) is not None:
                at, shape = k - count, shape_of(join.whole)
                inputs[at], outputs[at] = replace(inputs[at], shape=shape), replace(outputs[at], shape=shape)
                states[at] = _longer(states[at], join)
        spec = replace(spec, inputs=tuple(inputs), outputs=tuple(outputs), states=tuple(states))
        return attach(made, spec)

    def _param(self, param: Value) -> Value:
        join = self.by_state.get(param)
        return param if join is None else relax.Var(param.name, join.whole.ty)

    def _bind(self, var: Value, value: Value) -> None:
        if not self.renamed:
            for old, new in zip(self.main.params, self.params, strict=True):
                self.renamed[old] = new if old not in self.by_state else self._last(new, self.by_state[old])
            self.bb.name = var.name
        self.renamed[var] = self.bb.emit(substitute(value, self.renamed))

    def _last(self, param: Value, join: _Join) -> Value:
        """Emit the rows that the state had before."""
        self.bb.name = ""
        end = shape_of(join.whole)[join.axis]
        return self.bb.emit(relax.op.strided_slice(param, [join.axis], [join.more], [end], [1]))

    def _returned(self, value: Value) -> Value:
        fields, count = list(self._define(value).fields), state_count(self.mod)
        for k, param in enumerate(self.main.params[-count:]):
            if param in self.by_state:
                fields[k - count] = self.by_state[param].whole
        return relax.Tuple([substitute(f, self.renamed) for f in fields])


def _longer(state: State, join: _Join) -> State:
    """Return a state with the bytes of new rows in front, which are as its first ones."""
    more = join.more * join.row_bytes
    repeated = state.initial * -(-more // max(len(state.initial), 1))
    return replace(state, initial=repeated[:more] + state.initial, form=state.form or shape_of(join.state))
