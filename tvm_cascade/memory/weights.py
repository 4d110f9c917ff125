"""Weight copies in RAM as part of a placement: the choice, and the savings.

A weight lies in flash. Copied once (*hot*), it takes RAM for the whole inference. *Prefetched*, it is copied in every
inference into a half of a double buffer while the previous segment runs with weights in the other half: the buffer
takes twice the bytes copied by the largest segment. All copies for a network lie in the same memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tvm_cascade.machine import Ram

ALIGN = 8  # bytes, of every copy


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant in flash."""

    size: int  # bytes
    reads: float  # bytes of it that kernels read in an inference
    segment: int | None = None  # of the plan, where one alone reads it: then it may be prefetched

    @property
    def held(self) -> int:
        """Return the bytes taken by a copy."""
        return -(-self.size // ALIGN) * ALIGN


@dataclass(frozen=True, slots=True)
class WeightProblem:
    """The constants of a network, and the RAM available to copies, in bytes."""

    weights: tuple[Weight, ...]
    hot: int = 0  # bytes of hot copies at most
    prefetched: int = 0  # bytes of both halves of the double buffer at most
    flash: float | None = None  # cycles of a byte that is read from flash; None: not known, copies fill what is left
    copying: float = 0.0  # cycles of a byte that is copied, beside those of its memories

    def gain(self, weight: Weight, ram: Ram, ahead: bool) -> float:
        """Return the savings of a copy in a memory, per inference: cycles, or bytes read if the cost of flash is
        unknown.
        """
        if self.flash is None:
            return weight.reads - (weight.size if ahead else 0)
        saved = weight.reads * (self.flash - ram.cycles_per_byte)
        return saved - (weight.size * (self.flash + ram.cycles_per_byte + self.copying) if ahead else 0.0)

    def cycles(self, copies: WeightCopies, memories: Sequence[Ram]) -> float:
        """Return the cycles saved by copies; negative if the gain is unknown, since the memory still costs cycles."""
        known, ram = self if self.flash is not None else _reads_cost_nothing(self), memories[copies.memory]
        chosen = ((k, False) for k in copies.hot), ((k, True) for k in copies.prefetched)
        return sum(known.gain(self.weights[k], ram, ahead) for each in chosen for k, ahead in each)

    def bytes(self, copies: WeightCopies) -> int:
        """Count the bytes of all copies in a memory."""
        return sum(self.weights[k].held for k in copies.hot) + 2 * self.half(copies)

    def half(self, copies: WeightCopies) -> int:
        """Count the bytes in a half of the double buffer."""
        of_segment: dict[int | None, int] = {}
        for k in copies.prefetched:
            weight = self.weights[k]
            of_segment[weight.segment] = of_segment.get(weight.segment, 0) + weight.held
        return max(of_segment.values(), default=0)


def _reads_cost_nothing(asked: WeightProblem) -> WeightProblem:
    return WeightProblem(asked.weights, flash=0.0, copying=asked.copying)


@dataclass(frozen=True, slots=True)
class WeightCopies:
    """Which weights are copied, by position, and into which memory."""

    memory: int
    hot: tuple[int, ...] = ()
    prefetched: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.hot or self.prefetched)


NO_COPIES = WeightCopies(0)


def fill(asked: WeightProblem, memories: Sequence[Ram], used: Sequence[int]) -> WeightCopies:
    """Fill a single memory's free space with copies, most savings per byte first; `used` are bytes by memory."""

    def of(m: int) -> WeightCopies:
        ram = memories[m]
        room = inf if ram.capacity is None else ram.capacity - -(-used[m] // ALIGN) * ALIGN
        hot = _taken(asked, ram, range(len(asked.weights)), min(asked.hot, room), False)
        rest = room - sum(asked.weights[k].held for k in hot)
        half = min(asked.prefetched, max(rest, 0)) // 2 // ALIGN * ALIGN
        segments: dict[int, list[int]] = {}
        for k, weight in enumerate(asked.weights):
            if k not in hot and weight.segment is not None:
                segments.setdefault(weight.segment, []).append(k)
        ahead = [k for own in segments.values() for k in _taken(asked, ram, own, half, True)]
        return WeightCopies(m, tuple(hot), tuple(sorted(ahead)))

    def gained(copies: WeightCopies) -> float:
        ram = memories[copies.memory]
        hot = sum(asked.gain(asked.weights[k], ram, False) for k in copies.hot)
        return hot + sum(asked.gain(asked.weights[k], ram, True) for k in copies.prefetched)

    return max((of(m) for m in range(len(memories))), key=lambda c: (gained(c), -c.memory))


def _taken(asked: WeightProblem, ram: Ram, weights: Sequence[int], room: float, ahead: bool) -> list[int]:
    """Choose as many `weights` as `room` bytes hold, by savings per byte."""
    gains = {k: asked.gain(asked.weights[k], ram, ahead) for k in weights}
    found: list[int] = []
    for k in sorted(weights, key=lambda k: (-gains[k] / max(asked.weights[k].held, 1), k)):
        if gains[k] > 0 and asked.weights[k].held <= room:
            found.append(k)
            room -= asked.weights[k].held
    return sorted(found)


@dataclass(frozen=True)
class WeightColumns:
    """The part of the integer program (`memory.placement_program`) for choosing copies.

    For each weight k and memory m a variable h (hot) and p (prefetched), each 0 or 1; for each m a variable g, 1 for
    the memory of all copies, and H, the bytes in a half of the double buffer.
    """

    asked: WeightProblem
    memories: tuple[Ram, ...]
    first: int  # column

    @property
    def count(self) -> int:
        """Count all columns; g and H come last."""
        return 2 * (len(self.asked.weights) + 1) * len(self.memories)

    def hot(self, k: int, m: int) -> int:
        """Return the integer program's column of variable h for weight `k` in memory `m`."""
        return self.first + 2 * (k * len(self.memories) + m)

    def ahead(self, k: int, m: int) -> int:
        """Return the column of variable p for weight `k` in memory `m`."""
        return self.hot(k, m) + 1

    def here(self, m: int) -> int:
        """Return the column of variable g for memory `m`."""
        return self.hot(len(self.asked.weights), m)

    def half(self, m: int) -> int:
        """Return the column of variable H for memory `m`."""
        return self.here(m) + 1

    def most(self, column: int) -> float:
        """Return the largest value in a column from `first` on: a whole number, except for H."""
        k, m = divmod((column - self.first) // 2, len(self.memories))
        ahead = (column - self.first) % 2 == 1
        if k == len(self.asked.weights):
            return float(self.asked.prefetched // 2 // ALIGN * ALIGN) if ahead else 1.0
        weight = self.asked.weights[k]
        able = weight.segment is not None if ahead else True
        fits = weight.held <= (self.asked.prefetched // 2 if ahead else self.asked.hot)
        return float(able and fits and self.asked.gain(weight, self.memories[m], ahead) > 0)

    def whole(self, column: int) -> bool:
        """Return True if a column takes whole numbers only."""
        return column not in {self.half(m) for m in range(len(self.memories))}

    def gains(self) -> dict[int, float]:
        """Return the savings of each variable, by column."""
        found: dict[int, float] = {}
        for k, weight in enumerate(self.asked.weights):
            for m, ram in enumerate(self.memories):
                for ahead, column in ((False, self.hot(k, m)), (True, self.ahead(k, m))):
                    if self.most(column):
                        found[column] = self.asked.gain(weight, ram, ahead)
        return found

    def held(self, m: int) -> dict[int, float]:
        """Return the bytes copies take in a memory, by column."""
        return {self.hot(k, m): float(w.held) for k, w in enumerate(self.asked.weights)} | {self.half(m): 2.0}

    def rows(self) -> list[tuple[dict[int, float], float]]:
        """Build the constraints: coefficients by column, and the upper bound on the sum."""
        weights, machine = self.asked.weights, range(len(self.memories))
        able = set(self.gains())
        found: list[tuple[dict[int, float], float]] = [({self.here(m): 1.0 for m in machine}, 1.0)]
        for k in range(len(weights)):
            both = {c for m in machine for c in (self.hot(k, m), self.ahead(k, m))} & able
            for m in machine:
                own = {c: 1.0 for c in (self.hot(k, m), self.ahead(k, m)) if c in both}
                if own:
                    found.append((own | {self.here(m): -1.0}, 0.0))
        for s in sorted({w.segment for w in weights if w.segment is not None}):
            for m in machine:
                row = {self.ahead(k, m): float(w.held) for k, w in enumerate(weights) if w.segment == s}
                row = {c: v for c, v in row.items() if c in able}
                if row:
                    found.append((row | {self.half(m): -1.0}, 0.0))
        hot = {self.hot(k, m): float(w.held) for k, w in enumerate(weights) for m in machine}
        return [*found, ({c: v for c, v in hot.items() if c in able}, float(self.asked.hot))]

    def copies(self, values: Sequence[float]) -> WeightCopies:
        """Read the copies from a solution of the program."""
        machine = range(len(self.memories))
        memory = max(machine, key=lambda m: (values[self.here(m)], -m))
        all_ = range(len(self.asked.weights))
        hot = tuple(k for k in all_ if values[self.hot(k, memory)] > 0.5)
        return WeightCopies(memory, hot, tuple(k for k in all_ if values[self.ahead(k, memory)] > 0.5))
