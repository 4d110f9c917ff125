"""Annealing of orders, of `native/order_anneal.c`; `ordering.anneal` says how it works."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm_cascade.native.xorshift import Xorshift
from tvm_cascade.ordering.anneal import DRAWS, POLLED, SCALE, Settings
from tvm_cascade.ordering.model import Model
from tvm_cascade.ordering.region import Region


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
