"""Rewrite a quantized network's float inputs and outputs as stored integers (`--stored-io`).

Models from the quantizers in ONNX Runtime and PyTorch take floats, quantize, and return real numbers. On a board floats
take four times the bytes of int8. So an input that is only quantized becomes an integer input, and a dequantized output
an integer output; `TensorSpec.scale` and `zero_point` give the quantization. An input that is quantized by several scales
that are nearly equal, as PT2E observes it at several readers, is stored by the largest, and by the others anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm

from tvm_cascade.errors import UsageError
from tvm_cascade.importers.interface import attach, io_spec
from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.passes.later_requantize import with_later_requantize
from tvm_cascade.passes.main_rewriting import Rewriting, Value, bindings_of, name_of, relax
from tvm_cascade.passes.relax_functions import substitute
from tvm_cascade.tensor_spec import IoSpec, TensorSpec


def store_io(mod: tvm.IRModule) -> tvm.IRModule:
    """Return `mod`, loaded by `load`, with stored integers for every suitable float input and output.

    Raises
    ------
    UsageError
        If no input and no output allows it.
    """
    storing, spec = _Storing(mod, io_spec(mod)), io_spec(mod)
    if not any(storing.inputs) and not any(storing.outputs):
        raise UsageError("no float input of the model is only quantized, and no float output only dequantized")
    inputs, outputs = _replaced(spec.inputs, storing.inputs), _replaced(spec.outputs, storing.outputs)
    made = with_later_requantize(storing.run(storing.params))
    return attach(made, replace(spec, inputs=inputs, outputs=outputs))


class _Storing(Rewriting):
    def __init__(self, mod: Any, spec: IoSpec) -> None:
        super().__init__(mod)
        bindings, old = bindings_of(self.main), self.main.params
        kept = [None] * len(spec.states)  # states stay what the file has: input and output of each are alike
        own = zip(old, spec.own_inputs, strict=False)
        self.inputs = [*(_stored_input(param, s, bindings) for param, s in own), *kept]
        self.params = [_parameter(p, s) for p, s in zip(old, self.inputs, strict=True)]
        pairs = zip(old, self.params, self.inputs, strict=True)
        self.integers = {p: (new, s) for p, new, s in pairs if s is not None}
        result = self._define(self.main.body.body)
        self.several = result if isinstance(result, relax.Tuple) else None
        self.fields = [self.main.body.body] if self.several is None else list(self.several.fields)
        results = zip(self.fields, spec.own_outputs, strict=False)
        self.outputs = [*(_stored_output(Stored.read_by(self._define(f)), s) for f, s in results), *kept]

    def _bind(self, var: Value, value: Value) -> None:
        given = self.integers.get(value.args[0]) if name_of(value) == "quantize" else None
        if given is not None:
            self.renamed[var] = self._stored_anew(given, value)
        elif self.several is None or not self._define(value).same_as(self.several):
            self.renamed[var] = self.bb.emit(substitute(value, self.renamed), name_hint=var.name)

    def _stored_anew(self, given: tuple[Value, TensorSpec], quantize: Value) -> Value:
        """Return an integer input by the scale of `quantize`: itself, if that is its own."""
        integers, spec = given
        own = relax.const(spec.scale, "float32"), relax.const(spec.zero_point, spec.dtype)
        if _numbers_of(quantize) == (spec.scale, spec.zero_point):
            return integers
        reals = self.bb.emit(relax.op.dequantize(integers, *own, axis=0, out_dtype="float32"))
        return self.bb.emit(relax.op.quantize(reals, *quantize.args[1:], axis=0, out_dtype=spec.dtype))

    def _returned(self, value: Value) -> Value:
        made = [
            substitute(field if s is None else self._define(field).args[0], self.renamed)
            for field, s in zip(self.fields, self.outputs, strict=True)
        ]
        return made[0] if self.several is None else relax.Tuple(made)


def storable_inputs(mod: tvm.IRModule) -> tuple[TensorSpec, ...]:
    """Return the integer specs `store_io` would give to float inputs."""
    untyped: Any = mod
    bindings = bindings_of(untyped["main"])
    pairs = zip(untyped["main"].params, io_spec(mod).own_inputs, strict=False)
    return tuple(s for s in (_stored_input(param, spec, bindings) for param, spec in pairs) if s is not None)


def with_scales(mod: tvm.IRModule) -> tvm.IRModule:
    """Return `mod` with scale and zero point for integer inputs and outputs, if only the operators in the file tell."""
    spec, untyped = io_spec(mod), _Values(mod)
    inputs = [
        s if s.scale is not None else _scaled(s, [Stored.read_by(v) for v in untyped.readers(p)])
        for s, p in zip(spec.inputs, untyped.main.params, strict=True)
    ]
    outputs = [
        s if s.scale is not None else _scaled(s, [Stored.written_by(untyped.origin(f))])
        for s, f in zip(spec.outputs, untyped.results, strict=True)
    ]
    if inputs == [*spec.inputs] and outputs == [*spec.outputs]:
        return mod
    return attach(mod, replace(spec, inputs=tuple(inputs), outputs=tuple(outputs)))


_MOVES = frozenset(("expand_dims", "flatten", "permute_dims", "reshape", "squeeze"))


class _Values:
    """The values of `main` around its inputs and outputs, past operators that only move."""

    def __init__(self, mod: Any) -> None:
        self.main = mod["main"]
        self._bindings = bindings_of(self.main)
        self._definitions = {b.var: b.value for b in self._bindings}
        result = self._defined(self.main.body.body)
        self.results = list(result.fields) if isinstance(result, relax.Tuple) else [self.main.body.body]

    def _defined(self, value: Value) -> Value:
        while isinstance(value, relax.Var) and value in self._definitions:
            value = self._definitions[value]
        return value

    def origin(self, value: Value) -> Value:
        """Return the value from which moves make `value`."""
        value = self._defined(value)
        while name_of(value) in _MOVES:
            value = self._defined(value.args[0])
        return value

    def readers(self, var: Value) -> list[Value]:
        """Return the values that read `var`, directly or through moves."""
        found: list[Value] = []
        for b in self._bindings:
            if var in relax.analysis.free_vars(b.value):
                found += self.readers(b.var) if name_of(b.value) in _MOVES else [b.value]
        return found


def _scaled(spec: TensorSpec, around: Sequence[Stored | None]) -> TensorSpec:
    """Return `spec` with the scale shared by all readers and writers of a tensor, if there is one."""
    numbers = _agreed(around)
    return spec if spec.dtype not in _STORED or numbers is None else _with_numbers(spec, spec.dtype, numbers)


def _agreed(stored: Sequence[Stored | None]) -> tuple[float, float] | None:
    """Return the scale and zero point shared by all given integers; None without agreement."""
    found = {None if s is None else s.numbers for s in stored}
    return found.pop() if len(found) == 1 else None


def _with_numbers(spec: TensorSpec, dtype: str, numbers: tuple[float, float]) -> TensorSpec:
    return replace(spec, dtype=dtype, scale=numbers[0], zero_point=int(numbers[1]))


_STORED = ("int8", "uint8", "int16", "uint16")
_MOST_APART = 1.25  # scales of an input, as a ratio: integers by the largest lose a fraction of a step by the others


def _replaced(old: Sequence[TensorSpec], new: Sequence[TensorSpec | None]) -> tuple[TensorSpec, ...]:
    return tuple(n or o for o, n in zip(old, new, strict=True))


def _parameter(param: Value, spec: TensorSpec | None) -> Value:
    return param if spec is None else relax.Var(param.name, relax.TensorType(spec.shape, spec.dtype))


def _stored_input(param: Value, spec: TensorSpec, bindings: Sequence[Any]) -> TensorSpec | None:
    """Return the integer spec for an input read only by quantizes of about one scale, the largest of them; None otherwise."""
    made = [Stored.written_by(b.value) for b in bindings if param in relax.analysis.free_vars(b.value)]
    types = {str(s.tensor.ty.dtype) for s in made if s is not None}
    numbers = [s.numbers for s in made if s is not None and s.numbers is not None]
    if spec.dtype != "float32" or len(types) != 1 or len(numbers) < len(made):
        return None
    widest = max(numbers)
    return _with_numbers(spec, types.pop(), widest) if widest[0] <= _MOST_APART * min(numbers)[0] else None


def _numbers_of(quantize: Value) -> tuple[float, float] | None:
    written = Stored.written_by(quantize)
    return None if written is None else written.numbers


def _stored_output(stored: Stored | None, spec: TensorSpec) -> TensorSpec | None:
    """Return the integer spec for a dequantized output; None for any other output."""
    numbers = None if stored is None else stored.numbers
    if stored is None or numbers is None or spec.dtype != "float32":
        return None
    return _with_numbers(spec, str(stored.tensor.ty.dtype), numbers)
