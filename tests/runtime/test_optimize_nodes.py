"""Exported graphs have no more nodes than the originals once ONNX Runtime has fused what it can."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

from tvm_cascade import api
from tvm_cascade.optimizing.module import optimize_module, with_no_more_nodes
from tvm_cascade.passes.substitution_read import read_function
from tvm_cascade.passes.substitution_write import fold
from tvm_cascade.substitution.export_onnx import export_onnx
from tvm_cascade.substitution.node_count import runtime_nodes
from tvm_cascade.substitution.rules import ALL_RULES
from tvm_cascade.testing.builder import Net

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def fires() -> tvm.IRModule:
    """SqueezeNet's blocks: a convolution of a concatenation costs less as a sum of two, which are more nodes."""
    net = Net("float32", "NCHW")
    x = net.conv(net.input((1, 3, 64, 64), "x"), 64, 3, activation="relu")
    for squeezed in (16, 16):
        small = net.conv(x, squeezed, 1, activation="relu")
        x = net.concat([net.conv(small, 64, kernel, activation="relu") for kernel in (1, 3)])
    return net.finish(net.conv(x, 10, 1))


def inception() -> tvm.IRModule:
    """Branches of one input, of which the first convolutions merge."""
    net = Net("float32", "NCHW")
    x = net.conv(net.input((1, 3, 32, 32), "x"), 32, 3, activation="relu")
    wide = [net.conv(net.conv(x, 16, 1, activation="relu"), 32, k, activation="relu") for k in (3, 5)]
    pooled = net.conv(net.max_pool(x, 3, 1, 1), 16, 1, activation="relu")
    return net.finish(net.conv(net.concat([net.conv(x, 16, 1, activation="relu"), *wide, pooled]), 8, 1))


def grouped() -> tvm.IRModule:
    """Two grouped convolutions of one input, and a sum."""
    net = Net("float32", "NCHW")
    x = net.conv(net.input((1, 3, 16, 16), "x"), 16, 3, activation="relu")
    return net.finish(net.add(*(net.conv(x, 16, 3, groups=4, activation="relu") for _ in range(2)), activation="relu"))


def written(mod: tvm.IRModule, path: Path) -> Path:
    read = read_function(mod["main"])
    return export_onnx(read.dag, fold(read.dag, read.constants), path)


def session(path: Path, fused: Path):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(fused)
    options.log_severity_level = 3  # it warns that such files are for this machine
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("build", [fires, inception, grouped])
def test_the_exported_graph_has_no_more_nodes(tmp_path: Path, build):
    mod = build()
    plain, made = written(mod, tmp_path / "plain.onnx"), tmp_path / "made.onnx"
    api.optimize(plain, target="llvm", output=made)
    (x,) = mod["main"].params
    data = np.random.default_rng(0).standard_normal([int(d) for d in x.ty.shape.values]).astype("float32")
    nodes, results = [], []
    for path in (plain, made):
        fused = path.with_suffix(".fused.onnx")
        results.append(session(path, fused).run(None, {"x": data})[0])
        nodes.append(len(onnx.load(fused).graph.node))
    assert nodes[1] <= nodes[0]
    assert nodes[0] == runtime_nodes(read_function(mod["main"]).dag)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_where_nothing_is_exported_operators_may_be_added():
    done = optimize_module(fires(), "llvm")
    assert runtime_nodes(done.result.dag) > runtime_nodes(done.read.dag)
    kept = with_no_more_nodes(lambda rules: optimize_module(fires(), "llvm", rules=rules), ALL_RULES)
    assert runtime_nodes(kept.result.dag) <= runtime_nodes(kept.read.dag)
    assert done.result.cost_after < kept.result.cost_after <= kept.result.cost_before
