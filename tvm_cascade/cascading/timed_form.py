"""`Form`: a segment of a plan in several memories, for `timed_cuts`: blocks as bytes and bytes accessed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tvm_cascade.cascading.interleaving import Interleaving
from tvm_cascade.memory.bounds import covered

Block = tuple[int, float]  # bytes, bytes accessed
Sharing = tuple[int, int, int]
SAME = 1 << 60  # of an operator that overwrites its input


@dataclass(frozen=True, slots=True)
class Form:
    """A segment [i, j) in an interleaving: blocks as (bytes, bytes accessed)."""

    i: int
    j: int
    interleaving: Interleaving
    cycles: float
    across: tuple[Block, ...]  # tensors that are live before it
    made: tuple[Block, ...]  # tensors that it leaves
    inner: tuple[Block, ...]  # blocks that live in it alone
    carried: tuple[tuple[bool, int], ...]  # the tensors live behind it: whether it made them, and position among these
    over: tuple[Sharing, ...]  # tensor before it, one that it made, bytes that they may share; SAME: one block
    shared: tuple[Sharing, ...]  # tensor before it, the most bytes that inner blocks share with it, that all do

    def fast(self, cost: float) -> float:
        """Compute the cycles if a byte of every block costs `cost`."""
        return self.cycles + cost * sum(b[1] for b in (*self.across, *self.made, *self.inner))

    def everything(self) -> tuple[list[Block], int]:
        """Return all blocks, and the most bytes they share."""
        return ordered((*self.across, *self.made, *self.inner)), sum(most for _, _, most in self.shared)

    def spare(self, saved: Mapping[int, int]) -> Iterator[tuple[int, int]]:
        """Yield tensors from before, with the bytes inner blocks may share when made tensors share `saved`."""
        for r, inner, most in self.shared:
            yield r, min(inner, most - min(saved.get(r, 0), most))

    def worse(self, other: Form) -> bool:
        """Test whether `other`, a form for the same segment, takes no more of anything."""
        mine, its = ((*f.across, *f.made, *f.inner) for f in (self, other))
        shared, more = ({(r, w): n for r, w, n in f.over} for f in (self, other))
        least, most = ({r: (inner, n) for r, inner, n in f.shared} for f in (self, other))
        return (
            other.cycles <= self.cycles
            and all(b[0] <= a[0] and b[1] <= a[1] for a, b in zip(mine, its, strict=True))
            and all(a <= b for r, own in least.items() for a, b in zip(own, most.get(r, (0, 0)), strict=True))
            and all(more.get(pair, 0) >= n for pair, n in shared.items())
        )


def ordered(blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks sorted by accessed bytes per byte, the most first."""
    return sorted((b for b in blocks if b[0]), key=lambda b: -b[1] / b[0])


def most_shared(sizes: Sequence[int], pairs: Iterable[tuple[int, int, int]]) -> dict[int, int]:
    """Compute, by tensor before a segment (`sizes`), the most bytes blocks share with that tensor.

    `pairs` are this tensor, a block's shareable bytes, and the length of the tensor's start around these.
    """
    shares = dict[int, list[tuple[int, int]]]()
    for r, n, end in pairs:
        shares.setdefault(r, []).append((n, min(end, sizes[r])))
    return {r: covered(own) for r, own in shares.items()}
