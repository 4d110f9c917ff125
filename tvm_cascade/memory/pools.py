"""Allocation in several memories, such as fast SRAM on the chip and slower PSRAM outside: which buffer lies in which.

Every buffer lies in one memory for its whole lifetime. `accessed` bytes of it are read and written in an inference, each of
which costs the memory's cycles per byte. By `time` the sum of these is least, by `bytes` the sum of the memories' peaks.

Which memory: an integer program (HiGHS through scipy), in which a memory holds at every step no more live bytes than it has;
of two buffers that may share bytes (`OffsetConstraint`) the most that they can share counts once. Its optimum is a lower
bound. Where: `allocate` lays out every memory. Where a layout does not fit, its buffers may not all lie in that memory (a cut
of the program, which keeps the result exact where the allocator proves that none fits); after a few of these the memory is
taken to be smaller. Without scipy, and where it finds nothing, buffers are placed by accessed bytes per byte, most first.

Copies of weights (`memory.weights`) are part of the program: they compete with buffers for the memories where it is known what
reads of flash cost and time is the objective, and otherwise take what buffers leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, inf
from typing import Any

import numpy as np

from tvm_cascade.errors import InfeasibleError
from tvm_cascade.machine import Ram
from tvm_cascade.memory.allocate import AllocateOptions, allocate
from tvm_cascade.memory.bounds import max_live, shareable
from tvm_cascade.memory.highs import run_milp
from tvm_cascade.memory.problem import Allocation, Problem
from tvm_cascade.memory.weights import ALIGN, NO_COPIES, WeightColumns, WeightCopies, WeightProblem, fill
from tvm_cascade.search_monitor import monitor

_CUTS = 6  # layouts that fail before a memory is taken to be smaller
_FEW = 12  # buffers that are always searched for a layout
_SEARCHED = 1  # layouts of more that are searched for; the rest are the allocator's heuristics
_TRIES = 24  # layouts in all
_NODES = 2_000  # of the integer program
_SPARE = 0.25  # what all copies together are worth, of cycles or bytes, where they take what buffers leave
_ALL = -1  # where a memory's position is asked for: all of them together
_EFFORT = AllocateOptions(nodes=6_000, first_limit=3_000)


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """Buffers, the memories that they may lie in, fastest first, and what an access of each costs."""

    problem: Problem  # its capacity is ignored
    memories: tuple[Ram, ...]
    accessed: tuple[float, ...]  # bytes read and written in an inference, by position of the buffer
    joined: tuple[tuple[int, int], ...] = ()  # positions of buffers that lie in the same memory
    objective: str = "time"  # or "bytes"
    weights: WeightProblem | None = None  # that may be copied
    most: int | None = None  # bytes of all memories together, with copies of weights; None: as many as they have

    def bytes(self, peaks: Sequence[int], copies: WeightCopies) -> int:
        """Bytes of all memories, of which blocks take `peaks`."""
        if self.weights is None or not copies:
            return sum(peaks)
        return sum(peaks) + -peaks[copies.memory] % ALIGN + self.weights.bytes(copies)


@dataclass(frozen=True, slots=True)
class Placement:
    """The memory and offset of every buffer of the problem."""

    chosen: tuple[int, ...]  # position of the memory, in the order of `Problem.buffers`
    offsets: tuple[int, ...]  # bytes within the memory
    peaks: tuple[int, ...]  # bytes of each memory
    cycles: float  # of all accesses of buffers
    bound: float  # no placement has a smaller objective: cycles less those saved, or the sum of the peaks
    optimal: bool  # the objective is proven least
    copies: WeightCopies = NO_COPIES  # of weights
    saved: float = 0.0  # cycles by them; negative where it is not known what reads of flash cost

    @property
    def bytes(self) -> int:
        """Bytes of all memories."""
        return sum(self.peaks)


@dataclass(frozen=True, slots=True)
class PlacedPlan:
    """A plan that was placed in memories: what was asked, where its blocks lie, and what an inference takes."""

    placement: Placement
    problem: PlacementProblem
    cycles: float  # arithmetic, accesses of memories and of flash


def place(asked: PlacementProblem) -> Placement:
    """The placement of least objective, as far as the limits of the search go.

    Raises
    ------
    InfeasibleError
        No placement was found. `needed - available` is how many bytes all memories together fall short, at least.
    """
    search = _Search(asked)
    found = search.best()
    if found is None:
        raise _missing(asked)
    return found


def _missing(asked: PlacementProblem) -> InfeasibleError:
    """The error for buffers that do not fit: how far all memories together fall short, and what the last would need."""
    last = asked.memories[-1]
    wide = replace(asked, memories=(*asked.memories[:-1], replace(last, capacity=None)), weights=None, most=None)
    beyond, least = (_Search(replace(wide, objective=objective)).best() for objective in ("overflow", "bytes"))
    assert beyond is not None and least is not None
    capacity, names = sum(ram.capacity or 0 for ram in asked.memories), " and ".join(ram.name for ram in asked.memories)
    available = capacity if asked.most is None else min(asked.most, capacity)
    enough = max(beyond.peaks[-1] - (last.capacity or 0), 1)
    missing = least.bytes - available if least.bytes > available else enough
    more = f", {enough} more of {last.name} would do" if enough > missing and available == capacity else ""
    remedy = f"{missing} bytes missing in {names}{more}: give them more, or allow more work with --max-macs"
    most = sorted(asked.problem.buffers, key=lambda b: -b.size)[:2]
    return InfeasibleError(available + missing, available, [b.name or f"buffer {b.id}" for b in most], remedy)


@dataclass
class _Search:
    """Assignments of buffers to memories, laid out one after the other until one fits."""

    asked: PlacementProblem
    cuts: list[tuple[int, list[int]]] = field(
        default_factory=list
    )  # memory, and buffers that do not fit there together
    smaller: dict[int, int] = field(default_factory=dict)  # memory, or _ALL -> bytes that it is taken to have
    proven: bool = True  # whether only assignments were left out that have no layout

    def best(self) -> Placement | None:
        found, bound = [], -inf
        for chosen, copies, least in self._assignments():
            bound = least if bound == -inf else bound
            laid = self._laid_out(chosen, copies)
            if laid is not None:
                found.append(laid)
                break
        greedy = None if found and self.asked.objective == "time" else self._filled(self._laid_out(self._greedy()))
        alone = (self._filled(p) for p in self._alone()) if self.asked.objective != "time" or not found else ()
        found += [p for p in (greedy, *alone) if p is not None]
        if not found:
            return None
        best = min(found, key=lambda p: (self._objective(p), p.cycles - p.saved, p.bytes))
        met = self._objective(best) <= bound + 1e-6 * max(abs(bound), 1.0) + (_SPARE if self._fills else 0.0)
        exact = self.proven and best is found[0] and self.asked.objective == "time" and bound > -inf
        return replace(best, bound=bound, optimal=met or exact)

    @property
    def _fills(self) -> bool:
        """Whether copies of weights take what buffers leave, in place of competing with them."""
        return fills(self.asked)

    def _filled(self, placed: Placement | None) -> Placement | None:
        """A placement of buffers with copies of weights in what they leave."""
        if placed is None or self.asked.weights is None:
            return placed
        rooms = self.asked.memories
        if self.asked.most is not None:
            ends = [self.asked.most - placed.bytes + peak for peak in placed.peaks]
            rooms = tuple(
                replace(r, capacity=end if r.capacity is None else min(r.capacity, end))
                for r, end in zip(rooms, ends, strict=True)
            )
        copies = fill(self.asked.weights, rooms, placed.peaks)
        return replace(placed, copies=copies, saved=self.asked.weights.cycles(copies, self.asked.memories))

    def _objective(self, placed: Placement) -> float:
        if self.asked.objective == "time":
            return placed.cycles - (0.0 if self._fills else placed.saved)
        return placed.bytes if self.asked.objective == "bytes" else placed.peaks[-1]

    def _assignments(self) -> Iterator[tuple[Sequence[int], WeightCopies, float]]:
        """Assignments of least objective with their bounds, each in the light of how the layout of the one before failed."""
        for _ in range(_TRIES):
            solved = None if monitor().over() else _Program(self.asked, self.cuts, self.smaller).solve()
            if solved is None:
                return
            yield solved

    def _alone(self) -> Iterator[Placement | None]:
        """All buffers in one memory."""
        for m in range(len(self.asked.memories)):
            yield self._laid_out([m] * len(self.asked.problem.buffers))

    def _laid_out(self, chosen: Sequence[int], copies: WeightCopies = NO_COPIES) -> Placement | None:
        """The placement of an assignment; None, and what is learned of it, where a memory has no layout."""
        buffers, memories, weights = self.asked.problem.buffers, self.asked.memories, self.asked.weights
        offsets, peaks = [0] * len(buffers), [0] * len(memories)
        saved = 0.0 if weights is None else weights.cycles(copies, memories)
        for m, ram in enumerate(memories):
            held = [i for i, c in enumerate(chosen) if c == m]
            copied = weights.bytes(copies) if weights is not None and copies and copies.memory == m else 0
            made = self._layout(m, ram, held, copied)
            if made is None:
                return None
            peaks[m] = made.peak
            for i, offset in zip(held, made.offsets, strict=True):
                offsets[i] = offset
        taken, most = self.asked.bytes(peaks, copies), self.asked.most
        if most is not None and taken > most:
            self.proven, self.smaller[_ALL] = False, self.smaller.get(_ALL, most) - max(taken - most, most // 100, 4)
            return None
        cycles = sum(memories[c].cycles_per_byte * a for c, a in zip(chosen, self.asked.accessed, strict=True))
        return Placement(tuple(chosen), tuple(offsets), tuple(peaks), cycles, -inf, False, copies, saved)

    def _layout(self, m: int, ram: Ram, held: Sequence[int], copied: int) -> Allocation | None:
        """The layout of buffers in a memory beside `copied` bytes of weights; None, and what is learned, without one."""
        part = _part(self.asked.problem, held)
        made = allocate(part, optimise=False)
        room = None if ram.capacity is None else ram.capacity - copied
        room = room // ALIGN * ALIGN if room is not None and copied else room
        if room is None or made.peak <= room:
            tight = self.asked.objective != "time" or self.asked.most is not None
            return allocate(part, options=_EFFORT) if tight and len(held) <= _FEW else made
        searched = len(held) <= _FEW or len(self.cuts) < _SEARCHED
        try:
            return allocate(replace(part, capacity=room), optimise=searched, options=_EFFORT)
        except InfeasibleError as error:
            self.proven &= "no layout found" not in error.remedy and not copied
            if not copied:  # beside fewer copies these buffers may have a layout
                self.cuts.append((m, list(held)))
            if copied or len(self.cuts) > _CUTS:
                self.proven, room = False, self.smaller.get(m, ram.capacity or 0)
                self.smaller[m] = room - max(error.needed - error.available, room // 100, 4)
            return None

    def _greedy(self) -> list[int]:
        """Buffers by accessed bytes per byte, most first, in the first memory where the live bytes leave room."""
        asked, groups = self.asked, _groups(len(self.asked.problem.buffers), self.asked.joined)
        sizes = [b.size for b in asked.problem.buffers]
        order = sorted(groups, key=lambda g: (-sum(asked.accessed[i] for i in g) / sum(sizes[i] for i in g), g))
        held: list[list[int]] = [[] for _ in asked.memories]
        for group in order:
            for m, ram in enumerate(asked.memories):
                tried = sorted([*held[m], *group])
                fits = ram.capacity is None or max_live(_part(asked.problem, tried)) <= ram.capacity * 15 // 16
                if fits or m == len(asked.memories) - 1:
                    held[m] = tried
                    break
        return [next(m for m, own in enumerate(held) if i in own) for i in range(len(sizes))]


def fills(asked: PlacementProblem) -> bool:
    """Whether copies of weights take what buffers leave: where bytes are the objective, or a read of flash has no cost."""
    return asked.weights is not None and (asked.objective != "time" or asked.weights.flash is None)


def _part(problem: Problem, held: Sequence[int]) -> Problem:
    """The problem of some of the buffers alone."""
    buffers = tuple(problem.buffers[i] for i in held)
    ids = {b.id for b in buffers}
    pairs = tuple(f for f in problem.offset_constraints if f.reader in ids and f.writer in ids)
    return Problem(buffers, None, pairs)


def _groups(count: int, joined: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Positions in groups that lie in the same memory."""
    group = list(range(count))
    for a, b in joined:
        one, other = group[a], group[b]
        group = [one if g == other else g for g in group]
    return [[i for i in range(count) if group[i] == g] for g in dict.fromkeys(group)]


@dataclass(frozen=True)
class _Program:
    """The integer program: x[i, m] is 1 where buffer i lies in memory m; P[m] are live bytes; z[p, m] pairs that share."""

    asked: PlacementProblem
    cuts: Sequence[tuple[int, list[int]]]
    smaller: dict[int, int]

    @cached_property
    def pairs(self) -> list[tuple[int, int, int]]:
        """Positions of the buffers of constraints, and the most bytes that they share."""
        at = {b.id: (i, b) for i, b in enumerate(self.asked.problem.buffers)}
        least: dict[tuple[int, int], int] = {}
        for f in self.asked.problem.offset_constraints:
            (i, reader), (j, writer) = at[f.reader], at[f.writer]
            key = (min(i, j), max(i, j))
            shared = shareable(f, reader, writer)
            least[key] = min(shared, least.get(key, shared))
        return [(i, j, most) for (i, j), most in least.items() if most > 0]

    def solve(self) -> tuple[list[int], WeightCopies, float] | None:
        """An assignment, copies of weights and a lower bound of the objective; None without scipy, or where none was found."""
        try:
            from scipy import optimize, sparse
        except ImportError:
            return None
        scipy: Any = optimize
        count, machine = len(self.asked.problem.buffers), len(self.asked.memories)
        x, shared = count * machine, len(self.pairs) * machine
        copied = None
        if self.asked.weights is not None:
            copied = WeightColumns(self.asked.weights, self.asked.memories, x + shared + machine)
        columns = x + shared + machine + (copied.count if copied else 0)
        rows, low, high = self._rows(x, x + shared, copied)
        entries = [(r, c, v) for r, row in enumerate(rows) for c, v in row.items()]
        values, places = [v for _, _, v in entries], ([r for r, _, _ in entries], [c for _, c, _ in entries])
        matrix = sparse.csr_array((values, places), shape=(len(rows), columns))
        upper = np.ones(columns)
        for m, ram in enumerate(self.asked.memories):
            upper[x + shared + m] = self._room(m, ram)
        whole = np.zeros(columns)
        whole[:x] = 1
        costs = self._costs(x, x + shared, columns)
        if copied is not None:
            for column in range(copied.first, columns):
                upper[column], whole[column] = copied.most(column), copied.whole(column)
            gains = copied.gains()
            worth = _SPARE / max(sum(gains.values()), 1.0) if fills(self.asked) else 1.0
            for column, gain in gains.items():
                costs[column] = -gain * worth
        left = monitor().left()
        solution = run_milp(
            costs,
            constraints=scipy.LinearConstraint(matrix, low, high),
            integrality=whole,
            bounds=scipy.Bounds(np.zeros(columns), np.maximum(upper, 0)),
            options={"node_limit": _NODES, "mip_rel_gap": 0.0} | ({} if left == inf else {"time_limit": left}),
        )
        if solution.x is None:
            return None
        chosen = [int(np.argmax(solution.x[i * machine : (i + 1) * machine])) for i in range(count)]
        bound, copies = float(solution.mip_dual_bound), copied.copies(solution.x) if copied else NO_COPIES
        return chosen, copies, bound if self.asked.objective == "time" else float(ceil(bound - 0.5))

    def _room(self, m: int, ram: Ram) -> float:
        return self.smaller.get(m, inf if ram.capacity is None else ram.capacity)

    def _costs(self, x: int, peaks: int, columns: int) -> np.ndarray:
        costs, machine = np.zeros(columns), len(self.asked.memories)
        cycles = [a * ram.cycles_per_byte for a in self.asked.accessed for ram in self.asked.memories]
        if self.asked.objective == "time":
            costs[:x] = cycles
            return costs
        costs[:x] = np.array(cycles) * (0.25 / max(sum(cycles), 1.0))  # of equal bytes, the fewest cycles
        costs[peaks if self.asked.objective == "bytes" else peaks + machine - 1 :] = 1.0
        return costs

    def _rows(
        self, x: int, peaks: int, copied: WeightColumns | None
    ) -> tuple[list[dict[int, float]], list[float], list[float]]:
        """The rows of the program, with the least and the most that each may be."""
        buffers, machine = self.asked.problem.buffers, len(self.asked.memories)
        rows: list[dict[int, float]] = [{i * machine + m: 1.0 for m in range(machine)} for i in range(len(buffers))]
        low, high = [1.0] * len(rows), [1.0] * len(rows)

        def at_most(row: dict[int, float], most: float, least: float = -inf) -> None:
            rows.append(row)
            low.append(least)
            high.append(most)

        for a, b in self.asked.joined:
            for m in range(machine):
                at_most({a * machine + m: 1.0, b * machine + m: -1.0}, 0.0, 0.0)
        for p, (i, j, _) in enumerate(self.pairs):
            for m in range(machine):
                at_most({x + p * machine + m: 1.0, i * machine + m: -1.0}, 0.0)
                at_most({x + p * machine + m: 1.0, j * machine + m: -1.0}, 0.0)
        for live in _live_sets([(b.lower, b.upper) for b in buffers]):
            for m in range(machine):
                row: dict[int, float] = {i * machine + m: float(buffers[i].size) for i in live}
                row |= {
                    x + p * machine + m: -float(most) for p, (i, j, most) in enumerate(self.pairs) if {i, j} <= live
                }
                at_most(row | {peaks + m: -1.0}, 0.0)
        for m, held in self.cuts:
            at_most({i * machine + m: 1.0 for i in held}, len(held) - 1.0)
        for m, ram in enumerate(self.asked.memories if copied else ()):
            assert copied is not None
            at_most(copied.held(m) | {peaks + m: 1.0}, self._room(m, ram))
        if self.asked.most is not None:
            whole = {peaks + m: 1.0 for m in range(machine)}
            for m in range(machine if copied else 0):
                whole |= copied.held(m) if copied else {}
            at_most(whole, self.smaller.get(_ALL, self.asked.most))
        for row, most in copied.rows() if copied else ():
            at_most(row, most)
        return rows, low, high


def _live_sets(lives: Sequence[tuple[int, int]]) -> list[set[int]]:
    """The positions that are live at once, at every step where that is not part of another step's."""
    sets = [{i for i, (lower, upper) in enumerate(lives) if lower <= t < upper} for t in sorted({l for l, _ in lives})]
    return [s for k, s in enumerate(sets) if not any(s < other for other in sets[max(k - 1, 0) : k + 2])]
