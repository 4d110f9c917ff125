"""`tune_kernels`: a prepared graph whose row kernels MetaSchedule has tuned for the machine that this runs on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from tvm_cascade.passes.extract_graph import with_kernels
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.tuning.metaschedule import Operator, Search, Tuned, plain, tune

Prepared = TypeVar("Prepared", bound=PreparedGraph)


@dataclass(frozen=True)
class TuningReport:
    """What tuning did: operators with tuned kernels, different kernels among all, candidates measured now."""

    tuned: int
    forms: int
    measured: int
    reasons: dict[str, str]  # operator -> why it keeps its generic kernel


def tune_kernels(
    prepared: Prepared,
    folder: str | Path,
    search: Search | None = None,
    *,
    vectors: bool = True,
    progress: Callable[[str], None] = lambda _text: None,
) -> tuple[Prepared, TuningReport]:
    """`prepared` with tuned kernels where there are any, from the records in `folder` or from new measurements.

    Plans of the two differ by the scratch of the tuned kernels at most. Without `vectors` kernels have plain loops, for
    C compilers. Kernels that count their work, and parts of rows, keep the order of loops and lose the vectors.
    Raises what `schedules.tuning.metaschedule.tune` raises.
    """
    made = prepared.extracted
    operators = [
        None if func is None or access is None or kernel is None else Operator(op.name, func, constants, access, kernel)
        for op, func, constants, access, kernel in zip(
            prepared.graph.ops, made.funcs, made.constants, made.accesses, made.kernels, strict=True
        )
    ]
    found = tune(operators, folder, search, progress)
    slow = [None if k is None else plain(k) for k in found.kernels]
    fast = found.kernels if vectors else slow
    kernels = _merged(prepared.kernels, fast)
    extracted = replace(made, kernels=_merged(made.kernels, slow))
    changed = replace(prepared, graph=with_kernels(prepared.graph, kernels), extracted=extracted, kernels=kernels)
    return changed, _report(found)


def _merged(old: tuple[RowKernel | None, ...], new: object) -> tuple[RowKernel | None, ...]:
    assert isinstance(new, (list, tuple))
    return tuple(b if b is not None else a for a, b in zip(old, new, strict=True))


def _report(found: Tuned) -> TuningReport:
    tuned = sum(k is not None for k in found.kernels)
    return TuningReport(tuned, found.forms, found.measured, found.reasons)
