"""`tune_kernels`: tunes the row kernels of a prepared graph with MetaSchedule, measured on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tvm_cascade.passes.extract_graph import with_kernels
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.schedules.tuning.metaschedule import Operator, Search, Tuned, plain, tune

Prepared = TypeVar("Prepared", bound=PreparedGraph)


def tune_kernels(
    prepared: Prepared,
    folder: str | Path,
    search: Search | None = None,
    *,
    vectors: bool = True,
    progress: Callable[[str], None] = lambda _text: None,
) -> tuple[Prepared, Tuned]:
    """Replace row kernels by tuned ones, from the records in `folder` or from new measurements on this machine.

    Plans of the result differ from those of `prepared` only by the scratch of the tuned kernels. The generic row kernels
    get the loop order of the tuned ones, without vectorization.

    Parameters
    ----------
    folder : path
        MetaSchedule's records; created if it does not exist.
    search : Search, optional
        Limits of the search; `trials` of 0 uses existing records only.
    vectors : bool
        False replaces vector operations by plain loops, for C compilers.

    Raises `UsageError` if the records cannot be read, `MissingToolError` without a working MetaSchedule.
    """
    made = prepared.extracted
    operators = [
        None if o is None else Operator(op.name, o.func, o.constants, o.access, o.kernel)
        for op, o in zip(prepared.graph.ops, made.operators, strict=True)
    ]
    found = tune(operators, folder, search, progress)
    slow = [None if k is None else plain(k) for k in found.kernels]
    fast = found.kernels if vectors else slow
    kernels = tuple(new or old for old, new in zip(prepared.kernels, fast, strict=True))
    generic = tuple(o and replace(o, tuned=new) for o, new in zip(made.operators, slow, strict=True))
    graph, extracted = with_kernels(prepared.graph, kernels), replace(made, operators=generic)
    return replace(prepared, graph=graph, extracted=extracted, kernels=kernels), found
