"""Benchmark module of a single stage on CUDA: one CUDA graph that runs several copies of the stage in sequence.

    main():      tensors, streams = get_cached_alloc(stage_resources)   created once, contents undefined
                 run_or_capture(probe, (*tensors, *streams))            recorded once, then replayed

Every copy forks and joins as in `stage_cuda`, so that it takes the time of the stage inside a program; the launch of the
graph is shared by all copies.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from tvm_cascade.passes import stage_cuda
from tvm_cascade.passes.stage_emit import Lines, with_main
from tvm_cascade.passes.stage_specs import Kernel

_INT = tvm.ir.PrimType("int64")


def probe_module(groups: Sequence[Sequence[Kernel]], target: str, copies: int, device: str = "cuda:0") -> tvm.IRModule:
    """The module that runs `copies` copies of a stage, each group on a stream of its own; `device` as in `emit_cuda`."""
    builder, body = relax.BlockBuilder(), Lines()
    calls: list[list[tuple[Any, list[Any]]]] = []
    tensors: list[Any] = []
    for group in groups:
        calls.append([])
        for kernel in group:
            func: Any = kernel.func
            types = [relax.TensorType(tuple(int(d) for d in p.ty.shape), str(p.ty.dtype)) for p in func.params]
            params = [relax.Var(f"tensor_{len(tensors) + k}", ty) for k, ty in enumerate(types)]
            tensors += params
            calls[-1].append((builder.add_func(func, kernel.name), params))
    streams = [relax.Var(f"stream_{k}", _INT) for k in range(len(groups) - 1)]
    stream_of = builder.add_func(stage_cuda.current_stream(device), "current_stream")
    here = body.bind(relax.Call(stream_of, []), _INT, "here")
    for _ in range(copies):
        stage_cuda.launch_groups(body, device, (here, *streams), calls, lambda call: body.call(*call))
    last = tensors[-1]
    ty = relax.TupleType([last.ty])
    function = body.function([*tensors, *streams], body.bind(relax.Tuple([last]), ty, "results"), ty)
    probe = builder.add_func(function.with_attr("relax.force_pure", True), "probe")

    lines = Lines()
    own = [lines.tensor(tuple(int(d) for d in t.ty.shape.values), str(t.ty.dtype), t.name) for t in tensors]
    allocation = stage_cuda.resources(lines, own, len(streams), device)
    lines = Lines()
    args = stage_cuda.cached(lines, builder.add_func(allocation, "stage_resources"), allocation.ret_ty)
    outputs = lines.bind(stage_cuda.run_or_capture(probe, args, ty), ty, "results")
    main = lines.function([], lines.bind(relax.TupleGetItem(outputs, 0), last.ty, "result"), last.ty)
    mod = with_main(builder, main, 0)
    return stage_cuda.schedule_cuda(mod, target) if device.startswith("cuda") else mod
