"""Give index inputs, such as token ids, the type int32 and a known extent.

From such an input every path leads through moves, and through wrapping negative indices, to gathers. Random inputs are
drawn below the smallest extent. ONNX readers of other kinds get a cast to 64 bits (`onnx_graph.narrow_indices`); other
formats allow such inputs as outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import tvm

from tvm_cascade.importers.interface import attach, io_spec
from tvm_cascade.passes.main_rewriting import Rewriting, Value, bindings_of, constant_of, name_of, relax, shape_of
from tvm_cascade.passes.relax_functions import substitute

MOVES = frozenset(("expand_dims", "flatten", "permute_dims", "reshape", "squeeze", "strided_slice"))
_GATHERS = ("take", "gather_elements")


def with_index_inputs(mod: tvm.IRModule) -> tvm.IRModule:
    """Return `mod` with int64 inputs narrowed to int32 if they are only moved, cast to int32, used as indices or
    returned; record the extents of all index inputs in the interface.
    """
    users = users_of(mod)
    inputs = list(mod["main"].params)
    narrow = [p for p in inputs if str(getattr(p.ty, "dtype", "")) == "int64" and _is_narrow(p, users)]
    if narrow:
        mod = _Narrowing(mod, narrow).narrowed()
        users = users_of(mod)
    spec = io_spec(mod)
    found = [
        replace(s, dtype=str(p.ty.dtype), extent=_extent(p, users))
        for s, p in zip(spec.inputs, mod["main"].params, strict=True)
    ]
    return mod if tuple(found) == spec.inputs else attach(mod, replace(spec, inputs=tuple(found)))


class User(NamedTuple):
    """A reader of a variable: operator name ("" for the result of `main`), call, and bound variable."""

    kind: str
    call: Value
    var: Value


Users = Mapping[Value, list[User]]


def users_of(mod: Any) -> Users:
    found: dict[Value, list[User]] = {}
    for binding in bindings_of(mod["main"]):
        for var in relax.analysis.free_vars(binding.value):
            found.setdefault(var, []).append(User(name_of(binding.value), binding.value, binding.var))
    for var in relax.analysis.free_vars(mod["main"].body.body):
        found.setdefault(var, []).append(User("", None, None))
    return found


def _is_narrow(var: Value, users: Users) -> bool:
    """Return True if an int64 value is only an index, or an index and an output."""
    ends = set(_ends(var, users))
    return "index" in ends and ends <= {"index", "output"}


def _ends(var: Value, users: Users) -> Iterator[str]:
    """Yield the uses of an int64 value behind moves: index (or cast to int32), output, or anything else."""
    for kind, call, made in users.get(var, []):
        cast = kind == "astype" and str(call.attrs.dtype) == "int32"
        gathered = kind in _GATHERS and not call.args[0].same_as(var)
        if kind in MOVES:
            yield from _ends(made, users)
        else:
            yield "index" if cast or gathered else "anything else" if kind else "output"


def _extent(var: Value, users: Users) -> int | None:
    """Return the smallest extent indexed by elements of `var`, whatever their other uses; None without an index use."""
    if not str(getattr(var.ty, "dtype", "")).startswith("int"):
        return None
    found: list[int | None] = []
    for kind, call, made in users.get(var, []):
        if kind in _GATHERS and not call.args[0].same_as(var):
            data, axis = shape_of(call.args[0]), call.attrs.axis
            found.append(int(np.prod(data)) if axis is None else data[int(axis) % len(data)])
        elif (
            kind == "floor_mod" and _extent(made, users) is not None
        ):  # counts from the end; a modulus of its own is none
            extent = constant_of(call.args[1])
            found.append(None if extent is None else int(extent.min()))
        elif kind in MOVES or kind in ("astype", "where"):
            found.append(_extent(made, users))
    return min((e for e in found if e is not None), default=None)


class _Narrowing(Rewriting):
    """Rewrites int64 inputs as int32, with the moves behind."""

    def __init__(self, mod: Any, inputs: list[Value]) -> None:
        super().__init__(mod)
        made = {p: relax.Var(p.name, relax.TensorType(list(shape_of(p)), "int32")) for p in inputs}
        self.params = [made.get(p, p) for p in self.main.params]
        self.renamed.update(made)

    def narrowed(self) -> tvm.IRModule:
        """Return the module with the new inputs."""
        return self.run(self.params)

    def _bind(self, var: Value, value: Value) -> None:
        new = substitute(value, self.renamed)
        if name_of(value) in MOVES and value.args[0] in self.renamed:  # its type has to be inferred anew
            new = relax.Call(value.op, [self.renamed[value.args[0]], *value.args[1:]], value.attrs)
        self.renamed[var] = self.bb.emit(new, name_hint=var.name)

    def _returned(self, value: Value) -> Value:
        """Convert every returned output; torch.export binds several outputs to a single variable."""
        found = self._define(value)
        if isinstance(found, relax.Tuple):
            return relax.Tuple([self._output(field) for field in found.fields])
        return self._output(value)

    def _output(self, value: Value) -> Value:
        """Return an output in its former type."""
        made = substitute(value, self.renamed)
        same = str(made.ty.dtype) == str(value.ty.dtype)
        return made if same else self.bb.emit_output(relax.op.astype(made, str(value.ty.dtype)))
