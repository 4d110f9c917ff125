"""A module that holds nothing but a planned program, to run it by itself."""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
from __future__ import annotations

from tvm import relax
from tvm.ir import IRModule

from tvm_cascade.passes.planned_program import flash_image, with_program, workspace_type
from tvm_cascade.passes.relax_functions import add_function
from tvm_cascade.schedules.driver.lower_plan import Lowered


def planned_module(mod: IRModule, lowered: Lowered) -> IRModule:
    """The planned program alone: a module whose `main`, with the parameters of that of `mod`, calls it."""
    program, entry = with_program(IRModule({}), lowered, "cascade_main")
    builder = relax.BlockBuilder(program)
    params = [relax.Var(p.name, p.ty) for p in mod["main"].params]
    graph = lowered.plan.graph
    tensors = [graph.tensors[t] for t in graph.outputs]
    results = [relax.TensorType(t.shape, t.dtype) for t in tensors]

    def emit() -> relax.Expr:
        out = [*results, workspace_type(lowered)]
        packed = builder.emit(relax.op.call_tir(entry, [*params, flash_image(lowered)], out_ty=out))
        fields = [builder.emit(relax.TupleGetItem(packed, k)) for k in range(len(results))]
        return relax.Tuple(fields) if isinstance(mod["main"].body.ty, relax.TupleType) else fields[0]

    add_function(builder, "main", params, emit)
    return builder.finalize()
