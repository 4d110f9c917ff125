"""The output of `benchmark` under `--json`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from tvm_cascade.schema.units import Count, Ratio


class Against(TypedDict):
    """Another measurement to compare with."""

    folder: Annotated[str, "Its folder"]
    where: Annotated[str, "Where it ran"]
    median: Annotated[Ratio, "Its median"]
    ratio: Annotated[Ratio, "Median of this one divided by that of the other"]


class LayerTime(TypedDict):
    """Time of a single layer in a single inference."""

    name: Annotated[str, "Its tensor"]
    kind: Annotated[str, "Kind of its operator"]
    value: Annotated[Ratio, "In the unit of the benchmark; of ms the median"]
    share: Annotated[Ratio, "Share of all layers together"]


class _SometimesOfBenchmark(TypedDict, total=False):
    layers: Annotated[list[LayerTime], "With --by-layer or --trace: layers in execution order"]
    line_ms: Annotated[Ratio, "With --port: milliseconds of a request without an inference, taken off every value"]


class Benchmark(_SometimesOfBenchmark):
    """Times or instructions of an emitted program's runs."""

    folder: Annotated[str, "The folder"]
    where: Annotated[str, "Where it ran: a board, 'host', a board 'at' a port, or TVM's target of a folder of stages"]
    unit: Annotated[str, "'ms', or 'instructions' on an emulated board, which are the same in every run"]
    runs: Annotated[Count, "Runs that were counted"]
    median: Annotated[Ratio, "Median of them"]
    low: Annotated[Ratio, "First quartile"]
    high: Annotated[Ratio, "Third quartile"]
    match: Annotated[bool | None, "Whether the outputs are those of the reference; null without --check"]
    verdict: Annotated[str, "How the outputs compare with the reference, in words; empty without --check"]
    against: Annotated[Against | None, "The other measurement; null without --against"]
