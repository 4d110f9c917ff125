"""Kernels of cuDNN: what is called, that a program with them computes the same, and that the faster ones are chosen.

A stand-in computes what NVIDIA's binding is asked for; the CPU stands in for the GPU.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te

from tvm_cascade import api
from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.cuda_toolkit import find_nvcc
from tvm_cascade.errors import MissingToolError, UsageError
from tvm_cascade.measured import choose_library
from tvm_cascade.measured.measure_cuda import CudaRunner
from tvm_cascade.measured.search import stages
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.request import StagesRequest
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.runtime.bench import FailedRunError, LocalBench, Program
from tvm_cascade.runtime.library_kernels import Library
from tvm_cascade.staging.kernels.records import KernelRecords
from tvm_cascade.staging.program.concat import write_in_place
from tvm_cascade.staging.program.cuda import emit_cuda
from tvm_cascade.staging.program.kernels import build_kernels
from tvm_cascade.staging.program.library_kernels import CUDNN, calls_library, library_kernel, with_library
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.staging.program.program import plan_program
from tvm_cascade.staging.program.specs import Spec
from tvm_cascade.testing import cudnn_stand_in
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.graph_builtins import register_graph_builtins, remove_graph_builtins

TARGET = "cuda -arch=sm_90"


@pytest.fixture
def cudnn() -> Iterator[list[tuple[int, ...]]]:
    """The extents of the results that the stand-in has computed."""
    register_graph_builtins()
    tvm_ffi.register_global_func(CUDNN, Library(cudnn_stand_in, tvm_ffi, tvm.runtime.empty), override=True)
    cudnn_stand_in.launched.clear()
    yield cudnn_stand_in.launched
    tvm_ffi.remove_global_func(CUDNN)
    remove_graph_builtins()


def branches() -> tvm.IRModule:
    """Convolutions with and without strides, padding and activations; branches that end in a concat; a sum; a product."""
    net = Net("float32", "NCHW", seed=3)
    x = net.conv(net.input((1, 8, 12, 10), "x"), 16, 3, stride=2, activation="relu")
    left, right = (net.conv(x, c, k, activation="relu") for c, k in ((16, 1), (24, 3)))
    both = net.conv(net.concat([left, right]), 16, 1)
    return net.finish(net.relu(net.add(both, x)))


def program(precision: str, variant: str = "both") -> tuple[Any, Any, Any]:
    """The network, its program for a GPU, and its kernels."""
    net = stage_network(branches(), TARGET, precision)
    units = unit_graph(net.graph, "fused")
    found = schedule(net.graph, AnalyticCost(find_device("h200"), precision), Options(variant=variant)).schedule
    made = write_in_place(plan_program(net, units, found, captured=True))
    return net, made, build_kernels(net, made.specs, False, made.slices)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("variant", ["sequential", "merge"])
def test_a_program_with_kernels_of_cudnn_computes_the_same(
    precision: str, variant: str, cudnn: list[tuple[int, ...]]
) -> None:
    net, made, ours = program(precision, variant)
    theirs = with_library(net, made.specs, ours, made.slices, lambda _func: True)
    replaced = [k for k in theirs if calls_library(k.func)]
    assert len(replaced) >= (3 if precision == "fp32" else 2) and not any(calls_library(k.func) for k in ours)
    assert any(k.merged for k in replaced) == (variant == "merge")
    if variant == "sequential":
        assert len(set(made.slices) & {t for k in replaced for t in k.outputs}) >= 1  # writes a part of the concat
    (given,) = (net.graph.tensors[t] for t in net.graph.inputs)
    data = np.random.default_rng(0).standard_normal(given.shape).astype("float32")
    results = [
        Session(compile_stages(emit_cuda(made, kernels, TARGET, True, "cpu:0"))).run(data) for kernels in (ours, theirs)
    ]
    assert len(cudnn) == 1 * len(replaced)
    bound = {"fp32": 1e-5, "fp16": 4e-3, "bf16": 3e-2}[precision]
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=bound, atol=bound * float(np.abs(one).max()))


def test_products_of_matrices_and_bounds(cudnn: list[tuple[int, ...]]) -> None:
    net = Net("float32", "NCHW", seed=1)
    mod = net.finish(net.dense(net.input((20, 24), "x"), 12, activation="relu"))
    read = stage_network(mod, TARGET, "tf32")
    (spec,) = [Spec(k) for kernels in unit_graph(read.graph, "fused").kernels for k in kernels]
    kernel = library_kernel(read, spec, "library")
    assert kernel is not None and kernel.plain is None
    told = json.loads(_text(kernel.func))
    assert told["kind"] == "matmul" and told["tf32"] and told["channels"] == [24, 12] and told["low"] == 0
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((20, 24)).astype("float32"), *kernel.constants, np.zeros((20, 12), "float32")]
    held = [tvm.runtime.tensor(a) for a in arrays]
    tvm.compile(tvm.IRModule({"main": kernel.func.with_attr("global_symbol", "main")}), "llvm").mod["main"](*held)
    expected = arrays[0] @ arrays[1]
    expected = expected + arrays[2] if len(kernel.constants) == 2 else expected
    np.testing.assert_allclose(held[-1].numpy(), np.maximum(expected, 0), rtol=1e-5, atol=1e-5)
    assert cudnn == [(1, 20, 12)]


def _text(func: Any) -> str:
    found: list[str] = []

    def called(call: tvm.ir.Call) -> None:
        found.extend(str(getattr(a, "value", "")) for a in call.args)

    tvm_ffi.structural_walk(func.body, (tvm.ir.Call, called))
    return next(text for text in found if text.startswith("{"))


def test_a_kernel_whose_calls_take_casts_is_none_of_the_library() -> None:
    x = te.placeholder((4,), "float16", name="x")
    y = te.compute((4,), lambda i: te.exp(x[i].astype("float32")), name="y")
    assert calls_library(te.create_prim_func([x, y])) is False


def test_what_cudnn_has_not_stays_ours() -> None:
    net = Net("float32", "NCHW", seed=1)
    x = net.input((1, 8, 12, 10), "x")
    mod = net.finish(net.max_pool(net.depthwise(x, 3)))
    read = stage_network(mod, TARGET)
    for kernels in unit_graph(read.graph, "fused").kernels:
        assert all(library_kernel(read, Spec(k), "library") is None for k in kernels)


class Turns(LocalBench):
    """A bench for which cuDNN takes `share` of our time, or does not run."""

    def __init__(self, share: float | None) -> None:
        super().__init__(target="cuda", device="cpu:0")
        self.target, self.share, self.asked = TARGET, share, 0

    def in_turn(self, programs: Sequence[Program], rounds: int, repeats: int = 1) -> list[list[float]]:
        self.asked += 1
        if self.share is None:
            raise FailedRunError("no engine")
        return [[1.0] * rounds, [self.share] * rounds]


def test_the_faster_kernel_is_kept_in_the_records(tmp_path: Path, cudnn: list[tuple[int, ...]]) -> None:
    net = stage_network(branches(), TARGET)
    units = unit_graph(net.graph, "fused")
    lost = choose_library.choose_library(net, units, tmp_path / "lost", Turns(0.99))
    assert lost.kernels == lost.measured >= 3 and lost.chosen == 0
    bench = Turns(0.5)
    won = choose_library.choose_library(net, units, tmp_path, bench)
    assert won.chosen == won.measured == won.kernels == bench.asked
    again = choose_library.choose_library(net, units, tmp_path, bench)
    assert (again.measured, again.chosen, bench.asked) == (0, won.chosen, won.measured)
    assert {(r.library, r.candidates, r.trace) for r in KernelRecords(tmp_path)} == {("cudnn", 0, None)}
    failed = choose_library.choose_library(net, units, tmp_path / "failed", Turns(None))
    assert failed.chosen == 0 and failed.refused == ("no engine",) and not len(KernelRecords(tmp_path / "failed"))

    alone = choose_library.choose_library(net, units, tmp_path / "alone", bench, Options(variant="parallel"))
    assert alone.kernels < won.kernels  # the others are merges

    runner = CudaRunner(net, units, bench, tmp_path)
    ops = [k for kernels in units.features for k in kernels if k.kind == "conv2d"]
    assert all(calls_library(runner.kernel(op).func) for op in ops)
    assert runner.device != CudaRunner(net, units, bench, tmp_path / "lost").device  # other costs
    assert min(runner.run([[ops[0]], [ops[1]]], 2)) > 0 and cudnn  # it runs in a probe, beside another one
    cudnn.clear()
    assert min(runner.run_merged(ops[1:3], 2)) > 0  # a merge is priced as the library computes it
    assert cudnn and cudnn[0][1] == 16 + 24


@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc: make test-cuda installs it and runs these tests")
def test_a_folder_of_a_program_with_kernels_of_cudnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = stage_network(branches(), TARGET)
    units, search = unit_graph(net.graph, "fused"), Options(variant="sequential")
    won = choose_library.choose_library(net, units, tmp_path / "records", Turns(0.5), search)
    options: dict[str, Any] = {"target": "cuda", "arch": "sm_90", "device": "h200", "variant": search.variant}
    for records, count in ((tmp_path / "records", won.kernels), (None, 0)):
        folder = tmp_path / f"folder_{count}"
        data, _ = api.stages(branches(), **options, emit=folder, metaschedule=records)
        told = json.loads((folder / "metadata.json").read_text())
        assert told["cudnn_kernels"] == count and ("library_kernels.py" in data["emitted"]["files"]) == (count > 0)
    spec = importlib.util.spec_from_file_location("emitted", tmp_path / f"folder_{won.kernels}" / "example.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setitem(sys.modules, "cudnn", None)
    with pytest.raises(RuntimeError, match="pip install nvidia-cudnn-frontend"):
        example._register_cudnn()
    monkeypatch.setitem(sys.modules, "cudnn", cudnn_stand_in)
    example._register_cudnn()
    assert tvm.get_global_func(CUDNN, allow_missing=True) is not None
    tvm_ffi.remove_global_func(CUDNN)


def test_it_needs_cudnn_and_a_folder_of_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({"target": "llvm", "metaschedule": tmp_path}, {"target": "cuda"}):
        with pytest.raises(UsageError, match="--cudnn is of --target cuda and --metaschedule"):
            stages(branches(), StagesRequest(cost="measured", cudnn=True, **options))
    with pytest.raises(UsageError, match="--cudnn measures on this machine"):
        stages(
            branches(),
            StagesRequest("cuda", cost="measured", cudnn=True, metaschedule=tmp_path, tracker="h:1", key="k"),
        )
    monkeypatch.setitem(sys.modules, "cudnn", None)
    with pytest.raises(MissingToolError, match=r"cuDNN or its Python binding .*tvm-cascade\[cudnn\]"):
        choose_library.require_cudnn()
