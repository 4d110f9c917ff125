"""The memory of every buffer, as an integer program (HiGHS through scipy); `memory.pools` explains the purpose."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf
from typing import Any

import numpy as np

from tvm_cascade.machine import Ram
from tvm_cascade.memory.bounds import disjoint, least_sharing, partners_of, shareable, shared_end
from tvm_cascade.memory.highs import run_milp
from tvm_cascade.memory.placement import PlacementProblem, fills
from tvm_cascade.memory.problem import OffsetConstraint
from tvm_cascade.memory.weights import NO_COPIES, WeightColumns, WeightCopies
from tvm_cascade.search_monitor import monitor

ALL = -1  # where a memory's position is asked for: all of them together
SPARE = 0.25  # what all copies together are worth, of cycles or bytes, where they take what buffers leave
_NODES = 2_000  # of the integer program


@dataclass(frozen=True)
class PlacementProgram:
    """The integer program: x[i, m] is 1 if buffer i lies in memory m; P[m] are live bytes; z[p, m] pairs that share."""

    asked: PlacementProblem
    cuts: Sequence[tuple[int, list[int]]]
    smaller: dict[int, int]

    @cached_property
    def constraints(self) -> dict[frozenset[int], OffsetConstraint]:
        """Choose for each pair of buffers able to share bytes, by id, the constraint with the fewest bytes."""
        by_id = {b.id: b for b in self.asked.problem.buffers}
        pairs = least_sharing(by_id, self.asked.problem.offset_constraints)
        return {k: f for k, f in pairs.items() if shareable(f, by_id[f.reader], by_id[f.writer]) > 0}

    @cached_property
    def pairs(self) -> list[tuple[int, int, int]]:
        """Return reader's and writer's positions for each entry in `constraints`, and the most bytes shared."""
        buffers = self.asked.problem.buffers
        at = {b.id: i for i, b in enumerate(buffers)}
        own = [(at[f.reader], at[f.writer], f) for f in self.constraints.values()]
        return [(r, w, shareable(f, buffers[r], buffers[w])) for r, w, f in own]

    def covering(self, live: Collection[int]) -> Iterator[tuple[list[int], int]]:
        """Yield positions in `pairs`, among buffers live at once, that share at most so many bytes with the reader
        (`bounds.covered`).
        """
        buffers, readers = self.asked.problem.buffers, dict[int, list[tuple[int, int, OffsetConstraint]]]()
        for p, ((r, w, _), f) in enumerate(zip(self.pairs, self.constraints.values(), strict=True)):
            if r in live and w in live:
                readers.setdefault(r, []).append((shared_end(f, buffers[r], buffers[w]), p, f))
        partners = partners_of(self.constraints)
        for own in readers.values():
            if len(own) == 1 or not disjoint([f.writer for *_, f in own], partners):
                continue
            own.sort(key=lambda entry: entry[:2])
            for k, (end, *_) in enumerate(own):
                group = [p for _, p, _ in own[: k + 1]]
                if sum(self.pairs[p][2] for p in group) > end and (k + 1 == len(own) or own[k + 1][0] > end):
                    yield group, end

    def solve(self) -> tuple[list[int], WeightCopies, float] | None:
        """Find an assignment, copies of weights and a lower bound on the objective; None without scipy, or without a
        solution.
        """
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
            worth = SPARE / max(sum(gains.values()), 1.0) if fills(self.asked) else 1.0
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
        """Build the rows of the program, each with the least and the most value."""
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
                for group, most in self.covering(live):
                    at_most({x + p * machine + m: float(self.pairs[p][2]) for p in group}, most)
        for m, held in self.cuts:
            at_most({i * machine + m: 1.0 for i in held}, len(held) - 1.0)
        for m, ram in enumerate(self.asked.memories if copied else ()):
            assert copied is not None
            at_most(copied.held(m) | {peaks + m: 1.0}, self._room(m, ram))
        if self.asked.most is not None:
            whole = {peaks + m: 1.0 for m in range(machine)}
            for m in range(machine if copied else 0):
                whole |= copied.held(m) if copied else {}
            at_most(whole, self.smaller.get(ALL, self.asked.most))
        for row, most in copied.rows() if copied else ():
            at_most(row, most)
        return rows, low, high


def _live_sets(lives: Sequence[tuple[int, int]]) -> list[set[int]]:
    """List the sets of positions live at once, at every step, without sets contained in a neighbour's."""
    sets = [{i for i, (lower, upper) in enumerate(lives) if lower <= t < upper} for t in sorted({l for l, _ in lives})]
    return [s for k, s in enumerate(sets) if not any(s < other for other in sets[max(k - 1, 0) : k + 2])]
