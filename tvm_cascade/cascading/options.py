"""Planner options: the user's limits and preferences, and the capabilities of the emitter.

The defaults plan the smallest peak without recompute ("at 1.00x": no multiply-accumulate is executed twice), with every
kernel variant. User requests are a `request.PlanRequest`; `passes.plan_network.plan_options` adds the core's
properties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from tvm_cascade.cores.step_model import StepModel
from tvm_cascade.errors import UsageError
from tvm_cascade.graph import ROW, Tile
from tvm_cascade.request import PlanRequest

if TYPE_CHECKING:
    from tvm_cascade.cascading.plan import Plan

CHUNKS = (16, 8, 4, 2, 1)  # pixels a step that are tried, coarse first


class Price(Protocol):
    """The price of a plan, by kernels."""

    def __call__(self, plan: Plan) -> float | None:
        """Return an inference's instructions; None if kernels are unknown."""

    def by_operator(self, plan: Plan) -> Sequence[float] | None:
        """Return the instructions by operator."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How blocks of the arena may share memory."""

    alignment: int = 4  # bytes, of every block
    overlap: bool = False  # outputs may be written into the dead part of a dying input (`cascading.overlap`)
    in_place: bool = False  # element-wise operators may overwrite their input, also without `overlap`
    rings_follow: bool = True  # with `overlap`: so may rolling buffers


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options for `plan_graph`, and the kernel variants allowed. Raises `UsageError` for a wrong value."""

    sram: int | None = None  # cap in bytes; None asks for the smallest peak
    max_macs: float = 1.0  # executed multiply-accumulates, as a factor of the network's
    stream_input: bool = False  # inputs arrive row by row through a callback instead of lying in the arena
    layerwise: bool = False  # every operator a segment of its own, in file order
    overlap: bool = True  # a segment's output may follow its dying input through the same memory
    granularity: str = "auto"  # units of rolling buffers: "row", "pixel", or "auto" for the better of both
    alignment: int = 4  # bytes, of every block in the arena
    finest: int = 1  # least pixels of a step; 0: whole rows only
    narrowest: int = 1  # least columns of a stripe of the last map
    max_time: float = 1.2  # without a cap: estimated instructions, as a factor of those of the fastest plan
    spare: float = 0.0  # without a cap: share of the smallest arena that a clearly faster plan may add
    steps: StepModel | None = None  # instructions of a step on the target; None: unknown, and `max_time` does not count
    price: Price | None = None  # instructions of a plan by its kernels; None: by `steps`
    draft: bool = False  # to compare networks: only the execution order of the fewest live bytes, single rows a step
    # kernel variants that plans may use; switched off only in tests, and to measure how much a variant saves
    pixels: bool = True  # kernels that compute part of a row; without them "auto" means rows
    accumulators: bool = True  # operators with `accumulator_bytes` that consume their input row by row
    stripes: bool = True  # kernels that compute the columns of a stripe; needed for recompute
    row_addresses: bool = True  # kernels that find rows by a table of addresses
    in_place: bool = True  # element-wise kernels that overwrite their input

    def __post_init__(self) -> None:
        PlanRequest.of({name: getattr(self, name) for name in self.__slots__})  # validates the fields that it shares
        if self.alignment < 1:
            raise UsageError(f"an alignment of {self.alignment} bytes: give at least 1")

    @property
    def untimed(self) -> PlanOptions:
        """Copy these options without the limits on instructions."""
        return replace(self, max_time=1.0, spare=0.0, steps=None, price=None)

    @property
    def settings(self) -> Settings:
        """Return how blocks may share memory; `in_place` counts only together with `overlap`."""
        return Settings(self.alignment, self.overlap, self.in_place and self.overlap)

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """Tiles that a step may write, coarse first: a row, then fewer and fewer pixels."""
        if self.granularity == "row" or not self.pixels or not self.finest:
            return (ROW,)
        fine = tuple(Tile(columns=n) for n in CHUNKS if n >= self.finest)
        return fine if self.granularity == "pixel" else (ROW, *fine)
