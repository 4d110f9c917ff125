"""`emit_folder`: a network and its schedule as a movable folder that runs with TVM alone (rfc/0014).

network.so       the staged program and, for GPUs, its weights and machine code
weights.bin      for processors: the weights, mapped into memory as they are used (`deploy.weights`)
example.py       runs it in Python; example.cc and CMakeLists.txt: in C++, against TVM's runtime and FFI
README.md        says how to run it
schedule.json    the stages (`parallel.schedule_file`)
metadata.json    names, shapes and types of inputs and outputs; target, architectures
library_kernels.py    where records say that cuDNN is faster at some kernels: registers them for example.py
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tvm_cascade.cost import find_device
from tvm_cascade.cost.precision import require_architecture
from tvm_cascade.deploy.library import build_library, require_linker
from tvm_cascade.deploy.weights import WEIGHTS, as_parameters, write_weights
from tvm_cascade.errors import GraphError, UsageError
from tvm_cascade.parallel.problem import Schedule
from tvm_cascade.parallel.schedule_file import save_schedule
from tvm_cascade.parallel.units import UnitGraph
from tvm_cascade.passes.read.program import numbers_in
from tvm_cascade.publish import publish
from tvm_cascade.request import SearchRequest
from tvm_cascade.runtime import library_kernels
from tvm_cascade.runtime.cuda import with_architecture
from tvm_cascade.runtime.cuda_code import CudaCode, parse_architectures, require_cuda_compiler
from tvm_cascade.staging.kernels.cuda_default import architecture_of, cuda_target, on_tensor_cores
from tvm_cascade.staging.kernels.processors import other_triple, processor
from tvm_cascade.staging.program.graph import StageGraph
from tvm_cascade.staging.program.library_kernels import calls_library
from tvm_cascade.staging.program.precision import precision_of
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages, processor_calls
from tvm_cascade.tensor_spec import IoSpec, TensorSpec
from tvm_cascade.text_templates import render

METADATA, LIBRARY, README = "metadata.json", "network.so", "README.md"
FORMAT = "tvm-cascade-network-1"
_TEMPLATES = Path(__file__).parent / "templates"
_EXAMPLES = ("example.py", "example.cc", "CMakeLists.txt")
_BINDING = "library_kernels.py"  # in folders of programs that call cuDNN

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Emission:
    """The target and options of an emitted folder."""

    target: str = "llvm"  # "llvm", of this machine's processor or with -mcpu and -mattr; or "cuda"
    code: CudaCode | None = None  # machine code for GPUs
    threads: int = 2  # that share the groups of a stage on a processor
    streams: int | None = None  # that share them on a GPU; None: as many as the widest stage has groups
    device: int = 0  # number of the GPU that runs it
    metaschedule: Path | None = None  # folder with records of tuned kernels
    winograd: int = 4  # largest tiles of convolutions in Winograd's form on a processor

    @property
    def cuda(self) -> bool:
        return self.code is not None

    def lowering(self) -> LowerOptions:
        """Return the options of lowering; for several architectures, kernels are scheduled for the first, which all can
        run.
        """
        target = f"cuda -arch={self.code.architectures[0]}" if self.code is not None else self.target
        return LowerOptions(
            target=target,
            workers=self.threads,
            device=self.device,
            streams=self.streams,
            metaschedule=self.metaschedule,
            winograd=self.winograd,
        )

    @property
    def architectures(self) -> list[str]:
        """Return the GPU architectures, or the processor model."""
        if self.code is not None:
            return list(self.code.architectures)
        attributes: Any = self.tvm_target().attrs
        return [str(attributes.get("mcpu", "generic"))]

    def tvm_target(self) -> tvm.target.Target:
        """Return TVM's target of the library."""
        return cuda_target(self.lowering().target) if self.cuda else processor(self.target)


def emission_of(request: SearchRequest, threads: int) -> Emission:
    """Read a command's emission options, checked before minutes of work.

    Raises `UsageError` for options that do not fit together, `MissingToolError` without a compiler or linker.
    """
    records = getattr(request, "metaschedule", None)
    if not request.target.startswith("cuda"):
        if request.arch:
            raise UsageError("--arch is of --target cuda; for a processor give --target 'llvm -mcpu=NAME'")
        winograd = 4 if request.winograd is None else request.winograd
        made = Emission(request.target, None, request.threads or threads, metaschedule=records, winograd=winograd)
        require_linker(cuda=False, triple=other_triple(made.tvm_target()))
        return made
    if request.winograd is not None:
        raise UsageError("--winograd is of kernels for processors: give --target llvm, or leave it out")
    named = parse_architectures(request.arch) or parse_architectures([_architecture(request)])
    for architecture in named:
        require_architecture(request.precision, architecture)
    made = Emission("cuda", CudaCode(named, request.fast_math), 1, request.streams, request.gpu, records)
    require_cuda_compiler(made.code or CudaCode(named))
    require_linker(cuda=True)
    return made


def _architecture(request: SearchRequest) -> str:
    """Return a target's architecture, else the described device's, else this machine's GPU's."""
    known = find_device(request.device, "cuda").arch if request.device else ""
    if "-arch=" in request.target or not known:
        here = with_architecture(request.target, request.gpu) if tvm.cuda(request.gpu).exist else request.target
        return architecture_of(here)
    return known


def require_free(folder: Path) -> None:
    """Raise `UsageError` unless `folder` is missing, empty, or an emitted folder: nothing else is replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a folder for --emit")
    names = {path.name for path in folder.iterdir() if not re.fullmatch(r"network_\d+\.so", path.name)}
    emitted = {METADATA, LIBRARY, WEIGHTS, README, "schedule.json", *_EXAMPLES, _BINDING, "__pycache__"}
    if names - emitted or (names and METADATA not in names):
        raise UsageError(f"{folder} holds other things than an emitted network; give another folder or empty it")


@dataclass(frozen=True)
class Staged:
    """A network with stages, and the users' name."""

    net: StageGraph
    units: UnitGraph
    schedule: Schedule
    io: IoSpec  # inputs and outputs under the names that users know, in the network's order, states last
    name: str = "network"
    cost_model: str = ""  # that the schedule was found by


@dataclass(frozen=True)
class Smaller:
    """Programs for smaller batches, or lengths, which share the folder and the weights with the main one."""

    programs: Mapping[int, Staged]  # by batch or length, ascending
    largest: int  # of the main program
    rows: tuple[str, ...]  # names of the inputs with a row for each of the batch; every output has them; none: lengths

    @property
    def kind(self) -> str:
        """Return what differs between the programs."""
        return "batch" if self.rows else "length"


def emit_folder(
    folder: str | Path,
    staged: Staged,
    emission: Emission,
    progress: Progress = lambda _text: None,
    smaller: Smaller | None = None,
) -> tuple[str, ...]:
    """Write the folder, complete or not at all; returns the names of its files. `smaller`: programs for smaller batches,
    of processors.

    Raises
    ------
    UsageError
        The folder holds something else, or cannot be written.
    GraphError, ToolError
        The network cannot be staged; the compiler or the linker fails.
    """
    place, name = Path(folder), staged.name
    net, io, schedule = _with_flat_result(staged.net), staged.io, staged.schedule
    require_free(place)
    if len(io.inputs) != len(net.graph.inputs) or len(io.outputs) != len(list(numbers_in(net.program.result))):
        raise GraphError(f"{name} returns constants, which no stage computes: leave them out with --until")
    progress(f"{name}: building kernels of {len(schedule.stages)} stages")
    lowered = lower_stages(net, staged.units, schedule, emission.lowering())
    with publish(place, lambda old, _new: require_free(old)) as staging:
        progress(f"{name}: compiling the library{_for(emission)}")
        program, weights = (lowered, []) if emission.cuda else as_parameters(lowered)
        build_library(program, emission.tvm_target(), staging / LIBRARY, emission.code)
        save_schedule(staging / "schedule.json", net.graph, schedule, staged.cost_model)
        metadata = _metadata(name, io, emission) | _kernels(net, lowered)
        metadata["calls"] = [] if emission.cuda else _calls(net, staged.units, schedule)
        metadata |= {"batches": None, "lengths": None}
        if smaller is not None:
            key = {"batch": "batches", "length": "lengths"}[smaller.kind]
            metadata[key], weights = _programs(smaller, staged, emission, staging, weights, progress)
        metadata["weights"] = write_weights(weights, staging / WEIGHTS) if weights else None
        metadata["rows"] = list(smaller.rows) if smaller else None
        (staging / METADATA).write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
        (staging / README).write_text(render(_TEMPLATES / "README.md.j2", **metadata), encoding="utf-8")
        for example in _EXAMPLES:
            shutil.copyfile(_TEMPLATES / example, staging / example)
        if metadata["cudnn_kernels"]:
            shutil.copyfile(library_kernels.__file__, staging / _BINDING)
        written = tuple(sorted(path.name for path in staging.iterdir()))
    progress(f"{name}: written to {place}")
    return written


def _programs(
    smaller: Smaller, main: Staged, emission: Emission, staging: Path, weights: list[np.ndarray], progress: Progress
) -> tuple[list[dict[str, object]], list[np.ndarray]]:
    """Write a library for every smaller program; return the programs' descriptions and all weights, equal ones once."""
    known = {_key(array): k for k, array in enumerate(weights)}
    every, described = list(weights), list[dict[str, object]]()
    for size, one in smaller.programs.items():
        progress(f"{one.name}: compiling the library of {smaller.kind} {size}")
        lowered = lower_stages(_with_flat_result(one.net), one.units, one.schedule, emission.lowering())
        program, arrays = as_parameters(lowered)
        for array in arrays:
            if known.setdefault(_key(array), len(every)) == len(every):
                every.append(array)
        library = f"network_{size}.so"
        build_library(program, emission.tvm_target(), staging / library, None)
        described.append({smaller.kind: size, "library": library, "weights": [known[_key(array)] for array in arrays]})
    described.append({smaller.kind: smaller.largest, "library": LIBRARY, "weights": list(range(len(weights)))})
    if smaller.kind == "length":
        for told, io in zip(described, (*(one.io for one in smaller.programs.values()), main.io), strict=True):
            told |= {side: [_described(spec) for spec in getattr(io, side)] for side in ("inputs", "outputs")}
    return described, every


def _key(array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).digest()


def _with_flat_result(net: StageGraph) -> StageGraph:
    """Flatten nested result tuples into a single tuple: a folder's outputs have names, and no nesting."""
    result = net.program.result
    return net if isinstance(result, int) else replace(net, program=replace(net.program, result=(*numbers_in(result),)))


def _for(emission: Emission) -> str:
    return f" for {', '.join(emission.code.architectures)}" if emission.code is not None else ""


def _metadata(name: str, io: IoSpec, emission: Emission) -> dict[str, object]:
    made_for = emission.architectures
    return {
        "format": FORMAT,
        "name": name,
        "library": LIBRARY,
        "target": "cuda" if emission.cuda else "llvm",
        "architectures": made_for,
        "ptx": made_for[-1] if len(made_for) > 1 else None,
        "device": emission.device,
        "threads": emission.threads,
        "inputs": [_described(spec) for spec in io.own_inputs],
        "outputs": [_described(spec) for spec in io.own_outputs],
        "states": _states(io) or None,
        "tvm": tvm.__version__,
    }


def _kernels(net: StageGraph, lowered: tvm.IRModule) -> dict[str, object]:
    """Return a network program's precision, and how many kernels use tensor cores and cuDNN."""
    kernels = [f for f in lowered.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    counts = {
        "tensor_core_kernels": sum(map(on_tensor_cores, kernels)),
        "cudnn_kernels": sum(map(calls_library, kernels)),
    }
    return {"precision": precision_of(net), **counts}


def _calls(net: StageGraph, units: UnitGraph, schedule: Schedule) -> list[dict[str, str]]:
    """Describe every kernel call in order: the tensors of its last operator, and the kinds of its operators."""
    ops, tensors = net.graph.ops, net.graph.tensors
    return [
        {
            "name": ", ".join(tensors[t].name for t in ops[call[-1]].outputs),
            "kind": "+".join(dict.fromkeys(ops[i].kind for i in call)),
        }
        for call in processor_calls(net, units, schedule)
    ]


def _states(io: IoSpec) -> list[dict[str, object]]:
    """Describe the tensors kept between runs: as inputs, with the bytes before the first run as hexadecimal digits (None:
    zeros) and the output of the model's file that gives the tensor back.
    """
    return [
        {**_described(spec), "initial": state.initial.hex() or None, "returned": state.returned or None}
        for spec, state in zip(io.state_specs, io.states, strict=True)
    ]


def _described(spec: TensorSpec) -> dict[str, object]:
    stored = {} if spec.scale is None else {"scale": spec.scale, "zero_point": spec.zero_point}
    return {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype, **stored}
