"""The graph that every algorithm of this project works on: frozen, and free of TVM.

`passes.extract_graph` makes it from a Relax module. Operators stand in a topological order (the file's order), tensors and
operators are named by their index everywhere. Sizes are bytes, intervals are half-open, rows are the slices of a tensor
along its `row_axis` (H of an NHWC or NCHW tensor), columns the slices along its `col_axis`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any

from tvm_cascade.errors import GraphError

ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4}
    | {"float32": 4, "int64": 8, "uint64": 8, "float64": 8}
)

MIN_SCRATCH_ELEMENTS = 9  # of a buffer in scratch: TVM would put a shorter one on the stack

_NO_ATTRS: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Window:
    """The rows (or columns) of one input that output row `y` reads.

    Tap k of output row y is input row `y * stride // denominator - padding + k * dilation`, for k in `range(extent)`.
    Taps outside of the tensor are padding and read nothing. With `stride == 0` every output row reads the same window, such
    as the whole map of a global mean.
    """

    extent: int  # taps, at least 1
    stride: int = 1  # input rows per output row
    dilation: int = 1  # input rows between taps
    padding: int = 0  # rows of padding before the first
    denominator: int = 1  # above 1 the operator enlarges: nearest x2 is stride 1, denominator 2

    @classmethod
    def whole(cls, rows: int) -> Window:
        """The window that reads all of `rows` for every output row."""
        return cls(extent=rows, stride=0)

    @property
    def span(self) -> int:
        """Rows from the first tap to the last, both included."""
        return (self.extent - 1) * self.dilation + 1

    def first(self, y: int) -> int:
        """Input row of tap 0 for output row `y`; negative where it is padding."""
        return y * self.stride // self.denominator - self.padding

    def rows(self, y: int, height: int) -> range:
        """The rows `[lo, hi)` of an input of `height` rows that cover the taps of output row `y`."""
        lo = self.first(y)
        return range(min(max(lo, 0), height), max(min(lo + self.span, height), 0))

    def taps(self, y: int, height: int) -> int:
        """Taps of output row `y` that lie in an input of `height` rows and not in its padding."""
        return sum(0 <= self.first(y) + k * self.dilation < height for k in range(self.extent))


IDENTITY = Window(extent=1)


@dataclass(frozen=True, slots=True)
class Tensor:
    """An activation; weights are no tensors of a graph."""

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    row_axis: int | None = None  # None: one row that holds everything
    col_axis: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the whole tensor."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def rows(self) -> int:
        """Slices along the row axis; 1 without one."""
        return 1 if self.row_axis is None else self.shape[self.row_axis]

    @property
    def columns(self) -> int:
        """Slices along the column axis; 1 without one."""
        return 1 if self.col_axis is None else self.shape[self.col_axis]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.bytes // max(self.rows, 1)


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of its output that an operator makes in one step; 0 means all of that axis.

    The last tile of an axis is smaller where the axis is no multiple of it.
    """

    rows: int = 1
    columns: int = 0  # above 0: pixels of one row, so that `rows` is 1
    channels: int = 0

    @property
    def by_pixels(self) -> bool:
        """Whether a tile is a part of a row."""
        return self.columns > 0


ROW = Tile()
PIXEL = Tile(columns=1)


@dataclass(frozen=True, slots=True)
class ChannelTiling:
    """Costs of an operator that computes its wide intermediate in groups of channels, again for every row of its output.

    The operator is an expansion, a depthwise convolution and a projection in one (`cascading.channels`). Its scratch and
    its multiply-accumulates depend on the number of columns that a step makes: those of a whole row, or of a stripe.
    """

    group_size: int  # channels
    expanded_elements: tuple[int, int]  # (a, b): int8 elements a + b * n of a group to make n columns
    sum_elements: tuple[int, int]  # (a, b): int32 sums a + b * n to make n columns
    macs_per_covered_column: int  # columns of the input that the windows of a step cover
    macs_per_tap: int  # taps along the columns that are not padding
    macs_per_column: int  # columns of the output

    def scratch_bytes(self, columns: Any) -> Any:
        """Bytes of RAM to make `columns` columns of a row (an int or an array of ints)."""
        expanded, sums = (a + b * columns for a, b in (self.expanded_elements, self.sum_elements))
        pixel = max(self.group_size, MIN_SCRATCH_ELEMENTS)
        return _multiple_of_8(expanded) + _multiple_of_8(4 * sums) + _multiple_of_8(pixel)


def _multiple_of_8(size: Any) -> Any:
    return -(-size // 8) * 8


@dataclass(frozen=True, slots=True)
class KernelFootprints:
    """The forms of kernel that the emitter has for an operator besides that of a whole row, and the RAM that they take."""

    tile_fixed_bytes: int = 0  # of workspace to run some pixels of a row at a time
    tile_pixel_bytes: int = 0  # and for every pixel of the tile
    in_place_workspace_bytes: int = 0  # to run once and write the output over the only input; 0: no such kernel
    accumulator_bytes: int = 0  # to sum up the only input as its rows come; 0: no such kernel
    channel_tiling: ChannelTiling | None = None  # makes whole rows, or stripes of them, and never some pixels
    multi_row: bool = False  # makes any number of rows that divides the map, reading its weights once for all of them

    def tile_workspace_bytes(self, pixels: int) -> int:
        """Bytes of workspace to run `pixels` pixels of a row at a time."""
        return self.tile_fixed_bytes + pixels * self.tile_pixel_bytes


ROW_KERNEL_ONLY = KernelFootprints()


@dataclass(frozen=True, slots=True)
class Op:
    """An operator on activations.

    `windows[i]` and `columns[i]` are the windows of `inputs[i]` along rows and columns. None means that the operator needs
    the whole input before it writes anything; `opaque` then tells why.

    A `view` moves no data: output i lies in the memory of input 0, at `view_offsets[i]` bytes (a reshape, a split along the
    outermost axis). With `part_offsets` it is a join, a concat whose producers write into its output: along the rows input i
    lies `part_offsets[i]` bytes into output 0; along the channels, where the pixels of a part are shorter than those of the
    whole, pixel p of input i lies that many bytes into pixel p.
    """

    index: int
    name: str
    kind: str  # the field's word: conv2d, depthwise_conv2d, dense, add, concat, ...
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    windows: tuple[Window | None, ...] = ()
    columns: tuple[Window | None, ...] = ()
    opaque: str | None = None
    macs: int = 0  # multiply-accumulates of one inference, padding not counted
    weight_bytes: int = 0
    scratch_bytes: int = 0  # RAM of the operator's own while it runs
    in_place: tuple[int, ...] = ()  # positions in `inputs` that output 0 may overwrite, element for element
    view: bool = False
    view_offsets: tuple[int, ...] = ()
    part_offsets: tuple[int, ...] = ()
    attrs: Mapping[str, object] = field(default_factory=lambda: _NO_ATTRS, hash=False, compare=True)
    kernels: KernelFootprints = ROW_KERNEL_ONLY  # what the emitter can do with it


@dataclass(frozen=True, slots=True)
class Root:
    """The tensor in whose memory another one lies, and where in it."""

    tensor: int
    byte_offset: int


@dataclass(frozen=True)
class Graph:
    """Operators in topological order over tensors.

    Raises
    ------
    GraphError
        An index is wrong, a tensor has no producer or two, or an operator reads a tensor that is produced later.
    """

    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    name: str = "main"

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def producer(self) -> tuple[int | None, ...]:
        """The operator that writes each tensor; None for graph inputs."""
        made: list[int | None] = [None] * len(self.tensors)
        for op in self.ops:
            for t in op.outputs:
                made[t] = op.index
        return tuple(made)

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """Operators that read each tensor, ascending, each once."""
        used: list[dict[int, None]] = [{} for _ in self.tensors]
        for op in self.ops:
            for t in op.inputs:
                used[t][op.index] = None
        return tuple(tuple(u) for u in used)

    @cached_property
    def roots(self) -> tuple[Root, ...]:
        """For each tensor the one in whose memory it lies: itself, unless it is a view or a part of a join."""
        above: dict[int, Root] = {}
        for op in self.ops:
            if op.part_offsets:
                above |= {t: Root(op.outputs[0], at) for t, at in zip(op.inputs, op.part_offsets, strict=True)}
            elif op.view:
                offsets = op.view_offsets or (0,) * len(op.outputs)
                above |= {t: Root(op.inputs[0], at) for t, at in zip(op.outputs, offsets, strict=True)}
        roots: list[Root] = []
        for tensor in self.tensors:
            root = Root(tensor.index, 0)
            while (owner := above.get(root.tensor)) is not None:
                root = Root(owner.tensor, root.byte_offset + owner.byte_offset)
            roots.append(root)
        return tuple(roots)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Operators whose outputs each operator reads, ascending, each once."""
        return tuple(tuple(sorted({p for t in op.inputs if (p := self.producer[t]) is not None})) for op in self.ops)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Operators that read what each operator writes, ascending, each once."""
        return tuple(tuple(sorted({c for t in op.outputs for c in self.consumers[t]})) for op in self.ops)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return sum(op.macs for op in self.ops)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all constants."""
        return sum(op.weight_bytes for op in self.ops)

    def is_order(self, order: Iterable[int]) -> bool:
        """Whether `order` lists every operator once, each after the operators it reads from."""
        seen: set[int] = set()
        for i in order:
            if i in seen or not 0 <= i < len(self.ops) or any(p not in seen for p in self.predecessors[i]):
                return False
            seen.add(i)
        return len(seen) == len(self.ops)


def rebuilt(
    tensors: Sequence[Tensor], ops: Sequence[Op], inputs: Sequence[int], outputs: Sequence[int], name: str
) -> Graph:
    """A graph of those operators, by the tensors they name, which are renumbered in order of appearance."""
    order = (*inputs, *(t for op in ops for t in op.outputs))
    number = {t: k for k, t in enumerate(order)}
    kept = tuple(replace(tensors[t], index=k) for k, t in enumerate(order))
    renamed = tuple(
        replace(op, index=i, inputs=tuple(number[t] for t in op.inputs), outputs=tuple(number[t] for t in op.outputs))
        for i, op in enumerate(ops)
    )
    return Graph(kept, renamed, tuple(number[t] for t in inputs), tuple(number[t] for t in outputs), name)


def _check(graph: Graph) -> None:
    """Raise `GraphError` for a graph that is not well formed."""
    known = set(graph.inputs)
    for i, t in enumerate(graph.tensors):
        if t.index != i:
            raise GraphError(f"tensor {t.name} has index {t.index} at place {i}")
        if t.dtype not in ITEM_BYTES:
            raise GraphError(f"tensor {t.name} has the unknown type {t.dtype}")
        if any(d < 0 for d in t.shape):
            raise GraphError(f"tensor {t.name} has a negative extent in {t.shape}")
    for i, op in enumerate(graph.ops):
        if op.index != i:
            raise GraphError(f"operator {op.name} has index {op.index} at place {i}")
        for t in op.inputs:
            if t not in known:
                raise GraphError(f"operator {op.name} reads tensor {t} before anything writes it")
        for t in op.outputs:
            if t in known or not 0 <= t < len(graph.tensors):
                raise GraphError(f"operator {op.name} writes tensor {t}, which is written already or does not exist")
            known.add(t)
        if (op.view and len(op.inputs) != 1 and not op.part_offsets) or len(op.part_offsets) not in (0, len(op.inputs)):
            places = f"{len(op.inputs)} inputs and part_offsets for {len(op.part_offsets)}"
            raise GraphError(f"operator {op.name} has {places}: a view has one input, a join a place for each")
        for per_input in (op.windows, op.columns):
            if per_input and len(per_input) != len(op.inputs):
                raise GraphError(f"operator {op.name} has {len(op.inputs)} inputs and {len(per_input)} windows")
    for t in (*graph.inputs, *graph.outputs):
        if t not in known:
            raise GraphError(f"tensor {t} is an input or output of the graph and nothing writes it")
    if known != set(range(len(graph.tensors))):
        raise GraphError(f"tensors {sorted(set(range(len(graph.tensors))) - known)} are never written")
