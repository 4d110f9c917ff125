"""Instruction-count model for steps by rows, pixels and stripes: an estimate, by which plans can trade bytes for time.

The model needs no kernels, so a search can ask about every plan. A plan's reported cost is counted in the kernels
(`schedules.tuning.plan_cost`).

The source of each rate (counts are of images or layers in the emulator):
multiply-accumulates (`dense`, `depthwise`): fitted to four networks, layer by layer, on Cortex-M3, -M4 and -M55
    (non-negative least squares, within 5 %);
steps by pixels: fitted on -M4 and -M55 to three of the networks, in steps of 1 to 16 pixels with copied windows (errors up
    to 10 % of an image), then raised by hand, because windows may also be read in place, until no counted image takes more
    than it was allowed; -M3 and other cores are set from -M4;
stripes: solved from two networks by rows without overlap, person_detect and resnet8, in stripes of 8 and 12;
`moved`: from the sums, tables and pools among these layers;
parts of a concat: the largest excess over the whole concat, of layers (1x1, 3x3, depthwise) over 16x16 pixels of 64 channels
    in three parts; the generic kernel's is SwiftNet's on -M3 and -M4, on -M55 that of -M4;
`row_table`: set by hand above most layers counted alone (`rfc/0006`);
`flash`: an assumption, four wait states for a line of sixteen bytes;
`cycle`: the median over families of kernels (`schedules/data/cycles.json`); of -M85 and RISC-V that of -M55 and -M3.
`benchmarks/step_model.py` prints estimates next to the counts of `benchmarks/results/cortex_m.md`. Other cores and networks
may exceed the limit. Plans are limited by instructions, not cycles.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_cascade.graph import Op

_FEW = 3  # pixels per step, at and below which the loading of weights costs extra


@dataclass(frozen=True, slots=True)
class StepModel:
    """Instructions of a core, per multiply-accumulate unless a field says otherwise."""

    dense: float  # convolutions and products
    depthwise: float
    call: float  # per step by pixels: the call of its kernel
    word: float  # per four bytes of scratch that locates a step's window
    moved: float  # per byte that an operator without multiply-accumulates reads or writes
    dense_single: float  # added where a step makes one pixel
    dense_few: float  # added where it makes two or three
    depthwise_single: float
    depthwise_few: float
    stripe: float  # per row of a stripe: its kernel's call, its table, its edges
    stripe_few: float  # added where a stripe is three columns wide or less
    dense_parts: float  # added where the operator reads the parts of a concat
    depthwise_parts: float
    unscheduled: float  # in place of these for the generic kernel, which reads parts of a concat or tiles channels
    row_table: float  # per row and two output channels, for multi-row kernels of windows larger than a pixel
    cycle: float  # cycles per instruction, where memory answers at once
    flash: float = 0.25  # per byte of weights that is read from flash

    def whole(self, op: Op) -> float:
        """Estimate the instructions for an operator in steps of whole rows."""
        if op.kernels.channel_tiling is not None:
            return op.macs * self.unscheduled
        base, parts = (self.depthwise, self.depthwise_parts) if _depthwise(op) else (self.dense, self.dense_parts)
        return op.macs * (base + parts if reads_parts(op) else base)

    def extra(self, op: Op, rows: int, columns: int, chunk: int) -> float:
        """Estimate the additional instructions for `rows` x `columns` pixels in steps of `chunk` pixels."""
        chunk = min(chunk, columns)
        total = 0.0
        for n, steps in ((chunk, columns // chunk * rows), (columns % chunk, rows)):
            if n:
                words = op.kernels.tile_workspace_bytes(n) / 4
                total += steps * (self.call + self.word * words + self._dearer(op, n) * op.macs * n / (rows * columns))
        return total

    def striped(self, op: Op, rows: int, columns: int, width: int) -> float:
        """Estimate the additional instructions for a stripe, `rows` high, with `width` out of an operator's `columns`."""
        narrow = self.stripe_few * op.macs * width / columns if width <= _FEW else 0.0
        return rows * self.stripe + narrow

    def multi_row(self, op: Op, rows: int, channels: int, tile_rows: int) -> float:
        """Estimate the instructions for `rows` rows with `channels` channels that depend on a tile's rows."""
        streamed = -(-rows // tile_rows) * op.weight_bytes * self.flash
        single = all(w is not None and w.extent == 1 for w in (*op.windows, *op.columns))
        return streamed + (0.0 if tile_rows == 1 or single else self.row_table * rows * channels / 2)

    def _dearer(self, op: Op, pixels: int) -> float:
        """Return the additional instructions per multiply-accumulate in a kernel for `pixels` pixels."""
        few = (self.depthwise_single, self.depthwise_few) if _depthwise(op) else (self.dense_single, self.dense_few)
        return few[0] if pixels == 1 else few[1] if pixels <= _FEW else 0.0


def reads_parts(op: Op) -> bool:
    """Return True if an operator reads the parts of a concat in place."""
    return op.kind.startswith("concat_")


def _depthwise(op: Op) -> bool:
    return op.kind.removeprefix("concat_").startswith("depthwise")
