"""The command `stages` for a file of the IOS authors (`authors_file`), and the file with the schedule that was found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tvm_cascade.cost import AnalyticCost, device_for
from tvm_cascade.errors import UsageError
from tvm_cascade.graph import Graph, Op
from tvm_cascade.operators.table import CONVOLUTIONS
from tvm_cascade.parallel.authors_file import read_authors_file
from tvm_cascade.parallel.batch import with_batch
from tvm_cascade.parallel.merging import merged_window
from tvm_cascade.parallel.problem import MERGE, Options, Schedule, Stage
from tvm_cascade.parallel.report import finish_report, found_or_loaded
from tvm_cascade.publish import whole_file
from tvm_cascade.request import LoadRequest, StagesRequest
from tvm_cascade.schema.searches import Stages
from tvm_cascade.search_monitor import SearchMonitor


def stages_of_authors_file(path: str | Path, asked: StagesRequest, reading: LoadRequest) -> tuple[Stages, str]:
    """Schedule the network in a file, ignoring the file's own schedule; return the JSON object of `stages` and the
    text.

    `load` prices a file's schedule, such as the schedule in `path`; `output` is a file in the same format.

    Raises
    ------
    LoadError
        A file cannot be read.
    UsageError
        An option that needs weights or a program is given.
    """
    programs = asked.cost != "analytic" or asked.emit is not None or asked.metaschedule is not None
    if reading != LoadRequest() or programs or asked.precision != "fp32":
        raise UsageError(
            f"{path} holds no weights: it is scheduled by the description of a device, whole; leave out --cost, "
            "--metaschedule, --emit, --precision, --input-shape, --until and --from"
        )
    text, one, _ = read_authors_file(path)
    graph = one if asked.batch is None else with_batch(one, asked.batch)
    model = AnalyticCost(device_for(asked.device, asked.target, asked.threads))
    options = Options(variant=asked.variant, unit=asked.unit, r=asked.r or None, s=asked.s or None)
    with SearchMonitor(asked.time_limit) as limit:
        found = found_or_loaded(graph, options, model, asked.load)
    if asked.output is not None:
        written = _Writer(text, one).text(found.schedule)
        with whole_file(asked.output) as partial:
            partial.write_text(json.dumps(written) + "\n", encoding="utf-8")
    data, shown = finish_report(found, model, None, asked.picture, details=asked.details)
    return {**data, "limited": limit.limited}, shown


class _Writer:
    """Writes a file's network with another schedule, as a single block."""

    def __init__(self, text: dict, graph: Graph) -> None:
        self.source = text
        self.graph = graph
        self.nodes = {n["name"]: n for b in text["blocks"] for n in [*b["inner_nodes"], b["exit_node"]]}
        self.moved: dict[str, tuple[str, int]] = {}  # merged operators: the node that has their channels, from which on

    def text(self, schedule: Schedule) -> dict[str, Any]:
        entry = self.source["input"]
        stages = [self._groups(stage) for stage in schedule.stages]
        nodes = [
            n | {"inputs": [[self._slice(*s) for s in term] for term in n["inputs"]]}
            for name, n in self.nodes.items()
            if name not in self.moved or self.moved[name][0] == name
        ]
        last = self.source["blocks"][-1]["exit_node"]["name"]
        block = {
            "enter_name": entry["name"],
            "enter_node": entry,
            "inner_nodes": [n for n in nodes if n["name"] != last],
            "exit_node": next(n for n in nodes if n["name"] == last),
            "stages": [stage for stage in stages if stage],
        }
        return self.source | {"blocks": [block]}

    def _slice(self, name: str, first: int, last: int) -> list:
        node, offset = self.moved.get(name, (name, 0))
        return [node, first + offset, last + offset]

    def _groups(self, stage: Stage) -> list[list[str]]:
        """Return a stage's nodes by group, without slices; merged nodes are replaced by one node."""
        groups = [[op for i in group if not (op := self.graph.ops[i]).view] for group in stage.groups]
        if stage.strategy == MERGE:
            ops = [op for group in groups for op in group]
            merged = [op for op in ops if op.kind in CONVOLUTIONS]
            groups = [[merged[0], *(op for op in ops if op not in merged)]]
            self._merge(merged)
        return [[op.name for op in group] for group in groups if group]

    def _merge(self, ops: list[Op]) -> None:
        """Replace convolutions by a single convolution with all their channels.

        Equal padding on both sides gives the size: from the kernel that begins first to the kernel that ends last.
        """
        parts = [self.nodes[op.name] for op in ops]
        channels = [n["out_channels"] for n in parts]
        axes = [merged_window([w for op in ops if (w := getattr(op, axis)[0])]) for axis in ("windows", "columns")]
        assert axes[0] is not None and axes[1] is not None
        whole = parts[0] | {
            "hint_name": " ".join(n["hint_name"] for n in parts),
            "out_channels": sum(channels),
            "kernel": [a.extent for a in axes if a],
            "padding": [a.padding for a in axes if a],
            "output_shape": [sum(channels), *parts[0]["output_shape"][1:]],
        }
        for k, n in enumerate(parts):
            self.moved[n["name"]] = (parts[0]["name"], sum(channels[:k]))
        self.nodes[parts[0]["name"]] = whole
