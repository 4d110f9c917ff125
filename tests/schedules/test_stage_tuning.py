"""Tuned kernels of stages: the space computes what the default does, records are used again, targets do not mix."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from jsonschema import Draft202012Validator
from tvm import s_tir
from tvm.ir.utils import derived_object

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.errors import MissingToolError, UsageError
from tvm_cascade.measured.measure import CpuRunner
from tvm_cascade.measured.search import stages
from tvm_cascade.measured.tune_stages import BenchMachine, tune_stages
from tvm_cascade.parallel import MERGE, Options, Schedule, Stage, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.request import StagesRequest
from tvm_cascade.runtime import Session, compile_stages, has_cuda, host_target
from tvm_cascade.runtime.bench import LocalBench
from tvm_cascade.schedules.tuning import metaschedule
from tvm_cascade.schedules.tuning.in_process import local_pair
from tvm_cascade.schedules.tuning.metaschedule import Search, ms
from tvm_cascade.schema import schema_of
from tvm_cascade.schema.searches import Schedule as ScheduleJson
from tvm_cascade.staging.kernels.cpu_float import convolution_shape, schedule_cpu
from tvm_cascade.staging.kernels.cpu_pointwise import PointTiling, is_pointwise, point_rows, tile_pointwise
from tvm_cascade.staging.kernels.processors import accumulators
from tvm_cascade.staging.kernels.records import (
    KernelRecords,
    Record,
    TunedKernels,
    apply_trace,
    digest,
    plain_trace,
    threaded,
)
from tvm_cascade.staging.kernels.tuning import Machine, design, tune
from tvm_cascade.staging.program.cuda import cuda_target
from tvm_cascade.staging.program.graph import StageGraph, stage_graph
from tvm_cascade.staging.program.kernels import build_kernels
from tvm_cascade.staging.program.layouts import packed_tensors
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.staging.program.specs import Spec
from tvm_cascade.testing.builder import Net


@pytest.fixture(autouse=True)
def _metaschedule() -> None:
    """An error, not a skip, where MetaSchedule cannot run: the package pins the versions with which it does."""
    metaschedule.require_json()


def branches(layout: str = "NCHW") -> tvm.IRModule:
    """Two convolutions of one input, one of two blocks of channels; a pool behind the first."""
    net = Net("float32", layout, seed=4)
    x = net.input((1, 5, 11, 13) if layout == "NCHW" else (1, 11, 13, 5), "x")
    wide, narrow = net.conv(x, 32, 3, activation="relu"), net.conv(x, 6, 1, 2)
    return net.finish([net.max_pool(wide, 3, 2, "same"), narrow])


def kernels_of(net: StageGraph, cpu: bool = True) -> list[Any]:
    units = unit_graph(net.graph, "fused")
    specs = [Spec(k) for ks in units.kernels for k in ks]
    return [k.func for k in build_kernels(net, specs, cpu, packed=packed_tensors(net) if cpu else frozenset())]


def convolutions(net: StageGraph) -> list[Any]:
    return [f for f in kernels_of(net) if convolution_shape(s_tir.Schedule(f)) is not None]


def run(func: Any) -> np.ndarray:
    built = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), host_target()).mod
    random = np.random.default_rng(0)
    args = [
        tvm.runtime.tensor(random.standard_normal([int(d) for d in p.ty.shape]).astype("float32")) for p in func.params
    ]
    built["main"](*args)
    return args[-1].numpy()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_every_design_computes_what_the_default_does(layout):
    for func, count in zip(convolutions(stage_graph(branches(layout))), (4, 2), strict=True):
        expected = run(schedule_cpu(func, False, accumulators("llvm")))
        made = design(s_tir.Schedule(func, seed=7))
        assert len(made) == count  # rows or channels outside; where there are taps, these or channels
        for sch in made:
            alone = apply_trace(func, plain_trace(sch.trace))
            together = threaded(alone)
            assert "T.parallel" in together.script() and "T.parallel" not in alone.script()
            found = run(alone)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
            assert np.array_equal(run(together), found)


@pytest.mark.parametrize("size", [(4, 8), (3, 9)])  # pixels that fill vectors, and others
def test_every_tile_of_a_pointwise_convolution_computes_what_the_default_does(size, tmp_path: Path):
    net = Net("float32", "NCHW", seed=4)
    (func,) = kernels_of(stage_graph(net.finish(net.conv(net.input((1, 5, *size), "x"), 18, 1, activation="relu"))))
    expected = run(schedule_cpu(func, False, accumulators("llvm")))
    tiles = [PointTiling(rows, vectors) for rows in point_rows() for vectors in (1, 2, 3, 4)]
    texts = set()
    for tiling in tiles:
        sch = s_tir.Schedule(func)
        assert is_pointwise(sch)
        found = tile_pointwise(sch, tiling, False).mod["main"]
        texts.add(found.script())
        np.testing.assert_allclose(run(found), expected, rtol=1e-5, atol=1e-5)
    assert len(texts) == len(tiles)
    sampled = {plain_trace_text(design(s_tir.Schedule(func, seed=seed))) for seed in range(1, 20)}
    assert len(sampled) > 5
    report = tune([func], KernelRecords(tmp_path), lambda: Judge(0.5), "llvm", Search(trials=3, batch=2))
    assert (report.kernels, report.tuned, report.measured) == (1, 1, 3)
    alone, together = (TunedKernels(tmp_path).scheduled(func, parallel) for parallel in (False, True))
    assert "T.parallel" in together.script() and np.array_equal(run(alone), run(together))


def plain_trace_text(made: list[Any]) -> str:
    (sch,) = made
    return str(plain_trace(sch.trace))


class Judge(BenchMachine):
    """This CPU, whose last word is given: the default takes a millisecond, finalists what is said."""

    def __init__(self, finalists: float) -> None:
        super().__init__(LocalBench())
        self.finalists = finalists

    def least_ms(self, funcs: Any) -> list[float]:
        return [1.0] + [self.finalists] * (len(funcs) - 1)


def absent() -> Machine:
    raise AssertionError("nothing is to be measured")


def is_tuned(kernels: TunedKernels, func: tvm.tirx.PrimFunc) -> bool:
    """Whether a record has a schedule for the kernel."""
    found = None if kernels.records is None else kernels.records.get(func, kernels.target)
    return found is not None and found.trace is not None


def test_records_are_kept_and_nothing_is_measured_twice(tmp_path: Path):
    funcs = kernels_of(stage_graph(branches()))
    assert len(funcs) == 3  # the pool is not tuned
    search = Search(trials=3, batch=2)
    report = tune(funcs[:1], KernelRecords(tmp_path), lambda: Judge(0.5), "llvm", search)
    assert (report.kernels, report.tuned, report.measured) == (1, 1, 3)
    report = tune(funcs, KernelRecords(tmp_path), lambda: Judge(0.99), "llvm", search)
    assert (report.kernels, report.tuned, report.measured) == (2, 1, 3)  # the other one's gain is below the margin
    again = tune(funcs, KernelRecords(tmp_path), absent, "llvm", search)
    assert (again.kernels, again.tuned, again.measured) == (2, 1, 0)
    assert tune(funcs, KernelRecords(tmp_path / "new"), absent, "llvm", Search(trials=0)).tuned == 0
    tuned = TunedKernels(tmp_path)
    assert [is_tuned(tuned, f) for f in funcs] == [f is funcs[0] for f in funcs]
    assert tuned.scheduled(funcs[1], False).script() == schedule_cpu(funcs[1], False, accumulators("llvm")).script()


def recorded(folder: Path, funcs: Any, target: str = "llvm") -> None:
    """A record for every convolution: rows outside of channels."""
    records = KernelRecords(folder)
    for func in funcs:
        trace = plain_trace(design(s_tir.Schedule(func, seed=3))[-1].trace)
        records.add(Record(digest(func), "", target, "here", 1, 2.0, 1.0, trace))


def test_stages_run_recorded_kernels(tmp_path: Path):
    """Single-threaded beside others, on all threads alone, to the same bits; merged ones and those without a record too."""
    net = stage_graph(branches())
    units = unit_graph(net.graph, "fused")
    recorded(tmp_path, convolutions(net)[:1])
    data = np.random.default_rng(1).standard_normal(net.graph.tensors[0].shape).astype("float32")
    cost = AnalyticCost(find_device("cpu2"))
    found = {v: schedule(net.graph, cost, Options(variant=v)).schedule for v in ("sequential", "greedy")}
    results = {}
    for name, made in found.items():
        for folder in (None, tmp_path):
            mod = lower_stages(net, units, made, LowerOptions(metaschedule=folder))
            results[name, folder] = mod.script(), Session(compile_stages(mod)).run(data)
    for name in found:
        assert results[name, None][0] != results[name, tmp_path][0]
        for a, b in zip(results[name, None][1], results[name, tmp_path][1], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    pairs = zip(results["sequential", tmp_path][1], results["greedy", tmp_path][1], strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert any(len(s.groups) > 1 for s in found["greedy"].stages)
    other = lower_stages(net, units, found["greedy"], LowerOptions(metaschedule=tmp_path / "none"))
    assert other.script() == results["greedy", None][0]
    runner, plain = (CpuRunner(net, units, tuned=TunedKernels(f)) for f in (tmp_path, None))
    assert runner.device.startswith(plain.device + ":tuned-")  # measurements of the two are not mixed
    assert runner.run([list(units.features[0])], 2)


def bound(func: Any, threads: int) -> Any:
    """A CUDA kernel by hand: all blocks but the last inlined, its outputs over threads."""
    sch: Any = s_tir.Schedule(func)
    last = sch.get_child_blocks(sch.get_sblock("root"))[-1]
    outer, inner = sch.split(sch.fuse(*sch.get_loops(last)[:4]), [None, threads])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")
    return sch


def pool() -> tuple[StageGraph, Any]:
    net = Net("float32", "NCHW", seed=4)
    read = stage_graph(net.finish(net.avg_pool(net.input((1, 8, 12, 12), "x"), 2)))
    return read, kernels_of(read, cpu=False)


def test_records_of_cuda_belong_to_an_architecture(tmp_path: Path):
    net = Net("float32", "NCHW", seed=4)
    x = net.input((1, 8, 12, 12), "x")
    read = stage_graph(net.finish(net.add(x, net.conv(x, 8, 1))))
    units = unit_graph(read.graph, "op")
    specs = [Spec(k) for ks in units.kernels for k in ks]
    add = build_kernels(read, specs, False)[-1].func
    trace = plain_trace(bound(add, 36).trace)
    KernelRecords(tmp_path).add(Record(digest(add), "", "cuda -arch=sm_90", "H100", 1, 2.0, 1.0, trace))
    found = schedule(read.graph, AnalyticCost(find_device("h200")), Options(variant="sequential", unit="op")).schedule
    texts = {}
    for arch in ("sm_90", "sm_80"):
        target = f"cuda -arch={arch}"
        mod = lower_stages(read, units, found, LowerOptions(target=target, metaschedule=tmp_path))
        texts[arch] = mod.script()
        default = lower_stages(read, units, found, LowerOptions(target=target)).script()
        assert (texts[arch] == default) == (arch == "sm_80")
        assert compile_stages(mod, cuda_target(target)) is not None
    assert 'T.thread_binding(T.int64(36), thread="threadIdx.x")' in texts["sm_90"]


@derived_object
class _Done(ms.runner.PyRunnerFuture):
    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return ms.runner.RunnerResult([1e-3], None)


@derived_object
class _Runner(ms.runner.PyRunner):
    def run(self, runner_inputs: Any) -> list[Any]:
        return [_Done() for _ in runner_inputs]


class Device:
    """A GPU that is not there: candidates are compiled, and take a millisecond."""

    records_as, name, processor = "cuda -arch=sm_70", "none", None
    target = cuda_target("cuda -arch=sm_70")

    def pair(self) -> tuple[Any, Any]:
        return local_pair(1)[0], _Runner()

    def default(self, func: Any) -> Any:
        return func

    def least_ms(self, funcs: Any) -> list[float]:
        return [2.0, *[1.0] * (len(funcs) - 1)]


def test_kernels_of_cuda_are_tuned_in_metaschedules_space(tmp_path: Path):
    read, funcs = pool()
    target = "cuda -arch=sm_70"  # without tensor cores: their intrinsics take half a minute to import
    with metaschedule.without_intrinsics():
        report = tune(funcs, KernelRecords(tmp_path), Device, target, Search(trials=4, batch=4))
    assert (report.kernels, report.tuned, report.measured) == (1, 1, 4)
    assert tune(funcs, KernelRecords(tmp_path), absent, target, Search(trials=2)).measured == 0
    units = unit_graph(read.graph, "fused")
    found = schedule(read.graph, AnalyticCost(find_device("h200")), Options(variant="sequential")).schedule
    mod = lower_stages(read, units, found, LowerOptions(target=target, metaschedule=tmp_path))
    assert mod.script() != lower_stages(read, units, found, LowerOptions(target=target)).script()
    assert compile_stages(mod, cuda_target(target)) is not None
    if not has_cuda():
        assert tune_stages(read, units, tmp_path, target, search=Search(trials=2)).measured == 0
        with pytest.raises(MissingToolError, match=r"driver|device"):
            tune_stages(read, units, tmp_path, "cuda -arch=sm_80", search=Search(trials=2))


def test_merged_kernels_of_a_schedule_are_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    net = Net("float32", "NCHW", seed=2)
    x = net.input((1, 6, 9, 11), "x")
    read = stage_graph(net.finish([net.conv(x, c, k, activation="relu") for c, k in ((4, 1), (6, 3))]))
    units = unit_graph(read.graph, "fused")
    merged = Schedule((Stage(MERGE, (tuple(range(len(read.graph.ops))),)),), 0.0)
    monkeypatch.setattr(BenchMachine, "least_ms", lambda self, funcs: [1.0, *[0.5] * (len(funcs) - 1)])
    report = tune_stages(read, units, tmp_path, "llvm", merged, Search(trials=1))
    assert (report.kernels, report.tuned) == (1, 1)
    mod = lower_stages(read, units, merged, LowerOptions(metaschedule=tmp_path))
    assert mod.script() != lower_stages(read, units, merged, LowerOptions()).script()


def test_the_command_tunes_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(BenchMachine, "least_ms", lambda self, funcs: [1.0, *[0.5] * (len(funcs) - 1)])
    for measured in (2, 0):
        data, _ = stages(
            branches(), StagesRequest("llvm", variant="sequential", cost="measured", metaschedule=tmp_path, trials=1)
        )
        Draft202012Validator(schema_of("stages", ScheduleJson)).validate(data)
        assert data["tuned"] == {"kernels": 2, "tuned": 2, "measured": measured}
    with pytest.raises(UsageError, match="--cost measured"):
        stages(branches(), StagesRequest("llvm", metaschedule=tmp_path))


def test_bad_records(tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(UsageError, match="give a folder"):
        KernelRecords(file)
    for text in ("{", '[{"kernel": 1}]', "[3]"):
        (tmp_path / "stage_kernels.json").write_text(text)
        with pytest.raises(UsageError, match="cannot be read"):
            KernelRecords(tmp_path)
    func = convolutions(stage_graph(branches()))[0]
    with pytest.raises(UsageError, match="tune it again"):
        apply_trace(func, [[["GetSBlock", [], ["nothing", "main"], ["b0"]]], []])
