"""Operator names by bound variable, for passes that receive a graph's operators by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax

from tvm_cascade.graph import Tensor
from tvm_cascade.passes.call_names import with_file_names
from tvm_cascade.passes.origin import file_name, plain
from tvm_cascade.passes.read.program import Value, numbers_in, read_program
from tvm_cascade.passes.relax_functions import UniqueNames, bindings_of, is_call_tir
from tvm_cascade.passes.relax_ops import readable


@dataclass(frozen=True, slots=True)
class _Called:
    """A `call_tir` of a function."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def operator_names(main: Any) -> dict[Any, str]:
    """Return by variable the name given by `extract_graph` to the variable's `call_tir`."""
    program, unique = read_program(main), UniqueNames()
    values = [_tensor(k, value, k in program.inputs) for k, value in enumerate(program.values)]
    for k in program.inputs:
        unique(values[k].name)
    calls = [
        _Called(unique(readable(c.expr.args[0].name_hint)), tuple(numbers_in(c.arguments[1])), c.outputs)
        for c in program.calls
        if c.name == "call_tir"
    ]
    in_file = {v.name: name for v in values if (name := file_name(v.name)) is not None}
    _, named = with_file_names(values, calls, program.inputs, tuple(numbers_in(program.result)), in_file)
    by_output = {t: call.name for call in named for t in call.outputs}
    variables = [b.var for b in bindings_of(main) if is_call_tir(b.value)]
    return {var: by_output[next(numbers_in(program.argument(var)))] for var in variables}


def _tensor(index: int, value: Value, is_input: bool) -> Tensor:
    shape = value.shape if isinstance(value.type, relax.TensorType) else ()
    return Tensor(index, plain(value.name) if is_input else value.name, shape, "")
