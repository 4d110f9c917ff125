"""The dataflow graph used by every algorithm here: immutable, and independent of TVM.

`passes.extract_graph` makes it from a Relax module. Operators are in topological order (the model file's order);
tensors and operators are referred to by index. Sizes are bytes, intervals are half-open, rows are a tensor's slices
along its `row_axis` (H of an NHWC or NCHW tensor), columns the slices along its `col_axis`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from types import MappingProxyType

from tvm_cascade.errors import GraphError
from tvm_cascade.footprints import ROW_KERNEL_ONLY, KernelFootprints

ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4}
    | {"float32": 4, "int64": 8, "uint64": 8, "float64": 8}
)

_NO_ATTRS: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Window:
    """The rows (or columns) of an input read by output row `y`.

    Tap k of output row y is input row `y * stride // denominator - padding + k * dilation`, for k in `range(extent)`.
    Taps outside the tensor are padding and read nothing. With `stride == 0` every output row reads the same window,
    such as the whole map of a global mean.
    """

    extent: int  # taps, at least 1
    stride: int = 1  # input rows per output row
    dilation: int = 1  # input rows between taps
    padding: int = 0  # rows of padding before the first
    denominator: int = 1  # above 1 the operator upsamples: nearest x2 is stride 1, denominator 2

    @classmethod
    def whole(cls, rows: int) -> Window:
        """Make the window of an operator that reads all `rows` input rows for every output row."""
        return cls(extent=rows, stride=0)

    @property
    def span(self) -> int:
        """Count the rows from the first tap to the last, both included."""
        return (self.extent - 1) * self.dilation + 1

    def first(self, y: int) -> int:
        """Return the input row of tap 0 for output row `y`; negative if it is padding."""
        return y * self.stride // self.denominator - self.padding

    def rows(self, y: int, height: int) -> range:
        """Return the input rows from the first tap of output row `y` to the last, clipped to an input of `height` rows."""
        lo = self.first(y)
        return range(min(max(lo, 0), height), max(min(lo + self.span, height), 0))

    def taps(self, y: int, height: int) -> int:
        """Count the taps of output row `y` inside an input with `height` rows, not in the padding."""
        return sum(0 <= self.first(y) + k * self.dilation < height for k in range(self.extent))


IDENTITY = Window(extent=1)


def column_axis(shape: Sequence[int], row_axis: int | None) -> int | None:
    """Return the axis behind the rows of a map (rank 4 or more); None for other tensors, which are counted in rows alone."""
    return row_axis + 1 if row_axis is not None and len(shape) >= 4 and row_axis + 1 < len(shape) else None


@dataclass(frozen=True, slots=True)
class Tensor:
    """An activation. Weights do not appear as tensors of the graph."""

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    row_axis: int | None = None  # None: the whole tensor is one row
    col_axis: int | None = None  # None: one column

    @property
    def bytes(self) -> int:
        """Return the bytes of the whole tensor."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def rows(self) -> int:
        """Return the length of the row axis; 1 without one."""
        return 1 if self.row_axis is None else self.shape[self.row_axis]

    @property
    def columns(self) -> int:
        """Return the length of the column axis; 1 without one."""
        return 1 if self.col_axis is None else self.shape[self.col_axis]

    @property
    def row_bytes(self) -> int:
        """Return the bytes per row."""
        return self.bytes // max(self.rows, 1)

    @property
    def planes(self) -> int:
        """Count the separate parts of a row in memory: the product of the axes before the row axis; 1 without rows."""
        return 1 if self.row_axis is None else prod(self.shape[: self.row_axis])


@dataclass(frozen=True, slots=True)
class Tile:
    """The size of the output part computed in a step (a kernel call).

    The last tile along an axis is smaller if the tile size does not divide the axis.
    """

    rows: int = 1  # at least 1
    columns: int = 0  # 0: whole rows; above 0: so many pixels of one row, and `rows` is 1
    channels: int = 0  # 0: all

    @property
    def by_pixels(self) -> bool:
        """Return True if a tile is some pixels of a single row."""
        return self.columns > 0


ROW = Tile()
PIXEL = Tile(columns=1)


@dataclass(frozen=True, slots=True)
class Op:
    """An operator: tensors read and written, windows, work and memory.

    `windows[i]` and `columns[i]` are the windows of `inputs[i]` along rows and columns. None means that the operator
    needs the whole input before writing anything. `opaque` tells why an operator's windows are unknown.

    A `view` moves no data: output i lies in the memory of input 0, at `view_offsets[i]` bytes (a reshape, a split along
    the outermost axis). With `part_offsets` the operator is a join, a concat with producers that write into the output.
    In a join along the rows input i starts `part_offsets[i]` bytes into output 0. In a join along the channels pixel p
    of input i starts that many bytes into pixel p of output 0.

    An operator with a `target` writes a state. The only output is the new value of the state, a graph input, after a
    call. The output lies in that input's bytes, so the operator runs after all readers of the state.
    """

    index: int
    name: str
    kind: str  # type of operator: conv2d, depthwise_conv2d, dense, add, concat, ...
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    windows: tuple[Window | None, ...] = ()
    columns: tuple[Window | None, ...] = ()
    opaque: str | None = None
    macs: int = 0  # multiply-accumulates of one inference, padding not counted
    weight_bytes: int = 0
    storage: str = ""  # form of weights in flash in fewer bytes than int8 or float32; empty otherwise
    saved_bytes: int = 0  # of weights so
    scratch_bytes: int = 0  # RAM that the kernel needs while it runs, besides its inputs and outputs
    in_place: tuple[int, ...] = ()  # positions of the inputs that output 0 may overwrite, element for element
    target: int | None = None  # position of the input, a state, whose bytes output 0 always takes over
    view: bool = False
    view_offsets: tuple[int, ...] = ()
    part_offsets: tuple[int, ...] = ()
    attrs: Mapping[str, object] = field(default_factory=lambda: _NO_ATTRS, hash=False, compare=True)
    kernels: KernelFootprints = ROW_KERNEL_ONLY  # kernel variants of the emitter


@dataclass(frozen=True, slots=True)
class Root:
    """The owner of a view's or join part's memory, and the offset there."""

    tensor: int  # the owner
    byte_offset: int  # from the owner's first byte


@dataclass(frozen=True)
class Graph:
    """Operators in topological order over tensors.

    Raises
    ------
    GraphError
        An index is wrong, a tensor has no producer or two, an operator reads a tensor that is produced later, or the parts of
        a join cannot all be written into its output.
    """

    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    name: str = "main"

    def __post_init__(self) -> None:
        _check(self)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Caches are asked for graphs again and again, and a graph has thousands of fields."""
        return hash((self.tensors, self.ops, self.inputs, self.outputs, self.name))

    @cached_property
    def producer(self) -> tuple[int | None, ...]:
        """Return each tensor's writing operator; None for graph inputs."""
        producers: list[int | None] = [None] * len(self.tensors)
        for op in self.ops:
            for t in op.outputs:
                producers[t] = op.index
        return tuple(producers)

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """Return each tensor's reading operators, ascending, without duplicates."""
        used: list[dict[int, None]] = [{} for _ in self.tensors]
        for op in self.ops:
            for t in op.inputs:
                used[t][op.index] = None
        return tuple(tuple(u) for u in used)

    @cached_property
    def roots(self) -> tuple[Root, ...]:
        """Return for each tensor the owner of the memory: the tensor itself, unless it is a view or part of a join."""
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
    def states(self) -> tuple[tuple[int, int], ...]:
        """Return for each state the tensors before and after a call, in the order of the graph's inputs."""
        pairs = [(op.inputs[op.target], op.outputs[0]) for op in self.ops if op.target is not None]
        return tuple(sorted(pairs, key=lambda pair: self.inputs.index(pair[0])))

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Return for each operator all predecessors, ascending, each once.

        Predecessors write an input, or read the state overwritten by the operator.
        """
        before = [{p for t in op.inputs if (p := self.producer[t]) is not None} for op in self.ops]
        for op in self.ops:
            if op.target is not None:
                state = op.inputs[op.target]
                seen = (t for t, root in enumerate(self.roots) if root.tensor == state and t not in op.outputs)
                before[op.index] |= {c for t in seen for c in self.consumers[t]} - {op.index}
        return tuple(tuple(sorted(ops)) for ops in before)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Return for each operator all successors, ascending, each once."""
        after: list[list[int]] = [[] for _ in self.ops]
        for op, before in enumerate(self.predecessors):
            for p in before:
                after[p].append(op)
        return tuple(map(tuple, after))

    @property
    def macs(self) -> int:
        """Return the multiply-accumulates of an inference."""
        return sum(op.macs for op in self.ops)

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all operators' weights."""
        return sum(op.weight_bytes for op in self.ops)

    def is_order(self, order: Iterable[int]) -> bool:
        """Test whether `order` lists every operator once, each after all predecessors."""
        seen: set[int] = set()
        for i in order:
            if i in seen or not 0 <= i < len(self.ops) or any(p not in seen for p in self.predecessors[i]):
                return False
            seen.add(i)
        return len(seen) == len(self.ops)


def rebuilt(
    tensors: Sequence[Tensor], ops: Sequence[Op], inputs: Sequence[int], outputs: Sequence[int], name: str
) -> Graph:
    """Build a graph from `ops` and renumber operators and tensors: inputs first, then outputs operator by operator.

    Operators refer to tensors by index in `tensors`; unused tensors are dropped.
    """
    order = (*inputs, *(t for op in ops for t in op.outputs))
    number = {t: k for k, t in enumerate(order)}
    used = tuple(replace(tensors[t], index=k) for k, t in enumerate(order))
    renamed = tuple(
        replace(op, index=i, inputs=tuple(number[t] for t in op.inputs), outputs=tuple(number[t] for t in op.outputs))
        for i, op in enumerate(ops)
    )
    return Graph(used, renamed, tuple(number[t] for t in inputs), tuple(number[t] for t in outputs), name)


def _check(graph: Graph) -> None:
    """Raise `GraphError` for a malformed graph."""
    known = set(graph.inputs)
    for i, t in enumerate(graph.tensors):
        if t.index != i:
            raise GraphError(f"tensor {t.name} has index {t.index} at position {i}")
        if t.dtype not in ITEM_BYTES:
            raise GraphError(f"tensor {t.name} has the unknown type {t.dtype}")
        if any(d < 0 for d in t.shape):
            raise GraphError(f"tensor {t.name} has a negative extent in {t.shape}")
    for i, op in enumerate(graph.ops):
        if op.index != i:
            raise _wrong(op, f"has index {op.index} at position {i}")
        for t in op.inputs:
            if t not in known:
                raise _wrong(op, f"reads tensor {t} before anything writes it")
        for t in op.outputs:
            if t in known or not 0 <= t < len(graph.tensors):
                raise _wrong(op, f"writes tensor {t}, which is written already or does not exist")
            known.add(t)
        if (op.view and len(op.inputs) != 1 and not op.part_offsets) or len(op.part_offsets) not in (0, len(op.inputs)):
            counts = f"{len(op.inputs)} inputs and part_offsets for {len(op.part_offsets)}"
            raise _wrong(op, f"has {counts}: a view has one input, a join an offset for each input")
        for per_input in (op.windows, op.columns):
            if per_input and len(per_input) != len(op.inputs):
                raise _wrong(op, f"has {len(op.inputs)} inputs and {len(per_input)} windows")
    for t in (*graph.inputs, *graph.outputs):
        if t not in known:
            raise GraphError(f"tensor {t} is an input or output of the graph and nothing writes it")
    if known != set(range(len(graph.tensors))):
        raise GraphError(f"tensors {sorted(set(range(len(graph.tensors))) - known)} are never written")
    _check_joins(graph)
    for op in (op for op in graph.ops if op.target is not None):
        _check_target(graph, op)


def _wrong(op: Op, what: str) -> GraphError:
    return GraphError(f"operator {op.name} {what}", operators=[op.name])


def _check_target(graph: Graph, op: Op) -> None:
    """Raise `GraphError` if an operator cannot take over the target's bytes."""
    state, made = graph.tensors[op.inputs[op.target or 0]], graph.tensors[op.outputs[0]]
    alike = len(op.outputs) == 1 and (state.shape, state.dtype) == (made.shape, made.dtype)
    own = state.index in graph.inputs and [s for s, _ in graph.states].count(state.index) == 1 and not op.view
    returned = state.index in {graph.roots[t].tensor for t in graph.outputs}
    if not alike or not own or returned or any(p > op.index for p in graph.predecessors[op.index]):
        raise _wrong(op, f"cannot take over the bytes of {state.name}: that is returned or read later")


def _check_joins(graph: Graph) -> None:
    """Raise `GraphError` for a join if some part cannot be written into the output."""
    taken: set[int] = set()
    for op in graph.ops:
        for t, offset in zip(op.inputs, op.part_offsets, strict=False):
            part, maker = graph.tensors[t], graph.producer[t]
            beyond = offset < 0 or offset + part.bytes > graph.tensors[op.outputs[0]].bytes
            unwritten = maker is None or (graph.ops[maker].view and not graph.ops[maker].part_offsets)  # joins may nest
            if beyond or unwritten or t in taken:
                why = (
                    "goes beyond its output"
                    if beyond
                    else "is an input or a view"
                    if unwritten
                    else "is a part already"
                )
                raise _wrong(op, f"cannot be a join, since {part.name} {why}: make it a concat that copies")
            taken.add(t)
        if op.part_offsets:
            _check_order_of_parts(graph, op)


def _check_order_of_parts(graph: Graph, join: Op) -> None:
    """Raise `GraphError` if the operator that writes a part of a join depends on another part.

    Output and input of that operator would then be the same tensor, and neither could come first.
    """
    makers = [m for t in join.inputs if (m := graph.producer[t]) is not None]
    first, seen, pending = min(makers, default=0), set[int](), makers
    while pending:
        op = graph.ops[pending.pop()]
        for t in op.inputs:
            if t in join.inputs:
                why = f"{op.name} reads {graph.tensors[t].name} and another part depends on it"
                raise _wrong(join, f"cannot be a join, since {why}: make it a concat that copies")
            maker = graph.producer[t]
            if maker is not None and maker >= first and maker not in seen:  # operators before the first need no part
                seen.add(maker)
                pending.append(maker)
