"""Which kernels of a network a library computes: those that take less time there than ours, measured in captured graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from tvm_cascade.errors import MissingToolError
from tvm_cascade.parallel.units import UnitGraph
from tvm_cascade.passes.library_kernels import library_kernel
from tvm_cascade.passes.stage_graph import StageGraph
from tvm_cascade.passes.stage_kernels import build_kernels
from tvm_cascade.passes.stage_specs import Kernel, Spec
from tvm_cascade.runtime.bench import Bench, FailedRunError
from tvm_cascade.runtime.measure_cuda import COPIES, probe
from tvm_cascade.schedules.stages.stage_records import KernelRecords, Record, TunedKernels, digest, record_target

MARGIN = 0.03  # share of our kernel's time by which a library's has to be faster
_ROUNDS, _REPEATS = 5, 4
CUDNN = "cudnn"


@dataclass(frozen=True)
class Chosen:
    """Summary of a call of `choose_library`."""

    kernels: int  # distinct kernels that the library has too
    chosen: int  # those that it is faster at
    measured: int  # in this call
    refused: tuple[str, ...] = ()  # why it does not run others, each reason once


def require_cudnn() -> None:
    """Make cuDNN's kernels ready in this process. Raises `MissingToolError` without cuDNN or its binding."""
    from tvm_cascade.runtime.library_kernels import register

    try:
        register()
    except (ImportError, OSError) as error:
        raise MissingToolError(f"cuDNN or its Python binding ({error})", "pip install 'tvm-cascade[cudnn]'") from None


def choose_library(
    net: StageGraph,
    units: UnitGraph,
    folder: str | Path,
    bench: Bench,
    progress: Callable[[str], None] = lambda _text: None,
) -> Chosen:
    """Measure what the records in `folder` do not know yet, and add it: every unit's kernel in turn with the library's.

    `bench`: a GPU of this machine. Merged operators keep our kernels.
    """
    records = KernelRecords(folder)
    target = record_target(bench.target)
    known: dict[str, tuple[Kernel, Kernel]] = {}
    for spec in dict.fromkeys(Spec(k) for kernels in units.kernels for k in kernels):
        theirs = library_kernel(net, spec, "library")
        if theirs is not None:
            (ours,) = build_kernels(net, [spec], False)
            known.setdefault(digest(ours.func), (ours, theirs))
    missing = [pair for pair in known.values() if _unknown(records.get(pair[0].func, target))]
    if missing:
        progress(f"measuring {len(missing)} kernels of cuDNN beside ours, into {records.path}")
    refused: dict[str, None] = {}
    for ours, theirs in missing:
        try:
            times = _in_turn(ours, theirs, TunedKernels(folder, bench.target), bench)
        except FailedRunError as error:
            refused[str(error)] = None
            continue
        records.add(_record(records.get(ours.func, target), ours, target, bench.machine, times))
    found = [records.get(ours.func, target) for ours, _ in known.values()]
    return Chosen(len(known), sum(r is not None and r.library != "" for r in found), len(missing), tuple(refused))


def _unknown(record: Record | None) -> bool:
    return record is None or record.library_ms is None


def _in_turn(ours: Kernel, theirs: Kernel, tuned: TunedKernels, bench: Bench) -> tuple[float, float]:
    """Milliseconds of either kernel."""
    mine = replace(ours, func=tuned.scheduled(ours.func, True))
    columns = bench.in_turn([probe([[k]], bench) for k in (mine, theirs)], _ROUNDS, _REPEATS)
    first, second = (median(column) / COPIES for column in columns)
    return first, second


def _record(before: Record | None, ours: Kernel, target: str, machine: str, times: tuple[float, float]) -> Record:
    """The record of a kernel with what was measured of it and of the library's."""
    mine, theirs = times
    library = CUDNN if theirs < mine * (1 - MARGIN) else ""
    if before is None:
        params = ours.func.params  # type: ignore[attr-defined]
        shapes = " ".join("x".join(str(int(d)) for d in p.ty.shape) for p in params)
        least = round(mine, 5)
        before = Record(digest(ours.func), shapes, target, machine, 0, least, least, None)
    return replace(before, library=library, library_ms=round(theirs, 5))
