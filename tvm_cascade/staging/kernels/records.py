"""Tuning records for stage kernels: one JSON file per folder, keyed by a digest of the kernel's text and the target.

A record holds the trace of a schedule faster than the default, or says that there was none. MetaSchedule's own database
keeps every candidate and every workload (about 90 kB a convolution); this file keeps only the data needed later.

On CPUs the records' target is `llvm` (one core) for every CPU model; `machine` names the machine measured. On CUDA the
target includes the architecture.
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
from tvm_cascade.plain_files import readable
from tvm_cascade.publish import whole_file
from tvm_cascade.staging.kernels.cpu_elementary import vectorizable
from tvm_cascade.staging.kernels.cpu_float import schedule_cpu
from tvm_cascade.staging.kernels.cuda_default import architecture_of
from tvm_cascade.staging.kernels.processors import accumulators

FILE = "stage_kernels.json"


@dataclass(frozen=True, slots=True)
class Record:
    """The result of tuning a kernel."""

    kernel: str  # digest of the unscheduled kernel
    shapes: str  # of its parameters, for human readers
    target: str  # as `record_target` returns it
    machine: str  # model of the processor or device that measured
    candidates: int  # number of candidates measured
    default_ms: float  # least time of the default schedule
    tuned_ms: float  # least time of the best candidate, or of the default where that was faster
    trace: list[Any] | None  # of the best candidate; None: none was faster by the margin
    library: str = ""  # "cudnn": its kernel takes less time than ours, by whatever schedule
    library_ms: float | None = None  # of that kernel; None: not measured


def digest(func: PrimFunc) -> str:
    """Compute a kernel's key in records: 24 hex digits from the SHA-256 of the TVMScript text."""
    return hashlib.sha256(func.script().encode()).hexdigest()[:24]


class KernelRecords:
    """The records in a folder; `add` creates a missing folder. Raises `UsageError` for unreadable records."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / FILE
        if Path(folder).exists() and not Path(folder).is_dir():
            raise UsageError(f"{folder} is a file; give a folder for the records")
        self._held: dict[tuple[str, str], Record] = {}
        if not self.path.exists():
            return
        try:
            records = [Record(**row) for row in json.loads(readable(self.path).read_text())]
            self._held = {(r.target, r.kernel): r for r in records}
        except (OSError, ValueError, TypeError) as why:
            raise UsageError(f"{self.path}: its records cannot be read ({why}); give another folder") from None

    def get(self, func: PrimFunc, target: str) -> Record | None:
        """Return the kernel's record for a target; None without a record."""
        return self._held.get((target, digest(func)))

    def add(self, record: Record) -> None:
        """Add a record and write the file atomically. Raises `UsageError` if the file cannot be written."""
        self._held[record.target, record.kernel] = record
        rows = [json.dumps(asdict(self._held[key]), separators=(",", ":")) for key in sorted(self._held)]
        with whole_file(self.path) as partial:
            partial.write_text("[\n" + ",\n".join(rows) + "\n]\n")

    def __iter__(self) -> Iterator[Record]:
        return iter(self._held.values())

    def __len__(self) -> int:
        return len(self._held)


class TunedKernels:
    """Schedules of kernels for a single target: the recorded schedule if there is a record, else the default."""

    def __init__(self, folder: str | Path | None, target: str = "llvm") -> None:
        """Load the records in `folder`; None: use defaults only.

        `target`: for CPUs text for `processor`, else as in `record_target`.
        """
        self.target = target if folder is None else record_target(target)
        self._cpu = not target.startswith("cuda")
        self._processor = target
        self.records = None if folder is None else KernelRecords(folder)

    def scheduled(self, func: PrimFunc, parallel: bool) -> PrimFunc:
        """Return the scheduled kernel; on a CPU for a single core or (`parallel`) all, by the same loops.

        On a CPU elementary functions become polynomials. On CUDA a kernel without a record is returned unchanged: dlight's
        rules schedule the whole module later.
        """
        tuned = self._recorded(func)
        if not self._cpu:
            return func if tuned is None else tuned
        if tuned is None:
            return vectorizable(schedule_cpu(func, parallel, accumulators(self._processor)))
        return vectorizable(threaded(tuned) if parallel else tuned)

    @property
    def uses_library(self) -> bool:
        """Test whether any record for the target chooses a library's kernel."""
        return any(r.library and r.target == self.target for r in self.records or ())

    def by_library(self, func: PrimFunc | None) -> bool:
        """Test whether a record names a library's kernel as the fastest for an unscheduled kernel."""
        record = None if self.records is None or func is None else self.records.get(func, self.target)
        return record is not None and record.library != ""

    @property
    def digest(self) -> str:
        """Compute the digest of all recorded schedules for the target, 12 hex digits; empty if all kernels use the
        default.
        """
        used = sorted(
            (r.kernel, json.dumps(r.trace), *([r.library] if r.library else []))
            for r in self.records or ()
            if (r.trace is not None or r.library) and r.target == self.target
        )
        return hashlib.sha256(repr(used).encode()).hexdigest()[:12] if used else ""

    def _recorded(self, func: PrimFunc) -> PrimFunc | None:
        record = None if self.records is None else self.records.get(func, self.target)
        if record is None or record.trace is None:
            return None
        return apply_trace(func, record.trace)


def record_target(target: str) -> str:
    """Return the target name in records: `llvm` for every CPU, else CUDA with the architecture.

    Raises `UsageError` for CUDA without an architecture: tuned kernels serve a single architecture.
    """
    return f"cuda -arch={architecture_of(target)}" if target.startswith("cuda") else "llvm"


def apply_trace(func: PrimFunc, trace: list[Any]) -> PrimFunc:
    """Apply a recorded schedule to the kernel. Raises `UsageError` if TVM cannot apply the trace."""
    schedule: Any = s_tir.Schedule(tvm.IRModule({"main": func}))
    try:
        s_tir.schedule.Trace.apply_json_to_schedule(trace, schedule)
    except Exception as why:  # whatever TVM raises on a trace of another version
        reason = str(why).strip().splitlines() or [type(why).__name__]
        raise UsageError(f"a record of a tuned kernel cannot be applied ({reason[-1][:200]}); tune it again") from None
    return schedule.mod["main"].with_attr("tirx.is_scheduled", True)


def plain_trace(trace: Any) -> list[Any]:
    """Convert a schedule's trace to plain Python values for `json`."""
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
    """Make the outermost loops of a kernel scheduled by `cpu_float` parallel; their iterations are independent."""
    root = func.body.block
    body = root.body
    nests = [_shared(nest) for nest in body.seq] if isinstance(body, tirx.SeqStmt) else [_shared(body)]
    statement = nests[0] if len(nests) == 1 else tirx.SeqStmt(nests)
    block = s_tir.SBlock([], [], [], root.name_hint, statement, alloc_buffers=root.alloc_buffers)
    return func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), block))


def _shared(nest: Any) -> Any:
    return tirx.For(nest.loop_var, nest.min, nest.extent, tirx.ForKind.PARALLEL, nest.body)
