"""Allocation in several memories, such as fast SRAM on the chip and slower PSRAM outside: which buffer lies in which.

Every buffer lies in one pool for its whole lifetime. A pool has a capacity and a cost per byte accessed; a buffer has a
number of bytes that the network reads and writes in it over one inference. The total cost is minimized. Each pool is
laid out by `allocate`, so every placement that is returned fits.

The method is branch and bound over the buffers by decreasing number of accessed bytes, cheapest pool first. A branch
ends where the live bytes of a pool exceed its capacity; at the leaves `allocate` lays out the pools. On small problems
the result is proven optimal; on larger ones the search ends after `leaves` leaves with the best placement so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tvm_cascade.errors import InfeasibleError
from tvm_cascade.memory.allocate import AllocateOptions, allocate
from tvm_cascade.memory.bounds import max_live
from tvm_cascade.memory.problem import Allocation, Buffer, Problem


@dataclass(frozen=True, slots=True)
class Pool:
    """A memory, such as on-chip SRAM or external PSRAM."""

    name: str
    capacity: int  # bytes
    cost: float  # per byte accessed, at least 0


@dataclass(frozen=True, slots=True)
class Placement:
    """The memory and offset of every buffer of the problem."""

    pools: tuple[int, ...]  # index of the pool, in the order of `Problem.buffers`
    offsets: tuple[int, ...]  # bytes within the pool
    peaks: tuple[int, ...]  # bytes of each pool
    cost: float  # sum over buffers of bytes accessed times the pool's cost per byte
    optimal: bool  # cost proven minimal


def place_in_pools(
    problem: Problem, pools: Sequence[Pool], accessed: Mapping[int, int], leaves: int = 200
) -> Placement:
    """The cheapest placement of the buffers of `problem` in several memories.

    Each pool has a capacity, that of `problem` is ignored. `accessed` maps the id of a buffer to the bytes that one
    inference reads and writes in it, 0 if it is missing. At most `leaves` placements are laid out.

    Raises
    ------
    InfeasibleError
        No placement was found.
    """
    search = _Search(problem, pools, [accessed.get(b.id, 0) for b in problem.buffers], leaves)
    search.run()
    if search.best is None:
        most = max(pools, key=lambda p: p.capacity)
        need = max_live(replace(problem, capacity=None))
        raise InfeasibleError(need, sum(p.capacity for p in pools), [most.name], "enlarge a pool or shorten lifetimes")
    return search.best


class _Search:
    """Branch and bound over the memory of each buffer."""

    def __init__(self, problem: Problem, pools: Sequence[Pool], weight: Sequence[int], leaves: int) -> None:
        self.problem, self.pools, self.weight, self.leaves = problem, pools, weight, leaves
        buffers = problem.buffers
        self.order = sorted(range(len(buffers)), key=lambda i: (-weight[i], -buffers[i].size, i))
        self.cheapest = sorted(range(len(pools)), key=lambda p: (pools[p].cost, p))
        least = min(p.cost for p in pools)
        self.rest = [0.0] * (len(buffers) + 1)
        for k in reversed(range(len(buffers))):
            self.rest[k] = self.rest[k + 1] + least * weight[self.order[k]]
        self.best: Placement | None = None
        self.exhausted = True

    def run(self) -> None:
        self._descend(0, 0.0, [[] for _ in self.pools], [0] * len(self.problem.buffers))
        if self.best is not None:
            self.best = replace(self.best, optimal=self.exhausted)

    def _descend(self, k: int, cost: float, held: list[list[Buffer]], chosen: list[int]) -> None:
        if self.best is not None and cost + self.rest[k] >= self.best.cost:
            return
        if self.leaves <= 0:
            self.exhausted = False
            return
        if k == len(self.order):
            self._leaf(cost, held, chosen)
            return
        i = self.order[k]
        for p in self.cheapest:
            held[p].append(self.problem.buffers[i])
            chosen[i] = p
            if max_live(self._part(held[p], p)) <= self.pools[p].capacity:
                self._descend(k + 1, cost + self.pools[p].cost * self.weight[i], held, chosen)
            held[p].pop()

    def _part(self, buffers: Sequence[Buffer], pool: int) -> Problem:
        ids = {b.id for b in buffers}
        follows = tuple(f for f in self.problem.offset_constraints if f.reader in ids and f.writer in ids)
        return Problem(tuple(buffers), self.pools[pool].capacity, follows)

    def _leaf(self, cost: float, held: list[list[Buffer]], chosen: list[int]) -> None:
        self.leaves -= 1
        found: list[Allocation] = []
        for p, buffers in enumerate(held):
            try:
                found.append(allocate(self._part(buffers, p), options=AllocateOptions(nodes=5_000)))
            except InfeasibleError as e:
                self.exhausted &= "no layout found" not in e.remedy
                return
        place = {b.id: o for p, a in enumerate(found) for b, o in zip(held[p], a.offsets, strict=True)}
        offsets = tuple(place[b.id] for b in self.problem.buffers)
        self.best = Placement(tuple(chosen), offsets, tuple(a.peak for a in found), cost, False)
