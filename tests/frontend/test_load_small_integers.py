"""Constants of four and two bits: read as the same values of eight, and kept in four bits by kernels that can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from onnx import TensorProto, helper, numpy_helper

import tvm_cascade
from tvm_cascade.errors import LoadError
from tvm_cascade.testing.tflite import ModelWriter

WINDOW: dict[str, Any] = {
    "strideH": 2,
    "strideW": 2,
    "dilationHFactor": 1,
    "dilationWFactor": 1,
    "fusedActivationFunction": 1,
}


def packed(values: np.ndarray, bits: int = 4) -> bytes:
    """The bytes of integers of four or two bits, low bits first."""
    each = 8 // bits
    whole = np.zeros(-(-values.size // each) * each, "uint8")
    whole[: values.size] = values.reshape(-1).astype("uint8") & (1 << bits) - 1
    return (whole.reshape(-1, each) << np.arange(0, 8, bits)).sum(axis=1).astype("uint8").tobytes()


def network(path: Path, depth: int, channels: int, dtype: str = "int8", seed: int = 0) -> np.ndarray:
    """Write a padded convolution and a dense layer of weights of four bits, stored as int8; return those of the first."""
    random, writer = np.random.default_rng(seed), ModelWriter()
    x = writer.activation((1, 9, 9, depth), dtype, 0.05, 3)
    weights = random.integers(-8, 8, (channels, 3, 3, depth)).astype("int8")
    scales = random.uniform(0.02, 0.05, channels).astype("float32")
    bias = writer.tensor((channels,), "int32", 0.05 * scales, data=random.integers(-800, 800, channels).astype("int32"))
    kernel = writer.tensor(weights.shape, "int8", scales, data=weights, name="kernel")
    y = writer.tensor((1, 5, 5, channels), dtype, 0.3, -5)
    writer.operator("CONV_2D", [x, kernel, bias], [y], "Conv2DOptions", **WINDOW)
    path.write_bytes(writer.finish())
    return weights


def depthwise_network(path: Path, kernel: int, stride: int, multiplier: int, channels: int, real: bool) -> np.ndarray:
    """Write a padded depthwise convolution of weights of four bits, stored as int8; `real`: between floats."""
    random, writer = np.random.default_rng(kernel), ModelWriter()
    outputs, dtype = channels * multiplier, "float32" if real else "int8"
    rows, columns = (4, 3) if real else (8, 7)
    x = writer.activation((1, rows, columns, channels), dtype, 0.05, 3)
    weights = random.integers(-8, 8, (1, kernel, kernel, outputs)).astype("int8")
    scales = random.uniform(0.02, 0.05, outputs).astype("float32")
    taps = writer.tensor(weights.shape, "int8", scales, axis=3, data=weights, name="kernel")
    biases = random.integers(-800, 800, outputs).astype(dtype if real else "int32")
    bias = writer.tensor((outputs,), str(biases.dtype), 0.05 * scales, data=biases)
    y = writer.tensor((1, -(-rows // stride), -(-columns // stride), outputs), dtype, 0.3, -5)
    window = WINDOW | {"strideH": stride, "strideW": stride, "depthMultiplier": multiplier}
    writer.operator("DEPTHWISE_CONV_2D", [x, taps, bias], [y], "DepthwiseConv2DOptions", **window)
    path.write_bytes(writer.finish())
    return weights


def hybrid_network(path: Path, units: int, depth: int, taps: int = 0) -> np.ndarray:
    """Write a layer of floats by weights of four bits, stored as int8: a product of three rows, or a convolution of
    `taps` by `taps`."""
    random, writer = np.random.default_rng(depth), ModelWriter()
    shape = (units, taps, taps, depth) if taps else (units, depth)
    weights = random.integers(-8, 8, shape).astype("int8")
    scales = random.uniform(0.02, 0.05, units).astype("float32")
    x = writer.activation((1, 6, 5, depth) if taps else (3, depth), "float32")
    kernel = writer.tensor(weights.shape, "int8", scales, data=weights, name="kernel")
    bias = writer.tensor((units,), "float32", data=random.normal(size=units).astype("float32"))
    if taps:
        y = writer.tensor((1, 3, 3, units), "float32")
        writer.operator("CONV_2D", [x, kernel, bias], [y], "Conv2DOptions", **WINDOW)
    else:
        y = writer.tensor((3, units), "float32")
        writer.operator("FULLY_CONNECTED", [x, kernel, bias], [y], "FullyConnectedOptions")
    path.write_bytes(writer.finish())
    return weights


def with_small(source: Path, target: Path, values: np.ndarray, kind: int, bits: int, data: bytes | None = None) -> None:
    """Write the network again with its kernel in another element type."""
    model = schema.ModelT.InitFromPackedBuf(source.read_bytes(), 0)
    (tensor,) = [t for t in model.subgraphs[0].tensors if t.name == b"kernel"]
    tensor.type = kind
    model.buffers[tensor.buffer].data = np.frombuffer(packed(values, bits) if data is None else data, "uint8")
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    target.write_bytes(builder.Output())


@pytest.mark.emulator
@pytest.mark.parametrize("target", ("cortex-m4", "cortex-m0plus", "cortex-m3", "cortex-m55", "riscv32"))
@pytest.mark.parametrize(("depth", "channels"), [(16, 32), (5, 7)])
def test_they_compute_what_eight_bits_do(
    target: str, depth: int, channels: int, emulator: None, quick_host: None, tmp_path: Path
) -> None:
    plain, small = tmp_path / "plain.tflite", tmp_path / "small.tflite"
    weights = network(plain, depth, channels)
    with_small(plain, small, weights, 17, 4)
    made = {p.stem: tvm_cascade.compile(p, target=target, output=tmp_path / p.stem) for p in (plain, small)}
    assert tvm_cascade.run(tmp_path / "small", check=plain).to_dict()["match"] is True
    assert made["plain"].plan.peak == made["small"].plan.peak
    saved = sum(op.weight_bytes for op in made["plain"].plan.graph.ops) - sum(
        op.weight_bytes for op in made["small"].plan.graph.ops
    )
    assert saved == (weights.size // 2 if depth == 16 else 0)


CORES = ("cortex-m4", "cortex-m0plus", "cortex-m3", "cortex-m55", "riscv32")


def saved_bytes(plain: Path, weights: np.ndarray, target: str, **options: Any) -> int:
    """Return the bytes that the network takes fewer with weights of four bits; both must compute the same."""
    small = plain.with_name("small.tflite")
    with_small(plain, small, weights, 17, 4)
    made = {p.stem: tvm_cascade.compile(p, target=target, output=p.with_suffix(""), **options) for p in (plain, small)}
    assert tvm_cascade.run(small.with_suffix(""), check=plain).to_dict()["match"] is True
    before, after = (sum(op.weight_bytes for op in made[name].plan.graph.ops) for name in ("plain", "small"))
    return before - after


@pytest.mark.emulator
@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize(
    ("kernel", "stride", "multiplier", "channels", "real"),
    [(3, 1, 1, 128, False), (2, 2, 2, 64, False), (5, 2, 1, 48, False), (3, 2, 1, 128, True)],
)
def test_depthwise_layers_keep_them(
    target: str,
    kernel: int,
    stride: int,
    multiplier: int,
    channels: int,
    real: bool,
    emulator: None,
    quick_host: None,
    tmp_path: Path,
) -> None:
    """Taps of an odd number are filled up to a byte in every channel; Cortex-M55 keeps small layers in bytes."""
    weights = depthwise_network(tmp_path / "plain.tflite", kernel, stride, multiplier, channels, real)
    saved = saved_bytes(tmp_path / "plain.tflite", weights, target)
    kept = target != "cortex-m55" or multiplier > 1 or weights.size >= 1024
    assert saved == (channels * multiplier * (kernel**2 // 2) if kept else 0)


@pytest.mark.emulator
@pytest.mark.parametrize("options", ({"granularity": "pixel"}, {"max_macs": 1.6, "max_time": 100.0}, {"sram": "min"}))
@pytest.mark.parametrize("target", ("cortex-m4", "cortex-m55"))
def test_depthwise_layers_keep_them_in_other_forms(
    target: str, options: dict[str, Any], emulator: None, quick_host: None, tmp_path: Path
) -> None:
    weights = depthwise_network(tmp_path / "plain.tflite", 3, 1, 1, 128, False)
    assert saved_bytes(tmp_path / "plain.tflite", weights, target, **options) == 512


@pytest.mark.emulator
@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize(("units", "depth", "taps"), [(38, 48, 0), (6, 200, 0), (16, 16, 3)])
def test_layers_between_floats_keep_them(
    target: str, units: int, depth: int, taps: int, emulator: None, quick_host: None, tmp_path: Path
) -> None:
    """A product's last vector overlaps the one before on Cortex-M55, with zeros for weights."""
    weights = hybrid_network(tmp_path / "plain.tflite", units, depth, taps)
    assert weights.size // 2 <= saved_bytes(tmp_path / "plain.tflite", weights, target) <= weights.size // 2 + 4 * units


@pytest.mark.emulator
def test_eight_bits_that_fit_four_are_packed_for_size(emulator: None, quick_host: None, tmp_path: Path) -> None:
    weights = network(tmp_path / "plain.tflite", 16, 32)
    told = [
        tvm_cascade.compile(tmp_path / "plain.tflite", target="cortex-m4", output=tmp_path / how, optimise=how)
        for how in ("balanced", "size")
    ]
    balanced, size = (sum(op.weight_bytes for op in made.plan.graph.ops) for made in told)
    assert (
        balanced - size >= weights.size // 2  # tables of biases are smaller, too
        and tvm_cascade.run(tmp_path / "size", check=tmp_path / "plain.tflite").to_dict()["match"] is True
    )


def test_two_bits_are_read(tmp_path: Path) -> None:
    plain, small = tmp_path / "plain.tflite", tmp_path / "small.tflite"
    network(plain, 8, 4)
    weights = np.random.default_rng(1).integers(-2, 2, (4, 3, 3, 8)).astype("int8")
    with_small(plain, plain, weights, 9, 8, weights.tobytes())
    with_small(plain, small, weights, 19, 2)
    read = [tvm_cascade.load(str(p))["main"].without_attr("cascade_small_weights") for p in (plain, small)]
    assert str(read[0]) == str(read[1])


def test_bytes_that_do_not_hold_the_elements_are_refused(tmp_path: Path) -> None:
    weights = network(tmp_path / "plain.tflite", 16, 32)
    with_small(tmp_path / "plain.tflite", tmp_path / "short.tflite", weights, 17, 4, packed(weights)[:-1])
    with pytest.raises(LoadError, match="tensor kernel of 4608 elements has 2303 bytes"):
        tvm_cascade.load(str(tmp_path / "short.tflite"))


def onnx_network(path: Path, kind: str, form: str, scales_of: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Write a product by dequantized constants; return its input and its output."""
    random, (depth, units) = np.random.default_rng(3), (32, 10)
    low, high = {"INT4": (-8, 8), "UINT4": (0, 16)}[kind]
    shape = {"tensor": (), "axis": (units,), "block": (depth // scales_of, units)}[form]
    values, zeros = random.integers(low, high, (depth, units)), random.integers(0, 8, shape)
    scales = random.uniform(0.01, 0.03, shape).astype("float32")
    element = getattr(TensorProto, kind)
    weights = helper.make_tensor("w", element, values.shape, packed(values), raw=True)
    offset = helper.make_tensor("z", element, shape, packed(np.asarray(zeros)), raw=True)
    attributes: Any = {
        "axis": {"tensor": 0, "axis": 1, "block": 0}[form],
        **({"block_size": 16} if form == "block" else {}),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["real"], **attributes),
        helper.make_node("MatMul", ["x", "real"], ["y"]),
    ]
    sides = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, d]) for n, d in (("x", depth), ("y", units))]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], [weights, offset, numpy_helper.from_array(scales, "s")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    x = random.standard_normal((1, depth)).astype("float32")
    if scales_of != 16:
        return x, x
    wide = [np.repeat(a, 16, 0) if form == "block" else a for a in (scales, zeros)]
    return x, x @ ((values - wide[1]).astype("float32") * wide[0])


@pytest.mark.parametrize("kind", ("INT4", "UINT4"))
@pytest.mark.parametrize("form", ("tensor", "axis", "block"))
def test_onnx_constants_by_tensor_axis_and_block(kind: str, form: str, tmp_path: Path) -> None:
    x, expected = onnx_network(tmp_path / "net.onnx", kind, form)
    tvm_cascade.compile(tmp_path / "net.onnx", target="host", output=tmp_path / "p")
    outputs = tvm_cascade.run(tmp_path / "p", inputs={"x": x}).outputs
    np.testing.assert_allclose(outputs["y"], expected, rtol=1e-5, atol=1e-5)


def test_blocks_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    onnx_network(tmp_path / "net.onnx", "INT4", "block", scales_of=8)
    with pytest.raises(LoadError, match="blocks of 16 along axis 0"):
        tvm_cascade.load(str(tmp_path / "net.onnx"))


@pytest.mark.emulator
@pytest.mark.parametrize(("bits", "kind"), [(8, 9), (4, 17)])
@pytest.mark.parametrize("scales_of", ("tensor", "channel"))
def test_constants_that_an_operator_dequantizes_stay_small(
    scales_of: str, bits: int, kind: int, emulator: None, quick_host: None, tmp_path: Path
) -> None:
    random, writer = np.random.default_rng(4), ModelWriter()
    weights = random.integers(-7, 8, (12, 3, 3, 8)).astype("int8")
    scales = random.uniform(0.02, 0.05, 12 if scales_of == "channel" else 1).astype("float32")
    x, y = writer.activation((1, 9, 9, 8), "float32"), writer.tensor((1, 5, 5, 12), "float32")
    stored = writer.tensor(
        weights.shape, "int8", scales if scales.size > 1 else float(scales[0]), data=weights, name="kernel"
    )
    real, bias = writer.tensor(weights.shape, "float32"), writer.tensor((12,), "float32", data=np.ones(12, "float32"))
    writer.operator("DEQUANTIZE", [stored], [real], "DequantizeOptions", inner=True)
    writer.operator("CONV_2D", [x, real, bias], [y], "Conv2DOptions", **WINDOW)
    (tmp_path / "plain.tflite").write_bytes(writer.finish())
    with_small(tmp_path / "plain.tflite", tmp_path / "net.tflite", weights, kind, bits)
    made = tvm_cascade.compile(tmp_path / "net.tflite", target="cortex-m4", output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=tmp_path / "plain.tflite").to_dict()["match"] is True
    assert sum(op.weight_bytes for op in made.plan.graph.ops) == weights.size // 2 + 2 * 4 * 12  # all fit 4 bits
