"""Converters of torch's LSTM, GRU and RNN, of any number of layers, all to the one kernel of `passes.recurrent`.

Torch keeps the weights of each layer and direction apart, gates as rows of one matrix: an LSTM's in our order, a GRU's with
the reset gate first, which multiplies the product of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from tvm_cascade.importers.values import Value, relax, shape_of
from tvm_cascade.passes.recurrent.arrays import Arranger, Array, as_value
from tvm_cascade.passes.recurrent.cells import CELLS, Recurrence
from tvm_cascade.passes.recurrent.functions import RELU, SIGMOID, TANH, Activation
from tvm_cascade.passes.recurrent.lower import Operands, Wanted, lower_recurrence

Node: TypeAlias = Any  # of torch's graph
Importer: TypeAlias = Any  # Relax's

_KINDS: Mapping[str, tuple[str, tuple[Activation, ...]]] = MappingProxyType(
    {
        "lstm": ("lstm", (SIGMOID, TANH, TANH)),
        "gru": ("gru", (SIGMOID, TANH)),
        "rnn_tanh": ("rnn", (TANH,)),
        "rnn_relu": ("rnn", (RELU,)),
    }
)
_RESET_FIRST = (1, 0, 2)  # of our order, the places in torch's GRU


def recurrent_converters(exported: Any) -> dict[str, Callable[[Node, Importer], Value]]:
    """Converters of the recurrent operators of a program, by their names in it."""
    parameters = _parameters(exported)
    return {f"{name}.input": _converter(name, parameters) for name in _KINDS}


def undecomposed(torch: Any, exported: Any) -> list[Any]:
    """The recurrent operators that `exported` keeps for the converters here: none where it has symbolic sizes. Torch
    decomposes them into a copy of the cell for each step."""
    return [] if exported.range_constraints else [getattr(torch.ops.aten, name).input for name in _KINDS]


def _parameters(exported: Any) -> dict[str, np.ndarray]:
    """The data of weights by the name of the node that stands for them."""
    signature = exported.graph_signature
    named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    held = {**exported.constants, **exported.state_dict}
    return {node: held[name].detach().numpy() for node, name in named.items() if name in held}


def _converter(name: str, parameters: Mapping[str, np.ndarray]) -> Callable[[Node, Importer], Value]:
    def convert(node: Node, importer: Importer) -> Value:
        made = _Layers(node, importer, parameters, *_KINDS[name]).result()
        return importer.block_builder.emit(relax.Tuple(made))

    return convert


@dataclass(frozen=True, slots=True)
class _Layers:
    """One call of a recurrent operator: arguments input, states, weights, whether biases, layers, dropout, training, whether
    in both directions, whether the batch comes first."""

    node: Node
    importer: Importer
    parameters: Mapping[str, np.ndarray]
    kind: str
    functions: tuple[Activation, ...]

    def result(self) -> list[Value]:
        """The outputs: the states of all steps, the last states, and an LSTM's last cell states; zero for what is not read."""
        x, states, weights, biased, count, dropout, training, both, batch_first = self.node.args
        if training and dropout:
            raise NotImplementedError(f"{self.kind} in training mode: export the network after eval()")
        directions, emit = 2 if both else 1, self.importer.block_builder.emit
        each = len(weights) // (directions * count)
        # each step's states of both directions lie side by side
        axes = ("bsu", "bsdu") if batch_first else ("sbu", "sbdu")
        layer = Recurrence(
            self.kind,
            (self.functions,) * directions,
            (False, True)[:directions],
            reset_after=self.kind == "gru",
            input_axes=axes[0],
            output_axes=axes[1],
        )
        values, last = self.importer.env[x], []
        for k in range(count):
            own = weights[k * each * directions : (k + 1) * each * directions]
            by_direction = [own[at : at + each] for at in range(0, len(own), each)]
            operands = self._operands(values, by_direction, bool(biased), self._starts(states, k, directions))
            wanted = Wanted(k + 1 < count or self._reads(0), self._reads(1), self._reads(2))
            values, *ends = lower_recurrence(self.importer.block_builder, layer, operands, wanted)
            last.append(ends)
            if values is not None:
                values = emit(relax.op.reshape(values, [*shape_of(self.importer.env[x])[:2], -1]))
        ends = [self._joined(parts) for parts in zip(*last, strict=True)]
        zero = relax.const(0, "float32")
        outputs = [values, *ends][: 3 if self.kind == "lstm" else 2]
        return [zero if v is None else v for v in outputs]

    def _reads(self, output: int) -> bool:
        """Whether anything reads an output."""
        return any(user.args[1] == output and user.users for user in self.node.users)

    def _joined(self, parts: Sequence[Value | None]) -> Value | None:
        """The last states of all layers, `[layers * directions, batch, units]`."""
        if parts[0] is None or len(parts) == 1:
            return parts[0]
        return self.importer.block_builder.emit(relax.op.concat(list(parts), 0))

    def _operands(
        self, x: Value, weights: Sequence[Sequence[Node]], biased: bool, starts: Sequence[Value | None]
    ) -> Operands:
        """What a layer computes with, from its weights by direction: of input and state, their biases, a projection."""
        parts = list(zip(*weights, strict=True))
        stacked = [self._stacked(part) for part in parts[: 4 if biased else 2]]
        input_bias, state_bias = stacked[2:] or (None, None)
        projection = self._stacked(parts[-1], gates=False) if len(parts) % 2 else None
        cell = starts[1] if len(starts) > 1 else None
        return Operands(x, stacked[0], stacked[1], input_bias, state_bias, None, starts[0], cell, projection)

    def _starts(self, states: Any, layer: int, directions: int) -> list[Value | None]:
        """The first states of a layer, and an LSTM's first cell states."""
        listed = states if isinstance(states, (list, tuple)) else [states]
        return [self._start(state, layer, directions) for state in listed]

    def _stacked(self, parts: Sequence[Node], gates: bool = True) -> Array:
        """Weights or biases of all directions, `[directions, gates, units, ...]`, or a projection without `gates`."""
        arranger, count = Arranger(self.importer.block_builder), len(CELLS[self.kind].gates)
        made = []
        for part in parts:
            array = self.parameters[part.name] if part.name in self.parameters else self.importer.env[part]
            shape = array.shape if isinstance(array, np.ndarray) else shape_of(array)
            split = (count, shape[0] // count) if gates else shape[:1]
            array = arranger.reshape(array, (1, *split, *shape[1:]))
            made.append(arranger.take(array, _RESET_FIRST, 1) if self.kind == "gru" else array)
        data = [a for a in made if isinstance(a, np.ndarray)]
        if len(data) == len(made):
            return np.concatenate(data)
        return self.importer.block_builder.emit(relax.op.concat([as_value(a) for a in made], 0))

    def _start(self, state: Node, layer: int, directions: int) -> Value | None:
        """The first states of a layer; None where they are zero, as they are by default."""
        if str(state.target) in ("aten.full.default", "aten.zeros.default") and state.args[1:2] in ((), (0,), (0.0,)):
            return None
        value, first = self.importer.env[state], layer * directions
        if shape_of(value)[0] == directions:
            return value
        part = relax.op.strided_slice(value, axes=[0], begin=[first], end=[first + directions])
        return self.importer.block_builder.emit(part)
