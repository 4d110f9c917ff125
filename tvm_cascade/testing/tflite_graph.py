"""The `Graph` of a `.tflite` file without TVM: operators, tensors and sizes only, for tests of the algorithms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tflite as _tflite

from tvm_cascade.graph import Graph, Op, Tensor

tflite: Any = _tflite  # generated, untyped

_TYPES = {0: "float32", 2: "int32", 3: "uint8", 4: "int64", 6: "bool", 7: "int16", 9: "int8"}
_KINDS = {"concatenation": "concat", "conv_2d": "conv2d", "depthwise_conv_2d": "depthwise_conv2d"}
_VIEWS = frozenset(("split", "reshape"))  # a split into one part moves nothing
_NAMES = {code: name.lower() for name, code in vars(tflite.BuiltinOperator).items() if not name.startswith("_")}


def graph_of(path: str | Path) -> Graph:
    """The first subgraph of the file, operators in file order, weights left out."""
    model = tflite.Model.GetRootAsModel(Path(path).read_bytes(), 0)
    sub = model.Subgraphs(0)
    index: dict[int, int] = {}
    tensors: list[Tensor] = []

    def add(t: int) -> int:
        if t not in index:
            tensor = sub.Tensors(t)
            shape = tuple(int(d) for d in tensor.ShapeAsNumpy())
            index[t] = len(tensors)
            tensors.append(Tensor(len(tensors), (tensor.Name() or b"").decode(), shape, _TYPES[tensor.Type()]))
        return index[t]

    inputs = tuple(add(int(t)) for t in sub.InputsAsNumpy())
    ops = []
    for i in range(sub.OperatorsLength()):
        op = sub.Operators(i)
        code = model.OperatorCodes(op.OpcodeIndex())
        name = _NAMES[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
        reads = tuple(index[int(t)] for t in op.InputsAsNumpy() if int(t) in index)
        writes = tuple(add(int(t)) for t in op.OutputsAsNumpy())
        view = name in _VIEWS and len(writes) == 1
        offsets = (0,) if view else ()
        ops.append(Op(i, f"{name}_{i}", _KINDS.get(name, name), reads, writes, view=view, view_offsets=offsets))
    return Graph(tuple(tensors), tuple(ops), inputs, tuple(index[int(t)] for t in sub.OutputsAsNumpy()))
