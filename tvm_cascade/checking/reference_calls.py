"""Reference outputs for a sequence of calls, from a clear state: `run --check` for networks that keep state between
calls.

A reference keeps the file's variables and buffers, and forgets them before every call if the project keeps no states. A
state returned as an output goes back as an input (`State.returned`). A network compiled with a hop takes new rows: the
reference computes the whole window for every call.
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
    """Return the reference's outputs for successive calls, without the outputs that become states.

    Raises the reference's errors.
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
    """Return the reference's outputs for the whole window that ends with the rows of each call.

    `given` is the only input besides the `fixed` inputs. Calls before the first whole window give None. Raises the
    reference's errors, and `UsageError` if there is no whole window.
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
