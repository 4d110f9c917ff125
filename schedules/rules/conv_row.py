"""Common structure of the convolution row kernels: pixel and channel blocks, edges, bias, requantization.

A row is a list of column groups (left edge, interior, right edge). In each, blocks of `pixels` are the outer loop and
blocks of output channels the inner loop, so the packed weights are read in order. A multi-row kernel
(`schedules.forms.multi_row`) interchanges the loops: all pixels of all rows use a channel block's weights before the
next block's are read. A subclass emits the products of a run of taps, contiguous in the input: a kernel row, or a
single tap if neighbouring taps' inputs are not contiguous (dilation, groups). If the input is a removed concat, its
parts are gathered in scratch, or each part has a part kernel that adds to the same accumulators
(`schedules.rules.parts`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.storage import CODED, Storage
from tvm_cascade.schedules.rules import geometry, parts
from tvm_cascade.schedules.rules.channel_table import ChannelTable
from tvm_cascade.schedules.rules.coded import Decoder, encoded, first_weight
from tvm_cascade.schedules.rules.emit import KernelBuilder
from tvm_cascade.schedules.rules.geometry import Columns, Run, Sliding
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.packing import interleave
from tvm_cascade.schedules.rules.parts import Gather, Source
from tvm_cascade.schedules.tir import Value, i32, tirx

_SHALLOW = 4  # input channels of a convolution whose taps of padding may be counted, at most
_WORTH_COUNTING = 1024  # bytes of biases, at least, for which they are

Layer: TypeAlias = Any  # a `QuantizedConv`; or, in subclasses with an end of their own, a record with these fields


@dataclass(frozen=True, slots=True)
class Blocking:
    """The shape of a block; `pixels * channels` accumulators are live at a time."""

    pixels: int
    channels: int  # of a packed block of weights; where fewer pixels are left, a block takes several packed blocks
    unroll: int = 4  # the loop over a kernel row is fully unrolled up to this many steps
    step: int = 4  # most steps in one iteration where it is not
    rows: bool = False  # whether the loop over kernel rows is unrolled, with a test at rows that may be padding
    coded: bool = False  # whether weights are decoded, a block of channels at a time (`schedules.rules.coded`)
    narrow: bool = False  # whether biases may take three bytes (`schedules.rules.channel_table`)

    @property
    def name(self) -> str:
        """Return `PIXELSxCHANNELS uUNROLL sSTEP[ rows][ coded]`, which identifies the blocking in databases of counts."""
        more = f"{' rows' if self.rows else ''}{' coded' if self.coded else ''}"
        return f"{self.pixels}x{self.channels} u{self.unroll} s{self.step}{more}"


class ConvRow(ABC):
    """Builder for a convolution's row kernel."""

    group: int  # taps of a kernel row that are loaded at once
    stored_as = ""  # of weights in fewer bytes than int8: `Storage.name`
    by_form: bool = (
        False  # whether a subclass keeps nothing that depends on the values of weights, so that functions are shared
    )
    numbers: ChannelTable | None = None  # the table, of the subclasses that do not pack one of their own
    counts_padding = (
        False  # whether kernel rows of padding are counted as the zero point: one bias serves all output rows
    )
    less_zero = False  # whether products take inputs less their zero point: padding adds nothing
    x: Value  # the buffer that is read: an input, or the gathered windows
    part_kernels: list[Any]  # the builders that emit products: this one, or one for each part of the input
    span: tuple[Value, int] | None = None  # multi-row kernels: first and number of the current block's channels
    below: Value = 0  # multi-row kernels: output pixels of the tile's rows before the current one
    sums: Value = None  # what `window_sums` returned for the current block of pixels

    def __init__(self, conv: Layer, blocking: Blocking) -> None:
        self.blocking, self.offset = blocking, 0
        self._reads(conv)
        summed = conv.parts if not parts.gathers(conv) else ()
        self.part_kernels = [self._part_kernel(i) for i in range(len(summed))] or [self]
        weights = [t.pack_weights() for t in self.part_kernels]
        for part, before in zip(self.part_kernels[1:], accumulate(w.size for w in weights), strict=False):
            part.offset = before
        packed = np.concatenate(weights) if summed else weights[0]
        constants = (encoded(packed) if blocking.coded else packed, self.pack_table(), *parts.tables_of(conv))
        gathered = parts.gathered_bytes(conv, blocking.pixels)
        if blocking.coded:
            self.offset = first_weight(str(packed.dtype))
        scratch = (self._span_channels * self.taps + self.offset) * packed.itemsize if blocking.coded else gathered
        self.k = k = KernelBuilder(self.input_types(), constants, [conv.out_dtype], scratch, self.g.rows_by_table)
        self.gather = Gather(k, conv, blocking.pixels) if gathered else None
        self.decoder = Decoder(k, k.constants[0], k.scratch, str(packed.dtype)) if blocking.coded else None
        self.stored = (
            k.scratch if blocking.coded else k.constants[0]
        )  # the packed weights, of a block's channels or all
        for i, part in enumerate(self.part_kernels):
            part.x = k.view(k.inputs[i][0], conv.dtype, "xs") if self.gather is None else self.gather.x
        self.w = k.view(self.stored, str(conv.weights.dtype), "ws")
        self.table = k.view(k.constants[1], str(constants[1].dtype), "table")
        self.out = k.view(k.outputs[0], conv.out_dtype, "outs")

    def _reads(self, conv: Layer) -> None:
        self.conv = conv
        self.g: Sliding = conv.window
        kh, kw, self.depth, _ = conv.weights.shape
        self.length = self.depth * (1 if conv.non_contiguous else kw)  # taps of a run
        self.taps = kh * kw * self.depth  # taps of an output channel
        self.whole = self.length // self.group * self.group

    def _part_kernel(self, index: int) -> ConvRow:
        """Make the builder that emits the products of an input part: a copy limited to the part's channels."""
        part = copy(self)
        part._reads(parts.of_part(self.conv, index))
        return part

    def input_types(self) -> list[str]:
        """List the element types of the kernel's inputs."""
        return parts.inputs_of(self.conv)

    def pack_weights(self) -> np.ndarray:
        """Pack the weights, flat, in the kernel's reading order."""
        return self.arranged(lambda w: interleave(w, self.blocking.channels, self.group))

    def pack_table(self) -> np.ndarray:
        """Return the int32 table of each channel's requantization constants and biases."""
        conv = self.conv
        biases = geometry.folded_bias(self.g, conv.weights, conv.bias, conv.input_zero_point).reshape(-1, conv.outputs)
        few = conv.weights.shape[2] <= _SHALLOW and not (conv.parts or conv.non_contiguous)
        if few and biases.nbytes - 4 * conv.outputs >= _WORTH_COUNTING:
            self.counts_padding = True
            groups = self.g.column_groups()
            sums = [geometry.whole_bias(conv.weights[:, c.k0 : c.k1], conv.bias, conv.input_zero_point) for c in groups]
            biases = np.concatenate(sums)
        self.numbers = ChannelTable(conv.requantize, biases, may_share=True, narrow=self.blocking.narrow)
        return self.numbers.words

    def bias_at(self, y: Value) -> Value:
        """Return the index among a channel's biases of that for output row `y` and the first column group."""
        return 0 if self.counts_padding else geometry.bias_index(self.k, self.g, y)

    def bounds(self, y: Value) -> tuple[Value, Value]:
        """Compute the valid kernel rows [r0, r1) for output row `y`."""
        return self.g.bounds(self.k, y)

    def arranged(self, arrange: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Return the weights split into runs of taps, each channel group laid out by `arrange`, one behind another."""
        w = self.conv.weights
        runs = w.reshape(-1, 1, *w.shape[2:]) if self.conv.non_contiguous else w
        return np.concatenate([arrange(own) for own in np.split(runs, self.conv.groups, axis=3)])

    def run_lengths(self) -> list[int]:
        """Return for each column group the number of valid taps in a run."""
        return [self.depth if self.conv.non_contiguous else (c.k1 - c.k0) * self.depth for c in self.g.column_groups()]

    def without_values(self) -> Layer:
        """Return the layer as far as the function depends on it."""
        blank = self.conv.without_values()
        return replace(blank, input_zero_point=self.conv.input_zero_point) if self.counts_padding else blank

    def build(self) -> RowKernel:
        """Build the kernel for a row, or for the window's `tile_rows`."""
        saved = self.conv.weights.size - self.k.arrays[0].nbytes
        stored_as = CODED if self.blocking.coded else self.stored_as
        form = _form(self, (self.blocking, self.numbers and self.numbers.layout))
        if self.g.tile_rows:
            kernel = self.k.kernel(self._several_rows, self.g.tile_rows, form)
        else:
            kernel = self.k.kernel(self._one_row, form=form)
        return replace(kernel, storage=Storage(stored_as, saved)) if stored_as else kernel

    def _one_row(self) -> None:
        k = self.k
        self._open()
        if self.gather is not None:
            self.rows = self.gather.rows()
        else:
            for i, part in enumerate(self.part_kernels):
                part.rows = geometry.row_offsets(k, part.g, i) if self.written_out else geometry.row_bases(k, part.g, i)
        self.r0, self.r1 = self.bounds(k.y)
        for part in self.part_kernels:  # a part shares all other attributes of the whole
            vars(part).update({name: value for name, value in vars(self).items() if name not in vars(part)})
        self.bias = self.bias_at(k.y)
        if self.decoder is None:
            self.row_columns()
            return
        for span in self._spans():
            self.span = span
            self.row_columns()

    def row_columns(self) -> None:
        for index, group in enumerate(self.g.column_groups()):
            self._columns(index, group)

    def _open(self) -> None:
        if self.numbers is not None:
            self.numbers.open(self.k, self.table)

    def _several_rows(self) -> None:
        """Emit the multi-row kernel: the loop over channel blocks is outermost. For a single input and ungrouped
        channels.
        """
        self._open()
        table = None if self.written_out else self.k.local(self.g.kernel[0], "rows")
        for span in self._spans():
            self._span(*span, table)

    def _spans(self) -> Iterator[tuple[Value, int]]:
        """Emit the loop over blocks of channels: yield first channel and number of a block, twice if the last is smaller.

        Coded weights of the block are decoded.
        """
        k, outputs, size = self.k, self.conv.outputs, self._span_channels
        if self.decoder is not None:
            self.decoder.open()
        with k.loop(outputs // size, "ob") as ob:
            channel = k.let(ob * size, "channel")
            if self.decoder is not None:
                self.decoder.next(size * self.taps)
            yield channel, size
        if outputs % size:
            if self.decoder is not None:
                self.decoder.next(outputs % size * self.taps)
            yield i32(outputs - outputs % size), outputs % size

    @property
    def _span_channels(self) -> int:
        """Return the channels computed at a time by a kernel with channels as its outermost loop."""
        outputs, widest = self.conv.outputs, max(group.stop - group.start for group in self.g.column_groups())
        pixels = self.blocking.pixels if self.blocking.coded else min(widest, self.blocking.pixels)
        return min(self._channels_of(pixels, outputs), outputs)

    def _span(self, channel: Value, count: int, table: Value) -> None:
        k, g = self.k, self.g
        self.span = channel, count
        with k.loop(g.tile_rows, "row") as row:
            y = k.let(k.y + row, "y") if g.tile_rows > 1 else k.y
            if table is None:
                self.rows = geometry.row_offsets(k, g, start=row * g.strides[0])
            else:
                geometry.store_bases(k, g, table, start=row * g.strides[0])
                self.rows = table
            self.r0, self.r1 = self.bounds(y)
            self.bias, self.below = self.bias_at(y), row * g.out_width
            self.row_columns()

    def _channels_of(self, pixels: int, outputs: int) -> int:
        """Choose the channels in a block of `pixels` pixels: several packed blocks if their number divides `outputs`."""
        size = self.blocking.channels
        room = self.blocking.pixels * size // pixels
        return size * max((n for n in range(1, room // size + 1) if outputs % (n * size) == 0), default=1)

    @property
    def written_out(self) -> bool:
        return self.blocking.rows or self.g.kernel[0] == 1 or self.gather is not None

    def _columns(self, index: int, group: Columns) -> None:
        count, pixels = group.stop - group.start, self.blocking.pixels
        if count >= pixels:
            with self.k.loop(count // pixels, "xb") as xb:
                self.pixel_block(index, group, xb * pixels + group.start, pixels)
        if count % pixels:
            self.pixel_block(index, group, i32(group.stop - count % pixels), count % pixels)

    def pixel_block(self, index: int, group: Columns, x: Value, pixels: int) -> None:
        if self.span is not None:
            self.sums = self.window_sums(group, x, pixels, 0)
            self._block(index, group, x, pixels, *self.span, 0)
            return
        outputs = self.conv.outputs // self.conv.groups
        size = self._channels_of(pixels, outputs)
        if self.gather is not None:
            self.gather.fill(group, x, pixels, self.r0, self.r1)
        with self.k.loop(self.conv.groups, "nth") as nth:
            self.sums = self.window_sums(group, x, pixels, nth)
            if outputs >= size:
                with self.k.loop(outputs // size, "ob") as ob:
                    self._block(index, group, x, pixels, ob * size + nth * outputs, size, nth)
            if outputs % size:
                last = i32(outputs - outputs % size) + nth * outputs
                self._block(index, group, x, pixels, last, outputs % size, nth)

    def _block(self, index: int, group: Columns, x: Value, pixels: int, channel: Value, size: int, nth: Value) -> None:
        acc = self.start(index, channel, pixels, size)
        if self.counts_padding:
            self.padding(acc, group, channel, pixels, size)
        for part in () if group.is_padding else self.part_kernels:  # outputs that read padding alone add nothing
            part.add(acc, group, x, pixels, channel, size, nth)
        self.outputs(acc, x + self.below if self.g.tile_rows else x, channel, pixels, size)

    def add(self, acc: Value, group: Columns, x: Value, pixels: int, channel: Value, size: int, nth: Value) -> None:
        """Emits the products of a block of `pixels` x `size` outputs from column `x`, `channel` on, in group `nth`."""
        k, g = self.k, self.g
        column = self.column(group, x, nth) if self.gather is None else 0
        runs = g.kernel[1] if self.conv.non_contiguous else 1  # of a kernel row
        stride = self.length * self.packed(size)
        weights = self.block_weights(channel)
        if self.written_out:
            for r, row in enumerate(self.rows):
                with geometry.valid_row(k, g, r, self.r0, self.r1):
                    at = k.let(row + column, "at")
                    self._kernel_row(acc, at, weights + r * runs * stride, stride, group, pixels, size)
        else:
            with k.loop(self.r1 - self.r0, "r", start=self.r0) as r:
                at = k.let(self.rows[r] + column, "at")
                places = k.let(weights + r * (runs * stride), "wat")
                self._kernel_row(acc, at, places, stride, group, pixels, size)

    def column(self, group: Columns, x: Value, nth: Value) -> Value:
        """Return the place in a row of the first valid tap for the block at column `x`, of channels in group `nth`."""
        g = self.g
        return (x * g.strides[1] - g.padding[1] + group.k0 * g.dilation[1]) * g.channels + nth * self.depth

    def _kernel_row(
        self, acc: Value, at: Value, weights: Value, stride: int, group: Columns, pixels: int, size: int
    ) -> None:
        if not self.conv.non_contiguous:
            self.row(acc, at, weights, group, pixels, size)
            return
        k, hop = self.k, self.g.dilation[1] * self.g.channels
        one = Columns(group.start, group.stop, 0, 1)
        with k.loop(group.k1 - group.k0, "tap") as tap:
            place = k.let(at + tap * hop, "at")
            self.row(acc, place, k.let(weights + (tap + group.k0) * stride, "wat"), one, pixels, size)

    def start(self, index: int, channel: Value, pixels: int, size: int) -> Value:
        """Declares accumulators [pixels][size], initialized with the biases of column group `index`."""
        assert self.numbers is not None
        k, which = self.k, self.bias + index
        acc = k.local(pixels * size, "acc")
        for j in range(size):
            bias = self.numbers.bias(k, channel + j, which)
            for p in range(pixels):
                k.store(acc, p * size + j, bias)
        return acc

    def padding(self, acc: Value, group: Columns, channel: Value, pixels: int, size: int) -> None:
        """Add the products of the zero point in the kernel rows that are padding."""
        k, g = self.k, self.g
        cut = [(0, self.r0)] if any(r[0] for r in g.rows) else []
        cut += [(self.r1, g.kernel[0])] if any(r[1] < g.kernel[0] for r in g.rows) else []
        if not cut:
            return
        stride, weights = self.length * self.packed(size), self.block_weights(channel)
        with k.when(reduce(tirx.Or, [tirx.LT(i32(start), i32(stop)) for start, stop in cut])):
            sums = k.local(size, "padding")
            for j in range(size):
                k.store(sums, j, i32(0))
            for start, stop in cut:
                with k.loop(stop - start, "r", start=start) as r:
                    places = k.let(weights + r * stride, "wat")
                    for tap in range(group.k0 * self.depth, group.k1 * self.depth):
                        for j in range(size):
                            weight = self.w[self.single_place(places, size, j, tap)].astype("int32")
                            k.store(sums, j, sums[i32(j)] + weight)
            for j in range(size):
                more = k.let(sums[i32(j)] * self.conv.input_zero_point, "more")
                for p in range(pixels):
                    k.store(acc, p * size + j, acc[i32(p * size + j)] + more)

    def window_sums(self, _group: Columns, _x: Value, _pixels: int, _nth: Value) -> Value:
        """Emit the terms `outputs` needs from the windows of a pixel block, whatever the channel; by default nothing."""
        return None

    @abstractmethod
    def row(self, acc: Value, at: Value, weights: Value, group: Columns, pixels: int, size: int) -> None:
        """Emit the products of a run's valid taps: `at` is the first tap's element in `x`, `weights` the run's in `w`."""

    def products(self, acc: Value, at: Value, weights: Value, i: Value, lo: Value, pixels: int, size: int) -> None:
        """Emit the products for group `i` in a tap run that begins at place `lo`, for `schedules.rules.clipped`."""
        raise NotImplementedError

    def add_zeros(self, sums: Value, weights: Value, taps: int, size: int) -> None:
        """Add to `sums` the products of the input's zero point and a run of `taps` taps, likewise."""
        raise NotImplementedError

    def before(self, column: Value) -> Value:
        """Return the places in `w` that a channel's weights take in the kernel columns before `column`."""
        return column * self.depth

    def packed(self, size: int) -> int:
        """Return the channels of the packed weight blocks read by a block of `size` channels; the last may be smaller."""
        return min(size, self.blocking.channels)

    def place(self, weights: Value, size: int, j: int, tap: Value) -> Value:
        """Return the index in `w` of the `group` weights from `tap` on (a multiple of `group`) for the block's channel
        `j`.
        """
        packed = self.packed(size)
        block = weights + j // packed * (self.taps * packed)
        return block + tap * packed + j % packed * self.group

    def block_weights(self, channel: Value) -> Value:
        """Return the index in `w` of the weights of a block that begins with a channel."""
        return (0 if self.blocking.coded else channel * self.taps) + self.offset

    def single_place(self, weights: Value, size: int, j: int, tap: int) -> Value:
        """Return the index in `w` of a tap's weight for the block's channel `j`."""
        if tap < self.whole:
            return self.place(weights, size, j, tap // self.group * self.group) + tap % self.group
        packed = self.packed(size)
        return self.place(weights, size, j, 0) - j % packed * (self.group - 1) + tap * packed

    def singles(self, acc: Value, at: Value, weights: Value, taps: range, lo: int, pixels: int, size: int) -> None:
        """Emit the products of `taps` one at a time; `lo` is the tap with the input at `at`."""
        k, g = self.k, self.g
        for tap in taps:
            places = [at + (tap - lo) + p * g.strides[1] * g.channels for p in range(pixels)]
            values = [k.let(self.x[place].astype("int32"), "xv") for place in places]
            for j in range(size):
                weight = k.let(self.w[self.single_place(weights, size, j, tap)].astype("int32"), "wv")
                for p, value in enumerate(values):
                    k.store(acc, p * size + j, call("mla", value, weight, acc[i32(p * size + j)]))

    def outputs(self, acc: Value, x: Value, channel: Value, pixels: int, size: int) -> None:
        """Emits the requantization and the stores of a block."""
        assert self.numbers is not None
        k, q = self.k, self.conv.requantize
        for j in range(size):
            sums = [acc[i32(p * size + j)] for p in range(pixels)]
            for p, value in enumerate(self.numbers.requantized(k, q, channel + j, sums)):
                k.store(self.out, (x + p) * self.conv.outputs + channel + j, value.astype(self.conv.out_dtype))


class DepthwiseRow(ABC):
    """Builder for a depthwise convolution's row kernel: a loop over column blocks, inside a loop over all channels.

    The constants of all channels are one array of words: requantization, biases, weights. If a subclass has a bias for
    every row variant (`Sliding.row_variants`: output rows with windows cut alike by the border), `bias` is its index.
    """

    first_bias = 0  # index in a record of the first row variant's bias
    layout: Hashable = None  # of the constants, where subclasses have several
    stored_as = ""  # of weights in fewer bytes than int8: `Storage.name`
    held: int  # bytes of the weights as they are packed, of subclasses with `stored_as`
    by_form: bool = False  # as of `ConvRow`

    def __init__(self, conv: Layer, pixels: int) -> None:
        self.conv, self.pixels = conv, pixels
        self.g: Sliding = conv.window
        constants = (self.pack(self.biases()), *parts.tables_of(conv))
        self.k = k = KernelBuilder(self.input_types(), constants, [conv.out_dtype], row_table=self.g.rows_by_table)
        self.sources = parts.sources(k, conv)
        self.record = k.view(k.constants[0], "int32", "record")
        self.w = k.view(k.constants[0], str(conv.weights.dtype), "ws")
        self.out = k.view(k.outputs[0], conv.out_dtype, "outs")

    def input_types(self) -> list[str]:
        """List the element types of the kernel's inputs."""
        return parts.inputs_of(self.conv)

    def biases(self) -> np.ndarray:
        """Return the bias of each row variant and channel, the zero point folded in."""
        conv = self.conv
        return geometry.folded_bias(self.g, conv.weights, conv.bias, conv.input_zero_point, every_column=True)[:, 0]

    @abstractmethod
    def pack(self, biases: np.ndarray) -> np.ndarray:
        """Pack the records; `biases` is [row variants, channels]."""

    def without_values(self) -> Layer:
        """Return the layer as far as the function depends on it."""
        return self.conv.without_values()

    def build(self) -> RowKernel:
        """Build the kernel for a row."""
        saved = self.conv.weights.size - self.held if self.stored_as else 0
        kernel = self.k.kernel(self._emit, form=_form(self, (self.pixels, self.layout)))
        return replace(kernel, storage=Storage(self.stored_as, saved)) if self.stored_as else kernel

    def _emit(self) -> None:
        k, g = self.k, self.g
        rows = [geometry.row_offsets(k, s.window, s.index) for s in self.sources]
        self.r0, self.r1 = g.bounds(k, k.y)
        variants = len(g.row_variants())
        self.bias = self.first_bias if variants == 1 else k.let(g.variant(k.y) + self.first_bias, "bias")
        for run in g.runs(self.pixels):
            with k.loop(run.count, "xb") as xb:
                for source, starts in zip(self.sources, rows, strict=True):
                    self.channels(run, xb * self.pixels + run.start, source, starts)

    @abstractmethod
    def channels(self, run: Run, x: Value, source: Source, rows: list[Value]) -> None:
        """Emit all channels of `source` for the column block from `x` on; `rows` are the offsets of the window's rows."""


def _form(builder: ConvRow | DepthwiseRow, choices: Hashable) -> Hashable | None:
    """Return the key of a builder's function; None if the function may depend on constants' values.

    With a key, clear the builder's constant values.
    """
    if not builder.by_form or builder.conv.parts:
        return None
    builder.conv = builder.without_values()
    return type(builder), choices, builder.conv.form
