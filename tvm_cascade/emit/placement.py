"""Arena offsets and C names of a network's inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import replace

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.emit.names import unique_identifier
from tvm_cascade.emit.network import PlacedState
from tvm_cascade.schedules.driver.lower_plan import place_of
from tvm_cascade.schedules.driver.streaming import streamed_inputs
from tvm_cascade.tensor_spec import IoSpec, TensorSpec

_NUMBERED = re.compile(r"(?:in|out)put[0-9]+")  # how the header numbers inputs and outputs
_OF_HOOKS = ("hook", "hook_context")  # members of the inputs of a network that calls a hook


def place_io(plan: Plan, io: IoSpec, hook: bool = False) -> IoSpec:
    """Add arena offsets from `plan` and C names to `io`; streamed inputs get a row axis in place of an offset.

    `io` is in the order of the plan's graph. `hook` reserves the hook's struct members.
    """
    names = _c_names(io.inputs, "input", _OF_HOOKS if hook else ())
    inputs = [
        _place(plan, tensor, replace(spec, c_name=name))
        for tensor, spec, name in zip(plan.graph.inputs, io.inputs, names, strict=True)
    ]
    outputs = [
        replace(spec, c_name=name, offset=place_of(plan, tensor))
        for tensor, spec, name in zip(
            plan.graph.outputs, io.outputs, _c_names(io.outputs, "output", names), strict=True
        )
    ]
    return IoSpec(tuple(inputs), tuple(outputs), io.cut, io.states, io.fixed, io.like)


def placed_states(io: IoSpec) -> tuple[PlacedState, ...]:
    """Return the states of an interface placed by `place_io`."""
    return tuple(
        PlacedState(spec, s.initial, s.returned, s.form) for spec, s in zip(io.state_specs, io.states, strict=True)
    )


def _place(plan: Plan, tensor: int, spec: TensorSpec) -> TensorSpec:
    if tensor not in streamed_inputs(plan):
        return replace(spec, offset=place_of(plan, tensor))
    passes = max((len(s.stripes) for s in plan.segments if tensor in s.streamed), default=1) or 1
    taken = plan.graph.tensors[tensor]
    other = () if taken.shape == spec.shape else taken.shape
    return replace(spec, stream_axis=taken.row_axis, stream_shape=other, passes=passes)


def _c_names(specs: Sequence[TensorSpec], side: str, reserved: Container[str]) -> list[str]:
    """Name the tensors of a single side, `input` or `output`, in C, avoiding `reserved`.

    The header names sizes by number and by name, <NETWORK>_INPUT0_SIZE and <NETWORK>_<NAME>_SIZE, and a streamed input
    has a second member, <name>_context; a name that would collide is numbered.
    """
    names: list[str] = []

    def taken(name: str) -> bool:
        other = name.removesuffix("_context") if name.endswith("_context") else f"{name}_context"
        numbered = _NUMBERED.fullmatch(name) and name != f"{side}{len(names)}"
        return bool(numbered) or name in names or other in names or name in reserved

    for spec in specs:
        names.append(unique_identifier(spec.name, side, taken))
    return names
