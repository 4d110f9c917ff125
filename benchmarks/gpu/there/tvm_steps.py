"""Steps that run compiled programs. Each takes a `Call` and returns rows of results; a row with `wrong` fails the step.

In a rehearsal programs for the GPU run on the stand-in, where kernels compute nothing: then a row is wrong unless every
program captured one graph and replayed it in every run. Values are compared on the small network's twin, on the CPU.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import library_kernels  # pyright: ignore[reportMissingImports]
import numpy as np
from machine import CPU, CUDA, Machine, Program
from packed import HERE, NETWORKS, PROGRAMS, SMALL, TOLERANCES, Packed, relative_error, summary, unpack

Row = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """How a step is run: `work` holds unpacked networks, `outputs` what steps leave to later ones."""

    work: Path
    rehearsal: bool = False

    def runs(self, count: int) -> int:
        """The number of runs, few in a rehearsal."""
        return min(count, 3) if self.rehearsal else count

    @property
    def reference(self) -> Path:
        """Outputs of PyTorch."""
        return self.work / "reference.npz"


@dataclass
class Device:
    """A machine, and the programs of one network on it."""

    machine: Machine
    packed: Packed
    library: Any

    def program(self, name: str) -> Program:
        return Program(self.machine, self.library, name)


def devices(call: Call, names: list[str]) -> Iterator[Device]:
    """Every network on the GPU, or on its stand-in."""
    machine = Machine(CUDA, call.rehearsal)
    for name in names:
        packed = unpack(name, call.work)
        yield Device(machine, packed, machine.load(packed.library))


def twin(call: Call) -> Device:
    """The small network on the CPU."""
    machine, packed = Machine(CPU, stand_in=True), unpack(SMALL, call.work)
    return Device(machine, packed, machine.load(packed.twin))


def correctness(call: Call) -> list[Row]:
    """Every schedule of every network against the expected outputs, and against PyTorch's where step `reference` ran."""
    rows = []
    for device in devices(call, [SMALL, *NETWORKS]):
        for program in PROGRAMS:
            rows.append(_compared(call, device, program))
    if call.rehearsal:
        rows += [_compared(Call(call.work), twin(call), program) for program in PROGRAMS]
    return rows


def _said(device: Device, program: str) -> Row:
    """What a row is about."""
    schedule, precision = PROGRAMS[program]
    return {"network": device.packed.name, "schedule": schedule, "precision": precision}


def _compared(call: Call, device: Device, name: str, about: tuple[str, str] | None = None) -> Row:
    """A program's results; `about`: its schedule and precision, where they are not in the manifest."""
    schedule, precision = about or PROGRAMS[name]
    program, inputs = device.program(name), device.packed.arrays("inputs")
    before = device.machine.counts()
    first = program.run(*inputs)
    results = program.run(*inputs)  # a replay of what the first run captured
    tolerance = TOLERANCES[precision]
    row: Row = {"network": device.packed.name, "schedule": schedule, "precision": precision}
    row["device"] = device.machine.device.type
    if call.rehearsal:
        return row | _captured(device.machine, before, 1)
    expected = device.packed.arrays("expected")
    error = max(relative_error(first, expected), relative_error(results, expected))
    row["relative_error"] = error
    wrong = error > tolerance
    if call.reference.exists():
        with np.load(call.reference) as held:
            torch_outputs = [held[k] for k in sorted(held.files) if k.startswith(f"{device.packed.name}/")]
        row["relative_error_to_torch"] = relative_error(results, torch_outputs)
        wrong |= row["relative_error_to_torch"] > tolerance
    return row | ({"wrong": f"differs by more than {tolerance}"} if wrong else {})


def _captured(machine: Machine, before: dict[str, int], replays: int) -> Row:
    """The stand-in's counts since `before`; wrong unless one graph was captured, and replayed so many times."""
    counts = {name: count - before[name] for name, count in machine.counts().items()}
    row: Row = {"counts": counts}
    if counts["captures"] != 1 or counts["replays"] != replays or not counts["captured_kernels"]:
        row["wrong"] = (
            f"captured {counts['captures']} graphs, replayed {counts['replays']} times: 1 and {replays} wanted"
        )
    return row


def small(call: Call) -> list[Row]:
    """What tools look at: every schedule of the small network, compared."""
    return [_compared(call, device, s) for device in devices(call, [SMALL]) for s in PROGRAMS]


def timed(name: str) -> Callable[[Call], list[Row]]:
    """The step that times one schedule of every network, in one precision."""

    def step(call: Call) -> list[Row]:
        rows = []
        for device in devices(call, NETWORKS):
            before = device.machine.counts()
            program = device.program(name)
            times = program.times_ms(device.packed.arrays("inputs"), call.runs(500), 20)
            about = device.packed.about
            row = _said(device, name) | {"stages": about["stages"][name]}
            row |= {"model_ms": about["cost_ms"][name]} | summary(times)
            rows.append(row | (_captured(device.machine, before, len(times) + 19) if call.rehearsal else {}))
        return rows

    return step


def turns(call: Call) -> list[Row]:
    """The programs in turn, in one process: the ratio of sequential time to each of a precision, round by round."""
    return [row for device in devices(call, NETWORKS) for row in _in_turn(call, device, 25, 20)]


def _in_turn(call: Call, device: Device, rounds: int, runs: int) -> Iterator[Row]:
    """Medians of `runs` in each round, and their ratios."""
    inputs = device.packed.arrays("inputs")
    programs = {p: device.program(p) for p in PROGRAMS}
    medians: dict[str, list[float]] = {p: [] for p in PROGRAMS}
    for k in range(call.runs(rounds)):
        for p in PROGRAMS if k % 2 == 0 else reversed(PROGRAMS):
            medians[p].append(float(np.median(programs[p].times_ms(inputs, call.runs(runs), 3))))
    sequential = {precision: medians[p] for p, (name, precision) in PROGRAMS.items() if name == "sequential"}
    for p, (_, precision) in PROGRAMS.items():
        ratios = np.array(sequential[precision]) / np.array(medians[p])
        low, middle, high = (round(float(x), 4) for x in np.percentile(ratios, [25, 50, 75]))
        yield _said(device, p) | {"speedup": middle, "speedup_quartiles": [low, high]} | summary(medians[p])


def batched(name: str) -> Callable[[Call], list[Row]]:
    """The step of a network for several images: every program against the expected outputs, then all in turn."""

    def step(call: Call) -> list[Row]:
        rows: list[Row] = []
        for device in devices(call, [name]):
            about = {"batch": device.packed.about["batch"]}
            rows += [about | _compared(call, device, p) for p in PROGRAMS]
            rows += [about | row for row in _in_turn(call, device, 9, 10)]
        return rows

    return step


def kernels(call: Call) -> list[Row]:
    """Every kernel's time, of copies in one CUDA graph: `pack.py --records` puts them into a database of measurements.

    Each copy has weights of its own. `cold` are times of weights that come from memory, as the cache is emptied between runs,
    `warm` of those that the run before left there. `samples` are those of the two that a network of so many weights has.
    """
    rows = []
    for device in devices(call, NETWORKS):
        about = device.packed.about
        evict = device.program(about["evict"]).launch
        for probe, features in about["probes"].items():
            program = device.program(probe)
            row: Row = {"network": device.packed.name, "features": features}
            for name, between in (("warm", None), ("cold", evict)):
                times = program.times_ms([], call.runs(20), between=between)
                row[name] = [round(t / about["copies"], 7) for t in times]
            rows.append(row | {"samples": row["cold" if probe in about["cold"] else "warm"]})
    return rows


def cudnn(call: Call) -> list[Row]:
    """Kernels of cuDNN: the small network with whatever cuDNN has, compared; then every kernel beside ours, in turn."""
    try:
        binding = _binding(call)
    except (ImportError, OSError) as error:
        return [{"wrong": f"cuDNN or its binding cannot be loaded: {error}"}]
    rows: list[Row] = []
    for device in devices(call, [SMALL]):
        library_kernels.register(binding, device.machine._ffi, device.machine.empty)
        for precision in dict.fromkeys(precision for _, precision in PROGRAMS.values()):
            row = _compared(call, device, f"cudnn_{precision}", ("sequential by cuDNN", precision))
            rows.append(row)
    for device in devices(call, NETWORKS):
        library_kernels.register(binding, device.machine._ffi, device.machine.empty)
        about = device.packed.about
        for probe, told in list(about["cudnn"].items())[: 2 if call.rehearsal else None]:
            row = {"network": device.packed.name, "probe": probe} | {k: told[k] for k in ("kernel", "shapes")}
            try:
                programs = {"ours": device.program(told["ours"]), "theirs": device.program(probe)}
                times: dict[str, list[float]] = {side: [] for side in programs}
                for k in range(call.runs(5)):
                    for side in programs if k % 2 == 0 else reversed(programs):
                        times[side] += programs[side].times_ms([], call.runs(8), 2, 0.2)
                row |= {side: [round(t / about["copies"], 7) for t in values] for side, values in times.items()}
            except Exception as error:  # whatever cuDNN raises for what it has no engine for
                row["refused"] = str(error).strip().splitlines()[-1][:200]
            rows.append(row)
    return rows


def _binding(call: Call) -> Any:
    """NVIDIA's binding of cuDNN, which needs the library that PyTorch brings; in a rehearsal what stands in for it."""
    if call.rehearsal:
        return import_module("cudnn_stand_in")
    for place in (Path(p) / "nvidia" for p in sys.path if p):
        for path in sorted(place.glob("*/lib/libcudnn.so.9")):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    sys.path.append(str(HERE / "python"))
    return import_module("cudnn")


def thousand(call: Call) -> list[Row]:
    """A thousand runs of the concurrent schedules, whose bits must all be the same."""
    rows = []
    concurrent = [p for p, (schedule, _) in PROGRAMS.items() if schedule == "ios"]
    for device in devices(call, NETWORKS) if not call.rehearsal else [twin(call)]:
        for name in concurrent:
            program, inputs = device.program(name), device.packed.arrays("inputs")
            first = [x.tobytes() for x in program.run(*inputs)]
            runs = 20 if call.rehearsal else 1000
            different = sum([x.tobytes() for x in program.run(*inputs)] != first for _ in range(runs))
            row = _said(device, name) | {"runs": runs, "different": different}
            rows.append(row | ({"wrong": f"{different} runs differ"} if different else {}))
    return rows
