"""Reference outputs of a sequence of calls, from a clear state: `run --check` for networks that keep something between calls.

A reference keeps the variables and buffers of the file itself, and forgets them before every call of a project that keeps no
states. A state that came back as an output goes as an input again (`State.returned`). A network that was compiled with a hop
takes new rows: the reference computes the whole window of every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tvm_cascade.checking.reference import (
    Reference,
)
from tvm_cascade.emit.network import PlacedState
from tvm_cascade.errors import UsageError
from tvm_cascade.tensor_spec import TensorSpec

Arrays = Mapping[str, np.ndarray]


def reference_calls(
    reference: Reference, calls: Sequence[Arrays], states: Sequence[PlacedState] = ()
) -> list[dict[str, np.ndarray]]:
    """Return what the reference makes of one call after the other, without the outputs that are states of the next call.

    Raises what the reference raises.
    """
    run = reference.run if states else reference.anew
    kept: Arrays = {state.spec.name: state.array for state in states if state.returned}
    returned = {state.returned: state.spec.name for state in states if state.returned}
    made: list[dict[str, np.ndarray]] = []
    for call in calls:
        found = run({**call, **kept})
        kept = {returned[name]: found[name] for name in returned}
        made.append({name: array for name, array in found.items() if name not in returned})
    return made


def reference_windows(
    reference: Reference, calls: Sequence[Arrays], given: TensorSpec, fixed: Arrays
) -> list[dict[str, np.ndarray] | None]:
    """Return what the reference makes of the whole window that ends with the rows of each call, of the only input `given` beside
    those that are `fixed`; None of calls before the first whole window, whose outputs mean nothing.

    Raises what the reference raises, and `UsageError` where no window is whole.
    """
    axis, rows, hop = given.window_axis, given.window, given.shape[given.window_axis]
    stream = np.concatenate([call[given.name] for call in calls], axis)
    first = -(-rows // hop)
    if len(calls) < first:
        raise UsageError(
            f"--check compares whole windows: one of {rows} rows takes {first} calls of {hop} or more (--frames)"
        )
    ends = range(first * hop, len(calls) * hop + 1, hop)
    windows = [{**fixed, given.name: stream.take(range(end - rows, end), axis)} for end in ends]
    return [*([None] * (first - 1)), *map(reference.anew, windows)]
