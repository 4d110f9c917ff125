"""A region of a dataflow block as a module of its own, which can be planned, and back as one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tvm_cascade.passes.rename_variables import substitute
from tvm_cascade.passes.static_regions import Output, Region
from tvm_cascade.schedules.tir import ir, relax


def outlined(mod: Any, region: Region, attrs: Mapping[str, Any] | None = None) -> Any:
    """A module whose `main` computes the outputs of `region` from its inputs, with the PrimFuncs that it calls.

    `attrs` are the attributes of the function that holds the region; those that passes left for one another go along.

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
    notes = {str(k): v for k, v in (attrs or {}).items() if str(k) != "global_symbol"}
    with builder.function("main", list(renamed.values()), attrs=notes):
        with builder.dataflow():
            for binding in region.bindings:
                value = substitute(binding.value, renamed)
                renamed[binding.var] = builder.emit(value, name_hint=binding.var.name)
            results = [builder.emit_output(_output(builder, renamed, o)) for o in region.outputs]
        builder.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    return builder.get()


def _output(builder: Any, renamed: dict[Any, Any], output: Output) -> Any:
    value = renamed[output.var]
    return value if output.field is None else builder.emit(relax.TupleGetItem(value, output.field))


def functions_called(expr: Any) -> list[Any]:
    """The global variables in an expression, in the order in which they are met."""
    found: list[Any] = []
    relax.analysis.post_order_visit(expr, lambda e: found.append(e) if isinstance(e, ir.GlobalVar) else None)
    return list(dict.fromkeys(found))


def region_call(region: Region, entry: Any, constants: Sequence[Any], workspaces: Sequence[Any]) -> list[Any]:
    """Bindings that call `entry` in place of the region and give its outputs their variables.

    `entry` takes the inputs and `constants`, and writes the outputs and the tensors of the types `workspaces`.
    """
    results = [_type(o) for o in region.outputs]
    call = relax.op.call_tir(entry, [*region.inputs, *constants], out_ty=[*results, *workspaces])
    packed = relax.DataflowVar(entry.name_hint, relax.TupleType([*results, *workspaces]))
    made = [relax.VarBinding(packed, relax.BlockBuilder().normalize(call))]
    fields: dict[Any, list[Any]] = {}
    for k, output in enumerate(region.outputs):
        item = relax.BlockBuilder().normalize(relax.TupleGetItem(packed, k))
        if output.field is None:
            made.append(relax.VarBinding(output.var, item))
            continue
        part = relax.DataflowVar(f"{output.var.name}_{output.field}", results[k])
        made.append(relax.VarBinding(part, item))
        fields.setdefault(output.var, []).append(part)
    return [*made, *_tuples(fields.items())]


def _tuples(fields: Iterable[tuple[Any, list[Any]]]) -> list[Any]:
    return [relax.VarBinding(v, relax.BlockBuilder().normalize(relax.Tuple(parts))) for v, parts in fields]


def _type(output: Output) -> Any:
    ty = output.var.ty if output.field is None else output.var.ty.fields[output.field]
    return relax.TensorType([int(d) for d in ty.shape.values], ty.dtype)
