"""The layer-by-layer baseline against the arena of an interpreter that places whole tensors, its memory planner written here
once more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade import pipeline
from tvm_cascade.cascading import baseline_peak
from tvm_cascade.cores import kernel_target
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.pipeline import prepare
from tvm_cascade.testing import weighted_cases
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.tflite import ModelWriter
from tvm_cascade.testing.tflm_arena import tflm_arena

_LARGEST_FILE = 950_000  # bytes


def test_buffers_take_the_lowest_gap_by_descending_size(tmp_path: Path) -> None:
    w = ModelWriter()
    x = w.activation((1, 100), "int8", 0.1, name="x")  # 112 bytes once rounded up, live in operators 0 and 1
    sizes = {"a": 40, "b": 300, "c": 20}  # 48, 304 and 32 bytes
    a, b, c = (w.tensor((1, n), "int8", 0.1, name=name) for name, n in sizes.items())
    w.outputs = [c]
    w.operator("LOGISTIC", [x], [a], inner=True)
    w.operator("ADD", [x, a], [b], "AddOptions", inner=True)
    w.operator("LOGISTIC", [b], [c], inner=True)
    path = tmp_path / "n.tflite"
    path.write_bytes(w.finish())
    # b at 0, x behind it (both are live in operator 1), a behind x, c in the gap that x leaves
    assert tflm_arena(path) == 304 + 112 + 48


def test_scratch_of_a_mean_is_counted(tmp_path: Path) -> None:
    w = ModelWriter()
    x = w.activation((1, 4, 4, 32), "int8", 0.1)
    axes = w.constant(np.array([1, 2], "int32"))
    w.operator("MEAN", [x, axes], [w.tensor((1, 32), "int8", 0.1)], "ReducerOptions")
    path = tmp_path / "n.tflite"
    path.write_bytes(w.finish())
    assert tflm_arena(path) == 512 + 32 + 4 * 32 + 4 * 4


def _mean(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = (1, *(int(n) for n in rng.integers(2, 9, 3)))
    axes, made = w.constant(np.array([1, 2], "int32")), w.tensor((1, shape[3]), dtype, 0.1)
    w.operator("MEAN", [w.activation(shape, dtype, 0.1), axes], [made], "ReducerOptions")


def baseline(path: Path) -> int:
    """The baseline of a file's plans on the host, whose blocks are aligned as the interpreter's."""
    target = kernel_target("host", "c")
    return baseline_peak(prepare(pipeline.load(path).mod, target).graph, target.core.align)


def test_no_public_network_has_a_baseline_above_the_interpreter_s_arena(test_data: Path) -> None:
    found = {}
    for path in (p for p in sorted((test_data / "models").glob("*.tflite")) if p.stat().st_size < _LARGEST_FILE):
        found[path.stem] = baseline(path), tflm_arena(path)
    for path in sorted((test_data / "cases" / "operators").glob("op*.tflite")):
        if "LOCAL_RESPONSE" not in path.stem:  # of which it has no kernel
            found[path.stem] = baseline(path), tflm_arena(path)
    assert found and all(0 < ours <= theirs for ours, theirs in found.values()), found


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("generate", [weighted_cases.lstm, weighted_cases.svdf, _mean])
def test_scratch_and_states_are_no_more_than_the_interpreter_s(
    tmp_path: Path, generate: Callable[..., None], dtype: str
) -> None:
    for seed in range(8):  # SVDFs of one batch and of several
        w, path = ModelWriter(), tmp_path / "n.tflite"
        generate(np.random.default_rng(seed), dtype, w)
        path.write_bytes(w.finish())
        assert 0 < baseline(path) <= tflm_arena(path), seed


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_bias_and_activation_are_part_of_their_convolution(layout: str) -> None:
    net = Net("float32", layout=layout)
    x = net.input((1, 8, 8, 4) if layout == "NHWC" else (1, 4, 8, 8))
    x = net.conv(x, 16, kernel=3, activation="relu")
    graph = extract_graph(net.finish(net.conv(x, 2, kernel=1))).graph
    assert {"conv2d", "add", "relu"} <= {op.kind for op in graph.ops}
    assert baseline_peak(graph, 4) == 4 * 8 * 8 * (4 + 16)
