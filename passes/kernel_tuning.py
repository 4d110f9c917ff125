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

    Parameters
    ----------
    prepared : PreparedGraph
        The graph and its kernels, as `prepare_graph` returns them.
    folder : path
        MetaSchedule's records; created if it does not exist.
    search : Search, optional
        Limits of the search; `trials` of 0 uses existing records only.
    vectors : bool
        False replaces vector operations by plain loops, for C compilers.
    progress : function
        Called with a text line at every step of long work.

    Returns
    -------
    tuple of PreparedGraph and Tuned
        `prepared` with tuned kernels, whose plans differ from its own only by their scratch, and what was measured. Its
        generic row kernels get the loop order of the tuned ones, without vectorization.

    Raises
    ------
    UsageError, MissingToolError
        The records cannot be read; there is no working MetaSchedule.
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
