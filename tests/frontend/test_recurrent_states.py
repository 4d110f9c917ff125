"""States of the recurrent operators of `.tflite` files: sequences of calls against LiteRT, and without states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

import tvm_cascade
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.testing.litert_check import equal_outputs, equal_sequence
from tvm_cascade.testing.tflite import ModelWriter

STEPS, DEPTH, UNITS = 3, 4, 6
NAME, TABLE = "UNIDIRECTIONAL_SEQUENCE_LSTM", "UnidirectionalSequenceLSTMOptions"


def svdf(writer: ModelWriter, kind: str, batch: int = 1, rank: int = 1, steps: int = 4) -> None:
    """Filters whose state is of `kind`; with float32 all is, with "hybrid" the weights of the features are int8."""
    rng, depth, units = np.random.default_rng(rank), 9, 7
    whole = kind.startswith("int")
    x = writer.activation((batch, depth), "int8" if whole else "float32", 0.02 if whole else None, 5)
    most = np.iinfo(kind).max if whole else 127
    weights = rng.integers(-127, 128, (rank * units, depth)).astype("int8")
    times = rng.integers(-most, most + 1, (rank * units, steps))
    bias = rng.integers(-9000, 9000, units).astype("int32")
    held = [
        writer.constant(weights, 0.01) if kind != "float32" else writer.constant(weights.astype("float32") / 100),
        writer.constant((times / 300).astype("float32"))
        if kind == "float32"
        else writer.constant(times.astype(kind if whole else "int8"), 1 / (2 * most)),
        writer.constant(bias, 0.001) if whole else writer.constant((bias / 9e4).astype("float32")),
    ]
    scale = {"int16": 0.004, "int8": 0.02}.get(kind)
    zero = 3 if kind == "int8" else 0
    state = writer.tensor((batch, rank * units * steps), kind if whole else "float32", scale, zero, variable=True)
    out = writer.tensor((batch, units), "int8" if whole else "float32", 0.3 if whole else None, -20)
    how: dict[str, Any] = {"rank": rank, "fusedActivationFunction": 1, "asymmetricQuantizeInputs": kind == "hybrid"}
    writer.operator("SVDF", [x, *held, state], [out], "SVDFOptions", version=4, **how)


def lstm(
    writer: ModelWriter,
    kind: str,
    batch: int = 1,
    steps: int = STEPS,
    major: bool = False,
    states: int = UNITS,
    x: int | None = None,
) -> None:
    """Of int8, floats, or floats with weights of int8 ("hybrid"); other `states` than units are projected. `x`: what it
    reads, None for an input of its own."""
    rng, whole = np.random.default_rng(steps + batch), kind == "int8"
    dtype = "int8" if whole else "float32"
    shape = (steps, batch, DEPTH) if major else (batch, steps, DEPTH)
    x = writer.activation(shape, dtype, 0.02 if whole else None, 5) if x is None else x
    inputs = [x, *([-1] * 23)]

    def matrix(shape: tuple[int, int], scale: float) -> int:
        data = rng.integers(-127, 128, shape).astype("int8")
        return (
            writer.constant(data, scale)
            if kind != "float32"
            else writer.constant(data.astype("float32") * np.float32(scale))
        )

    for k in range(4):
        inputs[1 + k], inputs[5 + k] = matrix((UNITS, DEPTH), 0.01), matrix((UNITS, states), 0.008)
        bias = rng.integers(-9000, 9000, UNITS)
        inputs[12 + k] = (
            writer.constant(bias.astype("int32"), 0.0002) if whole else writer.constant((bias / 1e4).astype("float32"))
        )
    if states != UNITS:
        inputs[16] = matrix((states, UNITS), 0.004)
    inputs[18] = writer.tensor((batch, states), dtype, 1 / 128 if whole else None, variable=True)
    inputs[19] = writer.tensor(
        (batch, UNITS), "int16" if whole else "float32", 2.0**-11 if whole else None, variable=True
    )
    between = [writer.tensor((1,), "int8", 1 / 128, 0) for _ in range(5)] if whole else []
    options = {"fusedActivationFunction": 4, "timeMajor": major, "cellClip": 0.0, "projClip": 0.0}
    out = writer.tensor((steps, batch, states) if major else (batch, steps, states), dtype, 1 / 128 if whole else None)
    writer.operator(NAME, inputs, [out], TABLE, intermediates=between, **options)


def matrix(writer: ModelWriter, rng: np.random.Generator, shape: tuple[int, int], hybrid: bool) -> int:
    data = rng.integers(-127, 128, shape).astype("int8")
    return writer.constant(data, 0.006) if hybrid else writer.constant(data.astype("float32") * np.float32(0.006))


def floats(writer: ModelWriter, rng: np.random.Generator, count: int) -> int:
    return writer.constant(rng.uniform(-0.9, 0.9, count).astype("float32"))


def simple(writer: ModelWriter, rng: np.random.Generator, units: int, hybrid: bool) -> list[int]:
    """Weights, recurrent weights, bias and state of a simple layer for a batch of 2."""
    shapes = (units, DEPTH), (units, units)
    state = writer.tensor((2, units), "float32", variable=True)
    return [*(matrix(writer, rng, shape, hybrid) for shape in shapes), floats(writer, rng, units), state]


def of_two(writer: ModelWriter, rng: np.random.Generator, states: int, first: int, hybrid: bool) -> list[int]:
    """The 17 tensors of one direction of an LSTM without its states, which other numbers than units project; with `first` 1 the
    input gate is coupled and the gates look at the cell."""
    given = [-1] * 17
    for k in range(first, 4):
        given[k], given[4 + k] = (matrix(writer, rng, (UNITS, n), hybrid) for n in (DEPTH, states))
        given[11 + k] = floats(writer, rng, UNITS)
        if first and k < 3:
            seen = rng.integers(-127, 128, UNITS).astype("int8")
            given[8 + k] = writer.constant(seen, 0.01) if hybrid else floats(writer, rng, UNITS)
    if states != UNITS:
        given[15], given[16] = matrix(writer, rng, (states, UNITS), hybrid), floats(writer, rng, states)
    return given


@pytest.mark.parametrize("hybrid", [False, True])
def test_simple_layers_go_on_where_the_last_call_ended(tmp_path: Path, hybrid: bool) -> None:
    """A step, a sequence, and both directions, whose outputs are merged or have different units; by every activation."""
    writer, rng = ModelWriter(), np.random.default_rng(1)
    x = writer.activation((2, DEPTH), "float32")
    ways = {"asymmetricQuantizeInputs": hybrid}
    step = [x, *simple(writer, rng, UNITS, hybrid)]
    writer.operator(
        "RNN", step, [writer.tensor((2, UNITS), "float32")], "RNNOptions", fusedActivationFunction=2, **ways
    )
    for fused, major in ((0, False), (1, True), (3, False)):
        shape = (STEPS, 2) if major else (2, STEPS)
        given = [writer.activation((*shape, DEPTH), "float32"), *simple(writer, rng, UNITS, hybrid)]
        how: dict[str, Any] = {"timeMajor": major, "fusedActivationFunction": fused, **ways}
        out = [writer.tensor((*shape, UNITS), "float32")]
        writer.operator("UNIDIRECTIONAL_SEQUENCE_RNN", given, out, "SequenceRNNOptions", **how)
    for merged in (False, True):
        x = writer.activation((2, STEPS, DEPTH), "float32")
        given = [x, *simple(writer, rng, UNITS, hybrid), *simple(writer, rng, 5, hybrid), -1, -1, -1]
        depths = (UNITS + 5,) if merged else (UNITS, 5)
        how = {"mergeOutputs": merged, "fusedActivationFunction": 4, **ways}
        out = [writer.tensor((2, STEPS, n), "float32") for n in depths]
        writer.operator("BIDIRECTIONAL_SEQUENCE_RNN", given, out, "BidirectionalSequenceRNNOptions", **how)
    assert len(equal_sequence(tmp_path, writer)) == 8


@pytest.mark.parametrize("hybrid", [False, True])
def test_an_lstm_of_two_directions_keeps_four_states(tmp_path: Path, hybrid: bool) -> None:
    """Plain and merged; coupled with peepholes and steps first; with a projection; and a step alone."""
    writer, rng = ModelWriter(), np.random.default_rng(2)
    table, ways = "BidirectionalSequenceLSTMOptions", {"asymmetricQuantizeInputs": hybrid, "fusedActivationFunction": 4}
    for states, first, major in ((UNITS, 0, False), (UNITS, 1, True), (3, 0, True)):
        shape = (STEPS, 2) if major else (2, STEPS)
        given = [writer.activation((*shape, DEPTH), "float32")]
        for _ in range(2):
            given += of_two(writer, rng, states, first, hybrid)
        given += [writer.tensor((2, k), "float32", variable=True) for k in (states, UNITS) * 2]
        depths = (2 * states,) if first == 0 else (states, states)
        how: dict[str, Any] = {"timeMajor": major, "mergeOutputs": first == 0, "cellClip": 2.0, **ways}
        out = [writer.tensor((*shape, n), "float32") for n in depths]
        writer.operator("BIDIRECTIONAL_SEQUENCE_LSTM", [*given, *([-1] * 9)], out, table, **how)
    given = [writer.activation((2, DEPTH), "float32"), *of_two(writer, rng, UNITS, 0, hybrid)]
    given += [writer.tensor((2, UNITS), "float32", variable=True) for _ in range(2)]
    writer.operator("LSTM", given, [writer.tensor((2, UNITS), "float32")], "LSTMOptions", **ways)
    assert len(equal_sequence(tmp_path, writer)) == 14


def test_directions_read_another_layer(tmp_path: Path) -> None:
    """Beside their own input, by weights of their own; or the backward direction alone, without."""
    writer, rng = ModelWriter(), np.random.default_rng(3)
    for crossed in (True, False):
        inputs = [writer.activation((2, 2, DEPTH), "float32") for _ in range(2)]
        more = [matrix(writer, rng, (n, DEPTH), False) if crossed else -1 for n in (UNITS, 5)]
        given = [inputs[0], *simple(writer, rng, UNITS, False), *simple(writer, rng, 5, False), inputs[1], *more]
        out = [writer.tensor((2, 2, n), "float32") for n in (UNITS, 5)]
        how: dict[str, Any] = {"fusedActivationFunction": 4, "timeMajor": not crossed}
        writer.operator("BIDIRECTIONAL_SEQUENCE_RNN", given, out, "BidirectionalSequenceRNNOptions", **how)
    assert len(equal_sequence(tmp_path, writer)) == 4


@pytest.mark.parametrize("integer", [False, True])
def test_steps_of_a_loop_go_on_where_the_one_before_ended(tmp_path: Path, integer: bool) -> None:
    """With --stateless, where calls begin anew as the reference does that is reset; else they are refused with that remedy."""
    writer, rng, graphs = ModelWriter(), np.random.default_rng(4), [ModelWriter(), ModelWriter()]
    kinds = ((1, 9), (1, 7), "int8") if integer else ((2, DEPTH), (2, UNITS), "float32")

    def carried(graph: ModelWriter, x: int) -> list[int]:
        return [graph.tensor((), "int32"), x, graph.tensor(kinds[1], kinds[2], 0.3 if integer else None, -20)]

    def entering(graph: ModelWriter) -> int:
        return graph.tensor(kinds[0], kinds[2], 0.02 if integer else None, 5)

    for graph in graphs[:1]:
        graph.inputs = carried(graph, entering(graph))
        limit, holds = graph.constant(np.array(3, "int32")), graph.tensor((), "bool")
        graph.operator("LESS", [graph.inputs[0], limit], [holds], "LessOptions")
    body = graphs[1]
    if integer:
        svdf(body, "int16")
        x, made = body.inputs[0], body.outputs[0]
    else:
        x, made = entering(body), body.tensor(kinds[1], "float32")
        given = [x, *simple(body, rng, UNITS, False)]
        body.operator("RNN", given, [made], "RNNOptions", fusedActivationFunction=4)
    body.inputs, after = carried(body, x), body.tensor((), "int32")
    body.operator("ADD", [body.inputs[0], body.constant(np.array(1, "int32"))], [after], "AddOptions", inner=True)
    body.outputs = [after, x, made]
    x = writer.activation(kinds[0], kinds[2], 0.02 if integer else None, 5)
    first = np.zeros(kinds[1], kinds[2])
    inputs = [writer.constant(np.array(0, "int32")), x, writer.constant(first, 0.3 if integer else None, -20)]
    outputs = carried(writer, entering(writer))
    condition, steps = (writer.body(graph) for graph in graphs)
    how: dict[str, Any] = {"condSubgraphIndex": condition, "bodySubgraphIndex": steps}
    writer.operator("WHILE", inputs, outputs, "WhileOptions", inner=True, **how)
    writer.outputs = outputs[2:]
    equal_outputs(tmp_path, writer)
    with pytest.raises(LoadError, match=r"recurrent operator inside of a loop.*--stateless"):
        load(tmp_path / "m.tflite")


@pytest.mark.parametrize("kind", ["int16", "float32", "hybrid"])
def test_filters_look_at_the_calls_before(tmp_path: Path, kind: str) -> None:
    writer = ModelWriter()
    for batch, rank in ((1, 1), (2, 2), (1, 3)):
        svdf(writer, kind, batch, rank)
    assert len(equal_sequence(tmp_path, writer)) == 3


@pytest.mark.parametrize("rank", [1, 2])
def test_filters_of_micro_keep_bytes(tmp_path: Path, rank: int) -> None:
    """Of int8: what arbitrates in LiteRT's place keeps them too; the rows move up in the state itself, and no copy is kept."""
    writer = ModelWriter()
    svdf(writer, "int8", 1, rank)
    svdf(writer, "int16", 1, rank)
    path, calls = tmp_path / "m.tflite", 30
    path.write_bytes(writer.finish())
    rows = {f"t{k}": np.random.default_rng(k).integers(-128, 128, (calls, 9), "int8") for k in (0, 5)}
    rows = {s.name: a for s, a in zip(io_spec(load(path)).own_inputs, rows.values(), strict=True)}
    np.savez(tmp_path / "f.npz", **rows)
    compiled = tvm_cascade.compile(path, target="cortex-m4", output=tmp_path / "p")
    states = 28 * rank * 3
    assert states <= compiled.plan.peak <= states + 80
    ran = tvm_cascade.run(tmp_path / "p", frames=tmp_path / "f.npz", check=path, outputs=tmp_path / "o.npz")
    assert ran.match and ran.frames == calls
    with np.load(tmp_path / "o.npz") as made:
        assert all(len(np.unique(made[name], axis=0)) > calls // 2 for name in made.files)


def test_calls_that_are_apart_keep_nothing(tmp_path: Path) -> None:
    """By an option, and where the filters look at one step alone."""
    writer = ModelWriter()
    svdf(writer, "int16", steps=1)
    path = tmp_path / "m.tflite"
    path.write_bytes(writer.finish())
    assert io_spec(load(path)).states == ()
    writer = ModelWriter()
    svdf(writer, "int16")
    lstm(writer, "int8")
    path.write_bytes(writer.finish())
    assert [len(io_spec(load(path, stateless=s)).states) for s in (False, True)] == [3, 0]
    whole = tvm_cascade.plan(path, target="cortex-m4").plan.peak
    assert tvm_cascade.plan(path, target="cortex-m4", stateless=True).plan.peak < whole - 56


@pytest.mark.parametrize("kind", ["int8", "float32", "hybrid"])
def test_an_lstm_goes_on_where_the_last_call_ended(tmp_path: Path, kind: str) -> None:
    writer = ModelWriter()
    for batch, steps, major in ((1, 1, False), (2, STEPS, False), (2, STEPS, True)):
        lstm(writer, kind, batch, steps, major)
    lstm(writer, kind, states=UNITS - 2)
    assert len(equal_sequence(tmp_path, writer)) == 8


def test_rows_slide_in_front_of_a_layer_that_begins_every_window_anew(tmp_path: Path) -> None:
    """A convolution and an LSTM over its rows: with states they are no window, without them every frame is checked."""
    writer, rng = ModelWriter(), np.random.default_rng(0)
    x = writer.activation((1, 10, 1, DEPTH), "int8", 0.02, 5)
    weights = writer.constant(rng.integers(-127, 128, (DEPTH, 3, 1, DEPTH)).astype("int8"), 0.01)
    bias = writer.constant(rng.integers(-900, 900, DEPTH).astype("int32"), 0.0002)
    rows = writer.tensor((1, 8, 1, DEPTH), "int8", 0.02, 5)
    how = {"padding": 1, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    writer.operator("CONV_2D", [x, weights, bias], [rows], "Conv2DOptions", inner=True, **how)
    flat = writer.tensor((1, 8, DEPTH), "int8", 0.02, 5)
    writer.operator("RESHAPE", [rows], [flat], "ReshapeOptions", newShape=[1, 8, DEPTH])
    lstm(writer, "int8", steps=8, x=flat)
    path, folder = tmp_path / "m.tflite", tmp_path / "p"
    path.write_bytes(writer.finish())
    with pytest.raises(UsageError, match=r"network that keeps nothing, and this one keeps .*--stateless"):
        tvm_cascade.plan(path, target="cortex-m4", hop=1)
    made = tvm_cascade.compile(path, target="host", hop=1, stateless=True, output=folder)
    assert made.frame is not None and made.frame["macs"] < made.frame["whole_macs"]
    (name,) = (s.name for s in io_spec(load(path, stateless=True)).inputs)
    np.savez(tmp_path / "f.npz", **{name: rng.integers(-128, 128, (30, 1, 1, DEPTH), "int8")})
    ran = tvm_cascade.run(folder, frames=tmp_path / "f.npz", outputs=tmp_path / "o.npz", check=path)
    assert ran.match and ran.frames == 30
