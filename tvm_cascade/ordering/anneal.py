"""Simulated annealing for an operator order, from the best known order: for regions too large for exact search.

A move takes an operator to another step between its predecessors and successors. The cost is the bytes in use above
`goal`, summed over the steps: `goal` lies `margin` below the best peak, so the cost is 0 exactly if an order is better
by that much, and a move has to be counted only between both steps. Moves that raise the cost are accepted with
probability `exp(-change / heat)`, and the heat falls to 0. An order below the best peak is kept, and the goal lowered.
The number of moves ends the search; all numbers are integers, so results do not depend on the machine.
`native/order_anneal.c` is the same in C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm_cascade import native
from tvm_cascade.native.xorshift import Xorshift
from tvm_cascade.ordering import compiled
from tvm_cascade.ordering.anneal_settings import DRAWS, POLLED, SCALE, Settings, settings
from tvm_cascade.ordering.model import Model
from tvm_cascade.ordering.region import Region
from tvm_cascade.search_monitor import monitor


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
        best = anneal(m, region, best, settings(m, region, lowest, peak, moves // rounds, seed=rounds + k))
    return best


def anneal(m: Model, region: Region, order: Sequence[int], asked: Settings) -> list[int]:
    """Search an order for the region with a peak at most that of `order`, until the monitor ends the search."""
    library = native.library()
    if library is not None and compiled.fits(m, asked.moves):
        return compiled.anneal(library, m, region, order, asked, monitor().over)
    return anneal_in_python(m, region, order, asked, monitor().over)


def anneal_in_python(
    m: Model, region: Region, order: Sequence[int], asked: Settings, stop: Callable[[], bool]
) -> list[int]:
    """Search as `anneal` does, in readable, slow Python."""
    state = _State(m, region, list(order), asked)
    for k in range(asked.moves):
        if state.peak <= asked.lowest or (k % POLLED == 0 and stop()):
            break
        state.move(asked.heat * (asked.moves - k) // asked.moves)
    return state.best


class _State:
    """The present order, the bytes used by each step, and the best order so far."""

    def __init__(self, m: Model, region: Region, order: list[int], asked: Settings) -> None:
        self.m, self.before, self.order, self.asked = m, region.before, order, asked
        self.random = Xorshift(asked.seed)
        self.peak, self.best, self.goal = 1 << 63, order, 0
        self.floor = region.live  # bytes that are live before the first step
        self.live = [region.live] * len(order)  # bytes before each step
        self.used: list[int] = [0] * len(order)  # bytes while it runs
        self._keep(0, *self._count(order, 0, len(order) - 1))
        self._note()

    def move(self, heat: int) -> None:
        """Draw a move, and accept or refuse."""
        source = self.random.draw(len(self.order))
        first, last = self._range(source)
        if first == last:
            return
        target = first + self.random.draw(last - first)
        target += target >= source
        low, high = min(source, target), max(source, target)
        moved = self.order.copy()
        moved.insert(target, moved.pop(source))
        live, used = self._count(moved, low, high)
        change = sum(max(0, u - self.goal) for u in used)
        change -= sum(max(0, u - self.goal) for u in self.used[low : high + 1])
        if change > 0 and change * SCALE > heat * DRAWS[self.random.draw(len(DRAWS))]:
            return
        self.order = moved
        self._keep(low, live, used)
        if change < 0:
            self._note()

    def _range(self, source: int) -> tuple[int, int]:
        """Return the first and last step to which the operator at step `source` may move."""
        op, m = self.order[source], self.m
        first, last = max(0, source - self.asked.reach), min(len(self.order) - 1, source + self.asked.reach)
        for k in range(first, source):
            if m.predecessors[op] >> self.order[k] & 1:
                first = k + 1
        later = (k for k in range(source + 1, last + 1) if m.predecessors[self.order[k]] >> op & 1)
        return first, next(later, last + 1) - 1

    def _count(self, order: list[int], low: int, high: int) -> tuple[list[int], list[int]]:
        """Count the bytes live before, and in use at, the steps `low` to `high` in `order`."""
        done, live, lives, used = self.before, self.live[low], [], []
        for op in order[:low]:
            done |= 1 << op
        for op in order[low : high + 1]:
            need, change = self.m.step(done, op)
            lives.append(live)
            used.append(live + need)
            live += change
            done |= 1 << op
        return lives, used

    def _keep(self, low: int, live: list[int], used: list[int]) -> None:
        self.live[low : low + len(live)] = live
        self.used[low : low + len(used)] = used

    def _note(self) -> None:
        """Take the present order as the best if better, and aim lower."""
        top = max((self.floor, *self.used))
        if top < self.peak:
            self.peak, self.best = top, self.order
            self.goal = max(self.asked.lowest, top - self.asked.margin)
