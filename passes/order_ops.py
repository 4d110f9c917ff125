"""`OrderOps`: memory-aware reordering of the operators in `main`, to minimize peak memory (Serenity, section 3.1).

`tvm_cascade.ordering` computes the order. Later consumers that follow program order (memory planning, `extract_graph`)
inherit it. The attribute `cascade_order` of `main` holds the order's peak and a lower bound, both in bytes, and whether
the order is proved optimal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.ir import IRModule

from tvm_cascade.errors import GraphError
from tvm_cascade.ordering import Ordering, OrderOptions, order
from tvm_cascade.passes.base import CascadePass, PassResult
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.relax_functions import bindings_of
from tvm_cascade.passes.relax_ops import legalize
from tvm_cascade.schedules.tir import relax
from tvm_cascade.search_monitor import SearchMonitor

ATTRIBUTE = "cascade_order"


@dataclass(frozen=True)
class OrderOps(CascadePass):
    """Reorder `main`'s operators to minimize the peak bytes of live tensors.

    Requires a function `main` with one dataflow block and static shapes. Ensures equal values from the same operators.
    If `main` holds Relax operators that legalize to several PrimFuncs, or to none, the result is legalized.

    Before, `a` and `b`, of 64 bytes each, are alive at once::

        a = R.call_tir(cls.wide, (x,), out_ty=R.Tensor((64,), "int8"))
        b = R.call_tir(cls.wide_1, (x,), out_ty=R.Tensor((64,), "int8"))
        c = R.call_tir(cls.narrow, (a,), out_ty=R.Tensor((4,), "int8"))
        d = R.call_tir(cls.narrow_1, (b,), out_ty=R.Tensor((4,), "int8"))

    After, `a` is dead before `b` is computed::

        a = R.call_tir(cls.wide, (x,), out_ty=R.Tensor((64,), "int8"))
        c = R.call_tir(cls.narrow, (a,), out_ty=R.Tensor((4,), "int8"))
        b = R.call_tir(cls.wide_1, (x,), out_ty=R.Tensor((64,), "int8"))
        d = R.call_tir(cls.narrow_1, (b,), out_ty=R.Tensor((4,), "int8"))

    Raises `GraphError` for a function `main` other than straight-line code in a single block.
    """

    options: OrderOptions | None = None  # of the search; None: the defaults
    time_limit: float | None = None  # seconds, after which the best order so far is taken; None: no limit

    def call(self, mod: IRModule) -> PassResult:
        """Reorder the module's operators; `main` gets the attribute `cascade_order`."""
        source = mod.clone()
        graph = extract_graph(source).graph
        with SearchMonitor(self.time_limit):
            solution = order(graph, self.options)
        if _calls(source) != _calls(legal := legalize(source)):
            source = legal
        return PassResult.compare(mod, reordered(source, solution))


def _is_call(binding: Any) -> bool:
    return isinstance(binding.value, relax.Call)


def _calls(mod: Any) -> int:
    """Count the calls in `main`; raise `GraphError` unless there is exactly one binding block."""
    blocks = len(mod["main"].body.blocks)
    if blocks != 1:
        raise GraphError(f"main has {blocks} binding blocks: only one dataflow block can be reordered")
    return sum(map(_is_call, bindings_of(mod["main"])))


def reordered(mod: Any, solution: Ordering) -> IRModule:
    """Order the calls of `main` by `solution.order`, a permutation of operator indices (k is the k-th call).

    Indices beyond the number of calls are copies added for outputs by `extract_graph`; they have no binding.
    """
    bindings = bindings_of(mod["main"])
    calls = [b for b in bindings if _is_call(b)]
    sequence = [calls[i] for i in solution.order if i < len(calls)]
    main = mod["main"]
    block = relax.DataflowBlock(_with_followers(sequence, bindings))
    body = relax.SeqExpr([block], main.body.body)
    note = {"peak_bytes": solution.peak, "bound_bytes": solution.bound, "optimal": solution.optimal}
    func = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs).with_attr(ATTRIBUTE, note)
    mod = mod.clone()
    mod.update_func(mod.get_global_var("main"), func)
    return mod


def _with_followers(sequence: Sequence[Any], bindings: Sequence[Any]) -> list[Any]:
    """List the calls in `sequence`, each followed by non-call bindings for which it is the last dependence."""
    place = {b.var: k for k, b in enumerate(sequence)}  # position of a call; of another binding, of its last dependence
    followers: list[list[Any]] = [[] for _ in (None, *sequence)]  # entry 0: bindings that depend on no call
    for binding in bindings:
        if not _is_call(binding):
            reads = relax.analysis.all_vars(binding.value)
            place[binding.var] = max((place[v] for v in reads if v in place), default=-1)
            followers[place[binding.var] + 1].append(binding)
    return [*followers[0], *(b for call, after in zip(sequence, followers[1:], strict=True) for b in (call, *after))]
