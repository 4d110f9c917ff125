"""What one step makes of a map, in real plans of the sample network: some pixels, one row, or several rows."""

from __future__ import annotations

from typing import Any

from cascade_site.samples import NETWORK
from cascade_site.svg import drawing, legend, rect, text

_SIDE = 160  # pixels, of every map


def tile_figure() -> tuple[str, str]:
    """The drawing, and what it shows in words."""
    import tvm_cascade

    fine = tvm_cascade.plan(NETWORK, granularity="pixel").plan
    capped = tvm_cascade.plan(NETWORK, sram="12KiB").plan
    chosen = [_first(fine, pixels=True), _first(capped, pixels=False), _tallest(capped)]
    parts, told = [], []
    for k, (plan, segment, op) in enumerate(chosen):
        drawn, words = _panel(20 + 240 * k, plan, segment, op)
        parts += drawn
        told.append(words)
    shown = legend(
        20, _SIDE + 104, [("now", "made by one step"), ("row", "in the ring"), ("none", "made earlier or later")]
    )
    return drawing(740, _SIDE + 116, [*parts, *shown]), "; ".join(told)


def _steps(plan: Any) -> list[tuple[Any, Any, int]]:
    """Every operator of a segment with steps, whose output is a ring."""
    ops = [(segment, o) for segment in plan.segments for o in dict.fromkeys(segment.trace) if o >= 0]
    rings = [
        (s, o) for s, o in ops if plan.storages[t := plan.graph.ops[o].outputs[0]].is_ring(plan.graph.tensors[t].rows)
    ]
    return [(plan, segment, o) for segment, o in rings if segment.trace.count(o) > 1]


def _first(plan: Any, pixels: bool) -> tuple[Any, Any, int]:
    return next(step for step in _steps(plan) if step[1].tile.by_pixels == pixels and step[1].tile.rows == 1)


def _tallest(plan: Any) -> tuple[Any, Any, int]:
    return max(_steps(plan), key=lambda step: step[1].tile.rows)


def _panel(left: float, plan: Any, segment: Any, op: int) -> tuple[list[str], str]:
    tensor = plan.graph.tensors[plan.graph.ops[op].outputs[0]]
    storage, tile = plan.storages[plan.graph.ops[op].outputs[0]], segment.tile
    high, wide = _SIDE / tensor.rows, _SIDE / tensor.columns
    step = (segment.trace.count(op) // 3) or 1  # one in the middle, after which the ring is full
    if tile.by_pixels:
        makes, ring = (
            f"{tile.columns} pixel{'s' if tile.columns > 1 else ''}",
            f"{storage.pixels} of {tensor.rows * tensor.columns} pixels",
        )
        end = (step + 1) * tile.columns
        kept, now = range(max(end - storage.pixels, 0), end), range(end - tile.columns, end)
        shape = [
            _pixels(left, kept, tensor.columns, high, wide, "row"),
            _pixels(left, now, tensor.columns, high, wide, "now"),
        ]
    else:
        makes, ring = f"{tile.rows} row{'s' if tile.rows > 1 else ''}", f"{storage.height} of {tensor.rows} rows"
        end = (step + 1) * tile.rows
        begin = max(end - storage.height, 0)
        shape = [
            rect(left, 40 + begin * high, _SIDE, (end - begin) * high, "row"),
            rect(left, 40 + (end - tile.rows) * high, _SIDE, tile.rows * high, "now"),
        ]
    name = plan.graph.ops[op].name
    lines = [f"a step makes {makes}", f"ring of {ring}", f"{storage.size:,} bytes, whole {tensor.bytes:,}"]
    parts = [
        text(left, 24, f"{name}, {tensor.rows} x {tensor.columns}", "strong"),
        rect(left, 40, _SIDE, _SIDE, "none"),
        *shape,
    ]
    parts += [text(left, _SIDE + 56 + 15 * k, line, "small") for k, line in enumerate(lines)]
    return parts, f"{name}: {', '.join(lines)}"


def _pixels(left: float, pixels: range, columns: int, high: float, wide: float, kind: str) -> str:
    """Neighbouring pixels, row by row, as rectangles."""
    parts, pixel = [], pixels.start
    while pixel < pixels.stop:
        row, column = divmod(pixel, columns)
        stop = min(pixels.stop, (row + 1) * columns)
        parts.append(rect(left + column * wide, 40 + row * high, (stop - pixel) * wide, high, kind))
        pixel = stop
    return "".join(parts)
