"""The region graph with its cuts, as SVG: no library, sharp at any size, searchable text.

Operators are listed in execution order, one per line; a box is a segment of interleaved operators; a dashed line is a
cut, with the bytes of whole tensors live across. Arcs on the right are tensors: thin in a rolling buffer, thick if they
exist whole. A bar on the left is a region; operators outside regions are grey.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cascading.regions import partition
from tvm_cascade.report.scale import Outline
from tvm_cascade.report.steps import step_rows

_LINE, _GAP, _LEFT, _TEXT = 18, 14, 46, 490
_LETTERS = 67  # of a line at most
_COLOURS = 6  # of regions, one after the other


@dataclass(frozen=True, slots=True)
class Line:
    """An operator."""

    op: int
    segment: int
    y: int
    text: str
    left_out: bool = False  # of all regions


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a region."""

    region: int
    colour: int
    top: int
    height: int


@dataclass(frozen=True, slots=True)
class RegionGraph:
    """The drawing, in pixels."""

    width: int
    height: int
    left: int
    right: int  # of the boxes
    boxes: tuple[tuple[int, int], ...]  # upper and lower edges
    lines: tuple[Line, ...]
    cuts: tuple[tuple[int, int], ...]  # heights of the borders of segments, and bytes of whole tensors that live across
    bars: tuple[Bar, ...]
    arcs: tuple[Outline, ...]  # tensors, from the operator that makes one to one that reads it


def region_graph(plan: Plan) -> RegionGraph:
    """Draw a plan's regions and cuts."""
    lines, boxes, height = _layout(plan)
    at = {line.op: line for line in lines}
    arcs, reach = _arcs(plan, at)
    width = _LEFT + _TEXT + reach + 20
    return RegionGraph(
        width,
        height,
        _LEFT,
        _LEFT + _TEXT,
        tuple(boxes),
        tuple(lines),
        tuple(_cuts(plan, boxes)),
        tuple(_bars(plan, at)),
        tuple(arcs),
    )


def _layout(plan: Plan) -> tuple[list[Line], list[tuple[int, int]], int]:
    """Lay out the operators' lines, every segment's box, and the total height."""
    texts = {}
    for row in step_rows(plan):
        texts.setdefault((row["segment"], row["operator"]), f"{row['operator']:<26.26} {row['output']}")
    left_out = {x.op for x in partition(plan.graph).left_out}
    lines: list[Line] = []
    boxes: list[tuple[int, int]] = []
    y = 6
    for k, segment in enumerate(plan.segments):
        ops = [o for o in segment.ops if not plan.graph.ops[o].view]
        if not ops:
            continue
        top = y
        for o in ops:
            lines.append(Line(o, k, y + _LINE // 2, texts[k, plan.graph.ops[o].name][:_LETTERS], o in left_out))
            y += _LINE
        boxes.append((top, y))
        y += _GAP
    return lines, boxes, y


def _cuts(plan: Plan, boxes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    computing = [k for k, s in enumerate(plan.segments) if any(not plan.graph.ops[o].view for o in s.ops)]
    found = []
    for (_, bottom), after in zip(boxes, computing[1:], strict=False):
        whole = {s.tensor: s.size for s in plan.storages if s.root is None and s.lower < after < s.upper}
        found.append((bottom + _GAP // 2, sum(whole.values())))
    return found


def _bars(plan: Plan, at: dict[int, Line]) -> list[Bar]:
    found = []
    for k, ops in enumerate(partition(plan.graph).regions):
        runs: list[list[int]] = []
        for y in sorted(at[o].y for o in ops if o in at):
            if runs and y - runs[-1][1] <= _LINE + _GAP:
                runs[-1][1] = y
            else:
                runs.append([y, y])
        found += [Bar(k, k % _COLOURS, top - 7, bottom - top + 14) for top, bottom in runs]
    return found


def _arcs(plan: Plan, at: dict[int, Line]) -> tuple[list[Outline], int]:
    """Draw a curve from the producer to every reader of each tensor, and return their extent to the right."""
    graph = plan.graph
    roots = [s.tensor if s.root is None else s.root for s in plan.storages]
    makers = {roots[t]: o.index for o in graph.ops if not o.view for t in o.outputs}
    found: list[Outline] = []
    reach = 0
    x = _LEFT + _TEXT + 4
    for op in graph.ops:
        for t in dict.fromkeys(roots[i] for i in op.inputs) if not op.view else ():
            maker = makers.get(t)
            if maker is None or maker not in at or op.index not in at:
                continue
            start, end = at[maker].y, at[op.index].y
            kind = "ring" if plan.storages[t].is_ring(graph.tensors[t].rows) else "whole"
            bend = min(8 + abs(end - start) // 3, 160)
            reach = max(reach, bend)
            tip = f"{graph.tensors[t].name}: {plan.storages[t].size:,} of {graph.tensors[t].bytes:,} bytes"
            found.append(Outline(kind, f"M{x} {start}C{x + bend} {start} {x + bend} {end} {x} {end}", tip))
    return found, reach
