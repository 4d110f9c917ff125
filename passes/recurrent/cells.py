"""The recurrent cells' arithmetic: the sums of products each cell needs, and how they are used.

With `W` the weights for the input `x`, `R` for the state `h`, `P` for the cell state `c` (peepholes), and one bias:

    lstm  i, f = sigmoid(W x + R h + P c + b)    g = tanh(W x + R h + b)    c' = f c + i g
          o = sigmoid(W x + R h + P c' + b)      h' = o tanh(c')
    gru   z, r = sigmoid(W x + R h + b)          n = tanh(W x + R (r h) + b), or with `reset_after`
          h' = (1 - z) n + z h                   n = tanh(W x + a + r (R h + b))
    rnn   h' = tanh(W x + R h + b)

A projection makes a state with another size from an LSTM's `h'`, `V h' + v`, which is the output and the next step's
`h`. A cell computes in phases. A phase runs over all units; its products may read everything the previous phase wrote
for any unit. A phase's sums are computed together, so each element of `x` and `h` is read once for all gates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tvm_cascade.passes.recurrent.functions import Activation


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of products: the input by a gate's weights, and a state by a gate's weights; -1 for none."""

    by_input: int
    by_state: int


@dataclass(frozen=True, slots=True)
class Phase:
    """Sums computed together for each unit. `of_reset` takes `r h` in place of `h`."""

    sums: tuple[Sum, ...]
    of_reset: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of cell: gates, in weight order, and default activations."""

    gates: tuple[str, ...]
    functions: tuple[str, ...]


CELLS: Mapping[str, Cell] = MappingProxyType(
    {
        "lstm": Cell(("input", "forget", "cell", "output"), ("Sigmoid", "Tanh", "Tanh")),
        "gru": Cell(("update", "reset", "new"), ("Sigmoid", "Tanh")),
        "rnn": Cell(("new",), ("Tanh",)),
    }
)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A recurrent layer without its weights. Axes are s (steps), d (directions), b (batch) and u (units, depth or states)."""

    kind: str  # lstm, gru or rnn
    # of each direction: of the gates, the candidate, and an LSTM's output
    functions: tuple[tuple[Activation, ...], ...]
    backward: tuple[bool, ...] = (False,)  # of each direction: whether it starts at the last step
    clip: float = 0.0  # bound on the magnitude of what activations of gates are applied to; 0 for none
    cell_clip: float = 0.0  # bound on the magnitude of an LSTM's cell state; 0 for none
    projection_clip: float = 0.0  # bound on the magnitude of a projected state; 0 for none
    derived: str = ""  # the gate of an LSTM, input or forget, that is one less the other and has no weights
    reset_after: bool = False  # a GRU's reset gate multiplies the product of the state, not the state
    input_axes: str = "sbu"
    output_axes: str = "sdbu"
    state_axes: str = "dbu"

    @property
    def gates(self) -> tuple[str, ...]:
        """Return the gates with weights, in weight order."""
        return tuple(g for g in CELLS[self.kind].gates if g != self.derived)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return the sums, in order."""
        if self.kind != "gru":
            return (Phase(tuple(Sum(k, k) for k in range(len(self.gates)))),)
        both = (Sum(0, 0), Sum(1, 1))
        if self.reset_after:
            return (Phase((*both, Sum(2, -1), Sum(-1, 2))),)
        return Phase(both), Phase((Sum(2, 2),), of_reset=True)


def products(phase: Phase, by_input: bool) -> Sequence[tuple[int, int]]:
    """List for each sum in a phase that multiplies the input (or the state): the sum's place in the phase, and the
    gate.
    """
    gates = [s.by_input if by_input else s.by_state for s in phase.sums]
    return [(place, gate) for place, gate in enumerate(gates) if gate >= 0]
