"""Groups of channels against stripes, block by block: `python benchmarks/channel_groups.py`.

An inverted bottleneck C -> E -> depthwise k x k, stride s -> D may make its E channels in G groups, each added to int32 sums
of the projection behind it. If the sums are those of the whole map nothing is made twice; if they are those of one row of
columns [x0, x1) (w of them; all, or a stripe) the k rows of a group are made again for every output row (what
`--max-macs` plans). Bytes beyond those of input and output:

    whole map:  4 * height * width * D  +  one group's rings (k rows and a row of E / G channels)
    row, w:     4 * w * D  +  (k * (s * (w - 1) + k) + w) * E / G

For each of them: do rows, pixels or some form of stripes need no more bytes and no more multiply-accumulates? Of those
that are not beaten so: how many need as many bytes as the smallest stripes, how many fewer, and what part of the block's
bytes, input and output with them, these save at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.interleaving import Interleaving
from tvm_cascade.cascading.segments import SegmentCosts, Settings
from tvm_cascade.cascading.stripes import widths_of
from tvm_cascade.graph import PIXEL, ROW, Graph, Op, Tile
from tvm_cascade.testing.graphs import mobilenet_v2

GROUPS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
NETWORKS = {
    "MobileNetV2-w0.35-144": lambda: mobilenet_v2(144, 144, 3, alpha=0.35, plain=True),
    "MobileNetV2-w0.35-160": lambda: mobilenet_v2(160, 160, 3, alpha=0.35, plain=True),
    "MobileNetV2-w1.0-224": lambda: mobilenet_v2(224, 224, 3, plain=True),
}


@dataclass(frozen=True, slots=True)
class Form:
    """Bytes beside input and output, and multiply-accumulates of the block."""

    name: str
    bytes: int
    macs: int


def blocks(graph: Graph) -> Iterator[tuple[Op, Op, Op]]:
    """Expansion, depthwise convolution and projection, one behind the other."""
    for depthwise in graph.ops:
        if depthwise.kind == "depthwise_conv2d" and depthwise.index and depthwise.index + 1 < len(graph.ops):
            before, after = graph.ops[depthwise.index - 1], graph.ops[depthwise.index + 1]
            if (before.outputs, depthwise.outputs) == (depthwise.inputs, after.inputs) and before.macs and after.macs:
                yield before, depthwise, after


def in_groups(graph: Graph, expand: Op, depthwise: Op, project: Op) -> Iterator[Form]:
    """Every number of groups that divides the channels, on the whole map, in rows, and in stripes of rows."""
    wide, out = graph.tensors[expand.outputs[0]], graph.tensors[project.outputs[0]]
    window = depthwise.windows[0]
    assert window is not None
    k, s, rest = window.extent, window.stride, depthwise.macs + project.macs
    channels, outputs = wide.shape[-1], out.shape[-1]
    for groups in (g for g in GROUPS if channels % g == 0):
        each = channels // groups
        rings = (k * wide.columns + out.columns) * each
        yield Form(f"{groups} groups, whole map", 4 * out.rows * out.columns * outputs + rings, expand.macs + rest)
        for w in (out.columns, *widths_of(out.columns)):
            seen = min(s * (w - 1) + k, wide.columns)
            again = max(k / s, 1.0) * (max(seen / (s * w), 1.0) if w < out.columns else 1.0)
            size = 4 * w * outputs + (k * seen + w) * each
            yield Form(f"{groups} groups, rows of {w}", size, round(expand.macs * again) + rest)


def in_stripes(graph: Graph, costs: SegmentCosts, expand: Op, project: Op) -> Iterator[Form]:
    """The block by rows, by pixels, and in all its stripes; counters not counted."""
    i, j = expand.index, project.index + 1
    around = graph.tensors[expand.inputs[0]].bytes + graph.tensors[project.outputs[0]].bytes
    macs = sum(op.macs for op in graph.ops[i:j])
    for tile in (ROW, Tile(columns=8), PIXEL):
        name = f"{tile.columns} pixels" if tile.by_pixels else "rows"
        base = around + costs.state_bytes(i, j, tile)
        yield Form(name, costs.exact_cost(i, j, Interleaving(tile)) - base, macs)
    for s in costs.striped(i, j):
        yield Form(
            f"stripes of {s.interleaving.stripe_columns}, {s.interleaving.halo_tensors} with a halo",
            s.exact - around - costs.state_bytes(i, j, ROW),
            macs + s.extra_macs,
        )


def main() -> None:
    titles = (
        "network",
        "blocks",
        "forms in groups",
        "beaten",
        "not, and as large as stripes",
        "smaller",
        "saves at most",
    )
    print(f"| {' | '.join(titles)} |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, build in NETWORKS.items():
        graph = build()
        costs = SegmentCosts(AccessTables(graph), range(len(graph.ops)), Settings(alignment=1))
        count, beaten, as_large, smaller, saved = 0, 0, 0, 0, 0.0
        triples = list(blocks(graph))
        for expand, depthwise, project in triples:
            others = list(in_stripes(graph, costs, expand, project))
            whole, least = sum(op.macs for op in (expand, depthwise, project)), min(o.bytes for o in others)
            around = graph.tensors[expand.inputs[0]].bytes + graph.tensors[project.outputs[0]].bytes
            for form in in_groups(graph, expand, depthwise, project):
                if form.macs - whole > graph.macs:  # the network would do more than 2.0x of its work
                    continue
                count += 1
                if any(o.bytes <= form.bytes and o.macs <= form.macs for o in others):
                    beaten += 1
                elif form.bytes >= least:
                    as_large += 1
                else:
                    smaller += 1
                    saved = max(saved, (least - form.bytes) / (around + least))
        print(f"| {name} | {len(triples)} | {count} | {beaten} | {as_large} | {smaller} | {saved:.1%} |")


if __name__ == "__main__":
    main()
