"""Dense layers of staged programs for CPUs whose weights stay integers: values of numpy, bytes of the file."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false
from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, te

from tvm_cascade import frontend
from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.passes.stored_constants import StoredConstant
from tvm_cascade.runtime import compile_stages
from tvm_cascade.staging.kernels.cpu_float import schedule_cpu
from tvm_cascade.staging.kernels.cpu_stored import StoredColumns, pack_stored
from tvm_cascade.staging.program.kernels import build_kernels
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.staging.program.specs import Spec


def drawn(low: int, high: int, shape: tuple[int, int], size: int, zeros: tuple[int, int]) -> StoredConstant:
    """Draw a matrix with numbers in [low, high), and scales and zero points of blocks of `size` rows."""
    random, blocks = np.random.default_rng(shape[0]), -(-shape[0] // size)
    values = random.integers(low, high, shape).astype("uint8" if low >= 0 else "int8")
    values[0, 0], values[1, 0] = low, high - 1

    def spread(numbers: np.ndarray) -> np.ndarray:
        return np.repeat(numbers, size, 0)[: shape[0]]

    scale = spread(random.uniform(0.01, 0.03, (blocks, shape[1])).astype("float32"))
    return StoredConstant(values, spread(random.integers(*zeros, (blocks, shape[1]))).astype("int32"), scale)


def product(x: np.ndarray, packed: StoredColumns, columns: int, most: int) -> np.ndarray:
    """Compute the product by the scheduled kernel with accumulator tiles of at most `most` vectors."""
    given = [x, *packed.arrays]
    args = [te.placeholder(v.shape, str(v.dtype), f"p{k}") for k, v in enumerate(given)]
    func = te.create_prim_func([*args, packed.product(args[0], columns, *args[1:])])
    scheduled = schedule_cpu(func, False, most)
    assert not tvm_ffi.structural_equal(scheduled, func)
    out = tvm.runtime.tensor(np.full((*x.shape[:-1], columns), np.nan, "float32"))
    tvm.compile(scheduled, target="llvm")(*map(tvm.runtime.tensor, given), out)
    return out.numpy()


@pytest.mark.parametrize("most", [3, 6, 24])  # vectors of SSE, AVX2 and AVX-512
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(1, 64, 130), (1, 33, 5), (3, 32, 40), (7, 48, 17), (50, 40, 70)]
)
@pytest.mark.parametrize(
    ("low", "high", "zeros", "bits", "arrays"),
    [
        (0, 16, (8, 9), 4, 2), (-8, 8, (0, 1), 4, 2), (0, 16, (0, 16), 4, 3), (-127, 128, (0, 1), 8, 2),
        (0, 256, (128, 129), 8, 2), (0, 256, (0, 256), 8, 3), (-128, 128, (-128, 128), 8, 3),
    ],
)  # fmt: skip
def test_products_are_those_of_numpy(most, rows, depth, columns, low, high, zeros, bits, arrays):
    """Symmetric numbers have no zero points beside their scales, numbers of at most 16 values take half a byte."""
    stored = drawn(low, high, (depth, columns), 16, zeros)
    packed = pack_stored(stored, rows, most)
    assert packed is not None and (packed.bits, packed.size, len(packed.arrays)) == (bits, 16, arrays)
    x = np.random.default_rng(rows).standard_normal((2, rows, depth)).astype("float32")
    assert stored.scale is not None
    wanted = x @ ((stored.values.astype("float32") - stored.zero) * stored.scale).astype("float32")
    np.testing.assert_allclose(product(x, packed, columns, most), wanted, rtol=1e-5, atol=1e-4)


def by_bits(folder: Path, rows: int, bits: int) -> Path:
    """Write a model of a MatMulNBits."""
    random, (depth, units, size) = np.random.default_rng(bits), (64, 96, 32)
    data = random.integers(0, 256, (units, depth // size, size * bits // 8)).astype("uint8")
    scales = random.uniform(0.01, 0.03, (units, depth // size)).astype("float32")
    attributes: dict[str, Any] = {"K": depth, "N": units, "bits": bits, "block_size": size}
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **attributes)
    return written(folder, [node], {"w": data, "s": scales}, (1, rows, depth))


def by_blocks(folder: Path, rows: int, bits: int) -> Path:
    """Write a model of a MatMul with weights by DequantizeLinear along blocks."""
    random, (depth, units, size) = np.random.default_rng(bits), (64, 96, 32)
    kind = TensorProto.INT4 if bits == 4 else TensorProto.INT8
    data = random.integers(-(1 << (bits - 1)), 1 << (bits - 1), (depth, units))
    scales = random.uniform(0.01, 0.03, (depth // size, units)).astype("float32")
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["v"], axis=0, block_size=size),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ]
    weights = helper.make_tensor("w", kind, data.shape, data.ravel().tolist())
    return written(folder, nodes, {"w": weights, "s": scales}, (1, rows, depth))


def written(folder: Path, nodes: list[Any], constants: dict[str, Any], shape: tuple[int, ...]) -> Path:
    """Write a model of an input and a result."""
    held = [c if isinstance(c, TensorProto) else numpy_helper.from_array(c, name) for name, c in constants.items()]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "net", [value("x", TensorProto.FLOAT, shape)], [value("y", TensorProto.FLOAT, None)], held
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "net.onnx")
    return folder / "net.onnx"


@pytest.mark.parametrize("write", [by_bits, by_blocks])
@pytest.mark.parametrize(("rows", "bits"), [(1, 4), (1, 8), (20, 4), (20, 8)])
def test_weights_of_a_file_stay_as_they_are_stored(tmp_path, write, rows, bits):
    import onnxruntime

    path = write(tmp_path, rows, bits)
    net = stage_network(frontend.load(path), "llvm")
    kernels = build_kernels(net, [Spec(unit.ops) for unit in unit_graph(net.graph, "fused").units], True)
    assert sum(c.nbytes for k in kernels for c in k.constants) == 64 * 96 * bits // 8 + 2 * 96 * 4
    found = schedule(net.graph, AnalyticCost(find_device("cpu", "llvm", 1)), Options(variant="sequential")).schedule
    staged = lower_stages(net, unit_graph(net.graph, "fused"), found, LowerOptions(workers=1))
    machine = relax.VirtualMachine(compile_stages(staged), tvm.cpu())
    x = np.random.default_rng(rows).standard_normal((1, rows, 64)).astype("float32")
    result: Any = machine["main"](tvm.runtime.tensor(x))
    result = result if hasattr(result, "numpy") else result[0]
    options = onnxruntime.SessionOptions()  # its rewrites multiply blocks by activations of 8 bits
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    wanted = np.asarray(session.run(None, {"x": x})[0])
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_a_merge_of_stored_weights_is_not_offered(tmp_path):
    """It would need the weights of both as floats."""
    net = stage_network(frontend.load(by_bits(tmp_path, 1, 4)), "llvm")
    assert [op.attrs.get("mergeable") for op in net.graph.ops if op.kind == "dense"] == [False]
