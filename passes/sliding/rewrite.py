"""Writes the network of a frame: `main(new rows, states...) -> (outputs..., states...)`."""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tvm.ir import IRModule

from tvm_cascade.passes.integer.untyped import Builder, Module, Value, relax
from tvm_cascade.passes.relax_functions import UniqueNames, bindings_of, substitute, without_main
from tvm_cascade.passes.sliding.read import ReadStep, SlidingFunction
from tvm_cascade.passes.sliding.site import shape_of
from tvm_cascade.passes.sliding.totals import Total
from tvm_cascade.passes.states import STATES_ATTR
from tvm_cascade.sliding import FramePlan, SeriesPlan
from tvm_cascade.sliding.network import Rows, read_rows


@dataclass(frozen=True)
class FrameNetwork:
    """A frame's module, and the states' names in the order of the last parameters."""

    mod: IRModule
    states: tuple[str, ...]


def write_frame(mod: Module, read: SlidingFunction, plan: FramePlan) -> FrameNetwork:
    """Write `mod` with a `main` made by `plan`; `read` is the plan's network."""
    return _Writer(mod, read, plan).write()


@dataclass
class _Writer:
    mod: Module
    read: SlidingFunction
    plan: FramePlan
    runs: dict[int, list[tuple[Rows, Value]]] = field(default_factory=dict)  # stored rows, by tensor
    made: dict[tuple[int, Rows], Value] = field(default_factory=dict)
    renamed: dict[Value, Value] = field(default_factory=dict)  # constants, and values without rows
    fresh: dict[int, Sequence[Value]] = field(default_factory=dict)  # stored rows that are computed, by tensor
    sums: dict[int, Value] = field(default_factory=dict)  # of tensors whose sums over all rows are kept

    def write(self) -> FrameNetwork:
        main = self.mod["main"]
        self.builder: Builder = without_main(self.mod)
        self.numbers = {v: k for k, v in enumerate(self.read.variables)}
        self.step_of = {s.output: r for s, r in zip(self.plan.network.steps, self.read.steps, strict=True)}
        given = relax.Var(main.params[0].name, self._type(0, self._own(0).computed[0]))
        stated = [t for t, p in enumerate(self.plan.series) if p is not None and p.state_rows]
        free = UniqueNames([given.name])
        totals = sorted(self.plan.totals)
        named = [*((t, "state") for t in stated), *((t, "sum") for t in totals)]
        names = tuple(free(f"{self._keeper(t)}_{what}") for t, what in named)
        types = [self._type(t, (0, self._own(t).state_rows)) for t in stated]
        types += [relax.TensorType(self._total(t).shape, "int32") for t in totals]
        states = {t: relax.Var(*of) for t, *of in zip([*stated, *totals], names, types, strict=True)}
        attrs = {k: v for k, v in dict(main.attrs or {}).items() if k not in ("global_symbol", "num_input")}
        attrs |= {"num_input": 1 + len(states), STATES_ATTR: len(states)}
        with self.builder.function("main", [given, *states.values()], attrs=attrs):
            with self.builder.dataflow():
                self._emit_all(given, states)
                result = substitute(main.body.body, self._results())
                results = list(result.fields) if isinstance(result, relax.Tuple) else [result]
                if isinstance(result.ty, relax.TupleType) and results == [result]:  # a variable of several results
                    results = [relax.TupleGetItem(result, k) for k in range(len(result.ty.fields))]
                after = [*(self._state_after(t, states[t]) for t in stated), *(self.sums[t] for t in totals)]
                outputs = [self.builder.emit_output(v) for v in (*results, *after)]
            self.builder.emit_func_output(relax.Tuple(outputs) if len(outputs) > 1 else outputs[0])
        made = relax.transform.DeadCodeElimination()(self.builder.finalize())
        return FrameNetwork(made.with_attrs(dict(self.mod.attrs or {})), names)

    def _keeper(self, tensor: int) -> str:
        """Return the name of a tensor whose rows are kept; the input's where they are the input's in another layout."""
        network = self.plan.network
        return network.series[network.input if tensor == network.carrier else tensor].name

    def _own(self, tensor: int) -> SeriesPlan:
        """Return a frame's plan for a needed tensor."""
        own = self.plan.series[tensor]
        assert own is not None
        return own

    def _type(self, tensor: int, rows: Rows) -> Value:
        variable = self.read.variables[tensor]
        shape = list(shape_of(variable))
        shape[self.read.axes[variable]] = rows[1] - rows[0]
        return relax.TensorType(shape, variable.ty.dtype)

    def _emit_all(self, given: Value, states: dict[int, Value]) -> None:
        """Emit everything computed by a frame, in the order of the network's operators."""
        main = self.mod["main"]
        self._put_together(0, states, [given])
        for binding in bindings_of(main):
            tensor = self.numbers.get(binding.var)
            if tensor is None:
                self.renamed[binding.var] = self._emit(substitute(binding.value, self.renamed), binding.var.name)
                continue
            own = self.plan.series[tensor]
            if own is None:
                continue
            if self.plan.network.series[tensor].rows is None:
                self._emit_whole(self.step_of[tensor])
            elif own.stored:
                self._put_together(tensor, states, [self._computed(tensor, rows) for rows in own.computed])

    def _total(self, tensor: int) -> Total:
        """Return the sum over all rows from which a tensor is computed."""
        total = self.step_of[tensor].total
        assert total is not None
        return total

    def _emit(self, value: Value, name: str) -> Value:
        return self.builder.emit(value, name_hint=name)

    def _emit_whole(self, step: ReadStep) -> None:
        """Emit an operator reading all rows of the inputs."""
        if step.total is not None:
            self._emit_total(step, step.total)
            return
        whole = {v: self._rows(self._number(v), None) for v in step.inputs}
        value = substitute(step.binding.value, {**self.renamed, **whole})
        self.renamed[step.binding.var] = self._emit(value, step.binding.var.name)

    def _emit_total(self, step: ReadStep, total: Total) -> None:
        """Emit an operator on the sum of all rows: from the kept sum and the border rows, or unchanged."""
        source, tensor = self._number(step.inputs[0]), self._number(step.binding.var)
        if tensor in self.sums:
            network_step = self.plan.network.producer[tensor]
            border = [self._viewed(step, self._rows(source, r), r) for r in self.plan.border_of(network_step)]
            self.renamed[total.result] = total.finished(self.builder, self.sums[tensor], border)
            return
        rows = 0, self.plan.network.series[source].rows or 0
        known = {**self.renamed, total.source: self._viewed(step, self._rows(source, None), rows)}
        values = {b.var: b.value for b in bindings_of(self.mod["main"])}
        for variable in total.chain:
            known[variable] = self._emit(substitute(values[variable], known), variable.name)
        self.renamed[total.result] = known[total.result]

    def _move_sum(self, tensor: int, states: dict[int, Value]) -> None:
        """Emit the updated row sum behind `tensor`: add entering rows, subtract leaving rows."""
        step = self.step_of[tensor]
        source = self._number(step.inputs[0])
        own, interior = self._own(source), self.plan.reach.interiors[source]
        assert interior is not None
        first, end, shift = interior.first, interior.end, own.shift
        number = next(k for k, r in enumerate(own.computed) if r[0] <= end - shift and end <= r[1])
        at = end - shift - own.computed[number][0]
        entering = self._slice(source, self.fresh[source][number], (at, at + shift))
        at = first - own.held[0]
        leaving = self._slice(source, states[source], (at, at + shift))
        rows = ((entering, (end - shift, end)), (leaving, (first, first + shift)))
        self.sums[tensor] = self._total(tensor).moved(
            self.builder, states[tensor], *(self._viewed(step, value, r) for value, r in rows)
        )

    def _viewed(self, step: ReadStep, value: Value, rows: Rows) -> Value:
        """Emit rows of a sum's input, through the views in front."""
        for view in step.views:
            value = self._part(view, [value], rows, [rows])
        return value

    def _put_together(self, tensor: int, states: dict[int, Value], computed: Sequence[Value]) -> None:
        """Collect the rows of a tensor found by readers: kept and computed rows, one value per range without a gap."""
        own = self._own(tensor)
        self.fresh[tensor] = computed
        for total in sorted(t for t in self.plan.totals if self._number(self.step_of[t].inputs[0]) == tensor):
            self._move_sum(total, states)
        parts = list(zip(own.computed, computed, strict=True))
        if own.state_rows:
            at = own.entering[0] - own.held[0] if own.moves else 0
            place = (at, at + own.kept[1] - own.kept[0])
            parts.append((own.kept, self._slice(tensor, states[tensor], place)))
        runs: list[tuple[Rows, list[Value]]] = []
        for rows, value in sorted(parts, key=lambda p: p[0]):
            if runs and runs[-1][0][1] == rows[0]:
                runs[-1] = (runs[-1][0][0], rows[1]), [*runs[-1][1], value]
            else:
                runs.append((rows, [value]))
        self.runs[tensor] = [(rows, self._joined(tensor, values)) for rows, values in runs]

    def _joined(self, tensor: int, values: list[Value]) -> Value:
        if len(values) == 1:
            return values[0]
        variable = self.read.variables[tensor]
        return self._emit(relax.op.concat(values, axis=self.read.axes[variable]), f"{variable.name}_rows")

    def _slice(self, tensor: int, value: Value, rows: Rows) -> Value:
        """Emit rows of a value, counted from the first."""
        variable = self.read.variables[tensor]
        axis = self.read.axes[variable]
        if rows == (0, shape_of(value)[axis]):
            return value
        return self._emit(relax.op.strided_slice(value, [axis], [rows[0]], [rows[1]]), f"{variable.name}_part")

    def _rows(self, tensor: int, rows: Rows | None) -> Value:
        """Return the value of some tensor rows; None: all rows, or a tensor without rows."""
        height = self.plan.network.series[tensor].rows
        if height is None:
            return self.renamed[self.read.variables[tensor]]
        rows = rows or (0, height)
        if (tensor, rows) not in self.made:
            own = self._own(tensor)
            self.made[tensor, rows] = self._found(tensor, rows) if own.stored else self._computed(tensor, rows)
        return self.made[tensor, rows]

    def _found(self, tensor: int, rows: Rows) -> Value:
        run, value = next(r for r in self.runs[tensor] if r[0][0] <= rows[0] and rows[1] <= r[0][1])
        return self._slice(tensor, value, (rows[0] - run[0], rows[1] - run[0]))

    def _computed(self, tensor: int, rows: Rows) -> Value:
        """Emit rows of a tensor, computed by the operator from the rows read."""
        step, network = self.step_of[tensor], self.plan.network
        sliding = step.sliding
        assert sliding is not None
        read: list[Rows] = []
        for variable, window in zip(step.inputs, sliding.windows, strict=True):
            height = network.series[self._number(variable)].rows
            assert height is not None
            read.append(read_rows(window, rows, height))
        return self._part(
            step, [self._rows(self._number(v), r) for v, r in zip(step.inputs, read, strict=True)], rows, read
        )

    def _part(self, step: ReadStep, inputs: Sequence[Value], rows: Rows, read: Sequence[Rows]) -> Value:
        """Emit rows for an operator's output, computed from input rows."""
        values, sliding = iter(inputs), step.sliding
        assert sliding is not None

        def replaced(value: Value) -> Value:
            if isinstance(value, relax.Tuple):
                return relax.Tuple([replaced(f) for f in value.fields])
            return next(values) if value in self.read.axes else substitute(value, self.renamed)

        args = [replaced(a) for a in step.binding.value.args]
        return self._emit(sliding.part(args, rows, read), step.binding.var.name)

    def _number(self, variable: Value) -> int:
        return self.numbers[variable]

    def _results(self) -> dict[Value, Value]:
        """Return the values of the variables returned by the function."""
        whole = {self.read.variables[t]: self._rows(t, None) for t in self.plan.network.outputs}
        return {**self.renamed, **whole}

    def _state_after(self, tensor: int, state: Value) -> Value:
        """Emit the state after the frame: without the rows of a period ago, with the new rows."""
        own = self._own(tensor)
        if own.moves:
            return self._found(tensor, own.held)
        new = self._found(tensor, own.entering)
        size = own.kept[1] - own.kept[0]
        return self._joined(tensor, [self._slice(tensor, state, (size, own.state_rows)), new])
