"""Lower bounds on the peak by minimum cuts: for an operator v, the least bytes in use while it runs, in any order.

When v runs, some set T has run that holds all predecessors of v, no successor, and with each operator all predecessors.
`mu(T)`, the bytes live after T, is least for a minimum cut in this network: an operator is a node, on the source side
if in T, and draws its predecessors to that side by an arc that cannot be cut. A storage is an arc, with its size, from
its writer to a separate node, which draws the readers to the source side: the arc is cut if the writer is in T and a
reader is not. So every T is weighed at once; `bounds.step_bounds` counts only storages live in every T. Cuts common to
some optimal order (`Region`) narrow T further.

In any order v needs at least that, so only operators above the bound in the best known order are examined.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from tvm_cascade.ordering.bounds import ancestors, descendants
from tvm_cascade.ordering.masks import members
from tvm_cascade.ordering.model import Model
from tvm_cascade.ordering.region import Region
from tvm_cascade.search_monitor import monitor

_MOST_CUTS = 400  # computed for a region
_LARGEST = (1 << 31) - 1  # capacity of an arc


def cut_bound(m: Model, region: Region, order: Sequence[int], low: int) -> int:
    """Bound the bytes that every order of a region needs at some step, at least `low`; `order` is the best known order."""
    above = ancestors(m)
    below = descendants(m, above)
    network = _Network(m)
    used = _used(m, region, order)
    for v in sorted(order, key=lambda op: (-used[op], op))[:_MOST_CUTS]:
        if used[v] <= low or monitor().over():
            break
        saved = max((saved for _, saved in m.overwrites[v]), default=0)
        live = network.least_live(region.before | above[v], m.full & ~region.after | below[v] | 1 << v, m.part[v][0])
        low = max(low, live + m.demand[v] - saved)
    return low


def _used(m: Model, region: Region, order: Sequence[int]) -> dict[int, int]:
    """Compute the bytes in use while each operator runs, in this order."""
    done, live, used = region.before, region.live, {}
    for op in order:
        need, change = m.step(done, op)
        used[op] = live + need
        live += change
        done |= 1 << op
    return used


class _Network:
    """The flow network of a model; capacities are in units that fit into 32 bits, rounded down, so bounds stay valid."""

    def __init__(self, m: Model) -> None:
        total = sum(s.size for s in m.storages)
        self.m = m
        self.unit = max(
            gcd(*(s.size for s in m.storages)), total // (_LARGEST >> 2) + 1 if total > _LARGEST >> 2 else 1
        )
        self.sizes = [s.size // self.unit for s in m.storages]

    def least_live(self, done: int, later: int, ignored: int) -> int:
        """Compute the least bytes live after a set that holds `done` and nothing in `later`; the storage `ignored` is
        not counted.
        """
        arcs: dict[tuple[int, int], int] = {}
        n, storages = len(self.m.demand), self.m.storages
        source, sink = n + 2 * len(storages), n + 2 * len(storages) + 1
        sure = 0
        for k, s in enumerate(storages):
            if k == ignored or (s.writers and not s.writers & ~later) or not self.sizes[k]:
                continue  # not written yet
            exists = not s.writers or s.writers & done
            needed = s.live_to_end or s.readers & later
            if exists and needed:
                sure += self.sizes[k]
            elif needed or s.readers & ~done:
                begin = source if exists else self._begun(arcs, k, s.writers & ~later)
                end = sink if needed else n + k
                arcs[begin, end] = arcs.get((begin, end), 0) + self.sizes[k]
                for reader in () if needed else members(s.readers & ~done):
                    arcs[n + k, reader] = _LARGEST
        return self.unit * (sure + self._flow(arcs, done, later, source, sink)) if arcs else self.unit * sure

    def _begun(self, arcs: dict[tuple[int, int], int], k: int, writers: int) -> int:
        """Return the node on the source side if a storage exists: its writer, or a new node drawn by all writers."""
        if not writers & (writers - 1):
            return writers.bit_length() - 1
        node = len(self.m.demand) + len(self.m.storages) + k
        for writer in members(writers):
            arcs[writer, node] = _LARGEST
        return node

    def _flow(self, arcs: dict[tuple[int, int], int], done: int, later: int, source: int, sink: int) -> int:
        """Compute the minimum cut between source and sink, from the storages' `arcs` and the operators' precedence."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import maximum_flow

        for op in members(self.m.full & ~done & ~later):
            for p in members(self.m.predecessors[op] & ~done):
                arcs[op, p] = _LARGEST
        rows, columns = zip(*arcs, strict=True)
        network = csr_matrix((list(arcs.values()), (rows, columns)), shape=(sink + 1, sink + 1), dtype="int32")
        return int(maximum_flow(network, source, sink).flow_value)
