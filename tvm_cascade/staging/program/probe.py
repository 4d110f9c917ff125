"""Benchmark module for a single stage on CUDA: one CUDA graph that runs several copies of the stage in sequence.

    main():      tensors, streams = get_cached_alloc(stage_resources)   created once, contents undefined
                 run_or_capture(probe, (*tensors, *streams))            recorded once, then replayed

Every copy forks and joins as in `stage_cuda`, and so takes the stage's time inside a program; all copies share the
graph's launch. All copies read the same tensors; with `own_constants` each has separate constants, so after
`evict_module` has run, or with `evicted` bytes read first by the graph, no copy finds weights in the cache, as in a
network with too many weights for the cache.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, te

from tvm_cascade.staging.program import cuda as stage_cuda
from tvm_cascade.staging.program.emit import Lines, with_main
from tvm_cascade.staging.program.specs import Kernel

_INT = tvm.ir.PrimType("int64")
_PASSES = 64  # values that a thread of `evict_module` reads


def probe_module(
    groups: Sequence[Sequence[Kernel]],
    target: str,
    copies: int,
    device: str = "cuda:0",
    own_constants: bool = False,
    evicted: int = 0,
) -> tvm.IRModule:
    """Make the module that runs `copies` copies of a stage, each group on a separate stream; `device` as in
    `emit_cuda`.

    `evicted`: bytes read before by the graph, and by no kernel; then the copies have separate constants.
    """
    builder, body = relax.BlockBuilder(), Lines()
    own_constants = own_constants or evicted > 0
    # by copy and group
    launched: list[list[list[tuple[Any, list[Any]]]]] = [[[] for _ in groups] for _ in range(copies)]
    tensors: list[Any] = []
    first: list[Any] = []
    if evicted:
        kernel = _evicting(evicted)
        first = [relax.Var(f"evicted_{k}", ty) for k, ty in enumerate(_types(kernel.func))]
        tensors += first
        evict = builder.add_func(kernel.func, kernel.name)
    for g, group in enumerate(groups):
        for kernel in group:
            types = _types(kernel.func)
            constants = range(len(kernel.inputs), len(kernel.inputs) + len(kernel.constants))
            params = [relax.Var(f"tensor_{len(tensors) + k}", ty) for k, ty in enumerate(types)]
            tensors += params
            gv = builder.add_func(kernel.func, kernel.name)
            for copy in range(copies):
                read = list(params)
                for k in constants if own_constants and copy else ():
                    read[k] = relax.Var(f"tensor_{len(tensors)}", types[k])
                    tensors.append(read[k])
                launched[copy][g].append((gv, read))
    result = launched[0][-1][-1][1][-1]
    streams = [relax.Var(f"stream_{k}", _INT) for k in range(len(groups) - 1)]
    stream_of = builder.add_func(stage_cuda.current_stream(device), "current_stream")
    here = body.bind(relax.Call(stream_of, []), _INT, "here")
    if first:
        body.call(evict, first)
    for calls in launched:
        stage_cuda.launch_groups(body, device, (here, *streams), calls, lambda call: body.call(*call))
    ty = relax.TupleType([result.ty])
    function = body.function([*tensors, *streams], body.bind(relax.Tuple([result]), ty, "results"), ty)
    probe = builder.add_func(function, "probe")

    lines = Lines()
    own = [lines.tensor(tuple(int(d) for d in t.ty.shape.values), str(t.ty.dtype), t.name) for t in tensors]
    allocation = stage_cuda.resources(lines, own, len(streams), device)
    lines = Lines()
    args = stage_cuda.cached(lines, builder.add_func(allocation, "stage_resources"), allocation.ret_ty)
    outputs = lines.bind(stage_cuda.run_or_capture(probe, args, ty), ty, "results")
    main = lines.function([], lines.bind(relax.TupleGetItem(outputs, 0), result.ty, "result"), result.ty)
    mod = with_main(builder, main, 0)
    return stage_cuda.schedule_cuda(mod, target) if device.startswith("cuda") else mod


def evict_module(size: int, target: str, device: str = "cuda:0") -> tvm.IRModule:
    """Make a module whose `main()` reads `size` bytes of no other use: more than the cache holds, so nothing useful
    stays.
    """
    return probe_module([[_evicting(size)]], target, 1, device)


def _evicting(size: int) -> Kernel:
    x = te.placeholder((_PASSES, size // 4 // _PASSES), "float32", name="x")
    step = te.reduce_axis((0, _PASSES), "step")
    y = te.compute(x.shape[1:], lambda i: te.max(x[step, i], axis=step), name="evict")
    return Kernel("evict", te.create_prim_func([x, y]), (0,), (), (1,))


def _types(func: Any) -> list[Any]:
    """Return the types of a PrimFunc's parameters."""
    return [relax.TensorType(tuple(int(d) for d in p.ty.shape), str(p.ty.dtype)) for p in func.params]
