"""`RewriteForMemory`: fuses concats into consumers to lower peak memory (after Serenity, section 3.3).

A concat's consumer becomes a single PrimFunc that reads the parts from separate tensors, so the concatenated tensor is
never stored. Serenity splits the consumer into partial convolutions and adds the results. Exact integer arithmetic
would then need int32 sums for the whole map, which cost more memory than they save. Reading the parts needs next to no
memory (`schedules.rules.parts`), is exact, and also works if the concat rescales parts. Concats are removed only if
that lowers the best order's peak.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm

from tvm_cascade.graph import Graph
from tvm_cascade.operators.table import TAKES_PARTS
from tvm_cascade.ordering import OrderOptions, order
from tvm_cascade.ordering.rewriting import fold_concats
from tvm_cascade.passes import relax_functions
from tvm_cascade.passes.base import CascadePass, PassResult
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.operator_names import operator_names
from tvm_cascade.schedules.kernels.spec import read_attributes, with_spec
from tvm_cascade.schedules.tir import ir, is_if_then_else, relax, s_tir, tirx, tvm_ffi

ATTRIBUTE = "cascade_folded_concats"


@dataclass(frozen=True)
class RewriteForMemory(CascadePass):
    """Fuse concats into consumers if that lowers the peak of the best order.

    Requires a function `main` of straight-line code with static shapes; run it after `LowerQuantized` and before
    `OrderOps`. Ensures the same values bit for bit. The attribute `cascade_folded_concats` of `main` counts the concats
    removed.

    Before::

        c = R.call_tir(cls.concat, (a, b), out_ty=R.Tensor((1, 8, 8, 12), "int8"))
        y = R.call_tir(cls.conv2d, (c, w), out_ty=R.Tensor((1, 8, 8, 4), "int8"))

    After::

        y = R.call_tir(cls.concat_conv2d, (a, b, w), out_ty=R.Tensor((1, 8, 8, 4), "int8"))

    Raises `GraphError` if `main` is not straight-line code with static shapes.
    """

    options: OrderOptions | None = None  # of the search for the best order; None: the defaults

    def call(self, mod: tvm.IRModule) -> PassResult:
        """Fuse the concats if removing them lowers the peak."""
        names = paying_concats(extract_graph(mod).graph, self.options)
        return PassResult(without_concats(mod.clone(), names), bool(names))


def without_concats(mod: tvm.IRModule, names: Collection[str]) -> tvm.IRModule:
    """Fuse the concats in `names` (from `foldable`) into the consumers."""
    return _Folder(mod.clone(), names).run() if names else mod


def paying_concats(graph: Graph, options: OrderOptions | None = None) -> tuple[str, ...]:
    """Return the names of concats to remove for a lower peak of the best order; empty if removing all does not lower
    the peak.

    Starts from all foldable concats, then keeps each concat that does not contribute to the lower peak.
    """
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
    """Return the names of fusable concats: all consumers have kernels that can read parts."""
    found = []
    for op in graph.ops:
        readers = [graph.ops[c] for t in op.outputs for c in graph.consumers[t]]
        able = all(r.kind in TAKES_PARTS and len(r.inputs) == 1 for r in readers)
        goes = op.kind == "concat" and not op.view and not set(op.outputs) & set(graph.outputs)
        if goes and readers and able and len(set(op.inputs)) == len(op.inputs):
            found.append(op.name)
    return tuple(found)


class _Folder:
    """Rebuilds `main` with the chosen concats fused into the consumers."""

    def __init__(self, mod: Any, chosen: Collection[str]) -> None:
        self.mod, self.chosen = mod, chosen
        self.builder = relax_functions.without_main(mod)
        self.names = operator_names(mod["main"])
        self.folded: dict[Any, Any] = {}  # variable of a concat -> its call

    def run(self) -> tvm.IRModule:
        made = relax_functions.rewritten_main(self.mod, self.builder, self._value)
        made["main"] = made["main"].with_attr(ATTRIBUTE, len(self.folded))
        return made

    def _value(self, binding: Any, renamed: Mapping[Any, Any]) -> Any:
        value = binding.value
        if self.names.get(binding.var) in self.chosen:
            self.folded[binding.var] = value
            return None
        arguments = list(value.args[1].fields) if relax_functions.is_call_tir(value) else []
        at = next((k for k, a in enumerate(arguments) if a in self.folded), None)
        if at is None:
            return relax_functions.substitute(value, renamed)
        concat = self.folded[arguments.pop(at)]
        parts, rest = ([renamed.get(a, a) for a in own] for own in (concat.args[1].fields, arguments))
        gv = self.builder.add_func(self._fused(concat, value, parts, rest, at), f"concat_{value.args[0].name_hint}")
        return relax.op.call_tir(gv, [*parts, *rest], out_ty=value.ty_args[0])

    def _fused(self, concat: Any, call: Any, parts: Sequence[Any], rest: Sequence[Any], at: int) -> Any:
        """Build the PrimFunc of `call` with its argument `at`, `concat`, fused in; parameters: the parts, then the
        remaining arguments.
        """
        joining, reader = self.mod[concat.args[0]], self.mod[call.args[0]]

        def emit(builder: Any, params: list[Any]) -> Any:
            functions = [builder.add_func(_selecting(joining), "first"), builder.add_func(reader, "second")]
            inner, others = params[: len(parts)], params[len(parts) :]
            whole = builder.emit(relax.op.call_tir(functions[0], inner, out_ty=concat.ty_args[0]))
            return relax.op.call_tir(functions[1], [*others[:at], whole, *others[at:]], out_ty=call.ty_args[0])

        func = relax_functions.fused_function([a.ty for a in (*parts, *rest)], emit)
        return _inlined(func, joining, reader, sum(isinstance(a, relax.Var) for a in parts))


def _inlined(func: Any, concat: Any, reader: Any, activations: int) -> Any:
    """Inline the blocks of the concat and its padding, and set the fused function's attributes."""
    schedule = s_tir.Schedule(func)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    parts = s_tir.Schedule(concat)
    joining = len(parts.get_child_blocks(parts.get_sblock("root")))
    padding = [b for b in blocks[joining:] if "_pad" in str(schedule.get(b).name_hint)]
    for block in [*blocks[:joining], *padding]:
        schedule.compute_inline(block)
    attrs = {k: v for k, v in (reader.attrs or {}).items() if k != "global_symbol"}
    joined, kind = read_attributes(concat), f"concat_{attrs.get('op_kind', 'op')}"
    attributes = replace(read_attributes(reader), part_axis=joined.axis, table_of_part=joined.table_of_input)
    func = schedule.mod["main"].with_attr(attrs).without_attr("global_symbol")
    return with_spec(func, kind, activations, attributes)


def _selecting(concat: Any) -> Any:
    """Replace the concat's branches by selects between loads at clamped indices, which padding can inline."""

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
