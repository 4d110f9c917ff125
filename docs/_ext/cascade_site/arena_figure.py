"""The arena of the sample network over time, layer by layer and cascaded, on the same scale of bytes."""

from __future__ import annotations

from typing import Any

from cascade_site.samples import NETWORK
from cascade_site.svg import drawing, legend, text

_WIDE, _HIGH, _LEFT, _TOP = 290, 300, 56, 40  # pixels


def arena_figure() -> tuple[str, str]:
    """The drawing, and what it shows in words."""
    import tvm_cascade
    from tvm_cascade.report.arena_chart import KINDS

    plans = [
        ("layer by layer", tvm_cascade.plan(NETWORK, layerwise=True).plan),
        ("cascaded", tvm_cascade.plan(NETWORK).plan),
    ]
    largest = max(plan.peak for _, plan in plans)
    parts = [
        text(_LEFT - 8, _TOP + 4, f"{largest:,}", "small", "end"),
        text(_LEFT - 8, _TOP + _HIGH, "0", "small", "end"),
    ]
    kinds: dict[str, str] = {}
    for k, (title, plan) in enumerate(plans):
        drawn, used = _panel(_LEFT + (_WIDE + 40) * k, title, plan, largest)
        parts += drawn
        kinds |= dict.fromkeys(used, "")
    shown = legend(_LEFT, _TOP + _HIGH + 46, [(f"k-{kind}", KINDS[kind]) for kind in KINDS if kind in kinds])
    words = "; ".join(f"{title}: an arena of {plan.peak:,} bytes" for title, plan in plans)
    return drawing(_LEFT + 2 * _WIDE + 50, _TOP + _HIGH + 58, [*parts, *shown]), words


def _panel(left: float, title: str, plan: Any, largest: int) -> tuple[list[str], list[str]]:
    from tvm_cascade.report.arena_chart import HIGH, arena_chart

    chart = arena_chart(plan)
    steps, tall = max(chart.cuts[-1], 1), _HIGH * plan.peak / largest
    top = _TOP + _HIGH - tall
    scaled = f'<g transform="translate({left:g} {top:g}) scale({_WIDE / steps:.6f} {tall / HIGH:.6f})">'
    shapes = [f'<path class="k-{s.kind}" d="{s.path}"><title>{_escaped(s.tip)}</title></path>' for s in chart.shapes]
    frame = f'<path class="frame" d="M{left} {_TOP}V{_TOP + _HIGH}H{left + _WIDE}"/>'
    parts = [
        text(left, 24, f"{title}: {plan.peak:,} bytes", "strong"),
        scaled, *shapes, "</g>", frame,
        text(left + _WIDE, _TOP + _HIGH + 16, f"time: {steps:,} steps", "small", "end"),
    ]  # fmt: skip
    return parts, [s.kind for s in chart.shapes]


def _escaped(tip: str) -> str:
    from html import escape

    return escape(tip)
