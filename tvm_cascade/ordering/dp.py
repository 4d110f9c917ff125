"""Dynamic programming over scheduled sets, one layer per number of operators run (Serenity, section 3.1, Algorithm 1).

A run has a budget: steps beyond are not taken (soft budgeting, section 3.2). The work is bounded too: a layer with more
states than the rest of the work allows keeps only the best, and the run becomes a beam search without a proof. The
limit is on steps tried, so results do not depend on the machine; a limit on time (`search_monitor`), if there is one,
ends the run without an order.

Dominance, not in the paper: an operator that is ready, leaves no more memory behind than there was, and needs no more
than the peak so far (or than a known lower bound of the final peak) is run at once and its alternatives are dropped.
Exact: for every superset T of the present set S without it, `mu(T + u) - mu(T) <= mu(S + u) - mu(S) <= 0`, since with
more operators done more inputs die at u, so in any completion u moves to the front without raising a later step.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np

from tvm_cascade import native
from tvm_cascade.ordering.model import Model
from tvm_cascade.ordering.order_tables import OUT_OF_MEMORY, Tables
from tvm_cascade.ordering.region import Region
from tvm_cascade.search_monitor import monitor

POLLED = 64  # states of a layer after which the time is looked at
NARROWEST = 8  # least beam width: states of a layer that are kept whatever the limit on work
_FOUND = 1  # the library's answer
_MOST_WORK = 1 << 29  # steps up to which widths are computed within 64 bits
WIDEST = 500_000  # states of a layer that are kept at most, so that they fit into memory


@dataclass(frozen=True, slots=True)
class Run:
    """A dynamic program's result."""

    order: tuple[int, ...] | None  # None: no order within the budget was found
    complete: bool  # nothing was dropped but for the budget: `order` is optimal, or none exists
    exceeded: int  # bytes: the least demanding step that the budget forbade
    states: int
    steps: int  # operators tried in a state


def run(m: Model, region: Region, budget: int, floor: int, work: int, dominance: bool = True) -> Run:
    """Search the region's order with the lowest peak, within `budget` bytes.

    Parameters
    ----------
    floor : int
        Bytes that are unavoidable in another region; peaks up to this count as equal.
    work : int
        About how many steps to try. A layer may take four times its share of what is left.
    dominance : bool
        Run a ready operator at once if that is proven not to raise the peak of any completion.
    """
    t = Tables(m, region)
    order, told = np.zeros(t.n + 1, np.int64), (c_int64 * 4)()
    limits = (c_int64 * 4)(min(work, _MOST_WORK), NARROWEST, WIDEST, POLLED)
    with native.Stop(monitor().over) as stop:
        answer = native.library().tvm_cascade_order_sets(
            ctypes.byref(t), c_int64(budget), c_int64(floor), c_int(dominance), limits, stop.function,
            c_void_p(order.ctypes.data), told,
        )  # fmt: skip
    if answer == OUT_OF_MEMORY:
        raise MemoryError("the search for an order ran out of memory: give it less work")
    found = tuple(t.ops[k] for k in order[: t.n].tolist()) if answer == _FOUND else None
    return Run(found, bool(told[0]), told[1], told[2], told[3])
