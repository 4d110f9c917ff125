"""Rewrite float networks to the kernels' layout: channels last, a single row for Conv1d, batch normalizations folded.

The importer keeps the file's form for `optimize` and `stages`; planning uses this form. Inputs and outputs keep the
file's layout.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tvm_ffi import structural_equal

from tvm_cascade.errors import InfeasibleError
from tvm_cascade.importers.batch_norms import fold_batch_norms
from tvm_cascade.importers.interface import attach, has_interface
from tvm_cascade.importers.wider_states import with_wider_states
from tvm_cascade.passes.candidates.candidate import PlannedCandidate
from tvm_cascade.passes.extract_graph import extract_order_graph
from tvm_cascade.passes.layout.channels_last import to_channels_last
from tvm_cascade.passes.layout.one_column import to_one_column
from tvm_cascade.passes.layout.plane_groups import with_plane_groups
from tvm_cascade.passes.layout.sunk_views import with_sunk_views
from tvm_cascade.passes.lower_quantized import why_not_read
from tvm_cascade.passes.main_rewriting import bindings_of, is_quantized, name_of, shape_of
from tvm_cascade.passes.plan_network import is_lowered, lower_integers
from tvm_cascade.passes.reshaped_inputs import reshaped_inputs
from tvm_cascade.passes.states import state_count
from tvm_cascade.tensor_spec import graph_io

_PLANES = {
    "nn.conv1d": "NCW",
    "nn.conv1d_transpose": "NCW",
    "nn.conv2d": "NCHW",
    "nn.conv2d_transpose": "NCHW",
}


def planned_in_kernel_layout(
    mod: Any, plan: Callable[[Any], PlannedCandidate], by_rows: bool = False
) -> tuple[Any, PlannedCandidate]:
    """Return `mod` in the kernels' layout, and the plan: the fastest form under the cap, with states as the file has them or
    wider (`wider_states`), whichever arena is smaller.

    With `by_rows`, inputs come row by row, in the network's working shape; a module that was not loaded then gets an interface
    of its own inputs and outputs, unless lowered or with states: such a module keeps its layout. Raises `InfeasibleError` if
    no form fits.
    """
    wider = with_wider_states(mod)
    if wider is mod:
        return _planned(mod, plan, by_rows)
    try:
        found = _planned(wider, plan, by_rows)
    except InfeasibleError:
        return _planned(mod, plan, by_rows)
    with suppress(InfeasibleError):
        plain = _planned(mod, plan, by_rows)
        return plain if plain[1].plan.peak < found[1].plan.peak else found
    return found


def _planned(mod: Any, plan: Callable[[Any], PlannedCandidate], by_rows: bool) -> tuple[Any, PlannedCandidate]:
    """Return `mod` in the kernels' layout, and the plan, with states as they are."""
    if by_rows and not has_interface(mod):
        if is_lowered(mod) or state_count(mod):
            return mod, plan(mod)
        mod = attach(mod, graph_io(extract_order_graph(lower_integers(mod))))
    forms: list[Any] = []
    for form in (in_kernel_layout(mod), in_kernel_layout(mod, by_pixel=False), mod):
        form = reshaped_inputs(to_one_column(form)) if by_rows else form
        if not any(structural_equal(form, known) for known in forms):
            forms.append(form)
    for form in forms[:-1]:
        with suppress(InfeasibleError):
            return form, plan(form)
    return forms[-1], plan(forms[-1])


def in_kernel_layout(mod: Any, by_pixel: bool = True) -> Any:
    """Return `mod` with the network `main` in the kernels' layout; `mod` itself if `main` is unreadable, or has nothing
    to change. Quantized networks have their layout when they are read, but for views of maps (`sunk_views`).

    `by_pixel` is passed to `to_channels_last`.
    """
    main = next((f for g, f in mod.functions.items() if g.name_hint == "main"), None)
    if main is None or why_not_read(main) is not None:
        return mod
    if is_quantized(mod):
        return with_sunk_views(mod)
    made = fold_batch_norms(mod)
    planes = any(_reads_planes(b.value) for b in bindings_of(main))
    return with_sunk_views(with_plane_groups(to_channels_last(made, by_pixel)) if planes else made)


def _reads_planes(call: Any) -> bool:
    """Return whether a convolution of floats, or of integers in int32, reads planes of several rows, columns or channels."""
    planes = _PLANES.get(name_of(call))
    return (
        planes is not None
        and str(call.attrs.data_layout) == planes
        and str(call.ty.dtype) in ("float32", "int32")
        and shape_of(call) != ()
    )
