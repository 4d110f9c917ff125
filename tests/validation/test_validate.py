"""`validate`: figures of the emitted program beside LiteRT's and ONNX Runtime's, on data of the tests' own."""

from __future__ import annotations

import importlib.util
import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from click.testing import CliRunner, Result
from PIL import Image

import tvm_cascade
from tvm_cascade.boards.board import load_board
from tvm_cascade.checking.own_floats import exported_twins
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.emit.image import read_image
from tvm_cascade.emit.toolchain import build_image
from tvm_cascade.errors import LoadError, MissingToolError, ToolError, UsageError
from tvm_cascade.tensor_spec import TensorSpec
from tvm_cascade.testing.serial_lines import EmulatedBoard
from tvm_cascade.testing.ways_in import write_torch_pt2e
from tvm_cascade.validation.by_layer import require_float_original
from tvm_cascade.validation.programs import target_for
from tvm_cascade.validation.report import ValidationReport
from tvm_cascade.validation.tally import Tally, cosine

pytestmark = pytest.mark.usefixtures("quick_host")

MODEL = Path(str(files("tvm_cascade.testing") / "data" / "shapes.tflite"))  # image int8[1, 64, 64, 1], six classes
CLASSES = 6
N = 20  # more than one batch


def call(*args: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Smooth pictures and noise, of several means."""
    rng = np.random.default_rng(5)
    coarse = rng.normal(rng.uniform(-90, 90, (N, 1, 1, 1)), 50, (N, 8, 8, 1)).repeat(8, 1).repeat(8, 2)
    return np.clip(coarse + rng.normal(0, 4, coarse.shape), -128, 127).astype(np.int8)


@pytest.fixture(scope="module")
def labels(images: np.ndarray) -> np.ndarray:
    """The classes that LiteRT gives the images."""
    interpreter = Interpreter(str(MODEL), experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    interpreter.allocate_tensors()
    (i,), o = interpreter.get_input_details(), interpreter.get_output_details()[0]
    found = []
    for image in images:
        interpreter.set_tensor(i["index"], image[None])
        interpreter.invoke()
        found.append(int(np.argmax(interpreter.get_tensor(o["index"]))))
    return np.array(found)


def test_labels_of_the_reference_are_all_right(images: np.ndarray, labels: np.ndarray) -> None:
    assert len(set(labels.tolist())) > 1  # else a program that always gives the same class would pass
    report = tvm_cascade.validate(MODEL, data={"image": images, "labels": labels})
    assert (report.samples, report.board) == (N, "host")
    assert (report.accuracy, report.reference_accuracy, report.agreement) == (1.0, 1.0, 1.0)
    assert (report.rmse, report.mae, report.max_abs_diff, report.cosine) == (0.0, 0.0, 0.0, 1.0)
    assert report.confusion is not None
    assert np.array_equal(report.confusion, np.diag(np.bincount(labels, minlength=CLASSES)))


def test_spoilt_labels_by_the_command_line(images: np.ndarray, labels: np.ndarray, tmp_path: Path) -> None:
    wrong = labels.copy()
    wrong[:3] = (wrong[:3] + 1) % CLASSES
    real = images * 0.003921568859368563  # the input's scale; its zero point is 0
    np.savez(tmp_path / "d.npz", image=real.astype(np.float32), labels=wrong.astype(np.uint8)[:, None])
    done = call("validate", MODEL, "--data", tmp_path / "d.npz", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["samples"] == N and found["accuracy"] == found["reference_accuracy"] == (N - 3) / N
    assert found["rmse"] == found["mae"] == 0 and found["agreement"] == found["cosine"] == 1
    counts = np.array(found["confusion"])
    assert counts.trace() == N - 3 and counts.sum(1).tolist() == np.bincount(wrong, minlength=CLASSES).tolist()
    assert counts.sum(0).tolist() == np.bincount(labels, minlength=CLASSES).tolist()
    told = call("validate", MODEL, "--data", tmp_path / "d.npz").stdout
    assert "accuracy        85.00 % of the emitted program" in told and "rmse 0, mean 0" in told


def test_a_folder_of_images(images: np.ndarray, labels: np.ndarray, tmp_path: Path) -> None:
    names = ["circle", "cross", "line", "square", "star", "triangle"]
    for k, label in enumerate(labels):
        place = tmp_path / names[label] / f"{k}.png"
        place.parent.mkdir(exist_ok=True)
        Image.fromarray((images[k, :, :, 0].astype(int) + 128).astype(np.uint8)).save(place)
    for name in names:
        (tmp_path / name).mkdir(exist_ok=True)
    report = tvm_cascade.validate(MODEL, data=tmp_path)
    assert report.accuracy == report.reference_accuracy == 1.0 and report.classes == tuple(names)
    assert "circle" in report.to_text()


def test_without_labels(images: np.ndarray) -> None:
    report = tvm_cascade.validate(MODEL, data={"image": images[:2]})
    assert report.accuracy is report.reference_accuracy is report.confusion is None and report.agreement == 1.0
    assert "the data has no labels" in report.to_text()


def test_on_an_emulated_board(images: np.ndarray, labels: np.ndarray, emulator: None) -> None:
    data = {"image": images[:3], "labels": labels[:3]}
    report = tvm_cascade.validate(MODEL, data=data, board="mps2-an386")
    assert (report.samples, report.board, report.accuracy, report.max_abs_diff) == (3, "mps2-an386", 1.0, 0.0)


def test_over_a_serial_port(images: np.ndarray, labels: np.ndarray, tmp_path: Path, emulator: None) -> None:
    """The port of an emulated board, onto which the project has been written that `compile` makes with the same options."""
    data, board = {"image": images[:2], "labels": labels[:2]}, load_board("mps2-an386")
    tvm_cascade.compile(MODEL, target="cortex-m4", output=tmp_path / "p", sram="16KiB")
    there = EmulatedBoard(board, build_image(read_image(tmp_path / "p"), board, "serial").elf)
    try:
        report = tvm_cascade.validate(MODEL, data=data, board=board.name, port=there.port, sram="16KiB")
        assert (report.samples, report.board, report.accuracy, report.max_abs_diff) == (2, board.name, 1.0, 0.0)
    finally:
        there.stop()


@pytest.mark.parametrize(
    ("board", "target"), [("host", "host"), ("mps2-an386", "cortex-m4"), ("microbit", "cortex-m0plus")]
)
def test_the_target_of_a_board(board: str, target: str) -> None:
    assert target_for(board) == target


def test_a_float_network_beside_onnx_runtime(tmp_path: Path) -> None:
    from tvm_cascade.testing.onnx_layers import Layers

    layers = Layers()
    weight = layers.constant(layers.rng.normal(0, 1, (4, 2, 3, 3)).astype("float32"))
    pooled = layers.node("GlobalAveragePool", layers.node("Relu", layers.node("Conv", "x", weight)))
    layers.save(tmp_path / "m.onnx", pooled, (1, 2, 6, 6), 4)
    x = np.random.default_rng(1).normal(0, 1, (5, 2, 6, 6))
    report = tvm_cascade.validate(tmp_path / "m.onnx", data={"x": x})
    assert report.reference == "ONNX Runtime without optimizations" and report.samples == 5 and report.agreement == 1.0
    assert report.max_abs_diff < 1e-4 and report.mae <= report.rmse <= report.max_abs_diff
    assert 0 < 1 - report.cosine + 1e-12 < 1e-6


@pytest.mark.parametrize(
    ("data", "options", "status", "says"),
    [
        (
            {"image": np.zeros((1, 64, 64, 1), np.int8), "labels": [6]},
            (),
            2,
            "label of sample 0 is 6, .* labels are 0 to 5",
        ),
        ({"image": np.zeros((1, 64, 64, 1), np.int8), "labels": [-1]}, (), 2, "label of sample 0 is -1"),
        ({"image": np.zeros((1, 64, 64), np.int8)}, (), 2, "N samples of this input are"),
        ({"image": np.zeros((1, 64, 64, 1), np.int8)}, ("--board", "z80"), 2, "unknown board"),
        ({"image": np.zeros((1, 64, 64, 1), np.int8)}, ("--port", "/dev/ttyACM0"), 2, "--port needs --board"),
        ({"image": np.zeros((1, 64, 64, 1), np.int8)}, ("--board", "mps2-an386", "--port"), 2, "which serial port"),
        ({"image": np.zeros((1, 64, 64, 1), np.int8)}, ("--range", "1,0"), 2, "the first below the second"),
        ({"image": np.zeros((1, 64, 64, 1), np.int8)}, ("--range", "0,1:2"), 2, "or two for each channel"),
        ({"image": np.zeros((1, 64, 64, 1), np.int8)}, ("--range", "0,1"), 2, "for folders of images"),
    ],
)
def test_what_is_refused(data, options, status: int, says: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **data)
    done = call("validate", MODEL, "--data", tmp_path / "d.npz", *options)
    assert done.exit_code == status and not done.stdout
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("tvm-cascade: "))
    with pytest.raises(UsageError, match=says):
        raise UsageError(line)


def test_what_is_missing_is_said_before_planning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm_cascade.api, "compile", None)
    for model, data in ((tmp_path / "none.tflite", tmp_path), (MODEL, tmp_path / "none.npz"), (tmp_path, tmp_path)):
        with pytest.raises(LoadError):
            tvm_cascade.validate(model, data=data)
    find = importlib.util.find_spec
    for suffix, module in ((".tflite", "ai_edge_litert"), (".onnx", "onnxruntime"), (".pt2", "torch")):
        monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a, gone=module: None if n == gone else find(n, *a))
        (tmp_path / f"m{suffix}").write_bytes(b"")
        with pytest.raises(MissingToolError, match=r"pip install 'tvm-cascade\[(check|torch)\]'"):
            tvm_cascade.validate(tmp_path / f"m{suffix}", data=tmp_path)


def test_figures_by_hand() -> None:
    spec = TensorSpec("y", (1, 2), "int8", 0.5, 1)
    tally = Tally([spec], labelled=True)
    for made, wanted, label in (([3, 1], [3, 1], 0), ([1, 5], [5, 1], 1), ([2, 2], [2, 2], 1)):
        have, want = ({"y": np.array([a], np.int8)} for a in (made, wanted))
        tally.add(have, want, label)
    assert (tally.samples, tally.accuracy, tally.reference_accuracy, tally.agreement) == (3, 2 / 3, 1 / 3, 2 / 3)
    assert tally.confusion == ((1, 0), (1, 1))
    assert tally.rmse == pytest.approx((2 * 2**2 / 6) ** 0.5) and tally.mae == pytest.approx(4 / 6)
    assert tally.max_abs_diff == 2 and tally.cosine == pytest.approx((1 + 0 + 1) / 3)
    with pytest.raises(ToolError, match="is it the same model"):
        tally.add({"y": np.zeros((1, 2), np.int8)}, {"y": np.zeros((1, 3), np.int8)}, 0)
    floats = Tally([spec], labelled=False)
    floats.add({"y": np.array([[3, 1]], np.int8)}, {"y": np.array([[1.0, 0.25]], np.float32)}, None)
    assert (floats.max_abs_diff, floats.accuracy, floats.confusion) == (0.25, None, None)
    assert cosine(np.zeros(2), np.zeros(2)) == 1 and cosine(np.zeros(2), np.ones(2)) == 0


def test_many_classes_as_text() -> None:
    counts = np.diag(np.full(20, 5))
    counts[3, 7], counts[4, 1] = 2, 3
    report = ValidationReport(
        "m", "host", "r", 105, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, tuple(map(tuple, counts.tolist())), (), 1.0
    )
    lines = report.to_text().splitlines()
    assert lines[-2:] == ["  3 of label 4 taken for 1", "  2 of label 3 taken for 7"]


def test_the_error_of_every_tensor_against_the_network_in_floats(images: np.ndarray) -> None:
    """Of a `.tflite` file, worst first. The first layer is off by half a step, as its twin differs by a rounding alone."""
    layers = tvm_cascade.validate(MODEL, data={"image": images}, by_layer="own").layers
    ratios = [layer.snr_db for layer in layers]
    assert len(layers) == 13 and ratios == sorted(ratios) and {x.operator for x in layers} >= {"CONV_2D", "SOFTMAX"}
    details = Interpreter(str(MODEL)).get_tensor_details()
    (step,) = (d["quantization"][0] for d in details if d["name"] == "conv_0")
    first = layers[-1]
    assert first.tensor == "conv_0" and 0.4 * step < first.max_abs_diff < 0.51 * step


def test_the_error_of_every_tensor_of_a_quantized_program(tmp_path: Path) -> None:
    """Of a `.pt2` file: without rounded activations its twin gives the values before their rounding."""
    pytest.importorskip("torch")
    write_torch_pt2e(tmp_path / "q.pt2", 8, 4)
    data = {"x": np.random.default_rng(3).normal(size=(4, 3, 8, 8)).astype("float32")}
    layers = tvm_cascade.validate(tmp_path / "q.pt2", data=data, by_layer="own").layers
    assert len(layers) >= 3 and all(layer.snr_db > 5 and layer.rmse > 0 for layer in layers)


@pytest.mark.torch
def test_the_error_of_every_tensor_against_the_program_that_was_quantized(tmp_path: Path) -> None:
    """A layer's batch normalization, which PT2E folds, belongs to the tensor that is compared."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchao")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Conv2d(3, 4, 3)
            self.norm = torch.nn.BatchNorm2d(4)
            self.last = torch.nn.Linear(4, 5)

        def forward(self, x: object) -> object:
            return self.last(torch.relu(self.norm(self.layer(x)) * 2.0).mean((2, 3)))

    torch.manual_seed(1)
    net = Net().eval()
    net.norm.running_mean.uniform_(-1, 1)
    net.norm.running_var.uniform_(2, 3)
    original, quantized = tmp_path / "f.pt2", tmp_path / "q.pt2"
    torch.export.save(torch.export.export(net, (torch.zeros(1, 3, 8, 8),)), str(original))
    data = {"x": np.random.default_rng(3).normal(size=(4, 3, 8, 8)).astype("float32")}
    tvm_cascade.quantize(original, data=data, output=quantized)
    layers = tvm_cascade.validate(quantized, data=data, by_layer=original).layers
    assert {layer.operator.split(".")[0] for layer in layers} >= {"relu", "mean", "linear"}
    assert all(20 < layer.snr_db < 80 for layer in layers)
    other = tmp_path / "other.pt2"
    torch.export.save(torch.export.export(torch.nn.Tanh(), (torch.zeros(1, 3, 8, 8),)), str(other))
    with pytest.raises(UsageError, match="was it made from this file"):
        exported_twins(quantized, other)


@pytest.mark.parametrize("model, other", [("net.onnx", "own"), ("net.tflite", "f.onnx"), ("net.pt2", "f.onnx")])
def test_a_float_side_that_does_not_go_with_the_file(model: str, other: str) -> None:
    with pytest.raises(UsageError, match="--by-layer"):
        require_float_original(Path(model), Path(other))
