"""Lower bound on the size of an arena: the largest sum of bytes live at one step.

Bounds of segments, for the planner's search, are in `cascading.lower_bounds`.

For a step t with live set L, every layout needs at least `sum(size) - sum(shareable)` bytes, the second sum over the
`OffsetConstraint` pairs within L (Bonferroni's inequality on the union). Where all of L is aligned to A, every buffer
but the topmost occupies a multiple of A.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import gcd

from tvm_cascade.memory.problem import Buffer, OffsetConstraint, Problem


def max_live(problem: Problem) -> int:
    """Bytes that every allocation of `problem` needs at least."""
    return max_live_step(problem)[0]


def max_live_step(problem: Problem) -> tuple[int, int]:
    """The bound in bytes, and the first step whose live buffers need that many; (0, 0) without buffers."""
    best, step = 0, 0
    buffers = [b for b in problem.buffers if b.upper > b.lower]
    starting, following = dict[int, list[int]](), dict[int, list[OffsetConstraint]]()
    for k, b in enumerate(buffers):
        starting.setdefault(b.lower, []).append(k)
    for f in problem.offset_constraints:
        following.setdefault(f.reader, []).append(f)
    padded = [b.size + -b.size % b.alignment for b in buffers]
    highest = max((b.offset + b.size for b in buffers if b.offset is not None), default=0)
    live, total, ending = set[int](), 0, list[tuple[int, int]]()  # positions, their bytes, and when they die
    for t in sorted(starting):
        while ending and ending[0][0] <= t:
            k = heappop(ending)[1]
            live.discard(k)
            total -= padded[k]
        for k in starting[t]:
            live.add(k)
            total += padded[k]
            heappush(ending, (buffers[k].upper, k))
        if max(total, highest) <= best:
            continue  # they need no more than that
        constraints = [f for k in sorted(live) for f in following.get(buffers[k].id, ())]
        need = _need([buffers[k] for k in sorted(live)], constraints)
        if need > best:
            best, step = need, t
    return best, step


def shareable(follow: OffsetConstraint, reader: Buffer, writer: Buffer) -> int:
    """The most bytes that the two buffers of a constraint can share."""
    return max(0, min(reader.size, writer.size, writer.size - follow.distance))


def _need(live: Sequence[Buffer], constraints: Sequence[OffsetConstraint]) -> int:
    """Bytes that the buffers in `live`, all live at one step, need at least."""
    by_id = {b.id: b for b in live}
    pairs = [f for f in constraints if f.reader in by_id and f.writer in by_id]
    shared: dict[frozenset[int], int] = {}  # by pair of buffers; of several constraints the one that allows least
    for f in pairs:
        key = frozenset((f.reader, f.writer))
        most = shareable(f, by_id[f.reader], by_id[f.writer])
        shared[key] = min(most, shared.get(key, most))
    need = sum(b.size for b in live) - sum(shared.values())
    if not pairs:
        unit = gcd(*(b.alignment for b in live))
        padded = [-b.size % unit for b in live]
        need += sum(padded) - max(padded)
    pinned = max((b.offset + b.size for b in live if b.offset is not None), default=0)
    return max(need, pinned)
