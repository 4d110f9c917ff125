"""Lower bound on an arena's size: the largest sum of bytes live at a step.

For the bounds of segments in the planner's search see `cascading.lower_bounds`.

For a step t with live set L, every layout needs at least `sum(size)` bytes less the bytes shared by pairs in L under an
`OffsetConstraint` (Bonferroni's inequality on the union), of which `most_shared` is an upper bound. If all buffers in L
are aligned to A, every buffer but the topmost occupies a multiple of A, and distances between buffers are multiples of
A.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd

import numpy as np
from numpy.typing import NDArray

from tvm_cascade.memory.problem import Buffer, OffsetConstraint, Problem

_Bytes = NDArray[np.int64]


def max_live(problem: Problem) -> int:
    """Return the least bytes needed by every allocation of `problem`."""
    return max_live_step(problem)[0]


def max_live_step(problem: Problem) -> tuple[int, int]:
    """Return the bound in bytes, and the first step with a live set that needs so many; (0, 0) without buffers."""
    best, step = 0, 0
    buffers = [b for b in problem.buffers if b.upper > b.lower]
    following = dict[int, list[OffsetConstraint]]()
    for f in problem.offset_constraints:
        following.setdefault(f.reader, []).append(f)
    highest = max((b.offset + b.size for b in buffers if b.offset is not None), default=0)
    figures = [(b.lower, b.upper, b.size, b.alignment, 0 if b.offset is None else b.offset + b.size) for b in buffers]
    lower, upper, size, alignment, end = np.array(figures, np.int64).reshape(-1, 5).T.copy()
    for total, t in sorted(_live_bytes(buffers), key=lambda entry: (-entry[0], entry[1])):
        most = max(total, highest)
        if most < best or not most:
            break  # nor do the steps after it need more
        if most == best and t > step:
            continue
        held = np.flatnonzero((lower <= t) & (t < upper))
        if following:
            live = [buffers[k] for k in held.tolist()]
            need = _need(live, [f for b in live for f in following.get(b.id, ())])
        else:
            need = _need_apart(size[held], alignment[held], end[held])
        if need > best or (need == best and t < step):
            best, step = need, t
    return best, step


def _live_bytes(buffers: Sequence[Buffer]) -> Iterator[tuple[int, int]]:
    """Yield for each step that begins a lifetime, in order, the rounded bytes of all live buffers, and the step."""
    change = dict[int, int]()
    for b in buffers:
        padded = b.size + -b.size % b.alignment
        change[b.lower] = change.get(b.lower, 0) + padded
        change[b.upper] = change.get(b.upper, 0) - padded
    total, begins = 0, {b.lower for b in buffers}
    for t in sorted(change):
        total += change[t]
        if t in begins:
            yield total, t


def shareable(follow: OffsetConstraint, reader: Buffer, writer: Buffer) -> int:
    """Return the most bytes the two buffers in a constraint can share."""
    return max(0, min(reader.size, writer.size, writer.size - follow.distance))


def most_shared(live: Mapping[int, Buffer], constraints: Iterable[OffsetConstraint]) -> int:
    """Bound the bytes shared by all pairs in `constraints` while every buffer in `live`, by id, is live.

    Shares of several writers with one reader are disjoint, and so are shares of several readers with one writer: at
    most `covered` bytes of a reader, or all of a writer from the least distance on.
    """
    pairs = least_sharing(live, constraints)
    readers, writers = dict[int, list[OffsetConstraint]](), dict[int, list[OffsetConstraint]]()
    for f in pairs.values():
        readers.setdefault(f.reader, []).append(f)
        writers.setdefault(f.writer, []).append(f)
    partners = partners_of(pairs)
    by_reader = sum(_shared_by_writers(live, own, partners) for own in readers.values())
    by_writer = sum(_shared_by_readers(live, own, partners) for own in writers.values())
    return min(by_reader, by_writer)


def least_sharing(
    live: Mapping[int, Buffer], constraints: Iterable[OffsetConstraint]
) -> dict[frozenset[int], OffsetConstraint]:
    """Choose for each pair of buffers the constraint with the fewest shared bytes."""
    pairs = dict[frozenset[int], OffsetConstraint]()
    for f in constraints:
        key = frozenset((f.reader, f.writer))
        if key not in pairs or _shared(live, f) < _shared(live, pairs[key]):
            pairs[key] = f
    return pairs


def partners_of(pairs: Iterable[frozenset[int]]) -> dict[int, set[int]]:
    """List for each buffer the buffers it may share bytes with; `pairs` lists all such pairs."""
    partners = dict[int, set[int]]()
    for i, j in pairs:
        partners.setdefault(i, set()).add(j)
        partners.setdefault(j, set()).add(i)
    return partners


def disjoint(buffers: Collection[int], partners: Mapping[int, set[int]]) -> bool:
    """Test that no two buffers may share bytes while all are live; `partners` comes from `partners_of`."""
    return len(buffers) < 2 or all(partners[b].isdisjoint(buffers) for b in buffers)


def shared_end(constraint: OffsetConstraint, reader: Buffer, writer: Buffer) -> int:
    """Return the bytes at the start of the reader that contain every byte shared with the writer."""
    return max(0, min(reader.size, writer.size - constraint.distance))


def covered(shares: Iterable[tuple[int, int]]) -> int:
    """Return the most bytes of a block covered by disjoint shares.

    `shares` holds for each share the most bytes covered, and the bytes at the block's start that contain them. Shares
    within the first n bytes cover at most n together, so shares are taken by end, like jobs by due date.
    """
    total = 0
    for most, end in sorted(shares, key=lambda share: share[1]):
        total = min(total + most, end)
    return total


def _shared(live: Mapping[int, Buffer], constraint: OffsetConstraint) -> int:
    return shareable(constraint, live[constraint.reader], live[constraint.writer])


def _shared_by_writers(
    live: Mapping[int, Buffer], own: Sequence[OffsetConstraint], partners: Mapping[int, set[int]]
) -> int:
    """Bound the bytes shared by several writers with the reader in `own`."""
    if not disjoint([f.writer for f in own], partners):
        return sum(_shared(live, f) for f in own)
    return covered((_shared(live, f), shared_end(f, live[f.reader], live[f.writer])) for f in own)


def _shared_by_readers(
    live: Mapping[int, Buffer], own: Sequence[OffsetConstraint], partners: Mapping[int, set[int]]
) -> int:
    """Bound the bytes shared by several readers with the writer in `own`."""
    shared = sum(_shared(live, f) for f in own)
    if not disjoint([f.reader for f in own], partners):
        return shared
    size = live[own[0].writer].size
    return min(shared, max(size - max(min(f.distance for f in own), 0), 0))


def _need(live: Sequence[Buffer], constraints: Sequence[OffsetConstraint]) -> int:
    """Bound the bytes needed by the buffers in `live`, all live at the same step."""
    by_id = {b.id: b for b in live}
    pairs = [f for f in constraints if f.reader in by_id and f.writer in by_id]
    total = sum(b.size for b in live)
    need = total - most_shared(by_id, pairs) if pairs else total
    unit = gcd(*(b.alignment for b in live))
    if unit > 1:
        padding = [-b.size % unit for b in live]
        shared = most_shared(*_padded(live, pairs, unit)) if pairs else 0
        need = max(need, total + sum(padding) - shared - max(padding))
    pinned = max((b.offset + b.size for b in live if b.offset is not None), default=0)
    return max(need, pinned)


def _need_apart(size: _Bytes, alignment: _Bytes, end: _Bytes) -> int:
    """Compute `_need` of buffers that share no bytes; `end`: the byte after a pinned buffer, 0 for any other."""
    padding = -size % np.gcd.reduce(alignment)
    return int(max(size.sum() + max(0, padding.sum() - padding.max()), end.max()))


def _padded(
    live: Sequence[Buffer], pairs: Sequence[OffsetConstraint], unit: int
) -> tuple[dict[int, Buffer], list[OffsetConstraint]]:
    """Return the buffers of `pairs` by id, and the pairs, with sizes and distances rounded up to multiples of `unit`."""
    named = {b for f in pairs for b in (f.reader, f.writer)}
    whole = {b.id: replace(b, size=b.size + -b.size % unit) for b in live if b.id in named}
    return whole, [replace(f, distance=f.distance + -f.distance % unit) for f in pairs]
