"""Remove fixed inputs from the signature of `main`, and fold all values that depend on constants alone."""

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
    """Return `mod` with constants in place of the inputs `fixed`, and with all resulting constants folded.

    `known` are inputs in the file, but constants in `mod`. Raises `UsageError` for an unknown input, and if no input
    would be left.
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
    """Rewrites `main` with constants in place of some parameters, by position."""

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
    """Return `mod` with values computed from constants folded, if read elsewhere.

    Of dequantized values the integers are folded, since operators contain both.
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
    """Return the values that follow from constants and are read by the rest of `main`; for dequantized values the
    integers.
    """
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
    """Rewrites `main` with constants in place of some variables."""

    def __init__(self, mod: Any, constants: dict[Value, Value]) -> None:
        super().__init__(mod)
        self.renamed.update(constants)

    def _bind(self, var: Value, value: Value) -> None:
        if var not in self.renamed:
            self.renamed[var] = self.bb.emit(substitute(value, self.renamed), name_hint=var.name)
