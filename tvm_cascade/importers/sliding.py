"""Load a one-frame network with the user's interface: new rows in, outputs for the whole window out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm

from tvm_cascade.errors import CascadeError, UsageError
from tvm_cascade.importers.interface import attach, io_spec, with_interface
from tvm_cascade.importers.kernel_layout import in_kernel_layout
from tvm_cascade.passes.sliding.hop_sums import with_hop_sums
from tvm_cascade.passes.sliding.incremental import frame_module
from tvm_cascade.passes.sliding.slices import with_slices
from tvm_cascade.sliding import FramePlan
from tvm_cascade.tensor_spec import IoSpec, State, TensorSpec, unique_names


@dataclass(frozen=True)
class Frame:
    """A network for a single frame."""

    mod: tvm.IRModule
    plan: FramePlan


def load_frame(mod: tvm.IRModule, hop: int, most_state: int | None = None, axis: int = 1) -> Frame:
    """Return the network for one frame of `hop` new rows along `axis`, from a module returned by `load`; states begin
    as zeros.

    Raises the errors of `frame_module`.
    """
    mod = with_slices(mod)
    try:  # rows of time are then contiguous where the file has planes of channels
        made = frame_module(with_hop_sums(in_kernel_layout(mod), hop, axis), hop, most_state, axis)
    except CascadeError:  # names the file's operators where these end it too
        made = frame_module(mod, hop, most_state, axis)
    io = _interface(mod)
    main: Any = made.mod["main"]
    taken = [i.name for i in (*io.inputs, *io.outputs)]
    names = unique_names([*taken, *made.states])[len(taken) :]
    whole = io.inputs[0].shape
    given = replace(io.inputs[0], shape=_shape(main.params[0].ty), window=whole[axis], window_axis=axis)
    states = tuple(State(name) for name in names)
    inputs = (given, *_specs(names, [p.ty for p in main.params[1:]]))
    kept = _specs([f"{n}_next" for n in names], [p.ty for p in main.params[1:]])
    spec = replace(io, inputs=inputs, outputs=(*io.outputs, *kept), states=states)
    return Frame(attach(made.mod, spec), made.plan)


def _interface(mod: tvm.IRModule) -> IoSpec:
    """Return a module's interface; for a module without a file, an interface with its parameter names."""
    try:
        return io_spec(mod)
    except UsageError:
        main: Any = mod["main"]
        count = len(getattr(main.ret_ty, "fields", [main.ret_ty]))
        names = [p.name for p in main.params], [f"output{k}" for k in range(count)]
        return io_spec(with_interface("the module", mod, *names))


def _specs(names: Sequence[str], types: Sequence[Any]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(n, _shape(t), str(t.dtype)) for n, t in zip(names, types, strict=True))


def _shape(kind: Any) -> tuple[int, ...]:
    return tuple(int(d) for d in kind.shape.values)
