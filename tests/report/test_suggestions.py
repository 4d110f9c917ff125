"""Options that `plan` suggests: they are named where they help, with the bytes that come true."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.cascading import PlanOptions, plan_graph
from tvm_cascade.cores.cortex_m4 import STEPS
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.footprints import RowTable
from tvm_cascade.graph import Graph
from tvm_cascade.importers.cut import FileGraph, Node
from tvm_cascade.importers.shorter_end import end_of_work
from tvm_cascade.report.suggestions import suggestions
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.graphs import ds_cnn, mobilenet_v1
from tvm_cascade.testing.onnx_layers import Layers
from tvm_cascade.testing.tflite import ModelWriter

_OPTIONS = PlanOptions(steps=STEPS)


def _said(graph: Graph, options: PlanOptions) -> tuple[str, ...]:
    return suggestions(plan_graph(graph, options), options, {})


def _with_pixels(graph: Graph) -> Graph:
    """The same, whose operators have kernels of some pixels that need little workspace."""
    kernels = [replace(op.kernels, row_tables=(RowTable(taps=1, pixel_bytes=1, span=1, stride=1),)) for op in graph.ops]
    return replace(graph, ops=tuple(replace(op, kernels=k) for op, k in zip(graph.ops, kernels, strict=True)))


def test_more_time_gives_the_arena_that_is_promised() -> None:
    graph, tight = _with_pixels(ds_cnn()), replace(_OPTIONS, max_time=1.0)
    (line,) = [s for s in _said(graph, tight) if s.startswith("--max-time")]
    found = re.match(r"--max-time (\S+): an arena of (\d+) bytes in place of (\d+)", line)
    assert found is not None
    factor, smaller, now = float(found[1]), int(found[2]), int(found[3])
    assert now == plan_graph(graph, tight).peak > smaller == plan_graph(graph, replace(tight, max_time=factor)).peak
    assert not any(s.startswith("--max-time") for s in _said(graph, replace(tight, max_time=factor)))
    assert not any(s.startswith("--max-time") for s in _said(graph, replace(tight, sram=2 * now)))


@pytest.mark.parametrize(
    ("side", "channels", "alpha", "helps"), [(96, 3, 0.25, True), (80, 2, 0.25, True), (64, 1, 0.5, False)]
)
def test_streaming_is_suggested_where_a_plan_with_it_is_smaller(
    side: int, channels: int, alpha: float, helps: bool
) -> None:
    """With an arena that such a plan keeps within; where it costs RAM nothing is said."""
    graph = mobilenet_v1(side, side, channels, alpha=alpha, classes=2)
    name, size = graph.tensors[graph.inputs[0]].name, side * side * channels
    streamed, plain = replace(_OPTIONS, stream_input=True), plan_graph(graph, _OPTIONS).peak
    lines = [s for s in _said(graph, _OPTIONS) if s.startswith("--stream-input")]
    assert len(lines) == helps == (plan_graph(graph, streamed).peak < plain)
    for line in lines:
        found = re.match(
            rf"--stream-input: an arena of (\d+) bytes or fewer in place of {plain}, as {name} \({size} bytes\)", line
        )
        assert found is not None and plan_graph(graph, streamed).peak <= int(found[1]) < plain
    assert _said(graph, streamed) == _said(graph, replace(_OPTIONS, layerwise=True)) == ()


@pytest.mark.parametrize(("size", "channels", "helps"), [(16, 8, False), (16, 1, True)])
def test_streaming_is_not_suggested_where_the_output_overwrites_the_input(
    size: int, channels: int, helps: bool
) -> None:
    net = Net(layout="NHWC")
    mod = net.finish(net.conv(net.input((1, size, size, 1)), channels, stride=1 if channels > 1 else 4))
    plain, streamed = (tvm_cascade.plan(mod, stream_input=s) for s in (False, True))
    assert (streamed.peak_bytes < plain.peak_bytes) == helps
    assert any(s.startswith("--stream-input") for s in plain.suggestions) == helps


def test_inputs_behind_a_reshape_and_floats_that_are_only_quantized(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    rng, w = np.random.default_rng(0), ModelWriter()
    x = w.activation((1, 432), "float32", name="x")
    flat, image = (w.tensor(shape, "int8", 0.1) for shape in ((1, 432), (1, 12, 12, 3)))
    w.operator("QUANTIZE", [x], [flat], inner=True)
    w.operator("RESHAPE", [flat, w.constant(np.array([1, 12, 12, 3], "int32"))], [image], "ReshapeOptions", inner=True)
    w.outputs = [w.convolution(image, 1, 3, 2, rng)]
    path = tmp_path / "n.tflite"
    path.write_bytes(w.finish())
    plain = tvm_cascade.plan(path)
    assert "--stored-io: x takes 432 bytes as the integers that the network stores, 1728 as floats" in plain.suggestions
    assert plain.to_dict()["suggestions"] == list(plain.suggestions) and plain.suggestions[0] in plain.to_text(
        details=True
    )
    stored = tvm_cascade.plan(path, stored_io=True)
    assert [s.split(":")[0] for s in stored.suggestions] == ["--stream-input"] and stored.peak_bytes < plain.peak_bytes
    streamed = tvm_cascade.plan(path, stored_io=True, stream_input=True)
    assert streamed.suggestions == () and streamed.peak_bytes < stored.peak_bytes


def test_a_map_that_the_end_enlarges_is_left_to_the_host(tmp_path: Path) -> None:
    """Classes of a small map, enlarged to the size of the image: the file is cut in front, by the name of its tensor."""
    pytest.importorskip("ai_edge_litert")
    rng, w = np.random.default_rng(0), ModelWriter()
    x = w.activation((1, 32, 32, 3), "int8", 0.1, 3, name="image")
    logits = w.convolution(w.convolution(x, 8, 3, 4, rng, name="stem"), 9, 1, 1, rng, name="of 9, small")
    large, classes = w.tensor((1, 32, 32, 9), "int8", 0.05), w.tensor((1, 32, 32), "int32")
    size, last = w.constant(np.array([32, 32], "int32")), w.constant(np.array(3, "int32"))
    w.operator("RESIZE_BILINEAR", [logits, size], [large], "ResizeBilinearOptions", inner=True)
    w.operator("ARG_MAX", [large, last], [classes], "ArgMaxOptions", inner=True, outputType=2)
    w.outputs = [classes]
    path = tmp_path / "n.tflite"
    path.write_bytes(w.finish())
    whole = tvm_cascade.plan(path)
    cut = tvm_cascade.plan(path, until="of 9, small")
    (line,) = [s for s in whole.suggestions if s.startswith("--until")]
    assert line.startswith(
        f"--until 'of 9, small': an arena of {cut.peak_bytes} bytes in place of {whole.peak_bytes}; your"
    )
    assert 3 * cut.peak_bytes < whole.peak_bytes and not any("--until" in s for s in cut.suggestions)
    assert not any("--until" in s for s in tvm_cascade.plan(path, sram=whole.peak_bytes).suggestions)
    said = dict[int, str]()
    for cap in (cut.peak_bytes, whole.peak_bytes // 2, 64):
        with pytest.raises(InfeasibleError, match=f"{cap} available") as refused:
            tvm_cascade.plan(path, sram=cap)
        said[cap] = refused.value.remedy
    with pytest.raises(InfeasibleError, match=r"; or --until 'of 9, small': an arena of .* bytes, which fits; your"):
        tvm_cascade.compile(path, target="host", output=tmp_path / "out", sram=whole.peak_bytes // 2)
    within = tvm_cascade.plan(path, until="of 9, small", sram=cut.peak_bytes)
    assert f"an arena of {within.peak_bytes} bytes, which fits" in said[cut.peak_bytes]
    assert [cap for cap, remedy in said.items() if "--until" not in remedy] == [64]


def test_an_end_is_cut_behind_what_makes_its_tensors_smaller(tmp_path: Path) -> None:
    """Quantized, in ONNX: the result of the last convolution leaves as its integers, not as the floats before them."""
    pytest.importorskip("onnx")
    net = Layers()
    stem = net.stored(net.node("Conv", net.stored("x"), net.weight((4, 3, 1, 1)), strides=[2, 2]))
    real = net.stored(net.node("Relu", stem))
    (stored,) = net.nodes[-1].input[:1]
    scales = net.constant(np.array([1, 1, 4, 4], "float32"))
    large = net.stored(net.node("Resize", real, "", scales, mode="nearest"))
    net.save(tmp_path / "n.onnx", large, (1, 3, 16, 16), 4)
    whole = tvm_cascade.plan(tmp_path / "n.onnx", stored_io=True)
    (line,) = [s for s in whole.suggestions if s.startswith("--until")]
    assert line.startswith(f"--until {stored}: ")


def test_the_end_of_the_work_is_bisected_for() -> None:
    """Of 200 operators in a chain, the last that works is the 150th; the tensor behind it is no larger, the next one is."""
    nodes = tuple(Node((f"t{k}",), (f"t{k + 1}",)) for k in range(200))
    tried: list[str] = []

    def lacks(names: Sequence[str]) -> bool:
        tried.extend(names)
        return int(names[0][1:]) <= 150

    sizes = {f"t{k}": 9 if k > 152 else 4 for k in range(201)}
    graph = FileGraph(nodes, ("t0",), ("t200",))
    assert end_of_work(graph, lacks, lambda names: sizes) == ("t152",) and len(tried) <= 8
    assert end_of_work(graph, lacks, lambda names: {}) == ("t151",)
    assert end_of_work(replace(graph, outputs=("t151",)), lacks, lambda names: sizes) == ()
