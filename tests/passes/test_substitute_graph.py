"""SubstituteGraph on Relax modules: round trips, equal results, training graphs, saved files."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade import api
from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.errors import GraphError, LoadError, UnsupportedOperatorError, UsageError
from tvm_cascade.measured.choose_module import decide, fastest
from tvm_cascade.optimizing import module as optimize_functions
from tvm_cascade.optimizing.module import load_optimized, optimize_module, save_optimized
from tvm_cascade.passes.substitute_graph import SubstituteGraph, substitute
from tvm_cascade.passes.substitution_read import read_function
from tvm_cascade.passes.substitution_write import write_function
from tvm_cascade.substitution.costs import CUDNN, Latency
from tvm_cascade.substitution.metaflow import SearchOptions
from tvm_cascade.substitution.rules import ALL_RULES, integer_rules
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.quick_build import quick_run, virtual_machine
from tvm_cascade.testing.symbolic import symbolic_relu
from tvm_cascade.testing.zoo import alexnet, resnet, rnn, vgg

TOLERANCE = 2e-4  # relative to the largest output: float32 sums in another order


def v100() -> Latency:
    return Latency("latency", CUDNN, model=AnalyticCost(find_device("v100")))


def run(mod: tvm.IRModule, inputs: list[np.ndarray]) -> list[np.ndarray]:
    return quick_run(mod, *inputs)


def inputs_of(mod: tvm.IRModule, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    made = []
    for param in mod["main"].params:
        shape, dtype = [int(d) for d in param.ty.shape.values], str(param.ty.dtype)
        integer = np.dtype(dtype).kind in "iu"
        made.append(random.integers(-100, 100, shape).astype(dtype) if integer else random.random(shape, "float32"))
    return made


def check_equal(a: tvm.IRModule, b: tvm.IRModule) -> None:
    inputs = inputs_of(a)
    for x, y in zip(run(a, inputs), run(b, inputs), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        np.testing.assert_allclose(x, y, atol=TOLERANCE * max(1e-3, float(np.abs(x).max())), rtol=0)


def branches(layout: str = "NCHW") -> tvm.IRModule:
    """An inception-like block, a residual, a depthwise and a grouped convolution, pools and a classifier."""
    net = Net("float32", layout=layout)
    x = net.input((1, 3, 16, 16) if layout == "NCHW" else (1, 16, 16, 3))
    x = net.batch_norm(net.conv(x, 8, 3, activation="relu", bias=False))
    parts = [net.conv(x, 8, k, activation="relu") for k in (1, 3, (1, 3), (3, 1))]
    parts.append(net.conv(net.avg_pool(x, 3, 1, "same"), 8, 1))
    x = net.max_pool(net.concat(parts), 3, 2)
    x = net.relu(net.add(net.conv(x, 40, 3), x))
    x = net.conv(net.depthwise(x, 3), 16, 1, activation="relu6")
    x = net.conv(x, 16, 3, groups=2)
    return net.finish(net.softmax(net.dense(net.flatten(net.global_pool(x)), 5, activation="relu6")))


NETWORKS = {
    "branches NCHW": branches,
    "branches NHWC": lambda: branches("NHWC"),
    "alexnet": lambda: alexnet.alexnet(size=63, classes=10, width=0.05),
    "vgg16": lambda: vgg.vgg16(size=32, classes=10, width=0.04),
    "resnet18": lambda: resnet.resnet18(size=32, classes=10, width=0.1),
    "resnet50": lambda: resnet.resnet50(size=32, classes=10, width=0.05, layout="NHWC"),
    "figure 1": lambda: resnet.resnet_module(6, 8),
    "rnntc": lambda: rnn.rnntc(steps=4, hidden=16),
    "nmt": lambda: rnn.nmt(steps=2, hidden=8),
    "sru": lambda: rnn.sru_cell(hidden=16),
}
SMALL = SearchOptions(max_graphs=150)


@pytest.mark.parametrize("name", ["branches NCHW", "branches NHWC", "figure 1", "sru"])
def test_round_trip_is_the_same_network(name: str) -> None:
    mod = NETWORKS[name]()
    read = read_function(mod["main"])
    assert not any(n.kind == "opaque" for n in read.dag.nodes)
    back = mod.clone()
    back.update_func(back.get_global_var("main"), write_function(read.dag, read, mod["main"].attrs))
    assert mod["main"].attrs["num_input"] == back["main"].attrs["num_input"]
    check_equal(mod, back)


@pytest.mark.parametrize("name", NETWORKS)
def test_rewritten_network_computes_the_same_for_less(name: str) -> None:
    mod = NETWORKS[name]()
    text = mod.script()
    done = substitute(mod, v100(), options=SMALL)
    found = done.results["main"]
    assert found.cost_after < found.cost_before and found.steps
    assert mod.script() == text
    check_equal(mod, done.mod)


def test_pass_works_in_a_sequence() -> None:
    mod = branches()
    sequence = tvm.transform.Sequential([SubstituteGraph(options=SMALL, target="cuda"), relax.transform.LegalizeOps()])
    check_equal(mod, sequence(mod))


def test_two_runs_give_the_same_module() -> None:
    texts = [substitute(branches(), v100(), options=SMALL).mod["main"] for _ in range(2)]
    tvm.ir.assert_structural_equal(*texts)


def test_opaque_operators_stay_and_their_surroundings_change() -> None:
    net = Net("float32", layout="NCHW")
    x = net.input((1, 4, 8, 8))
    y = net.conv(x, 4, 3, activation="relu")
    odd = net._emit(relax.op.sin(y.expr))
    parts = net._emit(relax.op.topk(net._emit(relax.op.reshape(odd, (1, 256))), 3, ret_type="both"))
    mod = net.finish(type(y)(net._emit(relax.TupleGetItem(parts, 0)), (1, 3)))
    done = substitute(mod, v100())
    assert "R.sin" in done.mod.script() and "R.topk" in done.mod.script()
    assert done.results["main"].steps
    check_equal(mod, done.mod)


def test_silu_runs_in_the_kernel_of_its_convolution_and_never_crosses_a_maximum() -> None:
    net = Net("float32", layout="NCHW")
    x = net.input((1, 4, 8, 8))
    y = net.conv(x, 4, 3)
    y = type(y)(net._emit(relax.op.nn.silu(y.expr)), y.shape)
    mod = net.finish(net.max_pool(y, 2, 2))
    done = substitute(mod, v100())
    assert [n.kind for n in done.results["main"].dag.nodes] == ["conv2d", "max_pool2d"]
    assert done.results["main"].dag.nodes[0]["act"] == "silu"
    check_equal(mod, done.mod)


def test_functions_that_cannot_be_read_are_left_alone() -> None:
    mod = symbolic_relu()
    done = substitute(mod, v100())
    assert "not static" in done.skipped["main"]
    tvm.ir.assert_structural_equal(done.mod, mod)
    with pytest.raises(GraphError, match="not static"):
        optimize_module(mod)


def test_training_graph_keeps_its_gradients() -> None:
    """Forward and backward by Relax's own pass; weights are inputs, so nothing is folded."""
    mod = training_module()
    trained = relax.transform.Gradient("main", require_grads=list(mod["main"].params)[1:])(mod)
    done = substitute(trained, v100(), options=SMALL, functions=lambda name: name == "main_adjoint")
    found = done.results["main_adjoint"]
    folding = {r.name for r in ALL_RULES if r.folds_weights}
    assert found.steps and not folding & {s.rule for s in found.steps}
    inputs = inputs_of(mod, 3)
    before, after = (_gradients(m, inputs) for m in (trained, done.mod))
    assert len(before) == len(after) == 4
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE * float(np.abs(a).max()), rtol=0)


def training_module() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4, 8, 8), "float32"))
    weights = [relax.Var(f"w{i}", relax.TensorType((6, 4, k, k), "float32")) for i, k in enumerate((1, 3))]
    dense = relax.Var("dense", relax.TensorType((12 * 64, 3), "float32"))
    with builder.function("main", [x, *weights, dense]):
        with builder.dataflow():
            parts = []
            for w, pad in zip(weights, (0, 1), strict=True):
                y = builder.emit(relax.op.nn.conv2d(x, w, padding=pad))
                parts.append(builder.emit(relax.op.nn.relu(y)))
            joined = builder.emit(relax.op.concat(parts, axis=1))
            flat = builder.emit(relax.op.reshape(joined, (1, 12 * 64)))
            loss = builder.emit_output(relax.op.sum(builder.emit(relax.op.matmul(flat, dense))))
        builder.emit_func_output(loss)
    return builder.finalize()


def _gradients(mod: tvm.IRModule, inputs: list[np.ndarray]) -> list[np.ndarray]:
    loss, grads = virtual_machine(mod)["main_adjoint"](*[tvm.runtime.tensor(x) for x in inputs])
    return [loss.numpy(), *(g.numpy() for g in grads)]


def test_integer_convolutions_are_rewritten_bit_for_bit() -> None:
    builder = relax.BlockBuilder()
    random = np.random.default_rng(5)
    x = relax.Var("x", relax.TensorType((1, 8, 8, 4), "int8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = []
            for k in (1, 3):
                w = relax.const(random.integers(-127, 128, (k, k, 4, 8)).astype("int8"))
                attrs = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_dtype": "int32"}
                parts.append(builder.emit(relax.op.nn.conv2d(x, w, padding=k // 2, **attrs)))
            out = builder.emit_output(relax.op.concat(parts, axis=3))
        builder.emit_func_output(out)
    mod = builder.finalize()
    done = substitute(mod, v100(), integer_rules())
    assert "fuse_convs_enlarged" in {s.rule for s in done.results["main"].steps}
    inputs = inputs_of(mod)
    np.testing.assert_array_equal(run(mod, inputs)[0], run(done.mod, inputs)[0])


def test_quantized_islands_survive() -> None:
    net = Net("int8")
    x = net.input((1, 8, 8, 4))
    mod = net.finish(net.concat([net.conv(x, 8, 1), net.conv(x, 8, 3)]))
    done = substitute(mod, v100(), integer_rules(), SMALL)
    inputs = inputs_of(mod)
    np.testing.assert_array_equal(run(mod, inputs)[0], run(done.mod, inputs)[0])


def test_saved_module_comes_back(tmp_path) -> None:
    mod = branches("NHWC")
    done = optimize_module(mod, "cuda", options=SearchOptions(max_graphs=300))
    path = save_optimized(done, tmp_path / "faster.zip")
    check_equal(mod, load_optimized(path))
    assert path.read_bytes() == save_optimized(done, tmp_path / "again.zip").read_bytes()
    with pytest.raises(LoadError, match="no saved Relax module"):
        load_optimized(__file__)


def test_onnx_file_computes_the_same(tmp_path) -> None:
    pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    mod = branches()
    done = optimize_module(mod, "cuda", options=SearchOptions(max_graphs=300))
    path = save_optimized(done, tmp_path / "faster.onnx", ("scores",))
    (x,) = inputs_of(mod)
    (made,) = ReferenceEvaluator(str(path)).run(["scores"], {"input0": x})
    np.testing.assert_allclose(made, run(mod, [x])[0], atol=1e-5)


def test_a_network_of_equal_weights_exports_the_same_logits(test_data, tmp_path) -> None:
    """All its classes tie at 6.8e9, where a unit in the last place is 512: a softmax would show rounding, not the graph."""
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    from tvm_cascade import frontend

    mod = frontend.load(test_data / "models" / "light_squeezenet.onnx")
    made = onnx.load(save_optimized(optimize_module(mod, "cuda"), tmp_path / "faster.onnx"))
    softmax = next(n for n in made.graph.node if n.op_type == "Softmax")
    del made.graph.output[:]
    made.graph.output.append(onnx.helper.make_tensor_value_info(softmax.input[0], 1, None))
    (logits,) = ReferenceEvaluator(made).run(None, {made.graph.input[0].name: inputs_of(mod)[0]})
    assert logits.size == 1000 and np.ptp(logits) <= 1e-6 * logits.max()


def test_what_has_no_onnx_form_is_named(tmp_path) -> None:
    pytest.importorskip("onnx")
    with pytest.raises(UnsupportedOperatorError, match="conv2d"):
        save_optimized(optimize_module(branches("NHWC"), options=SearchOptions(max_graphs=50)), tmp_path / "x.onnx")


def test_an_export_that_cannot_be_is_refused_before_the_search(monkeypatch, tmp_path) -> None:
    pytest.importorskip("onnx")
    monkeypatch.setattr(optimize_functions, "substitute", lambda *_, **__: pytest.fail("searched"))
    with pytest.raises(
        UnsupportedOperatorError,
        match=r"x\.onnx: unsupported operator avg_pool2d, .*it has no ONNX",
    ):
        api.optimize(branches("NHWC"), output=tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


def test_an_exported_file_keeps_names_and_has_no_more_nodes_than_the_original(tmp_path) -> None:
    """A dense layer stays one Gemm, outputs are written by what computes them, and names of the file do not clash."""
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    random = np.random.default_rng(3)
    shapes = {"w0": (12, 9), "b0": (9,), "w1": (9, 5), "b1": (5,)}
    weights = {name: random.standard_normal(shape, "float32") for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Gemm", ["constant0", "w0", "b0"], ["h"]),
        helper.make_node("Relu", ["h"], ["gemm0_0"]),  # a name that the exporter would take for a node of its own
        helper.make_node("Gemm", ["gemm0_0", "w1", "b1"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(n, 1, s) for n, s in (("constant0", (2, 12)), ("gemm0_0", (2, 9)), ("y", (2, 5)))
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:], constants),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, str(tmp_path / "in.onnx"))
    api.optimize(tmp_path / "in.onnx", output=tmp_path / "out.onnx", budget=50)
    made = onnx.load(str(tmp_path / "out.onnx"))
    assert [o.name for o in made.graph.output] == ["gemm0_0", "y"]
    assert len(made.graph.node) <= len(nodes)
    x = {"constant0": random.standard_normal((2, 12), "float32")}
    for a, b in zip(ReferenceEvaluator(made).run(None, x), ReferenceEvaluator(model).run(None, x), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_unknown_costs_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown cost speed"):
        optimize_module(resnet.resnet_module(6, 8), cost="speed")
    with pytest.raises(UsageError, match="unknown limit"):
        optimize_module(resnet.resnet_module(6, 8), cost="latency,ram<=5")


def test_the_fastest_module_is_chosen_and_ties_go_to_the_original() -> None:
    mod = resnet.resnet_module(6, 8)
    ticks = iter([0, 4, 0, 3, 0, 4, 0, 2])
    choice = fastest([mod, mod], runs=1, clock=lambda: float(next(ticks)))
    assert choice.best == 1 and choice.milliseconds == pytest.approx((4000.0, 2000.0))
    short = count()  # rounds of half a second: one to begin with, one asked for, three more fit into two seconds
    fastest([mod, mod], runs=1, clock=lambda: next(short) / 4)
    assert next(short) == 4 * 5
    assert fastest([mod, mod], runs=1, clock=lambda: 1.0).best == 0
    with pytest.raises(UsageError, match="different inputs"):
        fastest([mod, resnet.resnet_module(8, 8)])


def test_a_winner_of_the_median_whose_least_time_is_longer_stays_behind() -> None:
    assert decide([(1.0, 0.9), (1.0, 0.9), (0.8, 0.9)], 0.01).best == 0
    assert decide([(1.0, 0.9), (1.0, 0.9), (0.9, 0.9)], 0.01).best == 1
    assert decide([(1.0, 0.995), (1.0, 0.995)], 0.01).best == 0


def test_light_squeezenet_gets_cheaper(test_data) -> None:
    from tvm_cascade import frontend

    done = optimize_module(frontend.load(test_data / "models" / "light_squeezenet.onnx"), "cuda")
    report = done.report
    assert report["cost_after"] < report["cost_before"] and report["steps"]
    assert report["seconds"] < 60
