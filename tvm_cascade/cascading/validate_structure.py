"""Consistency checks of a plan's data against its graph, made before the plan is replayed (`validate`).

A replay only sees the steps' reads and writes: a view at the wrong offset, two blocks with a single name, or a segment
without room for step counters would go unnoticed.
"""

from __future__ import annotations

from collections import Counter
from math import gcd, prod

from tvm_cascade.cascading.plan import ROWS, Granularity, Plan, Segment, Storage
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import ITEM_BYTES, ROW, Graph, Op


def check_structure(plan: Plan, alignment: int) -> None:
    """Raise `ValidationError` if the parts of `plan` do not fit together, or a block is not aligned."""
    graph = plan.graph
    if [s.tensor for s in plan.storages] != list(range(len(graph.tensors))):
        raise ValidationError("the plan does not store every tensor once, in their order")
    _check_names(plan, alignment)
    for storage in plan.storages:
        if storage.row_addresses:
            _check_rows(plan, storage, alignment)
        else:
            _check_size(plan, storage)
    for storage, (root, offset) in zip(plan.storages, _owners(graph), strict=True):
        _check_view(plan, storage, root, offset)
    streamed = Counter(t for segment in plan.segments for t in segment.streamed)
    for t, times in streamed.items():
        if times > 1 or t not in graph.inputs or plan.storages[t].granularity is not Granularity.ROW:
            raise ValidationError(f"tensor {t} cannot come from a source: that gives each input once, row by row")
        _check_planes(plan, t)
    for s, segment in enumerate(plan.segments):
        _check_segment(plan, s, segment)


def _check_planes(plan: Plan, t: int) -> None:
    """Check that no kernel reads a streamed input with several planes as a whole, since rows are stored one by one."""
    tensor, graph = plan.graph.tensors[t], plan.graph
    if prod(tensor.shape[: tensor.row_axis]) == 1:
        return
    in_place = {o for segment in plan.segments for o in segment.in_place}
    for op in graph.ops:
        window = dict(zip(op.inputs, op.windows, strict=False)).get(t)
        whole = window is None or window.stride == 0 or op.opaque is not None or op.view
        if t in op.inputs and (whole or op.index in in_place):
            raise ValidationError(
                f"{op.name} reads the planes of {tensor.name}, which comes row by row, as a whole", [op.name]
            )
    if t in graph.outputs:
        raise ValidationError(f"{tensor.name} comes row by row, and is an output")


def _check_names(plan: Plan, alignment: int) -> None:
    """Check that every block has a unique name and an aligned offset."""
    offsets = plan.allocation.offsets
    if len(set(plan.buffers)) != len(plan.buffers) or len(offsets) != len(plan.buffers):
        raise ValidationError("a block of the arena is listed twice, or has no address")
    for name, offset in zip(plan.buffers, offsets, strict=True):
        kind, _, index = name.partition(" ")
        own = ITEM_BYTES[plan.graph.tensors[int(index)].dtype] if kind in ("tensor", "kept") else 1
        if name == ROWS:
            continue  # `_check_rows` holds the address of each row
        unit = max(alignment, own)  # kernels find their elements by whole items from the arena's start
        if offset < 0 or offset % unit:
            raise ValidationError(f"{name} lies at {offset}, not at a multiple of {unit} bytes")
    _check_memories(plan, alignment)


def _check_memories(plan: Plan, alignment: int) -> None:
    """Check memories for overlaps and capacities, and every block for lying inside a memory."""
    end = 0
    for use in plan.memories:
        name, most = use.ram.name or "the arena", use.ram.capacity
        if use.start < end or use.start % max(alignment, 8):
            raise ValidationError(f"{name} begins at {use.start}: inside of the memory before it, or not aligned")
        if most is not None and use.bytes > most:
            raise ValidationError(f"{name} takes {use.bytes} bytes, of {most} that it may")
        end = use.end
    if end != plan.allocation.peak:
        raise ValidationError(f"the memories end at {end}, their blocks at {plan.allocation.peak}")
    for name, address in zip(plan.buffers, plan.allocation.offsets, strict=True):
        if address + _block_bytes(plan, name) > plan.memory_at(address).end:
            raise ValidationError(f"{name} does not lie inside of one memory")


def _block_bytes(plan: Plan, name: str) -> int:
    """Compute the bytes of a block, by the kind in the block's name."""
    kind, _, index = name.partition(" ")
    k = int(index)
    if name == ROWS:
        return plan.rows_end - plan.allocation.offsets[plan.buffers.index(name)]
    if kind == "accumulator":
        return plan.graph.ops[k].kernels.accumulator_bytes
    if kind in ("state", "scratch"):
        return plan.segments[k].state_bytes if kind == "state" else plan.segments[k].scratch_bytes
    storage, tensor = plan.storages[k], plan.graph.tensors[k]
    return storage.size if kind == "tensor" else storage.halo_columns * (tensor.bytes // max(tensor.columns, 1))


def _require(plan: Plan, name: str, size: int, what: str) -> None:
    """Check for an arena block `name` unless `size` is 0."""
    if size and name not in plan.buffers:
        raise ValidationError(f"{what} has no address in the arena")


def _check_rows(plan: Plan, storage: Storage, alignment: int) -> None:
    """Check the addresses of a tensor's rows, and that all operators around have kernels for row addresses."""
    tensor, addresses = plan.graph.tensors[storage.tensor], storage.row_addresses
    unit = gcd(max(alignment, ITEM_BYTES[tensor.dtype]), tensor.row_bytes)  # as rows one behind the other
    if len(addresses) != tensor.rows or prod(tensor.shape[: tensor.row_axis]) != 1:
        raise ValidationError(f"tensor {tensor.name} has {tensor.rows} rows, and {len(addresses)} addresses")
    if min(addresses) < 0 or any(a % unit for a in addresses):
        raise ValidationError(f"a row of tensor {tensor.name} does not lie at a multiple of {unit} bytes")
    mixed = storage.root is not None or storage.pitch or storage.columns or storage.granularity is not Granularity.ROW
    if mixed or storage.size != storage.height * tensor.row_bytes or tensor.index in plan.graph.outputs:
        raise ValidationError(f"tensor {tensor.name} cannot have rows at addresses of their own")
    _require(plan, ROWS, tensor.bytes, f"the rows of tensor {tensor.name}")
    for segment in plan.segments:
        for o in (o for o in segment.ops if o not in segment.accumulating):
            op = plan.graph.ops[o]
            if tensor.index not in (*op.inputs, *op.outputs):
                continue
            windows = [w for t, w in zip(op.inputs, op.windows, strict=False) if t == tensor.index]
            whole = tensor.index in op.inputs and not (windows and all(w is not None and w.stride for w in windows))
            if segment.tile != ROW or segment.stripes or whole or not op.kernels.row_addresses:
                raise ValidationError(f"operator {op.name} has no kernel for rows at addresses of their own", [op.name])


def _check_size(plan: Plan, storage: Storage) -> None:
    """Check a storage for at least one row or pixel, and for enough bytes."""
    tensor = plan.graph.tensors[storage.tensor]
    if tensor.bytes and (storage.height < 1 or (storage.granularity is Granularity.PIXEL and storage.pixels < 1)):
        raise ValidationError(f"nothing is held of tensor {tensor.name}")
    if storage.root is not None or not tensor.bytes:
        return
    _require(plan, f"kept {tensor.index}", storage.halo_columns, f"what is kept of tensor {tensor.name}")
    _require(plan, f"tensor {tensor.index}", tensor.bytes, f"tensor {tensor.name}")
    size = min(storage.height, tensor.rows) * tensor.row_bytes
    if storage.columns:
        size = size // tensor.columns * storage.columns
    if storage.granularity is Granularity.PIXEL:
        size = storage.pixels * (tensor.row_bytes // tensor.columns)
    if storage.size != size:
        raise ValidationError(f"what is held of tensor {tensor.name} takes {size} bytes, not {storage.size}")


def _owners(graph: Graph) -> list[tuple[int, int]]:
    """List, for every tensor, the root (itself unless a view or a part of a join) and the byte offset in the root."""
    above: dict[int, tuple[int, int]] = {}
    for op in graph.ops:
        if op.view and op.part_offsets:
            above |= {t: (op.outputs[0], at) for t, at in zip(op.inputs, op.part_offsets, strict=True)}
        elif op.view:
            starts = op.view_offsets or (0,) * len(op.outputs)
            above |= {t: (op.inputs[0], at) for t, at in zip(op.outputs, starts, strict=True)}
    owners: list[tuple[int, int]] = []
    for tensor in graph.tensors:
        t, offset = tensor.index, 0
        while t in above:
            t, offset = above[t][0], offset + above[t][1]
        owners.append((t, offset))
    return owners


def _check_view(plan: Plan, storage: Storage, root: int, offset: int) -> None:
    """Check a view or part against the graph's offset, and against the rows, pixels and bytes of the root."""
    tensor, owner, whole = plan.graph.tensors[storage.tensor], plan.storages[root], plan.graph.tensors[root]
    place = (root, offset) if root != storage.tensor else (None, 0)
    if (storage.root, storage.byte_offset) != place:
        raise ValidationError(f"tensor {tensor.name} is not stored where the graph has it")
    beside = any(op.part_offsets and tensor.index in op.inputs for op in plan.graph.ops)
    non_contiguous = beside and tensor.row_bytes != whole.row_bytes
    if storage.pitch != (whole.row_bytes // whole.columns if non_contiguous else 0):
        raise ValidationError(f"pixels of tensor {tensor.name} do not lie {storage.pitch} bytes apart")
    if storage.root is None:
        return
    held = owner.height if non_contiguous or owner.is_ring(whole.rows) else tensor.rows
    same = (storage.height, storage.granularity, storage.pixels) == (held, owner.granularity, owner.pixels)
    if not same or storage.size != (owner.size if non_contiguous or owner.is_ring(whole.rows) else tensor.bytes):
        raise ValidationError(f"tensor {tensor.name} is not held as {whole.name} is, whose memory it lies in")


def _check_segment(plan: Plan, s: int, segment: Segment) -> None:
    """Check that a segment has blocks for counters, scratch and accumulators, and consistent fields."""
    graph, steps = plan.graph, Counter(segment.trace)
    width, rest = divmod(segment.state_bytes, max(len(steps), 1))
    if len(steps) > 1 and (rest or width not in (1, 2, 4) or max(steps.values()) > 256**width):
        raise ValidationError(
            f"{len(steps)} operators of segment {s} have {segment.state_bytes} bytes of step counters"
        )
    _require(plan, f"state {s}", segment.state_bytes, f"state {s}")
    _require(plan, f"scratch {s}", segment.scratch_bytes, f"scratch {s}")
    if not all(0 <= o < len(graph.ops) for o in segment.ops):
        raise ValidationError(f"segment {s} has operators that do not exist")
    if segment.in_place and segment.trace != segment.in_place:
        raise ValidationError(f"segment {s} has an operator in place that is not its only one")
    for o in segment.accumulating:
        op = graph.ops[o]
        owner = plan.storages[op.inputs[0]].root
        part = owner is not None and graph.tensors[owner].bytes != graph.tensors[op.inputs[0]].bytes
        if not op.kernels.accumulator_bytes or len(op.inputs) != 1 or part:
            raise ValidationError(f"operator {op.name} cannot sum up its input as it comes", [op.name])
        _require(plan, f"accumulator {o}", op.kernels.accumulator_bytes, f"the accumulator of {op.name}")
    tile = segment.tile
    if segment.stripes and (tile.by_pixels or any(len(r) != len(segment.ops) for r in segment.stripes)):
        raise ValidationError(f"segment {s} does not give every operator its columns of every stripe")
    if tile.columns < 0 or tile.channels:
        raise ValidationError(f"segment {s} makes {tile}, which no kernel does")
    if tile.rows < 1 or (tile.rows > 1 and (tile.by_pixels or segment.stripes)):
        raise ValidationError(f"segment {s} makes {tile.rows} rows a step, by pixels or in stripes")
    for t in (*segment.streamed, *(t for o in segment.ops for t in graph.ops[o].outputs)):
        storage, rows = plan.storages[t], graph.tensors[t].rows
        if storage.height < rows and storage.height % min(tile.rows, rows) and not storage.row_addresses:
            raise ValidationError(
                f"{tile.rows} rows of a step do not lie together in the ring of {graph.tensors[t].name}"
            )
    for n, o in enumerate(segment.ops if segment.stripes else ()):
        _check_columns(plan, segment, graph.ops[o], [ranges[n] for ranges in segment.stripes])


def _check_columns(plan: Plan, segment: Segment, op: Op, ranges: list[tuple[int, int]]) -> None:
    """Check an operator's stripes for staying within the map, and that accumulating operators add every input column
    once.
    """
    if op.view:
        return
    sums = op.index in segment.accumulating
    t = op.inputs[0] if sums else op.outputs[0]
    root = plan.storages[t].root
    width = plan.graph.tensors[t if root is None or not sums else root].columns
    if any(not 0 <= x0 <= x1 <= width for x0, x1 in ranges):
        raise ValidationError(f"a stripe of {op.name} goes beyond its {width} columns", [op.name])
    if sums and [x0 for x0, _ in ranges] + [width] != [0] + [x1 for _, x1 in ranges]:
        raise ValidationError(f"stripes of {op.name} do not take every column of its input once", [op.name])
