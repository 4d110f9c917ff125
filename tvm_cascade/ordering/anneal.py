"""Simulated annealing for an operator order, from the best known order: for regions too large for exact search.

A move takes an operator to another step between its predecessors and successors. The cost is the bytes in use above
`goal`, summed over the steps: `goal` lies `margin` below the best peak, so the cost is 0 exactly if an order is better
by that much, and a move has to be counted only between both steps. Moves that raise the cost are accepted with
probability `exp(-change / heat)`, and the heat falls to 0. An order below the best peak is kept, and the goal lowered.
The number of moves ends the search; all numbers are integers, so results do not depend on the machine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from math import log

import numpy as np

from tvm_cascade import native
from tvm_cascade.ordering.masks import members
from tvm_cascade.ordering.model import Model
from tvm_cascade.ordering.order_tables import OUT_OF_MEMORY, Tables
from tvm_cascade.ordering.region import Region
from tvm_cascade.search_monitor import monitor

SCALE = 1024
# of an exponential distribution, times `SCALE`
DRAWS = tuple(round(-log((k + 0.5) / 4096) * SCALE) for k in range(4096))
POLLED = 4096  # moves after which the time is looked at
_REACH = 40  # steps that an operator moves at most


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an annealing run."""

    lowest: int  # bytes: the run ends at an order of that peak
    margin: int  # bytes by which it aims below the best peak
    moves: int  # tried
    heat: int  # bytes, at the start
    reach: int = _REACH  # steps
    seed: int = 1


def settings(m: Model, region: Region, lowest: int, peak: int, moves: int, seed: int) -> Settings:
    """Choose settings to suit the tensor sizes in a region."""
    sizes = [m.demand[op] for op in members(region.after & ~region.before)]
    return Settings(lowest, max(1, peak // 256), moves, 2 * sum(sizes) // max(1, len(sizes)), seed=seed)


def anneal_in_rounds(m: Model, region: Region, order: Sequence[int], lowest: int, moves: int, rounds: int) -> list[int]:
    """Run `anneal` several times, each from the best order so far, with `moves` in total, until a peak of `lowest`
    bytes.

    On random networks with 100 to 1,000 operators, four rounds found lower peaks than a single round with as many
    moves.
    """
    best = list(order)
    for k in range(rounds):
        if (peak := m.peak(best, region.before)) <= lowest:
            break
        monitor().report("order, annealing", k * moves // rounds, moves, peak, lowest)
        best = anneal(
            m, region, best, settings(m, region, lowest, peak, moves // rounds, seed=rounds + k), monitor().over
        )
    return best


class _Settings(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in ("lowest", "margin", "moves", "reach", "heat", "draws", "scale", "polled")),
        ("seed", c_uint64),
    ]


def anneal(m: Model, region: Region, order: Sequence[int], asked: Settings, over: Callable[[], bool]) -> list[int]:
    """Search an order for the region with a peak at most that of `order`, until `over()` returns True.

    An exception in `over`, or Ctrl-C, ends the search and is raised again here.
    """
    t = Tables(m, region, asked.moves)
    c = _Settings(
        asked.lowest, asked.margin, asked.moves, asked.reach, asked.heat, len(DRAWS), SCALE, POLLED, asked.seed
    )
    steps, draws = np.array([t.number[op] for op in order], np.int64), np.array(DRAWS, np.int64)
    with native.Stop(over) as stop:
        answer = native.library().tvm_cascade_anneal_order(
            ctypes.byref(t), ctypes.byref(c), c_void_p(draws.ctypes.data), c_void_p(steps.ctypes.data), stop.function
        )
    if answer == OUT_OF_MEMORY:
        raise MemoryError("annealing of the order ran out of memory")
    return [t.ops[k] for k in steps.tolist()]
