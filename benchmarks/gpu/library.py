"""Everything that is run of one network, in one compiled library: schedules, and probes that time single kernels.

Without a GPU and its driver TVM stores CUDA sources in place of machine code, as it loads its CUDA runtime only where the
driver is. `with_stand_in` loads it beside a stand-in for the driver (`stub_cuda.c`), which nothing is run on.
"""

# TVM has no stubs.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import tvm

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.cost.interface import OpFeatures
from tvm_cascade.errors import MissingToolError
from tvm_cascade.parallel import Options, Schedule, schedule
from tvm_cascade.parallel.units import UnitGraph, unit_graph
from tvm_cascade.passes.join_modules import join_modules
from tvm_cascade.passes.relax_functions import ByStructure
from tvm_cascade.runtime import compile_stages
from tvm_cascade.staging.kernels.records import digest
from tvm_cascade.staging.program.concat import write_in_place
from tvm_cascade.staging.program.cuda import cuda_target, emit_cuda, schedule_cuda
from tvm_cascade.staging.program.graph import StageGraph
from tvm_cascade.staging.program.kernels import build_kernels
from tvm_cascade.staging.program.library_kernels import library_kernel, with_library
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.staging.program.precision import BF16, FP16, FP32, TF32
from tvm_cascade.staging.program.probe import evict_module, probe_module
from tvm_cascade.staging.program.program import check_groups, plan_program
from tvm_cascade.staging.program.specs import Kernel, Spec

Measured = Mapping[OpFeatures, float]  # milliseconds of kernels alone
VARIANTS = {"sequential": "sequential", "greedy": "greedy", "ios": "both"}  # schedule -> variant of the search
PRECISIONS = {
    FP32: 1e-4,
    FP16: 4e-3,
    BF16: 4e-2,
    TF32: 4e-3,
}  # and the largest error, as a share of the largest expected value
CUDNN = "cudnn"  # part of the names of programs that call it
COPIES = 16  # of a kernel in the CUDA graph that times it, as `measured.measure_cuda` has them
EVICT = "evict"  # the program that reads more than the cache holds
_SOURCE = Path(__file__).with_name("stub_cuda.c")


@dataclass(frozen=True)
class Library:
    """A compiled network: `executable` has a function for every schedule and probe."""

    executable: Any
    schedules: dict[str, Schedule]
    probes: dict[str, OpFeatures]  # program -> the kernel that it times
    cold: tuple[
        str, ...
    ] = ()  # of these programs, those whose network's weights are more than the device's cache holds
    cudnn: dict[str, dict[str, str]] = field(
        default_factory=dict
    )  # a probe of cuDNN's kernel -> ours, and its record's key

    def about(self) -> dict[str, Any]:
        """What the results are stored by: stages of every schedule, features of every probe."""
        stages = {name: len(s.stages) for name, s in self.schedules.items()}
        costs = {name: s.cost_ms for name, s in self.schedules.items()}
        probes = {name: list(astuple(features)) for name, features in self.probes.items()}
        timing = {"probes": probes, "cold": self.cold, "copies": COPIES, "evict": EVICT, "cudnn": self.cudnn}
        return {"stages": stages, "cost_ms": costs, **timing}


def programs_of(precisions: Sequence[str]) -> dict[str, tuple[str, str]]:
    """By the name of a program, its schedule and precision."""
    return {v if p == FP32 else f"{v}_{p}": (v, p) for p in precisions for v in VARIANTS}


def build(
    mod: tvm.IRModule,
    unit: str,
    arch: str,
    precisions: Sequence[str],
    measured: Measured,
    device: str = "h200",
    probes: bool = True,
) -> Library:
    """The library for a GPU of architecture `arch`; schedules are the best for the analytic model of `device`, with the
    kernels that were measured there."""
    target = f"cuda -arch={arch}"
    scheduled, programs = _Scheduled(target), _programs(mod, unit, device, precisions, measured)
    modules = {name: _emit(*program, target, scheduled) for name, program in programs.items()}
    if not probes:  # the small network: by cuDNN whatever it has
        modules |= {f"{CUDNN}_{p}": _emit(*programs[sequential(p)], target, scheduled, True) for p in precisions}
    timed: dict[str, OpFeatures] = {}
    timing: dict[str, tvm.IRModule] = {}
    cold: list[str] = []
    cudnn: dict[str, dict[str, str]] = {}
    cache = find_device(device).cache_bytes
    for precision in precisions if probes else ():
        net, units, _ = programs[sequential(precision)]
        found, probing, theirs = _probes(net, units, target, scheduled, f"probe_{precision}")
        timed, timing, cudnn = timed | found, {**timing, **probing}, cudnn | theirs
        cold += found if sum(op.weight_bytes for op in net.graph.ops) > cache else ()
    if timing:
        timing = {**timing, EVICT: evict_module(2 * cache, target)}
    joined = join_modules({**modules, **timing})
    schedules = {n: p[2] for n, p in programs.items()}
    return Library(compile_stages(joined, cuda_target(target)), schedules, timed, tuple(cold), cudnn)


def sequential(precision: str) -> str:
    """The program of the sequential schedule in a precision."""
    return "sequential" if precision == FP32 else f"sequential_{precision}"


def build_twin(
    mod: tvm.IRModule, unit: str, precisions: Sequence[str], measured: Measured, device: str = "h200"
) -> Library:
    """The same programs for any x86-64 CPU: streams without effect, no CUDA graph, default loops. For rehearsals."""
    programs = _programs(mod, unit, device, precisions, measured)
    joined = join_modules({name: _emit(*program, "llvm") for name, program in programs.items()})
    return Library(compile_stages(joined, tvm.target.Target("llvm")), {n: p[2] for n, p in programs.items()}, {})


class _Scheduled:
    """Kernels with dlight's schedules, equal ones scheduled once: schedules and probes share most of theirs."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._known = ByStructure[Any]()

    def __call__(self, kernel: Kernel) -> Kernel:
        func = self._known.get(
            kernel.func, lambda: schedule_cuda(tvm.IRModule({"main": kernel.func}), self._target)["main"]
        )
        return replace(kernel, func=func)


def _emit(
    net: StageGraph,
    units: UnitGraph,
    best: Schedule,
    target: str,
    scheduled: _Scheduled | None = None,
    cudnn: bool = False,
) -> tvm.IRModule:
    """The module of a schedule: for a GPU, captured into a CUDA graph, or without `scheduled` for a CPU. With `cudnn` all kernels
    that cuDNN has are its own."""
    program = write_in_place(plan_program(net, units, best, captured=True))
    check_groups(program)
    kernels = build_kernels(net, program.specs, False, program.slices)
    if cudnn:
        kernels = with_library(net, program.specs, kernels, program.slices, lambda _func: True)
    if scheduled is None:
        return emit_cuda(program, kernels, target, False, "cpu:0")
    return emit_cuda(program, [scheduled(k) for k in kernels], target, True)


def _programs(
    mod: tvm.IRModule, unit: str, device: str, precisions: Sequence[str], measured: Measured
) -> dict[str, tuple[StageGraph, UnitGraph, Schedule]]:
    """The network of every program in its precision, with its units and its schedule."""
    nets = {p: stage_network(mod, "cuda", p) for p in precisions}
    units = {p: unit_graph(net.graph, unit) for p, net in nets.items()}
    models = {p: AnalyticCost(find_device(device), p, measured) for p in precisions}
    found = {}
    for name, (own, p) in programs_of(precisions).items():
        best = schedule(nets[p].graph, models[p], Options(unit=unit, variant=VARIANTS[own])).schedule
        found[name] = nets[p], units[p], best
    return found


def _probes(
    net: StageGraph, units: UnitGraph, target: str, scheduled: _Scheduled, name: str
) -> tuple[dict[str, OpFeatures], Mapping[str, tvm.IRModule], dict[str, dict[str, str]]]:
    """A probe for every kernel that differs from the others: the features it is known by, and its module; with those of cuDNN's
    kernels, each with that of ours and the key of its record."""
    specs: dict[OpFeatures, Spec] = {}
    for unit in units.units:
        for ops, features in zip(units.kernels[unit.index], units.features[unit.index], strict=True):
            if features.kind != "view":
                specs.setdefault(features, Spec(ops))
    kernels = build_kernels(net, list(specs.values()), False)
    modules = {
        f"{name}_{k}": probe_module([[scheduled(kernel)]], target, COPIES, own_constants=True)
        for k, kernel in enumerate(kernels)
    }
    features, cudnn = dict(zip(modules, specs, strict=True)), dict[str, dict[str, str]]()
    for probe, spec, kernel in zip(features, specs.values(), kernels, strict=True):
        theirs = library_kernel(net, spec, "library")
        if theirs is not None:
            modules[f"{probe}_{CUDNN}"] = probe_module([[theirs]], target, COPIES, own_constants=True)
            params: Any = kernel.func.params
            shapes = " ".join("x".join(str(int(d)) for d in p.ty.shape) for p in params)
            cudnn[f"{probe}_{CUDNN}"] = {"ours": probe, "kernel": digest(kernel.func), "shapes": shapes}
    return features, modules, cudnn


def make_stand_in(folder: Path) -> None:
    """Compile the stand-in: `libcudart.so.13` and `libcuda.so.1`. Raises `MissingToolError` without a C compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    version = folder / "version.map"
    version.write_text("libcudart.so.13 { global: *; };\n")
    common = ["cc", "-O1", "-shared", "-fPIC", str(_SOURCE)]
    parts = {
        "libcudart.so.13": [f"-Wl,--version-script={version}"],
        "libcuda.so.1": ["-DDRIVER"],
    }
    try:
        for name, more in parts.items():
            command = [*common, *more, f"-Wl,-soname,{name}", "-o", str(folder / name)]
            subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise MissingToolError(
            "a C compiler", "the stand-in for CUDA's driver is compiled here: put cc on the PATH"
        ) from None
    version.unlink()


def with_stand_in(folder: Path) -> None:
    """Load TVM's CUDA runtime, beside the stand-in of `folder` where there is no driver."""
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is not None:
        return
    for library in (folder / "libcudart.so.13", folder / "libcuda.so.1", runtime_folder() / "libtvm_runtime_cuda.so"):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def runtime_folder() -> Path:
    """The folder of TVM's libraries."""
    return Path(tvm.__file__).parent / "lib"
