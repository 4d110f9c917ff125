"""The searches for orders in the compiled library: passes a region's tables to C and reads the results."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from ctypes import c_int, c_int64, c_uint64, c_void_p

import numpy as np

from tvm_cascade.ordering.anneal_settings import DRAWS, POLLED, SCALE, Settings
from tvm_cascade.ordering.masks import members
from tvm_cascade.ordering.model import Model
from tvm_cascade.ordering.region import Region

_FOUND, _OUT_OF_MEMORY = 1, -2
_ARRAYS = (
    "demand", "outliving", "joined", "beside", "size", "begun", "reader_start", "reader", "writer_start", "writer",
    "before_start", "before", "after_start", "after", "dying_start", "dying", "over_start", "over",
)  # fmt: skip


class Tables(ctypes.Structure):
    """A region as a C structure (`native/order_tables.h`), with its arrays; operators and storages are numbered from 0."""

    _fields_ = [("n", c_int64), ("live", c_int64), *((name, c_void_p) for name in _ARRAYS)]

    def __init__(self, m: Model, region: Region) -> None:
        inside = region.after & ~region.before
        self.ops = members(inside)
        self.number = {op: k for k, op in enumerate(self.ops)}
        kept: dict[int, int] = {}  # storages, in order of appearance

        def dies(s: int) -> bool:
            return not m.storages[s].live_to_end and not m.storages[s].readers & ~region.after

        def known(storages: Iterable[int]) -> list[int]:
            return [kept.setdefault(s, len(kept)) for s in storages]

        dying = [known(filter(dies, m.reads[op])) for op in self.ops]
        over = [[(*known([s]), saved) for s, saved in m.overwrites[op] if dies(s)] for op in self.ops]
        joined = [known([m.part[op][0]])[0] if m.part[op][0] >= 0 else -1 for op in self.ops]
        storages = [m.storages[s] for s in kept]
        before = [[self.number[p] for p in members(m.predecessors[op] & inside)] for op in self.ops]
        after = [[self.number[s] for s in m.successors[op] if s in self.number] for op in self.ops]
        readers, writers = ([[self.number[op] for op in members(mask & inside)] for mask in masks]
                            for masks in ([s.readers for s in storages], [s.writers for s in storages]))  # fmt: skip
        ragged = {"reader": readers, "writer": writers, "before": before, "after": after, "dying": dying, "over": over}
        arrays: dict[str, object] = {
            "demand": [m.demand[op] for op in self.ops],
            "outliving": [m.outliving_bytes[op] for op in self.ops],
            "joined": joined,
            "beside": [m.part[op][1] for op in self.ops],
            "size": [s.size for s in storages],
            "begun": [bool(s.writers & region.before) for s in storages],
        }
        for name, rows in ragged.items():
            arrays[f"{name}_start"] = np.cumsum([0, *map(len, rows)])
            arrays[name] = [entry for row in rows for entry in row]
        self.arrays = {name: np.ascontiguousarray(values, np.int64) for name, values in arrays.items()}
        super().__init__(len(self.ops), region.live, **{name: a.ctypes.data for name, a in self.arrays.items()})


class _Settings(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in ("lowest", "margin", "moves", "reach", "heat", "draws", "scale", "polled")),
        ("seed", c_uint64),
    ]


def fits(m: Model, factor: int) -> bool:
    """Return True if sums of all bytes, times the operators or `factor`, stay within 64 bits."""
    total = sum(m.demand) + m.live(0)
    return total * max(factor, 1 << 14, len(m.demand) << 10) < 1 << 62


def anneal(
    library: ctypes.CDLL, m: Model, region: Region, order: Sequence[int], asked: Settings, over: Callable[[], bool]
) -> list[int]:
    """Run `anneal_in_python`, compiled. An exception in `over`, or Ctrl-C, ends the search and is raised again here."""
    t = Tables(m, region)
    c = _Settings(
        asked.lowest, asked.margin, asked.moves, asked.reach, asked.heat, len(DRAWS), SCALE, POLLED, asked.seed
    )
    steps, draws = np.array([t.number[op] for op in order], np.int64), np.array(DRAWS, np.int64)
    with _Stop(over) as stop:
        answer = library.tvm_cascade_anneal_order(
            ctypes.byref(t), ctypes.byref(c), c_void_p(draws.ctypes.data), c_void_p(steps.ctypes.data), stop.function
        )
    if answer == _OUT_OF_MEMORY:
        raise MemoryError("annealing of the order ran out of memory")
    return [t.ops[k] for k in steps.tolist()]


def sets(
    library: ctypes.CDLL,
    m: Model,
    region: Region,
    asked: tuple[int, int, bool],
    limits: tuple[int, int, int, int],
    over: Callable[[], bool],
) -> tuple[tuple[int, ...] | None, bool, int, int, int]:
    """Search as `dp.run` does, compiled, and return the fields for `dp.Run`.

    `asked` is budget, floor and dominance. An exception in `over` is raised again here.
    """
    t = Tables(m, region)
    budget, floor, dominance = asked
    order, told = np.zeros(t.n + 1, np.int64), (c_int64 * 4)()
    with _Stop(over) as stop:
        answer = library.tvm_cascade_order_sets(
            ctypes.byref(t), c_int64(budget), c_int64(floor), c_int(dominance), (c_int64 * 4)(*limits), stop.function,
            c_void_p(order.ctypes.data), told,
        )  # fmt: skip
    if answer == _OUT_OF_MEMORY:
        raise MemoryError("the search for an order ran out of memory: give it less work")
    found = tuple(t.ops[k] for k in order[: t.n].tolist()) if answer == _FOUND else None
    return found, bool(told[0]), told[1], told[2], told[3]


class _Stop:
    """A C function that tells whether a search has to end; an exception raised meanwhile is raised again afterwards."""

    def __init__(self, over: Callable[[], bool]) -> None:
        self.raised: list[BaseException] = []

        def stop() -> int:
            try:
                return over()
            except BaseException as error:
                self.raised.append(error)
                return True

        self.function = ctypes.CFUNCTYPE(c_int)(stop)

    def __enter__(self) -> _Stop:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.raised:
            raise self.raised[0]
