"""The commands `allocate`, `order`, `stages` and `optimize`, which run a search each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, cast

import click

from tvm_cascade.cli.guard import guarded, say, show
from tvm_cascade.cli.json_option import prints
from tvm_cascade.cli.option_file import EPILOG
from tvm_cascade.cli.options import (
    INPUT_SHAPE,
    MODEL,
    PATH,
    TIME_LIMIT,
    TRIALS,
    cutting,
    keeping,
    option,
    parse_bytes,
    refuse_idle_trials,
    require_new_file,
    require_picture,
    require_tvm_target,
)
from tvm_cascade.cli.teaching import command
from tvm_cascade.cost.device import DEVICES
from tvm_cascade.request import (
    AllocateRequest,
    LoadRequest,
    OptimizeRequest,
    OrderRequest,
    SearchRequest,
    StagesRequest,
)
from tvm_cascade.schema.searches import Layout, Optimization, Order, Stages

_TARGET = click.option(
    "--target",
    required=True,
    metavar="T",
    callback=require_tvm_target,
    help="cuda or llvm, with or without options of TVM's targets behind.",
)
_DEVICE = option(
    StagesRequest,
    "device",
    f"Description by which costs are estimated: {', '.join(sorted(DEVICES))}. "
    "[default: what doctor --measure has kept, else gpu or cpu]",
    metavar="D",
)
_KEEPS = "A file that keeps measurements: those in it are used, new ones are added."

_EMIT = (
    option(SearchRequest, "emit", "Write a folder that runs the network by its schedule with TVM alone: library, weights, "
           "example.py, example.cc with CMakeLists.txt, schedule.json, metadata.json.", metavar="DIR"),
    option(SearchRequest, "precision", "Of tensors between kernels: fp16 and bf16 store them as float16 and bfloat16, and "
           "convolutions without groups and products of matrices multiply these and sum up in "
           "float32, on tensor cores where there are any; with tf32, for cuda, tensors stay float32 and "
           "products are on tensor cores."),
    option(SearchRequest, "arch", "With --emit, for cuda: architectures of the machine code; with several, PTX of the last "
           "too. [default: --device's, or that of the GPU here]", multiple=True, metavar="sm_90[,sm_100]"),
    option(SearchRequest, "fast_math", "With --emit, for cuda: arithmetic that is faster and less exact."),
    option(SearchRequest, "threads", "For llvm: threads that share a stage, by which it is priced too. [default: --device's; "
           "with --emit TVM's, if doctor --measure has not run]"),
    option(SearchRequest, "streams", "With --emit, for cuda: streams that share a stage. [default: one a group]"),
    option(SearchRequest, "gpu", "For cuda: number of the GPU that measures here, and with --emit of the one that will run it."),
    option(SearchRequest, "winograd", "With --emit, for llvm: 3x3 convolutions are computed in tiles of at most N x N outputs by "
           "fewer multiplications, where that is less work; 2 rounds less than 4, 0 leaves it out. [default: 4]"),
)  # fmt: skip


_FARM = (
    option(SearchRequest, "tracker", "With --cost measured or learned: measure on the servers of TVM's RPC tracker.",
           metavar="HOST:PORT"),
    option(SearchRequest, "key", "Key of those servers.", metavar="K"),
    option(SearchRequest, "parallel", "Servers that are used at the same time."),
)  # fmt: skip


def _with_options(options: Sequence[Callable[..., Any]], command: Callable[..., None]) -> Callable[..., None]:
    for one in reversed(options):
        command = one(command)
    return command


def emitting(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options for the emitted folder."""
    return _with_options(_EMIT, command)


def on_a_farm(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options for measuring servers."""
    return _with_options(_FARM, command)


@command()
@click.argument("buffers", metavar="BUFFERS.csv", type=PATH)
@click.option("--capacity", metavar="SIZE", callback=parse_bytes,
              help="Stop at the first layout within this size; exit 1 if there is none.")  # fmt: skip
@click.option("-o", "--output", type=PATH, callback=require_new_file, help="Write id,lower,upper,size,offset here.")
@TIME_LIMIT
@prints(Layout)
@guarded
def allocate(buffers: Path, output: Path | None, as_json: bool, **options: Any) -> None:
    """Give buffers with lifetimes offsets in the smallest arena (columns id,lower,upper,size; half-open lifetimes)."""
    from tvm_cascade.memory.minimalloc_csv import run as allocate_csv

    data = allocate_csv(buffers, AllocateRequest.of_all(options), output)
    text = f"peak {data['peak_bytes']} bytes, bound {data['bound_bytes']}, optimal {data['optimal']}, {data['seconds']:.2f} s"
    show(as_json, data, text)


@command(epilog=EPILOG)
@MODEL
@option(OrderRequest, "rewrite", "Let convolutions read the parts of concats where they lie, if that lowers the peak.")
@option(OrderRequest, "on_chip", "Also count the bytes moved for SIZE bytes of on-chip memory.")
@TIME_LIMIT
@INPUT_SHAPE
@cutting
@prints(Order)
@guarded
def order(model: Path, on_chip: int | None, as_json: bool, **options: Any) -> None:
    """Find the order of MODEL's operators with the smallest peak memory, whole tensors, proven optimal if the search
    ends.

    MODEL is a network or a plain graph, GRAPH.json: {"tensors": [bytes, ...], "ops": [{"inputs": [tensor, ...], "outputs":
    [tensor, ...]}, ...]}. Operators of a graph are told by number.
    """
    from tvm_cascade.ordering.graph_file import is_graph_file, order_graph_file

    if is_graph_file(model):  # `api` imports TVM
        data = order_graph_file(model, OrderRequest.of(options | {"on_chip": on_chip}), LoadRequest.of(options))
    else:
        from tvm_cascade import api

        data = api.order(model, on_chip=on_chip, progress=say, **options)
    proof = "proven optimal" if data["optimal"] else f"best known; bound {data['bound_bytes']}"
    lines = [
        f"file order      {data['file_order_peak_bytes']} bytes",
        f"best order      {data['peak_bytes']} bytes, {proof}",
        f"search          {data['nodes']} operators in {data['partitions']} partitions, {data['seconds']} s",
    ]
    if on_chip is not None:
        lines.append(f"traffic         {data['traffic_bytes']} bytes with {on_chip} on chip")
    names = " ".join(str(o) for o in cast("list[int]", data["order"]))
    lines.append(fill(f"operators       {names}", 110, subsequent_indent=" " * 16))
    show(as_json, data, "\n".join(lines))


@command(epilog=EPILOG)
@MODEL
@_TARGET
@_DEVICE
@option(StagesRequest, "batch", "Batch size.")
@option(StagesRequest, "batches", "With --emit, for llvm: the folder takes any batch up to the last, by programs for 1,4,16 or, "
        "with 1..16, for 1, 2, 4, 8 and 16, which share one file of weights.", metavar="N..N")  # fmt: skip
@option(StagesRequest, "lengths", "With --emit, for llvm: the folder takes inputs of any of these lengths, 16,48,128 or, with "
        "16..128, 16, 32, 64 and 128, by a program for each, which share one file of weights. A length is every size that the "
        "file leaves open behind the batch.", metavar="N..N")  # fmt: skip
@option(
    StagesRequest,
    "unit",
    "What is scheduled as one: single operators; what one kernel computes; with sepconv, a "
    "separable convolution too; with cell, sums of a cell too, as IOS counts NASNet's operators.",
)
@option(
    StagesRequest,
    "variant",
    "What stages may hold: parallel groups, merged operators, or both; sequential and greedy search nothing.",
)
@option(StagesRequest, "r", "Operators in a group, at most; 0: any number.")
@option(StagesRequest, "s", "Groups in a stage, at most; 0: any number.")
@option(
    StagesRequest,
    "cost",
    "What a stage costs: by the device's description, measured (here, or with --tracker elsewhere), or by a model that is "
    "trained on measurements.",
)
@option(
    StagesRequest,
    "database",
    f"{_KEEPS} With --cost analytic its kernels that were measured alone on a device of that "
    "name take the place of estimates.",
)
@option(StagesRequest, "metaschedule", "With --cost measured or learned: kernels that MetaSchedule tunes where is measured; "
        "records are kept in this folder and used again, also by --emit without measuring.", metavar="DIR")  # fmt: skip
@TRIALS
@option(StagesRequest, "cudnn", "With --metaschedule, for cuda: kernels of cuDNN too, wherever they take less time here "
        "than ours (pip install 'tvm-cascade[cudnn]').")  # fmt: skip
@on_a_farm
@option(StagesRequest, "load", "Price a schedule that -o has saved instead of searching.")
@option(StagesRequest, "output", "Save the schedule as JSON in this file.", "--output", "-o", callback=require_new_file)
@option(StagesRequest, "picture", "Draw the timeline (.png, .svg).", callback=require_picture)
@option(StagesRequest, "details", "Print every group of the timeline, not only the first.")
@click.option("--beside", type=PATH, multiple=True, metavar="MODEL2",
              help="Another network that runs at the same time (may be repeated): one schedule for all.")  # fmt: skip
@TIME_LIMIT
@INPUT_SHAPE
@keeping
@cutting
@emitting
@prints(Stages)
@guarded
def stages(model: Path, beside: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Find which operators of MODEL run at the same time, or merged into one, for the lowest latency (IOS).

    MODEL is a network, or a .json file of the IOS authors, which is scheduled by the description of a device: -o writes such a
    file again, --load prices the schedule of one.
    """
    from tvm_cascade import api

    refuse_idle_trials(options["metaschedule"])
    data, text = api.stages([model, *beside], progress=say, **options)
    show(as_json, data, text)


@command(epilog=EPILOG)
@MODEL
@_TARGET
@option(OptimizeRequest, "cost", "latency, ios (that of the schedule of stages), measured or learned (here, or with --tracker "
        "elsewhere), flops, traffic, launches, peak, a weighted sum, or with a limit: "
        "'latency,peak<=256KiB'.", metavar="C")  # fmt: skip
@option(OptimizeRequest, "database", _KEEPS)
@on_a_farm
@_DEVICE
@option(OptimizeRequest, "alpha", "How much worse a graph may get on the way, as a factor of the best cost so far.")
@option(OptimizeRequest, "budget", "Graphs to price, at most, in each part that the network is split into.")
@option(OptimizeRequest, "rules", "Substitutions by TASO (graph_subst.pb): those that hold on random tensors are searched too.",
        metavar="FILE.pb")  # fmt: skip
@option(
    OptimizeRequest,
    "output",
    "Save the graph in this file: .onnx, else a Relax module.",
    "--output",
    "-o",
    callback=require_new_file,
)
@option(OptimizeRequest, "picture", "Draw the graph before and after (.png, .svg).", callback=require_picture)
@option(OptimizeRequest, "details", "Print every substitution, not only the first.")
@TIME_LIMIT
@INPUT_SHAPE
@cutting
@emitting
@prints(Optimization)
@guarded
def optimize(model: Path, as_json: bool, **options: Any) -> None:
    """Find an equivalent graph for MODEL that costs less, by relaxed substitutions (MetaFlow)."""
    from tvm_cascade import api

    data, text = api.optimize(model, progress=say, **options)
    show(as_json, data, text)
