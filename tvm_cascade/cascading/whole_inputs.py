"""Why inputs lie in the arena whole in spite of `stream_input`."""

from __future__ import annotations

from collections.abc import Iterator

from tvm_cascade.cascading.geometry import reads_rows
from tvm_cascade.cascading.plan import Plan


def whole_inputs(plan: Plan) -> Iterator[str]:
    """Yield a sentence for each input a plan with `stream_input` keeps whole: not streamed, or in a ring of all rows."""
    graph = plan.graph
    streamed = {t for segment in plan.segments for t in segment.streamed}
    states = {before for before, _ in graph.states}
    for t in (t for t in graph.inputs if t not in states):
        tensor = graph.tensors[t]
        if t in streamed and plan.storages[t].is_ring(tensor.rows):
            continue
        readers = [graph.ops[i] for i in graph.consumers[t]]
        whole = [op.name for op in readers if not all(reads_rows(graph, op, k) for k in _places(op.inputs, t))]
        if whole:
            why = f"{whole[0]} reads it whole"
        elif t in graph.outputs:
            why = "it is an output too"
        elif tensor.rows == 1:
            why = "it has one row"
        else:
            why = "all its rows are needed at once"
        yield f"stream_input has no effect on {tensor.name}: {why}"


def _places(inputs: tuple[int, ...], tensor: int) -> list[int]:
    return [k for k, read in enumerate(inputs) if read == tensor]
