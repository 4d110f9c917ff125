"""Scratch of steps of some pixels: row tables, and room for a kernel row only where one wraps around a ring's end."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tvm_cascade.cascading import validate
from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.assemble import Figures, Layout, assemble
from tvm_cascade.cascading.interleaving import Interleaving
from tvm_cascade.cascading.memories import in_memories, joined
from tvm_cascade.cascading.options import Settings
from tvm_cascade.cascading.plan import Granularity, Plan
from tvm_cascade.cascading.row_tables import longest_run, scratch_bytes
from tvm_cascade.cascading.segments import SegmentCosts
from tvm_cascade.errors import ValidationError
from tvm_cascade.footprints import RowTable
from tvm_cascade.graph import Graph, Tile
from tvm_cascade.machine import Ram
from tvm_cascade.testing.graphs import Builder


def _with_tables(graph: Graph) -> Graph:
    """The graph, whose convolutions of several taps have kernels of some pixels that read through row tables."""

    def tables(o: int) -> tuple[RowTable | None, ...]:
        op = graph.ops[o]
        return tuple(
            None
            if rows is None or columns is None or rows.extent == columns.extent == 1
            else RowTable(rows.extent, graph.tensors[t].shape[3], columns.span, columns.stride)
            for t, rows, columns in zip(op.inputs, op.windows, op.columns, strict=True)
        )

    ops = (replace(op, kernels=replace(op.kernels, row_tables=tables(op.index))) for op in graph.ops)
    return replace(graph, ops=tuple(ops))


def _chain(random: Random) -> Graph:
    b = Builder()
    x = b.input(random.randint(6, 12), random.randint(4, 9), 3)
    for _ in range(3):
        kernel, stride, valid = random.choice((1, 2, 3)), random.choice((1, 1, 2)), random.random() < 0.5
        x = b.conv(x, random.choice((2, 5)), min(kernel, *b.tensors[x].shape[1:3]), stride, valid=valid)
    return _with_tables(b.finish(x))


def _runs(graph: Graph, o: int, pixels: int, slots: int) -> list[int]:
    """Pixels of every run that wraps, step by step and pixel by pixel."""
    op = graph.ops[o]
    rows, columns, x, y = op.windows[0], op.columns[0], graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
    assert rows is not None and columns is not None
    found = list[int]()
    for row in range(y.rows):
        for x0 in range(0, y.columns, pixels):
            seen = {c for p in range(x0, min(x0 + pixels, y.columns)) for c in columns.rows(p, x.columns)}
            for r in rows.rows(row, x.rows):
                run = [(r * x.columns + c) % slots for c in range(min(seen), max(seen) + 1)]
                if run != sorted(run):
                    found.append(len(run))
    return found


def test_the_longest_run_that_wraps_is_that_of_every_step() -> None:
    random, lengths = Random(0), set[int]()
    for _ in range(40):
        graph = _chain(random)
        for o in range(len(graph.ops)):
            x, pixels = graph.tensors[graph.ops[o].inputs[0]], random.randint(1, 9)
            slots = random.randint(x.columns, x.rows * x.columns)
            lengths.add(found := longest_run(graph, graph.ops[o], 0, pixels, slots))
            assert found == max(_runs(graph, o, pixels, slots), default=0)
    assert len(lengths) > 4 and 0 in lengths


def _by_pixels(seed: int) -> Plan:
    """All operators interleaved in steps of one to four pixels."""
    graph, tile = _chain(Random(seed)), Tile(columns=1 + seed % 4)
    costs = SegmentCosts(AccessTables(graph), range(len(graph.ops)), Settings())
    return assemble(costs, Layout((0, len(graph.ops)), (Interleaving(tile),)), Figures(0, 0))


def test_a_plan_reserves_what_its_steps_need() -> None:
    """A byte less is refused by the validator, which asks step by step; the same is true of a whole input."""
    torn = 0
    for seed in range(30):
        plan = _by_pixels(seed)
        validate(plan)
        for s, segment in enumerate(plan.segments):
            if not segment.scratch_bytes:
                continue
            torn += segment.scratch_bytes > 4 * 3
            less = replace(segment, scratch_bytes=segment.scratch_bytes - 1)
            with pytest.raises(ValidationError, match="bytes of scratch"):
                validate(replace(plan, segments=(*plan.segments[:s], less, *plan.segments[s + 1 :])))
    assert torn > 3


def test_kernel_scratch_lies_behind_the_tables_at_eight_bytes() -> None:
    graph, op = next((g, op) for g in map(_chain, map(Random, range(9))) for op in g.ops if any(op.kernels.row_tables))
    tables = scratch_bytes(graph, op, 2, [0])
    assert tables == 4 * op.windows[0].extent  # type: ignore[union-attr]
    assert scratch_bytes(graph, replace(op, scratch_bytes=20), 2, [0]) == -(-tables // 8) * 8 + 20


def test_tables_and_rings_part_where_no_run_wraps() -> None:
    """What wraps is copied to scratch from one pointer, and lies in its memory; other tables may lie anywhere."""
    kept = parted = 0
    for seed in range(30):
        plan = _by_pixels(seed)
        names = [b.name for b in plan.problem.buffers]
        alone = {n for pair in joined(plan) for n in pair}
        rings = {f"tensor {s.tensor}" for s in plan.storages if s.granularity is Granularity.PIXEL}
        assert {n for n in alone if n.startswith("tensor")} <= rings
        kept += bool(alone)
        for name in (n for n in names if n.startswith("scratch")):
            chosen = [int(n == name) for n in names]
            sizes = {b.name: b.size for b in plan.problem.buffers}
            apart, at = 0, list[int]()
            for n in names:
                at.append(0 if n == name else apart)
                apart += 0 if n == name else -(-sizes[n] // 8) * 8
            moved = in_memories(plan, [Ram("a"), Ram("b")], chosen, at)
            if name in alone:
                with pytest.raises(ValidationError, match="not in the memory of its row table"):
                    validate(moved)
            elif not plan.problem.offset_constraints:
                validate(moved)
                parted += 1
    assert kept > 1 and parted > 1
