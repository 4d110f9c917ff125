"""Pair a model's inputs and outputs as states (`--state in=out`): an output's value becomes the input's value in the
next call. States become the last inputs and outputs of `main` (`tensor_spec.IoSpec`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm

from tvm_cascade.errors import UsageError
from tvm_cascade.importers.interface import attach, io_spec
from tvm_cascade.passes.main_rewriting import Rewriting, Value, relax
from tvm_cascade.passes.relax_functions import substitute
from tvm_cascade.tensor_spec import State, TensorSpec


def with_pairs(mod: tvm.IRModule, pairs: Mapping[str, str]) -> tvm.IRModule:
    """Return `mod` with a state, zero at first, for each named input and its paired output.

    Raises
    ------
    UsageError
        For a name that is no input or output, one that is paired twice, tensors of different shapes, types or scales, and
        where no output is left.
    """
    if not pairs:
        return mod
    spec = io_spec(mod)
    taken = [_place("input", spec.own_inputs, name) for name in pairs]
    given = [_place("output", spec.own_outputs, name) for name in pairs.values()]
    for name, places in (("an output", given), ("an input", taken)):
        if len(set(places)) < len(places):
            raise UsageError(f"--state: {name} is paired twice; pair each once")
    if len(given) == len(spec.own_outputs):
        raise UsageError("--state: no output of the network is left that is not a state")
    states = [_state(spec.inputs[a], spec.outputs[b]) for a, b in zip(taken, given, strict=True)]
    inputs, outputs = _last(len(spec.own_inputs), taken), _last(len(spec.own_outputs), given)
    inputs += range(len(inputs), len(spec.inputs))  # the states that the file has itself come behind
    outputs += range(len(outputs), len(spec.outputs))
    moved = _Moved(mod, inputs, outputs).run_moved()
    made = replace(
        spec,
        inputs=tuple(spec.inputs[k] for k in inputs),
        outputs=tuple(spec.outputs[k] for k in outputs),
        states=(*states, *spec.states),
    )
    return attach(moved, made)


def _place(side: str, specs: Sequence[TensorSpec], name: str) -> int:
    names = [s.name for s in specs]
    if name not in names:
        raise UsageError(f"--state: the model has no {side} {name}; its {side}s: {', '.join(names)}")
    return names.index(name)


def _last(count: int, places: Sequence[int]) -> list[int]:
    """Return the numbers below `count`, in order, with `places` last."""
    return [*(k for k in range(count) if k not in places), *places]


def _state(before: TensorSpec, after: TensorSpec) -> State:
    """Return the state for an input and its output, zero at first."""
    same = (before.shape, before.dtype, before.scale, before.zero_point)
    if same != (after.shape, after.dtype, after.scale, after.zero_point):
        scales = [
            "" if s.scale is None else f" of scale {s.scale:g} and zero point {s.zero_point}" for s in (before, after)
        ]
        raise UsageError(
            f"--state: input {before.name} is {before.type_text}{scales[0]}, output {after.name} "
            f"{after.type_text}{scales[1]}: a state has one form"
        )
    zero = before.zero_point if before.scale is not None else 0
    first = np.full(before.shape, zero or 0, before.dtype).tobytes() if zero else b""
    return State(before.name, first, after.name)


class _Moved(Rewriting):
    """Rewrites `main` with its parameters and results in another order."""

    def __init__(self, mod: Any, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        super().__init__(mod)
        self.inputs, self.outputs = inputs, outputs

    def run_moved(self) -> tvm.IRModule:
        """Return the module with the new `main`."""
        return self.run([self.main.params[k] for k in self.inputs])

    def _bind(self, var: Value, value: Value) -> None:
        self.renamed[var] = self.bb.emit(substitute(value, self.renamed), name_hint=var.name)

    def _returned(self, value: Value) -> Value:
        fields = self._define(value).fields
        return relax.Tuple([substitute(fields[k], self.renamed) for k in self.outputs])
