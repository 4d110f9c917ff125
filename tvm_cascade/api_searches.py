"""The functions of `api` that search for an order, a schedule or a graph and write no project."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from tvm.ir import IRModule

from tvm_cascade import checks, pipeline
from tvm_cascade.keywords import OptimizeKeywords, StagesKeywords, takes
from tvm_cascade.request import AllocateRequest, LoadRequest, OptimizeRequest, OrderRequest, StagesRequest
from tvm_cascade.schema.searches import Layout, Optimization, Order, Stages
from tvm_cascade.search_monitor import SearchMonitor

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tvm_cascade.optimizing.module import Optimized
    from tvm_cascade.substitution.pattern import Rule

Model = str | Path | IRModule
Progress = Callable[[str], None]


def silent(_text: str) -> None:
    return None


def _reading(
    input_shapes: Mapping[str, tuple[int, ...]] | None, until: str | Sequence[str], from_: str | Sequence[str]
) -> LoadRequest:
    return LoadRequest.of({"input_shapes": input_shapes, "until": until, "from_": from_})


def allocate(
    buffers: str | Path,
    *,
    capacity: int | str | None = None,
    output: str | Path | None = None,
    time_limit: float | None = None,
) -> Layout:
    """Give buffers with lifetimes offsets in the smallest arena.

    Parameters
    ----------
    buffers : path
        A .csv file with the columns id, lower, upper and size: a buffer is alive in the steps from `lower` to before `upper`.
    capacity : int or str, optional
        Bytes, or "64KiB": the search stops at the first layout within them; None searches the smallest arena.
    output : path, optional
        A .csv file to write, with the column offset added.
    time_limit : float, optional
        Seconds after which the search ends with the best layout so far.

    Returns
    -------
    dict
        The JSON object of `tvm-cascade allocate`: bytes of the arena, a lower bound, and whether it is proven optimal.

    Raises
    ------
    LoadError, UsageError, InfeasibleError
        The file cannot be read; a value that an option cannot have; no layout fits `capacity`.
    """
    from tvm_cascade.memory.minimalloc_csv import run

    written = checks.optional(checks.path)("output", output)
    return run(checks.path("buffers", buffers), AllocateRequest(capacity, time_limit), written)


def order(
    model: Model,
    *,
    rewrite: bool = False,
    on_chip: int | str | None = None,
    time_limit: float | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    until: str | Sequence[str] = (),
    from_: str | Sequence[str] = (),
    progress: Progress = silent,
) -> Order:
    """Find the order of operators with the least peak memory (Serenity).

    Parameters
    ----------
    model : path or IRModule
        A network, or a plain graph: a .json file (`ordering.graph_file`), whose operators are told by number.
    rewrite : bool
        Convolutions may read the parts of a concat in place, so that the concat is removed, where that lowers the peak.
    on_chip : int or str, optional
        Size of an on-chip memory in bytes or as "256KiB": also count the bytes that move between it and off-chip memory.
    time_limit : float, optional
        Seconds after which the search ends with the best order so far.
    input_shapes, until, from_
        As in `load`.
    progress : function
        Called with a line of text at every step of long work.

    Returns
    -------
    dict
        The JSON object of `tvm-cascade order`: the operators in their order, its peak, and whether it is proven optimal.

    Raises
    ------
    LoadError, UnsupportedOperatorError, UsageError
        As `plan` does.
    """
    from tvm_cascade.ordering.graph_file import is_graph_file, order_graph_file
    from tvm_cascade.ordering.report import order_report

    asked, reading = OrderRequest(rewrite, on_chip, time_limit), _reading(input_shapes, until, from_)
    if is_graph_file(model):
        return order_graph_file(model, asked, reading)
    loaded = pipeline.load(model, reading)
    graph = pipeline.order_graph(loaded)
    progress(f"{loaded.name}: ordering {len(graph.ops)} operators")
    assert not isinstance(asked.on_chip, str)
    return order_report(graph, asked.rewrite, asked.on_chip, asked.time_limit)


@takes(StagesKeywords, StagesRequest)
def stages(
    model: Model | Sequence[Model],
    *,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    until: str | Sequence[str] = (),
    from_: str | Sequence[str] = (),
    progress: Progress = silent,
    **options: Unpack[StagesKeywords],
) -> tuple[Stages, str]:
    """Find the schedule of concurrent and merged stages with the least latency (IOS).

    Parameters
    ----------
    model : path or IRModule, or a list of them
        A network, or a .json file of the IOS authors (`parallel.authors_schedule`). Of several networks, which run at the
        same time, inputs and outputs are called NETWORK/NAME.
    input_shapes, until, from_
        As in `load`; of several networks for the first, and shapes of an input NETWORK/NAME for that network.
    target, device : str
        "cuda" or "llvm", optionally followed by options of TVM's targets; a device description, None: the target's generic one.
    unit, variant : str
        What is scheduled as one ("op", "fused", "sepconv", "cell": `parallel.units`); what is searched (`parallel.VARIANTS`).
    batch, r, s : int, optional
        Batch size, for the analytic cost; limits on the units of a group and on the groups of a stage, 0 or None for none.
    cost : str
        "analytic", or "measured" or "learned" on this machine or on those of a tracker.
    load, output, picture : path, optional
        Saved schedule to price instead of searching; files for the schedule and for a picture of its timeline.
    database, time_limit, progress : path and float, optional, and function
        File that keeps measurements, of which the analytic cost takes the kernels measured on `device`; seconds after which
        the best schedule so far is taken; called with a line of text at every step of long work.
    metaschedule, trials : path, int
        Folder with MetaSchedule's records of tuned kernels; candidates measured for a kernel without a record.
    cudnn : bool
        With `metaschedule`, for "cuda": cuDNN's kernels are measured too, and used wherever they take less time.
    tracker, key, parallel : str, str and int, optional
        "HOST:PORT" of an RPC tracker of TVM's, whose servers of this key measure, at most `parallel` of them at a time.
    emit : path, optional
        A folder to write that runs the network by the schedule with TVM alone (`deploy.emit_folder`).
    precision : str
        "fp32", or "fp16" and "bf16": tensors between kernels are stored as float16 or bfloat16, products multiply these and
        sum up in float32; or "tf32", for cuda: tensors stay float32, products are on tensor cores.
    arch, fast_math, threads, streams, gpu, winograd : names, bool, int, int, int and int, optional
        With `emit`: GPU architectures ("sm_90") and less exact arithmetic of its machine code; threads, or streams of GPU
        number `gpu`, that share a stage; largest tiles of convolutions in Winograd's form on a processor, 0 for none.

    Returns
    -------
    tuple of dict and str
        The JSON object of `tvm-cascade stages`, and the same as text.

    Raises
    ------
    LoadError, UsageError, MissingToolError
        A model or schedule cannot be read; a value that an option cannot have; a device or tool to measure with is absent.
    """
    models = [model] if isinstance(model, (str, Path, IRModule)) else list(model)
    first, *others = pipeline.shapes_by_network(models, input_shapes or {})
    readings = [_reading(first, until, from_), *(_reading(shapes, (), ()) for shapes in others)]
    return _stages(models, readings, StagesRequest.of_all(options), progress)


def _stages(
    models: Sequence[Model], readings: Sequence[LoadRequest], request: StagesRequest, progress: Progress
) -> tuple[Stages, str]:
    """What `stages` returns, of models that are read so."""
    from tvm_cascade.deploy.search import folder_of
    from tvm_cascade.ordering.graph_file import is_graph_file
    from tvm_cascade.parallel.authors_schedule import stages_of_authors_file
    from tvm_cascade.staging.measured import search as command

    if is_graph_file(models[0]) and len(models) == 1:
        return stages_of_authors_file(models[0], request, readings[0])
    folder = folder_of(request, progress)
    loaded = pipeline.together([pipeline.load(m, r) for m, r in zip(models, readings, strict=True)])
    progress(f"{loaded.name}: scheduling")
    found: list[command.Found] = []
    with SearchMonitor(request.time_limit) as limit:
        data, text = command.stages(loaded.mod, request, progress, found.append)
    made: Stages = {**data, "limited": limit.limited}
    if folder is not None:
        made["emitted"] = folder.write(loaded, found[-1])
        text += f"\nemitted         {folder.path}, {', '.join(made['emitted']['files'])}"
    return made, text


@takes(OptimizeKeywords, OptimizeRequest)
def optimize(
    model: Model,
    *,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    until: str | Sequence[str] = (),
    from_: str | Sequence[str] = (),
    progress: Progress = silent,
    **options: Unpack[OptimizeKeywords],
) -> tuple[Optimization, str]:
    """Find an equivalent graph that costs less, by relaxed substitutions (MetaFlow).

    Parameters
    ----------
    model : path or IRModule
        A network.
    input_shapes, until, from_
        As in `load`.
    target : str
        "cuda" or "llvm", optionally followed by options of TVM's targets.
    cost : str
        "latency", "ios", "measured", "learned", "flops", "traffic", "launches", "peak", a weighted sum of them, or one with
        a limit: "latency,peak<=256KiB".
    device : str, optional
        Name of a device description; None takes the generic one of the target.
    alpha, budget : float and int
        MetaFlow's relaxation: graphs of up to alpha times the least cost are expanded; graphs priced, at most, per part.
    rules : path, optional
        A file of TASO's substitutions: those that hold on random tensors are searched too.
    output, picture, emit : path, optional
        Files for the graph (.onnx, else a Relax module) and for a picture of it before and after; a folder as in `stages`,
        of the graph that was found and its schedule by the device's description.
    precision, arch, fast_math, threads, streams, gpu, winograd
        As in `stages`; with `emit`.
    database, time_limit, progress : path and float, optional, and function
        File that keeps measurements; seconds after which the best graph so far is taken (None: 50 where kernels are
        measured); called with a line of text at every step of long work.
    tracker, key, parallel
        As in `stages`; for the costs "measured" and "learned".

    Returns
    -------
    tuple of dict and str
        The JSON object of `tvm-cascade optimize`, and the same as text.

    Raises
    ------
    LoadError, UsageError, GraphError, InfeasibleError
        A file cannot be read; a value that an option cannot have; the network has control flow; no graph keeps the limit.
    """
    asked = OptimizeRequest.of_all(options)
    return _optimized(model, _reading(input_shapes, until, from_), asked, progress)


def _optimized(
    model: Model, reading: LoadRequest, asked: OptimizeRequest, progress: Progress
) -> tuple[Optimization, str]:
    """What `optimize` returns."""
    from tvm_cascade.deploy.search import folder_of
    from tvm_cascade.optimizing.module import require_exportable
    from tvm_cascade.runtime.measuring import refuse_idle_farm
    from tvm_cascade.substitution.report import format_report, rules_report
    from tvm_cascade.substitution.rules import ALL_RULES
    from tvm_cascade.substitution.rules_taso import load_taso_rules

    refuse_idle_farm(asked)
    folder, extra = folder_of(asked, progress), None if asked.rules is None else load_taso_rules(asked.rules)
    rules = ALL_RULES if extra is None else (*ALL_RULES, *extra.rules)
    loaded = pipeline.load(model, reading)
    require_exportable(loaded.mod, asked.output)
    progress(f"{loaded.name}: searching")
    with SearchMonitor(asked.time_limit) as limit:
        done = _searched(asked, loaded.mod, rules)
    made = _saved(asked, loaded, done, limit.limited)
    if extra is not None:
        made["rules"] = rules_report(extra.names, extra.refused, done.report)
    text = format_report(made)
    if folder is not None:
        made["emitted"] = folder.write(loaded, folder.scheduled(done.mod))
        text += f"\nemitted         {folder.path}, {', '.join(made['emitted']['files'])}"
    return made, text


def _searched(asked: OptimizeRequest, mod: IRModule, rules: Sequence[Rule]) -> Optimized:
    """The best graph; for a file of ONNX one that has no more nodes than the network."""
    from tvm_cascade.optimizing.module import optimize_module, with_no_more_nodes
    from tvm_cascade.runtime.measuring import measuring
    from tvm_cascade.substitution.metaflow import SearchOptions

    foreign = asked.output is not None and Path(asked.output).suffix == ".onnx"
    with measuring(asked) if asked.measures else nullcontext() as bench:

        def search(rules: Sequence[Rule]) -> Optimized:
            return optimize_module(
                mod, bench or asked.target, asked.cost, asked.device, options=SearchOptions(asked.alpha, asked.budget),
                rules=rules, seconds=asked.time_limit, database=asked.database,
            )  # fmt: skip

        return with_no_more_nodes(search, rules) if foreign else search(rules)


def _saved(asked: OptimizeRequest, loaded: pipeline.Loaded, done: Optimized, limited: bool) -> Optimization:
    """The JSON object, after the files that were asked for are written: the graph, and a picture of it before and after."""
    from tvm_cascade.optimizing.module import save_optimized

    if asked.output is not None:
        save_optimized(done, asked.output, pipeline.output_names(loaded.mod), pipeline.file_inputs(loaded))
    if asked.picture is not None:
        from tvm_cascade.substitution.picture import draw

        draw(done.read.dag, done.result.dag, asked.picture)
    return {**done.report, "limited": limited}
