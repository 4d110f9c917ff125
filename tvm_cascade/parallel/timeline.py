"""Timeline of a schedule, which stream runs which operators when: as text and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tvm_cascade import extras
from tvm_cascade.cost.interface import CostModel
from tvm_cascade.parallel.problem import MERGE, Schedule
from tvm_cascade.parallel.scheduler import features_of, stage_ms
from tvm_cascade.parallel.units import UnitGraph
from tvm_cascade.publish import whole_file

LISTED = 16  # groups on the first screen of `stages`
_COLUMNS = 80


@dataclass(frozen=True, slots=True)
class Bar:
    """A group's operators on a stream; times in milliseconds from the start of the network."""

    stage: int
    stream: int
    start: float
    stop: float
    operators: tuple[str, ...]  # names, without views
    merged: bool


def bars(units: UnitGraph, schedule: Schedule, model: CostModel) -> tuple[Bar, ...]:
    """Return a bar for each group: the group's time alone by the model, scaled so that the longest group fills the
    stage.
    """
    ops = units.graph.ops
    drawn: list[Bar] = []
    now = 0.0
    for number, stage in enumerate(schedule.stages):
        merged, cost = stage.strategy == MERGE, stage_ms(units, stage, model)
        kernels = [] if merged else features_of(units, stage)
        alone = [cost] if merged else [sum(model.op_ms(k) for k in group) for group in kernels]
        stretch = cost / max(max(alone), 1e-12)
        for stream, (length, group) in enumerate(zip(alone, stage.groups, strict=True)):
            names = tuple(ops[i].name for i in group if not ops[i].view)
            drawn.append(Bar(number, stream, now, now + min(length * stretch, cost), names, merged))
        now += cost
    return tuple(drawn)


def text_timeline(units: UnitGraph, schedule: Schedule, model: CostModel, most: int | None = None) -> str:
    """Format a single line per group: stage, stream, milliseconds, operators.

    With `most`, a longer timeline ends after so many lines, cut to the width of a terminal.
    """
    lines = []
    for bar in bars(units, schedule, model):
        group = ("merge " if bar.merged else "") + " -> ".join(bar.operators)
        lines.append(f"{bar.stage:4d}  stream {bar.stream}  {bar.start:9.4f} .. {bar.stop:9.4f} ms  {group}")
    if most is None:
        return "\n".join(lines)
    shown = [line if len(line) <= _COLUMNS else f"{line[: _COLUMNS - 3]}..." for line in lines[:most]]
    left = len(lines) - len(shown)
    return "\n".join([*shown, *([f"      and {left} more groups: --details"] if left else [])])


def draw_timeline(units: UnitGraph, schedule: Schedule, model: CostModel, path: str | Path) -> None:
    """Draw streams against time; raise `MissingToolError` without matplotlib."""
    matplotlib, agg = extras.load("matplotlib", ".figure"), extras.load("matplotlib", ".backends.backend_agg")
    drawn = bars(units, schedule, model)
    streams = 1 + max((b.stream for b in drawn), default=0)
    figure = matplotlib.Figure(figsize=(14, 1.2 + 0.5 * streams), layout="constrained")
    agg.FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for bar in drawn:
        color = "tab:orange" if bar.merged else f"C{(bar.stage % 2) * 9}"
        axes.barh(bar.stream, bar.stop - bar.start, left=bar.start, height=0.7, color=color, edgecolor="white")
    axes.set_yticks(range(streams), [f"stream {i}" for i in range(streams)])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds (stages alternate in colour, merged operators orange)")
    with whole_file(path) as partial:
        figure.savefig(partial, dpi=110)
