"""Plans of frames: replayed on symbols beside the whole window, and their figures for networks that are counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import IDENTITY, Window
from tvm_cascade.sliding import Series, SlidingNetwork, Step, frame_frontier, interiors, plan_frame
from tvm_cascade.sliding.describe import frame_record
from tvm_cascade.sliding.validate import validate


def chain(rows: int, *windows: Window | None, macs: int = 10) -> SlidingNetwork:
    """A network of one operator after the other; None reads all rows."""
    series, steps = [Series("window", rows, 1)], []
    for k, window in enumerate(windows):
        height = series[-1].rows or 0
        made = None if window is None else (height + 2 * window.padding - window.span) // window.stride + 1
        series.append(Series(f"t{k}", made, 1))
        steps.append(Step(f"op{k}", (k,), k + 1, (window,), macs))
    return SlidingNetwork(tuple(series), tuple(steps), 0, (len(windows),))


def random_network(rng: np.random.Generator) -> SlidingNetwork:
    """Operators with random windows over random tensors, some of two inputs, some of which read all rows."""
    series, steps = [Series("window", int(rng.integers(8, 30)), 1)], []
    for k in range(int(rng.integers(2, 7))):
        source = int(rng.integers(max(len(series) - 3, 0), len(series)))
        height = series[source].rows
        others = [t for t, s in enumerate(series) if s.rows == height and t != source]
        if height is None or height < 6 or rng.random() < 0.1:
            step = Step(f"op{k}", (source,), len(series), (None,), 7)
            made = None
            if height is not None and rng.random() < 0.5:
                step = replace(step, macs=0, total_bytes=4, terms=int(rng.integers(1, 30)))
        elif others and rng.random() < 0.4:
            step = Step(f"op{k}", (source, others[0]), len(series), (IDENTITY, IDENTITY), 3)
            made = height
        elif rng.random() < 0.2:  # a slice
            begin, stride = int(rng.integers(0, height)), int(rng.integers(1, 3))
            made = int(rng.integers(1, (height - begin - 1) // stride + 2))
            step = Step(f"op{k}", (source,), len(series), (Window(1, stride, padding=-begin),), 0, True)
        else:
            extent, stride, dilation = (int(rng.integers(1, n)) for n in (4, 4, 3))
            window = Window(extent, stride, dilation, int(rng.integers(0, (extent - 1) * dilation + 1)))
            after = int(rng.integers(0, window.span))
            made = (height + window.padding + after - window.span) // stride + 1
            free = rng.random() < 0.2
            step = Step(f"op{k}", (source,), len(series), (window,), 0 if free else 10, free)
        series.append(Series(f"t{k}", made, int(rng.integers(1, 9))))
        steps.append(step)
    outputs = {len(series) - 1, int(rng.integers(1, len(series)))}
    return SlidingNetwork(tuple(series), tuple(steps), 0, tuple(sorted(outputs)))


@pytest.mark.parametrize("seed", range(120))
def test_every_frame_is_the_whole_window(seed: int) -> None:
    rng = np.random.default_rng(seed)
    network = random_network(rng)
    rows = network.series[0].rows or 0
    for hop in (1, 2, 3, rows - 1, rows, rows + 2):
        for plan in frame_frontier(network, hop)[:3]:
            validate(plan, 3 * rows // hop + 8)
            assert (
                plan.least_macs <= plan.macs <= plan.whole_macs or hop > 1
            )  # tiny windows: a row may be computed twice


def test_a_plan_that_keeps_the_wrong_rows_is_found() -> None:
    plan = plan_frame(chain(20, Window(3), Window(3), None), 1)
    validate(plan, 60)
    kept = plan.series[2]
    assert kept is not None and kept.state_rows
    wrong = replace(plan, series=(*plan.series[:2], replace(kept, shift=kept.shift + 1), *plan.series[3:]))
    with pytest.raises((ValidationError, KeyError)):
        validate(wrong, 60)


def test_valid_convolutions_compute_the_new_row_alone() -> None:
    plan = plan_frame(chain(64, Window(3), Window(3, dilation=2), IDENTITY, None), 1)
    assert [p and p.rows for p in plan.series] == [1, 1, 1, 1, 1]
    assert [p and p.state_rows for p in plan.series] == [3, 5, 0, 58, 0]  # what windows read, and the mean
    assert plan.macs == plan.least_macs == 10 * (3 + 3 + 1 + 1) and plan.whole_macs == 10 * (3 * 62 + 3 * 58 + 58 + 1)


def test_the_last_rows_alone_are_computed_and_kept() -> None:
    """Causal convolutions of which the last three rows are read: nothing of what depends on padding is computed."""
    series = [
        Series("window", 32, 4),
        *(Series(f"t{k}", 32, 8) for k in range(3)),
        Series("tail", 3, 8),
        Series("y", None, 5),
    ]
    causal = [Step(f"op{k}", (k,), k + 1, (Window(3, padding=2),), 10) for k in range(3)]
    tail = Step("slice", (3,), 4, (Window(1, padding=-29),), 0, True)
    network = SlidingNetwork(tuple(series), (*causal, tail, Step("dense", (4,), 5, (None,), 7)), 0, (5,))
    plan = plan_frame(network, 1)
    assert plan.refusal() is None
    assert [p and p.rows for p in plan.series] == [1, 1, 1, 1, 3, 1]
    assert [p and p.state_rows for p in plan.series] == [
        3,
        3,
        3,
        3,
        0,
        0,
    ] and plan.macs == plan.least_macs == 3 * 30 + 7
    validate(plan, 100)


def test_the_input_is_kept_in_the_layout_that_is_read() -> None:
    turned = Step("transpose", (0,), 1, (IDENTITY,), 0, True)
    series = (Series("window", 20, 4), Series("turned", 20, 4), Series("y", 18, 8))
    network = SlidingNetwork(series, (turned, Step("conv", (1,), 2, (Window(3),), 10)), 0, (2,))
    plan = plan_frame(network, 1)
    assert network.carrier == 1 and [p and p.state_rows for p in plan.series] == [0, 3, 18]
    validate(plan, 60)
    wider = replace(network, series=(series[0], Series("real", 20, 16), series[2]))
    assert wider.carrier == 0 and [p and p.state_rows for p in plan_frame(wider, 1).series] == [3, 0, 18]


def test_padding_at_the_border_is_computed_for_the_border_rows_alone() -> None:
    same = Window(3, padding=1)
    plan = plan_frame(chain(40, same, same, None), 1)
    assert [p and p.computed for p in plan.series] == [((39, 40),), ((0, 1), (38, 40)), ((0, 2), (37, 40)), ((0, 1),)]


def test_strides_that_do_not_divide_the_hop_keep_rows_of_several_frames() -> None:
    network = chain(50, Window(4, stride=2), Window(3), None)
    two, one = plan_frame(network, 2), plan_frame(network, 1)
    assert [(p.period, p.shift, p.rows) for p in two.series[:-1] if p] == [(1, 2, 2), (1, 1, 1), (1, 1, 1)]
    assert [(p.period, p.shift, p.rows) for p in one.series[:-1] if p] == [(1, 1, 1), (2, 1, 1), (2, 1, 1)]
    assert one.macs == two.macs
    validate(one, 120)


def test_the_frontier_trades_state_for_work() -> None:
    same = Window(3, padding=1)
    points = [(p.state_bytes, p.macs) for p in frame_frontier(chain(40, same, same, same, None), 1)]
    assert points == sorted(points, reverse=True) or points == sorted(points, key=lambda p: (-p[0], p[1]))
    assert points[0][1] < points[-1][1] and len(points) > 2


def test_what_ends_reuse_is_named() -> None:
    assert plan_frame(chain(40, Window(3), None), 1).refusal() is None
    for network, hop, operators, reason in (
        (chain(40, None, None), 1, ("op0",), "op0 ends it: it reads all rows at once"),
        (chain(16, *[Window(3, stride=2, padding=1)] * 3, None), 1, ("op2",), "op2 ends it"),
        (chain(40, Window(3), None), 40, (), "a hop of 40 rows"),
    ):
        refused = plan_frame(network, hop).refusal()
        assert refused is not None and refused.operators == operators and reason in refused.reason


def test_operators_of_unequal_strides_have_no_interior() -> None:
    series = (Series("x", 20, 1), Series("a", 10, 1), Series("b", 10, 1), Series("y", 10, 1))
    steps = (
        Step("halved", (0,), 1, (Window(1, stride=2),)),
        Step("cut", (0,), 2, (Window(1, padding=-5),)),
        Step("add", (1, 2), 3, (IDENTITY, IDENTITY)),
    )
    reach = interiors(SlidingNetwork(series, steps, 0, (3,)))
    assert reach.interiors[3] is None and "different strides" in reach.reasons[3]


def test_the_work_of_the_border_is_told() -> None:
    """Of two `same` convolutions, two rows and four; one row of each is new."""
    same = Window(3, padding=1)
    plan = plan_frame(chain(40, same, same, None), 1)
    told = frame_record(plan)
    assert told["border_rows"] == {"op0": 2, "op1": 4}
    assert told["border_macs"] == 10 * (2 + 2) + 10 * (2 + 3 + 3 + 2)  # taps on padding are no work
    assert told["macs"] == told["border_macs"] + 10 * (3 + 3 + 1)


def summed(rows: int, *windows: Window | None, terms: int = 8) -> SlidingNetwork:
    """A chain whose last operator is a function of the sum of all rows, of eight elements each."""
    network = chain(rows, *windows, None)
    last = replace(network.steps[-1], macs=0, total_bytes=32, terms=terms)
    return replace(network, steps=(*network.steps[:-1], last))


@pytest.mark.parametrize(("windows", "hop"), [((3,), 1), ((3,), 4), ((3, 5), 2)])
@pytest.mark.parametrize("padding", [0, 1])
def test_sums_run(windows: tuple[int, ...], hop: int, padding: int) -> None:
    """A frame adds the rows that enter and subtracts those that leave; rows with padding are added in every frame."""
    network = summed(60, *(Window(k, padding=padding) for k in windows))
    plan = plan_frame(network, hop)
    before = network.series[-2].rows or 0
    border = before - (60 - sum(k - 1 for k in windows))
    assert plan.totals == {len(network.series) - 1} and plan.additions == 8 * (2 * hop + border)
    validate(plan, 200)
    without = plan_frame(network, hop, plan.totals)
    assert (without.additions, without.macs) == (8 * before, plan.macs)
    assert without.state_bytes == plan.state_bytes - 32
    totals = [p.totals for p in frame_frontier(network, hop)]
    assert totals[0] == plan.totals and totals[-1] == frozenset()


def test_rows_at_both_ends_may_be_kept_at_one() -> None:
    """Padding makes rows at the window's begin, which need rows of the maps in front: kept for long, or computed again."""
    network = chain(60, Window(3, padding=2), Window(3, padding=2), None)
    plans = frame_frontier(network, 1)
    kept = [None if own is None else own.kept for own in (p.series[1] for p in plans)]
    assert kept == [(2, 59), (57, 59), (0, 0), (0, 0)]
    assert [(p.macs, p.state_bytes) for p in plans] == [(310, 186), (370, 129), (430, 124), (3670, 60)]
    for plan in plans:
        validate(plan, 150)


def test_sums_that_do_not_run() -> None:
    """Of few rows, and of rows that move up every second frame alone."""
    assert not plan_frame(summed(20, Window(3)), 1).totals
    assert not plan_frame(summed(80, Window(2, stride=2)), 1).totals
    assert plan_frame(summed(80, Window(2, stride=2)), 2).totals


def test_a_sum_that_cannot_run_is_found() -> None:
    """Rows that move up every second frame: those that leave are not in the state any more."""
    plan = plan_frame(summed(80, Window(2, stride=2)), 1)
    validate(plan, 170)
    with pytest.raises((ValidationError, KeyError)):
        validate(replace(plan, totals=frozenset((2,))), 170)
