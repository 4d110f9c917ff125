"""What running operators in an order costs in memory, as bit masks: the state of the dynamic program.

Tensors that share memory (a view and what it looks into) are one storage. After a set S of operators has run, a storage
is live if it exists (its writer is in S, or it is a graph input) and is still wanted (a reader is not in S, or it is
an output of the graph). So `mu(S)`, the live bytes, depends on S alone, in whatever order S ran; the scheduled set
determines the zero-indegree set of Serenity (section 3.1) and the other way round. So does the demand of one step,
`mu(S) + new outputs + scratch - overwritten input`: an output may overwrite an input that dies at this step, element
for element, and whether it dies depends on S. Hence one entry per set is exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tvm_cascade.graph import Graph


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory of one tensor and all views into it."""

    size: int  # bytes
    writer: int | None  # operator, None for a graph input
    readers: int  # mask of operators, views included
    kept: bool  # live to the end


@dataclass(frozen=True, slots=True)
class Model:
    """A graph as the ordering sees it; masks have bit i for operator i."""

    storages: tuple[Storage, ...]
    predecessors: tuple[int, ...]  # masks, by operator
    successors: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[int, ...], ...]  # storages, by operator
    demand: tuple[int, ...]  # bytes an operator adds while it runs: its outputs and its scratch
    kept: tuple[int, ...]  # bytes of its outputs that outlive it
    overwrites: tuple[tuple[tuple[int, int], ...], ...]  # (storage, bytes saved where it dies here), by operator
    start: int  # bytes live before the first operator

    @property
    def full(self) -> int:
        return (1 << len(self.predecessors)) - 1

    def live(self, done: int) -> int:
        """Bytes live after the operators of the mask `done`: mu(S)."""
        total = 0
        for s in self.storages:
            exists = s.writer is None or done >> s.writer & 1
            if exists and (s.kept or s.readers & ~done):
                total += s.size
        return total

    def step(self, done: int, op: int) -> tuple[int, int]:
        """Bytes needed while `op` runs after `done` on top of `live(done)`, and the change that it leaves behind."""
        after = ~(done | 1 << op)
        change = self.kept[op]
        storages = self.storages
        for s in self.reads[op]:
            storage = storages[s]
            if not storage.kept and not storage.readers & after:
                change -= storage.size
        need = self.demand[op]
        for s, saved in self.overwrites[op]:
            if not storages[s].readers & after:
                return need - saved, change
        return need, change

    def peak(self, order: Iterable[int]) -> int:
        """Bytes of the most demanding step of an order."""
        done, live, peak = 0, self.start, self.start
        for op in order:
            need, change = self.step(done, op)
            peak = max(peak, live + need)
            live += change
            done |= 1 << op
        return peak


def model(graph: Graph, in_place: bool = True) -> Model:
    """The model of a graph; `in_place` lets outputs overwrite inputs that die (`Op.in_place`)."""
    root, of = _roots(graph)
    readers = [0] * len(of)
    for op in graph.ops:
        for t in op.inputs:
            readers[root[t]] |= 1 << op.index
    kept = {root[t] for t in graph.outputs}
    storages = tuple(
        Storage(
            graph.tensors[t].bytes, graph.producer[t], readers[k],
            k in kept or (graph.producer[t] is None and not readers[k]),
        )
        for k, t in enumerate(of)
    )  # fmt: skip
    made = [() if op.view else tuple(root[t] for t in op.outputs) for op in graph.ops]
    reads = tuple(tuple(dict.fromkeys(root[t] for t in op.inputs)) for op in graph.ops)
    return Model(
        storages,
        tuple(sum(1 << p for p in ps) for ps in graph.predecessors),
        graph.successors,
        reads,
        tuple(sum(storages[k].size for k in m) + op.scratch_bytes for m, op in zip(made, graph.ops, strict=True)),
        tuple(sum(storages[k].size for k in m if storages[k].kept or storages[k].readers) for m in made),
        tuple(_overwrites(graph, i, root, storages) if in_place else () for i in range(len(graph.ops))),
        sum(s.size for s in storages if s.writer is None),
    )


def _roots(graph: Graph) -> tuple[list[int], list[int]]:
    """Storage of every tensor, and the tensor that owns each storage."""
    root = [0] * len(graph.tensors)
    owners: list[int] = []
    for t in graph.inputs:
        root[t] = len(owners)
        owners.append(t)
    for op in graph.ops:
        for t in op.outputs:
            if op.view:
                root[t] = root[op.inputs[0]]
            else:
                root[t] = len(owners)
                owners.append(t)
    return root, owners


def _overwrites(
    graph: Graph, index: int, root: list[int], storages: tuple[Storage, ...]
) -> tuple[tuple[int, int], ...]:
    op = graph.ops[index]
    if op.view or not op.outputs:
        return ()
    out = graph.tensors[op.outputs[0]]
    found = []
    for position in op.in_place:
        t = graph.tensors[op.inputs[position]]
        s = root[t.index]
        if not storages[s].kept and t.bytes >= out.bytes:
            found.append((s, out.bytes))
    return tuple(dict.fromkeys(found))
