"""Short-time Fourier transforms of files: as TensorFlow's converter and as ONNX write them, against LiteRT and ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.testing.tflite import ModelWriter

onnx = pytest.importorskip("onnx")
helper, kinds, numpy_helper = onnx.helper, onnx.TensorProto, onnx.numpy_helper
pytestmark = [pytest.mark.usefixtures("quick_host"), pytest.mark.filterwarnings("ignore")]


def magnitudes(frames: int, samples: int, points: int, part: str) -> bytes:
    """A file: RFFT2D, RESHAPE and COMPLEX_ABS, as `tf.signal.stft` becomes, or the real or imaginary parts."""
    writer, bins = ModelWriter(), points // 2 + 1
    x = writer.activation((frames, 1, samples), "float32", name="x")
    wide = writer.tensor((frames, 1, bins), "complex64")
    flat = writer.tensor((frames, bins), "complex64")
    lengths, shape = (writer.constant(np.array(v, "int32")) for v in ([1, points], [frames, bins]))
    writer.operator("RFFT2D", [x, lengths], [wide], "Rfft2dOptions", inner=True)
    writer.operator("RESHAPE", [wide, shape], [flat], "ReshapeOptions", inner=True, newShape=[frames, bins])
    writer.operator(part, [flat], [writer.tensor((frames, bins), "float32", name="y")])
    return writer.finish()


@pytest.mark.parametrize("points, samples", [(16, 16), (32, 20), (8, 11)])
@pytest.mark.parametrize("part", ["COMPLEX_ABS", "REAL", "IMAG"])
def test_transforms_of_tflite_files_are_litert_s(tmp_path: Path, points: int, samples: int, part: str) -> None:
    pytest.importorskip("ai_edge_litert")
    (tmp_path / "m.tflite").write_bytes(magnitudes(4, samples, points, part))
    tvm_cascade.compile(tmp_path / "m.tflite", target="host", output=tmp_path / "p")
    done = tvm_cascade.run(tmp_path / "p", check=tmp_path / "m.tflite")
    assert done.match and done.max_abs_diff is not None and done.max_abs_diff < 1e-5


def log_mel(folder: Path, window: str, points: int = 64, one_sided: int = 1) -> Path:
    """A file of the features of a sound classifier: a window, STFT, squares, mel filters and a logarithm."""
    nodes = [
        helper.make_node(window, ["n"], ["w"]),
        helper.make_node("STFT", ["x", "step", "w", "n"], ["s"], onesided=one_sided),
        helper.make_node("Mul", ["s", "s"], ["squares"]),
        helper.make_node("ReduceSum", ["squares", "last"], ["power"], keepdims=0),
    ]
    if one_sided:
        nodes += [
            helper.make_node("MelWeightMatrix", ["bands", "n", "rate", "low", "high"], ["mel"]),
            helper.make_node("MatMul", ["power", "mel"], ["energy"]),
        ]
    nodes += [
        helper.make_node("Add", ["energy" if one_sided else "power", "least"], ["more"]),
        helper.make_node("Log", ["more"], ["y"]),
    ]
    constants = {
        "n": np.int64(points), "step": np.int64(points // 2), "last": np.array([-1]), "bands": np.int64(8),
        "rate": np.int64(16000), "low": np.float32(125), "high": np.float32(7500), "least": np.float32(1e-3),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes, "features",
        [helper.make_tensor_value_info("x", kinds.FLOAT, [1, 8 * points, 1])],
        [helper.make_tensor_value_info("y", kinds.FLOAT, None)],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )  # fmt: skip
    path = folder / "features.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("window", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("points, one_sided", [(64, 1), (32, 0), (48, 1)])
def test_features_of_onnx_files_are_onnx_s(tmp_path: Path, window: str, points: int, one_sided: int) -> None:
    """Also a transform of 48 points, which is a matrix product."""
    model = log_mel(tmp_path, window, points, one_sided)
    made = tvm_cascade.compile(model, target="host", output=tmp_path / "p")
    fast = points & (points - 1) == 0
    assert ("fourier" in {op.kind for op in made.plan.graph.ops}) == fast
    done = tvm_cascade.run(tmp_path / "p", check=model)
    assert done.match and done.max_abs_diff is not None and done.max_abs_diff < 1e-4


@pytest.mark.emulator
@pytest.mark.usefixtures("emulator")
@pytest.mark.parametrize("core", ["cortex-m4", "cortex-m55"])
def test_features_on_an_emulated_board(tmp_path: Path, core: str) -> None:
    model = log_mel(tmp_path, "HannWindow", 128)
    made = tvm_cascade.compile(model, target=core, output=tmp_path / "p")
    assert made.peak_bytes < 0.6 * made.plan.baseline_peak  # spectra of one frame at a time
    done = tvm_cascade.run(tmp_path / "p", check=model)
    assert done.match and done.equals_host and done.instructions is not None
    assert done.instructions < 15 * 30_000  # a product by a matrix takes 128 * 65 * 2 multiplications a frame
