"""Variables of `.tflite` files as states: sequences of calls against LiteRT, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from tvm_cascade.cascading import plan_graph, validate
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import LoadError, UnsupportedOperatorError, UsageError
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.pipeline import prepare
from tvm_cascade.tensor_spec import State
from tvm_cascade.testing.host_check import run_calls
from tvm_cascade.testing.streaming import wake_word
from tvm_cascade.testing.tflite import ModelWriter

CALLS = 1000


def sequence(data: bytes, calls: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """What LiteRT's reference kernels return, call by call."""
    interpreter = Interpreter(
        model_content=data, experimental_op_resolver_type=OpResolverType.BUILTIN_REF, num_threads=1
    )
    interpreter.allocate_tensors()
    made = []
    for arrays in calls:
        for detail, array in zip(interpreter.get_input_details(), arrays, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        made.append([interpreter.get_tensor(d["index"]).copy() for d in interpreter.get_output_details()])
    return made


def ours(folder: Path, data: bytes, calls: list[list[np.ndarray]]) -> list[tuple[np.ndarray, ...]]:
    (folder / "m.tflite").write_bytes(data)
    ready = prepare(load(folder / "m.tflite"), KernelTarget())
    plan = plan_graph(ready.graph)
    validate(plan)
    return run_calls(ready, plan, ready.io, calls)


def test_a_streaming_network_is_exact_over_a_thousand_calls(tmp_path: Path) -> None:
    data, rng = wake_word(), np.random.default_rng(0)
    calls = [[rng.integers(-128, 128, (1, 1, 1, 12), "int8")] for _ in range(CALLS)]
    expected = sequence(data, calls)
    assert len({e[0].tobytes() for e in expected}) > CALLS // 2
    for made, (labels,) in zip(ours(tmp_path, data, calls), expected, strict=True):
        np.testing.assert_array_equal(made[0], labels)
    states = io_spec(load(tmp_path / "m.tflite")).states
    assert [(s.name, set(s.initial), len(s.initial)) for s in states] == [
        ("ring0", {251}, 24),
        ("ring1", {251}, 32),
        ("ring2", {251}, 24),
    ]


def accumulator(first: bool = True, assigns: bool = True, again: bool = False) -> ModelWriter:
    """`sum += x`, which returns the sum before; with `again` it is read once more after it is assigned."""
    writer = ModelWriter()
    if first:
        writer.begin_with({"sum": np.arange(4, dtype="float32").reshape(1, 4)})
    x = writer.activation((1, 4), "float32")
    handle = writer.variable("sum")
    before, after = (writer.tensor((1, 4), "float32") for _ in range(2))
    writer.operator("READ_VARIABLE", [handle], [before], "ReadVariableOptions", inner=True)
    writer.operator("ADD", [before, x], [after], "AddOptions", inner=again)
    if assigns:
        writer.operator("ASSIGN_VARIABLE", [handle, after], [], "AssignVariableOptions", inner=True)
    if again:
        reread, doubled = (writer.tensor((1, 4), "float32") for _ in range(2))
        writer.operator("READ_VARIABLE", [handle], [reread], "ReadVariableOptions", inner=True)
        writer.operator("ADD", [reread, before], [doubled], "AddOptions")
    return writer


@pytest.mark.parametrize(("assigns", "again"), [(True, False), (True, True), (False, False)])
def test_variables_hold_what_was_assigned_last(tmp_path: Path, assigns: bool, again: bool) -> None:
    data, rng = accumulator(assigns=assigns, again=again).finish(), np.random.default_rng(0)
    calls = [[rng.standard_normal((1, 4)).astype("float32")] for _ in range(6)]
    for made, expected in zip(ours(tmp_path, data, calls), sequence(data, calls), strict=True):
        for one, other in zip(made, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)
    kept = io_spec(load(tmp_path / "m.tflite")).states
    assert kept == ((State("sum", np.arange(4, dtype="float32").tobytes()),) if assigns else ())


def test_a_variable_that_nothing_sets_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(accumulator(first=False, assigns=False).finish())
    with pytest.raises(UnsupportedOperatorError, match=r"READ_VARIABLE.*a variable that nothing sets"):
        load(tmp_path / "m.tflite")


def test_a_first_value_of_another_size_is_refused(tmp_path: Path) -> None:
    writer = accumulator(first=False)
    writer.begin_with({"sum": np.ones(3, "float32")})
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    with pytest.raises(LoadError, match="variable sum is set to 12 bytes and read as 16"):
        load(tmp_path / "m.tflite")


def test_a_part_of_a_network_with_variables_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(accumulator().finish())
    with pytest.raises(UsageError, match="assigns variables is read whole"):
        load(tmp_path / "m.tflite", until="t3")


def test_a_file_may_leave_out_empty_vectors(tmp_path: Path) -> None:
    """VAR_HANDLE has no inputs, ASSIGN_VARIABLE no outputs and a scalar no shape: TensorFlow's converter writes no vectors."""
    writer = accumulator()
    total = writer.tensor((), "float32")
    axes = writer.constant(np.array([0, 1], "int32"))
    writer.operator("SUM", [writer.inputs[0], axes], [total], "ReducerOptions", keepDims=False)
    data, rng = writer.finish(lean=True), np.random.default_rng(0)
    calls = [[rng.integers(-9, 9, (1, 4)).astype("float32")] for _ in range(3)]
    for made, expected in zip(ours(tmp_path, data, calls), sequence(data, calls), strict=True):
        for mine, theirs in zip(made, expected, strict=False):
            np.testing.assert_array_equal(np.reshape(mine, theirs.shape), theirs)
