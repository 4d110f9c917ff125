"""Saves and loads schedules as JSON files with a digest of their graph; loading for another graph is an error.

The files of the IOS authors, which hold the graph itself, are loaded too.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tvm_cascade.errors import LoadError, UsageError, ValidationError
from tvm_cascade.graph import Graph
from tvm_cascade.parallel.authors_file import load_authors_file
from tvm_cascade.parallel.batch import with_batch
from tvm_cascade.parallel.problem import Schedule, Stage
from tvm_cascade.parallel.validate import validate_schedule
from tvm_cascade.plain_files import readable
from tvm_cascade.publish import whole_file

FORMAT = "tvm-cascade-stages-1"


def structure(graph: Graph) -> str:
    """Hash operators, shapes and edges, independent of names and weights."""
    lines = [repr([(t.shape, t.dtype) for t in graph.tensors]), repr((graph.inputs, graph.outputs))]
    lines += [repr((op.kind, op.inputs, op.outputs, op.windows, op.columns, op.macs, op.view)) for op in graph.ops]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def save_schedule(path: str | Path, graph: Graph, schedule: Schedule, cost_model: str = "") -> None:
    """Write `schedule` (stages of operator indices) as JSON; `cost_model` names the cost model."""
    text = {
        "format": FORMAT,
        "graph": structure(graph),
        "operators": [op.name for op in graph.ops],
        "made_for": cost_model,
        "cost_ms": schedule.cost_ms,
        "stages": [{"strategy": s.strategy, "groups": [list(g) for g in s.groups]} for s in schedule.stages],
    }
    with whole_file(path) as partial:
        partial.write_text(json.dumps(text, indent=1) + "\n")


def load_schedule(path: str | Path, graph: Graph) -> Schedule:
    """Read a schedule and check against `graph`.

    Raises `LoadError` if the file is not a schedule or is damaged, `UsageError` if it is the schedule of another graph.
    """
    try:
        text = json.loads(readable(path).read_text())
    except (OSError, ValueError) as error:
        raise LoadError(path, f"no schedule can be read: {error}") from None
    if isinstance(text, dict) and "blocks" in text:
        other, schedule = load_authors_file(path)
        _require_same(path, structure(with_batch(other, graph.tensors[0].shape[0])), len(other.ops), graph)
        return schedule
    if not isinstance(text, dict) or text.get("format") != FORMAT:
        raise LoadError(path, f"is not a schedule of this project (expected the format {FORMAT})")
    _require_same(path, text.get("graph"), len(text.get("operators", [])), graph)
    try:
        stages = tuple(
            Stage(s["strategy"], tuple(tuple(int(i) for i in g) for g in s["groups"])) for s in text["stages"]
        )
        schedule = Schedule(stages, float(text["cost_ms"]))
        validate_schedule(graph, schedule)
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise LoadError(path, f"the schedule is damaged: {error}") from None
    return schedule


def _require_same(path: str | Path, digest: object, operators: int, graph: Graph) -> None:
    if digest != structure(graph):
        raise UsageError(
            f"{path}: the schedule was made for another graph ({operators} operators, here {len(graph.ops)}): search again "
            "for this one, with the same model, input shapes and batch"
        )
