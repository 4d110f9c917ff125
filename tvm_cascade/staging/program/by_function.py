"""Functions of a module that can have staged programs, and each as a separate module.

A staged program is made from a module's `main` (`ScheduleStages`). Here every function known to the module's callers
becomes such a module, with called functions inlined; `passes.join_modules` makes a single module from the programs.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tvm import relax
from tvm.ir import GlobalVar, IRModule

from tvm_cascade.errors import GraphError
from tvm_cascade.passes.lower_quantized import holds_quantized
from tvm_cascade.passes.outline_region import functions_called
from tvm_cascade.passes.relax_functions import OF_OTHERS, typed

_FLOAT = "float32"
_BESIDE_FLOATS = ("bool", "int32", "int64")  # types of masks and indices


def entry_functions(mod: IRModule) -> list[str]:
    """Return the names of the Relax functions not called in `mod`, in order: public functions, and `main`."""
    functions = {gv: f for gv, f in mod.functions_items() if isinstance(f, relax.Function)}
    called = {name for f in functions.values() for name in _called(f)}
    return [
        gv.name_hint
        for gv, f in functions.items()
        if gv.name_hint not in called and ("global_symbol" in (f.attrs or {}) or gv.name_hint == "main")
    ]


def alone(mod: IRModule, name: str) -> IRModule:
    """Return a module with the function `name` of `mod` as `main`, with all called functions inlined.

    Raises `GraphError` for recursion, for calls to another code generator's function or to another function `main`, and
    for functions as values, as in a closure.
    """
    relax_functions = {gv.name_hint: f for gv, f in mod.functions.items() if isinstance(f, relax.Function)}
    if set(relax_functions) == {name} == {"main"}:
        return mod
    reached, waiting = dict[str, Any](), [name]
    while waiting:
        function = waiting.pop()
        if function not in reached and function in relax_functions:
            reached[function] = relax_functions[function]
            waiting += _called(relax_functions[function])
    for called, function in reached.items():
        if called in _called(function) or any(a in (function.attrs or {}) for a in OF_OTHERS):
            raise GraphError(f"{called} calls itself, or is for another code generator")
        if _passes_on(function, relax_functions):
            raise GraphError(f"{called} passes on a function as a value")
    if "main" in reached and name != "main":
        raise GraphError("it calls main")
    functions: dict[Any, Any] = {gv: f for gv, f in mod.functions.items() if not isinstance(f, relax.Function)}
    for gv in mod.get_global_vars():
        if gv.name_hint in reached and gv.name_hint != name:
            functions[gv] = reached[gv.name_hint].without_attr("global_symbol")
    main = reached[name].with_attr("global_symbol", "main")
    functions[typed(GlobalVar("main"), main.ty)] = main
    return relax.transform.InlinePrivateFunctions()(IRModule(functions, attrs=mod.attrs))


def computes_in_float32(mod: IRModule) -> bool:
    """Return True if `main` computes tensors of float32, beside masks and indices at most, and quantizes nothing."""
    main = mod["main"]
    types: set[str] = set()

    def visited(expr: Any) -> None:
        types.update(_types(getattr(expr, "ty", None)))

    relax.analysis.post_order_visit(main, visited)
    for param in main.params:
        types.update(_types(param.ty))
    return _FLOAT in types and types <= {_FLOAT, *_BESIDE_FLOATS} and not holds_quantized(main)


def _called(function: Any) -> list[str]:
    return [gv.name_hint for gv in functions_called(function.body)]


def _passes_on(function: Any, names: Collection[str]) -> bool:
    """Test whether a function among `names` is an argument of a call."""
    passed: set[str] = set()

    def visited(expr: Any) -> None:
        if isinstance(expr, relax.Call):
            passed.update(a.name_hint for a in expr.args if isinstance(a, GlobalVar))

    relax.analysis.post_order_visit(function, visited)
    return not passed.isdisjoint(names)


def _types(ty: Any) -> list[str]:
    """List a tensor's element type, or the types of all tensors in a tuple."""
    if isinstance(ty, relax.TupleType):
        return [t for f in ty.fields for t in _types(f)]
    return [str(ty.dtype)] if isinstance(ty, relax.TensorType) else []
