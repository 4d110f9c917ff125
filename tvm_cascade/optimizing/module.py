"""`optimize_module`, the function behind the command `optimize`, and the command's files.

done = optimize_module(mod, target="cuda", cost="latency")
print(format_report(done.report))
save_optimized(done, "faster.onnx")       # or "faster.json", read back with tvm.ir.load_json
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_cascade.cost import AnalyticCost, device_for, find_device
from tvm_cascade.errors import GraphError, LoadError
from tvm_cascade.extras import load, need
from tvm_cascade.importers.interface import has_interface, io_spec
from tvm_cascade.importers.onnx.file import read_model
from tvm_cascade.optimizing.measured import SECONDS, Effort, optimize_measured
from tvm_cascade.passes.onnx_calls import OnnxCalls
from tvm_cascade.passes.substitute_graph import substitute
from tvm_cascade.passes.substitution_read import Read, read_function
from tvm_cascade.passes.substitution_write import fold, folded, write_function, write_with_parameters
from tvm_cascade.publish import whole_file
from tvm_cascade.runtime.bench import Bench, LocalBench
from tvm_cascade.schema.searches import Substituted
from tvm_cascade.search_monitor import SearchMonitor
from tvm_cascade.substitution.costs import STAGES, TVM, Latency, Limited, parse_cost
from tvm_cascade.substitution.export_onnx import export_onnx, onnx_model, require_onnx_form, without_form
from tvm_cascade.substitution.file_nodes import FileNodes, unfused
from tvm_cascade.substitution.metaflow import SearchOptions, SearchResult
from tvm_cascade.substitution.node_count import runtime_nodes
from tvm_cascade.substitution.pattern import Rule
from tvm_cascade.substitution.report import optimize_report
from tvm_cascade.substitution.rules import ALL_RULES
from tvm_cascade.substitution.schedule_cost import ScheduleLatency

_TYPES = ("bool", "float16", "float32", "float64", *(f"{s}int{b}" for s in ("", "u") for b in (8, 16, 32, 64)))
_UNITS = {
    "latency": "ms",
    "ios": "ms",
    "measured": "ms",
    "learned": "ms",
    "flops": "FLOP",
    "traffic": "B",
    "launches": "kernels",
    "peak": "B",
}


@dataclass(frozen=True)
class Optimized:
    """A rewritten module, the search's result for `main`, and the report."""

    mod: tvm.IRModule
    report: Substituted
    result: SearchResult
    read: Read


def optimize_module(
    mod: tvm.IRModule,
    target: str | Bench = "llvm",
    cost: str = "latency",
    device: str | None = None,
    *,
    options: SearchOptions | None = None,
    rules: Sequence[Rule] = ALL_RULES,
    seconds: float | None = None,
    database: str | Path | None = None,
) -> Optimized:
    """Rewrites `main` for the lowest cost; `mod` stays unchanged.

    Parameters
    ----------
    target : str or Bench
        "llvm" or "cuda", this machine's CPU or GPU where costs are measured; or the bench that measures them.
    cost : str
        See `parse_cost`: 'latency', 'traffic', 'peak', 'latency,peak<=256KiB', 'latency+1e-9*traffic', ... Or 'ios',
        the latency of the graph's inter-operator schedule; or 'measured' or 'learned', latencies of a bench, each also with
        a limit.
    device : str, optional
        Latencies come from the analytic model of this device; None is `target`'s generic one.
    options : SearchOptions, optional
        Its relaxation and the number of graphs that it prices; None: the defaults.
    rules : sequence of Rule
        Substitutions of the search: all ours, or ours and a file's (`rules_taso.load_taso_rules`).
    seconds : float, optional
        Time limit of the whole search. None: it ends by numbers of graphs, and results depend on no machine; but what
        measures kernels ('measured', 'learned') ends after `optimize_measured.SECONDS`.
    database : path, optional
        File in which 'measured' and 'learned' keep measurements and look them up.

    Raises
    ------
    GraphError
        `main` is no straight-line function of static shapes.
    InfeasibleError
        No graph found keeps the cost's limit.
    UsageError
        The cost or device has an unknown name.
    MissingToolError
        There is no GPU to measure on.
    """
    main, _, _ = cost.replace(" ", "").partition(",")
    if main in ("measured", "learned"):
        effort = Effort(options, rules, SECONDS if seconds is None else seconds)
        return _measured(mod, cost, effort, database, LocalBench(target=target) if isinstance(target, str) else target)
    with SearchMonitor(seconds):
        return _priced(mod, target if isinstance(target, str) else target.target, cost, device, options, rules)


def with_no_more_nodes(
    search: Callable[[Sequence[Rule]], Optimized], rules: Sequence[Rule], source: Path | None = None
) -> Optimized:
    """Search a graph for a runtime other than TVM, with kernels unknown to the costs.

    The graph has no more nodes than the network after that runtime's fusion (`runtime_nodes`), nor than the file
    `source`, and can be written. Otherwise search again without substitutions that add operators, then only with
    folding substitutions, and at last substitute nothing.
    """
    done = search(rules)
    for fewer in ([r for r in rules if not r.grows], [r for r in rules if r.eager], None):
        small = runtime_nodes(done.result.dag) <= runtime_nodes(done.read.dag)
        if small and (source is None or _written(done, source, None, None) is not None):
            break
        done = _unchanged(done) if fewer is None else search(fewer)
    return done


def _written(
    done: Optimized, source: Path, outputs: tuple[str, ...] | None, inputs: tuple[tuple[str, str], ...] | None
) -> Any:
    """Build the ONNX model of a network read from `source`, with no more nodes than the file; None if there is none.

    If nothing was substituted, return the file's model, unless fewer nodes are possible.
    """
    onnx, dag, opaque = load("onnx"), unfused(done.result.dag), OnnxCalls(done.read.calls)
    files = file_nodes(source, done.mod, done.read)
    if files is not None and not without_form(dag, opaque, files):
        model = onnx_model(dag, fold(dag, done.read.constants), outputs, opaque, inputs, files)
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError:  # a form that the file's version of ONNX lacks
            model = None
        if model is not None and (
            len(model.graph.node) <= len(files.model.graph.node) or not _whole_file(source, done.mod)
        ):
            return model
    unchanged = done.result.dag.outputs == done.read.dag.outputs
    return read_model(source) if unchanged and _whole_file(source, done.mod) else None


def _unchanged(done: Optimized) -> Optimized:
    """Return the network as read."""
    result = replace(done.result, dag=done.read.dag, steps=(), cost_after=done.result.cost_before)
    report = {**done.report, **optimize_report(done.read.dag, result, done.report["cost_unit"], TVM)}
    mod = done.mod.clone()
    mod.update_func(mod.get_global_var("main"), write_function(done.read.dag, done.read, mod["main"].attrs))
    return replace(done, mod=mod, result=result, report=report)


def _whole_file(source: Path, mod: tvm.IRModule) -> bool:
    """Return True if a module is the whole of an `.onnx` file, which is then the form to write if nothing is
    substituted.
    """
    cut = io_spec(mod).cut if has_interface(mod) else None
    return source.suffix == ".onnx" and cut is not None and not (cut.until or cut.start)


def file_nodes(path: str | Path, mod: tvm.IRModule, read: Read) -> FileNodes | None:
    """Return the nodes of the `.onnx` file a module was read from, to write unchanged nodes as they were.

    Return None for any other file. Tensors with another type in the module than in the file, such as 32-bit indices,
    are left out.
    """
    if Path(path).suffix != ".onnx" or not has_interface(mod):
        return None
    onnx = load("onnx")
    model = read_model(Path(path))
    try:
        model = onnx.shape_inference.infer_shapes(model)
    except Exception:  # of onnx's own kinds, for operators that it does not know
        return None
    graph = model.graph
    codes = {str(t): onnx.helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in _TYPES}
    told = (v for v in (*graph.value_info, *graph.output) if v.type.HasField("tensor_type"))
    types = {value.name: value.type.tensor_type.elem_type for value in told}
    held = {n: r for n, r in read.files.items() if n in types and types[n] == codes.get(r.type.dtype)}
    names = (str(spec.file_name or spec.name) for spec in io_spec(mod).inputs)
    inputs = dict(zip(names, read.dag.inputs, strict=True))
    return FileNodes(model, {**held, **inputs}, partial(folded, constants=read.constants))


def _priced(
    mod: tvm.IRModule, target: str, cost: str, device: str | None, options: SearchOptions | None, rules: Sequence[Rule]
) -> Optimized:
    """Search under a computed cost (see `optimize_module`)."""
    model = AnalyticCost(device_for(device, target))
    priced = parse_cost(cost, model, TVM, {"ios": ScheduleLatency(model, TVM)})
    done = substitute(mod, priced, rules, options, functions=lambda name: name == "main")
    if "main" not in done.results:
        raise GraphError(done.skipped.get("main", "the module has no function main"))
    result, read = done.results["main"], done.read["main"]
    unit = _UNITS.get(cost.partition(",")[0].strip(), "")
    return Optimized(done.mod, optimize_report(read.dag, result, unit, TVM), result, read)


def _measured(
    mod: tvm.IRModule,
    cost: str,
    effort: Effort,
    database: str | Path | None,
    bench: Bench,
) -> Optimized:
    """Run `optimize_measured`, and add the measurements to the report under `measured`."""
    if "main" not in {gv.name_hint for gv in mod.get_global_vars()}:
        raise GraphError("the module has no function main")
    name, _, _ = cost.replace(" ", "").partition(",")
    priced = parse_cost(cost, AnalyticCost(find_device("cpu")), named={name: Latency(name)})
    limit = priced.limit if isinstance(priced, Limited) else None
    done = optimize_measured(mod, name == "learned", limit, effort, database, bench)
    report = optimize_report(done.read.dag, done.result, "ms", STAGES)
    report["measured"] = {
        "kept": done.chosen,
        "milliseconds": dict(zip(done.candidates, done.choice.milliseconds, strict=True)),
        "speedup": dict(zip(done.candidates, done.choice.ratios, strict=True)),
        "measurements": done.measurements,
        "not_measured": done.refused,
    }
    return Optimized(done.mod, report, done.result, done.read)


def require_exportable(mod: tvm.IRModule, path: str | Path | None, source: Path | None = None) -> None:
    """Refuse before a search a result that could not be saved: a path ending in .onnx if `main` has no ONNX form.

    A module from the `.onnx` file `source` has one. Raises `UnsupportedOperatorError` and `MissingToolError`, as
    `save_optimized` does; `GraphError` as `optimize_module`.
    """
    if path is not None and Path(path).suffix == ".onnx" and "main" in {gv.name_hint for gv in mod.get_global_vars()}:
        need("onnx")
        read = read_function(mod["main"])
        if source is None or not _whole_file(source, mod):
            require_onnx_form(
                read.dag, path, OnnxCalls(read.calls), None if source is None else file_nodes(source, mod, read)
            )


def save_optimized(
    done: Optimized,
    path: str | Path,
    outputs: tuple[str, ...] | None = None,
    inputs: tuple[tuple[str, str], ...] | None = None,
    source: Path | None = None,
) -> Path:
    """Write the optimized graph: ONNX for a path ending in .onnx, else a saved Relax module (`load_optimized`).

    `outputs`: names in an ONNX file; `inputs`: names and element types there; `source`: the network's file. If `source`
    is ONNX, unchanged nodes are written as they were.

    Raises `UnsupportedOperatorError` if an operator has no ONNX form.
    """
    target = Path(path)
    if target.suffix == ".onnx":
        model = None if source is None or source.suffix != ".onnx" else _written(done, source, outputs, inputs)
        if model is None:
            dag, opaque = done.result.dag, OnnxCalls(done.read.calls)
            return export_onnx(dag, fold(dag, done.read.constants), target, outputs, opaque, inputs)
        onnx = load("onnx")
        with whole_file(target) as partial:
            onnx.save(model, str(partial))
        return target
    mod = done.mod.clone()
    func, constants = write_with_parameters(done.result.dag, done.read, mod["main"].attrs)
    mod.update_func(mod.get_global_var("main"), func)
    values = io.BytesIO()
    np.savez(values, **constants)  # type: ignore[arg-type]
    with whole_file(target) as partial, zipfile.ZipFile(partial, "w") as archive:
        for name, data in (("module.py", mod.script().encode()), ("constants.npz", values.getvalue())):
            archive.writestr(zipfile.ZipInfo(name), data)  # no time stamp: the same bytes every time
    return target


def load_optimized(path: str | Path) -> tvm.IRModule:
    """Load a module written by `save_optimized`, constants in place. Raises `LoadError` for anything else."""
    try:
        with zipfile.ZipFile(path) as archive:
            text = archive.read("module.py").decode()
            values = dict(np.load(io.BytesIO(archive.read("constants.npz"))))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise LoadError(path, f"no saved Relax module ({error})") from None
    return relax.transform.BindParams("main", values)(tvm.script.from_source(text))
