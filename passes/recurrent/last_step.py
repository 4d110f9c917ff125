"""Keep the last step alone of a recurrent layer's result: every step writes the state to one place.

y[t, 0, 0, u] = state    -->    y[0, 0, 0, u] = state
"""

from __future__ import annotations

from typing import Any

from tvm_cascade.passes.integer.untyped import Function, ir, tirx
from tvm_cascade.passes.recurrent.cells import Recurrence
from tvm_cascade.schedules.tir import dtype_of, outputs_of, relocated, shape_of, tvm_ffi

_STEPS = "steps_of_result"  # attribute: the axis of the steps in the first output, and whether the first is made last


def with_steps(func: Function, layer: Recurrence) -> Function:
    """Return a layer's PrimFunc, whose first output has all steps, marked for `keeping_last_step`; layers of two
    directions, whose last steps are at both ends, unmarked.
    """
    if len(layer.backward) > 1:
        return func
    return func.with_attr(_STEPS, [layer.output_axes.index("s"), int(any(layer.backward))])


def steps_of(func: Any) -> tuple[int, bool] | None:
    """Return the axis of the steps in a PrimFunc's first output, and whether the first step is made last; None for
    unmarked functions.
    """
    attrs = func.attrs if func.attrs is not None else {}
    if _STEPS not in attrs:
        return None
    axis, backward = (int(n) for n in attrs[_STEPS])
    return axis, bool(backward)


def keeping_last_step(func: Function) -> Function:
    """Return a marked PrimFunc whose first output has the step made last alone, along an axis of 1."""
    found = steps_of(func)
    assert found is not None
    axis, old = found[0], outputs_of(func)[0]
    shape = [1 if k == axis else d for k, d in enumerate(shape_of(old))]
    new = tirx.decl_buffer(shape, dtype_of(old), old.name)

    def target(buffer: Any, indices: list[Any]) -> Any:
        return (
            (new, [tirx.const(0, "int32") if k == axis else i for k, i in enumerate(indices)])
            if buffer.same_as(old)
            else None
        )

    def region(given: Any) -> Any:
        if not given.source.same_as(old):
            return given
        ranges = [ir.Range(0, 1) if k == axis else r for k, r in enumerate(given.region)]
        return tirx.BufferRegion(new, ranges)

    body = tvm_ffi.structural_map(relocated(func.body, target), [(ir.TensorRegion, region)], order="post")
    params = [new if p.same_as(old) else p for p in func.params]
    attrs = {k: v for k, v in func.attrs.items() if k != _STEPS}
    return tirx.PrimFunc(params, body, func.ret_type, attrs=ir.make_node("ir.DictAttrs", **attrs))
