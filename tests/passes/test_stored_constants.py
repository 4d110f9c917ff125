"""Weights that a file stores as small integers beside floats: as small in flash, with the results of the floats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_cascade
from tvm_cascade.errors import LoadError

RANGES = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}
BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}


def packed(values: np.ndarray, kind: str) -> bytes:
    flat = values.reshape(-1).astype("int16").astype("uint8")
    if BITS[kind] == 8:
        return flat.tobytes()
    flat = np.append(flat, np.zeros(flat.size % 2, "uint8")) & 15
    return (flat[::2] | flat[1::2] << 4).tobytes()


def stored(name: str, values: np.ndarray, kind: str) -> onnx.TensorProto:
    return helper.make_tensor(name, getattr(TensorProto, kind.upper()), values.shape, packed(values, kind), raw=True)


def numbers(kind: str, shape: tuple[int, ...], zeros: tuple[int, ...], seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    random, (low, high) = np.random.default_rng(seed), RANGES[kind]
    offset = random.integers(low, high, zeros) if low == 0 else np.zeros(zeros, int)
    return random.integers(low, high, shape), np.asarray(offset)


def write(path: Path, nodes: list[onnx.NodeProto], x: tuple[int, ...], y: tuple[int, ...], constants: list) -> None:
    sides = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", x), ("y", y))]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def product(path: Path, kind: str, form: str, depth: int = 48, units: int = 33, rows: int = 1) -> None:
    """A product by constants that are dequantized by tensor, axis or blocks of 16."""
    shape = {"tensor": (), "axis": (units,), "block": (depth // 16, units)}[form]
    values, zeros = numbers(kind, (depth, units), shape)
    scales = np.random.default_rng(6).uniform(0.01, 0.03, shape).astype("float32")
    attributes: Any = {"axis": int(form == "axis"), **({"block_size": 16} if form == "block" else {})}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["real"], **attributes),
        helper.make_node("MatMul", ["x", "real"], ["y"]),
    ]
    constants = [stored("w", values, kind), stored("z", zeros, kind), numpy_helper.from_array(scales, "s")]
    write(path, nodes, (rows, depth), (rows, units), constants)


def convolution(path: Path, kind: str, groups: int = 1, inputs: int = 8, outputs: int = 10, taps: int = 3) -> None:
    """A convolution by constants that are dequantized by output channel, with biases and an activation."""
    values, zeros = numbers(kind, (outputs, inputs // groups, taps, taps), (outputs,))
    random = np.random.default_rng(7)
    scales, biases = (random.uniform(0.01, 0.03, outputs).astype("float32") for _ in range(2))
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["real"], axis=0),
        helper.make_node("Conv", ["x", "real", "b"], ["c"], pads=[taps // 2] * 4, group=groups),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    constants = [stored("w", values, kind), stored("z", zeros, kind)]
    constants += [numpy_helper.from_array(a, n) for a, n in ((scales, "s"), (biases, "b"))]
    write(path, nodes, (1, inputs, 7, 7), (1, outputs, 7, 7), constants)


def weight_bytes(made: Any) -> int:
    return sum(op.weight_bytes for op in made.plan.graph.ops)


@pytest.mark.emulator
@pytest.mark.parametrize("target", ("cortex-m4", "cortex-m55"))
@pytest.mark.parametrize("kind", RANGES)
@pytest.mark.parametrize("form", ("tensor", "axis", "block"))
def test_products(target: str, kind: str, form: str, emulator: None, quick_host: None, tmp_path: Path) -> None:
    product(tmp_path / "net.onnx", kind, form)
    made = tvm_cascade.compile(tmp_path / "net.onnx", target=target, output=tmp_path / "p")
    count, blocks = 48 * 33, 3 if form == "block" else 1
    assert tvm_cascade.run(tmp_path / "p", check=tmp_path / "net.onnx").to_dict()["match"] is True
    # an odd number of channels takes whole bytes a tap; scales are floats, zero points bytes, filled to vectors
    assert weight_bytes(made) <= 48 * 36 * BITS[kind] // 8 + blocks * 36 * (4 + 4) + 64 < 4 * count


@pytest.mark.emulator
@pytest.mark.parametrize("target", ("cortex-m4", "cortex-m55", "cortex-m0plus"))
@pytest.mark.parametrize("kind", RANGES)
@pytest.mark.parametrize("groups", (1, 8))
def test_convolutions(target: str, kind: str, groups: int, emulator: None, quick_host: None, tmp_path: Path) -> None:
    outputs = 10 if groups == 1 else 8
    convolution(tmp_path / "net.onnx", kind, groups, outputs=outputs)
    made = tvm_cascade.compile(tmp_path / "net.onnx", target=target, output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=tmp_path / "net.onnx").to_dict()["match"] is True
    count = outputs * 9 * (8 if groups == 1 else 1)
    assert weight_bytes(made) <= count * 1.4 * BITS[kind] / 8 + 12 * 12 + 32 < 4 * count + 4 * outputs


@pytest.mark.parametrize(("outputs", "taps"), [(5, 1), (6, 3), (7, 3)])
@pytest.mark.parametrize("inputs", (3, 4))
@pytest.mark.emulator
def test_channels_and_taps_that_are_no_whole_bytes(
    inputs: int, outputs: int, taps: int, emulator: None, quick_host: None, tmp_path: Path
) -> None:
    for target in ("cortex-m4", "cortex-m55"):
        convolution(tmp_path / "net.onnx", "uint4", 1, inputs, outputs, taps)
        tvm_cascade.compile(tmp_path / "net.onnx", target=target, output=tmp_path / target)
        assert tvm_cascade.run(tmp_path / target, check=tmp_path / "net.onnx").to_dict()["match"] is True


@pytest.mark.parametrize("kind", RANGES)
@pytest.mark.parametrize("form", ("tensor", "axis", "block"))
def test_generic_kernels(kind: str, form: str, tmp_path: Path) -> None:
    product(tmp_path / "net.onnx", kind, form, rows=3)
    made = tvm_cascade.compile(tmp_path / "net.onnx", target="host", output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=tmp_path / "net.onnx").to_dict()["match"] is True
    assert weight_bytes(made) < 48 * 34 * BITS[kind] // 8 + 33 * 3 * 5 + 64


OTHERS: dict[str, tuple[tuple[int, ...], int, tuple[int, ...], tuple[int, ...], onnx.NodeProto]] = {
    "table": ((90, 16), 0, (1, 5), (1, 5, 16), helper.make_node("Gather", ["real", "x"], ["y"])),
    "groups": ((16, 4, 3, 3), 0, (1, 16, 5, 5), (1, 16, 3, 3), helper.make_node("Conv", ["x", "real"], ["y"], group=4)),
    "transposed": (
        (8, 6, 3, 3),
        1,
        (1, 8, 4, 4),
        (1, 6, 6, 6),
        helper.make_node("ConvTranspose", ["x", "real"], ["y"]),
    ),
    "line": ((12, 8, 3), 0, (1, 8, 9), (1, 12, 7), helper.make_node("Conv", ["x", "real"], ["y"])),
    "sum": ((1, 20, 20), 1, (1, 20, 20), (1, 20, 20), helper.make_node("Add", ["x", "real"], ["y"])),
    "transposed product": ((20, 32), 0, (3, 32), (3, 20), helper.make_node("Gemm", ["x", "real"], ["y"], transB=1)),
}


@pytest.mark.parametrize("kind", ("int4", "int8"))
@pytest.mark.parametrize("reader", OTHERS)
def test_other_readers(reader: str, kind: str, tmp_path: Path) -> None:
    shape, axis, inputs, outputs, node = OTHERS[reader]
    values, zeros = numbers(kind, shape, (shape[axis],))
    scales = np.random.default_rng(6).uniform(0.01, 0.03, shape[axis]).astype("float32")
    constants = [stored("w", values, kind), stored("z", zeros, kind), numpy_helper.from_array(scales, "s")]
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["real"], axis=axis), node]
    write(tmp_path / "net.onnx", nodes, inputs, outputs, constants)
    if reader == "table":
        model = onnx.load(tmp_path / "net.onnx")
        model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT32
        onnx.save(model, tmp_path / "net.onnx")
    made = tvm_cascade.compile(tmp_path / "net.onnx", target="host", output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=tmp_path / "net.onnx").to_dict()["match"] is True
    packed_axis = shape[-1] if kind == "int8" or shape[-1] % 2 == 0 else shape[-1] + 1
    numbers_bytes = int(np.prod(shape[:-1])) * packed_axis * BITS[kind] // 8
    assert weight_bytes(made) <= numbers_bytes * 1.1 + 4 * shape[axis] + 64 < 4 * values.size


def test_matmul_n_bits(tmp_path: Path) -> None:
    random, (depth, units, size) = np.random.default_rng(8), (40, 6, 16)
    blocks = -(-depth // size)
    values = random.integers(0, 16, (units, blocks * size))
    scales = random.uniform(0.01, 0.03, (units, blocks)).astype("float32")
    zeros = random.integers(0, 16, (units, blocks))
    data = np.frombuffer(packed(values, "uint4"), "uint8").reshape(units, blocks, size // 2)
    offsets = np.concatenate([np.frombuffer(packed(row, "uint4"), "uint8") for row in zeros])
    names = ["x", "w", "s", "z"]
    attributes: dict[str, Any] = {"K": depth, "N": units, "bits": 4, "block_size": size}
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **attributes)
    constants = [numpy_helper.from_array(a, n) for a, n in ((data, "w"), (scales, "s"), (offsets, "z"))]
    write(tmp_path / "net.onnx", [node], (1, depth), (1, units), constants)
    model = onnx.load(tmp_path / "net.onnx")
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, tmp_path / "net.onnx")
    x = random.standard_normal((1, depth)).astype("float32")
    made = tvm_cascade.compile(tmp_path / "net.onnx", target="host", output=tmp_path / "p")
    real = (values - np.repeat(zeros, size, 1)) * np.repeat(scales, size, 1)
    outputs = tvm_cascade.run(tmp_path / "p", inputs={"x": x}).outputs
    np.testing.assert_allclose(outputs["y"], x @ real[:, :depth].T.astype("float32"), rtol=1e-5, atol=1e-5)
    assert weight_bytes(made) <= depth * units // 2 + blocks * units * 5 + 64


def table_in_blocks(
    path: Path, kind: str, zeros: bool, size: int = 16, scales: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    """Write a GatherBlockQuantized of 20 rows of 48 numbers; return the table in floats and the indices."""
    random, bits = np.random.default_rng(9), 8 if kind == "bytes" else 4
    low, high = (-8, 8) if kind == "int4" else (0, 1 << bits)
    values, points = random.integers(low, high, (20, 48)), random.integers(low, high, (20, 3))
    factors = random.uniform(0.01, 0.03, (20, scales)).astype("float32")

    def constant(name: str, numbers: np.ndarray) -> onnx.TensorProto:
        if kind == "bytes":
            return numpy_helper.from_array(numbers.astype("uint8"), name)
        if kind == "nibbles":
            rows = [np.frombuffer(packed(row, "uint4"), "uint8") for row in numbers]
            return numpy_helper.from_array(np.stack(rows), name)
        return stored(name, numbers, kind)

    attributes: dict[str, Any] = {"gather_axis": 0, "quantize_axis": 1, "block_size": size, "bits": bits}
    names = ["w", "i", "s", *(["z"] if zeros else [])]
    node = helper.make_node("GatherBlockQuantized", names, ["y"], domain="com.microsoft", **attributes)
    constants = [constant("w", values), numpy_helper.from_array(factors, "s")]
    write(path, [node], (1, 4), (1, 4, 48), [*constants, *([constant("z", points)] if zeros else [])])
    model = onnx.load(path)
    model.graph.input[0].name = "i"
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)
    offsets = points if zeros else np.full((20, 3), {"bytes": 128, "nibbles": 8}.get(kind, 0))
    real = (values - np.repeat(offsets, 16, 1)) * np.resize(np.repeat(factors, 16, 1), (20, 48))
    return real.astype("float32"), np.array([[3, -1, 19, 0]])


@pytest.mark.parametrize("kind", ("int4", "uint4", "nibbles", "bytes"))
@pytest.mark.parametrize("zeros", (False, True))
def test_gather_block_quantized(kind: str, zeros: bool, quick_host: None, tmp_path: Path) -> None:
    real, indices = table_in_blocks(tmp_path / "net.onnx", kind, zeros)
    made = tvm_cascade.compile(tmp_path / "net.onnx", target="host", output=tmp_path / "p")
    outputs = tvm_cascade.run(tmp_path / "p", inputs={"i": indices.astype("int32")}).outputs
    np.testing.assert_allclose(outputs["y"], real[indices], rtol=1e-6)
    assert tvm_cascade.run(tmp_path / "p", check=tmp_path / "net.onnx").to_dict()["match"] is True
    assert weight_bytes(made) <= 20 * 48 // (1 if kind == "bytes" else 2) + 60 * 5 + 64


@pytest.mark.parametrize("how, why", [({"scales": 2}, "have scales of shape"), ({"size": 0}, "blocks of 0 numbers")])
def test_tables_whose_blocks_do_not_divide_them(how: dict[str, int], why: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=why):
        table_in_blocks(tmp_path / "net.onnx", "nibbles", False, **how)
        tvm_cascade.plan(tmp_path / "net.onnx")


def test_a_first_convolution_of_cast_weights_is_turned(tmp_path: Path) -> None:
    """Weights `Cast(int8) * scales` of planes with three channels: the layer is fused, as one of float weights is."""
    from tvm_cascade.testing.onnx_layers import Layers

    layers = Layers()
    numbers = layers.constant(layers.rng.integers(-127, 128, (8, 3, 3, 3)).astype("int8"))
    scales = layers.constant(layers.rng.uniform(0.001, 0.01, (8, 1, 1, 1)).astype("float32"))
    weights = layers.node("Mul", layers.node("Cast", numbers, to=1), scales)
    y = layers.node("Conv", "x", weights, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = layers.node("GlobalAveragePool", layers.node("Relu", y))
    layers.save(tmp_path / "m.onnx", layers.node("Flatten", y), (1, 3, 16, 16), 2)
    plan = tvm_cascade.plan(tmp_path / "m.onnx", target="cortex-m4")
    assert plan.to_dict()["weight_bytes"] < 2.5 * 8 * 27
    assert plan.estimated_instructions is not None and plan.estimated_instructions < 6 * plan.macs
