"""Convert torch.export programs to ONNX models, by torch's exporter, under the program's node names."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tvm_cascade import extras
from tvm_cascade.errors import MissingToolError
from tvm_cascade.importers.cut import FileGraph, Remedy, behind, kinds_of, until_in_front
from tvm_cascade.importers.torch.cut import kind_of
from tvm_cascade.importers.torch.decompositions import decomposition_of
from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.tensor_spec import free_name

_OPSET = 18  # of torch's translations: a later one is converted to, operator by operator


class NotExported(ValueError):
    """A program that torch cannot write as ONNX: the reason, and the node, None if unknown."""

    def __init__(self, reason: str, node: Any = None) -> None:
        super().__init__(reason)
        self.node = node


@dataclass(frozen=True, slots=True)
class TorchProgram:
    """A torch.export program behind an ONNX model (`importers.onnx.origin.Origin`)."""

    graph: FileGraph
    nodes: Mapping[str, str]  # by tensor of the model, the tensor of the program that it is, or is a step to
    returned: Sequence[str]  # the names of its outputs
    sizes_remedy: str = ": export the program with fixed sizes"

    def kinds(self, model: Any, nodes: Collection[int]) -> list[str]:
        """Return the program's operator names behind these `model` nodes."""
        at = self._positions(model, nodes)
        return list(kinds_of(self.graph.nodes[i] for i in at)) or list(
            dict.fromkeys(model.graph.node[k].op_type for k in nodes)
        )

    def remedy(self, model: Any, nodes: Collection[int]) -> Remedy:
        """Return the remedy that cuts the program before these `model` nodes."""
        at = self._positions(model, nodes)
        return Remedy(until_in_front(self.graph, behind(self.graph, at), at).text, tuple(self.kinds(model, nodes)))

    def _positions(self, model: Any, nodes: Collection[int]) -> list[int]:
        """Return the positions of the program's operators behind these `model` nodes."""
        names = {name for k in nodes for name in self._reached(model, k)}
        return [i for i, node in enumerate(self.graph.nodes) if not names.isdisjoint(node.writes)]

    def _reached(self, model: Any, at: int) -> Iterator[str]:
        """Yield the program's tensors computed through a node; passes add nodes with unknown tensors."""
        from tvm_cascade.importers.onnx.graph import read_names

        unknown: set[str] = set()
        for k, node in enumerate(model.graph.node[at:], at):
            if k == at or not unknown.isdisjoint(read_names(node)):
                found = [self.nodes[name] for name in node.output if name in self.nodes]
                yield from found
                if not found:
                    unknown.update(node.output)


def exported_model(given: Any, program: Any, returned: Sequence[str]) -> tuple[Any, dict[str, str]]:
    """Return `program` as an ONNX model, and for each tensor the node of `given` behind it. `program` is `given`, the
    file's program, or `given` without in-place operators. Tensors bear their nodes' names, outputs the distinct names
    `returned`.

    Raises
    ------
    NotExported
        For a program that torch does not export.
    MissingToolError
        Without onnxscript, by which torch writes ONNX.
    """
    made, used = _exported(given, program)
    decomposed = made.exported_program.graph
    sources = _sources(used.graph, decomposed)
    if used is not given:
        first = _sources(given.graph, used.graph)
        sources = {node: first[source] for node, source in sources.items() if source in first}
    nodes = _renamed(made.model, _names(given.graph, decomposed, sources), sources, returned)
    return made.model_proto, nodes


def _exported(given: Any, program: Any) -> tuple[Any, Any]:
    """Return torch's export of `program`, and the exported program: operators without a translation are decomposed if
    torch knows how.
    """
    torch, table, first = torch_package(), {}, None
    while True:
        try:
            return torch.onnx.export(program, dynamo=True, optimize=False, verbose=False, opset_version=_OPSET), program
        except ImportError as error:
            raise MissingToolError("onnxscript", extras.remedy("onnxscript")) from error
        except Exception as error:  # the exporter raises errors of its own, of what breaks first
            first = first or error
            added = {operator: decomposition_of(operator) for operator in _untranslated(program, error)}
            added = {operator: function for operator, function in added.items() if function and operator not in table}
            if not added:
                raise _failure(given.graph, first) from first
            table.update(added)
            try:
                program = program.run_decompositions(table)
            except Exception:  # a decomposition of other forms of its operator
                raise _failure(given.graph, first) from first


def _untranslated(program: Any, error: BaseException) -> list[Any]:
    """Return the operator at which an export failed, and the program's operator around it."""
    failed = _failed_node(error)
    if failed is None:
        return []
    names = {source.name for source in failed.meta.get("from_node", ())}
    whole = [n.target for n in program.graph.nodes if n.name in names and n.op == "call_function"]
    return [operator for operator in (failed.target, *whole) if hasattr(operator, "_schema")]


def _failure(given: Any, error: BaseException) -> NotExported:
    """Return an export's error, with the program's node at fault."""
    failed = _failed_node(error)
    if failed is None:
        reason = str(error).strip().splitlines()
        return NotExported(reason[0] if reason else type(error).__name__)
    names = {source.name for source in failed.meta.get("from_node", ())} or {failed.name}
    node = next((n for n in given.nodes if n.name in names and n.op == "call_function"), None)
    return NotExported(f"torch does not export {kind_of(failed)} to ONNX", node)


def _failed_node(error: BaseException | None) -> Any:
    """Return the exporter's node at the time of an error, read from the call frames; None without one."""
    fx, found = torch_package().fx, None
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            node = frame.f_locals.get("node")
            if node is not None and isinstance(node, fx.Node) and node.op == "call_function":
                found = node
        error = error.__cause__
    return found


def _sources(given: Any, decomposed: Any) -> dict[Any, Any]:
    """Map the nodes of a decomposed graph to their sources in the `given` graph."""
    named = {n.name: n for n in given.nodes}
    found = {}
    for node in decomposed.nodes:
        names = (source.name for source in node.meta.get("from_node", ()))
        source = next((named[name] for name in names if name in named), None)
        if source is not None and source.op == "call_function":
            found[node] = source
    return found


def _names(given: Any, decomposed: Any, sources: Mapping[Any, Any]) -> dict[Any, str]:
    """Return names from the `given` graph for decomposed nodes: a name goes to the last node of its decomposition."""
    last = {source: node for node, source in sources.items() if node.op == "call_function"}
    names = {node: source.name for source, node in last.items()}
    parts = {}  # nodes of the given graph that take out one of several results are not traced again
    for node in given.nodes:
        if node.op == "call_function" and _is_part(node):
            parts[node.args[0], node.args[1]] = node
    for node in decomposed.nodes:
        if node.op == "call_function" and _is_part(node):
            whole = sources.get(node.args[0])
            if whole is not None and whole.target is node.args[0].target and (whole, node.args[1]) in parts:
                names[node] = parts[whole, node.args[1]].name
    return names


def _is_part(node: Any) -> bool:
    return getattr(node.target, "__name__", "") == "getitem" and not hasattr(node.target, "_schema")


def _renamed(
    model: Any, names: Mapping[Any, str], sources: Mapping[Any, Any], returned: Sequence[str]
) -> dict[str, str]:
    """Rename an onnx_ir model's tensors after the program's nodes; return the names by tensor."""
    by_old = {node.name: name for node, name in names.items()}
    inputs = {value.name for value in model.graph.inputs}
    returned = [free_name(name, inputs) for name in returned]  # which may be inputs in a program, and not in a model
    _end(model, returned, by_old)
    outputs = {id(value): name for value, name in zip(model.graph.outputs, returned, strict=True)}
    taken = {*by_old.values(), *inputs, *returned}
    fresh = (name for k in range(1 << 62) if (name := f"step_{k}") not in taken)
    used, steps = {*inputs, *returned}, {}
    for node in model.graph:
        source = sources.get(node.meta.get("node"))
        for value in node.outputs:
            if id(value) in outputs:
                value.name = outputs[id(value)]
            elif value.name:
                name = by_old.get(value.name)
                value.name = next(fresh) if name is None or name in used else name
            used.add(value.name)
            if source is not None:
                steps[value.name] = source.name
    for value in [value for name, value in model.graph.initializers.items() if name in used]:
        model.graph.initializers.pop(value.name)
        value.name = next(fresh)
        model.graph.initializers[value.name] = value
    return steps


def _end(model: Any, returned: Sequence[str], names: Mapping[str, str]) -> None:
    """Give every output of a model a computed tensor of its own, unless its name is its node's."""
    node_of = import_module("onnx_ir").Node  # which onnxscript brings

    found: set[int] = set()
    for k, (value, name) in enumerate(zip(model.graph.outputs, returned, strict=True)):
        if value.producer() is None or id(value) in found or names.get(value.name) != name:
            node = node_of("", "Identity", [value])
            node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
            model.graph.append(node)
            model.graph.outputs[k] = node.outputs[0]
        found.add(id(value))
