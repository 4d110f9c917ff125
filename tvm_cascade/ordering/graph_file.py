"""Plain graphs as JSON, to compare memory planners on the same graphs: tensor sizes, and operators.

    {"tensors": [BYTES, ...], "ops": [{"inputs": [TENSOR, ...], "outputs": [TENSOR, ...]}, ...]}

Tensors and operators are referred to by position. Operators stand in a valid order, the file order. A tensor written by
no operator is a graph input; a tensor read by nobody is a graph output and lives to the end.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeGuard

from tvm_cascade.errors import GraphError, LoadError, UsageError
from tvm_cascade.graph import Graph, Op, Tensor
from tvm_cascade.ordering.report import order_report
from tvm_cascade.plain_files import readable
from tvm_cascade.request import LoadRequest, OrderRequest
from tvm_cascade.schema.searches import Order

_MOST_BYTES = 1 << 53  # of all tensors: JSON readers and the compiled search keep such sums exactly
_FORMAT = 'write {"tensors": [bytes, ...], "ops": [{"inputs": [tensor, ...], "outputs": [tensor, ...]}, ...]}'


def is_graph_file(model: object) -> TypeGuard[str | Path]:
    """Return True if a command's model is a plain graph: the path to a `.json` file."""
    return isinstance(model, str | Path) and Path(model).suffix.lower() == ".json"


def order_graph_file(path: str | Path, asked: OrderRequest, reading: LoadRequest) -> Order:
    """Return the JSON object of `order` for a plain graph; operators are numbers.

    Raises
    ------
    LoadError, UsageError
        The file cannot be read, or is no graph; an option for networks is given.
    """
    if reading != LoadRequest():
        raise UsageError(
            f"{path} is a plain graph, to which input shapes and cuts do not apply: leave these options out"
        )
    graph = read_graph(path)
    assert not isinstance(asked.on_chip, str)
    data = order_report(graph, asked.rewrite, asked.on_chip, asked.time_limit)
    number = {op.name: op.index for op in graph.ops}
    return {**data, "order": [number[str(name)] for name in data["order"]]}


def read_graph(path: str | Path) -> Graph:
    """Read the graph in the file `path`. Operators are named by number.

    Raises
    ------
    LoadError
        The file cannot be read, or is no graph; the message says where.
    """
    try:
        data = json.loads(readable(path).read_text(encoding="utf-8-sig"))
    except OSError as e:
        raise LoadError(
            path, "no such file" if isinstance(e, FileNotFoundError) else f"not readable ({e.strerror})"
        ) from e
    except (ValueError, RecursionError) as e:
        raise LoadError(path, f"not readable as JSON ({e})", _FORMAT) from e
    if not isinstance(data, dict) or any(not isinstance(data.get(key), list) for key in ("tensors", "ops")):
        raise LoadError(path, "not a graph with the lists tensors and ops", _FORMAT)
    sizes = data["tensors"]
    for t, size in enumerate(sizes):
        if type(size) is not int or size < 0:
            raise LoadError(path, f"tensor {t} has {_shown(size)} bytes", "give a whole number that is not negative")
    if sum(sizes) > _MOST_BYTES:
        raise LoadError(path, f"more than {_MOST_BYTES} bytes of tensors", "divide all sizes by a common unit")
    tensors = tuple(Tensor(t, str(t), (size,), "int8") for t, size in enumerate(sizes))
    ops = tuple(_op(path, k, op, len(sizes)) for k, op in enumerate(data["ops"]))
    written = {t for op in ops for t in op.outputs}
    read = {t for op in ops for t in op.inputs}
    inputs = tuple(t for t in range(len(sizes)) if t not in written)
    outputs = tuple(t for t in range(len(sizes)) if t not in read)
    try:
        return Graph(tensors, ops, inputs, outputs, Path(path).stem)
    except GraphError as e:
        raise LoadError(path, str(e), "list operators in an order in which they can run") from e


def _op(path: str | Path, index: int, op: Any, tensors: int) -> Op:
    """Parse operator `index` from the file's JSON."""
    named = [str(index)]
    if not isinstance(op, dict):
        raise LoadError(path, f"operator {index} is {_shown(op)}", _FORMAT, named)
    sides = []
    for key in ("inputs", "outputs"):
        side = op.get(key)
        if not isinstance(side, list):
            raise LoadError(path, f"operator {index} has no list of {key}", _FORMAT, named)
        for t in side:
            if type(t) is not int or not 0 <= t < tensors:
                what = f"operator {index} has {_shown(t)} among its {key}"
                raise LoadError(path, what, f"name tensors 0 to {tensors - 1}", named)
        sides.append(tuple(side))
    return Op(index, str(index), "op", *sides)


def _shown(value: object) -> str:
    """Format a value from the file for a message, shortened if long."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
