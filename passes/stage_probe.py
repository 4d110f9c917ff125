"""One stage by itself as a module, to be measured on the device: copies of it behind one another in one CUDA graph.

    main():      tensors, streams = get_cached_alloc(resources)     created once, contents whatever they are
                 run_or_capture(probe, (*tensors, *streams))        recorded once, then replayed

Every copy forks and joins as `stage_cuda` does, so that a copy costs what the stage costs inside of a program; the launch
of the graph is shared by all.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from tvm_cascade.passes.stage_cuda import Lines, current_stream, run_or_capture, runtime_call, schedule_cuda
from tvm_cascade.passes.stage_kernels import Kernel

_INT = tvm.ir.PrimType("int64")


def probe_module(groups: Sequence[Sequence[Kernel]], target: str, copies: int, device: str = "cuda:0") -> tvm.IRModule:
    """The module. Groups run on streams of their own; `device` as in `emit_cuda`."""
    builder = relax.BlockBuilder()
    streams = len(groups) - 1
    calls: list[list[tuple[Any, list[Any]]]] = []
    tensors: list[Any] = []
    for group in groups:
        calls.append([])
        for kernel in group:
            func: Any = kernel.func
            params = [relax.Var(f"tensor_{len(tensors) + k}", _tensor_type(p)) for k, p in enumerate(func.params)]
            tensors += params
            calls[-1].append((builder.add_func(func, kernel.name), params))
    handles = [relax.Var(f"stream_{k}", _INT) for k in range(streams)]
    here_func = builder.add_func(current_stream(), "current_stream")

    body = Lines()
    here = body.bind(relax.Call(here_func, []), _INT, "here")
    for _ in range(copies):
        for stream in handles:
            runtime_call(body, device, "StreamSyncFromTo", here, stream)
        for stream, group in zip((here, *handles), calls, strict=True):
            if handles:
                runtime_call(body, device, "SetStream", stream)
            for kernel, params in group:
                body.bind(relax.Call(kernel, params), relax.TupleType([]))
        if handles:
            runtime_call(body, device, "SetStream", here)
        for stream in handles:
            runtime_call(body, device, "StreamSyncFromTo", stream, here)
    last = tensors[-1]
    result = body.bind(relax.Tuple([last]), relax.TupleType([last.ty]), "results")
    probe = builder.add_func(body.function([*tensors, *handles], result, relax.TupleType([last.ty])), "probe")

    made = _resources([t.ty for t in tensors], streams, device)
    lines = Lines()
    args = lines.cached(builder.add_func(made, "stage_resources"), made.ret_ty)
    found = lines.bind(run_or_capture(probe, args, relax.TupleType([last.ty])), relax.TupleType([last.ty]), "results")
    value = lines.bind(relax.TupleGetItem(found, 0), last.ty, "result")
    mod = builder.get()
    main = lines.function([], value, last.ty).with_attr("num_input", 0)
    mod["main"] = main.with_attr("global_symbol", "main")
    return schedule_cuda(mod, target) if device.startswith("cuda") else mod


def _tensor_type(param: Any) -> Any:
    return relax.TensorType(tuple(int(d) for d in param.ty.shape), str(param.ty.dtype))


def _resources(types: Sequence[Any], streams: int, device: str) -> Any:
    """The function that makes the tensors and the streams."""
    lines = Lines()
    made = [
        lines.tensor(tuple(int(d) for d in ty.shape.values), str(ty.dtype), f"tensor_{k}") for k, ty in enumerate(types)
    ]
    made += [lines.stream(device, f"stream_{k}") for k in range(streams)]
    ty = relax.TupleType([*types, *[_INT] * streams])
    return lines.function([], lines.bind(relax.Tuple(made), ty, "resources"), ty)
