"""Networks that enlarge: transposed convolution and depth_to_space in cascades, equal to the reference kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade import api, pipeline
from tvm_cascade.cascading import PlanOptions, plan_graph
from tvm_cascade.cores import KernelTarget
from tvm_cascade.emit.host import host_program, run_host
from tvm_cascade.emit.placement import place_io
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.frontend import load
from tvm_cascade.graph import Window
from tvm_cascade.passes.candidates.inputs_spread import InputsSpread
from tvm_cascade.passes.cascade import ARENA_ATTR, Cascade
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.lower_quantized import SOURCE_ATTR, LowerQuantized, lowered, with_inputs_spread
from tvm_cascade.passes.plan_network import plan_network
from tvm_cascade.request import PlanRequest
from tvm_cascade.tensor_spec import graph_io
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.tflite import ModelWriter
from tvm_cascade.testing.zoo.super_resolution import espcn, fsrcnn

HEIGHT, WIDTH = 41, 9
ROWS = rows_alone(granularity="row", overlap=False)
PIXELS = rows_alone(granularity="pixel", pixels=True, overlap=False)


def run(prepared: pipeline.Prepared, options: PlanOptions, feed: np.ndarray) -> tuple[np.ndarray, int, Any]:
    plan = plan_graph(prepared.graph, options)
    io = place_io(plan, graph_io(plan.graph))
    result = run_host(host_program(pipeline.lower(prepared, plan, counted=True), io), [{io.inputs[0].name: feed}])
    return result.outputs[0][io.outputs[0].name], result.executed_macs, plan


@pytest.mark.parametrize(("make", "factor"), [(espcn, 3), (espcn, 2), (fsrcnn, 3), (fsrcnn, 2)])
def test_cascaded_equals_the_reference(make: Callable[..., bytes], factor: int, tmp_path: Path) -> None:
    reference = pytest.importorskip("tvm_cascade.testing.reference")
    pytest.importorskip("ai_edge_litert")
    path = tmp_path / "network.tflite"
    path.write_bytes(make(HEIGHT, WIDTH, factor))
    feed = np.random.default_rng(0).integers(-128, 128, (1, HEIGHT, WIDTH, 1)).astype("int8")
    (want,) = reference.Reference(path.read_bytes()).run([feed])
    assert want.shape == (1, HEIGHT * factor, WIDTH * factor, 1) and want.std() > 5
    prepared = pipeline.prepare(load(path), KernelTarget())
    layerwise = plan_graph(prepared.graph, rows_alone(layerwise=True)).peak
    for options in (ROWS, PIXELS):
        have, macs, plan = run(prepared, options, feed)
        np.testing.assert_array_equal(have, want)
        assert macs == plan.macs == plan.baseline_macs
        last = [o.index for o in plan.graph.ops if not o.view][-1]
        assert any(last in s.ops and len(s.ops) > 1 for s in plan.segments), "what enlarges is part of a cascade"
        assert plan.peak < layerwise


def test_windows_of_what_enlarges(tmp_path: Path) -> None:
    (tmp_path / "f.tflite").write_bytes(fsrcnn(HEIGHT, WIDTH, 3))
    spread = with_inputs_spread(load(tmp_path / "f.tflite"))
    assert spread is not None and with_inputs_spread(spread) is None
    op = extract_graph(lowered(spread)).graph.ops[-1]
    assert op.windows == op.columns == (Window(4, 1, 1, 2, 3),)  # 9 taps over an input spread apart by 3
    (tmp_path / "e.tflite").write_bytes(espcn(HEIGHT, WIDTH, 2))
    graph = extract_graph(lowered(load(tmp_path / "e.tflite"))).graph
    assert all(op.opaque is None for op in graph.ops)
    assert [op.kind for op in graph.ops if not op.view] == ["conv2d", "conv2d", "conv2d", "transpose"]


def test_a_project_of_it_runs_and_is_checked(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    path = tmp_path / "espcn.tflite"
    path.write_bytes(espcn(8, 9, 2))
    made = api.compile(path, target="host", output=tmp_path / "out")
    report = api.run(tmp_path / "out", check=path)
    assert report.ok and report.match and made.plan.peak == report.arena_bytes


def test_an_overlapping_window_takes_the_kernels_of_convolutions(tmp_path: Path) -> None:
    """FSRCNN's last layer, nine taps at a stride of three: a convolution for each place in a stride, by default."""
    path = tmp_path / "f.tflite"
    path.write_bytes(fsrcnn(HEIGHT, WIDTH, 3))
    told = tvm_cascade.plan(path, target="cortex-m4").to_dict()
    assert told["macs"] == told["baseline_macs"] == told["file_macs"]
    assert told["cycles"] < 12 * told["macs"]


def transposed(folder: Path, size: int, stride: int, padding: int, side: int) -> Path:
    """Write a network of one transposed convolution of 7 x 7 pixels, to `side` rows and columns."""
    rng, w = np.random.default_rng(size), ModelWriter()
    x = w.activation((1, 7, 7, 8), "int8", 0.05, -4)
    filters = rng.integers(-127, 128, (8, size, size, 8)).astype("int8")
    scales = rng.uniform(0.005, 0.02, 8)
    weights = w.tensor(filters.shape, "int8", scales, data=filters)
    bias = w.tensor((8,), "int32", scales * 0.05, data=rng.integers(-999, 999, 8).astype("int32"))
    shape = w.constant(np.array([1, side, side, 8], "int32"))
    how = {"padding": padding, "strideW": stride, "strideH": stride, "version": 3}
    y = w.tensor((1, side, side, 8), "int8", 0.2, 5)
    w.operator("TRANSPOSE_CONV", [shape, weights, x, bias], [y], "TransposeConvOptions", **how)
    path = folder / "t.tflite"
    path.write_bytes(w.finish())
    return path


@pytest.mark.parametrize(
    "size, stride, padding, side",
    [(3, 2, 1, 15), (3, 2, 0, 13), (4, 3, 0, 20), (5, 3, 1, 23), (1, 2, 0, 14), (2, 3, 0, 21), (2, 2, 0, 13)],
)
def test_every_stride_and_padding_takes_the_kernels_of_convolutions(
    tmp_path: Path, size: int, stride: int, padding: int, side: int
) -> None:
    """Outputs that the stride does not divide are cropped; phases without taps take a single zero weight."""
    pytest.importorskip("ai_edge_litert")
    path = transposed(tmp_path, size, stride, padding, side)
    told = tvm_cascade.plan(path, target="cortex-m4").to_dict()
    assert told["cycles"] < 13 * told["macs"]
    tvm_cascade.compile(path, target="host", output=tmp_path / "out")
    assert tvm_cascade.run(tmp_path / "out", check=path).match


def enlarging_twice(folder: Path) -> Path:
    """Write a network of two transposed convolutions: phases lie beside their whole, an input spread apart streams."""
    rng, w = np.random.default_rng(0), ModelWriter()
    x = w.activation((1, 16, 16, 16), "int8", 0.05)
    for side, channels in ((32, 8), (64, 3)):
        filters = w.constant(rng.integers(-127, 128, (channels, 3, 3, 16 if side == 32 else 8)).astype("int8"), 0.01)
        y = w.tensor((1, side, side, channels), "int8", 0.3)
        shape = w.constant(np.array([1, side, side, channels], "int32"))
        w.operator("TRANSPOSE_CONV", [shape, filters, x], [y], "TransposeConvOptions", padding=0, strideW=2, strideH=2)
        x = y
    w.outputs = [x]
    path = folder / "n.tflite"
    path.write_bytes(w.finish())
    return path


def test_a_cap_that_the_fast_form_exceeds_takes_the_small_one(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    path = enlarging_twice(tmp_path)
    fast = tvm_cascade.plan(path, target="cortex-m4")
    small = tvm_cascade.plan(path, target="cortex-m4", sram=fast.peak_bytes - 1)
    assert small.peak_bytes < fast.peak_bytes and small.to_dict()["cycles"] > 5 * fast.to_dict()["cycles"]
    for cap in (None, small.peak_bytes):
        tvm_cascade.compile(path, target="host", output=tmp_path / f"{cap}", sram=cap)
        assert tvm_cascade.run(tmp_path / f"{cap}", check=path).match


def test_modules_lowered_before_have_the_small_form(tmp_path: Path) -> None:
    """As long as nothing has changed a module since; a network without such layers is lowered once."""
    mod: Any = LowerQuantized()(load(enlarging_twice(tmp_path)))  # pyright: ignore[reportCallIssue]
    fast = plan_network(mod, PlanRequest())
    cap = PlanRequest(sram=fast.plan.peak - 1)
    small = plan_network(mod, cap)
    assert small.plan.peak < fast.plan.peak and list(small.kept) == [InputsSpread.name] and not fast.kept
    assert small.exactness == {InputsSpread.name: "every bit stays"}
    made: Any = Cascade(cap)(mod)  # pyright: ignore[reportCallIssue]
    assert int(made.attrs[ARENA_ATTR]) == small.plan.peak
    with pytest.raises(InfeasibleError):
        plan_network(mod.without_attr(SOURCE_ATTR), cap)


def test_time_lets_an_input_be_spread_apart_without_a_cap(tmp_path: Path) -> None:
    mod = load(enlarging_twice(tmp_path))
    fast, slow = (plan_network(mod, PlanRequest(max_time=t)) for t in (None, 200.0))
    assert slow.plan.peak < fast.plan.peak and InputsSpread.name in slow.kept and not fast.kept
