"""The kernels a library computes in a network: kernels that take less time there than ours, measured in captured
graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median

from tvm_cascade.errors import MissingToolError
from tvm_cascade.measured.measure_cuda import COPIES, evicted_bytes, evicting, probe
from tvm_cascade.parallel.merging import merge_classes
from tvm_cascade.parallel.problem import Options
from tvm_cascade.parallel.units import UnitGraph
from tvm_cascade.runtime.bench import Bench, FailedRunError
from tvm_cascade.staging.kernels.records import KernelRecords, Record, TunedKernels, digest, record_target
from tvm_cascade.staging.program.graph import StageGraph
from tvm_cascade.staging.program.kernels import build_kernels
from tvm_cascade.staging.program.library_kernels import library_kernel
from tvm_cascade.staging.program.merge import merge_units
from tvm_cascade.staging.program.specs import Kernel, Spec

MARGIN = 0.03  # share of our kernel's time by which a library's has to be faster
_ROUNDS, _REPEATS = 5, 4
_MOST_MERGED = 3  # operators of a merge that is measured where `Options.r` has no limit
CUDNN = "cudnn"


@dataclass(frozen=True)
class Chosen:
    """Summary of a `choose_library` call."""

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
    options: Options = Options(),  # noqa: B008
    progress: Callable[[str], None] = lambda _text: None,
) -> Chosen:
    """Measure the library's kernels in turn with ours unless `folder` has a record, and record the results.

    Measured are every unit's kernels, and the kernels of all merges a search with `options` may price. `bench`: a GPU
    of this machine.
    """
    records = KernelRecords(folder)
    target = record_target(bench.target)
    known: dict[str, tuple[Kernel, Kernel]] = {}
    alone = dict.fromkeys(Spec(k) for kernels in units.kernels for k in kernels)
    for spec in (*alone, *_merges(net, units, options)):
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
            times = _in_turn(ours, theirs, TunedKernels(folder, bench.target), bench, evicted_bytes(net, bench))
        except FailedRunError as error:
            refused[str(error)] = None
            continue
        records.add(_record(records.get(ours.func, target), ours, target, bench.machine, times))
    found = [records.get(ours.func, target) for ours, _ in known.values()]
    return Chosen(len(known), sum(r is not None and r.library != "" for r in found), len(missing), tuple(refused))


def _merges(net: StageGraph, units: UnitGraph, options: Options) -> Iterator[Spec]:
    """Yield the merges a search may price: equal-class operators, as many as a group may have."""
    if options.variant not in ("merge", "both"):
        return
    for members in merge_classes(units):
        for count in range(2, min(len(members), options.r or _MOST_MERGED) + 1):
            for some in combinations(members, count):
                ops = [units.units[v].ops for v in some]
                merge = merge_units(net, ops)
                if merge is not None:
                    yield Spec(tuple(i for each in ops for i in each), merge)


def _unknown(record: Record | None) -> bool:
    return record is None or record.library_ms is None


def _in_turn(ours: Kernel, theirs: Kernel, tuned: TunedKernels, bench: Bench, evicted: int) -> tuple[float, float]:
    """Measure both kernels in turn; return the median milliseconds of each, with `evicted` as in `probe`."""
    mine = replace(ours, func=tuned.scheduled(ours.func, True))
    programs = [probe([[k]], bench, evicted) for k in (mine, theirs)]
    if evicted:
        programs.append(evicting(evicted, bench))
    first, second, *empty = (median(column) for column in bench.in_turn(programs, _ROUNDS, _REPEATS))
    spent = empty[0] if empty else 0.0
    return (first - spent) / COPIES, (second - spent) / COPIES


def _record(before: Record | None, ours: Kernel, target: str, machine: str, times: tuple[float, float]) -> Record:
    """Make a kernel's record from the times of our kernel and the library's."""
    mine, theirs = times
    library = CUDNN if theirs < mine * (1 - MARGIN) else ""
    if before is None:
        params = ours.func.params  # type: ignore[attr-defined]
        shapes = " ".join("x".join(str(int(d)) for d in p.ty.shape) for p in params)
        least = round(mine, 5)
        before = Record(digest(ours.func), shapes, target, machine, 0, least, least, None)
    return replace(before, library=library, library_ms=round(theirs, 5))
