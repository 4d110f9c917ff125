"""Memory model for operator orders: live bytes and peak demand as functions of the set of operators already run.

Tensors that share memory (a view and its source) are a single storage. After a set S of operators has run, a storage is
live if it exists (its writer is in S, or it is a graph input) and is still needed (a reader is not in S, or it is a
graph output). So `mu(S)`, the live bytes, depends on S alone, not on the order within S; the scheduled set determines
the zero-indegree set in Serenity (section 3.1) and vice versa. The same holds for the demand of a step, `mu(S) + new
outputs + scratch - overwritten input`: an output may overwrite an input that dies at this step, element for element,
and whether the input dies depends on S. Hence a single entry per set is exact.

A view with several inputs is a join: the inputs are parts of the output's memory, which exists from the first part on.
Examples are a concat with producers that write into the output, and an accumulator for partial convolutions. A part
with the attribute `beside` is computed in separate memory before it is added to the accumulator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from tvm_cascade.graph import Graph, Op


@dataclass(frozen=True, slots=True)
class Storage:
    """The memory of a tensor and all views inside."""

    size: int  # bytes
    writers: int  # mask of operators, 0 for a graph input
    readers: int  # mask of operators, views included
    live_to_end: bool  # a graph output, or a graph input that nothing reads


@dataclass(frozen=True)
class Model:
    """A graph in the form that the ordering algorithms use. In masks bit i stands for operator i."""

    storages: tuple[Storage, ...]
    predecessors: tuple[int, ...]  # masks, by operator
    successors: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[int, ...], ...]  # storages, by operator
    demand: tuple[int, ...]  # bytes an operator adds while it runs: its outputs and its scratch
    outliving_bytes: tuple[int, ...]  # bytes of an operator's outputs that are read later or are graph outputs
    part: tuple[tuple[int, bool], ...]  # (storage of which it writes a part, or -1; attribute `beside`), by operator
    overwrites: tuple[tuple[tuple[int, int], ...], ...]  # (storage, bytes saved where it dies here), by operator

    @property
    def full(self) -> int:
        """Return the set of all operators."""
        return (1 << len(self.predecessors)) - 1

    def live(self, done: int) -> int:
        """Count the bytes live after the operators in the mask `done`: mu(S)."""
        total = 0
        for s in self.storages:
            if (not s.writers or s.writers & done) and (s.live_to_end or s.readers & ~done):
                total += s.size
        return total

    def step(self, done: int, op: int) -> tuple[int, int]:
        """Count the bytes needed while `op` runs after the set `done`, beyond `live(done)`, and the change in live
        bytes afterwards.
        """
        after = ~(done | 1 << op)
        change, need = self.outliving_bytes[op], self.demand[op]
        for readers, size in self._dying[op]:
            if not readers & after:
                change -= size
        joined, beside = self.part[op]
        if joined >= 0 and self.storages[joined].writers & done:
            change -= self.storages[joined].size
            need -= 0 if beside else self.storages[joined].size
        for s, saved in self.overwrites[op]:
            if not self.storages[s].readers & after:
                return need - saved, change
        return need, change

    @cached_property
    def _dying(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """List for each operator the readers and bytes of each storage read that dies with the last reader."""
        read = ([self.storages[s] for s in own] for own in self.reads)
        return tuple(tuple((s.readers, s.size) for s in own if not s.live_to_end) for own in read)

    def peak(self, order: Iterable[int], done: int = 0) -> int:
        """Compute the bytes in use at the most demanding step of an order that begins after the set `done`."""
        live = peak = self.live(done)
        for op in order:
            need, change = self.step(done, op)
            peak = max(peak, live + need)
            live += change
            done |= 1 << op
        return peak


def model(graph: Graph, in_place: bool = True) -> Model:
    """Build the memory model of a graph; `in_place` lets outputs overwrite dying inputs (`Op.in_place`)."""
    number: dict[int, int] = {}  # of storages, in order of appearance
    root = [number.setdefault(r.tensor, len(number)) for r in graph.roots]
    owners = list(number)
    readers, writers = [0] * len(owners), [0] * len(owners)
    for op in graph.ops:
        for t in op.inputs:
            readers[root[t]] |= 1 << op.index
        for t in () if op.view else op.outputs:
            writers[root[t]] |= 1 << op.index
    outputs = {root[t] for t in graph.outputs}
    storages = tuple(
        Storage(graph.tensors[t].bytes, writers[k], readers[k], k in outputs or not (writers[k] or readers[k]))
        for k, t in enumerate(owners)
    )
    written = [() if op.view else tuple(root[t] for t in op.outputs) for op in graph.ops]
    parts = [next((k for k in m if storages[k].writers.bit_count() > 1), -1) for m in written]
    return Model(
        storages,
        tuple(sum(1 << p for p in ps) for ps in graph.predecessors),
        graph.successors,
        tuple(tuple(dict.fromkeys(root[t] for t in op.inputs)) for op in graph.ops),
        tuple(sum(storages[k].size for k in m) + op.scratch_bytes for m, op in zip(written, graph.ops, strict=True)),
        tuple(sum(storages[k].size for k in m if storages[k].live_to_end or storages[k].readers) for m in written),
        tuple((k, bool(op.attrs.get("beside"))) for k, op in zip(parts, graph.ops, strict=True)),
        tuple(
            _overwrites(graph, op, root, storages) if in_place and k < 0 else ()
            for k, op in zip(parts, graph.ops, strict=True)
        ),
    )


def _overwrites(graph: Graph, op: Op, root: list[int], storages: tuple[Storage, ...]) -> tuple[tuple[int, int], ...]:
    """List the storages that the output of `op` may overwrite, with the bytes saved."""
    if op.view or not op.outputs:
        return ()
    out = graph.tensors[op.outputs[0]]
    inputs = [graph.tensors[op.inputs[position]] for position in op.in_place]
    fit = [root[t.index] for t in inputs if not storages[root[t.index]].live_to_end and t.bytes >= out.bytes]
    return tuple((s, out.bytes) for s in dict.fromkeys(fit))
