"""Pictures of a plan (the `plot` extra): arena occupancy over time, the frontier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.errors import MissingToolError
from tvm_cascade.report.text import block_rows

_COLOURS = {"tensor": "#4878a8", "ring": "#e0a030", "state": "#909090", "scratch": "#b05050", "accumulator": "#60a060"}


def _pyplot():
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise MissingToolError("matplotlib", "pip install 'tvm-cascade[plot]'") from None
    return pyplot


def draw_arena(plan: Plan, path: Path) -> None:
    """Address against segment: a rectangle per block."""
    plt = _pyplot()
    from matplotlib.patches import Rectangle

    figure, axes = plt.subplots(figsize=(10, 5))
    for row in block_rows(plan):
        kind = "ring" if row["ring"] else str(row["kind"])
        lower, upper = int(str(row["lower"])), int(str(row["upper"]))
        offset, size = int(str(row["offset"])), int(str(row["bytes"]))
        axes.add_patch(Rectangle((lower, offset), upper - lower, size, fc=_COLOURS[kind], ec="white", lw=0.5))
    for kind, colour in _COLOURS.items():
        axes.plot(
            [],
            [],
            color=colour,
            lw=6,
            label={"tensor": "whole tensor", "state": "step counters", "accumulator": "sums"}.get(kind, kind),
        )
    axes.set_xlim(0, max(len(plan.segments), 1))
    axes.set_ylim(0, plan.peak)
    axes.set_xlabel("segment")
    axes.set_ylabel("arena address, bytes")
    axes.set_title(f"{plan.peak} bytes (layer by layer {plan.baseline_peak}, bound {plan.bound})")
    axes.legend(loc="upper right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def draw_frontier(points: Sequence[tuple[int, float]], path: Path) -> None:
    """Peak bytes against work, as factors of the plain network's."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(6, 4))
    axes.step([p[0] for p in points], [p[1] for p in points], where="post", marker="o")
    axes.set_xlabel("peak memory, bytes")
    axes.set_ylabel("multiply-accumulates, factor")
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)
