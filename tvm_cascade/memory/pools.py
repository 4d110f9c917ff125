"""Allocation in several memories, such as fast SRAM on the chip and slower PSRAM outside: which buffer lies in which.

Every buffer lies in a single memory for the whole lifetime. Of each buffer `accessed` bytes are read and written in an
inference, each at the memory's cycles per byte. The objective `time` minimizes the sum of these cycles, `bytes` the sum
of the memories' peaks.

Which memory: an integer program (HiGHS through scipy), in which a memory never holds more live bytes than its capacity;
for two buffers that may share bytes (`OffsetConstraint`) the most shared bytes count once. The optimum is a lower
bound. Where: `allocate` lays out every memory. If a layout does not fit, the conflicting buffers (`memory.conflicts`),
or all of them, may not lie in that memory together: a cut in the program, which keeps the result exact if the allocator
proves that no layout fits. After a few cuts on all buffers the memory is taken to be smaller. Without scipy, or without
a solution, buffers are placed by accessed bytes per byte, most first.

Copies of weights (`memory.weights`) are part of the program: they compete with buffers for the memories if the cost of
flash reads is known and time is the objective, and otherwise take the space left by buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from tvm_cascade.errors import InfeasibleError
from tvm_cascade.machine import Ram
from tvm_cascade.memory.allocate import NO_LAYOUT, AllocateOptions, allocate
from tvm_cascade.memory.bounds import max_live
from tvm_cascade.memory.conflicts import conflicts, part
from tvm_cascade.memory.placement import Placement, PlacementProblem, fills
from tvm_cascade.memory.placement_program import ALL, SPARE, PlacementProgram
from tvm_cascade.memory.problem import Allocation
from tvm_cascade.memory.weights import ALIGN, NO_COPIES, WeightCopies, fill
from tvm_cascade.search_monitor import monitor

_CUTS = 6  # layouts that fail without a conflict before a memory is taken to be smaller
_FEW = 12  # buffers that are always searched for a layout
_SEARCHED = 1  # layouts of more that are searched for; the rest are the allocator's heuristics
_TRIES = 24  # layouts in all
_EFFORT = AllocateOptions(6_000, first_limit=3_000, placements=300_000)


def place(asked: PlacementProblem) -> Placement:
    """Search the placement with the least objective, within the limits on search.

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
    """Build the error for buffers that do not fit: the bytes missing in all memories together, and in the last memory."""
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
    """Assignments of buffers to memories, laid out in turn until a layout fits."""

    asked: PlacementProblem
    # memory, and buffers that do not fit there together
    cuts: list[tuple[int, list[int]]] = field(default_factory=list)
    smaller: dict[int, int] = field(default_factory=dict)  # memory, or ALL -> bytes that it is taken to have
    failed: int = 0  # layouts that failed, of which no conflict is known
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
        met = self._objective(best) <= bound + 1e-6 * max(abs(bound), 1.0) + (SPARE if self._fills else 0.0)
        exact = self.proven and best is found[0] and self.asked.objective == "time" and bound > -inf
        return replace(best, bound=bound, optimal=met or exact)

    @property
    def _fills(self) -> bool:
        """Return True if copied weights fill the space left by buffers, instead of competing with them."""
        return fills(self.asked)

    def _filled(self, placed: Placement | None) -> Placement | None:
        """Fill the space left by a placement with copies of weights."""
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
        """Yield assignments with the least objective and their bounds, each learning from the previous layout's
        failure.
        """
        for _ in range(_TRIES):
            solved = None if monitor().over() else PlacementProgram(self.asked, self.cuts, self.smaller).solve()
            if solved is None:
                return
            yield solved

    def _alone(self) -> Iterator[Placement | None]:
        """Yield the placements of all buffers in a single memory."""
        for m in range(len(self.asked.memories)):
            yield self._laid_out([m] * len(self.asked.problem.buffers))

    def _laid_out(self, chosen: Sequence[int], copies: WeightCopies = NO_COPIES) -> Placement | None:
        """Lay out an assignment; if a memory has no layout, learn from the failure and return None."""
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
            self.proven, self.smaller[ALL] = False, self.smaller.get(ALL, most) - max(taken - most, most // 100, 4)
            return None
        cycles = sum(memories[c].cycles_per_byte * a for c, a in zip(chosen, self.asked.accessed, strict=True))
        return Placement(tuple(chosen), tuple(offsets), tuple(peaks), cycles, -inf, False, copies, saved)

    def _layout(self, m: int, ram: Ram, held: Sequence[int], copied: int) -> Allocation | None:
        """Lay out buffers in a memory beside `copied` bytes of weights; if there is no layout, learn from the failure
        and return None.
        """
        own = part(self.asked.problem, held)
        made = allocate(own, optimise=False)
        room = None if ram.capacity is None else ram.capacity - copied
        room = room // ALIGN * ALIGN if room is not None and copied else room
        if room is None or made.peak <= room:
            tight = self.asked.objective != "time" or self.asked.most is not None
            return allocate(own, options=_EFFORT) if tight and len(held) <= _FEW else made
        searched = len(held) <= _FEW or self.failed < _SEARCHED
        try:
            return allocate(replace(own, capacity=room), optimise=searched, options=_EFFORT)
        except InfeasibleError as error:
            if not copied:  # beside fewer copies these buffers may have a layout
                few = conflicts(own, room)
                self.cuts += [(m, [held[i] for i in conflict]) for conflict in few]
                if few:
                    return None
                self.cuts.append((m, list(held)))
            self.failed += 1
            self.proven &= NO_LAYOUT not in error.remedy and not copied
            if copied or self.failed > _CUTS:
                self.proven, room = False, self.smaller.get(m, ram.capacity or 0)
                self.smaller[m] = room - max(error.needed - error.available, room // 100, 4)
            return None

    def _greedy(self) -> list[int]:
        """Choose a memory for each buffer: by accessed bytes per byte, most first, the first memory with room for the
        live bytes.
        """
        asked, groups = self.asked, _groups(len(self.asked.problem.buffers), self.asked.joined)
        sizes = [b.size for b in asked.problem.buffers]
        order = sorted(groups, key=lambda g: (-sum(asked.accessed[i] for i in g) / sum(sizes[i] for i in g), g))
        held: list[list[int]] = [[] for _ in asked.memories]
        for group in order:
            for m, ram in enumerate(asked.memories):
                tried = sorted([*held[m], *group])
                fits = ram.capacity is None or max_live(part(asked.problem, tried)) <= ram.capacity * 15 // 16
                if fits or m == len(asked.memories) - 1:
                    held[m] = tried
                    break
        return [next(m for m, own in enumerate(held) if i in own) for i in range(len(sizes))]


def _groups(count: int, joined: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Group positions that must lie in the same memory."""
    group = list(range(count))
    for a, b in joined:
        one, other = group[a], group[b]
        group = [one if g == other else g for g in group]
    return [[i for i in range(count) if group[i] == g] for g in dict.fromkeys(group)]
