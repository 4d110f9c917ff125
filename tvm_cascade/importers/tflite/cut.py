"""Cut `.tflite` files in place: a shorter operator table, with other tensors as inputs and outputs.

Nothing is serialized anew: flatbuffer offsets only point forward, so kept operators move up in their vector, and new
vectors for inputs and outputs go behind the file's end.
"""

from __future__ import annotations

import struct
from typing import Any

from tvm_cascade.errors import UsageError
from tvm_cascade.importers.cut import CutOut, FileGraph, Node, cut_out
from tvm_cascade.importers.tflite.model import Model, kind_of, open_model, tflite
from tvm_cascade.tensor_spec import Cut

_INPUTS, _OUTPUTS, _OPERATORS = 6, 8, 10  # slots of the fields in the table of a subgraph
_CODES = 6  # the slot of the operator codes in the table of a model
_WORD = struct.Struct("<I")


def cut_tflite(data: bytes, cut: Cut) -> bytes:
    """Return the file `data` with its main subgraph cut.

    Raises `MalformedModel` for a file without a model, `UsageError` for unknown tensors.
    """
    model = open_model(data)
    assigns = tflite.BuiltinOperator.ASSIGN_VARIABLE
    if any(model.OperatorCodes(k).BuiltinCode() == assigns for k in range(model.OperatorCodesLength())):
        raise UsageError("a network that assigns variables is read whole: --until and --from do not go with them")
    return with_ends(data, model, cut_out(graph_of(model), cut))


def graph_of(model: Model) -> FileGraph:
    """Return a model's main subgraph, with operators in execution order."""
    graph: Any = model.Subgraphs(0)
    given = [int(graph.Inputs(k)) for k in range(graph.InputsLength())]
    ops: list[Any] = [graph.Operators(i) for i in range(graph.OperatorsLength())]
    written = [[int(op.Outputs(k)) for k in range(op.OutputsLength())] for op in ops]
    active = {*given, *(t for writes in written for t in writes)}  # others are weights and states
    nodes = [
        Node(
            _names(graph, [t for k in range(op.InputsLength()) if (t := int(op.Inputs(k))) in active]),
            _names(graph, w),
            kind_of(model, op),
        )
        for op, w in zip(ops, written, strict=True)
    ]
    outputs = [int(graph.Outputs(k)) for k in range(graph.OutputsLength())]
    return FileGraph(tuple(nodes), _names(graph, given), _names(graph, outputs))


def _names(graph: Any, tensors: list[int]) -> tuple[str, ...]:
    return tuple(graph.names[t] for t in tensors)


def with_ends(data: bytes, model: Model, kept: CutOut) -> bytes:
    """Return the file with only the kept operators, inputs and outputs in its main subgraph."""
    graph: Any = model.Subgraphs(0)
    table, made = graph._tab, bytearray(data)
    first = table.Vector(table.Offset(_OPERATORS)) if kept.nodes else 0
    for place, i in enumerate(kept.nodes):
        old, new = first + 4 * i, first + 4 * place
        _WORD.pack_into(made, new, old + _WORD.unpack_from(data, old)[0] - new)
    _WORD.pack_into(made, first - 4, len(kept.nodes))
    _replace_unused_codes(made, model, {int(graph.Operators(i).OpcodeIndex()) for i in kept.nodes})
    made.extend(bytes(-len(made) % 4))
    for slot, names in ((_INPUTS, kept.inputs), (_OUTPUTS, kept.outputs)):
        field = table.Offset(slot)
        if not field and names:
            raise UsageError("--from: the file lists no inputs, and none can be added")
        if field:
            _WORD.pack_into(made, table.Pos + field, len(made) - table.Pos - field)
            made.extend(struct.pack(f"<I{len(names)}i", len(names), *(graph.names.index(n) for n in names)))
    return bytes(made)


def _replace_unused_codes(made: bytearray, model: Model, used: set[int]) -> None:
    """Overwrite unused operator codes with a used one: interpreters refuse a file that lists an unknown operator."""
    others: list[Any] = [model.Subgraphs(g) for g in range(1, model.SubgraphsLength())]
    used |= {int(graph.Operators(i).OpcodeIndex()) for graph in others for i in range(graph.OperatorsLength())}
    table = model._tab
    first, some = table.Vector(table.Offset(_CODES)), min(used)
    target = first + 4 * some + _WORD.unpack_from(made, first + 4 * some)[0]
    for k in set(range(model.OperatorCodesLength())) - used:
        _WORD.pack_into(made, first + 4 * k, target - first - 4 * k)
