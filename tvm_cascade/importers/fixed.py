"""Inputs that are fixed to values, out of the signature of `main`, and the values that hang on them alone, folded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm

from tvm_cascade.errors import UsageError
from tvm_cascade.fixed_inputs import FixedInput
from tvm_cascade.importers.interface import attach, check_inputs, io_spec
from tvm_cascade.passes.integer.expressions import constant
from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.passes.lower_quantized import lowered
from tvm_cascade.passes.main_rewriting import Rewriting, Value, bindings_of, relax
from tvm_cascade.passes.relax_functions import substitute


def with_fixed(mod: tvm.IRModule, fixed: Sequence[FixedInput], known: Sequence[FixedInput] = ()) -> tvm.IRModule:
    """Return `mod` with constants for the inputs that are `fixed`, and constants for the values that follow from constants.

    `known` are inputs of the file that are constants of `mod` already. Raises `UsageError` for an input that the network does not
    have, and where no other is left.
    """
    if not fixed and not known:
        return mod
    spec = io_spec(mod)
    own = {s.name: k for k, s in enumerate(spec.own_inputs)}
    check_inputs([f.name for f in fixed], list(own))
    given = [f.of_input(spec.inputs[own[f.name]].dtype, spec.inputs[own[f.name]].shape) for f in fixed]
    if len(fixed) == len(spec.inputs):
        raise UsageError("--input-value: no input of the network is left that is not fixed")
    constants = {own[f.name]: f for f in given}
    kept = [k for k in range(len(spec.inputs)) if k not in constants]
    made = attach(
        _Fixed(mod, {k: constant(f.array.copy()) for k, f in constants.items()}).run_fixed(),
        replace(spec, inputs=tuple(spec.inputs[k] for k in kept), fixed=(*known, *given)),
    )
    return attach(_folded(made), io_spec(made))


class _Fixed(Rewriting):
    """Rewrites `main` with constants for some of its parameters, by position."""

    def __init__(self, mod: Any, constants: dict[int, Value]) -> None:
        super().__init__(mod)
        params = list(self.main.params)
        self.renamed.update({params[k]: value for k, value in constants.items()})
        self.kept = [p for k, p in enumerate(params) if k not in constants]

    def run_fixed(self) -> tvm.IRModule:
        """Return the module with the new `main`."""
        return self.run(self.kept)

    def _bind(self, var: Value, value: Value) -> None:
        self.renamed[var] = self.bb.emit(substitute(value, self.renamed), name_hint=var.name)


def _folded(mod: tvm.IRModule) -> tvm.IRModule:
    """Return `mod` with each value that follows from constants alone as a constant, where others read it.

    Of real numbers that integers stand for, these are folded: operators have both as a part.
    """
    untyped: Any = mod
    main, follows = untyped["main"], dict[Value, Value]()
    for b in bindings_of(main):
        if set(relax.analysis.free_vars(b.value)) <= follows.keys() and isinstance(b.value, relax.Call):
            follows[b.var] = b.value
    wanted = _wanted(main, follows)
    if not wanted:
        return mod
    arrays = _computed(follows, wanted)
    return _Constants(mod, {var: constant(a) for var, a in zip(wanted, arrays, strict=True)}).run()


def _wanted(main: Any, follows: dict[Value, Value]) -> list[Value]:
    """Return the values that follow from constants and that the rest of `main` reads; the integers that stand for one."""
    read = [v for b in bindings_of(main) if b.var not in follows for v in relax.analysis.free_vars(b.value)]
    read += relax.analysis.free_vars(main.body.body)
    found: dict[Value, None] = {}
    for var in read:
        if var in follows and isinstance(var.ty, relax.TensorType):
            stored = Stored.read_by(follows[var])
            source = var if stored is None else stored.tensor
            found |= {source: None} if source in follows else {}
    return list(found)


def _computed(follows: dict[Value, Value], wanted: Sequence[Value]) -> list[Any]:
    """Compute values in this process; operators on stored integers in their own arithmetic."""
    builder: Any = relax.BlockBuilder()
    renamed: dict[Value, Value] = {}
    with builder.function("main", []):
        with builder.dataflow():
            for var, value in follows.items():
                renamed[var] = builder.emit(substitute(value, renamed))
            result = builder.emit_output(relax.Tuple([renamed[var] for var in wanted]))
        builder.emit_func_output(result)
    made = relax.transform.DeadCodeElimination()(builder.finalize())
    program = tvm.compile(lowered(made), target=tvm.target.Target("llvm"))
    return [a.numpy() for a in relax.VirtualMachine(program, tvm.cpu())["main"]()]


class _Constants(Rewriting):
    """Rewrites `main` with constants for some of its variables."""

    def __init__(self, mod: Any, constants: dict[Value, Value]) -> None:
        super().__init__(mod)
        self.renamed.update(constants)

    def _bind(self, var: Value, value: Value) -> None:
        if var not in self.renamed:
            self.renamed[var] = self.bb.emit(substitute(value, self.renamed), name_hint=var.name)
