"""Lowering of a recurrent layer to a single kernel call, with the weights arranged for the kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_cascade.passes.integer.expressions import dtype_of, shape_of
from tvm_cascade.passes.integer.untyped import Builder, Value, relax
from tvm_cascade.passes.recurrent.arrays import Arranger, Array, as_value, data_or_value
from tvm_cascade.passes.recurrent.cells import Phase, Recurrence, products
from tvm_cascade.passes.recurrent.last_step import with_steps
from tvm_cascade.passes.recurrent.loops import Extents, Loops, units_together
from tvm_cascade.passes.recurrent.rounding import Rounding
from tvm_cascade.program.quant import NotLowered
from tvm_cascade.schedules.kernels.spec import Attributes, with_spec


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """The operands of a recurrent layer, all float32, or with `rounding` int8 weights and projection. Gates are in the
    order of `Recurrence.gates`; states left out start at zero.
    """

    x: Value  # by `Recurrence.input_axes`
    weights: Array  # [directions, gates, units, depth]
    recurrent: Array  # [directions, gates, units, states]: as many states as units, unless they are projected
    bias: Array | None = None  # [directions, gates, units], added to the product of the input
    recurrent_bias: Array | None = None  # the same, added to the product of the state
    peepholes: Array | None = None  # [directions, 3, units], of an LSTM's gates input, forget and output
    hidden: Value | None = None  # of states, by `Recurrence.state_axes`
    cell: Value | None = None  # of units, the same, of an LSTM
    projection: Array | None = None  # [directions, states, units], of an LSTM
    projection_bias: Array | None = None  # [directions, states]
    rounding: Rounding | None = None  # how an LSTM computes whose weights are int8


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which results are computed: the states of all steps, the last state, and an LSTM's last cell state."""

    steps: bool = True
    hidden: bool = False
    cell: bool = False


def lower_recurrence(
    builder: Builder, layer: Recurrence, operands: Operands, wanted: Wanted
) -> tuple[Value | None, Value | None, Value | None]:
    """Emit the kernel. Returns the states of all steps by `layer.output_axes`, the last state and the last cell state
    by `layer.state_axes`; None unless `wanted`.

    Raises
    ------
    NotLowered
        For tensors that are not float32 or have no static shape.
    """
    given = [v for v in (operands.x, operands.hidden, operands.cell) if v is not None]
    if any(dtype_of(v) != "float32" for v in given):
        raise NotLowered("a recurrent layer of other numbers than float32")
    by_axis = dict(zip(layer.input_axes, shape_of(operands.x), strict=True))
    units, states = _shape(operands.recurrent)[2:]
    extents = Extents(by_axis["s"], len(layer.backward), by_axis["b"], by_axis["u"], units, states)
    parameters = _parameters(Arranger(builder), layer, operands)
    of_parameters = {name: (shape_of(v), dtype_of(v)) for name, v in parameters.items()}
    loops = Loops(layer, extents, of_parameters, _outputs(wanted), operands.rounding)
    order = loops.order
    activations = sum(data_or_value(parameters[name]) is parameters[name] for name in order)
    kind = layer.kind if operands.rounding is None else f"hybrid_{layer.kind}"
    func = with_spec(loops.function(), kind, activations, Attributes(units=units))
    func = with_steps(func, layer) if wanted.steps else func
    types = [relax.TensorType(list(loops.shape(name)), "float32") for name in loops.outputs]
    called = relax.call_tir(builder.add_func(func, kind), [parameters[name] for name in order], types)
    made = builder.emit(called)
    fields = [made] if len(types) == 1 else [builder.emit(relax.TupleGetItem(made, k)) for k in range(len(types))]
    found = dict(zip(loops.outputs, fields, strict=True))
    return found.get("y"), found.get("y_hidden"), found.get("y_cell")


def _outputs(wanted: Wanted) -> tuple[str, ...]:
    named = {"y": wanted.steps, "y_hidden": wanted.hidden, "y_cell": wanted.cell}
    return tuple(name for name, is_wanted in named.items() if is_wanted)


def _parameters(arranger: Arranger, layer: Recurrence, operands: Operands) -> dict[str, Value]:
    """Return the kernel's parameters by name: input and states, then weights, recurrent weights and bias of each phase,
    then optional weights.
    """
    found: dict[str, Array | None] = {"x": operands.x, "hidden": operands.hidden, "cell": operands.cell}
    for k, phase in enumerate(layer.phases):
        found[f"weights{k}"] = _weights(arranger, operands.weights, phase, True)
        found[f"recurrent{k}"] = _weights(arranger, operands.recurrent, phase, False)
        found[f"bias{k}"] = _bias(arranger, phase, operands)
    found |= {name: getattr(operands, name) for name in ("peepholes", "projection", "projection_bias")}
    return {name: as_value(v) for name, v in found.items() if v is not None}


def _weights(arranger: Arranger, weights: Array, phase: Phase, by_input: bool) -> Array:
    """Return a phase's weights as [directions, blocks of units, depth, units of a block * gates]: neighbours share an
    input.
    """
    used = [gate for _, gate in products(phase, by_input)]
    chosen = arranger.take(data_or_value(weights), used, 1)
    directions, gates, units, depth = _shape(chosen)
    together = units_together(len(phase.sums), units)
    blocks = arranger.reshape(chosen, (directions, gates, units // together, together, depth))
    moved = arranger.permute(blocks, (0, 2, 4, 3, 1))
    return arranger.reshape(moved, (directions, units // together, depth, together * gates))


def _bias(arranger: Arranger, phase: Phase, operands: Operands) -> Array | None:
    """Collect the bias for every sum in a phase, [directions, units, sums]; None without any."""
    total: Array | None = None
    pairs = (
        (operands.bias, [s.by_input for s in phase.sums]),
        (operands.recurrent_bias, [s.by_state for s in phase.sums]),
    )
    for bias, gates in pairs:
        if bias is None:
            continue
        bias = data_or_value(bias)
        count = _shape(bias)[1]
        part = arranger.take(arranger.extend(bias, 1), [count if g < 0 else g for g in gates], 1)
        total = part if total is None else arranger.add(total, part)
    return None if total is None else arranger.permute(total, (0, 2, 1))


def _shape(array: Array) -> tuple[int, ...]:
    return tuple(array.shape) if isinstance(array, np.ndarray) else shape_of(array)
