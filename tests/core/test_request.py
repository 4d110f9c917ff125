"""Requests: every value is checked in one place, unknown options are named, and signatures agree with the records."""

from __future__ import annotations

import inspect
from dataclasses import fields
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from tvm_cascade import api
from tvm_cascade import request as records
from tvm_cascade.errors import UsageError
from tvm_cascade.request import (
    COMPILE_OPTIONS,
    PLAN_OPTIONS,
    OptimizeRequest,
    OrderRequest,
    RunRequest,
    StagesRequest,
    request_of,
)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("sram", True),
        ("sram", -1),
        ("sram", 1.5),
        ("sram", "64 Kib of it"),
        ("sram", ""),
        ("max_macs", 0.5),
        ("max_macs", nan),
        ("max_macs", inf),
        ("max_macs", "1"),
        ("max_macs", True),
        ("max_time", 0.9),
        ("max_time", nan),
        ("stream_input", 1),
        ("layerwise", None),
        ("overlap", "no"),
        ("granularity", "rows"),
        ("rewrite", "yes"),
        ("input_shapes", {"x": (1, 0)}),
        ("input_shapes", {"x": "12"}),
        ("input_shapes", {3: (1,)}),
        ("input_shapes", (1, 2)),
        ("stored_io", 0),
        ("database", 3),
        ("database", ""),
        ("tune", "no"),
        ("trials", -1),
        ("trials", 2.0),
        ("board", ""),
        ("emit", "asm"),
        ("optimise", "most"),
        ("name", " "),
        ("hook", 1),
        ("ram_weights", None),
        ("report", b"x"),
        ("clock", 0),
        ("clock", True),
        ("clock", 1.5),
        ("clock", "168"),
        ("report", "plan.pdf"),
        ("clock", "168 M"),
    ],
)
def test_what_cannot_be_is_one_message(option: str, value: object) -> None:
    with pytest.raises(UsageError, match="^--" + option.replace("_", "-")) as caught:
        request_of("host", {option: value})
    assert "give " in str(caught.value) or "write " in str(caught.value)


def test_values_get_their_own_types() -> None:
    options: dict[str, Any] = {"sram": "64KiB", "max_macs": 2, "database": "counts.json", "board": Path("b.json")}
    made = request_of("host", options | {"ram_weights": "1kB", "input_shapes": {"x": [1, 2]}, "clock": "168MHz"})
    assert (made.plan.sram, made.plan.ram_weights) == (65536, 1000)
    assert isinstance(made.plan.max_macs, float) and made.kernels.database == Path("counts.json")
    assert made.time.clock == 168_000_000
    assert made.emit.board == "b.json" and made.load.input_shapes == {"x": (1, 2)}
    assert request_of("host", {"sram": "min", "max_time": None}) == request_of("host", {"max_time": 1.2})
    assert request_of("host", {"sram": None}) == request_of("host", {})


def test_unknown_options_are_named() -> None:
    with pytest.raises(UsageError, match="unknown option srma: did you mean sram"):
        request_of("host", {"srma": 3})
    with pytest.raises(UsageError, match="unknown option hook"):
        request_of("host", {"hook": True}, PLAN_OPTIONS)


@pytest.mark.parametrize("value", [-1, 0, nan, inf, True, "60"])
def test_timeouts(value: object) -> None:
    with pytest.raises(UsageError, match="--timeout"):
        RunRequest(timeout=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "wrong"),
    [
        (StagesRequest, {"cost": "guessed"}),
        (StagesRequest, {"batch": 0}),
        (StagesRequest, {"r": -1}),
        (OptimizeRequest, {"alpha": 0.5}),
        (OptimizeRequest, {"budget": 0}),
        (OrderRequest, {"on_chip": True}),
    ],
)
def test_the_other_records(record: type, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="give "):
        record(**wrong)


def test_keywords_are_the_records_options() -> None:
    assert set(records.PlanKeywords.__annotations__) == set(PLAN_OPTIONS)
    assert set(records.CompileKeywords.__annotations__) == set(COMPILE_OPTIONS)
    assert set(records.StagesKeywords.__annotations__) == {f.name for f in fields(StagesRequest)}
    assert set(records.OptimizeKeywords.__annotations__) == {f.name for f in fields(OptimizeRequest)}


def test_signatures_teach() -> None:
    for function, record in ((api.plan, PLAN_OPTIONS), (api.compile, COMPILE_OPTIONS)):
        spelled = inspect.signature(function).parameters
        assert set(record) <= set(spelled) and "options" not in spelled
        assert spelled["max_macs"].default == 1.0
        assert all(name in (api.plan.__doc__ or "") + (function.__doc__ or "") for name in record)


def test_the_api_refuses_before_any_work(tmp_path: Path) -> None:
    missing: Any = tmp_path / "missing.tflite"
    with pytest.raises(UsageError, match="--emit 'asm'"):
        api.compile(missing, target="host", output=tmp_path / "p", emit="asm")
    with pytest.raises(UsageError, match="--timeout"):
        api.run(tmp_path, timeout=-1)
    wrong: Any = {"output": 3}
    with pytest.raises(UsageError, match="--output"):
        api.compile(missing, target="host", **wrong)
    unknown: Any = {"stride": 3}
    with pytest.raises(UsageError, match="unknown option"):
        api.stages(missing, **unknown)
