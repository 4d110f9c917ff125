"""Replay of a frame plan on symbols, beside the whole window: it shares nothing with the planner but the network.

A row is a number for an expression of stream rows and padding; equal numbers are equal expressions. Only rows kept by
the plan survive a frame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from tvm_cascade.errors import ValidationError
from tvm_cascade.sliding.frame import FramePlan
from tvm_cascade.sliding.network import SlidingNetwork, Step

Row = int


@dataclass
class _Symbols:
    """Numbers for expressions: equal expressions get equal numbers."""

    numbers: dict[Hashable, Row] = field(default_factory=dict)

    def of(self, expression: Hashable) -> Row:
        return self.numbers.setdefault(expression, len(self.numbers))


def validate(plan: FramePlan, frames: int) -> None:
    """Raise `ValidationError` unless `frames` frames from a clear state give the whole window's outputs.

    Outputs are compared from the first frame with a full window on. A frame may read only rows it has.
    """
    network, symbols = plan.network, _Symbols()
    rows = network.series[network.input].rows or 0
    state: dict[int, list[Row]] = {
        t: [symbols.of(("clear", t))] * p.state_rows
        for t, p in enumerate(plan.series)
        if p is not None and p.state_rows
    }
    totals = {t: Counter({symbols.of(("clear", network.producer[t].inputs[0])): _summed(plan, t)}) for t in plan.totals}
    for frame in range(1, frames + 1):
        end = frame * plan.hop
        window = [symbols.of(("stream", at)) for at in range(end - rows, end)]
        made, state = _frame(plan, symbols, state, window[max(rows - plan.hop, 0) :], totals)
        if end < rows:
            continue
        wanted = _whole(network, symbols, window)
        for tensor in network.outputs:
            if made[tensor] != wanted[tensor]:
                name = network.series[tensor].name
                raise ValidationError(f"frame {frame}: output {name} is not that of the whole window")


def _summed(plan: FramePlan, tensor: int) -> int:
    """Count the rows in a tensor's running sum."""
    interior = plan.reach.interiors[plan.network.producer[tensor].inputs[0]]
    return 0 if interior is None else interior.end - interior.first


def _total(
    plan: FramePlan, step: Step, values: dict[int, dict[int, Row]], state: list[Row], total: Counter[Row]
) -> None:
    """Add the entering rows to a running sum, and subtract the leaving rows, found in the old state."""
    tensor = step.inputs[0]
    own, interior = plan.series[tensor], plan.reach.interiors[tensor]
    if own is None or interior is None:
        raise ValidationError(f"{step.name} sums rows that nobody keeps")
    total.update(values[tensor][r] for r in range(interior.end - own.shift, interior.end))
    first = interior.first - own.held[0]
    total.subtract(state[first : first + own.shift])


def _whole(network: SlidingNetwork, symbols: _Symbols, window: list[Row]) -> dict[int, dict[int, Row]]:
    values = {network.input: dict(enumerate(window))}
    for step in network.steps:
        values[step.output] = _rows_of(network, step, symbols, values, range(network.series[step.output].rows or 1))
    return values


def _frame(
    plan: FramePlan,
    symbols: _Symbols,
    state: dict[int, list[Row]],
    new: list[Row],
    totals: dict[int, Counter[Row]],
) -> tuple[dict[int, dict[int, Row]], dict[int, list[Row]]]:
    """Compute the rows available in a frame, by tensor, and the state left behind."""
    network = plan.network
    values: dict[int, dict[int, Row]] = {}
    after: dict[int, list[Row]] = {}
    for tensor, step in [(network.input, None), *((s.output, s) for s in network.steps)]:
        own = plan.series[tensor]
        if own is None:
            continue
        first = own.entering[0] - own.held[0] if own.moves else 0  # where the frame before left the rows kept
        have = dict(zip(range(*own.kept), state.get(tensor, [])[first:], strict=False))
        wanted = [r for part in own.computed for r in range(*part)]
        if step is None:
            have |= dict(zip(wanted, new, strict=True))
        elif tensor in totals:
            _total(plan, step, values, state[step.inputs[0]], totals[tensor])
            whole = totals[tensor].copy()
            whole.update(values[step.inputs[0]][r] for rows in plan.border_of(step) for r in range(*rows))
            have |= {0: symbols.of((_sum(tensor, whole),))}
        else:
            have |= _rows_of(network, step, symbols, values, wanted)
        values[tensor] = have
        if own.state_rows:
            older = own.held[1] - own.held[0]
            left = own.held if own.moves else own.entering
            after[tensor] = [*state[tensor][older:], *(have[r] for r in range(*left))]
    return values, after


def _rows_of(
    network: SlidingNetwork, step: Step, symbols: _Symbols, values: dict[int, dict[int, Row]], rows: range | list[int]
) -> dict[int, Row]:
    """Compute rows of an operator's output as expressions in the inputs."""
    made: dict[int, Row] = {}
    for row in rows:
        read: list[Hashable] = [step.output]
        for position, tensor in enumerate(step.inputs):
            height = network.series[tensor].rows
            if height is None:
                read.append(values[tensor].get(0))
                continue
            window = network.window(step, position)
            taps = [window.first(row) + k * window.dilation for k in range(window.extent)]
            for tap in taps:
                if 0 <= tap < height and tap not in values[tensor]:
                    raise ValidationError(
                        f"{step.name} reads row {tap} of {network.series[tensor].name}: nobody has it"
                    )
            read.append(tuple(values[tensor][t] if 0 <= t < height else None for t in taps))
        if step.total_bytes:
            read = [_sum(step.output, Counter(values[step.inputs[0]].values()))]
        made[row] = symbols.of(tuple(read))
    return made


def _sum(tensor: int, terms: Counter[Row]) -> Hashable:
    """Make the symbol for a sum of rows, in any order."""
    return tensor, frozenset((row, count) for row, count in terms.items() if count)
