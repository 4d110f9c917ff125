"""`extract_graph`: converts a Relax function to the TVM-free `Graph`, with every operator's PrimFunc, constants and kernel.

Works on any module with static shapes and a straight-line `main`; Relax operators are legalized to PrimFuncs on a copy.
Operators that keep every element's address (reshape, flatten, a split along the outermost axis) become views. Views,
windows and in-place candidates are recognized by access patterns, not by names. Multiply-accumulates are counted as
executed by the generic kernel, without padding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tvm_cascade.errors import about
from tvm_cascade.graph import IDENTITY, ITEM_BYTES, Graph, Op, Tensor, Window, column_axis
from tvm_cascade.passes.axes import Use, row_axes
from tvm_cascade.passes.relax_functions import ByStructure
from tvm_cascade.passes.relax_ops import Call, Source, read_function
from tvm_cascade.passes.states import state_count, with_states
from tvm_cascade.passes.views import in_place_inputs, view_offsets
from tvm_cascade.passes.windows import AccessPattern, row_windows
from tvm_cascade.schedules.kernels import storage
from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.channel_groups import groups_of, windows_of
from tvm_cascade.schedules.kernels.computation import Computation
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.pixel_kernel import writes_pixels
from tvm_cascade.schedules.kernels.scan import SCAN
from tvm_cascade.schedules.kernels.stages import Stage, computes_parts, macs_of_stages, stages_of
from tvm_cascade.schedules.tir import PrimFunc
from tvm_cascade.schedules.tir.macs import macs_of
from tvm_cascade.search_monitor import counted

_INTERNAL_ATTRS = frozenset(
    (
        *("global_symbol", "tirx.noalias", "s_tir", "layout_free_buffers", "op_kind", "num_activations", "op_pattern"),
        SCAN,
        *(storage.NAME, storage.SAVED),
    )
)


@dataclass(frozen=True)
class Extracted:
    """A graph, and each operator's computation."""

    graph: Graph
    operators: tuple[Computation | None, ...]  # by operator index; None for views
    # the calls that the operators were read from
    source: Source | None = field(default=None, compare=False, repr=False)


class Analyses:
    """Known analyses of called functions, shared by candidate networks like most functions."""

    def __init__(self) -> None:
        self._patterns: dict[int, tuple[PrimFunc, AccessPattern]] = {}
        self._computations: dict[object, tuple[PrimFunc, list[Computation]]] = {}  # a function's, one for each weights
        self._alike = defaultdict[Any, ByStructure[Computation]](ByStructure)
        self._chosen: tuple[object, dict[Any, Any]] = (None, {})

    def chosen(self, core: object) -> dict[Any, Any]:
        """Return the choices for operators and a core, under the caller's keys; only the last core's are kept."""
        if self._chosen[0] != core:
            self._chosen = core, {}
        return self._chosen[1]

    def pattern(self, call: Call) -> AccessPattern:
        """Return the access pattern of a call's function."""
        known = self._patterns.get(hash(call.func))
        if known is not None and known[0].same_as(call.func) and len(known[1].inputs) == len(call.inputs):
            return known[1]
        made = _pattern(call)
        if not made.uses_tables:
            self._patterns[hash(call.func)] = call.func, made
        return made

    def computation(self, call: Call, pattern: AccessPattern, tensors: Sequence[Tensor]) -> Computation:
        """Return the analysis of a call, cached by the function and the tensors' row and column axes. A call that reads
        index tables is analysed each time.
        """
        inputs, outputs = [tensors[t] for t in call.inputs], [tensors[t] for t in call.outputs]
        if pattern.uses_tables:
            return _analyse(call, pattern, inputs, outputs)
        axes = tuple((t.row_axis, t.col_axis) for t in (*inputs, *outputs))
        known = self._computations.get((hash(call.func), axes))
        if known is None or not known[0].same_as(call.func):
            plain = call.func.without_attr("global_symbol") if call.func.attrs else call.func
            made = self._alike[axes].get(plain, lambda: replace(_analyse(call, pattern, inputs, outputs), constants=()))
            known = self._computations[hash(call.func), axes] = call.func, [replace(made, constants=call.constants)]
        for made in known[1]:
            if _same(made.constants, call.constants):
                return made
        known[1].append(replace(known[1][0], constants=call.constants))
        return known[1][-1]


def _same(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    """Test for equality in every bit."""
    return all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(one, other, strict=True)
    )


def extract_graph(mod: Any, function: str = "main") -> Extracted:
    """Read a Relax function into a `Graph`, which the algorithms take and which knows no TVM.

    Parameters
    ----------
    mod : IRModule
        A module with Relax operators or calls of PrimFuncs, or both; it is not modified.
    function : str
        The name of the function to read: straight-line code with static shapes.

    Returns
    -------
    Extracted
        The graph, with scratch and weights for the generic kernels, and each operator's computation.

    Raises
    ------
    GraphError
        The function has symbolic shapes, control flow or calls out of TVM.
    """
    made = analyse(read_function(mod, function), function)
    kernels = [None if o is None else o.kernel for o in made.operators]
    return Extracted(with_kernels(made.graph, kernels), made.operators, made.source)


def extract_work(mod: Any, known: Analyses | None = None) -> Graph:
    """Extract the graph of function main without building kernels or their bytes: for tensors and work alone.

    `known` as in `analyse`. Raises the errors of `extract_graph`.
    """
    return analyse(read_function(mod, "main"), known=known).graph


def extract_order_graph(mod: Any, function: str = "main") -> Graph:
    """Extract the graph of `function` as far as an operator order depends on it: tensors and views.

    Windows, work, kernels and attributes are left out, which takes a fraction of the time. Raises the errors of
    `extract_graph`.
    """
    source = with_states(read_function(mod, function), state_count(mod, function))
    views = [_offsets_of_view(c) for c in source.calls]
    ops = tuple(
        Op(k, c.name, c.kind, c.inputs, c.outputs, **_target(c)) if view is None else _view(k, c, view, source.tensors)
        for k, (c, view) in enumerate(zip(source.calls, views, strict=True))
    )
    return Graph(source.tensors, ops, source.inputs, source.outputs, function)


def analyse(source: Source, function: str = "main", known: Analyses | None = None) -> Extracted:
    """Build the graph of a function's calls: operator k is `source.calls[k]`; kernels and their bytes are not yet
    known.

    `known` has analyses shared with further graphs, and gets the new ones.
    """
    known = known or Analyses()
    patterns = [known.pattern(c) for c in source.calls]
    views = [_offsets_of_view(c) for c in source.calls]
    uses = [Use(c.inputs, c.outputs, p) for c, p, v in zip(source.calls, patterns, views, strict=True) if v is None]
    axes = row_axes([t.shape for t in source.tensors], uses)
    tensors = tuple(
        replace(t, row_axis=axis, col_axis=column_axis(t.shape, axis))
        for t, axis in zip(source.tensors, axes, strict=True)
    )
    ops: list[Op] = []
    made: list[Computation | None] = []
    for call, pattern, view in counted("operators analysed", list(zip(source.calls, patterns, views, strict=True))):
        with about(call.name):
            made.append(known.computation(call, pattern, tensors) if view is None else None)
        ops.append(_op(len(ops), call, made[-1]) if view is None else _view(len(ops), call, view, tensors))
    return Extracted(Graph(tensors, tuple(ops), source.inputs, source.outputs, function), tuple(made), source)


def with_kernels(graph: Graph, kernels: Sequence[RowKernel | None]) -> Graph:
    """Add the weight and scratch bytes of `kernels`, one per operator, to the graph; None keeps the graph's."""

    def with_kernel(op: Op, kernel: RowKernel) -> Op:
        return replace(
            op,
            scratch_bytes=kernel.scratch_bytes,
            weight_bytes=_bytes_of(kernel.constants),
            storage=kernel.storage.name,
            saved_bytes=kernel.storage.saved,
        )

    ops = (op if k is None else with_kernel(op, k) for op, k in zip(graph.ops, kernels, strict=True))
    return replace(graph, ops=tuple(ops))


def _bytes_of(constants: Sequence[np.ndarray]) -> int:
    return sum(int(c.nbytes) for c in constants)


def _offsets_of_view(call: Call) -> tuple[int, ...] | None:
    """Return a call's `view_offsets`; None unless a view."""
    return None if call.constants or call.must_copy else view_offsets(call.func, len(call.inputs))


def _pattern(call: Call) -> AccessPattern:
    start = len(call.inputs)
    tables = dict(zip(call.func.params[start : start + len(call.constants)], call.constants, strict=True))
    return AccessPattern(call.func, start, tables)


def _analyse(call: Call, pattern: AccessPattern, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Computation:
    input_axes, output_axes = tuple(t.row_axis for t in inputs), tuple(t.row_axis for t in outputs)
    windows, reason = row_windows(pattern, output_axes, input_axes)
    columns, _ = row_windows(pattern, [t.col_axis for t in outputs], [t.col_axis for t in inputs])
    grouped = groups_of(call.func) > 0
    if grouped and (*input_axes, *output_axes) == (1, 1):  # small maps do not show the whole window
        windows, columns, reason = *((w,) for w in windows_of(call.func)), None
    if call.target is not None:
        reason = "it overwrites a state, which is done once and alone"
    access = RowAccess(windows, input_axes, output_axes, reason, columns)
    stages = None if grouped else stages_of(call.func)
    made = Computation(call.name, call.func, call.constants, access, 0, in_place_inputs(call.func, len(call.inputs)))
    if stages is None or not (access.whole or computes_parts(stages, call.func.params, output_axes[:1])):
        access = _as_built(made)
    if access.whole:
        single = all(t.rows == 1 for t in outputs) and access.opaque is None
        whole = tuple(Window.whole(t.rows) if single else None for t in inputs)
        across = tuple(Window.whole(t.columns) if single else None for t in inputs)
        access = replace(access, windows=whole, columns=across)
    elif not grouped and not _has_parts(replace(made, access=access), stages, outputs[0].col_axis):
        access = access.without_columns
    made = replace(made, access=access)
    rows = 1 if access.whole or not outputs else outputs[0].rows
    macs = macs_of(made.kernel.func, rows) if stages is None else macs_of_stages(stages, call.func.params)
    return replace(made, macs=macs)


def _as_built(made: Computation) -> RowAccess:
    """Return an operator's access; opaque if the row kernel cannot be built."""
    kernel = made.kernel
    return replace(made.access, opaque=kernel.reason) if kernel.whole else made.access


def _has_parts(made: Computation, stages: Sequence[Stage] | None, column: int | None) -> bool:
    """Return True if kernels for parts of rows exist, as far as columns are known; `column` is the first output's
    column axis.
    """
    access = made.access
    if not any(access.columns) or not writes_pixels(made.func, access):
        return True
    row = access.output_axes[0]
    if row is not None and column is None:  # its rows have no columns
        return False
    certain = stages is not None and row is not None and computes_parts(stages, made.func.params, (row, column))
    return certain or isinstance(made.pixel_kernel, RowKernel)


def _op(index: int, call: Call, made: Computation | None, **view: Any) -> Op:
    """Build a call's graph operator from the analysis `made`; for a view, `made` is None and `view` has the fields of
    `Op`.
    """
    if made is not None:
        access, weights = made.access, _bytes_of(made.constants)
        view = {"windows": access.windows, "columns": access.columns, "opaque": access.opaque, "macs": made.macs}
        view |= {"weight_bytes": weights, "in_place": made.in_place, **_target(call)}
    return Op(index, call.name, call.kind, call.inputs, call.outputs, attrs=_attributes(call.func), **view)


def _target(call: Call) -> dict[str, Any]:
    """Return the fields for a state-writing operator."""
    return {} if call.target is None else {"target": call.target, "in_place": (call.target,)}


def _view(index: int, call: Call, offsets: tuple[int, ...], tensors: Sequence[Tensor]) -> Op:
    source, target = tensors[call.inputs[0]], tensors[call.outputs[0]]
    forms = [(t.rows, t.row_bytes, t.planes) for t in (source, target)]
    same = forms[0] == forms[1] and len(call.outputs) == 1
    window = IDENTITY if same and source.rows > 1 else Window.whole(source.rows) if target.rows == 1 else None
    columns = (window if source.columns == target.columns == 1 else None,)
    places = tuple(o * ITEM_BYTES[source.dtype] for o in offsets)
    return _op(index, call, None, windows=(window,), columns=columns, view=True, view_offsets=places)


def _attributes(func: PrimFunc) -> Mapping[str, object]:
    attrs = func.attrs or {}
    return MappingProxyType({str(k): _to_python(v) for k, v in attrs.items() if str(k) not in _INTERNAL_ATTRS})


def _to_python(value: Any) -> object:
    """Convert TVM's containers and boxed numbers to tuples, dictionaries and Python numbers."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if hasattr(value, "items"):
        return {str(k): _to_python(v) for k, v in value.items()}
    if hasattr(value, "__iter__"):
        return tuple(_to_python(v) for v in value)
    return _to_python(value.value) if hasattr(value, "value") else str(value)
