"""Reference outputs of a sequence of calls, from a clear state: `run --check` for networks that keep something between calls.

LiteRT's interpreter keeps variables itself, and forgets them before every call of a project that keeps no states. To ONNX's
evaluator, which keeps nothing, each state goes as an input again that came back as an output (`State.returned`). A network that
was compiled with a hop takes new rows: the reference computes the whole window of every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tvm_cascade.checking.reference import Expected, LiteRtReference, Scales, exported_program, reference_outputs
from tvm_cascade.checking.sensitivity import run_exported
from tvm_cascade.emit.network import PlacedState
from tvm_cascade.errors import UsageError
from tvm_cascade.tensor_spec import TensorSpec

Arrays = Mapping[str, np.ndarray]


def reference_calls(
    path: Path, calls: Sequence[Arrays], scales: Scales, states: Sequence[PlacedState] = ()
) -> list[Expected]:
    """What the reference makes of one call after the other. Raises what `reference_outputs` raises."""
    if path.suffix == ".tflite" and len(calls) > 1:
        reference = LiteRtReference(path, calls[0], scales)
        run = reference.run if states else reference.anew
        return [Expected(run(call), reference.note) for call in calls]
    if path.suffix == ".pt2" and len(calls) > 1:
        return _torch_calls(path, calls, states)
    kept = {state.spec.name: state.array for state in states if state.returned}
    returned = {state.returned: state.spec.name for state in states if state.returned}
    made: list[Expected] = []
    for call in calls:
        found = reference_outputs(path, {**call, **kept}, scales)
        kept = {returned[name]: found.outputs[name] for name in returned}
        own = {name: array for name, array in found.outputs.items() if name not in returned}
        made.append(Expected(own, found.note, found.reach, found.step))
    return made


def _torch_calls(path: Path, calls: Sequence[Arrays], states: Sequence[PlacedState]) -> list[Expected]:
    """What torch makes of one call after the other: its module keeps its buffers, inputs that are states are outputs before."""
    exported = exported_program(path)
    module, taken = exported.module(), {str(name) for name in exported.graph_signature.user_inputs}
    paired = [state for state in states if state.returned and state.spec.name in taken]
    kept: Arrays = {state.spec.name: state.array for state in paired}
    made: list[Expected] = []
    for call in calls:
        found = run_exported(exported, {**call, **kept}, module)
        kept = {state.spec.name: found[state.returned] for state in paired}
        returned = {state.returned for state in paired}
        made.append(Expected({name: array for name, array in found.items() if name not in returned}))
    return made


def reference_windows(path: Path, calls: Sequence[Arrays], scales: Scales, given: TensorSpec) -> list[Expected | None]:
    """What the reference makes of the whole window that ends with the rows of each call, of the only input `given`; None of
    calls before the first whole window, whose outputs mean nothing.

    Raises what `reference_outputs` raises, and `UsageError` where no window is whole.
    """
    axis, rows, hop = given.window_axis, given.window, given.shape[given.window_axis]
    stream = np.concatenate([call[given.name] for call in calls], axis)
    first = -(-rows // hop)
    if len(calls) < first:
        raise UsageError(
            f"--check compares whole windows: one of {rows} rows takes {first} calls of {hop} or more (--frames)"
        )
    ends = range(first * hop, len(calls) * hop + 1, hop)
    windows = [{given.name: stream.take(range(end - rows, end), axis)} for end in ends]
    if path.suffix == ".tflite":
        reference = LiteRtReference(path, windows[0], scales)
        made = [Expected(reference.anew(window), reference.note) for window in windows]
    else:
        made = [reference_outputs(path, window, scales) for window in windows]
    return [*([None] * (first - 1)), *made]


def largest(gaps: Sequence[tuple[bool, float]]) -> tuple[bool, float]:
    """Whether all calls match, and their largest difference."""
    return all(match for match, _ in gaps), max(gap for _, gap in gaps)
