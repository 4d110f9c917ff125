"""Dynamic quantization of ONNX in Relax: layers with their ends, tensors stored once, and what stays as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_cascade.frontend import load
from tvm_cascade.importers.kernel_layout import in_kernel_layout
from tvm_cascade.passes.fuse_dynamic_layers import fuse_dynamic_layers
from tvm_cascade.passes.integer.expressions import dtype_of
from tvm_cascade.passes.plan_network import lower_integers
from tvm_cascade.passes.relax_functions import bindings_of, is_call_tir


def kinds(mod: Any) -> list[str]:
    """List the operators of `main`, in order."""
    calls = [b.value for b in bindings_of(mod["main"]) if hasattr(b.value, "op")]
    return [c.args[0].name_hint if is_call_tir(c) else c.op.name for c in calls]


def network(path: Path, units: int = 2, reader: str = "", zero: int = 0) -> Any:
    """Read a file of products of one tensor; the operator `reader` reads the first sum of products too."""
    rng, nodes, held, ends = np.random.default_rng(0), list[Any](), list[Any](), list[Any]()
    nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]))
    held.append(numpy_helper.from_array(np.array(zero, "uint8"), "wz"))
    held.append(numpy_helper.from_array(np.float32(0.01), "ws"))
    nodes.append(helper.make_node("Mul", ["s", "ws"], ["m"]))
    for k in range(units):
        held.append(numpy_helper.from_array(rng.integers(0, 256, (6, 4)).astype("uint8"), f"w{k}"))
        held.append(numpy_helper.from_array(rng.standard_normal(4).astype("float32"), f"b{k}"))
        nodes.append(helper.make_node("MatMulInteger", ["q", f"w{k}", "z", "wz"], [f"p{k}"]))
        nodes.append(helper.make_node("Cast", [f"p{k}"], [f"c{k}"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Mul", [f"c{k}", "m"], [f"y{k}"]))
        nodes.append(helper.make_node("Add", [f"y{k}", f"b{k}"], [f"a{k}"]))
        nodes.append(helper.make_node("Relu", [f"a{k}"], [f"r{k}"]))
        ends.append(helper.make_tensor_value_info(f"r{k}", TensorProto.FLOAT, [2, 4]))
    if reader:
        nodes.append(helper.make_node(reader, ["y0"], ["read"]))
        ends.append(helper.make_tensor_value_info("read", TensorProto.FLOAT, [2, 4]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6])
    model = helper.make_model(helper.make_graph(nodes, "n", [x], ends, held), ir_version=8)
    model.opset_import[0].version = 17
    onnx.save(model, path)
    return lower_integers(in_kernel_layout(load(path)))


def test_a_tensor_is_stored_once(tmp_path: Path) -> None:
    mod = network(tmp_path / "n.onnx")
    before = kinds(mod)
    made = kinds(fuse_dynamic_layers(mod))
    assert [k.rstrip("0123456789") for k in made] == [
        "hybrid_factors",
        "hybrid_quantize",
        "hybrid_dense",
        "hybrid_dense",
    ]
    assert kinds(mod) == before


def test_a_sum_with_another_reader_ends_the_layer(tmp_path: Path) -> None:
    made = kinds(fuse_dynamic_layers(network(tmp_path / "n.onnx", 1, "Exp")))
    assert made[2:] == ["hybrid_dense", "relax.add", "relax.nn.relu", "relax.exp"]


def test_weights_that_need_nine_bits_are_halfwords(tmp_path: Path) -> None:
    for zero, dtype in ((128, "int8"), (3, "int16")):
        mod = fuse_dynamic_layers(network(tmp_path / "n.onnx", 1, zero=zero))
        weights = next(b.value for b in bindings_of(mod["main"]) if "dense" in str(b.value)).args[1][2]
        assert dtype_of(weights) == dtype


def test_networks_without_dynamic_quantization_stay(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 6]) for n in "xy")
    onnx.save(helper.make_model(helper.make_graph([node], "n", [x], [y]), ir_version=8), tmp_path / "n.onnx")
    mod = load(tmp_path / "n.onnx")
    assert fuse_dynamic_layers(mod) is mod
