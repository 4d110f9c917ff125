"""Pictures of a plan as files (the `plot` extra): arena occupancy over time, the frontier with its bounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tvm_cascade import extras
from tvm_cascade.cascading import Bounds, Plan
from tvm_cascade.report.timeline import timeline

_COLOURS = {
    "tensor": "#4878a8",
    "ring": "#e0a030",
    "state": "#909090",
    "scratch": "#b05050",
    "accumulator": "#60a060",
    "kept": "#8868a8",
}
_KINDS = {"tensor": "whole tensor", "state": "step counters", "accumulator": "sums", "kept": "kept columns"}


def _pyplot():
    extras.load("matplotlib").use("Agg")
    return extras.load("matplotlib", ".pyplot")


def draw_arena(plan: Plan, path: Path) -> None:
    """Draw arena addresses against steps: the bytes of every block that are in use (`timeline`); dashed lines are cuts."""
    plt = _pyplot()
    drawn = timeline(plan)
    figure, (axes, below) = plt.subplots(
        2, 1, figsize=(10, 6.5), sharex=True, gridspec_kw={"height_ratios": (4, 1)}, constrained_layout=True
    )
    for band in drawn.bands:
        colour = _COLOURS[band.kind]
        axes.fill_between(band.times, band.low, band.high, fc=colour, ec="white", lw=0.4, alpha=0.85)
    for kind, colour in _COLOURS.items():
        axes.plot([], [], color=colour, lw=6, label=_KINDS.get(kind, kind))
    for cut in drawn.cuts[1:-1]:
        for each in (axes, below):
            each.axvline(cut, color="#b05050", lw=0.6, ls="--")
    axes.set_xlim(0, max(drawn.cuts[-1], 1))
    axes.set_ylim(0, max(plan.peak, 1))
    axes.set_ylabel("arena address, bytes")
    axes.set_title(f"{plan.peak} bytes (layer by layer {plan.baseline_peak}, bound {plan.bound})")
    axes.legend(loc="upper right", fontsize=8)
    below.fill_between(drawn.times, drawn.used, step="post", fc="#4878a8", alpha=0.5)
    below.axhline(plan.peak, color="#202020", lw=0.8)
    below.set_ylim(0, max(plan.peak, 1) * 1.05)
    below.set_xlabel("step (kernel call)")
    below.set_ylabel("bytes of use")
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def draw_frontier(
    points: Sequence[tuple[int, float]], path: Path, baseline: int | None = None, bounds: Bounds | None = None
) -> None:
    """Draw peak bytes against work, a factor of the plain network's; vertical lines are bounds at 1.00x, if given."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(7, 4), constrained_layout=True)
    axes.step([p[0] for p in points], [p[1] for p in points], where="post", marker="o", label="plans")
    if bounds is not None:
        axes.axvline(bounds.rows, color="#e0a030", ls=":", label=f"bound at 1.00x, rows: {bounds.rows}")
        axes.axvline(bounds.pixels, color="#60a060", ls=":", label=f"bound at 1.00x, pixels: {bounds.pixels}")
    if baseline is not None:
        axes.plot([baseline], [1.0], marker="s", ls="", color="#909090", label=f"layer by layer: {baseline}")
    axes.set_xlabel("peak memory, bytes")
    axes.set_ylabel("multiply-accumulates, factor")
    axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)
