"""Merging kernels that differ in integer constants: one function for all, with a parameter for each constant that differs.

    conv2d_1: for i in range(16): out[i * 32] = ...    -->   conv2d_1(..., n1, n2): for i in range(n1): out[i * n2] = ...
    conv2d_2: for i in range(8): out[i * 64] = ...           the driver calls conv2d_1(..., 16, 32) and conv2d_1(..., 8, 64)

Layers of a network repeat a few shapes of loops with other extents and strides. Without constants a kernel takes more
instructions, so that kernels are merged where few bytes of code count most, those that save enough bytes for it
(`schedules.tuning.merge_price`). Constants that are a multiple of a parameter, or of one plus a number, for all merged
kernels, are computed from the parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, Generic, TypeVar

from tvm.ir import GlobalVar, IRModule

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.schedules.tir import PASSES, Expr, PrimFunc, Var, i32, ir, substitute, tirx, tvm_ffi
from tvm_cascade.schedules.tir.aliasing import NOALIAS

Key = TypeVar("Key", bound=Hashable)
Column = tuple[int, ...]  # the values of a constant in the kernels of a group
_ARITHMETIC = ("tirx.shift_left", "tirx.shift_right", "tirx.bitwise_and", "tirx.bitwise_or", "tirx.bitwise_xor")
MOST_PARAMETERS = 12  # added to a kernel: with more of them calls take the bytes that a merged kernel saves


@dataclass(frozen=True)
class _Abstract:
    """A function with a variable in place of each int32 constant."""

    func: PrimFunc  # the variables follow the function's parameters
    variables: tuple[Var, ...]
    values: tuple[int, ...]
    apart: bool  # whether its pointers are to memory that is not shared


@dataclass(frozen=True)
class _Affine:
    """A constant computed from a parameter: `factor * parameter + term`."""

    parameter: int
    factor: int
    term: int


@dataclass(frozen=True)
class Merged(Generic[Key]):
    """A function in place of several, with the arguments that calls add for each of them, by its key; the first key is the
    function's own.
    """

    func: PrimFunc
    arguments: Mapping[Key, tuple[int, ...]]

    @property
    def key(self) -> Key:
        return next(iter(self.arguments))


# From functions and the number of their calls in an inference: the functions in place of those that are merged.
MergeChoice = Callable[[Mapping[Key, PrimFunc], Mapping[Key, int]], Sequence[Merged[Key]]]


def steps_of(plan: Plan) -> Counter[int]:
    """Count each operator's steps in an inference by a plan."""
    steps = Counter[int]()
    for segment in plan.segments:
        for o, count in Counter(segment.trace).items():
            steps[o] += count * max(len(segment.stripes), 1)
    return steps


def merge_kernels(
    mod: IRModule, driver: str, choice: MergeChoice[str], calls: Mapping[str, int]
) -> tuple[IRModule, dict[str, str]]:
    """Merge the kernels of `mod` that `choice` merges; return the module, and by the names of kernels that are gone the names of
    those called in their place by the function `driver`.

    `calls` counts a kernel's calls in an inference.
    """
    kernels = {gv.name_hint: func for gv, func in mod.functions_items() if gv.name_hint != driver}
    made = {merged.key: merged for merged in choice(kernels, calls)}
    places = {name: merged for merged in made.values() for name in merged.arguments}
    variables = {name: GlobalVar(name) for name in made}

    def call(node: Any, mutator: Any) -> Any:
        written = mutator.default_mutate(node)
        merged = places.get(node.op.name_hint) if isinstance(node.op, GlobalVar) else None
        if merged is None:
            return written
        added = [i32(value) for value in merged.arguments[node.op.name_hint]]
        return ir.Call(variables[merged.key], [*written.args, *added], ret_ty=node.ty)

    functions: dict[GlobalVar, PrimFunc] = {}
    for gv, func in mod.functions_items():
        if gv.name_hint in made:
            functions[variables[gv.name_hint]] = made[gv.name_hint].func
        elif gv.name_hint not in places:
            functions[gv] = func.with_body(tvm_ffi.structural_mutate(func.body, [(ir.Call, call)]))
    return IRModule(functions), {name: merged.key for name, merged in places.items() if name != merged.key}


def merged_functions(
    functions: Mapping[Key, PrimFunc], left_out: Callable[[Merged[Key]], Key | None] = lambda _: None
) -> list[Merged[Key]]:
    """Return the functions in place of those that differ in int32 constants alone.

    `left_out` returns the kernel that a merged function had better not replace, None if it is to replace all.
    """
    groups: dict[int, list[list[tuple[Key, _Abstract]]]] = {}
    for key, func in functions.items():
        _add(groups, key, _abstract(func))
    found = (_chosen(group, left_out) for own in groups.values() for group in own)
    return [merged for merged in found if merged is not None]


def _chosen(
    group: Sequence[tuple[Key, _Abstract]], left_out: Callable[[Merged[Key]], Key | None]
) -> Merged[Key] | None:
    """Merge a group's kernels, without those that are left out one by one; return None if fewer than two are left."""
    while (merged := _merge(group)) is not None and (key := left_out(merged)) is not None:
        group = [member for member in group if member[0] != key]
    return merged


def without_passes(func: PrimFunc) -> PrimFunc:
    """Return `func` without what loops tell of extents that are hidden from compilers, as merged functions are."""

    def loop(node: Any) -> Any:
        if PASSES not in node.annotations:
            return node
        kept = {name: value for name, value in node.annotations.items() if name != PASSES}
        return tirx.For(node.loop_var, node.min, node.extent, node.kind, node.body, node.thread_binding, kept)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, loop), order="post"))


def _abstract(func: PrimFunc) -> _Abstract:
    """Replace the int32 constants in `func` by variables, except constants that back ends or their simplifiers want as such."""
    variables: list[Var] = []
    values: list[int] = []

    def constant(node: Any, _: Any) -> Expr:
        if str(node.ty.dtype) != "int32":
            return node
        variables.append(tirx.Var(f"n{len(variables)}", "int32"))
        values.append(int(node.value))
        return variables[-1]

    def loop(node: Any, mutator: Any) -> Any:
        begin, extent = node.min, node.extent
        if node.kind == tirx.ForKind.SERIAL:
            begin, extent = mutator.mutate(begin), mutator.mutate(extent)
        body, kept = mutator.mutate(node.body), node.annotations
        return tirx.For(node.loop_var, begin, extent, node.kind, body, node.thread_binding, kept)

    def quotient(node: Any, mutator: Any) -> Expr:
        divisor = node.b if isinstance(node.b, tirx.IntImm) else mutator.mutate(node.b)
        return type(node)(mutator.mutate(node.a), divisor)

    def call(node: Any, mutator: Any) -> Expr:
        if getattr(node.op, "name", "") in _ARITHMETIC:
            return mutator.default_mutate(node)
        args = [arg if isinstance(arg, tirx.IntImm) else mutator.mutate(arg) for arg in node.args]
        return ir.Call(node.op, args, attrs=node.attrs, ret_ty=node.ty)

    entries = [
        (tirx.IntImm, constant),
        (tirx.For, loop),
        (ir.Call, call),
        *((kind, quotient) for kind in (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)),
        (tirx.Ramp, lambda node, mutator: tirx.Ramp(mutator.mutate(node.base), node.stride, node.lanes)),
        (tirx.Broadcast, lambda node, mutator: tirx.Broadcast(mutator.mutate(node.value), node.lanes)),
        *((kind, lambda node, _: node) for kind in (tirx.DeclBuffer, tirx.AllocBuffer)),
    ]
    body = tvm_ffi.structural_mutate(without_passes(func).body, entries)
    made = tirx.PrimFunc([*func.params, *variables], body, func.ret_type, attrs=func.attrs).without_attr(NOALIAS)
    return _Abstract(made, tuple(variables), tuple(values), NOALIAS in (func.attrs or {}))


def _add(groups: dict[int, list[list[tuple[Key, _Abstract]]]], key: Key, form: _Abstract) -> None:
    """Add a kernel to the group with the same structure, or to a new one; groups are listed by the structure's hash."""
    own = groups.setdefault(tvm_ffi.structural_hash(form.func), [])
    group = next((g for g in own if tvm_ffi.structural_equal(g[0][1].func, form.func)), None)
    if group is None:
        own.append(group := [])
    group.append((key, form))


def _merge(group: Sequence[tuple[Key, _Abstract]]) -> Merged[Key] | None:
    """Return the function for a group's kernels; None if the group has a single kernel, or too many constants differ."""
    if len(group) < 2:
        return None
    first = group[0][1]
    columns = list(zip(*(form.values for _, form in group), strict=True))
    parameters, affine = _parameters({column for column in columns if len(set(column)) > 1})
    if len(parameters) > MOST_PARAMETERS:
        return None
    added = [tirx.Var(f"n{k}", "int32") for k in range(len(parameters))]
    values = {
        variable: _value(affine[column], added) if column in affine else i32(column[0])
        for variable, column in zip(first.variables, columns, strict=True)
    }
    own = first.func.params[: len(first.func.params) - len(columns)]
    func = tirx.PrimFunc(
        [*own, *added], substitute(first.func.body, values), first.func.ret_type, attrs=first.func.attrs
    )
    if all(form.apart for _, form in group):
        func = func.with_attr(NOALIAS, True)
    return Merged(func, {key: tuple(p[k] for p in parameters) for k, (key, _) in enumerate(group)})


def _parameters(columns: Iterable[Column]) -> tuple[list[Column], dict[Column, _Affine]]:
    """Choose parameters among the constants that differ, small values first; say how each constant is computed of one."""
    parameters: list[Column] = []
    affine: dict[Column, _Affine] = {}
    for column in sorted(columns, key=lambda values: (max(map(abs, values)), values)):
        found = next((f for k, p in enumerate(parameters) if (f := _fitted(k, p, column)) is not None), None)
        if found is None:
            factor = gcd(*column)  # told to the compiler: what is divisible stays so
            found = _Affine(len(parameters), factor, 0)
            parameters.append(tuple(value // factor for value in column))
        affine[column] = found
    return parameters, affine


def _fitted(index: int, parameter: Column, column: Column) -> _Affine | None:
    """Return integers by which `column` is affine in `parameter`, the one numbered `index`; None if there are none."""
    other = next(k for k, value in enumerate(parameter) if value != parameter[0])
    factor, rest = divmod(column[other] - column[0], parameter[other] - parameter[0])
    term = column[0] - factor * parameter[0]
    if rest or any(factor * p + term != value for p, value in zip(parameter, column, strict=True)):
        return None
    if max(abs(term), *(abs(factor * p) for p in parameter)) >= 1 << 31:  # computed in int32
        return None
    return _Affine(index, factor, term)


def _value(affine: _Affine, added: Sequence[Var]) -> Expr:
    scaled = added[affine.parameter] if affine.factor == 1 else added[affine.parameter] * i32(affine.factor)
    return scaled + i32(affine.term) if affine.term else scaled
