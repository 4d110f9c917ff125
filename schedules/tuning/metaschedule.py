"""Tuning row kernels by MetaSchedule for this machine.

This is the second level of the RFC's two: after cascading has broken a network into sub-operators, each gets the schedule
that measures fastest. The function that is tuned is the row form of a kernel (`schedules.tuning.row_form`); a learned cost
model (XGBoost) proposes candidates. Records are in a folder, as MetaSchedule's JSON database: a row form with records
there is not measured again.

The search space is one schedule with sampled tile sizes and unrolling, without parallel loops: kernels run on one thread.
Integer kernels compute the same bits under any schedule; for float kernels the order of sums may differ.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tvm

from tvm_cascade.errors import MissingToolError, UsageError
from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.tir import PrimFunc, s_tir, tirx, tvm_ffi
from tvm_cascade.schedules.tuning.row_form import NotTunableError, RowForm, row_form, serial, splice

ms: Any = s_tir.meta_schedule

RULE = "metaschedule"  # `RowKernel.rule` of a tuned kernel
FAILED = 1e9  # seconds that MetaSchedule records for a candidate that did not run
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Search:
    """Effort of a search by MetaSchedule."""

    trials: int = 32  # candidates to measure for each row form (or kernel) without a record
    batch: int = 16  # candidates measured between two fits of the cost model
    repeat_ms: int = 5  # least milliseconds of one measurement
    seed: int = 0


@dataclass(frozen=True)
class Operator:
    """An operator to tune."""

    name: str
    func: PrimFunc  # parameters: activations, constants, outputs
    constants: Sequence[np.ndarray]
    access: RowAccess
    generic: RowKernel  # its generic row kernel


@dataclass(frozen=True)
class Tuned:
    """The result of `tune`."""

    kernels: tuple[RowKernel | None, ...]  # by operator; None: the generic kernel stays
    measured: int  # candidates measured in this call
    forms: int  # distinct row forms
    reasons: dict[str, str]  # by operator's name, why the generic kernel stays

    @property
    def tuned(self) -> int:
        """Count the operators with tuned kernels."""
        return sum(k is not None for k in self.kernels)


def host_target() -> Any:
    """Return the LLVM target for this machine, with a single core."""
    return tvm.target.Target({"kind": "llvm", "num-cores": 1})


def tune(
    operators: Sequence[Operator | None],
    folder: str | Path,
    search: Search | None = None,
    progress: Progress = lambda _text: None,
) -> Tuned:
    """Tune the row kernels of `operators` (None for views), by the records in `folder` and new measurements.

    Parameters
    ----------
    folder : path
        Created where it is missing. Holds `database_workload.json` and `database_tuning_record.json`.
    search : Search, optional
        With 0 `trials` nothing is measured: only operators with records get tuned kernels.

    Raises
    ------
    UsageError
        `folder` is a file, or its records cannot be read.
    MissingToolError
        An `apache-tvm-ffi` with which MetaSchedule crashes.
    """
    search = search or Search()
    database = _database(Path(folder))
    reasons: dict[str, str] = {}

    def kernel_or_none(operator: Operator | None, make: Callable[[Operator], Any]) -> Any:
        if operator is None:
            return None
        try:
            return make(operator)
        except NotTunableError as why:
            reasons[operator.name] = str(why)
            return None

    forms: list[RowForm | None] = [kernel_or_none(o, lambda o: row_form(o.func, o.access)) for o in operators]
    distinct = list({tvm_ffi.structural_hash(f.func): f.func for f in forms if f is not None}.values())
    before = len(database)
    missing = [f for f in distinct if not database.has_workload(tvm.IRModule({"main": f}))]
    if missing and search.trials:
        progress(f"measuring {len(missing)} of {len(distinct)} kernels, {search.trials} candidates each, into {folder}")
        _measure(missing, Path(folder), database, search)
    scheduled = {tvm_ffi.structural_hash(f): _best(database, f) for f in distinct}
    kernels = [
        None if form is None else kernel_or_none(operator, lambda o, form=form: _kernel(o, form, scheduled))
        for operator, form in zip(operators, forms, strict=True)
    ]
    return Tuned(tuple(kernels), len(database) - before, len(distinct), reasons)


def plain(kernel: RowKernel) -> RowKernel:
    """Return a tuned kernel without vector loops, with the same results: for C compilers, and to count its operations."""
    return replace(kernel, code=serial(kernel.func))


def _kernel(operator: Operator, form: RowForm, scheduled: Mapping[int, PrimFunc | None]) -> RowKernel:
    """Build the kernel with the row form's fastest schedule. Raises `NotTunableError`."""
    best = scheduled[tvm_ffi.structural_hash(form.func)]
    if best is None:
        raise NotTunableError("no candidate ran, or none was measured")
    kernel = splice(operator.func, operator.constants, operator.access, form, best, "row_kernel")
    return replace(kernel, rule=RULE)


def require_json() -> None:
    """Raise `MissingToolError` for versions of `apache-tvm-ffi` with a crashing JSON writer, which MetaSchedule needs."""
    installed = version("apache-tvm-ffi")
    if installed.startswith("0.1.15"):  # it faults on any type, which nothing can catch
        remedy = f"MetaSchedule crashes with {installed}; pip install 'apache-tvm-ffi<0.1.15'"
        raise MissingToolError("apache-tvm-ffi 0.1.14", remedy)


@contextlib.contextmanager
def without_intrinsics() -> Iterator[None]:
    """Keep MetaSchedule from importing all tensor intrinsics, which takes half a minute; the spaces here use none."""
    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = ModuleType(name)
    try:
        yield
    finally:
        del sys.modules[name]


def _database(folder: Path) -> Any:
    require_json()
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a folder for the records")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return ms.database.JSONDatabase(work_dir=str(folder))
    except Exception as why:  # TVM raises whatever its JSON reader does
        reason = str(why).strip().splitlines() or [type(why).__name__]
        raise UsageError(f"{folder}: its records cannot be read ({reason[-1][:200]}); give another folder") from None


def measured_by(pair: tuple[Any, Any], search: Search, database: Any) -> dict[str, Any]:
    """Return keywords for MetaSchedule's searches: batches of candidates measured by a builder and a runner for
    `database`.
    """
    builder, runner = pair
    return {
        "num_trials_per_iter": min(search.batch, search.trials),
        "builder": builder,
        "runner": runner,
        "database": database,
        "measure_callbacks": [ms.measure_callback.AddToDatabase(), ms.measure_callback.UpdateCostModel()],
    }


def _measure(forms: Sequence[PrimFunc], folder: Path, database: Any, search: Search) -> None:
    from tvm_cascade.schedules.tuning import in_process  # classes of MetaSchedule, whose import takes long

    with without_intrinsics(), contextlib.redirect_stdout(sys.stderr):  # MetaSchedule prints tables
        ms.tir_integration.tune_tir(
            mod=tvm.IRModule({f"kernel{k}": f for k, f in enumerate(forms)}),
            target=host_target(),
            work_dir=str(folder),
            max_trials_global=search.trials * len(forms),
            max_trials_per_task=search.trials,
            **measured_by(in_process.local_pair(search.repeat_ms), search, database),
            cost_model=ms.cost_model.XGBModel(num_warmup_samples=4 * search.batch, num_tuning_cores=1),
            task_scheduler="round-robin",
            space=ms.space_generator.ScheduleFn(
                _design, sch_rules=[], postprocs=[], mutator_probs={ms.mutator.MutateTileSize(): 1.0}
            ),
            strategy=ms.search_strategy.EvolutionarySearch(
                population_size=32, init_min_unmeasured=8, genetic_num_iters=2, genetic_max_fail_count=4
            ),
            num_tuning_cores=1,
            seed=search.seed,
        )


def _design(sch: Any) -> None:
    """Define the search space: tiles of pixels and channels, a tile's sums in a single nest, channels innermost and
    vectorized.
    """
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    last = blocks[-1]
    loops = sch.get_loops(last)
    *_, column, channel = loops
    columns = sch.split(column, sch.sample_perfect_tile(column, n=2, max_innermost_factor=16))
    channels = sch.split(channel, sch.sample_perfect_tile(channel, n=2, max_innermost_factor=64))
    sch.reorder(columns[0], channels[0], columns[1], channels[1])
    for block in blocks[-2::-1]:
        sch.compute_at(block, channels[0], preserve_unit_loops=True)
    for block in blocks:
        _vectorized(sch, block, len(loops))
    if _chance(sch):
        sch.vectorize(channels[1])


def _vectorized(sch: Any, block: Any, outer: int) -> None:
    """Move reduction loops outside a tile's pixels and channels, so consecutive sums are independent; vectorize."""
    reduced = [iv.iter_type == tirx.IterVar.CommReduce for iv in sch.get(block).iter_vars]
    if not any(reduced):
        return
    inside = sch.get_loops(block)[-len(reduced) :]
    taps = [loop for loop, is_tap in zip(inside, reduced, strict=True) if is_tap]
    space = [loop for loop, is_tap in zip(inside, reduced, strict=True) if not is_tap]
    sch.reorder(*taps, *space)
    sch.vectorize(space[-1])
    if _chance(sch):
        sch.unroll(space[-2])
    clear = sch.decompose_reduction(block, taps[0])
    sch.vectorize(sch.get_loops(clear)[-1])


def _chance(sch: Any) -> bool:
    return bool(int(sch.get(sch.sample_categorical([0, 1], [0.5, 0.5]))))


def _best(database: Any, form: PrimFunc) -> PrimFunc | None:
    """Return the row form under its fastest recorded schedule, None if there is none."""
    mod = tvm.IRModule({"main": form})
    if not database.has_workload(mod):
        return None
    records = database.get_top_k(database.commit_workload(mod), 1)
    if not records or float(records[0].run_secs[0]) >= FAILED:
        return None
    schedule: Any = s_tir.Schedule(mod)
    records[0].trace.apply_to_schedule(schedule, remove_postproc=False)
    return schedule.mod["main"]
