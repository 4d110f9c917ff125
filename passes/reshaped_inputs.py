"""Inputs that a network reshapes first, taken in the reshaped form: `main(x) { y = reshape(x); ... }` becomes `main(y)
{ ... }`.

A reshape keeps the element order, so rows of y are runs of x, and can arrive one after another.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir import IRModule

from tvm_cascade.passes.relax_functions import bindings_of, substitute, without_main
from tvm_cascade.passes.states import state_count

_RESHAPES = frozenset(("relax.reshape", "relax.flatten", "relax.expand_dims", "relax.squeeze"))


def reshaped_inputs(mod: IRModule) -> IRModule:
    """Give each input of `main` the shape of the only reader, if that is a reshape into several rows; return `mod`
    if there is none. States keep the shape of what is assigned to them.
    """
    inputs = mod["main"].params[: len(mod["main"].params) - state_count(mod)]
    given = {param: after for param in inputs if (after := _reshaped(mod, param)) is not None}
    if not given:
        return mod
    main, builder = mod["main"], without_main(mod)
    params = {p: relax.Var(p.name, given[p].ty) if p in given else p for p in main.params}
    renamed: dict[Any, Any] = {var: params[p] for p, var in given.items()}
    with builder.function("main", list(params.values()), attrs=dict(main.attrs or {})):
        with builder.dataflow():
            for binding in bindings_of(main):
                if binding.var not in renamed:
                    renamed[binding.var] = builder.emit(substitute(binding.value, renamed), binding.var.name)
            result = builder.emit_output(substitute(main.body.body, renamed))
        builder.emit_func_output(result)
    return relax.transform.DeadCodeElimination()(builder.finalize()).with_attrs(dict(mod.attrs or {}))


def _reshaped(mod: Any, param: Any) -> Any:
    """Follow the reshape chain that begins at `param`, and return the last variable.

    Every value of the chain has a single reader. Return None if no reshape reads `param` alone, or if the last shape
    has fewer than two axes longer than 1.
    """
    found, bindings = None, bindings_of(mod["main"])
    readers = _readers(bindings, mod["main"].body.body, param)
    while len(readers) == 1 and _is_reshape(readers[0]):
        found = readers[0].var
        readers = _readers(bindings, mod["main"].body.body, found)
    rows = found is not None and sum(int(d) > 1 for d in found.ty.shape.values) > 1
    return found if rows else None


def _readers(bindings: Any, result: Any, var: Any) -> list[Any]:
    """List the bindings that read a variable; none if the function also returns the variable."""
    found = [b for b in bindings if var in relax.analysis.free_vars(b.value)]
    return [] if var in relax.analysis.free_vars(result) else found


def _is_reshape(binding: Any) -> bool:
    value = binding.value
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") in _RESHAPES
