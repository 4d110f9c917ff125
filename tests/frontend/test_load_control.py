"""Loops and branches of `.tflite` files, as TensorFlow's converter writes them for recurrent layers."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade.checking.reference import LiteRtReference
from tvm_cascade.cores import KernelTarget, get_core
from tvm_cascade.errors import LoadError, UnsupportedOperatorError
from tvm_cascade.frontend import load
from tvm_cascade.importers.tflite import control as tflite_control
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.relax_functions import bindings_of
from tvm_cascade.pipeline import prepare
from tvm_cascade.testing.litert_check import equal_outputs, host_equals
from tvm_cascade.testing.reference import Compiled
from tvm_cascade.testing.tflite import ModelWriter

STEPS, DEPTH, UNITS = 4, 3, 5


def _int(writer: ModelWriter, *values: int) -> int:
    return writer.constant(np.array(values if len(values) != 1 else values[0], "int32"))


def _state(writer: ModelWriter, dtype: str) -> list[int]:
    """What the loop carries: a counter, the list of the outputs, the last output, and all inputs."""
    kinds = [((), "int32"), ((STEPS, 1, UNITS), dtype), ((1, UNITS), dtype), ((STEPS, 1, DEPTH), dtype)]
    return [writer.tensor(s, k, 0.1 if k == "int8" else None, 3 if k == "int8" else 0) for s, k in kinds]


def _condition(dtype: str) -> ModelWriter:
    """`counter < STEPS`."""
    graph = ModelWriter()
    graph.inputs = _state(graph, dtype)
    graph.operator("LESS", [graph.inputs[0], _int(graph, STEPS)], [graph.tensor((), "bool")], "LessOptions")
    return graph


def _layer(graph: ModelWriter, x: int, size: int, dtype: str, rng: np.random.Generator) -> int:
    """A fully connected layer to `UNITS`."""
    weights = rng.integers(-127, 128, (UNITS, size)).astype("int8")
    made = graph.tensor((1, UNITS), dtype, 0.1, 3)
    held = graph.constant(weights, 1 / 256) if dtype == "int8" else graph.constant((weights / 200).astype("float32"))
    bias = rng.integers(-900, 900, UNITS).astype("int32")
    added = graph.constant(bias, 0.0004) if dtype == "int8" else graph.constant((bias / 900).astype("float32"))
    graph.operator("FULLY_CONNECTED", [x, held, added], [made], "FullyConnectedOptions", inner=True)
    return made


def _body(dtype: str, updates: bool, forward: int) -> ModelWriter:
    """A step: `h = tanh(W x_t + R h)`, stored in row t of the list by slices and a concatenation, or by an update."""
    graph, rng = ModelWriter(), np.random.default_rng(0)
    graph.inputs = _state(graph, dtype)
    counter, rows, hidden, x = graph.inputs
    nxt, row = graph.tensor((), "int32"), graph.tensor((1, DEPTH), dtype, 0.1, 3)
    graph.operator("ADD", [counter, _int(graph, forward)], [nxt], "AddOptions", inner=True)
    graph.operator("GATHER", [x, counter], [row], "GatherOptions", axis=0, inner=True)
    total = graph.tensor((1, UNITS), dtype, 0.05, -2)
    made = [_layer(graph, row, DEPTH, dtype, rng), _layer(graph, hidden, UNITS, dtype, rng)]
    graph.operator("ADD", made, [total], "AddOptions", inner=True)
    result = graph.tensor((1, UNITS), dtype, 0.1, 3)
    if dtype == "int8":
        graph.operator("RELU", [total], [result], inner=True)
    else:
        graph.operator("TANH", [total], [result], inner=True)
    unit = graph.tensor((1, 1, UNITS), dtype, 0.1, 3)
    graph.operator("RESHAPE", [result, _int(graph, 1, 1, UNITS)], [unit], "ReshapeOptions", inner=True)
    write = _written_by_update if updates else _written_by_slices
    graph.outputs = [nxt, write(graph, [counter, nxt, rows, unit], dtype), result, x]
    return graph


def _written_by_slices(graph: ModelWriter, at: list[int], dtype: str) -> int:
    """Slices of what comes before and after, as the converter writes them: the first and the last one are empty."""
    counter, nxt, rows, unit = at
    places = []
    for k, rest in ((counter, -1), (nxt, 0)):
        flat, triple = graph.tensor((1,), "int32"), graph.tensor((3,), "int32")
        graph.operator("RESHAPE", [k, graph.constant(np.array([1], "int32"))], [flat], "ReshapeOptions", inner=True)
        parts = [flat, _int(graph, rest, rest)]
        graph.operator("CONCATENATION", parts, [triple], "ConcatenationOptions", axis=0, inner=True)
        places.append(triple)
    before = graph.tensor((1, 1, 1), dtype, 0.1, 3, signature=(-1, -1, -1))
    after = graph.tensor((1, 1, UNITS), dtype, 0.1, 3, signature=(-1, 1, UNITS))
    made = graph.tensor((STEPS, 1, UNITS), dtype, 0.1, 3)
    graph.operator("SLICE", [rows, _int(graph, 0, 0, 0), places[0]], [before], "SliceOptions", inner=True)
    graph.operator("SLICE", [rows, places[1], _int(graph, -1, -1, -1)], [after], "SliceOptions", inner=True)
    graph.operator("CONCATENATION", [before, unit, after], [made], "ConcatenationOptions", axis=0, inner=True)
    return made


def _written_by_update(graph: ModelWriter, at: list[int], dtype: str) -> int:
    counter, _, rows, unit = at
    place, made = graph.tensor((3,), "int32"), graph.tensor((STEPS, 1, UNITS), dtype, 0.1, 3)
    parts = [counter, _int(graph, 0), _int(graph, 0)]
    graph.operator("PACK", parts, [place], "PackOptions", axis=0, valuesCount=3, inner=True)
    graph.operator("DYNAMIC_UPDATE_SLICE", [rows, unit, place], [made], inner=True)
    return made


def _recurrent(dtype: str, *, updates: bool = False, count: int = 0, forward: int = 1) -> ModelWriter:
    """A loop that counts from `count` by `forward`."""
    writer = ModelWriter()
    x = writer.activation((STEPS, 1, DEPTH), dtype, 0.1, 3)
    zero = 3 if dtype == "int8" else 0
    starts = [np.full(shape, zero, dtype) for shape in ((STEPS, 1, UNITS), (1, UNITS))]
    inputs = [_int(writer, count), *(writer.constant(s, 0.1, zero) for s in starts), x]
    condition, body = writer.body(_condition(dtype)), writer.body(_body(dtype, updates, forward))
    subgraphs: dict[str, Any] = {"condSubgraphIndex": condition, "bodySubgraphIndex": body}
    outputs = _state(writer, dtype)
    writer.operator("WHILE", inputs, outputs, "WhileOptions", inner=True, **subgraphs)
    writer.outputs = outputs[1:3]
    return writer


@pytest.mark.parametrize("updates", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_a_looped_layer(tmp_path: Path, dtype: str, updates: bool) -> None:
    rows, last = equal_outputs(tmp_path, _recurrent(dtype, updates=updates))
    np.testing.assert_array_equal(rows[-1], last)
    assert len(np.unique(rows)) > 8
    host_equals(tmp_path)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("updates", [False, True])
def test_a_loop_over_rows_is_one_operator(tmp_path: Path, dtype: str, updates: bool) -> None:
    equal_outputs(tmp_path, _recurrent(dtype, updates=updates))
    graph = prepare(load(tmp_path / "m.tflite"), KernelTarget(get_core("cortex-m4"))).graph
    assert [op.kind for op in graph.ops if not op.view] == ["scan"]
    assert len({t.dtype for t in graph.tensors}) == 1
    written_out = load(tmp_path / "m.tflite", unrolled=True)
    assert [gv.name_hint for gv in written_out.get_global_vars()] == ["main"]


@pytest.mark.parametrize("kind", ["SLICE", "STRIDED_SLICE", "GATHER"])
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_rows_are_not_kept_where_the_last_alone_is_read(tmp_path: Path, dtype: str, kind: str) -> None:
    writer = _recurrent(dtype)
    rows = writer.outputs[0]
    last = writer.tensor((1, 1, UNITS), dtype, 0.1 if dtype == "int8" else None, 3 if dtype == "int8" else 0)
    if kind == "GATHER":
        row = writer.constant(np.array([STEPS - 1], "int32"))
        writer.operator(kind, [rows, row], [last], "GatherOptions", axis=0)
    else:
        begin, end = (STEPS - 1, 0, 0), (STEPS, 1, UNITS)
        places = [begin, (1, 1, UNITS)] if kind == "SLICE" else [begin, end, (1, 1, 1)]
        options = "SliceOptions" if kind == "SLICE" else "StridedSliceOptions"
        writer.operator(kind, [rows, *(_int(writer, *p) for p in places)], [last], options)
    writer.outputs = [last]
    equal_outputs(tmp_path, writer)
    host_equals(tmp_path)
    graph = prepare(load(tmp_path / "m.tflite"), KernelTarget(get_core("cortex-m4"))).graph
    (scan,) = (op for op in graph.ops if op.kind == "scan")
    assert [graph.tensors[t].shape for t in scan.outputs] == [(1, UNITS)]


def test_a_row_in_another_place_is_written_out(tmp_path: Path) -> None:
    """Rows joined in another order, or gathered along another axis, are no list of which a step replaces its row."""
    writer = _recurrent("float32")
    operators = (op for op in writer._bodies[1]._operators if "Concatenation" in type(op.builtinOptions).__name__)
    joined = next(op for op in operators if len(op.inputs) == 3)
    joined.inputs = np.array([joined.inputs[0], joined.inputs[2], joined.inputs[1]], "int32")
    equal_outputs(tmp_path, writer)
    mod = load(tmp_path / "m.tflite")
    assert [gv.name_hint for gv in mod.get_global_vars()] == ["main"]


def test_a_loop_that_ends_at_once(tmp_path: Path) -> None:
    """Rows that no step wrote keep what they held."""
    rows, last = equal_outputs(tmp_path, _recurrent("int8", count=STEPS))
    assert set(np.unique(rows)) == set(np.unique(last)) == {3}
    rows, _ = equal_outputs(tmp_path, _recurrent("int8", count=STEPS - 1))
    assert (rows[:-1] == 3).all() and (rows[-1] != 3).any()


def test_a_loop_that_does_not_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tflite_control, "MAX_UNROLLED", 99)
    (tmp_path / "m.tflite").write_bytes(_recurrent("int8", forward=0).finish())
    with pytest.raises(UnsupportedOperatorError, match=r"WHILE \(operator 0\): loops of more than 99 operators"):
        load(tmp_path / "m.tflite")


def test_a_loop_of_no_operators_that_does_not_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tflite_control, "MAX_UNROLLED", 99)
    writer = ModelWriter()
    holds, x = writer.constant(np.array(True)), writer.activation((2,), "float32")
    condition, body = ModelWriter(), ModelWriter()
    for graph in (condition, body):
        graph.inputs = [graph.tensor((), "bool"), graph.tensor((2,), "float32")]
    condition.outputs, body.outputs = condition.inputs[:1], body.inputs
    subgraphs: dict[str, Any] = {"condSubgraphIndex": writer.body(condition), "bodySubgraphIndex": writer.body(body)}
    outputs = [writer.tensor((), "bool"), writer.tensor((2,), "float32")]
    writer.operator("WHILE", [holds, x], outputs, "WhileOptions", **subgraphs)
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(UnsupportedOperatorError, match=r"WHILE \(operator 0\): loops of more than 99 operators"):
        load(tmp_path / "m.tflite")


@pytest.mark.parametrize("index", [0, 7, -1])
def test_a_body_that_is_no_subgraph_is_refused(tmp_path: Path, index: int) -> None:
    writer = _recurrent("int8")
    writer._operators[-1].builtinOptions.bodySubgraphIndex = index
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(LoadError, match=rf"operator 0, WHILE.*subgraph {index} of 3"):
        load(tmp_path / "m.tflite")


def test_a_body_that_runs_itself_is_refused(tmp_path: Path) -> None:
    writer = _recurrent("int8")
    inner = writer._bodies[1]
    inner._operators.append(copy(writer._operators[-1]))
    made = range(len(inner._tensors), len(inner._tensors) + len(inner.inputs))
    inner._tensors += [copy(inner._tensors[t]) for t in inner.inputs]
    inner._operators[-1].inputs, inner._operators[-1].outputs = np.array(inner.inputs, "int32"), np.array(made, "int32")
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(LoadError, match="subgraphs more than 4 deep"):
        load(tmp_path / "m.tflite")


def test_a_computed_number_of_steps_is_refused(tmp_path: Path) -> None:
    writer = _recurrent("int8")
    counter = writer.activation((), "int32")
    writer._operators[-1].inputs[0] = counter
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(UnsupportedOperatorError, match=r"WHILE \(operator 0\): a loop whose number of steps"):
        load(tmp_path / "m.tflite")


def test_operators_inside_of_a_loop_are_named(tmp_path: Path) -> None:
    writer = _recurrent("int8")
    code = writer._bodies[1]._operators[2].opcodeIndex
    writer._codes[code].builtinCode = writer._codes[code].deprecatedBuiltinCode = 15  # LSH_PROJECTION
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(UnsupportedOperatorError, match=r"WHILE \(operator 0\): in its subgraph, LSH_PROJECTION"):
        load(tmp_path / "m.tflite")


def _branch(condition: int | np.ndarray, dtype: str = "int8") -> ModelWriter:
    """ABS or NEG of a tensor."""
    writer = ModelWriter()
    x = writer.activation((2, 6), dtype, 0.1)
    chosen = writer.activation((), "bool") if isinstance(condition, int) else writer.constant(condition)
    ways = []
    for name, options in (("ABS", "AbsOptions"), ("NEG", "NegOptions")):
        graph = ModelWriter()
        graph.inputs = [graph.tensor((2, 6), dtype, 0.1)]
        graph.operator(name, graph.inputs, [graph.tensor((2, 6), dtype, 0.1)], options)
        ways.append(writer.body(graph))
    subgraphs: dict[str, Any] = {"thenSubgraphIndex": ways[0], "elseSubgraphIndex": ways[1]}
    writer.operator("IF", [chosen, x], [writer.tensor((2, 6), dtype, 0.1)], "IfOptions", **subgraphs)
    return writer


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_a_branch_by_a_constant_is_one_of_its_ways(tmp_path: Path, holds: bool, dtype: str) -> None:
    (made,) = equal_outputs(tmp_path, _branch(np.array(holds), dtype))
    assert (made >= 0).all() == holds
    assert len(bindings_of(load(tmp_path / "m.tflite")["main"])) <= 5  # of one way
    host_equals(tmp_path)


def test_a_branch_by_an_input_computes_both(tmp_path: Path) -> None:
    x = np.arange(-6, 6).reshape(2, 6).astype("int8")
    for holds in (False, True):
        (made,) = equal_outputs(tmp_path, _branch(0), [x, np.array(holds)])
        np.testing.assert_array_equal(made, np.abs(x) if holds else -x)
    host_equals(tmp_path)


@pytest.mark.parametrize("operators", [0, 1])
def test_initialization_of_variables_that_nothing_uses(tmp_path: Path, operators: int) -> None:
    writer, graph = _branch(0), ModelWriter()
    for _ in range(operators):
        graph.variable("unused")
    writer.operator("CALL_ONCE", [], [], "CallOnceOptions", initSubgraphIndex=writer.body(graph))
    equal_outputs(tmp_path, writer)


def test_layers_of_a_loop_are_rounded_as_told(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(_recurrent("int8").finish())
    reference = LiteRtReference(tmp_path / "m.tflite", {}, {}, "tflm")
    forms = [{"like": "tflm"}, {"like": "tflm", "unrolled": True}, {}]
    like, written_out, once = (Compiled(LowerQuantized()(load(tmp_path / "m.tflite", **form))) for form in forms)
    rng, differ = np.random.default_rng(1), 0
    (name,) = (one["name"] for one in reference.interpreter.get_input_details())
    for _ in range(200):
        x = rng.integers(-128, 128, (STEPS, 1, DEPTH)).astype("int8")
        wanted = list(reference.run({name: x}).values())
        for made in (like(x), written_out(x)):
            for one, other in zip(made, wanted, strict=True):
                np.testing.assert_array_equal(one, other)
        differ += bool((once(x)[0] != wanted[0]).any())
    assert differ > 0
