"""`RewriteForMemory`: concats that never exist (Serenity, section 3.3, in the form that pays).

Before: `c = concat(a, b); y = conv2d(c, w)`. After: `y = concat_conv2d(a, b, w)`, one PrimFunc that reads each part
where it lies. The paper's form, partial convolutions that add up, needs int32 sums of the whole map to be exact in
integers and then costs more than it saves; reading the parts costs next to no memory (`schedules.rules.parts`), keeps every
bit, and works for any consumer, also where the concat rescales its parts. Concats are removed only where that lowers the
peak of the best order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm

from tvm_cascade.graph import Graph
from tvm_cascade.ordering import OrderOptions, order
from tvm_cascade.ordering.rewriting import fold_concats
from tvm_cascade.passes.base import CascadePass, PassResult
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.schedules.kernels.spec import read_attributes, with_spec
from tvm_cascade.schedules.tir import ir, is_if_then_else, relax, s_tir, tirx, tvm_ffi

_READERS = frozenset(("conv2d", "depthwise_conv2d", "avg_pool2d", "max_pool2d", "relu", "requantize", "lut"))
ATTRIBUTE = "cascade_folded_concats"


@dataclass(frozen=True)
class RewriteForMemory(CascadePass):
    """Fuse concats into their readers where that lowers the peak of the best order.

    Requires a function `main` of straight-line code with static shapes; run it after `LowerQuantized` and before
    `OrderOps`. Ensures the same values bit for bit. The attribute `cascade_folded_concats` of `main` counts the concats
    removed.

    Before::

        c = R.call_tir(cls.concat, (a, b), out_ty=R.Tensor((1, 8, 8, 12), "int8"))
        y = R.call_tir(cls.conv2d, (c, w), out_ty=R.Tensor((1, 8, 8, 4), "int8"))

    After::

        y = R.call_tir(cls.concat_conv2d, (a, b, w), out_ty=R.Tensor((1, 8, 8, 4), "int8"))
    """

    options: OrderOptions | None = None  # of the search for the best order; None: the defaults

    def call(self, mod: tvm.IRModule) -> PassResult:
        """The module without the concats that pay."""
        names = paying_concats(extract_graph(mod).graph, self.options)
        return PassResult(without_concats(mod.clone(), names), bool(names))


def without_concats(mod: tvm.IRModule, names: Collection[str]) -> tvm.IRModule:
    """`mod` with the concats of those names, as `foldable` lists them, fused into their readers."""
    return _Folder(mod.clone()).run(set(names)) if names else mod


def paying_concats(graph: Graph, options: OrderOptions | None = None) -> tuple[str, ...]:
    """Names of the concats whose removal lowers the peak of the best order: as few as reach the lowest."""
    names = foldable(graph)
    best = order(fold_concats(graph, names), options).peak if names else 0
    if not names or best >= order(graph, options).peak:
        return ()
    kept = set(names)
    for name in names:
        if order(fold_concats(graph, kept - {name}), options).peak <= best:
            kept.remove(name)
    return tuple(n for n in names if n in kept)


def foldable(graph: Graph) -> tuple[str, ...]:
    """Concats that only operators read whose kernels can read the parts instead."""
    found = []
    for op in graph.ops:
        readers = [graph.ops[c] for t in op.outputs for c in graph.consumers[t]]
        able = all(r.kind in _READERS and len(r.inputs) == 1 for r in readers)
        if op.kind == "concat" and not op.view and readers and able and len(set(op.inputs)) == len(op.inputs):
            found.append(op.name)
    return tuple(n for n in found if not {t for o in graph.ops if o.name == n for t in o.outputs} & set(graph.outputs))


class _Folder:
    """Rebuilds `main` with the chosen concats fused into their readers."""

    def __init__(self, mod: Any) -> None:
        self.mod = mod
        self.builder = relax.BlockBuilder(
            tvm.IRModule({g: f for g, f in mod.functions.items() if g.name_hint != "main"})
        )
        self.folded: dict[Any, Any] = {}  # variable of a concat -> its call

    def run(self, chosen: set[str]) -> tvm.IRModule:
        main = self.mod["main"]
        names = operator_names(main)
        renamed: dict[Any, Any] = {}
        with self.builder.function("main", list(main.params), attrs=dict(main.attrs or {})):
            with self.builder.dataflow():
                for block in main.body.blocks:
                    for binding in block.bindings:
                        if names.get(binding.var) in chosen:
                            self.folded[binding.var] = binding.value
                            continue
                        value = self._value(binding.value, renamed)
                        renamed[binding.var] = self.builder.emit(value, name_hint=binding.var.name)
                result = self.builder.emit_output(substitute(main.body.body, renamed))
            self.builder.emit_func_output(result)
        made = self.builder.finalize()
        func = made["main"].with_attr(ATTRIBUTE, len(self.folded))
        made.update_func(made.get_global_var("main"), func)
        return relax.transform.DeadCodeElimination()(made)

    def _value(self, value: Any, renamed: dict[Any, Any]) -> Any:
        if isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_tir":
            arguments = list(value.args[1].fields)
            at = next((k for k, a in enumerate(arguments) if a in self.folded), None)
            if at is not None:
                return self._fused(value, arguments, at, renamed)
        return substitute(value, renamed)

    def _fused(self, call: Any, arguments: list[Any], at: int, renamed: dict[Any, Any]) -> Any:
        concat = self.folded[arguments[at]]
        first, second = self.mod[concat.args[0]], self.mod[call.args[0]]
        parts = [substitute(a, renamed) for a in concat.args[1].fields]
        rest = [substitute(a, renamed) for k, a in enumerate(arguments) if k != at]
        func = reading_parts(first, second, parts, rest, at, call.ty_args[0], concat.ty_args[0])
        gv = self.builder.add_func(func, f"concat_{call.args[0].name_hint}")
        return relax.op.call_tir(gv, [*parts, *rest], out_ty=call.ty_args[0])


def reading_parts(
    concat: Any, reader: Any, parts: Sequence[Any], rest: Sequence[Any], at: int, out: Any, joined: Any
) -> Any:
    """The PrimFunc of `reader` on the parts of `concat`: parts, then its other arguments, then its output.

    Parameters
    ----------
    at : int
        Which argument of `reader` the concat is.
    out, joined : relax types
        Of the reader's output and of the concat's.
    """
    builder = relax.BlockBuilder(tvm.IRModule({}))
    calls = [builder.add_func(_selecting(concat), "first"), builder.add_func(reader, "second")]
    params = [relax.Var(f"a{k}", a.ty) for k, a in enumerate([*parts, *rest])]
    inner, others = params[: len(parts)], params[len(parts) :]
    with builder.function("fused", params, attrs={"Primitive": 1}, private=True):
        with builder.dataflow():
            whole = builder.emit(relax.op.call_tir(calls[0], inner, out_ty=joined))
            arguments = [*others[:at], whole, *others[at:]]
            result = builder.emit_output(relax.op.call_tir(calls[1], arguments, out_ty=out))
        builder.emit_func_output(result)
    made = builder.finalize()
    outer = relax.BlockBuilder(made)
    params = [relax.Var(f"a{k}", a.ty) for k, a in enumerate([*parts, *rest])]
    with outer.function("main", params):
        with outer.dataflow():
            gv = outer.emit_output(outer.emit(relax.Call(made.get_global_var("fused"), params)))
        outer.emit_func_output(gv)
    fused = relax.transform.FuseTIR()(outer.finalize())
    func = next(f for g, f in fused.functions.items() if g.name_hint == "fused")
    activations = sum(isinstance(a, relax.Var) for a in parts)
    return _inlined(func, concat, reader, activations)


def _inlined(func: Any, concat: Any, reader: Any, activations: int) -> Any:
    """Inline the concat and what pads it, and say what the function is."""
    schedule = s_tir.Schedule(func)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    joining = _blocks(concat)
    padding = [b for b in blocks[joining:] if "_pad" in str(schedule.get(b).name_hint)]
    for block in [*blocks[:joining], *padding]:
        schedule.compute_inline(block)
    attrs = {k: v for k, v in (reader.attrs or {}).items() if k != "global_symbol"}
    joined, kind = read_attributes(concat), f"concat_{attrs.get('op_kind', 'op')}"
    attributes = replace(read_attributes(reader), part_axis=joined.axis, table_of_part=joined.table_of_input)
    func = schedule.mod["main"].with_attr(attrs).without_attr("global_symbol")
    return with_spec(func, kind, activations, attributes)


def _selecting(concat: Any) -> Any:
    """The concat with branches turned into selections between clamped loads, so that padding may stand around it."""

    def load(node: Any) -> Any:
        extents = [int(d) for d in node.source.ty.shape]
        clamped = [tirx.max(tirx.min(i, tirx.const(e - 1, "int32")), tirx.const(0, "int32")) if e > 1 else i
                   for i, e in zip(node.indices, extents, strict=True)]  # fmt: skip
        return tirx.BufferLoad(node.source, clamped)

    def branch(node: Any) -> Any:
        return tirx.Select(*node.args) if is_if_then_else(node) else node

    body = tvm_ffi.structural_map(concat.body, (ir.TensorLoad, load), order="post")
    body = tvm_ffi.structural_map(body, (ir.Call, branch), order="post")
    return tirx.PrimFunc(concat.params, body, concat.ret_type, attrs=concat.attrs)


def _blocks(func: Any) -> int:
    schedule = s_tir.Schedule(func)
    return len(schedule.get_child_blocks(schedule.get_sblock("root")))


def operator_names(main: Any) -> dict[Any, str]:
    """Names that `extract_graph` gives to the operators of the calls, by variable."""
    found: dict[Any, str] = {}
    seen: dict[str, int] = {}

    def unique(name: str) -> str:
        count = seen.get(name, 0)
        seen[name] = count + 1
        return name if count == 0 else unique(f"{name}_{count}")

    for p in main.params:
        unique(p.name)
    for block in main.body.blocks:
        for b in block.bindings:
            if isinstance(b.value, relax.Call) and getattr(b.value.op, "name", "") == "relax.call_tir":
                found[b.var] = unique(b.value.args[0].name_hint.strip("_") or "op")
    return found


def substitute(expr: Any, renamed: dict[Any, Any]) -> Any:
    if isinstance(expr, relax.Var):
        return renamed.get(expr, expr)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([substitute(f, renamed) for f in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(substitute(expr.tuple_value, renamed), expr.index)
    if isinstance(expr, relax.Call):
        return relax.Call(expr.op, [substitute(a, renamed) for a in expr.args], expr.attrs, expr.ty_args)
    return expr
