"""Emits a staged program for CUDA: groups run on streams, fork and join by events, captured into one CUDA graph.

    main(x):            arena, streams = get_cached_alloc(stage_resources)     created once
                        copy x into the arena
                        run_or_capture(staged, (arena, *streams))               recorded once, then replayed
                        copy the results out
    staged(arena, ...): here = current_stream()
                        for each stage of several groups: fork (each stream waits for `here`), kernels on their
                        streams, join (`here` waits for each stream)

Streams and events are handled by calls to TVM's runtime through `R.call_packed`; no Python runs during inference. TVM
captures on a hidden stream; `current_stream`, a host kernel, gets this stream from the runtime. The streams are
non-blocking: nothing orders them against the default stream, so every use is between fork and join.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tvm
from tvm import relax, te, tirx

from tvm_cascade.passes.relax_functions import ByStructure
from tvm_cascade.staging.kernels.cuda_default import cuda_target, schedule_cuda
from tvm_cascade.staging.program.emit import Emitter, Lines
from tvm_cascade.staging.program.lanes import lanes
from tvm_cascade.staging.program.memory import MemoryPlan, plan_memory
from tvm_cascade.staging.program.program import Program
from tvm_cascade.staging.program.specs import Kernel

__all__ = ["cuda_target", "emit_cuda", "schedule_cuda"]

_INT = tvm.ir.PrimType("int64")
_NOTHING = relax.TupleType([])
T = TypeVar("T")
_CUDA = 2  # DLPack device type


def emit_cuda(
    program: Program,
    kernels: Sequence[Kernel],
    target: str,
    cuda_graph: bool,
    device: str = "cuda:0",
    most: int | None = None,
) -> tvm.IRModule:
    """Emit the Relax module of a program.

    `device` owns the streams; tests pass another device, with streams that do nothing. At most `most` streams share the
    groups of a stage; None: a stream per group.
    """
    plan = plan_memory(program, static=True)
    emitter = Emitter(program, plan, static=True)
    widest = max((len(step.groups) for step in program.steps), default=1)
    used = widest if most is None else max(1, min(most, widest))
    streams = [relax.Var(f"stream_{k}", _INT) for k in range(used - 1)]
    staged = _staged(emitter, kernels, streams, device)
    mod = _wrap(emitter, plan, staged, len(streams), device, cuda_graph)
    return schedule_cuda(mod, target) if device.startswith("cuda") else mod


def _staged(emitter: Emitter, kernels: Sequence[Kernel], streams: Sequence[Any], device: str) -> Any:
    """Emit the Relax function `staged`, which runs all steps on the arena and the streams."""
    functions = ByStructure[Any]()
    emitter.constants(kernels)
    stream_of = emitter.add(current_stream(device), "current_stream")
    here = emitter.bind(relax.Call(stream_of, []), _INT, "here")

    def launch(k: int) -> None:
        gv = functions.get(kernels[k].func, lambda: emitter.add(kernels[k].func, kernels[k].name))
        emitter.call(gv, emitter.arguments(k, kernels[k]))

    for step in emitter.program.steps:
        for k in (k for group in step.groups for k in group):  # bind tensors before the fork,
            emitter.arguments(k, kernels[k])  # so that only kernel launches lie between the events
        shared = lanes(emitter.program, step.groups, len(streams) + 1) if len(step.groups) > 1 else step.groups
        launch_groups(emitter, device, (here, *streams[: len(shared) - 1]), shared, launch)
    result = relax.Tuple([emitter.value(("tensor", t)) for t in emitter.graph.outputs])
    out = emitter.bind(result, relax.TupleType([f.ty for f in result.fields]), "results")
    return emitter.function([emitter.arena, *streams], out, out.ty)


def launch_groups(
    lines: Lines, device: str, streams: Sequence[Any], groups: Sequence[Sequence[T]], launch: Callable[[T], None]
) -> None:
    """Run every group on a separate stream; all streams are forked from the first and joined again."""

    def runtime(name: str, *args: Any) -> None:
        function = relax.ExternFunc(f"runtime.Device_{name}")
        lines.bind(relax.Call(function, [tvm.ir.StringImm(device), *args], ty_args=[_NOTHING]))

    here, *others = streams
    for stream in others:
        runtime("StreamSyncFromTo", here, stream)
    for group, stream in zip(groups, streams, strict=True):
        if others:
            runtime("SetStream", stream)
        for kernel in group:
            launch(kernel)
    if others:
        runtime("SetStream", here)
    for stream in others:
        runtime("StreamSyncFromTo", stream, here)


def current_stream(device: str) -> Any:
    """Emit a host PrimFunc returning the CUDA stream of a device ("cuda:0") on which the calling thread launches
    kernels.
    """
    number = tirx.IntImm("int32", int(device.partition(":")[2] or 0))
    call = tirx.call_extern("int64", "TVMFFIEnvGetStream", tirx.IntImm("int32", _CUDA), number)
    func = tirx.PrimFunc([], tirx.Return(call), ret_type=_INT)
    return func.with_attr("tirx.is_host_func", True).with_attr("tirx.is_scheduled", True)


def resources(lines: Lines, tensors: Sequence[Any], streams: int, device: str) -> Any:
    """Emit a function for creating `tensors` (bindings of `lines`) and `streams` streams, returned as a tuple."""
    create = relax.Call(relax.ExternFunc("runtime.Device_StreamCreate"), [tvm.ir.StringImm(device)], ty_args=[_INT])
    held = [*tensors, *(lines.bind(create, _INT, f"stream_{k}") for k in range(streams))]
    ty = relax.TupleType([m.ty for m in held])
    return lines.function([], lines.bind(relax.Tuple(held), ty, "resources"), ty)


def cached(lines: Lines, function: Any, ty: Any) -> list[Any]:
    """Emit the fields of the tuple, of type `ty`, returned by `function`: computed in the first run, then cached."""
    held = lines.bind(_with_context("get_cached_alloc", function, [], ty), ty, "resources")
    return [lines.bind(relax.TupleGetItem(held, k), field, f"resource_{k}") for k, field in enumerate(ty.fields)]


def _wrap(emitter: Emitter, plan: MemoryPlan, staged: Any, streams: int, device: str, cuda_graph: bool) -> tvm.IRModule:
    """Emit the module with `main`: copy the inputs in, run or replay `staged`, copy the results out."""
    graph = emitter.graph
    arena: Any = emitter.arena
    lines = Lines()
    allocation = resources(lines, [lines.storage(int(arena.ty.shape.values[0]), "arena")], streams, device)
    held, body = emitter.add(allocation, "stage_resources"), emitter.add(staged, "staged")
    lines = Lines()
    args = cached(lines, held, allocation.ret_ty)
    params = []
    for t in graph.inputs:
        tensor = graph.tensors[t]
        params.append(relax.Var(tensor.name, relax.TensorType(tensor.shape, tensor.dtype)))
        place = emitter.program.places[t]
        target = lines.view(args[0], plan.offsets[place.root] + place.offset, tensor.shape, tensor.dtype)
        lines.call(_copy(emitter, tensor.shape, tensor.dtype), [params[-1], target])
    call = run_or_capture(body, args, staged.ret_ty) if cuda_graph else relax.Call(body, args)
    outputs = lines.bind(call, staged.ret_ty, "results")
    copies: dict[int, Any] = {}
    for k, (t, ty) in enumerate(zip(graph.outputs, staged.ret_ty.fields, strict=True)):
        shape, dtype = tuple(int(d) for d in ty.shape.values), str(ty.dtype)
        value = lines.bind(relax.TupleGetItem(outputs, k), ty, "result")
        copies[t] = lines.tensor(shape, dtype, "output")
        lines.call(_copy(emitter, shape, dtype), [value, copies[t]])
    result = emitter.nested_result(lambda value: copies[emitter.program.net.tensors[value]])
    main = lines.function(params, result, result.ty)
    return emitter.module(main, len(params))


def run_or_capture(func: Any, args: Sequence[Any], ty: Any) -> Any:
    """Emit a call that captures `func` into a CUDA graph in the first run, and replays the graph afterwards."""
    return _with_context("run_or_capture", func, [relax.Tuple(list(args))], ty)


def _with_context(name: str, func: Any, args: Sequence[Any], ty: Any) -> Any:
    """Emit a call to a CUDA graph builtin of the virtual machine, with cache entry 0, as each is used once."""
    packed = relax.ExternFunc(f"vm.builtin.cuda_graph.{name}")
    return relax.op.call_builtin_with_ctx(packed, relax.Tuple([func, *args, relax.prim_value(0)]), ty_args=ty)


def _copy(emitter: Emitter, shape: Sequence[int], dtype: str) -> Any:
    x = te.placeholder(tuple(shape), dtype, name="x")
    return emitter.add(te.create_prim_func([x, te.compute(tuple(shape), lambda *i: x(*i), name="copy")]), "copy")
