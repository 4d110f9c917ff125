"""First screen of a plan: at most `LINES` lines with `COLUMNS` columns, the answer first."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.graph import Graph
from tvm_cascade.report.estimate import Estimate
from tvm_cascade.report.layers import SOURCE, Layer
from tvm_cascade.report.text import does_twice, peak_segment, smallest_of, work_factor
from tvm_cascade.search_monitor import above_text

COLUMNS = 80
LINES = 24
_LABEL = 10  # columns of the word in front of a line
_KEPT = "\u00a0"  # a space that ends no line
_CHOICES = 4  # plans that are worth a line


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan worth having."""

    peak: int  # bytes of its arena
    factor: float  # multiply-accumulates, as a factor of the network's
    instructions: int  # estimated
    chosen: bool

    @property
    def options(self) -> str:
        """Return the options for this plan, added to the command."""
        work = ceil(self.factor * 10_000) / 10_000
        return "this plan" if self.chosen else f"--sram {self.peak}" + (f" --max-macs {work:g}" if work > 1 else "")


def labelled(label: str, text: str, most: int = 2) -> list[str]:
    """Return `text` behind a label, in at most so many lines of `COLUMNS` columns."""
    lines = textwrap.wrap(
        _with_units(text),
        COLUMNS - _LABEL,
        max_lines=most,
        placeholder=" ...",
        break_long_words=True,
        break_on_hyphens=False,
    )
    return [f"{label if k == 0 else '':<{_LABEL}}{line}".replace(_KEPT, " ") for k, line in enumerate(lines)]


def wrap_figures(text: str) -> list[str]:
    """Return `text` in lines of `COLUMNS` columns, without a break between a number and the unit behind it."""
    return [line.replace(_KEPT, " ") for line in textwrap.wrap(_with_units(text), COLUMNS)]


def _with_units(text: str) -> str:
    """Return `text` with spaces between numbers and units that `textwrap` does not break at."""
    return re.sub(r"(?<=\d) (?=(?:ms|s|MHz|KiB|MiB|%|[MG] cycles)(?:\W|$))", _KEPT, text)


def computes_in_floats(graph: Graph) -> bool:
    """Test whether all layers with multiply-accumulates write floats."""
    written = [graph.tensors[t].dtype for op in graph.ops if op.macs for t in op.outputs]
    return bool(written) and all(dtype.startswith("float") for dtype in written)


def command_lines(label: str, command: str) -> list[str]:
    """Return a command line for a POSIX shell behind a label; a long line continues before options."""
    width, lines = COLUMNS - _LABEL - 4, [""]
    for option in re.split(r" (?=-)", command):
        parts = [option] if len(option) <= width else option.split(" ")
        for part in parts:
            if lines[-1] and len(lines[-1]) + 1 + len(part) > width:
                lines.append(f"  {part}")
            else:
                lines[-1] = f"{lines[-1]} {part}" if lines[-1] else part
    starts = (f"{label:<{_LABEL}}", *[" " * _LABEL] * len(lines))
    ends = (*[" \\"] * (len(lines) - 1), "")
    return [start + line + end for start, line, end in zip(starts, lines, ends, strict=False)]


def trade(plan: Plan, own: Estimate, points: Sequence[tuple[int, float]], estimates: Sequence[Estimate]) -> str:
    """Return the cost of fewer bytes and the gain of more bytes, by the frontier's next plans; empty without
    neighbours.
    """
    rows = sorted((peak, e.instructions) for (peak, _), e in zip(points, estimates, strict=True))
    fewer = [row for row in rows if row[0] < plan.peak and row[1] > own.instructions][-1:]
    more = [row for row in rows if row[0] > plan.peak and row[1] < own.instructions][:1]

    def percent(taken: int) -> str:
        return f"{100 * abs(taken / max(own.instructions, 1) - 1):.1f} %"

    costs = [f"{plan.peak - peak} bytes fewer cost {percent(taken)} more instructions" for peak, taken in fewer]
    saves = [f"{peak - plan.peak} bytes more save {percent(taken)} of the instructions" for peak, taken in more]
    return "; ".join((*costs, *saves))


def choices(
    plan: Plan, own: Estimate, points: Sequence[tuple[int, float]], estimates: Sequence[Estimate]
) -> list[Choice]:
    """Return the plans worth having, by ascending bytes: the chosen, the smallest, the fastest, and the best compromise."""
    rows = [
        Choice(peak, factor, e.instructions, peak == plan.peak)
        for (peak, factor), e in zip(points, estimates, strict=True)
    ]
    if not any(row.chosen for row in rows):
        rows.append(Choice(plan.peak, work_factor(plan), own.instructions, True))
    first = [
        next(row for row in rows if row.chosen),
        min(rows, key=lambda row: row.peak),
        min(rows, key=lambda row: row.instructions),
    ]
    rest = sorted((row for row in rows if row not in first), key=lambda row: row.peak * max(row.instructions, 1))
    kept = list(dict.fromkeys([*first, *rest]))[:_CHOICES]
    return sorted(kept, key=lambda row: row.peak)


def choice_lines(found: Sequence[Choice]) -> list[str]:
    """Return the table of plans worth having; empty for a single plan."""
    if len(found) < 2:
        return []
    own = next(row for row in found if row.chosen)
    lines = ["", f"{'arena':>10} {'instructions':>16}         {'work':>7}  plans worth having: option"]
    for row in found:
        more = "" if row.chosen else f"{100 * (row.instructions / max(own.instructions, 1) - 1):+.1f} %"
        lines.append(f"{row.peak:>10} {row.instructions:>16} {more:>8} {row.factor:>6.2f}x  {row.options}")
    return lines


def bound_text(plan: Plan, frontier: Sequence[tuple[int, float]]) -> str:
    """Return how far the smallest plan is from the proven bound, as a phrase."""
    if does_twice(plan):
        return "none is proven where work is done twice"
    least = smallest_of(plan, frontier)
    if least <= plan.bound:
        return f"{plan.bound} bytes of arena: proven, no plan of the search space takes less"
    which = "the arena" if least == plan.peak else f"the smallest plan, {least} bytes,"
    return f"{plan.bound} bytes of arena: {which} is {above_text(least, plan.bound)}"


def limits(plan: Plan, layers: Sequence[Layer], origins: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the limits of a plan: the operators at the memory peak, and the slowest operator, by the file's names if
    known.
    """
    at = plan.segments[peak_segment(plan)].ops if plan.segments else ()
    names = [plan.graph.ops[o].name for o in at if not plan.graph.ops[o].view]
    names = [name for name in names if origins.get(name)] or names
    if names:
        end = f" to {names[-1]}" if len(names) > 1 and len(names[0] + names[-1]) < COLUMNS - _LABEL - 18 else ""
        more = f" and {len(names) - 1} more" if len(names) > 1 and not end else ""
        yield f"RAM is largest at {names[0]}{end}{more}"
    whole = sum(x.cycles for x in layers)
    slow = max((x for x in layers if x.kind != SOURCE), key=lambda x: x.cycles, default=None)
    if slow is not None and whole:
        yield f"{100 * slow.cycles / whole:.1f} % of the time is {slow.name}"
