"""The arena over time as shapes in an SVG drawing: each block's bytes in use, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.report.scale import Axis, Outline
from tvm_cascade.report.text import block_rows
from tvm_cascade.report.timeline import Band, timeline
from tvm_cascade.schema.plan import Block

HIGH = 1000  # of the drawing, which is as wide as the plan has steps and is stretched to the place that it gets
KINDS = {
    "tensor": "whole tensor",
    "ring": "rolling buffer",
    "rows": "row at its own address",
    "accumulator": "sums",
    "scratch": "scratch",
    "kept": "kept columns",
    "state": "step counters",
}
_THIN = 5  # least height of what is drawn
_LABELS, _LEAST = 14, (0.05, 0.05)  # blocks with their name on them at most, and the parts of the axes that these take


@dataclass(frozen=True, slots=True)
class Label:
    """A name on a block, in per cent of the drawing from its left and upper edge."""

    text: str
    left: str
    top: str
    width: str


@dataclass(frozen=True, slots=True)
class ArenaChart:
    """All shapes in the drawing, in drawing units: steps from the left, thousandths of the arena from above."""

    shapes: tuple[Outline, ...]  # of blocks of the arena
    labels: tuple[Label, ...]
    kinds: tuple[tuple[str, str], ...]  # those that occur, each with its words
    cuts: tuple[int, ...]  # steps at which segments with steps start, and the end
    segments: tuple[int, ...]  # numbers of these
    used: str  # outline of the bytes in use
    memories: tuple[Label, ...]  # names of memories, where each begins; none for the arena alone
    edges: tuple[int, ...]  # where memories but the first begin
    times: Axis
    bytes: Axis


def arena_chart(plan: Plan) -> ArenaChart:
    """Draw a plan's arena."""
    drawn, blocks = timeline(plan), block_rows(plan)
    times, high = Axis(0, max(drawn.cuts[-1], 1)), Axis(0, max(plan.allocation.peak, 1))
    shapes = tuple(
        Outline(band.kind, _outline(band.times, band.low, band.high, high), _tip(band, blocks[band.block]))
        for band in drawn.bands
    )
    used = _outline(drawn.times, (0,) * len(drawn.times), drawn.used, high)
    present = {band.kind for band in drawn.bands}
    segments = tuple(k for k, (start, stop) in enumerate(pairwise(drawn.cuts)) if stop > start) or (0,)
    cuts = tuple(dict.fromkeys((*drawn.cuts, round(times.high))))  # with views alone there are none
    kinds = tuple((kind, words) for kind, words in KINDS.items() if kind in present)
    labels, taken = _labels(drawn.bands, plan, times, high), [use for use in plan.placed if use.bytes]
    names = tuple(Label(use.ram.name, "0%", f"{100 * (1 - high.part(use.start)):.2f}%", "100%") for use in taken)
    edges = tuple(round(HIGH * (1 - high.part(use.start))) for use in taken[1:])
    return ArenaChart(shapes, labels, kinds, cuts, segments, used, names, edges, times, high)


def _outline(times: Sequence[int], low: Sequence[int], high: Sequence[int], arena: Axis) -> str:
    """Return the closed path around the addresses `[low, high)` at `times`; thick enough to be seen."""
    upper, lower = [], []
    for time, a, b in zip(times, low, high, strict=True):
        floor = max(round(HIGH * (1 - arena.part(a))), _THIN)
        lower.append((time, floor))
        upper.append((time, min(round(HIGH * (1 - arena.part(b))), floor - _THIN)))
    points = (*_simplified(upper), *reversed(_simplified(lower)))
    return "M" + " ".join(f"{x},{y}" for x, y in points) + "z" if points else ""


def _simplified(line: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Simplify a line: drop points on a straight line between neighbours."""
    kept = [p for p, q in pairwise(line) if p != q] + line[-1:]
    found: list[tuple[int, int]] = []
    for point in kept:
        while len(found) > 1 and _straight(found[-2], found[-1], point):
            found.pop()
        found.append(point)
    return found


def _straight(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> bool:
    return (b[0] - a[0]) * (c[1] - b[1]) == (b[1] - a[1]) * (c[0] - b[0])


def _tip(band: Band, block: Block) -> str:
    if band.kind == "rows":
        size = band.high[0] - band.low[0]
        return f"{band.name}: {size:,} bytes at offset {band.low[0]:,}; lives in steps {band.times[0]:,} to {band.times[-1]:,}"
    first, last = block["lower"], block["upper"] - 1
    life = f"segment {first}" if first == last else f"segments {first} to {last}"
    memory = f" of {block['memory']}" if "memory" in block else ""
    return (
        f"{band.name}: {KINDS[band.kind]}, {block['bytes']:,} bytes at offset {block['offset']:,}{memory}; "
        f"lives in {life}, steps {band.times[0]:,} to {band.times[-1]:,}"
    )


def _labels(bands: Sequence[Band], plan: Plan, times: Axis, high: Axis) -> tuple[Label, ...]:
    """Draw names on the largest whole tensors and rolling buffers, if they have room."""
    found: list[tuple[float, Label]] = []
    for band in bands:
        middle = _centre(band)
        inside = [t for t, a, b in zip(band.times, band.low, band.high, strict=True) if a <= middle <= b]
        left, wide = times.part(inside[0]), times.part(inside[-1]) - times.part(inside[0])
        tall = high.part(max(b - a for a, b in zip(band.low, band.high, strict=True)))
        if wide >= _LEAST[0] and tall >= _LEAST[1] and band.kind in ("tensor", "ring"):
            name = plan.graph.tensors[int(plan.buffers[band.block].partition(" ")[2])].name
            label = Label(name, f"{100 * left:.2f}%", f"{100 * (1 - high.part(middle)):.2f}%", f"{100 * wide:.2f}%")
            found.append((-wide * tall, label))
    return tuple(label for _, label in sorted(found, key=lambda pair: pair[0])[:_LABELS])


def _centre(band: Band) -> float:
    """Return an address the block uses for long: the middle while the block is largest."""
    k = max(range(len(band.times)), key=lambda k: band.high[k] - band.low[k])
    return (band.low[k] + band.high[k]) / 2
