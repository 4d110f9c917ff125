"""Tuned kernels of stages: records in one JSON file of a folder, found by a kernel's text and the target.

A record is the trace of a schedule that measured faster than the default one, or says that none did. MetaSchedule's own
database keeps every candidate and every workload (about 90 kB a convolution); this file keeps what a later run needs.

On CPUs the target of records is `llvm` for one core, whatever the model: `machine` says where they were measured. On
CUDA it holds the architecture.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.tirx import PrimFunc

from tvm_cascade.errors import UsageError
from tvm_cascade.publish import whole_file
from tvm_cascade.schedules.stages.cpu_float import schedule_cpu

FILE = "stage_kernels.json"
SHIPPED = Path(__file__).parents[1] / "data"  # the folder of the package's own records


@dataclass(frozen=True, slots=True)
class Record:
    """What tuning found for one kernel."""

    kernel: str  # digest of the unscheduled kernel
    shapes: str  # of its parameters, for readers
    target: str
    machine: str
    candidates: int  # measured
    default_ms: float  # least time of the default schedule
    tuned_ms: float  # least time of the best candidate, run in turn with the default
    trace: list[Any] | None  # None: no candidate was faster


def digest(func: PrimFunc) -> str:
    """What a kernel is found by: its text as TVM prints it."""
    return hashlib.sha256(func.script().encode()).hexdigest()[:24]


class KernelRecords:
    """The records of a folder, which is made where it does not exist. Raises `UsageError` for one that cannot be read."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / FILE
        if Path(folder).exists() and not Path(folder).is_dir():
            raise UsageError(f"{folder} is a file; give a folder for the records")
        self._held: dict[tuple[str, str], Record] = {}
        if not self.path.exists():
            return
        try:
            found = [Record(**row) for row in json.loads(self.path.read_text())]
            self._held = {(r.target, r.kernel): r for r in found}
        except (OSError, ValueError, TypeError) as why:
            raise UsageError(f"{self.path}: its records cannot be read ({why}); give another folder") from None

    def get(self, func: PrimFunc, target: str) -> Record | None:
        """The kernel's record for a target."""
        return self._held.get((target, digest(func)))

    def add(self, record: Record) -> None:
        """Keep a record; the file is written at once, whole or not at all. Raises `UsageError` where it cannot be."""
        self._held[record.target, record.kernel] = record
        rows = [json.dumps(asdict(self._held[key]), separators=(",", ":")) for key in sorted(self._held)]
        with whole_file(self.path) as partial:
            partial.write_text("[\n" + ",\n".join(rows) + "\n]\n")

    def __iter__(self) -> Iterator[Record]:
        return iter(self._held.values())

    def __len__(self) -> int:
        return len(self._held)


class TunedKernels:
    """Schedules of kernels for one target: the recorded one where there is one, else the default."""

    def __init__(self, folder: str | Path | None, target: str = "llvm") -> None:
        """`folder`: of records, None for defaults alone; `target` as in `record_target`."""
        self.target = record_target(target)
        self._cpu = not target.startswith("cuda")
        self.records = None if folder is None else KernelRecords(folder)

    def scheduled(self, func: PrimFunc, parallel: bool) -> PrimFunc:
        """The kernel as it runs: on a CPU on one core or on all of them, by the same loops. On CUDA a kernel without a
        record comes back as it was: dlight's rules see the whole module."""
        made = self._recorded(func)
        if made is None:
            return schedule_cpu(func, parallel) if self._cpu else func
        return threaded(made) if parallel and self._cpu else made

    @property
    def digest(self) -> str:
        """Of the schedules that are used for the target; empty where all are defaults."""
        used = sorted(
            (r.kernel, json.dumps(r.trace))
            for r in self.records or ()
            if r.trace is not None and r.target == self.target
        )
        return hashlib.sha256(repr(used).encode()).hexdigest()[:12] if used else ""

    def _recorded(self, func: PrimFunc) -> PrimFunc | None:
        found = None if self.records is None else self.records.get(func, self.target)
        if found is None or found.trace is None:
            return None
        return apply_trace(func, found.trace)


def record_target(target: str) -> str:
    """What records are kept under: `llvm` for every CPU, `cuda -arch=sm_90` with the architecture (`sm_75` by default)."""
    if not target.startswith("cuda"):
        return "llvm"
    return f"cuda -arch={next((w.split('=', 1)[1] for w in target.split() if w.startswith('-arch=')), 'sm_75')}"


def apply_trace(func: PrimFunc, trace: list[Any]) -> PrimFunc:
    """The kernel under a recorded schedule. Raises `UsageError` where it does not fit."""
    schedule: Any = s_tir.Schedule(tvm.IRModule({"main": func}))
    try:
        s_tir.schedule.Trace.apply_json_to_schedule(trace, schedule)
    except Exception as why:  # whatever TVM raises on a trace of another version
        reason = str(why).strip().splitlines() or [type(why).__name__]
        raise UsageError(f"a record of a tuned kernel cannot be applied ({reason[-1][:200]}); tune it again") from None
    return schedule.mod["main"].with_attr("tirx.is_scheduled", True)


def plain_trace(trace: Any) -> list[Any]:
    """A schedule's trace as JSON takes it."""
    return _plain(trace.as_json())


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "value"):
        return value.value
    if hasattr(value, "items"):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value]


def threaded(func: PrimFunc) -> PrimFunc:
    """A scheduled kernel of `cpu_float` whose outermost loops are shared by all threads: their turns are independent."""
    root = func.body.block
    body = root.body
    nests = [_shared(nest) for nest in body.seq] if isinstance(body, tirx.SeqStmt) else [_shared(body)]
    made = nests[0] if len(nests) == 1 else tirx.SeqStmt(nests)
    block = s_tir.SBlock([], [], [], root.name_hint, made, alloc_buffers=root.alloc_buffers)
    return func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), block))


def _shared(nest: Any) -> Any:
    return tirx.For(nest.loop_var, nest.min, nest.extent, tirx.ForKind.PARALLEL, nest.body)
