"""Mutable buffers of `.pt2` files as states: buffers that the program writes become inputs and outputs that are paired."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from tvm.ir import IRModule

from tvm_cascade.importers.interface import attach, io_spec
from tvm_cascade.importers.states import with_pairs
from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.tensor_spec import State, free_name


class Mutated(NamedTuple):
    """A buffer that a program writes: its name, the names of its input and its output, and what it holds at first."""

    buffer: str
    taken: str
    returned: str
    initial: bytes


def with_buffer_ends(exported: Any) -> tuple[Any, tuple[Mutated, ...]]:
    """A decomposed program whose mutable buffers are inputs, and outputs in front of the others; and what these are."""
    kinds: Any = torch_package().export.graph_signature
    mutation, given, made = kinds.OutputKind.BUFFER_MUTATION, kinds.InputKind.USER_INPUT, kinds.OutputKind.USER_OUTPUT
    signature = exported.graph_signature
    written = {s.target: s for s in signature.output_specs if s.kind is mutation}
    if not written:
        return exported, ()
    found: list[Mutated] = []
    inputs = []
    names = {str(s.arg.name) for s in (*signature.input_specs, *signature.output_specs)}
    values = dict(exported.named_buffers())
    for spec in signature.input_specs:
        if spec.kind is kinds.InputKind.BUFFER and spec.target in written:
            data = values[spec.target].detach().cpu().numpy()
            returned = free_name(f"{spec.arg.name}_next", names)
            found.append(Mutated(spec.target, spec.arg.name, returned, data.tobytes() if data.any() else b""))
            spec = type(spec)(given, spec.arg, spec.arg.name)
        inputs.append(spec)
    outputs = [type(s)(made, s.arg, None) if s.kind is mutation else s for s in signature.output_specs]
    exported._graph_signature = kinds.ExportGraphSignature(inputs, outputs)
    return exported, tuple(sorted(found, key=lambda m: [*written].index(m.buffer)))


def without_none(exported: Any) -> Any:
    """A program without the outputs that are None."""
    signature = exported.graph_signature
    (end,) = exported.graph.find_nodes(op="output")
    if None in end.args[0]:
        kept = [
            (spec, value) for spec, value in zip(signature.output_specs, end.args[0], strict=True) if value is not None
        ]
        end.args = (tuple(value for _, value in kept),)
        signature.output_specs[:] = [spec for spec, _ in kept]
    return exported


def with_buffer_states(mod: IRModule, mutated: tuple[Mutated, ...]) -> IRModule:
    """`mod`, which takes and returns the buffers, with a state for each."""
    if not mutated:
        return mod
    paired = with_pairs(mod, {m.taken: m.returned for m in mutated})
    states = tuple(State(m.buffer, m.initial) for m in mutated)
    return attach(paired, replace(io_spec(paired), states=states))
