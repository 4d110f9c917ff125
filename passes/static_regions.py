"""Static regions: partitions a dataflow block into convex sets of bindings that `Cascade` can plan; TVM keeps the rest.

A binding is supported if it is an operator over static-shape tensors that compiles to TIR alone. A binding's level is
the largest number of transitions from a supported to an unsupported binding on any path to it. All supported bindings
on a level form a region. A path that leaves a region and returns would pass an unsupported binding, and therefore end
at a higher level: regions are convex. Levels run in ascending order; within a level the unsupported bindings run before
the region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_cascade.graph import ITEM_BYTES
from tvm_cascade.passes.relax_functions import bindings_of
from tvm_cascade.schedules.tir import ir, relax, s_tir, tirx, tvm_ffi

Binding = Any  # of a variable to a value in a Relax function
Var = Any  # a Relax variable

_CALLS_OUT = {
    "call_builtin_with_ctx", "call_dps_packed", "call_inplace_packed", "call_py_func", "call_pure_packed",
    "call_tir_inplace", "call_tir_with_grad", "invoke_closure", "invoke_pure_closure",
}  # fmt: skip
# operators that allocate, or view memory as another type
_OF_THE_MACHINE = ("relax.memory.", "relax.builtin.", "relax.vm.")
# TVM has libraries or kernels of its own for these, before legalization
_DISPATCHED = {"cumprod", "cumsum", "multinomial_from_uniform"}
FOLLOWS = ""  # reason of a tuple, tuple item or alias that is unsupported only because its operand is


Reasons = Mapping[Var, str]  # variable of an unsupported binding -> why it is unsupported


@dataclass(frozen=True)
class Output:
    """A tensor in a region read by bindings outside: a variable, or a field of a tuple variable."""

    var: Var
    field: int | None = None


def outputs_of(var: Var) -> list[Output]:
    """List a variable's tensors: itself, or the tuple's fields."""
    return [Output(var, k) for k in (range(len(var.ty.fields)) if _is_tuple(var.ty) else (None,))]


@dataclass(frozen=True)
class Region:
    """Bindings in a dataflow block, planned together."""

    bindings: tuple[Binding, ...]  # in program order
    inputs: tuple[Var, ...]  # tensors: function parameters in their order, then variables in program order
    outputs: tuple[Output, ...]  # the function's results in their order, then other outputs in program order

    @property
    def computes(self) -> bool:
        """Return True if the region has inputs and at least one operator."""
        return bool(self.inputs) and any(isinstance(b.value, relax.Call) for b in self.bindings)


@dataclass(frozen=True)
class Levels:
    """A dataflow block as a sequence of levels: unsupported bindings, then a region."""

    between: tuple[tuple[Binding, ...], ...]  # by level: the bindings left to TVM, which run before the level's region
    regions: tuple[Region, ...]  # by level; the last may be empty
    reasons: Reasons  # why bindings are left to TVM


def unsupported(mod: Any, block: Any, refused: Reasons) -> dict[Var, str]:
    """Find a dataflow block's unsupported bindings, with reasons; bindings in `refused` always count as unsupported."""
    reasons: dict[Var, str] = {}
    inside = {b.var for b in block.bindings}
    for binding in block.bindings:
        reason = refused.get(binding.var) or _why_not(mod, binding)
        if reason is None and isinstance(binding.value, (relax.Tuple, relax.TupleGetItem, relax.Var)):
            read = relax.analysis.free_vars(binding.value)
            foreign = not isinstance(binding.value, relax.Tuple) and any(v not in inside for v in read)
            if not read or foreign or any(v in reasons for v in read):
                reason = FOLLOWS
        if reason is None and any(_is_tuple(v.ty) and (v not in inside or v in reasons) for v in _reads(binding)):
            reason = "it reads a tuple that is not made here"
        if reason is not None:
            reasons[binding.var] = reason
    return reasons


def levels_of(func: Any, block: Any, reasons: Reasons) -> Levels:
    """Partition a block of `func` into levels. The level of a value counts the unsupported bindings on the longest path
    to it; exactly the bindings in `reasons` are unsupported.
    """
    reads = {b.var: _reads(b) for b in bindings_of(func)}
    sizes = _sizes_defined(block)
    level: dict[Var, int] = {}
    for binding in block.bindings:
        left = binding.var in reasons
        needs = (*reads[binding.var], *(sizes[v] for v in _sizes_used(binding) if v in sizes))
        before = [level[v] + (left and v not in reasons) for v in needs if v in level]
        level[binding.var] = max(before, default=0)
    count = max(level.values(), default=-1) + 1
    own: list[list[Binding]] = [[] for _ in range(count)]
    between: list[list[Binding]] = [[] for _ in range(count)]
    for binding in block.bindings:
        (between if binding.var in reasons else own)[level[binding.var]].append(binding)
    return Levels(tuple(map(tuple, between)), tuple(_region(func, reads, bindings) for bindings in own), reasons)


def _sizes_defined(block: Any) -> dict[Var, Var]:
    """Return the size variables a block matches at run time, each with the variable of the first `match_cast`."""
    found: dict[Var, Var] = {}
    for binding in block.bindings:
        if isinstance(binding, relax.MatchCast):
            found |= {v: binding.var for v in relax.analysis.tir_vars_in_type(binding.ty) if v not in found}
    return found


def _sizes_used(binding: Binding) -> list[Var]:
    """Return the variables, size variables included, in a binding's value and type."""
    found: list[Var] = []
    tvm_ffi.structural_map(binding.value, [(tirx.Var, lambda v: found.append(v) or v)], order="post")
    return [*found, *relax.analysis.tir_vars_in_type(binding.var.ty)]


def _region(func: Any, reads: Mapping[Var, Sequence[Var]], bindings: Sequence[Binding]) -> Region:
    """Build the region of `bindings`, with its inputs and outputs; `reads` are the variables read by each binding of
    `func`.
    """
    made = dict.fromkeys(b.var for b in bindings)
    read = {v for var in made for v in reads[var]} - set(made)
    inputs = tuple(v for v in (*func.params, *reads) if v in read)
    used = {*relax.analysis.free_vars(func.body.body), *(v for b, own in reads.items() if b not in made for v in own)}
    returned = [v for v in _flat(func.body.body) if v in made]
    outputs = tuple(o for v in dict.fromkeys((*returned, *made)) if v in used for o in outputs_of(v))
    return Region(tuple(bindings), inputs, outputs)


def _why_not(mod: Any, binding: Binding) -> str | None:
    """Explain why a binding cannot be in a region, from types and operator, and for a `call_tir` from the PrimFunc."""
    value = binding.value if isinstance(binding, relax.VarBinding) else None
    if value is None:
        return "a shape that is checked when the network runs"
    reason = _why_no_tensors(binding.var.ty)
    if reason is not None:
        return f"its result {reason}"
    if isinstance(value, (relax.Tuple, relax.TupleGetItem, relax.Var, ir.GenericConst)):
        return None
    if not isinstance(value, relax.Call):
        return f"{type(value).__name__}: control flow or a value that is no tensor"
    for var in relax.analysis.free_vars(value):
        reason = _why_no_tensors(var.ty)
        if reason is not None:
            return f"its operand {var.name} {reason}"
    return why_no_operator(mod, value)


def why_no_operator(mod: Any, call: Any) -> str | None:
    """Explain why a call's operator does not compile to kernels of this module alone; None if it does."""
    if isinstance(call.op, ir.GlobalVar):
        return f"a call of the function {call.op.name_hint}"
    if not isinstance(call.op, ir.Op):
        return "a call of what is no operator"
    name = call.op.name
    if name.removeprefix("relax.") in _CALLS_OUT:
        return f"{name} calls out of TVM"
    if name.startswith(_OF_THE_MACHINE):
        return f"{name} is of TVM's virtual machine"
    if name.removeprefix("relax.") in _DISPATCHED:
        return f"{name} is made by TVM's own kernels or a library"
    if name == "relax.nn.batch_norm" and call.attrs.training:
        return "a batch norm that takes its statistics from the batch, as in training"
    if name != "relax.call_tir":
        return None
    func = mod[call.args[0]]
    if len(call.args) != 2 or not isinstance(func, tirx.PrimFunc):
        return "a call with symbolic arguments"
    if not has_blocks(func):
        return "its code has no blocks that could be scheduled"
    return why_not_alone(func)


def has_blocks(func: Any) -> bool:
    """Return True unless `func` is a PrimFunc of plain loops, which no schedule and few passes of TVM can read."""
    return not isinstance(func, tirx.PrimFunc) or isinstance(func.body, s_tir.SBlockRealize)


def loses_calls_out(before: Any, after: Any) -> bool:
    """Return True if a function common to both modules has fewer calls out of TVM in `after`.

    Such calls may have effects besides their result, so a call with an unused result is no dead code.
    """
    kept = {gv.name_hint: func for gv, func in after.functions.items()}
    functions = ((f, kept.get(gv.name_hint)) for gv, f in before.functions.items() if isinstance(f, relax.Function))
    return any(left is not None and _calls_out(left) < _calls_out(func) for func, left in functions)


def _calls_out(func: Any) -> int:
    count = 0

    def called(expr: Any) -> None:
        nonlocal count
        count += getattr(getattr(expr, "op", None), "name", "").removeprefix("relax.") in _CALLS_OUT

    relax.analysis.post_order_visit(func, called)
    return count


def why_not_alone(func: Any) -> str | None:
    """Explain why a PrimFunc is not self-contained CPU code: it calls functions, or binds GPU threads; None for CPU
    code.
    """
    found: list[str] = []

    def called(call: Any) -> Any:
        name = getattr(call.op, "name", getattr(call.op, "name_hint", str(call.op)))
        if isinstance(call.op, ir.GlobalVar) or "packed" in name or "extern" in name:
            callee = str(getattr(call.args[0], "value", name)) if len(call.args) else name
            found.append(f"its code calls {callee}")
        return call

    def bound(loop: Any) -> Any:
        if loop.thread_binding is not None:
            found.append("its code is scheduled for the threads of a GPU")
        return loop

    tvm_ffi.structural_map(func.body, [(ir.Call, called), (tirx.For, bound)], order="post")
    return found[0] if found else None


def _why_no_tensors(ty: Any) -> str | None:
    """Explain why a type is not a tensor, or a tuple of tensors, an arena can hold; None if it is."""
    if _is_tuple(ty):
        nested = [f for f in ty.fields if _is_tuple(f)]
        return "is a tuple of tuples" if nested else next((r for f in ty.fields if (r := _why_no_tensors(f))), None)
    if not isinstance(ty, relax.TensorType):
        return "is no tensor"
    if ty.vdevice is not None:
        return "lies on a device of its own"
    if str(ty.dtype) not in ITEM_BYTES:
        return f"has the type {ty.dtype or 'unknown'}"
    if ty.shape is None or not isinstance(ty.shape, relax.ShapeExpr):
        return "has no known shape"
    if not all(isinstance(d, tirx.IntImm) for d in ty.shape.values):
        return "has a symbolic shape"
    return "is empty" if any(int(d) == 0 for d in ty.shape.values) else None


def _is_tuple(ty: Any) -> bool:
    return isinstance(ty, relax.TupleType)


def _reads(binding: Binding) -> list[Var]:
    return list(relax.analysis.free_vars(binding.value))


def _flat(expr: Any) -> list[Any]:
    return [v for f in expr.fields for v in _flat(f)] if isinstance(expr, relax.Tuple) else [expr]
