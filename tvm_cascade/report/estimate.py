"""Estimates of a plan's memory traffic, instructions, cycles and kernel calls for an inference, without a build.

Traffic is the bytes accessed by kernels: every call reads its tile's input windows, writes the tile, and reads its
weights from flash once. Rows shared by two windows are read twice, as kernels do; caches are not modelled. Instructions
are counted statically for known kernels (`schedules.tuning.plan_cost`), else by `cores.step_model`. Cycles assume
memory that answers at once. `run` measures the needs on a board.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from tvm_cascade.cascading.geometry import goes_by_pixels, has_rows
from tvm_cascade.cascading.plan import Plan, Segment
from tvm_cascade.cores.cortex_m4 import STEPS
from tvm_cascade.cores.step_model import StepModel
from tvm_cascade.cores.work import Work
from tvm_cascade.graph import Graph, Op, Window
from tvm_cascade.report.text import work_factor
from tvm_cascade.schema.plan import Estimated


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated costs of an inference."""

    calls: int  # of kernels; exact
    instructions: int
    read_bytes: int  # of activations
    written_bytes: int
    weight_bytes: int  # read from flash
    cycles: int = 0  # of the core, where memory answers at once

    @property
    def traffic_bytes(self) -> int:
        return self.read_bytes + self.written_bytes + self.weight_bytes

    def to_dict(self) -> Estimated:
        """Return the estimate as a JSON object."""
        return {
            "estimated_instructions": self.instructions,
            "estimated_traffic_bytes": self.traffic_bytes,
            "estimated_weight_bytes": self.weight_bytes,
            "kernel_calls": self.calls,
        }


@dataclass(frozen=True, slots=True)
class _Grid:
    """The steps of an operator: one for each row and column range `[x0, x1)`; a single range for whole-row steps."""

    rows: int
    runs: tuple[tuple[int, int], ...]


def estimate(plan: Plan, model: StepModel | None = None) -> Estimate:
    """Estimate calls, traffic, instructions and cycles of a plan by the core's model, or a Cortex-M4's."""
    return total(estimate_operators(plan, model))


def total(operators: Sequence[Estimate]) -> Estimate:
    """Add up estimates."""
    return Estimate(*(sum(getattr(e, f.name) for e in operators) for f in fields(Estimate)))


def with_waits(operators: Sequence[Estimate], waits: Sequence[float]) -> tuple[Estimate, ...]:
    """Return operator estimates with the cycles of memory accesses added; `waits` is empty if these are free."""
    pairs = zip(operators, waits or (0.0,) * len(operators), strict=True)
    return tuple(replace(e, cycles=e.cycles + round(cycles)) for e, cycles in pairs)


def estimate_operators(
    plan: Plan, model: StepModel | None = None, counted: Sequence[Work] | None = None
) -> tuple[Estimate, ...]:
    """Estimate every operator, by index; zeros for views. Instructions and cycles come from `counted`, if given."""
    model = model or STEPS
    found = [Estimate(0, 0, 0, 0, 0)] * len(plan.graph.ops)
    for segment in plan.segments:
        count = {o: 0 for o in segment.ops}
        for o in segment.trace:
            if o >= 0:
                count[o] += 1
        for position, o in enumerate(segment.ops):
            op = plan.graph.ops[o]
            if op.view or not count[o]:
                continue
            columns = [s[position] for s in segment.stripes] if segment.stripes else None
            op_calls = _calls(plan.graph, op, segment, count[o]) * (len(columns) if columns else 1)
            grid = _grid(plan.graph, op, segment, columns)
            sums = o in segment.accumulating
            part = _part(plan.graph, op, columns)
            out = sum(plan.graph.tensors[t].bytes for t in op.outputs) * (1.0 if sums else part)
            taken = _input_bytes(plan.graph, op, grid, sums)
            weights = op.weight_bytes * (1 if sums else op_calls)
            instructions = model.whole(op) * part if op.macs else model.moved * (taken + out)
            if segment.tile.by_pixels and not sums and len(grid.runs) > 1 and goes_by_pixels(plan.graph, o):
                output = plan.graph.tensors[op.outputs[0]]
                instructions += model.extra(op, output.rows, output.columns, segment.tile.columns)
            work = Work(instructions, instructions * model.cycle) if counted is None else counted[o]
            found[o] = Estimate(
                op_calls, round(work.instructions), taken, round(out), weights, cycles=round(work.cycles)
            )
    return tuple(found)


def _calls(graph: Graph, op: Op, segment: Segment, steps: int) -> int:
    """Count an operator's kernel calls: one per step, or per row if tiles have several rows and the kernel makes a
    single row.
    """
    rows = graph.tensors[op.outputs[0]].rows
    single = segment.tile.rows > 1 and has_rows(graph, op.index)
    return rows if single and not op.kernels.multi_row and op.index not in segment.accumulating else steps


def _part(graph: Graph, op: Op, columns: Sequence[tuple[int, int]] | None) -> float:
    """Return the columns computed in all stripes together, as a factor of the output's columns; above 1 if stripes
    overlap.
    """
    wide = graph.tensors[op.outputs[0]].columns
    return sum(b - a for a, b in columns) / wide if columns and wide > 1 else 1.0


def _grid(graph: Graph, op: Op, segment: Segment, columns: Sequence[tuple[int, int]] | None) -> _Grid:
    out = graph.tensors[op.outputs[0]]
    if columns:
        return _Grid(out.rows, tuple(columns))
    if segment.tile.by_pixels and any(w is not None for w in op.columns):
        starts = range(0, out.columns, segment.tile.columns)
        return _Grid(out.rows, tuple((x, min(x + segment.tile.columns, out.columns)) for x in starts))
    return _Grid(out.rows, ((0, out.columns),))


def _input_bytes(graph: Graph, op: Op, grid: _Grid, sums: bool) -> int:
    """Count the bytes read by an operator in all its steps: each step's windows, or whole inputs once (no window, or
    `sums`).
    """
    total = 0
    for k, t in enumerate(op.inputs):
        tensor = graph.tensors[t]
        window = op.windows[k] if k < len(op.windows) else None
        if sums or window is None:
            total += tensor.bytes
            continue
        rows = sum(len(window.rows(y, tensor.rows)) for y in range(grid.rows))
        across = op.columns[k] if k < len(op.columns) else None
        if across is None or len(grid.runs) == 1:
            total += rows * tensor.row_bytes
        else:
            wide = sum(_covered(across, x0, x1, tensor.columns) for x0, x1 in grid.runs)
            total += rows * wide * tensor.row_bytes // max(tensor.columns, 1)
    return total


def _covered(window: Window, x0: int, x1: int, size: int) -> int:
    low, high = window.first(x0), window.first(x1 - 1) + window.span
    return max(min(high, size) - max(low, 0), 0)


def frontier_table(
    plan: Plan,
    own: Estimate,
    points: Sequence[tuple[int, float]],
    estimates: Sequence[Estimate],
    in_groups: Sequence[bool] = (),
) -> str:
    """Format the frontier and the chosen `plan`, with estimate `own`: bytes and work are exact, instructions and
    traffic estimated.

    Points with channel tiling (`in_groups`) are marked. If the plan is larger than the smallest with no more work, a
    last line tells the gain.
    """
    columns = f"{'instructions (est.)':>20} {'traffic bytes (est.)':>21} {'of weights':>12} {'calls':>8}"
    lines = [f"{'peak bytes':>10} {'work':>7} {columns}"]
    marks = (*in_groups, *[False] * (len(points) - len(in_groups)))
    rows: list[tuple[int, float, Estimate, bool]] = [
        (peak, factor, e, marked) for (peak, factor), e, marked in zip(points, estimates, marks, strict=True)
    ]
    if all(peak != plan.peak for peak, *_ in rows):
        rows.append((plan.peak, work_factor(plan), own, False))
    for peak, factor, e, marked in sorted(rows, key=lambda row: row[0]):
        mark = "  channels in groups" if marked else ""
        mark += "  this plan" if peak == plan.peak else ""
        row = f"{e.instructions:>20} {e.traffic_bytes:>21} {e.weight_bytes:>12} {e.calls:>8}"
        lines.append(f"{peak:>10} {factor:>6.3f}x {row}{mark}")
    smallest, _, least, _ = min((row for row in rows if row[1] <= work_factor(plan)), key=lambda row: row[0])
    if plan.peak > smallest and least.instructions >= max(own.instructions, 1):
        less = 100 * (1 - own.instructions / least.instructions)
        lines.append(
            f"{plan.peak - smallest} bytes above the {smallest} of the smallest plan of no more work buy {less:.1f} % fewer"
            " instructions (est.)"
        )
    return "\n".join(lines)
