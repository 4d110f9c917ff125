"""Weights that a file stores as floats of 16 or 8 bits: as small in flash, and decoded exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_cascade
from tvm_cascade.schedules.rules.small_floats import KINDS
from tvm_cascade.testing.tflite import ModelWriter

TYPES: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8e5m2": ml_dtypes.float8_e5m2,
    "float8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
}
SIZE = {name: np.dtype(kind).itemsize for name, kind in TYPES.items()}
CONV: dict[str, Any] = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}


def halves(shape: tuple[int, ...], kind: str = "float16") -> np.ndarray:
    """Return numbers of a kind, some of them subnormal and zero, of either sign."""
    random = np.random.default_rng(3)
    made = random.standard_normal(shape)
    flat = made.reshape(-1)
    flat[::7] *= 1e-4
    flat[::11] = 0.0
    flat[::22] = -0.0
    return made.astype("float32").astype(TYPES[kind])


def stored(values: np.ndarray, kind: str, name: str = "w") -> onnx.TensorProto:
    return helper.make_tensor(name, getattr(TensorProto, kind.upper()), values.shape, values.tobytes(), raw=True)


def write(
    path: Path, nodes: list[Any], x: tuple[int, ...], y: tuple[int, ...], constants: list[Any], kind: int = 1
) -> None:
    sides = [helper.make_tensor_value_info("x", kind, x), helper.make_tensor_value_info("y", TensorProto.FLOAT, y)]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def convolution(path: Path, kind: str, groups: int, bias: bool, outputs: int = 8, taps: int = 3) -> int:
    """Write a convolution by cast weights; return the number of weights."""
    values = halves((outputs, 8 // groups, taps, taps), kind)
    nodes = [
        helper.make_node("Cast", ["w"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Conv", ["x", "real", *(["b"] if bias else [])], ["y"], pads=[taps // 2] * 4, group=groups),
    ]
    constants = [stored(values, kind)]
    constants += [numpy_helper.from_array(np.ones(outputs, "float32") / 3, "b")] if bias else []
    write(path, nodes, (1, 8, 6, 7), (1, outputs, 6, 7), constants)
    return values.size


def product(path: Path, kind: str, scales: int, rows: int = 1, depth: int = 48, units: int = 33) -> int:
    """Write a product by weights with scales by tensor (1), channel (2) or blocks (3), or cast (0)."""
    shape: tuple[int, ...] = ((), (), (units,), (depth // 16, units))[scales]
    values, factors = halves((depth, units), kind), np.random.default_rng(5).uniform(0.2, 0.9, shape).astype("float32")
    attributes: Any = {"axis": 1} if scales == 2 else {"axis": 0, "block_size": 16} if scales == 3 else {}
    cast = helper.make_node("Cast", ["w"], ["real"], to=TensorProto.FLOAT)
    dequantize = helper.make_node("DequantizeLinear", ["w", "s"], ["real"], **attributes)
    nodes = [dequantize if scales else cast, helper.make_node("MatMul", ["x", "real"], ["y"])]
    write(
        path,
        nodes,
        (rows, depth),
        (rows, units),
        [stored(values, kind), numpy_helper.from_array(np.asarray(factors), "s")],
    )
    return values.size


def weight_bytes(made: Any) -> int:
    return sum(op.weight_bytes for op in made.plan.graph.ops)


def checked(path: Path, target: str) -> int:
    """Compile a network, compare its outputs, and return the bytes of its constants."""
    made = tvm_cascade.compile(path, target=target, output=path.parent / target)
    assert tvm_cascade.run(path.parent / target, check=path).to_dict()["match"] is True
    return weight_bytes(made)


@pytest.mark.parametrize("name", KINDS)
def test_all_numbers_of_a_kind_are_decoded(name: str) -> None:
    kind = KINDS[name]
    bits = np.arange(1 << kind.bits).astype(f"uint{kind.bits}").view(kind.dtype)
    numbers = kind.to_floats(bits) * np.float32(kind.factors[0])
    encoded = kind.encode(numbers)
    assert encoded is not None
    np.testing.assert_array_equal(kind.to_floats(encoded[0]) * np.float32(encoded[1]), numbers)


@pytest.mark.parametrize("kind", TYPES)
def test_all_numbers_of_a_file_are_as_small(kind: str, tmp_path: Path) -> None:
    """A table of every number of a type, infinities, NaN and both zeros among them, is read number by number."""
    bits = np.arange(256).astype("uint8") if SIZE[kind] == 1 else np.arange(0, 1 << 16, 7).astype("uint16")
    values = bits.view(TYPES[kind]).reshape(-1, 1)
    nodes = [
        helper.make_node("Cast", ["w"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Gather", ["real", "x"], ["y"]),
    ]
    count = len(values)
    write(tmp_path / "net.onnx", nodes, (count,), (count, 1), [stored(values, kind)], TensorProto.INT32)
    made = tvm_cascade.compile(tmp_path / "net.onnx", target="host", output=tmp_path / "p")
    y = tvm_cascade.run(tmp_path / "p", inputs={"x": np.arange(count, dtype="int32")}).outputs["y"]
    want = values.astype("float32")
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(np.signbit(y), np.signbit(want) | (np.isnan(want) & np.signbit(y)))
    assert weight_bytes(made) <= 2 * count  # floats of 8 bits with NaN may take 16


@pytest.mark.emulator
@pytest.mark.parametrize("target", ("cortex-m4", "cortex-m55", "cortex-m0plus", "riscv32-virt"))
def test_every_float16_is_decoded_on_a_core(target: str, emulator: None, quick_host: None, tmp_path: Path) -> None:
    bits = np.arange(0, 1 << 16, 97).astype("uint16")
    values = bits.view(np.float16)
    values = np.where(np.isfinite(values), values, np.float16(1)).reshape(1, -1)
    nodes = [
        helper.make_node("Cast", ["w"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "real"], ["y"]),
    ]
    write(tmp_path / "net.onnx", nodes, values.shape, values.shape, [stored(values, "float16")])
    assert checked(tmp_path / "net.onnx", target) == 2 * values.size


@pytest.mark.emulator
@pytest.mark.parametrize("target", ("cortex-m4", "cortex-m55", "cortex-m0plus"))
@pytest.mark.parametrize("kind", ("float16", "bfloat16", "float8e4m3fn", "float8e5m2"))
@pytest.mark.parametrize(
    ("groups", "bias", "outputs", "taps"), [(1, True, 8, 3), (1, False, 9, 1), (8, True, 8, 3), (8, False, 8, 5)]
)
def test_convolutions(
    target: str,
    kind: str,
    groups: int,
    bias: bool,
    outputs: int,
    taps: int,
    emulator: None,
    quick_host: None,
    tmp_path: Path,
) -> None:
    count = convolution(tmp_path / "net.onnx", kind, groups, bias, outputs, taps)
    channels = -(-outputs // 4) * 4  # of vectors
    assert checked(tmp_path / "net.onnx", target) <= SIZE[kind] * count * channels // outputs + 8 * channels + 32


@pytest.mark.emulator
@pytest.mark.parametrize("target", ("cortex-m4", "cortex-m55"))
@pytest.mark.parametrize("kind", ("float16", "float8e4m3fnuz", "float8e5m2fnuz"))
@pytest.mark.parametrize("scales", (0, 1, 2, 3))
def test_products(target: str, kind: str, scales: int, emulator: None, quick_host: None, tmp_path: Path) -> None:
    if scales and kind == "float16":
        pytest.skip("ONNX dequantizes no float16")
    count = product(tmp_path / "net.onnx", kind, scales)
    assert checked(tmp_path / "net.onnx", target) <= SIZE[kind] * count * 36 // 33 + max(scales, 1) * 36 * 4 + 64


@pytest.mark.emulator
@pytest.mark.parametrize("target", ("cortex-m4", "cortex-m55"))
@pytest.mark.parametrize("kind", ("float16", "bfloat16"))
@pytest.mark.parametrize("operator", ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"))
def test_tflite(target: str, operator: str, kind: str, emulator: None, quick_host: None, tmp_path: Path) -> None:
    """Post-training quantization: constants of 16 bits, which DEQUANTIZE or CAST makes float32, biases too."""
    w = ModelWriter()
    dense, depthwise = operator == "FULLY_CONNECTED", operator.startswith("DEPTH")
    x = w.activation((1, 24) if dense else (1, 9, 9, 8), "float32")
    shape = (12, 24) if dense else (1, 3, 3, 8) if depthwise else (12, 3, 3, 8)
    outputs = 8 if depthwise else 12
    reals = []
    widening = ("DEQUANTIZE", "DequantizeOptions") if kind == "float16" else ("CAST", "CastOptions")
    for values in (halves(shape), np.linspace(-1, 1, outputs)):
        reals.append(w.tensor(values.shape, "float32"))
        w.operator(widening[0], [w.constant(values.astype(kind))], [reals[-1]], widening[1], inner=True)
    y = w.tensor((1, 12) if dense else (1, 9, 9, outputs), "float32")
    options: dict[str, Any] = {} if dense else {"depthMultiplier": 1, **CONV} if depthwise else CONV
    name = {"CONV_2D": "Conv2DOptions", "FULLY_CONNECTED": "FullyConnectedOptions"}.get(
        operator, "DepthwiseConv2DOptions"
    )
    w.operator(operator, [x, *reals], [y], name, **options)
    (tmp_path / "net.tflite").write_bytes(w.finish())
    count = int(np.prod(shape))
    assert checked(tmp_path / "net.tflite", target) <= 2 * count + 4 * outputs + 32


@pytest.mark.parametrize("reader", ("Add", "grouped", "transposed"))
def test_other_readers(reader: str, tmp_path: Path) -> None:
    shape = {"Add": (1, 20, 20), "grouped": (16, 4, 3, 3), "transposed": (8, 6, 3, 3)}[reader]
    node, x, y = {
        "Add": (helper.make_node("Add", ["x", "real"], ["y"]), shape, shape),
        "grouped": (helper.make_node("Conv", ["x", "real"], ["y"], group=4), (1, 16, 5, 5), (1, 16, 3, 3)),
        "transposed": (helper.make_node("ConvTranspose", ["x", "real"], ["y"]), (1, 8, 4, 4), (1, 6, 6, 6)),
    }[reader]
    values = halves(shape)
    cast = helper.make_node("Cast", ["w"], ["real"], to=TensorProto.FLOAT)
    write(tmp_path / "net.onnx", [cast, node], x, y, [stored(values, "float16")])
    assert checked(tmp_path / "net.onnx", "host") == 2 * values.size


def test_a_network_of_float16(tmp_path: Path) -> None:
    """A network whose activations are float16, too, computes in float32 on its weights of 16 bits."""
    values = halves((32, 20))
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    constants = [stored(values, "float16"), stored(halves((20,)), "float16", "b")]
    sides = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, s) for n, s in (("x", (1, 32)), ("y", (1, 20)))]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], constants)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "net.onnx"
    )
    assert checked(tmp_path / "net.onnx", "host") == 2 * values.size + 4 * 20


def test_a_network_of_floats_keeps_its_floats(tmp_path: Path) -> None:
    """Weights of float32 remain, although float16 holds them."""
    values = halves((32, 20)).astype("float32")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    write(tmp_path / "net.onnx", [node], (1, 32), (1, 20), [numpy_helper.from_array(values, "w")])
    assert checked(tmp_path / "net.onnx", "host") == values.nbytes


@pytest.mark.torch
@pytest.mark.parametrize("kind", ("float16", "bfloat16"))
def test_a_program_of_16_bits(kind: str, tmp_path: Path) -> None:
    """A torch module turned to 16 bits computes in float32, and is compared with torch in float32."""
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, kind)
    module = torch.nn.Sequential(torch.nn.Linear(32, 20), torch.nn.ReLU()).eval().to(dtype)
    torch.export.save(torch.export.export(module, (torch.zeros(1, 32, dtype=dtype),)), tmp_path / "net.pt2")
    assert checked(tmp_path / "net.pt2", "host") == 2 * 32 * 20 + 4 * 20
