"""Cut torch.export programs between named nodes, with all parameters kept."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm_cascade.errors import UsageError
from tvm_cascade.importers.cut import CutOut, FileGraph, Node, Remedy, behind, cut_out, kinds_of, until_in_front
from tvm_cascade.importers.torch.archive import open_program
from tvm_cascade.importers.torch.package import quietly, torch_package
from tvm_cascade.messages import printable
from tvm_cascade.tensor_spec import Cut


def _writes_buffers(program: Any) -> bool:
    """Return True if a program writes its buffers, according to its signature after in-place operators are replaced."""
    if program.graph_signature.buffers_to_mutate:
        return True
    names = (str(n.target).split(".") for n in program.graph.nodes if n.op == "call_function")
    if not any(len(parts) > 1 and parts[-2].endswith("_") for parts in names):
        return False
    return bool(program.run_decompositions({}).graph_signature.buffers_to_mutate)


def cut_torch(data: bytes, cut: Cut) -> bytes:
    """Return the archive `data` with its program cut.

    Raises `MissingToolError` without torch, `UsageError` for unknown nodes.
    """
    torch, program = torch_package(), open_program(data)
    with quietly():
        if _writes_buffers(program):
            raise UsageError("a network that writes its buffers is read whole: --until and --from do not go with them")
        kept = cut_out(graph_of(program), cut)
        made = io.BytesIO()
        torch.export.save(_with(torch, program, kept), made)
    return made.getvalue()


def graph_of(program: Any) -> FileGraph:
    """Return a program's graph: operators, user inputs and computed nodes."""
    given = tuple(str(name) for name in program.graph_signature.user_inputs)
    called = [n for n in program.graph.nodes if n.op == "call_function"]
    active = {*given, *(n.name for n in called)}
    before = _changes(program.graph).before
    nodes = [
        Node(tuple(r.name for r in (*n.all_input_nodes, *before[n]) if r.name in active), (n.name,), kind_of(n))
        for n in called
    ]
    return FileGraph(tuple(nodes), given, tuple(str(name) for name in program.graph_signature.user_outputs))


def kind_of(node: Any) -> str:
    """Return torch's name for a node's operator, such as `conv2d.default`."""
    return str(node.target.__name__)


def argument_of(node: Any, name: str) -> Any:
    """Return a node's argument by its schema name; None without an operator."""
    schema = getattr(node.target, "_schema", None)
    for place, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name == name:
            if place < len(node.args) and not argument.kwarg_only:
                return node.args[place]
            return node.kwargs.get(name, argument.default_value)
    return None


@dataclass(slots=True)
class _Changes:
    """In-place changes to tensors: every reader of a changed tensor, or of its views, depends on all earlier changes."""

    # by node: the operators that changed what it reads
    before: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    changed: dict[Any, list[Any]] = field(default_factory=dict)  # by node that is no view: the operators that change it
    shown: dict[Any, Any] = field(default_factory=dict)  # by node: the one that it is a view of, or itself

    def after(self, node: Any) -> bool:
        """Return True if an operator behind `node` changes its result."""
        return any(c is not node and node < c for c in self.changed.get(self.shown[node], ()))


def _changes(graph: Any) -> _Changes:
    found = _Changes()
    for node in graph.nodes:
        owners = {found.shown[r]: None for r in node.all_input_nodes}
        found.before[node] = tuple(c for owner in owners for c in found.changed.get(owner, ()))
        found.shown[node] = node
        for argument, is_written in _shared(node):
            found.shown[node] = found.shown[argument]
            if is_written:
                found.changed.setdefault(found.shown[argument], []).append(node)
    return found


def _shared(node: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the arguments that an operator's results may view, or that it changes in place, each with True if changed."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:  # of no operator but Python's `getitem`, by which one of several results is taken
        yield from ((argument, False) for argument in node.all_input_nodes)
        return
    for place, argument in enumerate(schema.arguments):
        given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
        if argument.alias_info is not None:
            many = given if isinstance(given, (list, tuple)) else (given,)
            yield from ((g, bool(argument.alias_info.is_write)) for g in many if g in node.all_input_nodes)


def until_before(program: Any, refused: Iterable[Any]) -> Remedy:
    """Return the remedy that cuts `program` before some nodes."""
    names = {node.name for node in refused}
    graph = graph_of(program)
    at = [i for i, node in enumerate(graph.nodes) if not names.isdisjoint(node.writes)]
    return Remedy(until_in_front(graph, behind(graph, at), at).text, kinds_of(graph.nodes[i] for i in at))


def _with(torch: Any, program: Any, kept: CutOut) -> Any:
    graph, old = program.graph, program.graph_signature
    nodes = {n.name: n for n in graph.nodes}
    new = [name for name in kept.inputs if name not in old.user_inputs]
    for name in (*kept.outputs, *new):
        if not isinstance(nodes[name].meta.get("val"), torch.Tensor):
            raise UsageError(f"{printable(name)} is no tensor but a list of them: name a node that takes one out")
    called = [n for n in graph.nodes if n.op == "call_function"]
    changes, used = _changes(graph), {called[i] for i in kept.nodes}
    for name in kept.outputs:
        if nodes[name] in used and changes.after(nodes[name]):
            _copy(torch, graph, nodes, name)
    for name in new:
        _give(graph, nodes, name)
    (end,) = graph.find_nodes(op="output")
    end.args = (tuple(nodes[name] for name in kept.outputs),)
    for node in reversed(called):
        if node not in used:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    for name in (n for n in old.user_inputs if n not in kept.inputs):
        graph.erase_node(nodes[name])
    for name in new:
        nodes[name].name = name
    graph.lint()
    return _program(torch, program, kept, new)


def _copy(torch: Any, graph: Any, nodes: dict[str, Any], name: str) -> None:
    """Replace an output by a copy made before operators change it in place."""
    node = nodes[name]
    with graph.inserting_after(node):
        copied = graph.call_function(torch.ops.aten.clone.default, (node,))
    copied.meta = dict(node.meta)
    node.name, copied.name = copied.name, name
    nodes[name] = copied


def _give(graph: Any, nodes: dict[str, Any], name: str) -> None:
    """Replace a node by an input."""
    node, last = nodes[name], graph.find_nodes(op="placeholder")[-1]
    with graph.inserting_after(last):
        given = graph.placeholder(name)
    given.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(given)
    nodes[name] = given


def _program(torch: Any, program: Any, kept: CutOut, new: list[str]) -> Any:
    """Return `program`, with a cut graph, and a matching signature."""
    kinds, old = torch.export.graph_signature, program.graph_signature
    dropped = {*old.user_inputs} - {*kept.inputs}
    inputs = [spec for spec in old.input_specs if getattr(spec.arg, "name", None) not in dropped]
    inputs += [kinds.InputSpec(kinds.InputKind.USER_INPUT, kinds.TensorArgument(name), None) for name in new]
    user_output = kinds.OutputKind.USER_OUTPUT
    outputs = [kinds.OutputSpec(user_output, kinds.TensorArgument(name), None) for name in kept.outputs]
    return rebuilt(program, inputs, outputs)


def rebuilt(program: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """Return a program with the same graph and new input and output specifications, called with positional tensors."""
    torch, call = torch_package(), program.module_call_graph[0]
    kinds, flat = torch.export.graph_signature, torch.utils._pytree.tree_flatten
    signature = kinds.ExportGraphSignature(list(inputs), list(outputs))
    call.signature.in_spec = flat((tuple(signature.user_inputs), {}))[1]
    call.signature.out_spec = flat(tuple(signature.user_outputs))[1]
    call.signature.forward_arg_names = [str(name) for name in signature.user_inputs]
    return torch.export.ExportedProgram(
        root=program.graph_module,
        graph=program.graph,
        graph_signature=signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=[call],
        constants=program.constants,
        verifiers=program.verifiers,
    )
