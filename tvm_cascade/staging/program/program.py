"""Staged programs: a schedule's kernel launches and the places of tensors inside others. `ScheduleStages` emits these
as Relax.

A *step* is a single launch point: a kernel, or all kernels in a stage with several groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, permutations

from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import Op
from tvm_cascade.parallel.problem import MERGE, Schedule
from tvm_cascade.parallel.units import UnitGraph
from tvm_cascade.staging.program.graph import VECTOR_BYTES, StageGraph
from tvm_cascade.staging.program.layouts import may_merge, packed_bytes, packed_tensors
from tvm_cascade.staging.program.merge import merge_units
from tvm_cascade.staging.program.specs import Slice, Spec, reads, writes

ALIGNMENT = 256  # bytes: what CUDA allocations guarantee, and more than any vector load needs


@dataclass(frozen=True, slots=True)
class Step:
    """A launch point in stage number `stage`; `groups`, made of indices into `Program.specs`, run concurrently."""

    groups: tuple[tuple[int, ...], ...]
    stage: int


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor's location: `offset` bytes into the storage of tensor `root`."""

    root: int
    offset: int = 0


@dataclass(frozen=True)
class Program:
    """Kernels to build, steps in execution order, and the place of every tensor.

    `slices` are the parts of merged tensors cut out by the readers: parts that are no contiguous range, and parts that
    begin at no multiple of `alignment`.
    """

    net: StageGraph
    specs: tuple[Spec, ...]
    steps: tuple[Step, ...]
    places: tuple[Place, ...]
    slices: Mapping[int, Slice] = field(default_factory=dict)
    captured: bool = False  # it is for a CUDA graph, inside of which nothing may be allocated
    packed: frozenset[int] = frozenset()  # tensors in the layout of `stage_layouts`

    @property
    def alignment(self) -> int:
        """Return the alignment in bytes for offsets of tensors inside others."""
        return alignment(self.captured)

    def bytes_of(self, root: int) -> int:
        """Return the storage size of tensor `root` in bytes."""
        graph = self.net.graph
        return max(p.offset + packed_bytes(graph, self.packed, t) for t, p in enumerate(self.places) if p.root == root)


def alignment(captured: bool) -> int:
    """Return the alignment in bytes for tensors inside others; the runtime copies views at other offsets to new memory."""
    return ALIGNMENT if captured else VECTOR_BYTES


def plan_program(net: StageGraph, units: UnitGraph, schedule: Schedule, captured: bool = False) -> Program:
    """Plan the program for a schedule whose stages hold operator indices.

    `captured`: for a CUDA graph, which forbids allocation: merges with unaligned results (`ALIGNMENT`) are not merged.
    Elsewhere the runtime copies such a result to new memory.
    """
    return _Planner(net, units, captured).plan(schedule)


class _Planner:
    def __init__(self, net: StageGraph, units: UnitGraph, captured: bool) -> None:
        self.net, self.captured, self.alignment = net, captured, alignment(captured)
        self.slices: dict[int, Slice] = {}
        self.packed = frozenset[int]() if captured else packed_tensors(net)
        self.graph = net.graph
        self.kernel_of = {i: k for kernels in units.kernels for k in kernels for i in k}
        self.unit_of = {i: unit.ops for unit in units.units for i in unit.ops}
        self.specs: list[Spec] = []
        self.places = [Place(t.index) for t in net.graph.tensors]

    def plan(self, schedule: Schedule) -> Program:
        steps: list[Step] = []
        for number, stage in enumerate(schedule.stages):
            if stage.strategy == MERGE and (merged := self._merge(stage.members)) is not None:
                steps.append(Step(((merged,),), number))
                continue
            groups = [stage.members] if stage.strategy == MERGE else list(stage.groups)
            inside = {t for g in groups for i in g for t in self.graph.ops[i].outputs}
            kernels = [self._group(g, inside if len(groups) > 1 else set()) for g in groups]
            lanes = tuple(g for g in kernels if g)
            if len(lanes) > 1:
                steps.append(Step(lanes, number))
            else:
                steps += [Step(((k,),), number) for g in lanes for k in g]
        return Program(
            self.net, tuple(self.specs), tuple(steps), tuple(self.places), self.slices, self.captured, self.packed
        )

    def _group(self, group: Sequence[int], concurrent: set[int]) -> tuple[int, ...]:
        """Plan the kernels of a group; a view becomes an alias, or a copying kernel if `_aliases` forbids that."""
        kernels: list[int] = []
        for kernel in dict.fromkeys(self.kernel_of[i] for i in group):
            op = self.graph.ops[kernel[0]]
            if op.view and self._aliases(op, concurrent):
                source = self.places[op.inputs[0]]
                for t, offset in zip(op.outputs, op.view_offsets, strict=True):
                    self.places[t] = replace(source, offset=source.offset + offset)
                continue
            kernels.append(len(self.specs))
            self.specs.append(Spec(kernel))
        return tuple(kernels)

    def _aliases(self, op: Op, concurrent: set[int]) -> bool:
        """Test whether a view can alias the input: aligned parts, and no graph input or slice as input.

        A concurrent stage of a processor, a single function with parameters that share no memory, must use neither.
        """
        base = self.places[op.inputs[0]].offset
        if any((base + offset) % self.alignment for offset in op.view_offsets):
            return False
        readers = [c for t in op.outputs for c in self.graph.consumers[t]]
        read_here = not self.captured and (
            op.inputs[0] in concurrent or any(o in concurrent for c in readers for o in self.graph.ops[c].outputs)
        )
        many = len(op.outputs) > 1 and any(t in self.graph.outputs for t in op.outputs)
        return not (read_here or many or op.inputs[0] in self.graph.inputs or op.inputs[0] in self.slices)

    def _merge(self, ops: Sequence[int]) -> int | None:
        """Add the spec of a merged kernel with a single storage for all outputs; returns the spec's index, None if not
        mergeable.
        """
        units = list(dict.fromkeys(self.unit_of[i] for i in ops))
        outs = [self.graph.ops[u[-1]].outputs[0] for u in units]
        alike = len({self.graph.tensors[t].dtype for t in outs}) == 1  # they become parts of one tensor
        merge = merge_units(self.net, units) if alike and may_merge(self.graph, self.packed, outs) else None
        if merge is None:
            return None
        first = self.graph.tensors[outs[0]]
        axis = merge.layout.index("C") if merge.layout else len(first.shape) - 1
        offsets = list(accumulate((self.graph.tensors[t].bytes for t in outs), initial=0))
        runs = all(d == 1 for d in first.shape[:axis])
        results = set(self.graph.outputs)
        copied = set() if self.captured else results  # by the runtime, at the end
        off = {t for t, at in zip(outs, offsets[:-1], strict=True) if at % self.alignment} - copied
        cut = off if runs else set(outs)
        if cut & results:
            return None  # a result cannot be a slice
        shape = (*first.shape[:axis], sum(self.graph.tensors[t].shape[axis] for t in outs), *first.shape[axis + 1 :])
        begin = 0
        for t, offset in zip(outs, offsets[:-1], strict=True):
            self.places[t] = Place(outs[0], offset)
            if t in cut:
                self.slices[t] = Slice(outs[0], shape, axis, begin)
            begin += self.graph.tensors[t].shape[axis]
        self.specs.append(Spec(tuple(ops), merge))
        return len(self.specs) - 1


def check_groups(program: Program) -> None:
    """Raise `ValidationError` if a group in a step reads a tensor another group of the step writes."""
    graph = program.net.graph
    for step in program.steps:
        for a, b in permutations(step.groups, 2):
            written = {t for k in a for t in writes(graph, program.specs[k])}
            if written & {t for k in b for t in reads(graph, program.specs[k])}:
                raise ValidationError(
                    f"stage {step.stage} runs an operator at the same time as one whose output it reads"
                )
