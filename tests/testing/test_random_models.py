"""Random networks of every door: a slice of `make differential`, planned with options at random, run, and compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("ai_edge_litert")
pytest.importorskip("onnxruntime")

import tvm_cascade
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.forked import PASS, REFUSED, WRONG, Outcome
from tvm_cascade.testing.random_models.check import (
    FAULTS,
    Case,
    apart,
    difference,
    examined,
    planned_outputs,
    with_ties,
)
from tvm_cascade.testing.random_models.draw import draw, draw_operators
from tvm_cascade.testing.random_models.operators import draw_any_operators
from tvm_cascade.testing.random_models.references import reference

SEEDS = ((3, "tflite", "int8"), (4, "tflite", "uint8"), (5, "tflite", "int16"), (6, "tflite", "float32"),
         (7, "tflite", "int8"), (8, "tflite", "int8"), (9, "onnx", "float32"), (10, "onnx", "float32"),
         (11, "onnx", "qdq"), (12, "onnx", "qdq_int8"), (13, "onnx", "qlinear"), (14, "tflite", "int8"),
         (6, "tflite", "int16"), (31, "tflite", "int8"))  # fmt: skip


@pytest.mark.parametrize(("seed", "door", "form"), SEEDS)
def test_random_networks_compute_what_their_framework_computes(seed: int, door: str, form: str) -> None:
    case = Case.drawn(draw(seed, door, form), "host")
    assert examined(case, planned_outputs) == Outcome(PASS), f"{case.command()}\n{case.model.text()}"


def test_float_biases_are_stored_in_whole_steps_of_the_sum() -> None:
    one = draw_operators(1239438103412777, 100, "onnx", "qdq", 11).subset([31])  # 0.0024 of a step from a tie
    assert examined(Case(one), planned_outputs) == Outcome(PASS)


def test_the_bound_covers_orders_of_whole_rows() -> None:
    model = draw(21245334651037, "tflite", "uint8", opset=26).prefix(9)  # rows need 978 bytes in an order of their own
    assert examined(Case(model, options={"max_time": 10.0}), planned_outputs) == Outcome(PASS)


def test_the_work_of_transposed_volumes_is_counted() -> None:
    """Of a kernel of width 1, whose condition on weights between the steps of a dilation is always met."""
    volumes = draw_any_operators(1665548706381836, 200, "onnx", 20).subset([145])
    assert "conv_transpose" in volumes.text()
    assert examined(Case(volumes), planned_outputs) == Outcome(PASS)


def test_places_of_largest_floats_may_be_those_of_floats_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    model = draw(16, "onnx", "float32", opset=13)
    step = next(step for step in model.steps if step.kind == "argmax")
    model = replace(model, outputs=step.outputs)
    wanted = reference(model).outputs
    (values,) = reference(replace(model, outputs=step.inputs)).outputs
    smallest = [values.argmin(step.attrs["axis"]).astype(wanted[0].dtype)]
    assert difference(with_ties(model, smallest, wanted), wanted)
    monkeypatch.setattr("tvm_cascade.testing.random_models.check._FLOAT", 4.0)
    assert not difference(with_ties(model, smallest, wanted), wanted)


@pytest.mark.parametrize("groups", [1, 2])
def test_taps_that_step_over_the_input_are_no_work(groups: int, tmp_path: Path) -> None:
    """Four taps two columns apart, with three columns of padding before an input of a single column."""
    net, path = Net("float32", seed=1), tmp_path / "n"
    x = net.conv(net.input((1, 1, 1, 2), "x"), 2, (1, 4), padding=(0, 3, 0, 3), dilation=(1, 2), groups=groups)
    tvm_cascade.compile(net.finish(x), target="host", output=path)
    assert tvm_cascade.run(path).ok


@pytest.mark.usefixtures("emulator")
def test_gcc_removes_no_kernel() -> None:
    depthwise_after_gather = draw_operators(4712, 240, "tflite", "int8").subset([2, 27])
    assert depthwise_after_gather.steps[-1].kind == "depthwise"
    assert examined(Case(depthwise_after_gather, "cortex-m4")) == Outcome(PASS)


@pytest.mark.parametrize("door", ["tflite", "onnx"])
def test_independent_operators_of_any_kind(door: str) -> None:
    case = Case(draw_any_operators(3, 60, door, 20), options={"time_limit": 2.0}, planned=True, operators=60)
    found = {outcome for _, outcome in apart(case)}
    assert not {outcome.reason for outcome in found if outcome.verdict in FAULTS}
    assert Outcome(PASS) in found


def test_operators_beyond_the_ram_of_a_board_are_cut_to_files_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def refused(case: Case, until: float) -> Outcome:
        count = case.model.parts
        sizes.append(count)
        return Outcome(REFUSED, f"cap: needs {1000 * count} bytes, 4000 available") if count > 4 else Outcome(PASS)

    monkeypatch.setattr("tvm_cascade.testing.random_models.check.check", refused)
    found = list(apart(Case(draw_operators(1, 12, "tflite", "int8"), "cortex-m0plus", operators=12)))
    assert sizes == [12, 2, 2, 3, 2, 3]  # five files of 1.5 x 12000 / 4000
    assert sorted(k for case, _ in found for k in case.parts) == list(range(12))


def test_a_fault_of_operators_together_is_told_where_each_alone_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_together(case: Case, until: float) -> Outcome:
        return Outcome(WRONG, "3 of 4 differ") if {1, 3} <= set(case.parts or range(4)) else Outcome(PASS)

    monkeypatch.setattr("tvm_cascade.testing.random_models.check.check", wrong_together)
    case = Case(draw_operators(1, 4, "tflite", "int8"), operators=4)
    assert list(apart(case)) == [(case, Outcome(WRONG, "3 of 4 differ"))]


def test_networks_are_deterministic() -> None:
    assert draw(7, "tflite") == draw(7, "tflite")
    assert reference(draw(7, "tflite")).file == reference(draw(7, "tflite")).file


def test_every_kind_of_operator_is_drawn() -> None:
    drawn = {step.kind for door in ("tflite", "onnx") for step in draw_operators(1, 400, door, "float32").steps}
    assert len(drawn) >= 25


def test_the_smallest_prefix_of_a_fault_is_found() -> None:
    model = draw(8, "tflite", "int8")
    short = model.prefix(2)
    assert len(short.steps) == 2
    assert set(short.outputs) <= {t for step in short.steps for t in step.outputs} | set(short.inputs)
    for step in short.steps:
        assert set(step.inputs) <= {*short.inputs, *(t for s in short.steps for t in s.outputs)}
