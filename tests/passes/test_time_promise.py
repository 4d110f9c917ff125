"""What a plan may cost in time: by one price, the estimate that is printed, without a cap and under one."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tvm.ir import IRModule

from tvm_cascade import api
from tvm_cascade.results import PlanResult
from tvm_cascade.testing import time_series

FLOATS = (time_series.dilated, time_series.keyword)
ZOO = [(net, "int8") for net in time_series.NETWORKS] + [(net, "float32") for net in FLOATS]
Build = Callable[..., IRModule]


@cache
def planned(network: Build, dtype: str, **options: Any) -> PlanResult:
    return api.plan(network(dtype), target="cortex-m4", **options)


def taken(result: PlanResult) -> int:
    return sum(e.instructions for e in result.operators)


def points(result: PlanResult) -> list[tuple[int, int]]:
    """Bytes and instructions of the plans on the frontier that do nothing twice."""
    pairs = zip(result.frontier, result.estimates, strict=True)
    return [(peak, e.instructions) for (peak, work), e in pairs if work == 1.0]


@pytest.mark.parametrize(("network", "dtype"), ZOO)
def test_the_default_takes_hardly_more_than_the_fastest(network: Build, dtype: str) -> None:
    default, fastest = planned(network, dtype), planned(network, dtype, max_time=1.0)
    assert taken(default) <= 1.2 * taken(fastest) and default.plan.peak <= fastest.plan.peak
    own = (default.plan.peak, taken(default))
    assert own in points(default)
    assert any(peak <= fastest.plan.peak and n <= 1.01 * taken(fastest) for peak, n in points(default))
    assert own[0] == min(peak for peak, n in points(default) if n <= 1.2 * taken(fastest))


@pytest.mark.parametrize(("network", "dtype"), ZOO)
def test_under_a_cap_the_plan_takes_hardly_more_than_the_fastest_within(network: Build, dtype: str) -> None:
    known = points(planned(network, dtype))
    for cap in {known[0][0], known[0][0] + (known[-1][0] - known[0][0]) // 2, known[-1][0]}:
        capped = planned(network, dtype, sram=cap)
        within = [(peak, n) for peak, n in known if peak <= cap]
        least = min(n for _, n in within)
        assert capped.plan.peak <= cap and taken(capped) <= 1.03 * least
        assert any(peak <= 1.01 * capped.plan.peak and n <= 1.03 * taken(capped) for peak, n in known)


def test_the_suggested_factor_gives_the_arena_that_is_promised() -> None:
    told = {n: s for n in time_series.NETWORKS for s in planned(n, "int8").suggestions if s.startswith("--max-time")}
    assert told
    network, line = next(iter(told.items()))
    default = planned(network, "int8")
    found = re.match(r"--max-time (\S+): an arena of (\d+) bytes in place of (\d+)", line)
    assert found is not None
    more = planned(network, "int8", max_time=float(found[1]))
    assert more.plan.peak <= int(found[2]) and default.plan.peak == int(found[3])
    assert taken(more) <= float(found[1]) * taken(planned(network, "int8", max_time=1.0))


@pytest.mark.emulator
@pytest.mark.parametrize("network", [time_series.activity, time_series.dilated])
def test_counted_in_the_emulator(emulator: None, tmp_path: Path, network: Build) -> None:
    counts = []
    for most in (1.2, 1.0):
        api.compile(network(), target="cortex-m4", output=tmp_path / str(most), max_time=most)
        counts.append(api.run(tmp_path / str(most)).instructions)
    assert counts[0] <= 1.27 * counts[1]


def test_few_bytes_give_way_to_a_twentieth_of_the_instructions(test_data: Path) -> None:
    """The network has plans of 27,996 and of 28,032 bytes; the smaller takes a sixth more instructions."""
    path = test_data / "models" / "vww_96_int8.tflite"
    default, smallest = (api.plan(path, target="cortex-m4", max_time=most) for most in (None, 1.2))
    assert smallest.plan.peak < default.plan.peak <= 1.005 * smallest.plan.peak
    assert taken(default) <= 0.95 * taken(smallest)
    assert default.plan.bound <= smallest.plan.peak
    assert smallest.plan.peak in [peak for peak, _ in points(default)]
    assert f"{smallest.plan.peak} bytes in place of {default.plan.peak}" in " ".join(default.suggestions)
    assert api.plan(path, target="cortex-m4", sram="min").plan.peak == smallest.plan.peak
