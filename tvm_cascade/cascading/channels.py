"""Channel tiling: an inverted bottleneck fused into one operator that computes the wide intermediate in channel groups.

A block C -> E (1x1) -> depthwise k x k -> D (1x1) becomes one operator with the depthwise convolution's windows. For
every output row, or stripe of a row, the operator loops over G groups of the E channels: a group is expanded over the
rows and columns covered by the windows, the depthwise convolution runs on these, and the group's share of the
projection is added to the row's int32 sums. Integer sums do not depend on the order, so results are bit-exact. The E
channels need scratch

    k * (columns covered) * E / G  +  E / G  +  4 * columns * D        bytes

instead of a ring, and the expansion of a row is recomputed for each of the k / stride output rows that read the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tvm_cascade.cascading.geometry import has_pixels
from tvm_cascade.footprints import MIN_SCRATCH_ELEMENTS, ChannelTiling, KernelFootprints
from tvm_cascade.graph import IDENTITY, Graph, Op, Tensor, Window, rebuilt

KIND = "inverted_bottleneck"
NARROWEST = 4  # least channels of a group


class Block(NamedTuple):
    """An inverted bottleneck: the indices of three operators, each reading the previous operator's output."""

    expand: int
    depthwise: int
    project: int


def blocks(graph: Graph) -> tuple[Block, ...]:
    """Find a graph's int8 inverted bottlenecks; the three operators must follow one another in file order.

    No other operator reads the tensors between the three operators, which have more channels than the block's input. If
    two blocks share a convolution (in a chain of widening separable convolutions each projection is the next
    expansion), the block with more bytes per row of the expanded tensor is taken.
    """
    among = [Block(o, o + 1, o + 2) for o in range(len(graph.ops) - 2)]
    candidates = [block for block in among if _is_block(graph, *(graph.ops[o] for o in block))]
    taken: set[int] = set()
    kept = []
    for block in sorted(candidates, key=lambda b: -graph.tensors[graph.ops[b.expand].outputs[0]].row_bytes):
        if taken.isdisjoint((block.expand, block.project)):
            taken |= {block.expand, block.project}
            kept.append(block)
    return tuple(sorted(kept))


def _is_block(graph: Graph, expand: Op, depthwise: Op, project: Op) -> bool:
    """Test whether three operators are an inverted bottleneck."""
    kinds = (expand.kind, depthwise.kind, project.kind)
    ops = (expand, depthwise, project)
    if kinds != ("conv2d", "depthwise_conv2d", "conv2d") or any(len(o.inputs) != 1 or len(o.outputs) != 1 for o in ops):
        return False
    points = (expand, project)
    if any(o.attrs.get("accumulator") != "int32" for o in ops) or any(o.attrs["groups"] != 1 for o in points):
        return False
    if expand.outputs != depthwise.inputs or depthwise.outputs != project.inputs:
        return False
    inner = (expand.outputs[0], depthwise.outputs[0])
    x, expanded, filtered, y = (graph.tensors[t] for t in (expand.inputs[0], *inner, project.outputs[0]))
    if any(len(graph.consumers[t]) != 1 or t in graph.outputs for t in inner):
        return False
    if any(
        t.dtype != "int8" or len(t.shape) != 4 or t.row_axis != 1 or not has_pixels(t)
        for t in (x, expanded, filtered, y)
    ):
        return False
    if not expanded.shape[3] == filtered.shape[3] > x.shape[3]:
        return False
    if any(o.windows != (IDENTITY,) or o.columns != (IDENTITY,) for o in points):
        return False
    windows = (*depthwise.windows, *depthwise.columns)
    plain = (w is not None and w.dilation == w.denominator == 1 and 0 < w.stride <= w.extent for w in windows)
    return all(plain) and sum(w.extent for w in windows if w is not None) > 3


def group_counts(graph: Graph, block: Block) -> tuple[int, ...]:
    """List the numbers of equal groups for a block's wide channels, ascending; the first is 1."""
    channels = graph.tensors[graph.ops[block.expand].outputs[0]].shape[3]
    return tuple(g for g in range(1, channels // NARROWEST + 1) if channels % g == 0)


def channel_tiling(x: Tensor, channels: int, y: Tensor, windows: tuple[Window, Window], groups: int) -> ChannelTiling:
    """Compute scratch and work of a channel-tiled block.

    Parameters
    ----------
    x, y : Tensor
        Input and output of the block.
    channels : int
        Channels of the wide intermediate.
    windows : tuple[Window, Window]
        Windows of the depthwise convolution, along rows and columns.
    groups : int
        Number of groups, a divisor of `channels`.
    """
    down, across = windows
    size = channels // groups
    rows = sum(len(down.rows(r, x.rows)) for r in range(y.rows))
    few = MIN_SCRATCH_ELEMENTS - 1 if y.shape[3] < MIN_SCRATCH_ELEMENTS else 0
    return ChannelTiling(
        size,
        (down.extent * (across.extent - across.stride) * size, down.extent * across.stride * size),
        (few, y.shape[3]),
        rows * x.shape[3] * channels,
        rows * channels,
        y.rows * channels * y.shape[3],
    )


def in_groups(graph: Graph, chosen: Mapping[Block, int]) -> Graph:
    """Replace each chosen block in `graph` by one channel-tiled operator, named after the block's projection."""
    merged = {b.project: _merged(graph, b, groups) for b, groups in chosen.items()}
    gone = {o for b in chosen for o in (b.expand, b.depthwise)}
    ops = [merged.get(op.index, op) for op in graph.ops if op.index not in gone]
    return rebuilt(graph.tensors, ops, graph.inputs, graph.outputs, graph.name)


def _merged(graph: Graph, block: Block, groups: int) -> Op:
    """Make the channel-tiled operator that replaces a block's three."""
    expand, depthwise, project = (graph.ops[o] for o in block)
    x, expanded, y = (graph.tensors[t] for t in (expand.inputs[0], expand.outputs[0], project.outputs[0]))
    down, across = depthwise.windows[0], depthwise.columns[0]
    assert down is not None and across is not None
    needs = channel_tiling(x, expanded.shape[3], y, (down, across), groups)
    taps = sum(across.taps(c, x.columns) for c in range(y.columns))
    covered = len(set().union(*(across.rows(c, x.columns) for c in range(y.columns))))
    return Op(
        0,
        project.name,
        KIND,
        expand.inputs,
        project.outputs,
        windows=depthwise.windows,
        columns=depthwise.columns,
        macs=needs.macs_per_covered_column * covered + needs.macs_per_tap * taps + needs.macs_per_column * y.columns,
        weight_bytes=sum(o.weight_bytes for o in (expand, depthwise, project)),
        scratch_bytes=needs.scratch_bytes(y.columns),
        kernels=KernelFootprints(channel_tiling=needs),
    )
