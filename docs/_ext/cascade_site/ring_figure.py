"""A rolling buffer at one moment of a real plan: two 3x3 convolutions as one segment, in which the second has just made a row."""

from __future__ import annotations

from dataclasses import dataclass

from cascade_site.svg import drawing, legend, rect, text

_CELL, _ROW, _TOP = 15, 22, 44  # pixels
_AT = 3  # the row of the output that is being made


@dataclass(frozen=True, slots=True)
class _Moment:
    """Rows `[dead, made)` of a map can still be read; `now` is the row that the step makes, if any."""

    dead: int
    made: int
    now: int | None = None


def ring_figure() -> tuple[str, str]:
    """The drawing, and what it shows in words."""
    from tvm_cascade import pipeline
    from tvm_cascade.cascading import plan_graph
    from tvm_cascade.cores import KernelTarget
    from tvm_cascade.testing.builder import Net
    from tvm_cascade.testing.plan_options import rows_alone

    net = Net("int8")
    mod = net.finish(net.conv(net.conv(net.input((1, 8, 8, 4)), 4, 3), 4, 3))
    plan = plan_graph(pipeline.prepare(mod, KernelTarget()).graph, rows_alone(granularity="row"))
    graph, segment = plan.graph, plan.segments[0]
    first, second = (next(o for o in graph.ops if o.index == k) for k in dict.fromkeys(segment.trace))
    step = [k for k, o in enumerate(segment.trace) if o == second.index][_AT]
    made = segment.trace[: step + 1].count(first.index)
    x, t, y = first.inputs[0], first.outputs[0], second.outputs[0]
    rows, slots = graph.tensors[t].rows, plan.storages[t].height
    windows = first.windows[0], second.windows[0]
    assert len(plan.segments) == 1 and windows[0] and windows[1]
    maps = [
        ("x: the input, whole", _Moment(max(windows[0].first(made), 0), graph.tensors[x].rows), rows),
        (f"t: a ring of {slots} rows", _Moment(max(windows[1].first(_AT), 0), made), slots),
        ("y: the output, whole", _Moment(0, _AT + 1, _AT), graph.tensors[y].rows),
    ]
    parts = []
    for k, (title, moment, height) in enumerate(maps):
        parts += _map(30 + 230 * k, title, moment, height, ring=k == 1)
    shown = legend(
        30,
        _TOP + 8 * _ROW + 28,
        [("row", "in memory, to be read"), ("dead", "dead"), ("now", "made by this step"), ("none", "not made yet")],
    )
    read = f"rows {max(windows[1].first(_AT), 0)} to {made - 1} of t"
    words = f"Row {_AT} of y reads {read}, which lie in {slots} slots: row r in slot r modulo {slots}."
    return drawing(700, _TOP + 8 * _ROW + 40, [*parts, *shown]), words


def _map(left: float, title: str, moment: _Moment, height: int, ring: bool) -> list[str]:
    parts = [text(left, 24, title, "strong")]
    rows = {r % height: r for r in range(moment.made)} if ring else {r: r for r in range(height)}
    for slot in range(height):
        row, y = rows.get(slot, slot), _TOP + slot * _ROW
        kind = "now" if row == moment.now else "none" if row >= moment.made else "dead" if row < moment.dead else "row"
        parts += [rect(left + _CELL * c, y, _CELL - 2, _ROW - 5, kind) for c in range(8)]
        label = f"slot {slot}: row {row}" if ring else f"row {row}"
        parts.append(text(left + 8 * _CELL + 6, y + 13, label, "small"))
    return parts
