"""What the planner is asked, and what the emitter can do.

Every field is a documented switch; the defaults plan the smallest peak at 1.00x with all that the emitter can do. What a user
asks for is a `request.PlanRequest`; `passes.plan_network.plan_options` adds what follows from the core.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_cascade.cores.step_model import StepModel
from tvm_cascade.errors import UsageError
from tvm_cascade.graph import ROW, Tile
from tvm_cascade.request import PlanRequest

CHUNKS = (16, 8, 4, 2, 1)  # pixels a step, coarse first


@dataclass(frozen=True, slots=True)
class Settings:
    """How blocks of the arena may share memory."""

    alignment: int = 4  # bytes, of every block
    overlap: bool = False  # outputs behind dying inputs
    in_place: bool = False  # element-wise operators over their input, also where nothing else overlaps
    rings_follow: bool = True  # with `overlap`, rolling buffers behind dying inputs too


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Planning options and capabilities of the emitter."""

    sram: int | None = None  # cap in bytes; None asks for the smallest peak
    max_macs: float = 1.0  # executed multiply-accumulates, as a factor of the network's
    stream_input: bool = False  # inputs arrive row by row through a callback instead of lying in the arena
    slack: float = 0.0  # without a cap: how far above the smallest peak a coarser, faster plan may lie, as a fraction
    layerwise: bool = False  # every operator a segment of its own, in file order
    overlap: bool = True  # a segment's output may follow its dying input through the same memory
    granularity: str = "auto"  # of rolling buffers: "row", "pixel" or "auto"
    alignment: int = 4  # bytes, of every block in the arena
    finest: int = 1  # pixels of the smallest step; 0: rows alone
    max_time: float = 1.2  # without a cap: estimated instructions of steps by pixels, as a factor of those by rows
    steps: StepModel | None = None  # what steps cost on the target; None: no limit
    # what the emitter can do; the planner uses nothing else. Less is for tests, and for what an ability is worth
    pixels: bool = True  # kernels that make part of a row; else "auto" means rows
    accumulators: bool = True  # operators with `accumulator_bytes` that consume their input row by row
    stripes: bool = True  # kernels that make part of a row, run once for every vertical stripe; needed for recompute
    in_place: bool = True  # element-wise kernels that write over what they read

    def __post_init__(self) -> None:
        PlanRequest.of({name: getattr(self, name) for name in self.__slots__})  # refuses what cannot be
        if not self.slack >= 0.0:  # written so that nan is refused too
            raise UsageError(f"a slack of {self.slack}: give a fraction of at least 0")
        if self.alignment < 1:
            raise UsageError(f"an alignment of {self.alignment} bytes: give at least 1")

    @property
    def settings(self) -> Settings:
        """How blocks may share memory: outputs lie over their inputs only where something may overlap at all."""
        return Settings(self.alignment, self.overlap, self.in_place and self.overlap)

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """Tiles that a step may make, coarse first: a row, then fewer and fewer pixels."""
        if self.granularity == "row" or not self.pixels or not self.finest:
            return (ROW,)
        fine = tuple(Tile(columns=n) for n in CHUNKS if n >= self.finest)
        return fine if self.granularity == "pixel" else (ROW, *fine)
