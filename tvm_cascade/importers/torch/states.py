"""Turn mutable buffers in `.pt2` files into states: a written buffer becomes a paired input and output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from tvm.ir import IRModule

from tvm_cascade.importers.interface import attach, io_spec
from tvm_cascade.importers.states import with_pairs
from tvm_cascade.importers.torch.cut import rebuilt
from tvm_cascade.importers.torch.decompositions import decompositions_for
from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.tensor_spec import State, free_name, unique_names


class Mutated(NamedTuple):
    """A buffer written by a program: its name, its input's and output's names, and its first value."""

    buffer: str
    taken: str
    returned: str
    initial: bytes


def with_buffer_ends(program: Any) -> tuple[Any, tuple[Mutated, ...], list[str]]:
    """Return a program with mutable buffers as inputs and as leading outputs, the buffers' records, and all output
    names. Outputs that are None are removed.
    """
    torch, table = torch_package(), decompositions_for(program.graph)
    if table or program.graph_signature.buffers_to_mutate or any(map(_is_in_place, program.graph.nodes)):
        program = program.run_decompositions(table)
    kinds: Any = torch.export.graph_signature
    mutation, given, made = kinds.OutputKind.BUFFER_MUTATION, kinds.InputKind.USER_INPUT, kinds.OutputKind.USER_OUTPUT
    signature = program.graph_signature
    outputs = [s for s in signature.output_specs if s.kind in (mutation, made) and hasattr(s.arg, "name")]
    written = {s.target: s for s in outputs if s.kind is mutation}
    if not written:
        named = [s.arg.name for s in outputs if not isinstance(s.arg, kinds.ConstantArgument)]
        return program, (), list(unique_names(named))
    found: dict[str, Mutated] = {}
    inputs = []
    names = {str(s.arg.name) for s in (*signature.input_specs, *outputs)}
    values = dict(program.named_buffers())
    for spec in signature.input_specs:
        if spec.kind is kinds.InputKind.BUFFER and spec.target in written:
            data = values[spec.target].detach().cpu().numpy()
            returned = free_name(f"{spec.arg.name}_next", names)
            found[spec.target] = Mutated(spec.target, spec.arg.name, returned, data.tobytes() if data.any() else b"")
            spec = type(spec)(given, spec.arg, spec.arg.name)
        inputs.append(spec)
    outputs = [s for s in outputs if not isinstance(s.arg, kinds.ConstantArgument)]
    own = unique_names(s.arg.name for s in outputs if s.kind is made)  # buffers in front change no name
    returned = [*(found[s.target].returned for s in outputs if s.kind is mutation), *own]
    (end,) = program.graph.find_nodes(op="output")
    kept = zip(end.args[0], signature.output_specs, strict=True)
    end.args = (tuple(value for value, spec in kept if any(spec is s for s in outputs)),)
    outputs = [type(s)(made, s.arg, None) for s in outputs]
    return rebuilt(program, inputs, outputs), tuple(found[name] for name in written), returned


def _is_in_place(node: Any) -> bool:
    """Return whether a node changes a tensor, by its operator's name."""
    parts = str(node.target).split(".") if node.op == "call_function" else []
    return len(parts) > 1 and parts[-2].endswith("_")


def with_buffer_states(mod: IRModule, mutated: tuple[Mutated, ...]) -> IRModule:
    """Return `mod`, which takes and returns the buffers, with a state for each."""
    if not mutated:
        return mod
    paired = with_pairs(mod, {m.taken: m.returned for m in mutated})
    states = tuple(State(m.buffer, m.initial) for m in mutated)
    return attach(paired, replace(io_spec(paired), states=states))
