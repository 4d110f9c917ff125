"""Convert a WHILE over rows to a single operator that runs its body in every step (`passes.scan_operator`).

Such a loop carries counters from 0 with step 1; lists with a single row per step, read or written at a counter's row;
states; and unchanging values. The body is converted once, with counters at 0 and one-row lists, since only list
positions depend on counters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.importers.tflite.model import tflite
from tvm_cascade.importers.tflite.network import Network
from tvm_cascade.passes.integer.expressions import dtype_of, shape_of
from tvm_cascade.passes.lower_quantized import with_rounding_like
from tvm_cascade.passes.main_rewriting import Value, blocks_closed, relax
from tvm_cascade.passes.scan_operator import Steps, lower_scan

MAX_STEPS = 1 << 16
# operands that name rows of a list, the first
_PLACES = {"GATHER": (1,), "SLICE": (1, 2), "DYNAMIC_UPDATE_SLICE": (2,)}
_INDICES = frozenset(("ADD", "RESHAPE", "PACK", "CONCATENATION", "EXPAND_DIMS"))  # compute places from a counter
_STATES = frozenset(("float32", "int8", "uint8", "int16", "bool"))
Convert = Callable[[Any, Sequence[Any]], list[Any]]


class NotScan(Exception):
    """A loop that is written out step by step."""


@dataclass(frozen=True, slots=True)
class Roles:
    """What a loop carries, by place."""

    counters: frozenset[int]
    lists: frozenset[int]
    same: frozenset[int]
    steps: int


def roles_of(
    body: Network, values: Sequence[Any], same: Sequence[bool], holds: Callable[[Sequence[Any]], bool]
) -> Roles:
    """Find the roles of a loop's carried values; `holds` evaluates its condition.

    Raises
    ------
    NotScan
        For a loop of another form.
    """
    graph = body.subgraph
    inputs, outputs = ([int(t) for t in some] for some in (graph.InputsAsNumpy(), graph.OutputsAsNumpy()))
    ops = [graph.Operators(k) for k in range(graph.OperatorsLength())]
    named = [(body.get_op_code_str(op), [int(t) for t in op.InputsAsNumpy()], _outputs(op)) for op in ops]
    made = {t: (kind, given) for kind, given, results in named for t in results}
    counters = frozenset(k for k, v in enumerate(values) if _counts(body, v, inputs[k], made.get(outputs[k])))
    if not counters:
        raise NotScan
    indices = {inputs[k] for k in counters}
    lists: set[int] = set()
    for kind, given, results in named:
        if kind in _PLACES and any(given[p] in indices for p in _PLACES[kind] if p < len(given)):
            if given[0] not in inputs or any(t in indices for k, t in enumerate(given) if k not in _PLACES[kind]):
                raise NotScan
            lists.add(given[0])
        elif indices & {*given}:
            if kind not in _INDICES or not _is_first(body, kind, given, indices):
                raise NotScan
            indices |= {*results}
    _check_rows(body, ops, indices)
    for kind, given, _ in named:
        at_places = kind in _PLACES and any(given[p] in indices for p in _PLACES[kind] if p < len(given))
        if lists & {*given} and not (at_places and not lists & {*given[1:]}):
            raise NotScan
    if any(t in indices for k, t in enumerate(outputs) if k not in counters):
        raise NotScan
    steps = _steps(values, counters, holds)
    found = frozenset(k for k, t in enumerate(inputs) if t in lists)
    return Roles(counters, found, frozenset(k for k, s in enumerate(same) if s and k not in found), steps)


def _is_first(body: Network, kind: str, given: Sequence[int], indices: set[int]) -> bool:
    """Test the operands of an operator on indices: a counter first, then no other index; for ADD a counter and a
    number.
    """
    if kind == "ADD":
        return all(int(np.prod(t.tensor.ShapeAsNumpy())) == 1 for t in body.get_tensors(given))
    return not any(t in indices for t in given[1:])


def _check_rows(body: Network, ops: Sequence[Any], indices: set[int]) -> None:
    """Raise `NotScan` unless rows are gathered along the first axis, and joined lists are the rows before, a new one, and
    the rows behind.
    """
    before, after = set[int](), set[int]()
    for op in ops:
        kind, given = body.get_op_code_str(op), [int(t) for t in op.InputsAsNumpy()]
        if kind == "GATHER" and given[1] in indices:
            options = body.options(op, tflite.GatherOptions)
            if options.Axis() or options.BatchDims():
                raise NotScan
        elif kind == "SLICE":
            if given[2] in indices:
                before |= {*_outputs(op)}
            elif given[1] in indices:
                after |= {*_outputs(op)}
    for op in ops:
        kind, given = body.get_op_code_str(op), [int(t) for t in op.InputsAsNumpy()]
        if not before & {*given}:
            continue
        if kind != "CONCATENATION" or len(given) != 3 or given[0] not in before or given[2] not in after:
            raise NotScan


def _outputs(op: Any) -> list[int]:
    return [int(t) for t in op.OutputsAsNumpy()]


def _counts(body: Network, value: Any, tensor: int, made: tuple[str, list[int]] | None) -> bool:
    """Return whether a carried value is a counter: 0 at first, and in each step one more."""
    if not isinstance(value, np.ndarray) or value.size != 1 or value.dtype.kind != "i" or int(value.reshape(-1)[0]):
        return False
    if made is None or made[0] != "ADD" or tensor not in made[1]:
        return False
    (other,) = body.get_tensors([t for t in made[1] if t != tensor][:1] or [tensor])
    if other.tensor_idx == tensor or other.tensor_idx in {int(t) for t in body.subgraph.InputsAsNumpy()}:
        return False
    held = None if body.has_expr(other.tensor_idx) or other.buffer is None else other.buffer.DataLength()
    return bool(held) and np.asarray(body.get_tensor_value(other)).reshape(-1).tolist() == [1]


def _steps(values: Sequence[Any], counters: frozenset[int], holds: Callable[[Sequence[Any]], bool]) -> int:
    steps = 0
    while holds([np.full_like(v, steps) if k in counters else v for k, v in enumerate(values)]):
        steps += 1
        if steps > MAX_STEPS:
            raise NotScan
    if steps < 2:
        raise NotScan
    return steps


def scanned(
    net: Network, body: Network, roles: Roles, values: Sequence[Any], read: Sequence[bool], convert: Any
) -> list[Any]:
    """Emit a loop as a scan; return the carried values after its last step, None unless `read`.

    `convert` binds a network's inputs, converts it, and returns its outputs.
    """
    proper = [k for k in range(len(values)) if k not in roles.counters | roles.lists | roles.same]
    passed = [k for k in sorted(roles.same) if not isinstance(values[k], np.ndarray)]
    sequences = sorted(roles.lists)
    expressions = {k: _expression(net, values[k]) for k in (*proper, *passed, *sequences)}
    if any(dtype_of(expressions[k]) not in _STATES for k in (*proper, *sequences)):
        raise NotScan
    if any(shape_of(expressions[k])[:1] != (roles.steps,) for k in sequences):
        raise NotScan
    builder = relax.BlockBuilder()
    body.bb = builder
    params = {
        k: relax.Var(f"carried{k}", relax.TensorType(list(shape_of(v)), dtype_of(v))) for k, v in expressions.items()
    }
    for k in sequences:
        shape = shape_of(expressions[k])[1:]
        params[k] = relax.Var(f"row{k}", relax.TensorType(list(shape), dtype_of(expressions[k])))
    order = [*proper, *sequences, *passed]
    written = [k for k in sequences if not _is_same(body, k) and read[k]]
    with blocks_closed([builder]), builder.function("main", [params[k] for k in order]):
        with builder.dataflow():
            given = list(values)
            for k in proper + passed:
                given[k] = params[k]
            for k in sequences:
                given[k] = builder.emit(relax.op.expand_dims(params[k], 0))
            for k in roles.counters:
                given[k] = np.zeros_like(values[k])
            made = convert(body, given)
            results = [_expression(body, made[k]) for k in proper]
            for k in written:
                row = _expression(body, made[k])
                if shape_of(row) != (1, *shape_of(expressions[k])[1:]):
                    raise NotScan
                results.append(builder.emit(relax.op.reshape(row, list(shape_of(row)[1:]))))
            if any(
                (shape_of(r), dtype_of(r)) != (shape_of(expressions[k]), dtype_of(expressions[k]))
                for r, k in zip(results, proper, strict=False)
            ):
                raise NotScan
            output = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
        builder.emit_func_output(output)
    how = Steps(
        roles.steps,
        len(proper),
        len(sequences),
        len(passed),
        stacked=(True,) * len(written),
        finals=tuple(read[k] for k in proper),
    )
    initial = [_constant(values[k], expressions[k]) for k in proper]
    found = lower_scan(
        net.bb,
        with_rounding_like(builder.get(), net.variables.like),
        how,
        initial,
        [expressions[k] for k in (*sequences, *passed)],
    )
    ends: list[Any] = [None] * len(values)
    for k, value in zip([*(k for k in proper if read[k]), *written], found, strict=True):
        ends[k] = value
    for k in range(len(values)):
        if k in roles.counters:
            ends[k] = np.full_like(values[k], roles.steps)
        elif k in roles.same or (k in roles.lists and _is_same(body, k)):
            ends[k] = values[k]
    return ends


def _is_same(body: Network, k: int) -> bool:
    return bool(body.subgraph.Inputs(k) == body.subgraph.Outputs(k))


def _constant(value: Any, expression: Value) -> Value:
    return relax.const(value, str(value.dtype)) if isinstance(value, np.ndarray) else expression


def _expression(net: Network, value: Any) -> Value:
    if isinstance(value, tuple):
        if not value:
            raise NotScan
        parts = [p.expression() for p in value]
        return net.bb.emit(parts[0] if len(parts) == 1 else relax.op.concat(parts, 0))
    if isinstance(value, np.ndarray):
        return net.bb.emit(relax.const(value, str(value.dtype)))
    return value


def inner_network(net: Network, graph: Any) -> Network:
    """Make a network for a subgraph, a single level below `net`."""
    inner = type(net)(net.model, graph, stock.ExprTable(), net.bb, net.conversion_state)
    inner.nested, inner.depth, inner.unrolled, inner.variables = True, net.depth + 1, net.unrolled, net.variables
    return inner
