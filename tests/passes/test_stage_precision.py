"""Staged programs whose tensors between kernels are float16 or bfloat16: results, what stays float32, kernels."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("TVM_NUM_THREADS", "2")

import json

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade import api
from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.cost.interface import OpFeatures
from tvm_cascade.cuda_toolkit import find_nvcc
from tvm_cascade.errors import UsageError
from tvm_cascade.parallel import UNITS, Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.runtime import Session, compile_stages, cuda_code, shared_library
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.staging.program.precision import in_precision, precision_of
from tvm_cascade.staging.program.schedule_stages import LowerOptions, ScheduleStages, lower_stages
from tvm_cascade.testing.builder import Net, Value
from tvm_cascade.testing.quick_build import quick_run
from tvm_cascade.testing.random_images import random_images

GPU = find_device("h100")


def given(mod: tvm.IRModule) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal([int(d) for d in p.ty.shape.values]).astype("float32") for p in mod["main"].params]


def narrow_run(
    mod: tvm.IRModule, unit: str = "fused", variant: str = "both", precision: str = "fp16"
) -> list[np.ndarray]:
    net = in_precision(stage_graph(mod), precision)
    found = schedule(
        net.graph, AnalyticCost(GPU, precision), Options(variant=variant, unit=unit, max_states=500)
    ).schedule
    return Session(compile_stages(lower_stages(net, unit_graph(net.graph, unit), found, LowerOptions()))).run(
        *given(mod)
    )


def agrees(made: list[np.ndarray], expected: list[np.ndarray], error: float = 4e-3) -> None:
    for a, b in zip(made, expected, strict=True):
        assert a.dtype == b.dtype == np.float32
        np.testing.assert_allclose(a, b, atol=error * np.abs(b).max())
        assert np.abs(a - b).max() > 0  # something was rounded


@pytest.mark.parametrize("seed", [1, 2, 4, 7])
def test_random_networks(seed: int) -> None:
    mod = random_images(seed, steps=4, batch=2 if seed == 7 else 1, channels=(12, 16, 24))
    agrees(narrow_run(mod, UNITS[seed % len(UNITS)]), quick_run(mod, *given(mod)))


def of_all_kinds() -> tvm.IRModule:
    """Merged convolutions, a split and a concat whose parts are outputs, products of two activations, a softmax, a reshape."""
    net = Net("float32", "NCHW", seed=3)
    x = net.conv(net.input((1, 3, 8, 8), "x"), 16, 3, padding=1, activation="relu")
    joined = net.concat([net.conv(x, 8, 1, activation="relu"), net.conv(x, 8, 3, padding=1, activation="relu")])
    flat = Value(net._emit(relax.op.reshape(joined.expr, (1, 16, 64))), (1, 16, 64))
    turned = net._emit(relax.op.permute_dims(flat.expr, [0, 2, 1]))
    scores = net._emit(relax.op.nn.softmax(net._emit(relax.op.matmul(flat.expr, turned))))
    mixed = Value(net._emit(relax.op.matmul(scores, flat.expr)), (1, 16, 64))
    return net.finish([mixed, Value(net._emit(relax.op.reshape(mixed.expr, (16, 64))), (16, 64)), joined])


def test_operators_of_all_kinds() -> None:
    mod = of_all_kinds()
    agrees(narrow_run(mod, variant="merge"), quick_run(mod, *given(mod)))


@pytest.mark.parametrize("seed", [1, 4])
def test_bfloat16(seed: int) -> None:
    """Eight bits of a value are kept, three less than of float16."""
    for mod in (random_images(seed, steps=4, channels=(12, 16, 24)), of_all_kinds()):
        expected = quick_run(mod, *given(mod))
        agrees(narrow_run(mod, variant="merge", precision="bf16"), expected, 4e-2)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_what_is_narrow(precision: str) -> None:
    plain = stage_graph(of_all_kinds())
    net = in_precision(plain, precision)
    assert (precision_of(plain), precision_of(net), in_precision(plain, "fp32")) == ("fp32", precision, plain)
    graph = net.graph
    for t in (*graph.inputs, *graph.outputs):
        assert graph.tensors[t].dtype == "float32"
    for op in graph.ops:
        if op.view:  # bytes that are shared are of one type
            assert {graph.tensors[t].dtype for t in op.inputs} == {graph.tensors[t].dtype for t in op.outputs}
    narrow = [t.index for t in graph.tensors if net.is_narrow(t.index)]
    assert narrow and all(2 * graph.tensors[t].bytes == plain.graph.tensors[t].bytes for t in narrow)
    weights = [(a.weight_bytes, b.weight_bytes) for a, b in zip(plain.graph.ops, graph.ops, strict=True)]
    assert any(2 * b == a > 0 for a, b in weights)


def test_products_of_integers_stay_exact() -> None:
    """Beside a float branch: 4,097 is no float16, and sums of such products are none either."""
    bb = relax.BlockBuilder()
    x, n = relax.Var("x", relax.TensorType((4, 8), "float32")), relax.Var("n", relax.TensorType((4, 8), "int32"))
    with bb.function("main", [x, n]):
        with bb.dataflow():
            halved = bb.emit(relax.op.nn.relu(bb.emit(relax.op.nn.relu(x))))
            product = bb.emit(relax.op.matmul(n, relax.const(np.full((8, 4), 4097, "int32"))))
            out = bb.emit_output(relax.Tuple([halved, product]))
        bb.emit_func_output(out)
    net = in_precision(stage_graph(bb.get()), "fp16")
    found = schedule(net.graph, AnalyticCost(GPU, "fp16"), Options(unit="op")).schedule
    made = Session(compile_stages(lower_stages(net, unit_graph(net.graph, "op"), found, LowerOptions())))
    given = np.arange(32, dtype="int32").reshape(4, 8) + 4097
    _, product = made.run(np.ones((4, 8), "float32"), given)
    np.testing.assert_array_equal(product, given @ np.full((8, 4), 4097, "int32"))


def test_the_pass_takes_the_precision() -> None:
    mod = of_all_kinds()
    plain, narrow = (ScheduleStages(model=AnalyticCost(GPU), precision=p)(mod) for p in ("fp32", "fp16"))
    assert "float16" in narrow.script() and "float16" not in plain.script()


def test_merged_operators_of_native_float16_keep_their_type() -> None:
    """Convolutions of a module that is float16 already, merged for CUDA, where the types of operators are their own."""
    bb, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((1, 8, 6, 6), "float16"))
    with bb.function("main", [x]):
        with bb.dataflow():
            parts = [relax.op.nn.conv2d(x, relax.const(np.ones((64, 8, 1, 1), "float16"))) for _ in range(2)]
            out = bb.emit_output(bb.emit(relax.op.concat([bb.emit(p) for p in parts], 1)))
        bb.emit_func_output(out)
    net = stage_graph(bb.get())
    found = schedule(net.graph, AnalyticCost(GPU), Options(variant="merge")).schedule
    assert any(stage.strategy == "merge" for stage in found.stages)
    lowered = lower_stages(net, unit_graph(net.graph, "fused"), found, LowerOptions("cuda -arch=sm_90"))
    assert "float16" in lowered.script()


def test_results_are_not_merged_with_tensors_between_kernels() -> None:
    """Of two branches of one input, one ends as a result, which stays float32: a merged kernel writes one tensor."""
    net = Net(layout="NCHW")
    x = net.input((1, 32, 8, 8))
    result, between = (net.conv(x, 16, 1, activation="relu") for _ in range(2))
    mod = net.finish([result, net.conv(between, 8, activation="relu")])
    agrees(narrow_run(mod, variant="merge"), quick_run(mod, *given(mod)))


def test_networks_of_float16_are_refused() -> None:
    bb, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((1, 4), "float16"))
    with bb.function("main", [x]):
        bb.emit_func_output(bb.emit(relax.op.nn.relu(x)))
    mod = bb.get()
    with pytest.raises(UsageError, match="--precision fp16 is for networks of float32"):
        in_precision(stage_graph(mod), "fp16")
    with pytest.raises(UsageError, match="precision"):
        api.stages(mod, target="llvm", precision="fp8")


def test_products_are_priced_by_tensor_cores() -> None:
    work = 10**12
    kinds = (("conv2d", 576), ("conv2d", 9), ("depthwise_conv2d", 576))
    ops = [OpFeatures(kind, work, output_elements=work // r, reduction=r) for kind, r in kinds]
    plain, narrow = ([AnalyticCost(GPU, p).op_ms(op) for op in ops] for p in ("fp32", "fp16"))
    assert narrow[1:] == plain[1:] and plain[0] > 10 * narrow[0]
    assert AnalyticCost(find_device("k80"), "fp16").op_ms(ops[0]) == AnalyticCost(find_device("k80")).op_ms(ops[0])
    assert (
        AnalyticCost(GPU, "bf16").op_ms(ops[0]) == narrow[0] and AnalyticCost(GPU, "bf16").name == "analytic:h100:bf16"
    )
    exact = AnalyticCost(GPU, "tf32").op_ms(ops[0])
    assert narrow[0] < exact < plain[0]
    volta = find_device("v100")  # its tensor cores multiply float16 alone
    assert AnalyticCost(volta, "bf16").op_ms(ops[0]) == AnalyticCost(volta).op_ms(ops[0])
    with pytest.raises(UsageError, match="unknown precision fp8"):
        AnalyticCost(GPU, "fp8")


@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc: make test-cuda installs it and runs these tests")
@pytest.mark.parametrize(
    ("arch", "precision"), [("sm_90", "fp16"), ("sm_75", "fp16"), ("sm_80", "bf16"), ("sm_90", "tf32")]
)
def test_kernels_for_tensor_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str, precision: str) -> None:
    """Convolutions of any extents: their tiles take less shared memory than any architecture has."""
    sources: list[str] = []
    compile_cuda = cuda_code.compile_cuda
    for module in (cuda_code, shared_library):  # with and without a driver
        monkeypatch.setattr(module, "compile_cuda", lambda s, code: sources.append(s) or compile_cuda(s, code))
    net = Net("float32", "NCHW", seed=1)
    x = net.conv(net.input((1, 16, 12, 12), "x"), 16, 1, activation="relu")
    mod = net.finish(net.relu(net.conv(x, 80, 3, padding=1)))
    api.stages(mod, target="cuda", arch=arch, device="h100", emit=tmp_path / "gpu", precision=precision)
    told = json.loads((tmp_path / "gpu" / "metadata.json").read_text())
    assert (told["precision"], told["tensor_core_kernels"]) == (precision, 2)
    (source,) = sources
    fragment = {"fp16": "16, half", "bf16": "16, nv_bfloat16", "tf32": "8, wmma::precision::tf32"}[precision]
    assert "mma_sync" in source and f"matrix_a, 16, 16, {fragment}" in source


def test_tf32_leaves_tensors_as_they_are() -> None:
    """It is of products on tensor cores alone, so there is none on a CPU."""
    mod = of_all_kinds()
    plain = stage_graph(mod)
    net = in_precision(plain, "tf32")
    assert net.graph == plain.graph and (precision_of(net), net.arithmetic) == ("tf32", "tf32")
    with pytest.raises(UsageError, match="--precision tf32 is of tensor cores: give --target cuda"):
        api.stages(mod, target="llvm", precision="tf32")


def test_architectures_without_bfloat16_are_refused(tmp_path: Path) -> None:
    net = Net("float32", "NCHW", seed=1)
    mod = net.finish(net.conv(net.input((1, 16, 8, 8), "x"), 16, 1))
    with pytest.raises(UsageError, match="--precision bf16 needs sm_80 or later, and this is for sm_75"):
        api.stages(mod, target="cuda", arch=("sm_75",), emit=tmp_path / "gpu", precision="bf16")
    with pytest.raises(UsageError, match="needs sm_80 or later"):
        ScheduleStages(model=AnalyticCost(GPU), precision="bf16", lower=LowerOptions("cuda -arch=sm_75"))(mod)


def test_without_a_program_there_is_no_precision_to_choose(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--precision is of --emit DIR"):
        api.optimize(of_all_kinds(), target="cuda", precision="fp16")
    (tmp_path / "net.json").write_text('{"name": "n", "input": {}, "blocks": []}')
    with pytest.raises(UsageError, match=r"leave out --cost, .*--precision"):
        api.stages(tmp_path / "net.json", target="cuda", precision="fp16")
