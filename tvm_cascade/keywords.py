"""The keywords of `plan`, `compile`, `stages` and `optimize`, for type checkers and for `help`.

At run time the records of `request` are authoritative: `takes` gives a function the signature of their fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from os import PathLike
from typing import Any, TypedDict, TypeVar

from tvm_cascade.machine import Ram
from tvm_cascade.request import Asked

PathOrText = str | PathLike[str]
Function = TypeVar("Function", bound=Callable[..., Any])


class PlanningKeywords(TypedDict, total=False):
    """Keywords of planning, which `plan`, `compile` and `validate` take."""

    sram: int | str | None
    ram: int | str | None
    max_macs: float
    max_time: float
    stream_input: bool
    layerwise: bool
    overlap: bool
    granularity: str
    rewrite: bool | None
    time_limit: float | None
    memory: str | Ram | Sequence[str | Ram]
    objective: str
    ram_weights: int | str
    prefetch: int | str
    flash_wait: float | None
    input_shapes: Mapping[str, tuple[int, ...]] | None
    stored_io: bool
    until: str | Sequence[str]
    from_: str | Sequence[str]
    state: Mapping[str, str] | None
    stateless: bool
    hop: int | None
    axis: str | int
    hop_state: int | str | None
    database: PathOrText | None


class ValidateKeywords(PlanningKeywords, total=False):
    """Keywords of `validate` other than the model, the data, the target and the board."""

    port: str | None
    range_: tuple[float, float] | Sequence[tuple[float, float]] | None
    timeout: float


class PlanKeywords(PlanningKeywords, total=False):
    """Keywords of `plan` other than the model and the target."""

    clock: int | str | None
    watts: float | None


class CompileKeywords(PlanKeywords, total=False):
    """Keywords of `compile` other than the model, the target and the output."""

    board: str | None
    emit: str | None
    optimise: str
    name: str | None
    hook: bool
    tune: bool
    metaschedule: PathOrText | None
    trials: int
    report: PathOrText | None
    cache: bool


class SearchKeywords(TypedDict, total=False):
    """Keywords that `stages` and `optimize` have in common, other than the model and its shapes."""

    target: str
    cost: str
    device: str | None
    output: PathOrText | None
    picture: PathOrText | None
    database: PathOrText | None
    tracker: str | None
    key: str | None
    parallel: int
    time_limit: float | None
    emit: PathOrText | None
    precision: str
    arch: str | Sequence[str]
    fast_math: bool
    threads: int | None
    streams: int | None
    gpu: int
    winograd: int | None


class StagesKeywords(SearchKeywords, total=False):
    """Keywords of `stages`."""

    batch: int | None
    unit: str
    variant: str
    r: int | None
    s: int | None
    load: PathOrText | None
    metaschedule: PathOrText | None
    trials: int
    cudnn: bool


class OptimizeKeywords(SearchKeywords, total=False):
    """Keywords of `optimize`."""

    alpha: float
    budget: int
    rules: PathOrText | None


class QuantizeKeywords(TypedDict, total=False):
    """Keywords of `quantize` other than the model, the data, the output and the shapes."""

    calibration: str
    percentile: float
    float_first: int
    float_last: int
    range_: tuple[float, float] | Sequence[tuple[float, float]] | None


class RunKeywords(TypedDict, total=False):
    """Keywords of `run` other than the folder and the inputs."""

    board: str | None
    frames: PathOrText | None
    outputs: PathOrText | None
    check: PathOrText | None
    port: str | None
    timeout: float | None


class FrontEndKeywords(TypedDict, total=False):
    """Keywords of `front_end` other than the folder."""

    name: str
    sample_rate: int
    window_ms: int
    step_ms: int
    channels: int
    low_hz: float
    high_hz: float
    smoothing_bits: int
    even_smoothing: float
    odd_smoothing: float
    least_signal: float
    gain: bool
    gain_strength: float
    gain_offset: float
    gain_bits: int
    log: bool
    log_shift: int
    span: int


def takes(keywords: type, *records: type[Asked]) -> Callable[[Function], Function]:
    """Decorator that lists `keywords`, with the records' defaults, in a function's signature in place of `**options`."""
    defaults = {f.name: f.default for record in records for f in fields(record)}
    types = keywords.__annotations__
    spelled = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=types[name])
        for name in types
    ]

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=[*own, *spelled])  # type: ignore[attr-defined]
        return function

    return decorate
