"""Identity graph rewriting (Serenity, section 3.3): removes concats; consumers read the parts instead.

The paper turns `concat -> conv` into partial convolutions that add up in one output (equations 3 to 6). Partial sums of
integers are exact only in int32, not counted in the paper; such accumulators for a whole map cost more than they save
(`rfc/0003-serenity.md`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tvm_cascade.graph import IDENTITY, Graph, Op, Window, rebuilt


def fold_concats(graph: Graph, names: Collection[str] | None = None, outputs: bool = False) -> Graph:
    """Remove the concats of `graph` (or those in `names`): consumers read the parts.

    A concat that is a graph output stays, unless `outputs` is set: then the parts become graph outputs. A reader's
    windows on a concat along the channels become windows on every part; along another axis they are unknown.
    """
    parts: dict[int, tuple[int, ...]] = {}
    across: set[int] = set()  # concats along the channels
    ops = []
    for op in graph.ops:
        inputs = tuple(p for t in op.inputs for p in parts.get(t, (t,)))
        folds = op.kind == "concat" and (names is None or op.name in names)
        if folds and (outputs or not set(op.outputs) & set(graph.outputs)):
            parts[op.outputs[0]] = inputs
            by_rows = bool(op.windows) and all(w == IDENTITY for w in (*op.windows, *op.columns))
            if by_rows and all(t in across for t in op.inputs if t in parts):
                across.add(op.outputs[0])
        else:
            ops.append(_reading(op, inputs, parts, across))
    results = tuple(dict.fromkeys(p for t in graph.outputs for p in parts.get(t, (t,))))
    return rebuilt(graph.tensors, ops, graph.inputs, results, graph.name)


def _reading(op: Op, inputs: tuple[int, ...], parts: Mapping[int, tuple[int, ...]], across: Collection[int]) -> Op:
    """Replace the inputs of `op`; reset in-place positions, and windows on concats along axes besides channels."""
    if inputs == op.inputs:
        return op
    rewired = replace(op, inputs=inputs, in_place=())
    if all(t in across for t in op.inputs if t in parts):
        return replace(rewired, windows=_spread(op, op.windows, parts), columns=_spread(op, op.columns, parts))
    return replace(rewired, windows=(), columns=(), opaque=op.opaque or "reads parts of a concat")


def _spread(
    op: Op, windows: Sequence[Window | None], parts: Mapping[int, tuple[int, ...]]
) -> tuple[Window | None, ...]:
    """Return the windows by position, repeated for each part."""
    if not windows:
        return ()
    return tuple(w for t, w in zip(op.inputs, windows, strict=True) for _ in parts.get(t, (t,)))


def nodes(graph: Graph) -> int:
    """Count operators as the paper does: views move nothing and do not count."""
    return sum(not op.view for op in graph.ops)
