"""`allocate`, `order`, `stages` and `optimize`: the searches by themselves."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any, cast

import click

from tvm_cascade.cli.guard import guarded, say, show
from tvm_cascade.cli.options import (
    INPUT_SHAPE,
    JSON,
    MEASUREMENTS,
    MODEL,
    TRIALS,
    parse_bytes,
    refuse_idle_trials,
    require_factor,
    require_new_file,
    require_picture,
    require_tvm_target,
)


@click.command()
@click.argument("buffers", metavar="BUFFERS.csv", type=click.Path(path_type=Path))
@click.option(
    "--capacity",
    metavar="N",
    callback=parse_bytes,
    help="Stop at the first layout within N bytes; exit 1 if there is none.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    callback=require_new_file,
    help="Write id,lower,upper,size,offset here.",
)
@JSON
@guarded
def allocate(buffers: Path, capacity: int | None, output: Path | None, as_json: bool) -> None:
    """Give buffers with lifetimes offsets in the smallest arena (columns id,lower,upper,size; half-open lifetimes)."""
    from tvm_cascade.memory.minimalloc_csv import run as allocate_csv

    data = allocate_csv(buffers, capacity, output)
    text = f"peak {data['peak_bytes']} bytes, bound {data['bound_bytes']}, optimal {data['optimal']}, {data['seconds']:.2f} s"
    show(as_json, data, text)


@click.command()
@MODEL
@click.option(
    "--rewrite",
    is_flag=True,
    help="Let convolutions read the parts of concats where they lie, if that lowers the peak.",
)
@click.option(
    "--on-chip",
    metavar="SIZE",
    callback=parse_bytes,
    help="Also count the bytes moved for SIZE bytes of on-chip memory.",
)
@INPUT_SHAPE
@JSON
@guarded
def order(
    model: Path, rewrite: bool, on_chip: int | None, input_shapes: dict[str, tuple[int, ...]], as_json: bool
) -> None:
    """Find the order of MODEL's operators with the smallest peak memory, whole tensors, proven optimal where it ends."""
    from tvm_cascade import api

    data = api.order(model, rewrite=rewrite, on_chip=on_chip, input_shapes=input_shapes, progress=say)
    proof = "proven optimal" if data["optimal"] else f"best known; bound {data['bound_bytes']}"
    lines = [
        f"file order      {data['file_order_peak_bytes']} bytes",
        f"best order      {data['peak_bytes']} bytes, {proof}",
        f"search          {data['nodes']} operators in {data['partitions']} partitions, {data['seconds']} s",
    ]
    if on_chip is not None:
        lines.append(f"traffic         {data['traffic_bytes']} bytes with {on_chip} on chip")
    lines.append(
        fill(
            "operators       " + " ".join(str(o) for o in cast("list[int]", data["order"])),
            110,
            subsequent_indent=" " * 16,
        )
    )
    show(as_json, data, "\n".join(lines))


@click.command()
@MODEL
@click.option("--target", required=True, metavar="T", callback=require_tvm_target, help="cuda or llvm.")
@click.option("--device", metavar="D", help="Device description. [default: the target's generic one]")
@click.option("--batch", type=click.IntRange(min=1, max=1 << 16), metavar="N", help="Batch size.")
@click.option(
    "--unit", type=click.Choice(["op", "fused"]), default="fused", show_default=True, help="What is scheduled as one."
)
@click.option(
    "--variant",
    type=click.Choice(["sequential", "greedy", "merge", "parallel", "both"]),
    default="both",
    show_default=True,
)
@click.option(
    "--r",
    "r",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Operators in a group, at most; 0: any number.",
)
@click.option(
    "--s",
    "s",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    help="Groups in a stage, at most; 0: any number.",
)
@click.option("--cost", type=click.Choice(["analytic", "measured", "learned"]), default="analytic", show_default=True)
@MEASUREMENTS
@click.option("--metaschedule", metavar="DIR", type=click.Path(path_type=Path), help="With --cost measured or learned: kernels "
              "that MetaSchedule tunes on this machine; records are kept in this folder and used again.")  # fmt: skip
@TRIALS
@click.option("--load", type=click.Path(path_type=Path), help="Price a saved schedule instead of searching.")
@click.option("--output", "-o", type=click.Path(path_type=Path), callback=require_new_file, help="Save the schedule.")
@click.option(
    "--picture", type=click.Path(path_type=Path), callback=require_picture, help="Draw the timeline (.png, .svg)."
)
@INPUT_SHAPE
@JSON
@guarded
def stages(model: Path, input_shapes: dict[str, tuple[int, ...]], as_json: bool, **values: Any) -> None:
    """Find which operators of MODEL run at the same time, or merged into one, for the lowest latency (IOS)."""
    from tvm_cascade import api

    refuse_idle_trials(values["metaschedule"])
    data, text = api.stages(model, input_shapes=input_shapes, progress=say, **values)
    show(as_json, data, text)


@click.command()
@MODEL
@click.option("--target", required=True, metavar="T", callback=require_tvm_target, help="cuda or llvm.")
@click.option(
    "--cost",
    metavar="C",
    default="latency",
    show_default=True,
    help="latency, ios (that of the schedule of stages), measured or learned (on this machine's CPU), flops, traffic, "
    "launches, peak, a weighted sum, or with a limit: 'latency,peak<=256KiB'.",
)
@MEASUREMENTS
@click.option("--device", metavar="D", help="Device description. [default: the target's generic one]")
@click.option(
    "--alpha",
    type=click.FloatRange(min=1.0),
    default=1.05,
    show_default=True,
    callback=require_factor,
    help="How much worse a graph may get on the way.",
)
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    default=2000,
    show_default=True,
    metavar="N",
    help="Graphs to price, at most, per part.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    callback=require_new_file,
    help="Save the graph: .onnx, else a Relax module.",
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    callback=require_picture,
    help="Draw the graph before and after (.png, .svg).",
)
@INPUT_SHAPE
@JSON
@guarded
def optimize(model: Path, input_shapes: dict[str, tuple[int, ...]], as_json: bool, **values: Any) -> None:
    """Find an equivalent graph for MODEL that costs less, by relaxed substitutions (MetaFlow)."""
    from tvm_cascade import api

    data, text = api.optimize(model, input_shapes=input_shapes, progress=say, **values)
    show(as_json, data, text)
