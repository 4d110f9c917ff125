"""The dynamic program over scheduled sets, of `native/order_sets.c`; `ordering.dp` says how it works."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_cascade.ordering.dp import NARROWEST, POLLED, WIDEST, Run
from tvm_cascade.ordering.masks import members
from tvm_cascade.ordering.model import Model
from tvm_cascade.ordering.region import Region
from tvm_cascade.search_monitor import monitor


@dataclass(slots=True)
class _State:
    """The order with the lowest peak known for a set of operators that have run."""

    peak: int  # bytes
    live: int  # bytes live after the set
    ready: tuple[int, ...]  # operators that may run next, ascending
    parent: _State | None  # the set without `op`
    op: int  # the last operator, -1 at the start


def run_in_python(m: Model, region: Region, budget: int, floor: int, work: int, dominance: bool = True) -> Run:
    """Search as `ordering.dp.run` does."""
    inside = region.after & ~region.before
    ready = tuple(i for i in members(inside) if not m.predecessors[i] & ~region.before)
    layer = {region.before: _State(max(floor, region.live), region.live, ready, None, -1)}
    states, steps, complete, exceeded, limit = 1, 0, True, 1 << 62, monitor()
    for depth in range(region.length):
        following: dict[int, _State] = {}
        for k, (done, state) in enumerate(layer.items()):
            if k % POLLED == 0 and limit.over():
                return Run(None, False, exceeded, states, steps)
            blocked, tried = _expand(m, done, state, inside, budget, dominance, following)
            exceeded = min(exceeded, blocked)
            steps += tried
        if not following:
            return Run(None, complete, exceeded, states, steps)
        width = 4 * max(0, work - steps) * states // max(1, steps * (region.length - depth))
        width = max(NARROWEST, min(width, WIDEST))
        if len(following) > width:
            complete = False
            best = sorted(following, key=lambda done: (following[done].peak, following[done].live, done))
            kept = set(best[:width])
            following = {done: state for done, state in following.items() if done in kept}
        states += len(following)
        layer = following
    last = layer[region.after]
    return Run(_path(last), complete, exceeded, states, steps)


def _expand(
    m: Model, done: int, state: _State, inside: int, budget: int, dominance: bool, following: dict[int, _State]
) -> tuple[int, int]:
    """Add a state's successors to the next layer.

    Return the least demand, in bytes, among steps forbidden by the budget, and the number of steps tried.
    """
    blocked, tried, moves = 1 << 62, 0, []
    step, live, peak = m.step, state.live, state.peak
    for op in state.ready:
        tried += 1
        need, change = step(done, op)
        top = live + need
        if dominance and change <= 0 and top <= peak:
            moves = [(op, top, change)]
            break
        if top > budget:
            blocked = min(blocked, top)
        else:
            moves.append((op, top, change))
    for op, top, change in moves:
        after = done | 1 << op
        highest = top if top > peak else peak
        known = following.get(after)
        if known is None:
            following[after] = _State(highest, live + change, _ready(m, state.ready, op, after, inside), state, op)
        elif highest < known.peak:
            known.peak, known.parent, known.op = highest, state, op
    return blocked, tried


def _ready(m: Model, ready: tuple[int, ...], op: int, after: int, inside: int) -> tuple[int, ...]:
    """Return the operators that may run after the set `after`, which ends with operator `op`; `ready` could run before."""
    at = ready.index(op)
    missing = ~after
    fresh = [s for s in m.successors[op] if not m.predecessors[s] & missing and inside >> s & 1]
    rest = (*ready[:at], *ready[at + 1 :])
    return tuple(sorted((*rest, *fresh))) if fresh else rest


def _path(state: _State | None) -> tuple[int, ...]:
    """Return the operators run on the way to a state."""
    order = []
    while state is not None and state.op >= 0:
        order.append(state.op)
        state = state.parent
    return tuple(reversed(order))
