"""`quantize` of `.onnx`: QDQ files by ONNX Runtime's quantizer, calibrated on data of the tests' own, that are planned."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import helper, numpy_helper

import tvm_cascade
from tvm_cascade.checking.onnx_reference import runtime_function
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.errors import LoadError, MissingToolError, UsageError
from tvm_cascade.quantization.mixed_bits import scale_of_four_bits
from tvm_cascade.testing.onnx_layers import Layers

N = 12


def call(*args: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float network of two convolutions, a normalization and a matrix product, whose batch is open."""
    layers = Layers()
    draw, constant = layers.rng.normal, layers.constant
    weights = draw(0, 0.3, (4, 3, 3, 3)) * np.array([0.1, 1, 3, 0.5])[:, None, None, None]  # of various ranges
    first = layers.node("Conv", "x", constant(weights.astype("float32")), pads=[1, 1, 1, 1])
    norm = [constant(layers.rng.uniform(0.5, 1.5, 4).astype("float32")) for _ in range(4)]
    active = layers.node("Relu", layers.node("BatchNormalization", first, *norm))
    second = layers.node("Conv", active, constant(draw(0, 0.3, (6, 4, 3, 3)).astype("float32")), strides=[2, 2])
    flat = layers.node("Flatten", layers.node("Relu", second))
    logits = layers.node("Gemm", flat, constant(draw(0, 0.3, (54, 5)).astype("float32")))
    path = tmp_path_factory.mktemp("quantize") / "net.onnx"
    layers.save(path, logits, (1, 3, 8, 8), 2)
    model = onnx.load(str(path))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, str(path))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "d.npz"
    rng = np.random.default_rng(7)
    np.savez(path, x=rng.normal(0, 1, (N, 3, 8, 8)).astype("float32"), labels=np.arange(N) % 5)
    return path


def layers_of(path: Path) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """Scale and zero point of the weights of every layer by its kind; an empty pair where they are floats."""
    graph = onnx.load(str(path)).graph
    stored = {w.name: numpy_helper.to_array(w) for w in graph.initializer}
    made = {o: n for n in graph.node for o in n.output}
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for node in graph.node:
        if node.op_type in ("Conv", "Gemm"):
            read = [made.get(name) for name in node.input[:2]]
            direct = all(n is not None and n.op_type == "DequantizeLinear" for n in read)
            pair = (stored[read[1].input[1]], stored[read[1].input[2]]) if direct else (np.zeros(0), np.zeros(0))  # type: ignore[union-attr]
            found.setdefault(node.op_type, []).append(pair)
    return found


def test_a_file_that_runs_and_is_planned(network: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "q.onnx"
    done = call("quantize", network, "--data", data, "-o", out, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["samples"] == N and found["calibration"] == "minmax" and found["left_float"] == {}
    assert found["layers"] == found["quantized_layers"] == found["per_channel_layers"] == 3
    assert found["bytes_after"] == out.stat().st_size and found["bytes_before"] == network.stat().st_size
    model = onnx.load(str(out))
    onnx.checker.check_model(model)
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 8, 8]
    assert "BatchNormalization" not in {n.op_type for n in model.graph.node}
    found_layers = layers_of(out)
    scales = [len(scale) for pairs in found_layers.values() for scale, _ in pairs]
    assert sorted(scales) == [4, 5, 6] and not any(zero.any() for pairs in found_layers.values() for _, zero in pairs)
    own = np.load(data)
    before, after = (
        tvm_cascade.validate(p, data={"x": own["x"], "labels": own["labels"]}, layerwise=True) for p in (network, out)
    )
    assert after.cosine > 0.999 and before.cosine > 0.999
    floats, stored = tvm_cascade.plan(network).peak_bytes, tvm_cascade.plan(out, stored_io=True).peak_bytes
    assert stored * 3 < floats


def test_text_says_how_to_go_on(network: Path, data: Path, tmp_path: Path) -> None:
    done = call("quantize", network, "--data", data, "-o", tmp_path / "q.onnx")
    assert "3 of 3 layers with weights, 3 by channel" in done.stdout and "stays float     nothing" in done.stdout
    assert f"of {N} samples the same class" in done.stdout.splitlines()[0]
    assert f"tvm-cascade plan {tmp_path / 'q.onnx'} --stored-io" in done.stdout


@pytest.mark.parametrize(("options", "floats"), [({"float_first": 1}, [0]), ({"float_last": 2}, [1, 2])])
def test_layers_that_stay_float(network: Path, data: Path, tmp_path: Path, options, floats: list[int]) -> None:
    result = tvm_cascade.quantize(network, data=data, output=tmp_path / "q.onnx", **options)
    layers = layers_of(tmp_path / "q.onnx")
    assert [k for k, (scale, _) in enumerate(layers["Conv"] + layers["Gemm"]) if not len(scale)] == floats
    left = [result.left_float.get(kind, 0) for kind in ("Conv", "Gemm")]
    assert result.layers - result.quantized_layers == len(floats) == sum(left)


def test_accuracy_before_and_after(network: Path, data: Path, tmp_path: Path) -> None:
    own = np.load(data)
    feeds = [own["x"][k : k + 1] for k in range(N)]
    before = [int(runtime_function(network)({"x": feed}).popitem()[1].argmax()) for feed in feeds]
    labels = np.array(before)
    labels[:3] = (labels[:3] + 1) % 5
    given = {"x": own["x"], "labels": labels}
    result = tvm_cascade.quantize(network, data=given, output=tmp_path / "q.onnx")
    after = [int(runtime_function(tmp_path / "q.onnx")({"x": feed}).popitem()[1].argmax()) for feed in feeds]
    assert result.accuracy_before == (N - 3) / N
    assert result.accuracy_after == np.mean(np.array(after) == labels)
    assert result.agreement == np.mean(np.array(after) == np.array(before)) and result.compared == N
    text = result.to_text().splitlines()[0]
    assert text.startswith(f"accuracy        {result.accuracy_after:.1%}, before 75.0%; both give")
    unlabelled = tvm_cascade.quantize(network, data={"x": own["x"]}, output=tmp_path / "q.onnx")
    assert unlabelled.accuracy_before is None and "not known: the data has no labels" in unlabelled.to_text()
    with pytest.raises(UsageError, match="the label of sample 0 is 5, and the first output has 5 elements"):
        tvm_cascade.quantize(network, data={"x": own["x"], "labels": labels * 0 + 5}, output=tmp_path / "q.onnx")


def bits_of(path: Path) -> list[int]:
    """Bits of stored weights of convolutions and products, in the order of the file."""
    graph = onnx.load(str(path)).graph
    kinds = {w.name: int(w.data_type) for w in graph.initializer}
    made = {o: n for n in graph.node for o in n.output}
    layers = [made[n.input[1]] for n in graph.node if n.op_type in ("Conv", "Gemm")]
    return [{int(onnx.TensorProto.INT8): 8, int(onnx.TensorProto.INT4): 4}[kinds[layer.input[0]]] for layer in layers]


@pytest.fixture(scope="module")
def learned(network: Path, data: Path) -> dict[str, np.ndarray]:
    """Samples with the classes of the float network as labels."""
    x = np.random.default_rng(3).normal(0, 1, (30, 3, 8, 8)).astype("float32")
    run = runtime_function(network)
    return {"x": x, "labels": np.array([int(run({"x": one[None]}).popitem()[1].argmax()) for one in x])}


def test_all_layers_have_four_bits_where_accuracy_does_not_matter(
    network: Path, learned: dict[str, np.ndarray], tmp_path: Path
) -> None:
    result = tvm_cascade.quantize(network, data=learned, output=tmp_path / "q.onnx", weight_bits=4, max_drop=100)
    assert bits_of(tmp_path / "q.onnx") == [4, 4, 4] == [one.bits for one in result.weight_bits]
    assert [one.weights for one in result.weight_bits] == [108, 216, 270]
    assert all(one.snr_db is not None and 5 < one.snr_db < 40 for one in result.weight_bits)
    onnx.checker.check_model(onnx.load(str(tmp_path / "q.onnx")))
    report = tvm_cascade.validate(tmp_path / "q.onnx", data={"x": learned["x"]}, layerwise=True)
    assert report.cosine > 0.999
    text = result.to_text()
    assert "weights         594 of 594 have 4 bits" in text and text.count("4 bits  ") == 3


def test_layers_keep_eight_bits_where_the_data_says_so(
    network: Path, learned: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """Accuracy with labels, agreement without: with no drop allowed the network is as right as that of eight bits."""
    eight = tvm_cascade.quantize(network, data=learned, output=tmp_path / "8.onnx")
    mixed = tvm_cascade.quantize(network, data=learned, output=tmp_path / "4.onnx", weight_bits=4, max_drop=1)
    assert mixed.accuracy_after is not None and eight.accuracy_after is not None
    assert mixed.accuracy_after >= eight.accuracy_after - 0.01
    kept = [one for one in mixed.weight_bits if one.bits == 8]
    assert kept and all(one.reason == "the score would fall by more than 1 points" for one in kept)
    assert bits_of(tmp_path / "4.onnx") == [one.bits for one in mixed.weight_bits]
    assert mixed.to_dict()["weight_bits"][0]["bits"] in (4, 8)  # type: ignore[typeddict-item]
    unlabelled = tvm_cascade.quantize(network, data={"x": learned["x"]}, output=tmp_path / "u.onnx", weight_bits=4)
    assert [one.bits for one in unlabelled.weight_bits] == [one.bits for one in mixed.weight_bits]
    assert "weight_bits" not in eight.to_dict()


def test_grouped_and_float_layers_are_not_tried(data: Path, tmp_path: Path) -> None:
    layers = Layers()
    normal = lambda *shape: layers.constant(layers.rng.normal(0, 0.3, shape).astype("float32"))  # noqa: E731
    depthwise = layers.node("Conv", "x", normal(3, 1, 3, 3), group=3)
    last = layers.node("Conv", layers.node("Conv", depthwise, normal(8, 3, 1, 1)), normal(4, 8, 1, 1))
    layers.save(tmp_path / "m.onnx", last, (1, 3, 8, 8), 4)
    own = {"x": np.load(data)["x"]}
    result = tvm_cascade.quantize(
        tmp_path / "m.onnx", data=own, output=tmp_path / "q.onnx", weight_bits=4, max_drop=100, float_last=1
    )
    assert [(one.bits, one.reason) for one in result.weight_bits] == [
        (8, "a grouped layer has few weights"),
        (4, ""),
        (8, "it stays float"),
    ]


def test_the_scale_of_four_bits_has_the_least_error() -> None:
    values = np.array([0.1, -0.2, 0.3, 0.15, 1.0] * 20 + [4.0])
    scale = float(scale_of_four_bits(values))

    def error(s: float) -> float:
        return float(np.square(np.clip(np.rint(values / s), -8, 7) * s - values).sum())

    assert error(scale) <= error(4.0 / 7) and scale < 4.0 / 7


@pytest.mark.parametrize(("bits", "says"), [(5, "--weight-bits 5: give 4 or 8"), (2, "--weight-bits")])
def test_other_numbers_of_bits_are_refused(network: Path, data: Path, tmp_path: Path, bits: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        tvm_cascade.quantize(network, data=data, output=tmp_path / "q.onnx", weight_bits=bits)


def test_layers_left_float_are_named_with_the_reason(network: Path, data: Path, tmp_path: Path) -> None:
    result = tvm_cascade.quantize(network, data=data, output=tmp_path / "q.onnx", float_last=1)
    assert [kind for _, kind, _ in result.floats] and all(reason for _, _, reason in result.floats)
    assert result.floats[0][2] in result.to_text()


def test_external_weights_count(network: Path, data: Path, tmp_path: Path) -> None:
    model = onnx.load(str(network))
    path = tmp_path / "apart.onnx"
    onnx.save(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=64)
    result = tvm_cascade.quantize(path, data=data, output=tmp_path / "q.onnx")
    assert result.bytes_before == path.stat().st_size + (tmp_path / "weights.bin").stat().st_size


def test_calibrations_leave_out_outliers(network: Path, tmp_path: Path) -> None:
    """The scale of the input: the whole range by minmax, less by the others. An entry of 100 among those of a normal."""
    x = np.random.default_rng(0).normal(0, 1, (40, 3, 8, 8)).astype("float32")
    x[3, 0, 0, 0] = 100
    found = {}
    given: tuple[tuple[str, dict[str, Any]], ...] = (
        ("minmax", {}),
        ("entropy", {}),
        ("percentile", {"percentile": 99.0}),
    )
    for method, more in given:
        out = tmp_path / f"{method}.onnx"
        tvm_cascade.quantize(network, data={"x": x}, output=out, calibration=method, **more)
        graph = onnx.load(str(out)).graph
        scale = next(n.input[1] for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "x")
        found[method] = float(next(numpy_helper.to_array(w) for w in graph.initializer if w.name == scale))
    assert found["minmax"] == pytest.approx((100 - x.min()) / 255, rel=1e-3)
    assert found["percentile"] < 0.1 * found["minmax"] and found["entropy"] < found["minmax"]


def test_open_sizes_are_fixed(network: Path, tmp_path: Path) -> None:
    model = onnx.load(str(network))
    for dim, name in zip(model.graph.input[0].type.tensor_type.shape.dim, ("b", "c", "h", "w"), strict=True):
        dim.dim_param = name
    onnx.save(model, str(tmp_path / "open.onnx"))
    x = np.zeros((2, 3, 8, 8), "float32")
    np.savez(tmp_path / "d.npz", x=x)
    args = ("quantize", tmp_path / "open.onnx", "--data", tmp_path / "d.npz", "-o", tmp_path / "q.onnx")
    refused = call(*args)
    assert refused.exit_code == 2 and "--input-shape" in refused.stderr
    assert call(*args, "--input-shape", "x=1,3,8,8").exit_code == 0
    assert tvm_cascade.plan(tmp_path / "q.onnx").peak_bytes > 0


def test_an_older_opset_with_nameless_nodes(data: Path, tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.random.default_rng(0).normal(0, 1, (2, 3, 3, 3)).astype("float32"), "w")
    make, kind = helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    graph = helper.make_graph(nodes, "g", [make("x", kind, (1, 3, 8, 8))], [make("y", kind, (1, 2, 6, 6))], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7), tmp_path / "m.onnx")
    result = tvm_cascade.quantize(tmp_path / "m.onnx", data=data, output=tmp_path / "q.onnx")
    assert (result.quantized_layers, result.per_channel_layers) == (1, 1)


def test_what_is_refused_leaves_the_old_file(network: Path, data: Path, tmp_path: Path) -> None:
    old = tmp_path / "q.onnx"
    tvm_cascade.quantize(network, data=data, output=old)
    before = old.read_bytes()
    with pytest.raises(UsageError, match="quantized already; give the float model"):
        tvm_cascade.quantize(old, data=data, output=tmp_path / "again.onnx")
    assert not (tmp_path / "again.onnx").exists()
    with pytest.raises(UsageError, match=r"--calibration histogram is of \.pt2 files only"):
        tvm_cascade.quantize(network, data=data, output=old, calibration="histogram")
    with pytest.raises(UsageError, match=r"N samples of this input are \[N, 3, 8, 8\]"):
        tvm_cascade.quantize(network, data={"x": np.zeros((2, 8, 8, 3))}, output=old)
    with pytest.raises(UsageError, match="is the model itself"):
        tvm_cascade.quantize(network, data=data, output=network)
    with pytest.raises(UsageError, match=r"is \.onnx, as the model"):
        tvm_cascade.quantize(network, data=data, output=tmp_path / "q.tflite")
    with pytest.raises(UsageError, match=r"takes float \.tflite, \.onnx and \.pt2 files, not m\.h5"):
        tvm_cascade.quantize(tmp_path / "m.h5", data=data, output=tmp_path / "q.h5")
    with pytest.raises(LoadError, match="no such file"):
        tvm_cascade.quantize(tmp_path / "none.onnx", data=data, output=old)
    with pytest.raises(UsageError, match="--percentile"):
        tvm_cascade.quantize(network, data=data, output=old, percentile=0)
    assert old.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == ["q.onnx"]


@pytest.mark.parametrize(
    ("module", "suffix", "extra"),
    [
        ("onnxruntime", ".onnx", "check"),
        ("ai_edge_quantizer", ".tflite", "ai-edge"),
        ("torch", ".pt2", "torchao"),
        ("torchao", ".pt2", "torchao"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    module, suffix, extra, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    gone = {"torch", "torchao"} if module == "torch" else {module}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in gone else find(name, *a))
    done = call("quantize", tmp_path / f"m{suffix}", "--data", tmp_path, "-o", tmp_path / f"q{suffix}")
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert f"pip install 'tvm-cascade[{extra}]'" in done.stderr
    with pytest.raises(MissingToolError):
        tvm_cascade.quantize(tmp_path / f"m{suffix}", data=tmp_path, output=tmp_path / f"q{suffix}")


def test_error_by_layer(network: Path, data: Path, tmp_path: Path) -> None:
    """An outlier in the calibration makes the first layer coarse: its tensor is the worst, and errors are ONNX Runtime's."""
    own = np.load(data)
    tvm_cascade.quantize(network, data=data, output=tmp_path / "q.onnx")
    report = tvm_cascade.validate(tmp_path / "q.onnx", data={"x": own["x"]}, layerwise=True, by_layer=network)
    ratios = [one.snr_db for one in report.layers]
    assert len(ratios) >= 3 and ratios == sorted(ratios) and ratios[0] > 10
    last = next(one for one in report.layers if one.operator == "Gemm")
    gaps = []
    for k in range(N):
        feed = {"x": own["x"][k : k + 1]}
        want, have = (runtime_function(path)(feed).popitem()[1] for path in (network, tmp_path / "q.onnx"))
        gaps.append(have - want)
    np.testing.assert_allclose(last.rmse, np.sqrt(np.mean(np.square(gaps))), rtol=1e-5)
    np.testing.assert_allclose(last.max_abs_diff, np.max(np.abs(gaps)), rtol=1e-5)
    assert "error by layer, against the float network, worst first:" in report.to_text()
    assert [one["tensor"] for one in report.to_dict()["layers"]] == [one.tensor for one in report.layers]  # type: ignore[typeddict-item]
    coarse = {"x": own["x"].copy()}
    coarse["x"][0, 0, 0, 0] = 400
    tvm_cascade.quantize(network, data=coarse, output=tmp_path / "coarse.onnx")
    worse = tvm_cascade.validate(tmp_path / "coarse.onnx", data={"x": own["x"]}, layerwise=True, by_layer=network)
    assert worse.layers[0].snr_db < ratios[0] - 10


def test_other_files_have_no_layers_in_common(network: Path, data: Path, tmp_path: Path) -> None:
    own = np.load(data)["x"]
    tvm_cascade.quantize(network, data=data, output=tmp_path / "q.onnx")
    with pytest.raises(UsageError, match=r"no quantized tensor that .*net.onnx names"):
        tvm_cascade.validate(network, data={"x": own}, layerwise=True, by_layer=network)
    with pytest.raises(UsageError, match=r"--by-layer compares a quantized .onnx file with the float .onnx"):
        tvm_cascade.validate(tmp_path / "q.onnx", data={"x": own}, by_layer="net.tflite")
    with pytest.raises(LoadError, match="no such file"):
        tvm_cascade.validate(tmp_path / "q.onnx", data={"x": own}, by_layer=tmp_path / "none.onnx")
