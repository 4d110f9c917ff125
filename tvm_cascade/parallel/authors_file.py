"""Reader of the IOS authors' files: a network and its schedule in one JSON text; `authors_schedule` writes them.

A node's input is a concatenation of terms; a term is a list of slices `[node, first channel, last channel)`, added up.
A merged operator is a single node in the file (`hint_name` lists the replaced operators), and its readers take slices.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

from tvm_cascade.errors import LoadError
from tvm_cascade.graph import IDENTITY, Graph, Op, Tensor, Window
from tvm_cascade.parallel.problem import CONCURRENT, Schedule, Stage
from tvm_cascade.plain_files import readable

_KINDS = {
    "conv": "conv2d",
    "pool": "pool",
    "identity": "concat",
    "element": "add",
    "relu": "relu",
    "sequential": "sepconv",
}


class _Reader:
    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.ops: list[Op] = []
        self.tensor_of: dict[str, int] = {}
        self.op_of: dict[str, int] = {}

    def tensor(self, name: str, shape: list[int]) -> int:
        full = (1, *shape)
        image = len(shape) == 3
        self.tensors.append(
            Tensor(len(self.tensors), name, full, "float32", 2 if image else None, 3 if image else None)
        )
        return len(self.tensors) - 1

    def read(self, term: list) -> list[int]:
        """Read the tensors of a term in a node's input; channel slices are views."""
        tensors = []
        for name, first, last in term:
            whole = self.tensors[self.tensor_of[name]]
            if (first, last) in ((0, whole.shape[1]), (0, prod(whole.shape))):
                tensors.append(whole.index)
                continue
            t = self.tensor(f"{name}[{first}:{last}]", [last - first, *whole.shape[2:]])
            offset = first * whole.bytes // whole.shape[1]
            op = Op(
                len(self.ops), f"slice {name}", "strided_slice", (whole.index,), (t,), (IDENTITY,), (IDENTITY,),
                view=True, view_offsets=(offset,),
            )  # fmt: skip
            self.ops.append(op)
            tensors.append(t)
        return tensors

    def node(self, node: dict) -> None:
        name = node["name"]
        inputs = [t for term in node["inputs"] for t in self.read(term)]
        out = self.tensor(name, node["output_shape"])
        self.tensor_of[name] = out
        windows, columns = [IDENTITY] * len(inputs), [IDENTITY] * len(inputs)
        macs = weights = 0
        if "kernel" in node and len(self.tensors[inputs[0]].shape) == 4:
            geometry = zip(node["kernel"], node["stride"], node["padding"], strict=True)
            rows, cols = (Window(k, s, 1, p) for k, s, p in geometry)
            windows, columns = [rows] * len(inputs), [cols] * len(inputs)
        if node["type"] == "conv":
            depth = sum(self.tensors[t].shape[1] for t in inputs) // node.get("groups", 1)
            macs = prod(node["output_shape"]) * depth * prod(node["kernel"])
            weights = node["out_channels"] * (depth * prod(node["kernel"]) + 1) * 4
        self.op_of[name] = len(self.ops)
        self.ops.append(
            Op(
                len(self.ops),
                name,
                _KINDS.get(node["type"], node["type"]),
                tuple(inputs),
                (out,),
                tuple(windows),
                tuple(columns),
                macs=macs,
                weight_bytes=weights,
                attrs={"groups": node.get("groups", 1), "act": node.get("act")},
            )
        )


def load_authors_file(path: str | Path) -> tuple[Graph, Schedule]:
    """Read a network and its schedule; slices become views, and the schedule's cost is unknown (NaN).

    Raises `LoadError` if the file cannot be read or has another format.
    """
    return read_authors_file(path)[1:]


def read_authors_file(path: str | Path) -> tuple[dict, Graph, Schedule]:
    """Read a file's text, and parse as `load_authors_file` does."""
    try:
        text = json.loads(readable(path).read_text(encoding="utf-8"))
        return text, *_parse(text)
    except OSError as error:
        raise LoadError(path, error.strerror or str(error)) from None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise LoadError(path, f"is not a schedule of the IOS authors' format: {error!r}") from None


def _parse(text: dict) -> tuple[Graph, Schedule]:
    reader = _Reader()
    entry = text["input"]
    reader.tensor_of[entry["name"]] = reader.tensor(entry["name"], entry["output_shape"])
    stages: list[Stage] = []
    for block in text["blocks"]:
        nodes = {n["name"]: n for n in [*block["inner_nodes"], block["exit_node"]]}
        for stage in block["stages"]:  # stages are in order, so is every node's input
            for group in stage:
                for name in group:
                    reader.node(nodes[name])
            groups = tuple(tuple(reader.op_of[name] for name in group) for group in stage)
            stages.append(Stage(CONCURRENT, tuple(sorted(groups))))
    last = reader.tensor_of[text["blocks"][-1]["exit_node"]["name"]]
    graph = Graph(tuple(reader.tensors), tuple(reader.ops), (0,), (last,), text.get("name", "main"))
    return graph, Schedule(tuple(stages), float("nan"))
