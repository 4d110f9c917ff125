"""The region graph with its cuts, as SVG: no library, sharp at any size, searchable text.

Operators are listed in execution order, one per line; a box is a segment, whose operators run interleaved; a dashed line is
a cut, with the bytes of whole tensors that live across it. Arcs on the right are tensors: thin in a rolling buffer, thick
where they exist whole. A bar on the left is a region; operators that are left out of regions are grey.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cascading.regions import partition
from tvm_cascade.report.steps import step_rows

_LINE, _GAP, _LEFT, _TEXT = 18, 14, 46, 490
_REGIONS = ("#4878a8", "#8060a8", "#408080", "#a06040", "#607040", "#a04870")
_BOXES = ("#eef3f8", "#f8f3ea")
_STYLE = "font:12px ui-monospace,monospace"


@dataclass(frozen=True, slots=True)
class _Line:
    op: int
    segment: int
    y: int
    text: str


def region_svg(plan: Plan) -> str:
    """The picture as an `<svg>` element."""
    lines, boxes, height = _layout(plan)
    at = {line.op: line for line in lines}
    arcs, reach = _arcs(plan, at)
    width = _LEFT + _TEXT + reach + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" style="{_STYLE}"><title>regions and cuts</title>'
    ]
    for k, (top, bottom) in enumerate(boxes):
        parts.append(
            f'<rect x="{_LEFT - 6}" y="{top}" width="{_TEXT + 6}" height="{bottom - top}" rx="4" '
            f'fill="{_BOXES[k % 2]}" stroke="#c8c8c8"/>'
        )
    parts += _cuts(plan, boxes)
    parts += _bars(plan, at)
    left_out = {x.op for x in partition(plan.graph).left_out}
    for line in lines:
        colour = "#909090" if line.op in left_out else "#202020"
        parts.append(f'<text x="{_LEFT}" y="{line.y + 4}" fill="{colour}" xml:space="preserve">{line.text}</text>')
    return "".join([*parts, *arcs, "</svg>"])


def _layout(plan: Plan) -> tuple[list[_Line], list[tuple[int, int]], int]:
    """Lines of operators, the extent of every segment's box, and the height of all."""
    texts = {}
    for row in step_rows(plan):
        texts.setdefault((row["segment"], row["operator"]), f"{row['operator']:<26.26} {row['output']}")
    lines: list[_Line] = []
    boxes: list[tuple[int, int]] = []
    y = 6
    for k, segment in enumerate(plan.segments):
        ops = [o for o in segment.ops if not plan.graph.ops[o].view]
        if not ops:
            continue
        top = y
        for o in ops:
            text = escape(texts[k, plan.graph.ops[o].name][:64])
            lines.append(_Line(o, k, y + _LINE // 2, text))
            y += _LINE
        boxes.append((top, y))
        y += _GAP
    return lines, boxes, y


def _cuts(plan: Plan, boxes: list[tuple[int, int]]) -> list[str]:
    computing = [k for k, s in enumerate(plan.segments) if any(not plan.graph.ops[o].view for o in s.ops)]
    parts = []
    for (_, bottom), after in zip(boxes, computing[1:], strict=False):
        whole = {s.tensor: s.size for s in plan.storages if s.root is None and s.lower < after < s.upper}
        y = bottom + _GAP // 2
        parts.append(
            f'<line x1="{_LEFT - 10}" x2="{_LEFT + _TEXT + 4}" y1="{y}" y2="{y}" stroke="#b05050" '
            f'stroke-dasharray="4 3"/><text x="{_LEFT + _TEXT - 4}" y="{y + 4}" text-anchor="end" fill="#b05050" '
            f'style="font-size:10px">cut: {sum(whole.values())} bytes</text>'
        )
    return parts


def _bars(plan: Plan, at: dict[int, _Line]) -> list[str]:
    parts = []
    for k, ops in enumerate(partition(plan.graph).regions):
        colour = _REGIONS[k % len(_REGIONS)]
        runs: list[list[int]] = []
        for y in sorted(at[o].y for o in ops if o in at):
            if runs and y - runs[-1][1] <= _LINE + _GAP:
                runs[-1][1] = y
            else:
                runs.append([y, y])
        for top, bottom in runs:
            parts.append(
                f'<rect x="14" y="{top - 7}" width="8" height="{bottom - top + 14}" rx="3" fill="{colour}"/>'
                f'<text x="11" y="{top + 4}" text-anchor="end" fill="{colour}" style="font-size:10px">{k}</text>'
            )
    return parts


def _arcs(plan: Plan, at: dict[int, _Line]) -> tuple[list[str], int]:
    """A curve from the producer to every reader of each tensor, and their extent to the right."""
    graph = plan.graph
    roots = [s.tensor if s.root is None else s.root for s in plan.storages]
    makers = {roots[t]: o.index for o in graph.ops if not o.view for t in o.outputs}
    parts: list[str] = []
    reach = 0
    x = _LEFT + _TEXT + 4
    for op in graph.ops:
        for t in dict.fromkeys(roots[i] for i in op.inputs) if not op.view else ():
            maker = makers.get(t)
            if maker is None or maker not in at or op.index not in at:
                continue
            start, end = at[maker].y, at[op.index].y
            ring = plan.storages[t].is_ring(graph.tensors[t].rows)
            bend = min(8 + abs(end - start) // 3, 160)
            reach = max(reach, bend)
            colour, wide = ("#e0a030", 1.2) if ring else ("#4878a8", 2.4)
            parts.append(
                f'<path d="M{x} {start} C{x + bend} {start} {x + bend} {end} {x} {end}" fill="none" stroke="{colour}" '
                f'stroke-width="{wide}"><title>{escape(graph.tensors[t].name)}: {plan.storages[t].size} of '
                f"{graph.tensors[t].bytes} bytes</title></path>"
            )
    return parts, reach
