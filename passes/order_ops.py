"""`OrderOps`: the bindings of `main` in the order of least memory (Serenity, section 3.1).

Before: operators stand as the file lists them. After: the same operators on the same values, in the order that
`tvm_cascade.ordering` finds; the attribute `cascade_order` says whether it is optimal and what it needs. Whatever reads
the module next in program order (memory planning, `extract_graph`) gets that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm

from tvm_cascade.errors import GraphError
from tvm_cascade.ordering import Ordering, OrderOptions, order
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.relax_ops import legalize
from tvm_cascade.schedules.tir import relax

ATTRIBUTE = "cascade_order"


class OrderOps:
    """The pass. Requires straight-line code with static shapes; the input module is unchanged.

    A module whose calls are not one operator each (it holds Relax operators that legalize to several, or to none) comes
    back legalized.
    """

    def __new__(cls, options: OrderOptions | None = None) -> Any:  # a tvm.ir.transform.Pass
        @tvm.ir.transform.module_pass(opt_level=0, name="tvm_cascade.OrderOps")
        def apply(mod: tvm.IRModule, _context: tvm.ir.transform.PassContext) -> tvm.IRModule:
            source = mod.clone()
            graph = extract_graph(source).graph
            found = order(graph, options)
            if _calls(source) != _calls(legal := legalize(source)):
                source = legal
            return reordered(source, found)

        return apply


def _bindings(mod: Any) -> list[Any]:
    blocks = mod["main"].body.blocks
    if len(blocks) != 1:
        raise GraphError(f"main has {len(blocks)} binding blocks: only one dataflow block can be reordered")
    return list(blocks[0].bindings)


def _is_call(binding: Any) -> bool:
    return isinstance(binding.value, relax.Call)


def _calls(mod: Any) -> int:
    return sum(_is_call(b) for b in _bindings(mod))


def reordered(mod: Any, found: Ordering) -> tvm.IRModule:
    """`mod` with the k-th call of `main` moved to where `found.order` has operator k.

    Operators beyond the calls are copies that the graph adds for outputs; they have no binding.
    """
    bindings = _bindings(mod)
    calls = [b for b in bindings if _is_call(b)]
    sequence = [calls[i] for i in found.order if i < len(calls)]
    main = mod["main"]
    block = relax.DataflowBlock(_with_followers(sequence, bindings))
    body = relax.SeqExpr([block], main.body.body)
    note = {"peak_bytes": found.peak, "bound_bytes": found.bound, "optimal": found.optimal}
    func = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs).with_attr(ATTRIBUTE, note)
    mod = mod.clone()
    mod.update_func(mod.get_global_var("main"), func)
    return mod


def _with_followers(sequence: Sequence[Any], bindings: Sequence[Any]) -> list[Any]:
    """The calls in `sequence`, each other binding as early as what it reads is there."""
    made = {b.var for b in bindings}
    waiting = [b for b in bindings if not _is_call(b)]
    placed: list[Any] = []
    there: set[Any] = set()
    for call in [None, *sequence]:
        if call is not None:
            placed.append(call)
            there.add(call.var)
        ready = [b for b in waiting if _reads(b.value, made) <= there]
        while ready:
            placed += ready
            there |= {b.var for b in ready}
            waiting = [b for b in waiting if b.var not in there]
            ready = [b for b in waiting if _reads(b.value, made) <= there]
    return placed


def _reads(expr: Any, made: set[Any]) -> set[Any]:
    return {v for v in relax.analysis.all_vars(expr) if v in made}
