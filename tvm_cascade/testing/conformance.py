"""What becomes of a case of the ONNX backend suite: it passes, is refused with a reason, or something is wrong.

A case is compiled for the host and run, or goes through the Relax pipeline for bytes; by its name, one of them comes first
and the other is tried where the first refuses. Where both refuse, the inputs after the first become constants, as the files
of networks have weights, axes and shapes. Only a `CascadeError` is a refusal. Every case has a process of its own.

A case that passes says by which road: `compile` or `pipeline`, with `CONSTANTS` where inputs became constants, and why `compile`
refused it where that came first.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from tvm import relax as _relax

import tvm_cascade
from tvm_cascade.errors import CascadeError
from tvm_cascade.relax_pipeline import cascade_pipeline
from tvm_cascade.search_monitor import SearchMonitor
from tvm_cascade.testing.forked import CRASH, PASS, REFUSED, SECONDS, WRONG, Outcome, forked
from tvm_cascade.testing.onnx_suite import Case

relax: Any = _relax  # its nodes get their fields at run time
_SEARCH = 0.2  # seconds of processor time: plans have to be right, and need not be the best
_LONGEST = 300  # characters of a reason
CONSTANTS = "inputs after the first as constants"
COMPILE, PIPELINE = "compile", "pipeline"  # roads
REFUSES = "compile refuses: "
_NARROWED = {("int64", "int32"), ("uint64", "uint32"), ("uint64", "int32"), ("float16", "float32")}
_NARROWED |= {("float64", "float32"), ("bool", "int8"), ("bool", "uint8")}


_Way = Callable[[Path, Mapping[str, tuple[int, ...]], Sequence[np.ndarray]], list[np.ndarray]]


def outcomes(cases: Iterable[Case], jobs: int = 1, seconds: int = SECONDS) -> Iterator[tuple[Case, Outcome]]:
    """What becomes of every case, in the order in which they end; see `forked`."""
    _warm()
    yield from forked(cases, _found, jobs, seconds)


def _warm() -> None:
    """Load what every case needs before the first of them forks."""
    value = helper.make_tensor_value_info
    given, made = ([value(name, onnx.TensorProto.FLOAT, [1, 4])] for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "warm", given, made)
    data = np.ones((1, 4), "float32")
    case = Case("warm", helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), [data], [data])
    with tempfile.TemporaryDirectory() as folder:
        ((path, _, inputs),) = _forms(case, Path(folder))
        for way in (on_host, in_pipeline):
            assert not difference(way(path, {}, inputs), case.outputs)


def _found(case: Case) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TVM_CASCADE_CACHE_DIR"] = f"{folder}/cache"
        try:
            found = _tried(case, Path(folder))
        except Exception as error:  # any that is not the project's own is a finding
            found = Outcome(CRASH, f"{type(error).__name__}: {str(error).strip()}")
        return Outcome(found.verdict, " ".join(found.reason.replace(f"{folder}/", "").split())[:_LONGEST])


def _tried(case: Case, folder: Path) -> Outcome:
    refused = ""
    ways: list[tuple[str, _Way]] = [(COMPILE, on_host), (PIPELINE, in_pipeline)]
    for k, (path, values, inputs) in enumerate(_forms(case, folder)):
        shapes = {v.name: a.shape for v, a in zip(values, inputs, strict=True) if _is_open(v)}
        by_compile = ""  # of this form
        for road, way in ways if int(case.rank(), 16) % 2 else reversed(ways):
            try:
                with SearchMonitor(_SEARCH, clock=time.process_time):
                    got = way(path, shapes, inputs)
            except CascadeError as error:
                refused = refused or str(error)
                by_compile = str(error) if road == COMPILE else by_compile
                continue
            gap = difference(got, case.outputs)
            reason = f"{REFUSES}{by_compile}" if by_compile and road == PIPELINE else ""
            said = "; ".join(filter(None, [road, CONSTANTS if k else "", reason]))
            return Outcome(WRONG, f"{way.__name__}: {gap}") if gap else Outcome(PASS, said)
    return Outcome(REFUSED, refused)


def _is_open(value: Any) -> bool:
    kind = value.type.tensor_type
    return not kind.HasField("shape") or any(d.dim_value <= 0 for d in kind.shape.dim)


def _forms(case: Case, folder: Path) -> Iterator[tuple[Path, list[Any], Sequence[np.ndarray]]]:
    """The file as it is, and with its inputs after the first as constants: path, inputs, their values."""
    held = {weight.name for weight in case.model.graph.initializer}
    given = [v for v in case.model.graph.input if v.name not in held]
    if len(given) != len(case.inputs):
        given = list(case.model.graph.input)[: len(case.inputs)]
    path = folder / "case.onnx"
    onnx.save(case.model, path)
    yield path, given, case.inputs
    if len(given) > 1:
        made = onnx.ModelProto()
        made.CopyFrom(case.model)
        late = {v.name for v in given[1:]}
        weights = zip(given[1:], case.inputs[1:], strict=True)
        made.graph.initializer.extend(numpy_helper.from_array(a, v.name) for v, a in weights)
        kept = [v for v in made.graph.input if v.name not in late]
        del made.graph.input[:]
        made.graph.input.extend(kept)
        path = folder / "constants.onnx"
        onnx.save(made, path)
        yield path, given[:1], case.inputs[:1]


def on_host(path: Path, shapes: Mapping[str, tuple[int, ...]], inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Compile for the host, and run the program."""
    project, results = path.with_suffix(""), path.with_suffix(".npz")
    tvm_cascade.compile(path, target="host", output=project, input_shapes=dict(shapes) or None)
    interface = json.loads((project / "metadata.json").read_text())["project"]["interface"]
    sides = zip(interface["inputs"], inputs, strict=True)
    given = {port["name"]: _fitted(array, port["dtype"]) for port, array in sides}
    tvm_cascade.run(project, inputs=given, outputs=results)
    with np.load(results) as held:
        names = [port["name"] for port in interface["outputs"]]
        return [held[name] for name in (names if sorted(names) == sorted(held.files) else held.files)]


def in_pipeline(path: Path, shapes: Mapping[str, tuple[int, ...]], inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Load the file, and compile by TVM with this project's pipeline."""
    mod = tvm_cascade.load(path, dict(shapes) or None)
    params = mod["main"].params
    machine = relax.VirtualMachine(compiled(mod), tvm.cpu())
    given = [np.array(_fitted(a, str(p.ty.dtype)), order="C") for p, a in zip(params, inputs, strict=True)]
    result = machine["main"](*map(tvm.runtime.tensor, given))
    return [r.numpy() for r in ([result] if hasattr(result, "numpy") else result)]


def compiled(mod: tvm.IRModule) -> Any:
    """The executable of a module by this project's pipeline, optimised for this machine's architecture."""
    return tvm.compile(mod, target=tvm.target.Target("llvm"), relax_pipeline=cascade_pipeline(objective="bytes"))


def _fitted(array: np.ndarray, dtype: str) -> np.ndarray:
    """The same values in the type that the interface has."""
    made = array.astype(dtype)
    same = array.dtype == made.dtype or array.dtype == np.float64
    if not same and not np.array_equal(array, made.astype(array.dtype), equal_nan=array.dtype.kind == "f"):
        raise RuntimeError(f"an input of {array.dtype} became {dtype}")
    return made


def difference(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> str:
    """How outputs differ from those wanted; nothing where they do not."""
    if len(got) != len(wanted):
        return f"{len(got)} outputs, not {len(wanted)}"
    found = (_gap(np.asarray(g), w) for g, w in zip(got, wanted, strict=True))
    return next((f"output {k} {gap}" for k, gap in enumerate(found) if gap), "")


def _gap(got: np.ndarray, wanted: np.ndarray) -> str:
    if got.shape != wanted.shape and not (wanted.shape == () and got.size == 1):
        return f"has shape {list(got.shape)}, not {list(wanted.shape)}"
    if got.dtype != wanted.dtype and (wanted.dtype.name, got.dtype.name) not in _NARROWED:
        return f"is {got.dtype}, not {wanted.dtype}"
    a, b = got.ravel().astype(wanted.dtype), wanted.ravel()
    if wanted.dtype.kind == "f":
        near = (1e-2, 1e-3) if wanted.dtype == np.float16 else (1e-3, 1e-5)
        a, b = got.ravel().astype("float64"), b.astype("float64")
        same = np.isclose(a, b, *near, equal_nan=True)
    else:
        same = a == b
    return "" if same.all() else f"differs in {int((~same).sum())} of {b.size}: {a[~same][0]:.6g} for {b[~same][0]:.6g}"


def read_expected(path: Path) -> dict[str, Outcome]:
    """The expected outcomes, as `written` writes them."""
    lines = (line.split("\t") for line in path.read_text().splitlines() if not line.startswith("#"))
    return {name: Outcome(*rest) for name, *rest in lines}


def written(expected: Mapping[str, Outcome]) -> str:
    """A line for every case: its name, the verdict, and the reason where it did not pass."""
    head = (
        f"# Outcomes of the cases of the ONNX backend suite, onnx {onnx.__version__}: name, verdict, reason of a refusal.",
        "# Written by `python benchmarks/conformance.py --update`.",
    )
    return "\n".join((*head, *(line(name, outcome) for name, outcome in sorted(expected.items())))) + "\n"


def line(name: str, outcome: Outcome) -> str:
    """A case as `read_expected` reads it: its name, the verdict, and the reason where there is one."""
    return "\t".join((name, outcome.verdict, *([outcome.reason] if outcome.reason else [])))
