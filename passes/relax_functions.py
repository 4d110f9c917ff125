"""Helpers for Relax IR: traversing and rebuilding functions, fusing calls into one PrimFunc, caching by structure."""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from tvm import relax
from tvm.ir import IRModule, Type

from tvm_cascade.passes.origin import file_name
from tvm_cascade.schedules.tir import tvm_ffi

T = TypeVar("T")
OF_OTHERS = ("Codegen", "Composite", "Primitive")  # attributes of functions that are left to other TVM passes


class ByStructure(Generic[T]):
    """A cache keyed by TVM nodes; structurally equal nodes share a single value."""

    def __init__(self) -> None:
        self._known: dict[int, list[tuple[Any, T]]] = {}

    def get(self, node: Any, make: Callable[[], T]) -> T:
        """Return a node's value; `make` computes the value for the first node with the same structure."""
        known = self._known.setdefault(tvm_ffi.structural_hash(node), [])
        for other, value in known:
            if tvm_ffi.structural_equal(other, node):
                return value
        known.append((node, make()))
        return known[-1][1]


class UniqueNames:
    """Generator of unique names, none in `taken`: the second `conv` is `conv_1`."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._taken = set(taken)

    def __call__(self, name: str) -> str:
        free, count = name, 0
        while free in self._taken:
            count += 1
            free = f"{name}_{count}"
        self._taken.add(free)
        return free


def substitute(expr: Any, variables: Mapping[Any, Any]) -> Any:
    """Replace every variable in `expr` that is a key of `variables` by the value."""
    return tvm_ffi.structural_map(expr, [(relax.Var, lambda var: variables.get(var, var))], order="post")


def typed(expr: Any, ty: Any) -> Any:
    """Set the type `ty` on `expr` if it has none: well-formed functions have no expression without a type."""
    if type(expr.ty) is Type:
        relax.expr._update_type(expr, ty)  # pyright: ignore[reportPrivateUsage]
    return expr


def sequence(blocks: Sequence[Any], result: Any) -> Any:
    """Build a function's body: binding blocks, and the result."""
    return typed(relax.SeqExpr(list(blocks), result), result.ty)


def same_module(one: IRModule, other: IRModule) -> bool:
    """Return True if two modules have equal functions and attributes.

    Runtime modules in an attribute, such as `external_mods`, have no comparable structure: they are equal only if
    identical.
    """
    attributes = [dict(m.attrs or {}) for m in (one, other)]
    if attributes[0].keys() != attributes[1].keys():
        return False
    pairs = [(attributes[0][name], attributes[1][name]) for name in attributes[0]]
    return all(_same_attribute(a, b) for a, b in pairs) and tvm_ffi.structural_equal(
        IRModule(one.functions), IRModule(other.functions)
    )


def _same_attribute(one: Any, other: Any) -> bool:
    try:
        return bool(tvm_ffi.structural_equal(one, other))
    except TypeError:
        return one.same_as(other)


def bindings_of(func: Any) -> list[Any]:
    """List the bindings of all blocks in a function, in order."""
    return [binding for block in func.body.blocks for binding in block.bindings]


def without_dead_code(mod: IRModule) -> IRModule:
    """Remove unread bindings and PrimFuncs from `mod`; keep all Relax functions, private ones too."""
    names = [gv.name_hint for gv, func in mod.functions.items() if isinstance(func, relax.Function)]
    return relax.transform.DeadCodeElimination(names)(mod)


def is_call_tir(value: Any) -> bool:
    """Return True if a value is a `call_tir`."""
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_tir"


def called_functions(mod: Any, name: str = "main") -> Iterator[Any]:
    """Yield the global variable of each `call_tir` in a function, in program order, with repetitions."""
    return (b.value.args[0] for b in bindings_of(mod[name]) if is_call_tir(b.value))


def add_function(builder: Any, name: str, params: Sequence[Any], emit: Callable[[], Any], **options: Any) -> Any:
    """Add a function with a single dataflow block to a builder's module; return its global variable.

    `emit` emits the bindings and returns the result: a value, or a list of values returned as a tuple. `options` go to
    `relax.BlockBuilder.function`.
    """
    with builder.function(name, list(params), **options):
        with builder.dataflow():
            made = emit()
            result = [_output(builder, v) for v in made] if isinstance(made, list) else _output(builder, made)
        return builder.emit_func_output(relax.Tuple(result) if isinstance(result, list) else result)


def rewritten_main(mod: Any, builder: Any, value_of: Callable[[Any, Mapping[Any, Any]], Any]) -> IRModule:
    """Return the builder's module with `main` of `mod`, each binding rewritten by `value_of`, after dead code
    elimination.

    `value_of(binding, renamed)` is a binding's new value, None to drop the binding; `renamed` maps earlier bindings'
    variables to new variables.
    """
    main, renamed = mod["main"], {}

    def emit() -> Any:
        for binding in bindings_of(main):
            value = value_of(binding, renamed)
            if value is not None:
                renamed[binding.var] = builder.emit(value, name_hint=binding.var.name)
        return substitute(main.body.body, renamed)

    add_function(builder, "main", main.params, emit, attrs=dict(main.attrs or {}))
    return relax.transform.DeadCodeElimination()(builder.finalize())


def _output(builder: Any, value: Any) -> Any:
    """Emit an output, under the name that the value has in the model's file."""
    known = isinstance(value, relax.Var) and file_name(value.name) is not None
    return builder.emit_output(value, name_hint=value.name if known else "")


def without_main(mod: Any) -> Any:
    """Return a builder with all functions of `mod` except `main`."""
    return relax.BlockBuilder(IRModule({g: f for g, f in mod.functions.items() if g.name_hint != "main"}))


def fused_function(types: Sequence[Any], emit: Callable[[Any, list[Any]], Any]) -> Any:
    """Fuse the PrimFunc calls emitted by `emit(builder, parameters)` into one PrimFunc; `types` are the parameters'."""
    builder = relax.BlockBuilder()
    inner, outer = (list[Any](relax.Var(f"a{k}", ty) for k, ty in enumerate(types)) for _ in range(2))
    options = {"attrs": {"Primitive": 1}, "private": True}
    fused = add_function(builder, "fused", inner, lambda: emit(builder, inner), **options)
    add_function(builder, "main", outer, lambda: builder.emit(relax.Call(fused, outer)))
    mod = relax.transform.FuseTIR()(builder.finalize())
    return mod[next(called_functions(mod))]
