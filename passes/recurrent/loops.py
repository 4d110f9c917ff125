"""The kernel of a recurrent layer: a PrimFunc with a loop over the steps, so neither code nor planning grows with them.

A block computes a sequence of the batch in a single direction. Scratch holds two states (the previous step's is read
while the new state is written), the cell state, and for a GRU with a reset gate on the state the update gate and `r h`.
With int8 weights, a step's input and state are rounded first (`rounding`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tvm_cascade.passes.integer.fixed_point import i32
from tvm_cascade.passes.integer.statements import loop, one_block, sequence
from tvm_cascade.passes.integer.untyped import Function, Scalar, Value, ir, s_tir, tirx
from tvm_cascade.passes.recurrent.cells import Phase, Recurrence, products
from tvm_cascade.passes.recurrent.functions import Activation, number
from tvm_cascade.passes.recurrent.rounding import Rounder, Rounding, weight

_MOST_SUMS = 8  # in registers, and few enough that compilers keep them there
_UNROLLED = (4, 3, 2, 5, 1)  # iterations of a product that one iteration of its loop may do, the best first


class Extents(NamedTuple):
    """The sizes of a layer."""

    steps: int
    directions: int
    batch: int
    depth: int
    units: int
    states: int  # as many as units, unless they are projected


def units_together(sums: int, units: int) -> int:
    """Choose how many units are computed together, each by as many `sums`: a divisor of all `units`."""
    return max(n for n in range(1, max(_MOST_SUMS // sums, 1) + 1) if units % n == 0)


class _Sums:
    """A unit's sums: elements in `buffer` from `first` on."""

    def __init__(self, buffer: Value, first: int = 0) -> None:
        self.buffer, self.first = buffer, first

    def __getitem__(self, place: int) -> Scalar:
        return self.buffer[i32(self.first + place)]

    def set(self, place: int, value: Scalar) -> Value:
        """Write the store of a sum."""
        return tirx.BufferStore(self.buffer, value, [i32(self.first + place)])


class Loops:
    """Builder for a layer's PrimFunc from parameter types and output names.

    Parameters are x, hidden and cell (initial states), peepholes, projection and projection bias, and weights,
    recurrent and bias for each phase, numbered; outputs are y, y_hidden and y_cell.
    """

    def __init__(
        self,
        layer: Recurrence,
        extents: Extents,
        types: Mapping[str, tuple[Sequence[int], str]],
        outputs: Sequence[str],
        rounding: Rounding | None = None,
    ) -> None:
        """Set up the buffers; `types` are shapes and element types, by parameter; `rounding` belongs to int8 weights."""
        self.layer, self.extents, self.outputs = layer, extents, tuple(outputs)
        self.order = tuple(types)
        self.buffers = {name: _buffer(name, *of) for name, of in types.items()}
        self.buffers |= {name: _buffer(name, self.shape(name)) for name in outputs}
        self.state = _buffer("state", (2, extents.states))
        counts = [len(p.sums) for p in layer.phases]
        self.sums = _buffer("sums", (max(n * units_together(n, extents.units) for n in counts),))
        projected = ("whole_state",) if "projection" in types else ()
        named = {"lstm": ("cell_state", *projected), "gru": () if layer.reset_after else ("update", "reset_state")}
        self.held = {name: _buffer(name, (extents.units,)) for name in named.get(layer.kind, ())}
        self.rounder = None if rounding is None else Rounder(rounding)
        if self.rounder is not None:
            self.held["rounded_input"] = _buffer("rounded_input", (extents.depth,))
            self.held["rounded_state"] = _buffer("rounded_state", (extents.states,))
            self.held |= {"ends": self.rounder.ends, "factors": self.rounder.factors}
        self.d, self.b = (tirx.Var(name, "int32") for name in ("v_d", "v_b"))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an output."""
        steps, directions, batch, _, units, states = self.extents
        extents = {"s": steps, "d": directions, "b": batch, "u": units if name == "y_cell" else states}
        axes = self.layer.output_axes if name == "y" else self.layer.state_axes
        return tuple(extents[a] for a in axes)

    def function(self) -> Function:
        """Build the PrimFunc: parameters in `order`, then the outputs."""
        loops = {v: tirx.Var(f"i_{v.name}", "int32") for v in (self.d, self.b)}
        counts = {self.d: self.extents.directions, self.b: self.extents.batch}
        axes = [tirx.IterVar(ir.Range(0, counts[v]), v, tirx.IterVar.DataPar) for v in loops]
        regions = [[self._region(name) for name in names] for names in (self.order, self.outputs)]
        scratch = [self.state, self.sums, *self.held.values()]
        block = s_tir.SBlock(axes, *regions, self.layer.kind, self._sequence(), None, scratch, [], {})
        params = [self.buffers[name] for name in (*self.order, *self.outputs)]
        return one_block(block, [(loops[v], counts[v]) for v in (self.d, self.b)], params)

    def _axes(self, name: str) -> str:
        """Return the axes of a parameter or output divided among blocks; all further axes are written as a full stop."""
        if name in ("hidden", "cell", "y_hidden", "y_cell"):
            return self.layer.state_axes
        return {"x": self.layer.input_axes, "y": self.layer.output_axes}.get(name, "d...")

    def _region(self, name: str) -> Value:
        buffer, lanes = self.buffers[name], {"d": self.d, "b": self.b}
        ranges = [
            ir.Range.from_min_extent(lanes[a], i32(1)) if a in lanes else ir.Range(0, extent)
            for a, extent in zip(self._axes(name), buffer.shape, strict=False)
        ]
        return tirx.BufferRegion(buffer, ranges)

    def _place(self, name: str, u: Scalar, s: Scalar | None = None) -> list[Scalar]:
        """Return the indices for an element in x, y or a state."""
        by_axis = {"s": s, "d": self.d, "b": self.b, "u": u}
        return [by_axis[a] for a in self._axes(name)]

    def _sequence(self) -> Value:
        units, states = self.extents.units, self.extents.states
        parts = [loop("u", states, lambda u: tirx.BufferStore(self.state, self._initial("hidden", u), [i32(0), u]))]
        if self.layer.kind == "lstm":
            cell = self.held["cell_state"]
            parts.append(loop("u", units, lambda u: tirx.BufferStore(cell, self._initial("cell", u), [u])))
        parts.append(loop("t", self.extents.steps, self._step))
        if "y_hidden" in self.outputs:
            last = i32(self.extents.steps % 2)
            parts.append(loop("u", states, lambda u: self._store("y_hidden", self.state[last, u], u)))
        if "y_cell" in self.outputs:
            parts.append(loop("u", units, lambda u: self._store("y_cell", self.held["cell_state"][u], u)))
        return sequence(*parts)

    def _initial(self, name: str, u: Scalar) -> Scalar:
        return self.buffers[name][tuple(self._place(name, u))] if name in self.buffers else number(0)

    def _store(self, name: str, value: Scalar, u: Scalar, s: Scalar | None = None) -> Value:
        return tirx.BufferStore(self.buffers[name], value, self._place(name, u, s))

    def _step(self, t: Scalar) -> Value:
        mirrored = i32(self.extents.steps - 1) - t
        ways = {(False,): t, (True,): mirrored, (False, True): tirx.Select(self.d == i32(0), t, mirrored)}
        s = ways[self.layer.backward]
        parts = [*self._rounded(t, s), *(self._phase(k, phase, t, s) for k, phase in enumerate(self.layer.phases))]
        if "projection" in self.buffers:
            if self.rounder is not None:
                whole = self.held["whole_state"]
                parts.append(self.rounder.rounded(whole, self.extents.units, lambda u: whole[u]))
            parts.append(loop("p", self.extents.states, lambda p: self._projected(t, s, p)))
        return sequence(*parts)

    def _rounded(self, t: Scalar, s: Scalar) -> list[Value]:
        """Round the input and the state of a step, if weights are int8."""
        if self.rounder is None:
            return []
        x, state = self.held["rounded_input"], self.held["rounded_state"]
        return [
            self.rounder.rounded(x, self.extents.depth, lambda i: self.buffers["x"][tuple(self._place("x", i, s))]),
            self.rounder.rounded(state, self.extents.states, lambda j: self._old(t, j)),
        ]

    def _projected(self, t: Scalar, s: Scalar, p: Scalar) -> Value:
        """Compute a step's state element from the units."""
        bias, matrix = self.buffers.get("projection_bias"), self.buffers["projection"]

        sums, scale = _Sums(self.sums), 1.0 if self.rounder is None else self.rounder.rounding.projection

        def add(u: Scalar) -> list[Value]:
            return [sums.set(0, sums[0] + self.held["whole_state"][u] * weight(matrix[self.d, p, u], scale))]

        return sequence(
            sums.set(0, number(0) if bias is None else bias[self.d, p]),
            _unrolled("u", self.extents.units, add),
            self._renew(t, p, _bounded(sums[0], self.layer.projection_clip)),
            *self._written(t, s, p),
        )

    def _written(self, t: Scalar, s: Scalar, u: Scalar) -> list[Value]:
        """Write the store of a step's state into the output for all steps; nothing if that output is not wanted."""
        return [self._store("y", self._new(t, u), u, s)] if "y" in self.outputs else []

    def _phase(self, k: int, phase: Phase, t: Scalar, s: Scalar) -> Value:
        last = k == len(self.layer.phases) - 1

        bias, count = self.buffers.get(f"bias{k}"), len(phase.sums)
        together = units_together(count, self.extents.units)

        def units(v: Scalar) -> Value:
            own = [(v * i32(together) + i32(n), _Sums(self.sums, n * count)) for n in range(together)]
            first = [
                sums.set(n, number(0) if bias is None else bias[self.d, u, n]) for u, sums in own for n in range(count)
            ]
            by_state = self._product(k, phase, False, v, lambda j: self._read(phase, t, j))
            if "hidden" not in self.buffers:  # a state of zero adds nothing
                by_state = tirx.IfThenElse(t > i32(0), by_state, None)
            done = []
            for u, sums in own:
                done += getattr(self, f"_{self.layer.kind}")(phase, t, u, sums)
                done += self._written(t, s, u) if last and "projection" not in self.buffers else []
            by_input = self._product(k, phase, True, v, lambda i: self._input(s, i))
            return sequence(*first, by_input, by_state, *done)

        return loop("v", self.extents.units // together, units)

    def _product(self, k: int, phase: Phase, by_input: bool, v: Scalar, factor: Callable[[Scalar], Scalar]) -> Value:
        """Add the products with the input (or the state) to the unit sums in block `v`."""
        used, count = products(phase, by_input), len(phase.sums)
        weights = self.buffers[f"{'weights' if by_input else 'recurrent'}{k}"]
        places = [n * count + place for n in range(units_together(count, self.extents.units)) for place, _ in used]
        sums, scales = _Sums(self.sums), self._scales(used, by_input)

        def add(i: Scalar) -> list[Value]:
            own = (weight(weights[self.d, v, i, n], scales[n % len(used)]) for n in range(len(places)))
            terms = [factor(i) * w for w in own]
            return [sums.set(place, sums[place] + term) for place, term in zip(places, terms, strict=True)]

        return _unrolled("i", self.extents.depth if by_input else self.extents.states, add)

    def _scales(self, used: Sequence[tuple[int, int]], by_input: bool) -> list[float]:
        """Return the weight scales for each sum in a phase, if weights are int8."""
        rounding = None if self.rounder is None else self.rounder.rounding
        scales = () if rounding is None else rounding.by_input if by_input else rounding.by_state
        return [scales[gate] if scales else 1.0 for _, gate in used]

    def _input(self, s: Scalar, i: Scalar) -> Scalar:
        if self.rounder is not None:
            return self.held["rounded_input"][i]
        return self.buffers["x"][tuple(self._place("x", i, s))]

    def _read(self, phase: Phase, t: Scalar, j: Scalar) -> Scalar:
        if self.rounder is not None and not phase.of_reset:
            return self.held["rounded_state"][j]
        return self.held["reset_state"][j] if phase.of_reset else self._old(t, j)

    def _half(self, step: Scalar, first: int) -> Scalar:
        """Return the half of the state for a step, `first` if there is one step: TVM folds no bits of constants."""
        return i32(first) if self.extents.steps == 1 else step & i32(1)

    def _old(self, t: Scalar, u: Scalar) -> Scalar:
        return self.state[self._half(t, 0), u]

    def _new(self, t: Scalar, u: Scalar) -> Scalar:
        return self.state[self._half(t + i32(1), 1), u]

    def _lstm(self, phase: Phase, t: Scalar, u: Scalar, sums: _Sums) -> list[Value]:
        layer, cell = self.layer, self.held["cell_state"]
        at = {gate: k for k, gate in enumerate(layer.gates)}
        made = []
        for gate in ("input", "forget"):
            if gate in at:
                made.append(sums.set(at[gate], self._gate(0, self._watched(gate, sums[at[gate]], u))))
        made.append(sums.set(at["cell"], self._gate(1, sums[at["cell"]])))
        taken, kept = (
            number(1) - sums[at[other]] if gate == layer.derived else sums[at[gate]]
            for gate, other in (("input", "forget"), ("forget", "input"))
        )
        state = _bounded(kept * cell[u] + taken * sums[at["cell"]], layer.cell_clip)
        made.append(tirx.BufferStore(cell, state, [u]))
        made.append(sums.set(at["output"], self._gate(0, self._watched("output", sums[at["output"]], u))))
        result = sums[at["output"]] * self._applied(2, cell[u])
        if "projection" in self.buffers:
            return [*made, tirx.BufferStore(self.held["whole_state"], result, [u])]
        return [*made, self._renew(t, u, result)]

    def _gru(self, phase: Phase, t: Scalar, u: Scalar, sums: _Sums) -> list[Value]:
        if phase.of_reset:
            update, new = self.held["update"][u], self._gate(1, sums[0])
            mixed = (number(1) - update) * sums[0] + update * self._old(t, u)
            return [sums.set(0, new), self._renew(t, u, mixed)]
        made = [sums.set(n, self._gate(0, sums[n])) for n in (0, 1)]
        if not self.layer.reset_after:
            reset = sums[1] * self._old(t, u)
            stored = (("update", sums[0]), ("reset_state", reset))
            return [*made, *(tirx.BufferStore(self.held[name], value, [u]) for name, value in stored)]
        made.append(sums.set(2, self._gate(1, sums[2] + sums[1] * sums[3])))
        mixed = (number(1) - sums[0]) * sums[2] + sums[0] * self._old(t, u)
        return [*made, self._renew(t, u, mixed)]

    def _rnn(self, phase: Phase, t: Scalar, u: Scalar, sums: _Sums) -> list[Value]:
        return [self._renew(t, u, self._gate(0, sums[0]))]

    def _renew(self, t: Scalar, u: Scalar, value: Scalar) -> Value:
        return tirx.BufferStore(self.state, value, [self._half(t + i32(1), 1), u])

    def _watched(self, gate: str, total: Scalar, u: Scalar) -> Scalar:
        """Add the peephole's view of the cell state to a gate's sum `total`, if there is a peephole."""
        if "peepholes" not in self.buffers:
            return total
        which = ("input", "forget", "output").index(gate)
        seen = self.buffers["peepholes"][self.d, which, u] * self.held["cell_state"][u]
        return seen + total

    def _gate(self, which: int, value: Scalar) -> Scalar:
        return self._applied(which, _bounded(value, self.layer.clip))

    def _applied(self, which: int, value: Scalar) -> Scalar:
        """Apply an activation; select by the block's direction if directions differ."""
        first, last = (functions[which] for functions in (self.layer.functions[0], self.layer.functions[-1]))
        return first(value) if first == last else self._by_direction(first, last, value)

    def _by_direction(self, first: Activation, last: Activation, value: Scalar) -> Scalar:
        return tirx.if_then_else(self.d == i32(0), first(value), last(value))


def _bounded(value: Scalar, bound: float) -> Scalar:
    return tirx.max(tirx.min(value, number(bound)), number(-bound)) if bound else value


def _buffer(name: str, shape: Sequence[int], dtype: str = "float32") -> Value:
    return tirx.decl_buffer([int(d) for d in shape], dtype, name)


def _unrolled(name: str, extent: int, body: Callable[[Scalar], list[Value]]) -> Value:
    """Write a loop with several iterations of `body` each, as many as divide `extent`."""
    step = next(n for n in _UNROLLED if extent % n == 0)
    return loop(
        name, extent // step, lambda i: sequence(*(v for n in range(step) for v in body(i * i32(step) + i32(n))))
    )
