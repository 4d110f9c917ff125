"""The CUDA form of a staged program, without a GPU: calls in the IR, capture, memory, and kernels that nvcc accepts.

The runtime's stream functions exist on the CPU too, where they do nothing. So the very program that a GPU would run,
host kernels, streams, arena and all, runs here with CPU kernels; only the two CUDA graph builtins are stood in for.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.cuda_toolkit import find_nvcc
from tvm_cascade.measured.measure_cuda import CudaRunner, evicted_bytes, without
from tvm_cascade.parallel import MERGE, Options, Schedule, Stage, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.relax_pipeline import cascade_pipeline
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.runtime.bench import LocalBench
from tvm_cascade.staging.kernels.cuda_default import on_tensor_cores
from tvm_cascade.staging.program.cuda import cuda_target, emit_cuda
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.staging.program.kernels import build_kernels
from tvm_cascade.staging.program.memory import plan_memory
from tvm_cascade.staging.program.probe import evict_module, probe_module
from tvm_cascade.staging.program.program import plan_program
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.zoo.inception import inception_e

V100 = AnalyticCost(find_device("v100"))


@pytest.fixture(scope="module")
def staged():
    """Inception's last block, narrow: network, units, schedule, a module's input."""
    mod = inception_e(width=0.0625)
    net = stage_graph(mod)
    units = unit_graph(net.graph, "fused")
    found = schedule(net.graph, V100, Options(variant="parallel")).schedule
    data = np.random.default_rng(0).standard_normal(net.graph.tensors[0].shape).astype("float32")
    return net, units, found, data


@pytest.mark.parametrize("cuda_graph", [True, False])
def test_the_program_with_streams_computes_the_same(staged, graph_builtins, cuda_graph):
    net, units, found, data = staged
    program = plan_program(net, units, found)
    kernels = build_kernels(net, program.specs, cpu=False)
    session = Session(compile_stages(emit_cuda(program, kernels, "cuda", cuda_graph, device="cpu:0")))
    results = [session.run(data)[0] for _ in range(3)]
    expected = Session(compile_stages(lower_stages(net, units, found, LowerOptions()))).run(data)[0]
    for result in results:
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert graph_builtins == ["allocate"] + ["run"] * 3 * cuda_graph


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_merged_convolutions_outside_of_the_cpu(graph_builtins, layout):
    """Without the CPU's own convolution a merge is Relax's, in either layout."""
    net = Net("float32", layout, seed=2)
    x = net.input((1, 6, 9, 11) if layout == "NCHW" else (1, 9, 11, 6), "x")
    mod = net.finish([net.conv(x, c, k, activation="relu") for c, k in ((4, 1), (6, 3), (5, 5))])
    read = stage_graph(mod)
    units = unit_graph(read.graph, "fused")
    data = np.random.default_rng(1).standard_normal(read.graph.tensors[0].shape).astype("float32")
    merged = Schedule((Stage(MERGE, (tuple(range(len(read.graph.ops))),)),), 0.0)
    program = plan_program(read, units, merged)
    kernels = build_kernels(read, program.specs, cpu=False)
    results = Session(compile_stages(emit_cuda(program, kernels, "cuda", True, device="cpu:0"))).run(data)
    for result, expected in zip(results, Session(tvm.compile(mod, "llvm")).run(data), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("made", [{"layout": "NHWC"}, {"batch": 2}])
def test_parts_of_a_merge_are_read_where_they_lie(graph_builtins, made):
    """Pools and convolutions read slices of one merged tensor, no runs of memory; kernels build for a GPU."""
    layout, batch = made.get("layout", "NCHW"), made.get("batch", 1)
    net = Net("float32", layout, seed=2)
    x = net.input((batch, 6, 9, 11) if layout == "NCHW" else (batch, 9, 11, 6), "x")
    a, b, c = (net.conv(x, n, k, activation="relu") for n, k in ((4, 1), (6, 3), (5, 5)))
    mod = net.finish([net.max_pool(a, 3, 2, "same"), net.conv(b, 3, 3), net.avg_pool(c, 3, 1, "same")])
    read = stage_graph(mod)
    units = unit_graph(read.graph, "fused")
    first = tuple(u.ops for u in units.units if read.graph.ops[u.anchor].inputs == read.graph.inputs)
    later = tuple(Stage("concurrent", (u.ops,)) for u in units.units if u.ops not in first)
    found = Schedule((Stage(MERGE, first), *later), 0.0)
    program = plan_program(read, units, found)
    assert len(program.slices) == 3 and len(program.specs) == 4  # one merged convolution, and three that read it
    kernels = build_kernels(read, program.specs, False, program.slices)
    data = np.random.default_rng(1).standard_normal(read.graph.tensors[0].shape).astype("float32")
    results = Session(compile_stages(emit_cuda(program, kernels, "cuda", True, device="cpu:0"))).run(data)
    for result, expected in zip(results, Session(tvm.compile(mod, "llvm")).run(data), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    target = "cuda -arch=sm_80"
    lowered = lower_stages(read, units, found, LowerOptions(target=target))
    assert len(re.findall(r"\bkernel_\d+\(", lowered["staged"].script())) == 4
    assert _cuda_source(compile_stages(lowered, cuda_target(target)).mod).count("__global__") >= 4


def test_every_group_is_forked_and_joined(staged):
    net, units, found, _ = staged
    mod = lower_stages(net, units, found, LowerOptions(target="cuda -arch=sm_90"))
    lines = mod["staged"].script().splitlines()
    events = [
        m.groups() for line in lines if (m := re.search(r'StreamSyncFromTo", R.str\("cuda:0"\), (\w+), (\w+)', line))
    ]
    sides = sum(len(s.groups) - 1 for s in found.stages)
    assert sides > 0 and len(events) == 2 * sides
    assert [e for e in events if e[0] == "here"] and all("here" in e for e in events)
    waiting: set[str] = set()
    current = "here"
    for line in lines:
        if m := re.search(r'StreamSyncFromTo", R.str\("cuda:0"\), (\w+), (\w+)', line):
            waiting = waiting | {m[2]} if m[1] == "here" else waiting - {m[1]}
        elif m := re.search(r'SetStream", R.str\("cuda:0"\), (\w+)', line):
            current = m[1]
        elif "kernel_" in line:
            assert current == "here" or current in waiting
    assert not waiting and current == "here"


def test_capture_structure(staged):
    net, units, found, _ = staged
    mod = lower_stages(net, units, found, LowerOptions(target="cuda -arch=sm_90"))
    main, body = mod["main"].script(), mod["staged"].script()
    assert main.count("vm.builtin.cuda_graph.run_or_capture") == 1
    assert main.count("vm.builtin.cuda_graph.get_cached_alloc") == 1
    assert "alloc_storage" not in body and "alloc_tensor" not in body and "StreamCreate" not in body
    assert mod["stage_resources"].script().count("Device_StreamCreate") == max(len(s.groups) for s in found.stages) - 1
    plain = lower_stages(net, units, found, LowerOptions(target="cuda -arch=sm_90", cuda_graph=False))
    assert "run_or_capture" not in plain["main"].script()


def test_static_memory_keeps_inputs_and_results_in_the_arena(staged):
    net, units, found, _ = staged
    program = plan_program(net, units, found)
    plan = plan_memory(program, static=True)
    outputs = {program.places[t].root for t in net.graph.outputs}
    assert outputs | set(net.graph.inputs) <= set(plan.offsets)
    last = {b.name: b.upper for b in plan.problem.buffers}
    assert all(last[net.graph.tensors[r].name] == len(program.steps) + 1 for r in outputs)


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_90"])
def test_builds_without_a_gpu(staged, arch, tmp_path):
    net, units, found, _ = staged
    target = f"cuda -arch={arch}"
    executable = compile_stages(lower_stages(net, units, found, LowerOptions(target=target)), cuda_target(target))
    source = _cuda_source(executable.mod)
    assert source.count("__global__") >= len({u.anchor for u in units.units}) // 3
    if arch != "sm_90" or shutil.which("nvcc") is None:
        return  # CUDA 13 dropped sm_70; one architecture is enough for nvcc
    (tmp_path / "kernels.cu").write_text(source)
    command = ["nvcc", f"-arch={arch}", "-cubin", "-o", str(tmp_path / "kernels.cubin"), str(tmp_path / "kernels.cu")]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    assert (tmp_path / "kernels.cubin").stat().st_size > 0


def _cuda_source(module) -> str:
    """Source of the CUDA module below an executable: two levels down, beside the host code."""
    for host in module.imports:
        for device in host.imports:
            if device.kind == "cuda":
                return device.inspect_source()
    raise AssertionError("no CUDA module was built")


def test_stages_are_measured_with_the_streams_that_are_emitted(staged, graph_builtins):
    """Measured costs of a device: the CPU stands in, where streams do nothing and kernels compute."""
    net, units, _, _ = staged
    runner = CudaRunner(net, units, LocalBench(target="cuda", device="cpu:0"))
    ops = [kernels[0] for kernels in units.features if kernels[0].kind == "conv2d"][:3]
    alone = [sum(runner.run([[op]], 3)) for op in ops]
    together = runner.run([[op] for op in ops], 3)
    assert len(together) == 3 and all(t > 0 for t in (*alone, *together))
    assert graph_builtins.count("allocate") == 4  # once a stage, however often it runs
    mod = probe_module([[runner.kernel(op)] for op in ops], "cuda -arch=sm_90", copies=4)
    text = mod["probe"].script()
    assert text.count("StreamSyncFromTo") == 4 * 2 * 2 and text.count("kernel_") >= 4 * 3
    assert mod["main"].script().count("vm.builtin.cuda_graph.run_or_capture") == 1


def test_copies_with_weights_of_their_own(staged, graph_builtins):
    """Every copy of a probe reads other constants and the same input; what empties the cache reads as much as it says."""
    net, units, _, _ = staged
    runner = CudaRunner(net, units, LocalBench(target="cuda", device="cpu:0"))
    (op,) = [k[0] for k in units.features if k[0].kind == "conv2d"][:1]
    kernel = runner.kernel(op)
    shared, own = (probe_module([[kernel]], "cuda", 4, "cpu:0", own_constants=own) for own in (False, True))
    read = len(kernel.inputs), len(kernel.constants), len(kernel.outputs)
    assert len(shared["probe"].params) == sum(read) and len(own["probe"].params) == sum(read) + 3 * read[1]
    text = own["probe"].script()
    assert all(text.count(p.name) >= 2 for p in own["probe"].params)  # a parameter, and read
    Session(compile_stages(own)).run()
    emptied = evict_module(1 << 20, "cuda", "cpu:0")
    assert tuple(map(int, emptied["probe"].params[0].ty.shape.values)) == (64, (1 << 20) // 4 // 64)
    Session(compile_stages(emptied)).run()


def test_weights_that_do_not_fit_the_cache_are_read_from_memory(staged, graph_builtins):
    """What is measured empties the cache first, each copy has its own weights, and what emptying takes is subtracted; nothing
    stays in memory, and such times are stored apart."""
    net, units, _, _ = staged
    bench = LocalBench(target="cuda", device="cpu:0")
    fits = CudaRunner(net, units, bench)
    bench.cache_bytes = sum(op.weight_bytes for op in net.graph.ops) // 2
    runner = CudaRunner(net, units, bench)
    assert runner.device == f"{fits.device}:cold" and evicted_bytes(net, bench) == 2 * bench.cache_bytes
    (op,) = [k[0] for k in units.features if k[0].kind == "conv2d"][:1]
    assert min(runner.run([[op]], 3)) > 0
    assert graph_builtins == (["allocate"] + ["run"] * 4) * 2  # a graph that empties and runs, and one that empties
    runner.run([[op]], 3)
    assert graph_builtins.count("allocate") == 4
    kernel = runner.kernel(op)
    probe = probe_module([[kernel]], "cuda", 4, "cpu:0", evicted=1 << 20)["probe"]
    assert len(probe.params) == 2 + len(kernel.inputs) + 4 * len(kernel.constants) + len(kernel.outputs)
    calls = [line.strip() for line in probe.script().splitlines() if " evict(" in line or " kernel_0(" in line]
    assert [call.partition("(")[0] for call in calls] == ["evict"] + ["kernel_0"] * 4
    assert without(lambda n: [40.0] * n, lambda n: [8.0] * n)(2) == [2.0, 2.0]
    bench.cache_bytes = 0
    assert evicted_bytes(net, bench) == 0


def test_programs_of_other_machines_find_no_memory_of_machines_that_are_gone(graph_builtins):
    """A new machine may lie where one was that has been freed, and memory is kept by where machines lie."""
    programs = [compile_stages(evict_module(size << 10, "cuda", "cpu:0")) for size in (64, 128)]
    for _ in range(6):
        for program in programs:
            Session(program).run()
    assert graph_builtins == ["allocate", "run"] * 12


_BUILD = """
import sys, tvm
from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.staging.program.cuda import cuda_target
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.runtime import compile_stages
from tvm_cascade.testing.builder import Net

assert tvm.get_global_func("device_api.cuda", allow_missing=True) is not None, "TVM's CUDA runtime did not load"
net = Net("float32", "NCHW", seed=3)
x = net.input((1, 8, 10, 10), "x")
read = stage_graph(net.finish([net.conv(x, 8, 3, activation="relu"), net.conv(x, 4, 5)]))
found = schedule(read.graph, AnalyticCost(find_device("h200")), Options(variant="parallel")).schedule
target = "cuda -arch=sm_90"
staged = lower_stages(read, unit_graph(read.graph, "fused"), found, LowerOptions(target=target))
compile_stages(staged, cuda_target(target)).export_library(sys.argv[1])
"""


def test_machine_code_is_built_where_the_runtime_loads(tmp_path):
    """With a stand-in for the driver's library TVM's own CUDA runtime loads, and modules hold machine code, not source."""
    if find_nvcc() is None:
        pytest.skip("no nvcc: make test-cuda installs it and runs these tests")
    names = ("DeviceGetName", "FuncSetAttribute", "GetErrorName", "GetErrorString", "LaunchKernelEx")
    names += ("ModuleGetFunction", "ModuleLoadData", "ModuleUnload", "TensorMapEncodeTiled")
    (tmp_path / "driver.c").write_text("".join(f"int cu{name}(void) {{ return 100; }}\n" for name in names))
    library = tmp_path / "libcuda.so.1"
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", str(library)]
    subprocess.run(["gcc", *flags, str(tmp_path / "driver.c")], check=True)
    found = os.environ.get("LD_LIBRARY_PATH", "")
    toolkit = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(str(shutil.which("nvcc"))))), "lib64")
    env = {**os.environ, "LD_LIBRARY_PATH": f"{tmp_path}:{toolkit}:{found}", "TVM_CUDA_COMPILE_MODE": "nvcc"}
    built = tmp_path / "staged.so"
    done = subprocess.run([sys.executable, "-c", _BUILD, str(built)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    data = built.read_bytes()
    assert b"__global__" not in data and b"\x50\xed\x55\xba" in data  # the magic number of a fat binary


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_pipeline_builds_a_program_for_cuda(precision, monkeypatch):
    """As `tvm.compile(mod, target, relax_pipeline=...)` calls it: one CUDA graph of kernels, products in tiles."""
    pipeline = cascade_pipeline(objective="latency", precision=precision, device="h200")
    mod = inception_e(width=0.0625)
    with cuda_target("cuda -arch=sm_90"):
        lowered = pipeline(mod)
    text = lowered.script()
    assert "vm.builtin.cuda_graph.run_or_capture" in text and "gemm_acc" in text
    assert any(map(on_tensor_cores, _kernels(lowered))) == (precision == "fp16")
    assert all(f.attrs.get("tirx.is_scheduled") for f in _kernels(lowered))


def test_the_pipeline_builds_what_it_cannot_schedule_as_tvm_does(caplog):
    x = relax.Var("x", relax.TensorType((4, tvm.tirx.Var("n", "int64")), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(relax.op.nn.relu(x)))
        builder.emit_func_output(out)
    with caplog.at_level("INFO", logger="tvm_cascade"), cuda_target("cuda -arch=sm_90"):
        lowered = cascade_pipeline(objective="latency")(builder.get())
    assert "no stages" in caplog.text and _kernels(lowered)


def _kernels(mod: tvm.IRModule) -> list:
    return [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
