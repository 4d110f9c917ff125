"""Convert ONNX's LSTM, GRU and RNN to the kernel in `passes.recurrent`.

ONNX orders gate weights as iofc and zrh, peepholes as iof, with input and state biases in sequence. Sequences shorter
than the tensor (`sequence_lens`) are computed separately, by length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from tvm_cascade.importers.onnx.folding import copied
from tvm_cascade.passes.main_rewriting import Value, constant_of, relax, shape_of
from tvm_cascade.passes.recurrent.arrays import Arranger, Array, data_or_value
from tvm_cascade.passes.recurrent.cells import CELLS, Recurrence
from tvm_cascade.passes.recurrent.functions import FUNCTIONS, Activation
from tvm_cascade.passes.recurrent.lower import Operands, Wanted, lower_recurrence
from tvm_cascade.program.quant import NotLowered

Attributes = dict[str, Any]
RECURRENT = ("LSTM", "GRU", "RNN")
_READ = "outputs_read"  # attribute: of each output, whether anything reads it
_BACKWARD = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_GATES = {"lstm": (0, 2, 3, 1), "gru": (0, 1, 2), "rnn": (0,)}  # of our order, the places in ONNX's
_PEEPHOLES = (0, 2, 1)
_BIAS, _LENGTHS, _HIDDEN, _CELL, _PEEPHOLE = 3, 4, 5, 6, 7  # places of optional inputs


def with_outputs_read(graph: Any) -> Any:
    """Copy `graph` whose recurrent operators name their read outputs in an attribute."""
    made = copied(graph)
    used = {o.name for o in made.output} | {name for node in made.node for name in _names_in(node)}
    for node in made.node:
        if node.op_type in (*RECURRENT, "Scan"):
            attribute = node.attribute.add(name=_READ)
            attribute.ints.extend([int(bool(o) and o in used) for o in node.output])
    return made


def _names_in(node: Any) -> Iterator[str]:
    """Yield the tensors read by a node or its inner graphs."""
    yield from node.input
    for graph in (g for a in node.attribute for g in (*([a.g] if a.HasField("g") else []), *a.graphs)):
        yield from (o.name for o in graph.output)
        yield from (name for inner in graph.node for name in _names_in(inner))


def lstm(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert an LSTM; with `input_forget` the forget gate is one minus the input gate."""
    return _converted(bb, inputs, attrs, _layer("lstm", attrs), 3)


def gru(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert a GRU, with its reset gate before or after the state's product."""
    return _converted(bb, inputs, attrs, _layer("gru", attrs), 2)


def rnn(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert the simple recurrent layer."""
    return _converted(bb, inputs, attrs, _layer("rnn", attrs), 2)


def _layer(kind: str, attrs: Attributes) -> Recurrence:
    direction = _text(attrs.get("direction", "forward"))
    if direction not in _BACKWARD:
        raise NotImplementedError(f"the direction {direction}")
    backward = _BACKWARD[direction]
    axes = ("bsu", "bsdu", "bdu") if attrs.get("layout") else ("sbu", "sdbu", "dbu")
    return Recurrence(
        kind,
        _functions(kind, len(backward), attrs),
        backward,
        float(attrs.get("clip", 0.0)),
        derived="forget" if attrs.get("input_forget") and kind == "lstm" else "",
        reset_after=bool(attrs.get("linear_before_reset")) and kind == "gru",
        input_axes=axes[0],
        output_axes=axes[1],
        state_axes=axes[2],
    )


def _functions(kind: str, directions: int, attrs: Attributes) -> tuple[tuple[Activation, ...], ...]:
    """Return every direction's activations; `activation_alpha` and `_beta` list values only for functions with
    parameters.
    """
    names = [_text(n) for n in attrs.get("activations", CELLS[kind].functions * directions)]
    each = len(CELLS[kind].functions)
    if len(names) != each * directions:
        raise NotImplementedError(f"{len(names)} activations, where {each * directions} belong")
    known = {name.lower(): name for name in FUNCTIONS}
    alphas, betas = iter(attrs.get("activation_alpha", ())), iter(attrs.get("activation_beta", ()))
    made = []
    for name in names:
        if name.lower() not in known:
            raise NotImplementedError(f"the activation {name}")
        form = FUNCTIONS[known[name.lower()]]
        alpha, beta = (
            0.0 if default is None else float(next(given, default))
            for default, given in ((form.alpha, alphas), (form.beta, betas))
        )
        if alpha != alpha or beta != beta:
            raise NotImplementedError(f"the activation {name} without its activation_alpha or activation_beta")
        made.append(Activation(known[name.lower()], alpha, beta))
    return tuple(tuple(made[at : at + each]) for at in range(0, len(made), each))


def _converted(bb: Any, inputs: Sequence[Value], attrs: Attributes, layer: Recurrence, outputs: int) -> Value:
    """Return the outputs as a tuple, with a zero for each unread output."""
    read = list(attrs.get(_READ, (1,) * int(attrs["tvm_custom"]["num_outputs"])))
    wanted = Wanted(*(bool(r) for r in (*read, 0, 0, 0)[:3]))
    if not any(read):
        return relax.Tuple([_zero()] * outputs)
    operands = _operands(bb, inputs, layer)
    steps = dict(zip(layer.input_axes, shape_of(operands.x), strict=True))["s"]
    try:
        made = _by_length(bb, layer, operands, wanted, _lengths(inputs, steps))
    except NotLowered as error:
        raise NotImplementedError(str(error)) from error
    return relax.Tuple([_zero() if value is None else value for value in made[:outputs]])


def _zero() -> Value:
    return relax.const(0, "float32")


def _operands(bb: Any, inputs: Sequence[Value], layer: Recurrence) -> Operands:
    arranger = Arranger(bb)
    count, directions = len(CELLS[layer.kind].gates), len(layer.backward)
    units = shape_of(inputs[2])[-1]
    places = [p for p, gate in zip(_GATES[layer.kind], CELLS[layer.kind].gates, strict=True) if gate != layer.derived]

    def gates(array: Array, *rest: int) -> Array:
        """Return gate weights in our order; ONNX stores the gates as rows of a single matrix."""
        whole = arranger.reshape(data_or_value(array), (directions, count, *rest))
        return arranger.take(whole, places, 1)

    bias: list[Array | None] = [None, None]
    if inputs[_BIAS] is not None:
        both = arranger.reshape(data_or_value(inputs[_BIAS]), (directions, 2 * count, units))
        bias = [arranger.take(both, [start + p for p in places], 1) for start in (0, count)]
    peepholes = inputs[_PEEPHOLE] if layer.kind == "lstm" else None
    if peepholes is not None:
        peepholes = arranger.reshape(data_or_value(peepholes), (directions, 3, units))
        peepholes = arranger.take(peepholes, _PEEPHOLES, 1)
    return Operands(
        inputs[0],
        gates(inputs[1], units, shape_of(inputs[0])[-1]),
        gates(inputs[2], units, units),
        bias[0],
        bias[1],
        peepholes,
        inputs[_HIDDEN],
        inputs[_CELL] if layer.kind == "lstm" else None,
    )


def _lengths(inputs: Sequence[Value], steps: int) -> list[int]:
    """Return every sequence's length; empty if all are complete."""
    if inputs[_LENGTHS] is None:
        return []
    given = constant_of(inputs[_LENGTHS])
    if given is None:
        raise NotImplementedError("sequence_lens that is computed, or an input: make it a constant, or leave it out")
    lengths = [int(n) for n in given.reshape(-1)]
    if any(not 0 < n <= steps for n in lengths):
        raise NotImplementedError(f"sequence_lens {lengths} of a sequence of {steps} steps")
    return [] if all(n == steps for n in lengths) else lengths


def _by_length(bb: Any, layer: Recurrence, operands: Operands, wanted: Wanted, lengths: Sequence[int]) -> list[Any]:
    """Compute the layer for each run of sequences with a single length, followed by zeros."""
    if not lengths:
        return list(lower_recurrence(bb, layer, operands, wanted))
    parts, first = [], 0
    steps = dict(zip(layer.input_axes, shape_of(operands.x), strict=True))["s"]
    for length, run in groupby(lengths):
        end = first + len(list(run))
        batch = {"b": (first, end)}
        one = replace(
            operands,
            x=_part(bb, operands.x, layer.input_axes, {**batch, "s": (0, length)}),
            hidden=_part(bb, operands.hidden, layer.state_axes, batch),
            cell=_part(bb, operands.cell, layer.state_axes, batch),
        )
        made = list(lower_recurrence(bb, layer, one, wanted))
        made[0] = _followed_by_zeros(bb, made[0], layer.output_axes.index("s"), steps - length)
        parts.append(made)
        first = end
    axes = (layer.output_axes, layer.state_axes, layer.state_axes)
    return [_joined(bb, values, at.index("b")) for values, at in zip(zip(*parts, strict=True), axes, strict=True)]


def _part(bb: Any, value: Value | None, axes: str, ranges: dict[str, tuple[int, int]]) -> Value | None:
    if value is None:
        return None
    begin, end = zip(*ranges.values(), strict=True)
    places = [axes.index(a) for a in ranges]
    return bb.emit(relax.op.strided_slice(value, axes=places, begin=list(begin), end=list(end)))


def _followed_by_zeros(bb: Any, value: Value | None, axis: int, count: int) -> Value | None:
    if value is None or not count:
        return value
    widths = [0] * (2 * len(shape_of(value)))
    widths[2 * axis + 1] = count
    return bb.emit(relax.op.nn.pad(value, widths))


def _joined(bb: Any, values: Sequence[Value | None], axis: int) -> Value | None:
    if values[0] is None:
        return None
    return values[0] if len(values) == 1 else bb.emit(relax.op.concat(list(values), axis))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
