"""Outlining of a dataflow block's region: extracts the region into a separate module, and leaves a single call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm_cascade.passes.relax_functions import add_function, substitute
from tvm_cascade.passes.states import STATES_ATTR
from tvm_cascade.passes.static_regions import Output, Region
from tvm_cascade.schedules.tir import ir, relax, tvm_ffi


def outlined(mod: Any, region: Region, attrs: Mapping[str, Any] | None = None) -> Any:
    """Extract a module with a `main` that computes the outputs of `region` from the inputs, with the called functions.

    `attrs` are the attributes of the function around the region; `main` gets them all but `global_symbol`.

    Before, in a function of `mod`::

        a = R.nn.conv2d(x, w)     # the region
        b = R.nn.relu(a)          # the region
        c = R.sort(b)

    After::

        def main(x): a = R.nn.conv2d(x, w); b = R.nn.relu(a); return b
    """
    called = {g for b in region.bindings for g in functions_called(b.value)}
    builder = relax.BlockBuilder(ir.IRModule({g: mod[g] for g in mod.get_global_vars() if g in called}))
    renamed: dict[Any, Any] = {v: relax.Var(v.name, v.ty) for v in region.inputs}
    others = ("global_symbol", STATES_ATTR)  # a region is a pure function: states are inputs and outputs of its caller
    notes = {str(k): v for k, v in (attrs or {}).items() if str(k) not in others}

    def emit() -> Any:
        for binding in region.bindings:
            renamed[binding.var] = builder.emit(substitute(binding.value, renamed), name_hint=binding.var.name)
        results = []
        for output in region.outputs:
            value = renamed[output.var]
            results.append(value if output.field is None else builder.emit(relax.TupleGetItem(value, output.field)))
        return results[0] if len(results) == 1 else results

    add_function(builder, "main", list(renamed.values()), emit, attrs=notes)
    return builder.get()


def functions_called(expr: Any) -> list[Any]:
    """List the distinct global variables in an expression, in post-order."""
    found: dict[Any, None] = {}
    tvm_ffi.structural_map(expr, [(ir.GlobalVar, lambda g: found.setdefault(g) or g)], order="post")
    return list(found)


def region_call(region: Region, entry: Any, constants: Sequence[Any], workspaces: Sequence[Any]) -> list[Any]:
    """Build the bindings that replace a region: a `call_tir` to `entry`, and bindings for the region's output
    variables.

    `entry` takes the inputs and `constants`, and writes the outputs and a further tensor per type in `workspaces`.
    """
    results = [_type(o) for o in region.outputs]
    call = relax.op.call_tir(entry, [*region.inputs, *constants], out_ty=[*results, *workspaces])
    packed = relax.DataflowVar(entry.name_hint, relax.TupleType([*results, *workspaces]))
    made, fields = [_binding(packed, call)], dict[Any, list[Any]]()
    for k, output in enumerate(region.outputs):
        part = output.var
        if output.field is not None:
            part = relax.DataflowVar(f"{output.var.name}_{output.field}", results[k])
            fields.setdefault(output.var, []).append(part)
        made.append(_binding(part, relax.TupleGetItem(packed, k)))
    return [*made, *(_binding(v, relax.Tuple(parts)) for v, parts in fields.items())]


def _binding(var: Any, value: Any) -> Any:
    return relax.VarBinding(var, relax.BlockBuilder().normalize(value))


def _type(output: Output) -> Any:
    ty = output.var.ty if output.field is None else output.var.ty.fields[output.field]
    return relax.TensorType([int(d) for d in ty.shape.values], ty.dtype)
