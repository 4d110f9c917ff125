"""How close a segment's output may follow its dying input through the same memory.

While the segment runs, the rows of its input die as they are consumed, so its output may be written behind the read
front. When the output's maker writes step k, its operators upstream have done at least the steps that step k needs;
the first byte of the input that any of them still reads is the front. The output may lie where, at every step, the
end of what it has written (this step included) does not pass the front:

    offset(input) - offset(output) >= max over steps of (end of written - front),    steps with a living input only.

For the segment's sink the steps upstream are exact; for an output that is also read inside they are a safe lower bound.
An element-wise operator may write over the very elements that its step reads (`in_place`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_cascade.cascading.flow import Flow, Units, end_bytes, front_bytes
from tvm_cascade.cascading.simulate import Cascade


@dataclass(frozen=True, slots=True)
class Pair:
    """Tensors of a `memory.Follow`, with its distance in bytes."""

    reader: int  # the dying input
    writer: int  # the output
    distance: int


class Overlaps:
    def __init__(self, flow: Flow, in_place: bool) -> None:
        self.flow, self.in_place = flow, in_place
        self._progress: dict[tuple[int, int], dict[int, Units]] = {}

    def pairs(
        self, members: Sequence[int], dying: Sequence[int], rising: Sequence[int], chunk: int
    ) -> tuple[Pair, ...]:
        """Every output in `rising` behind every input in `dying`, where that saves anything."""
        if not dying or not rising:
            return ()
        cascade = Cascade(self.flow, members, chunk)
        found = [Pair(x, y, self._distance(cascade, x, y)) for y in rising for x in dying]
        return tuple(p for p in found if p.distance < self.flow.graph.tensors[p.writer].bytes)

    def _distance(self, cascade: Cascade, x: int, y: int) -> int:
        """Bytes; the output's size where it must stay clear of the input altogether."""
        flow, chunk = self.flow, cascade.chunk
        taken, given = flow.graph.tensors[x], flow.graph.tensors[y]
        maker = flow.maker(y)
        assert maker is not None
        steps = cascade.steps(maker)
        front = np.full(steps.count, taken.bytes, np.int64)
        least = -taken.bytes
        for reader, read in cascade.readers(x):
            done = self._done(cascade, maker, reader)
            if done is None:
                return given.bytes
            if reader == maker and read.in_place and self._alike(x, y):
                done, least = done + 1, 0
            front = np.minimum(front, front_bytes(taken, read.keep[done], flow.columns(x, chunk)))
        written = end_bytes(given, steps.made[flow.outputs(maker).index(y)][1:], flow.columns(y, chunk))
        alive = front < taken.bytes
        return int((written - front)[alive].max(initial=least))

    def _alike(self, x: int, y: int) -> bool:
        one, other = self.flow.graph.tensors[x], self.flow.graph.tensors[y]
        return self.in_place and (one.shape, one.dtype) == (other.shape, other.dtype)

    def _done(self, cascade: Cascade, maker: int, reader: int) -> Units | None:
        """Steps that `reader` has done when `maker` writes, by step of the maker; None where it may have done none."""
        count = cascade.steps(maker).count
        if reader == maker:
            return np.arange(count, dtype=np.int64)
        done = self._upstream(maker, cascade).get(reader)
        if done is None or reader in cascade.accumulating or not self.flow.accumulators:
            return done
        full = self.flow.steps(reader, cascade.chunk, self._sums(reader)).count
        return done if full == cascade.steps(reader).count else (done >= full).astype(np.int64)

    def _sums(self, op: int) -> bool:
        return self.flow.accumulates(op, _Everything())

    def _upstream(self, maker: int, cascade: Cascade) -> dict[int, Units]:
        """For every operator upstream of `maker` the steps done, its inputs taken to be made in the same cascade."""
        key = (maker, cascade.chunk)
        if key not in self._progress:
            everything = Cascade(self.flow, _ancestors(self.flow, maker), cascade.chunk)
            done = {maker: np.arange(1, everything.steps(maker).count + 1, dtype=np.int64)}
            for o in reversed(everything.members):
                for upstream, waits in everything.waits(o).items():
                    asked = np.append(0, np.maximum.accumulate(waits))[done[o]]
                    done[upstream] = np.maximum(done[upstream], asked) if upstream in done else asked
            self._progress[key] = done
        return self._progress[key]


class _Everything:
    def __contains__(self, member: object) -> bool:
        return True


def _ancestors(flow: Flow, op: int) -> tuple[int, ...]:
    """The operators and sources that `op` depends on, and itself, in ascending order."""
    seen, pending = {op}, [op]
    while pending:
        o = pending.pop()
        for t in flow.graph.ops[o].inputs if o >= 0 else ():
            maker = flow.maker(flow.roots[t].tensor)
            if maker is not None and maker not in seen:
                seen.add(maker)
                pending.append(maker)
    return tuple(sorted(seen))
