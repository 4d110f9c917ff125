"""A staged program on CUDA: groups on streams, fork and join by events, all of it captured into one CUDA graph.

    main(x):            arena, streams = get_cached_alloc(stage_resources)     created once
                        copy x into the arena
                        run_or_capture(staged, (arena, *streams))               recorded once, then replayed
                        copy the results out
    staged(arena, ...): here = current_stream()
                        of every stage of several groups: fork (each stream waits for `here`), kernels on their
                        streams, join (`here` waits for each stream)

Streams, events and their order are calls of TVM's runtime through `R.call_packed`; no Python runs in an inference. The
capture happens on a stream that TVM makes and names nowhere: `current_stream`, a host kernel, asks the runtime.
The streams are non-blocking: nothing orders them against the default stream, so every use is between fork and join.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from tvm_cascade.graph import ITEM_BYTES
from tvm_cascade.passes.stage_emit import Emitter, keys
from tvm_cascade.passes.stage_kernels import Kernel
from tvm_cascade.passes.stage_program import MemoryPlan, Program, plan_memory

_INT = tvm.ir.PrimType("int64")
_NOTHING = relax.TupleType([])
_CUDA = 2  # DLPack's number of the device type


def emit_cuda(
    program: Program, kernels: Sequence[Kernel], target: str, cuda_graph: bool, device: str = "cuda:0"
) -> tvm.IRModule:
    """The module. `device` is where the streams belong; tests put another in, whose streams do nothing."""
    plan = plan_memory(program, static=True)
    emitter = Emitter(program, plan, static=True)
    streams = [
        relax.Var(f"stream_{k}", _INT) for k in range(max((len(s.groups) for s in program.steps), default=1) - 1)
    ]
    staged = _Staged(emitter, kernels, streams, device).function()
    mod = _wrap(emitter, plan, staged, len(streams), device, cuda_graph)
    return schedule_cuda(mod, target) if device.startswith("cuda") else mod


def cuda_target(target: str) -> tvm.target.Target:
    """`cuda`, or `cuda -arch=sm_90`, as TVM's target."""
    words = target.split()
    arch = next((w.split("=", 1)[1] for w in words if w.startswith("-arch=")), "sm_75")
    limits = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
    return tvm.target.Target({"kind": "cuda", "arch": arch, **limits}, host=tvm.target.Target("llvm"))


def schedule_cuda(mod: tvm.IRModule, target: str) -> tvm.IRModule:
    """Every kernel that is not scheduled yet gets dlight's default schedule."""
    from tvm.s_tir import dlight

    rules: Any = (
        dlight.gpu.Matmul(),
        dlight.gpu.GEMV(),
        dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(),
        dlight.gpu.Fallback(),
    )
    with cuda_target(target):
        apply: Any = dlight.ApplyDefaultSchedule(*rules)
        return apply(mod)


class _Staged:
    """Writes the function that runs the stages."""

    def __init__(self, emitter: Emitter, kernels: Sequence[Kernel], streams: Sequence[Any], device: str) -> None:
        self.emitter, self.kernels, self.streams = emitter, kernels, streams
        self.device = device
        self._known: dict[int, list[tuple[Any, Any]]] = {}

    def function(self) -> Any:
        emitter = self.emitter
        for k, kernel in enumerate(self.kernels):
            emitter.constants({("constant", k, c): value for c, value in enumerate(kernel.constants)})
        here = emitter.bind(relax.Call(emitter.function(current_stream(), "current_stream"), []), _INT, "here")
        for step in emitter.program.steps:
            for t in (t for group in step.groups for k in group for t in keys(emitter.program, k, self.kernels[k])):
                emitter.value(t)  # tensors are made before the fork: nothing but launches between the events
            used = self.streams[: len(step.groups) - 1]
            for stream in used:
                self._runtime("StreamSyncFromTo", here, stream)
            for group, stream in zip(step.groups, (here, *used), strict=True):
                if used:
                    self._runtime("SetStream", stream)
                for k in group:
                    self._launch(k)
            if used:
                self._runtime("SetStream", here)
            for stream in used:
                self._runtime("StreamSyncFromTo", stream, here)
        found = emitter.result()
        result = found if isinstance(found, relax.Tuple) else relax.Tuple([found])
        out = emitter.bind(result, relax.TupleType([f.ty for f in result.fields]), "results")
        body = relax.SeqExpr([relax.BindingBlock(emitter.bindings)], out)
        return relax.Function([emitter.arena, *self.streams], body, out.ty, is_pure=False)

    def _launch(self, k: int) -> None:
        kernel = self.kernels[k]
        found = self._known.setdefault(tvm_ffi.structural_hash(kernel.func), [])
        gv = next((g for f, g in found if tvm_ffi.structural_equal(f, kernel.func)), None)
        if gv is None:
            gv = self.emitter.function(kernel.func, kernel.name)
            found.append((kernel.func, gv))
        self.emitter.call(gv, [self.emitter.value(key) for key in keys(self.emitter.program, k, kernel)])

    def _runtime(self, name: str, *args: Any) -> None:
        runtime_call(self.emitter, self.device, name, *args)


def runtime_call(lines: Any, device: str, name: str, *args: Any) -> None:
    """Bind a call of one of the runtime's functions of a device: `SetStream`, `StreamSyncFromTo`."""
    function = relax.ExternFunc(f"runtime.Device_{name}")
    lines.bind(relax.Call(function, [tvm.ir.StringImm(device), *args], ty_args=[_NOTHING]), _NOTHING)


def current_stream() -> Any:
    """A host kernel that returns the stream on which this thread launches."""
    call = tirx.call_extern("int64", "TVMFFIEnvGetStream", tirx.IntImm("int32", _CUDA), tirx.IntImm("int32", 0))
    func = tirx.PrimFunc([], tirx.Return(call), ret_type=_INT)
    return func.with_attr("tirx.is_host_func", True).with_attr("tirx.is_scheduled", True)


class Lines:
    """Bindings of one Relax function."""

    def __init__(self) -> None:
        self.bindings: list[Any] = []

    def bind(self, value: Any, ty: Any, name: str = "_") -> Any:
        var = relax.Var(name, ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def storage(self, size: int, name: str) -> Any:
        """A block of bytes."""
        space = relax.ShapeExpr([size])
        block = self.bind(relax.op.memory.alloc_storage(space, 0, "global", "uint8"), relax.AnyType(), "storage")
        whole = relax.op.memory.alloc_tensor(block, 0, space, "uint8")
        return self.bind(whole, relax.TensorType((size,), "uint8"), name)

    def tensor(self, shape: Sequence[int], dtype: str, name: str) -> Any:
        """A tensor in storage of its own."""
        return self.view(self.storage(prod(shape) * ITEM_BYTES[dtype], f"{name}_bytes"), 0, shape, dtype)

    def stream(self, device: str, name: str) -> Any:
        """A new stream."""
        create = relax.ExternFunc("runtime.Device_StreamCreate")
        return self.bind(relax.Call(create, [tvm.ir.StringImm(device)], ty_args=[_INT]), _INT, name)

    def cached(self, resources: Any, ty: Any) -> list[Any]:
        """What the function `resources` makes, a tuple of type `ty`: made by the first run, the same ever after."""
        held = self.bind(_with_context("get_cached_alloc", resources, [], ty), ty, "resources")
        return [self.bind(relax.TupleGetItem(held, k), field, f"resource_{k}") for k, field in enumerate(ty.fields)]

    def view(self, storage: Any, offset: int, shape: Sequence[int], dtype: str) -> Any:
        """A tensor at an offset of a block."""
        ty = relax.TensorType(tuple(shape), dtype)
        view = self.bind(relax.op.memory.view(storage, relax.ShapeExpr(list(shape)), dtype, offset), ty, "view")
        return self.bind(relax.op.memory.ensure_zero_offset(view), ty, "view") if offset else view

    def function(self, params: Sequence[Any], result: Any, ret: Any) -> Any:
        body = relax.SeqExpr([relax.BindingBlock(self.bindings)], result)
        func = relax.Function(list(params), body, ret, is_pure=False)
        return func.with_attr("relax.force_pure", True)


def _resources(arena_type: Any, streams: int, device: str) -> Any:
    """The function that makes the arena and the streams: a tuple of both."""
    lines = Lines()
    arena = lines.storage(int(arena_type.shape.values[0]), "arena")
    handles = [lines.stream(device, f"stream_{k}") for k in range(streams)]
    ty = relax.TupleType([arena_type, *[_INT] * streams])
    return lines.function([], lines.bind(relax.Tuple([arena, *handles]), ty, "resources"), ty)


def _wrap(emitter: Emitter, plan: MemoryPlan, staged: Any, streams: int, device: str, cuda_graph: bool) -> tvm.IRModule:
    """The module with `main`, which copies in, replays and copies out."""
    graph = emitter.graph
    arena: Any = emitter.arena
    made = _resources(arena.ty, streams, device)
    resources, body = emitter.function(made, "stage_resources"), emitter.function(staged, "staged")
    lines = Lines()
    args = lines.cached(resources, made.ret_ty)
    params = []
    for t in graph.inputs:
        tensor = graph.tensors[t]
        params.append(relax.Var(tensor.name, relax.TensorType(tensor.shape, tensor.dtype)))
        place = emitter.program.places[t]
        target = lines.view(args[0], plan.offset(place.root) + place.offset, tensor.shape, tensor.dtype)
        lines.bind(relax.Call(_copy(emitter, tensor.shape, tensor.dtype), [params[-1], target]), _NOTHING)
    if cuda_graph:
        call = run_or_capture(body, args, staged.ret_ty)
    else:
        call = relax.Call(body, args)
    found = lines.bind(call, staged.ret_ty, "results")
    results = []
    for k, ty in enumerate(staged.ret_ty.fields):
        shape, dtype = tuple(int(d) for d in ty.shape.values), str(ty.dtype)
        value = lines.bind(relax.TupleGetItem(found, k), ty, "result")
        results.append(lines.tensor(shape, dtype, "output"))
        lines.bind(relax.Call(_copy(emitter, shape, dtype), [value, results[-1]]), _NOTHING)
    several = isinstance(emitter.program.net.result.ty, relax.TupleType)
    ret = relax.TupleType([r.ty for r in results]) if several else results[0].ty
    main = lines.function(params, relax.Tuple(results) if several else results[0], ret)
    return emitter.module({"main": main.with_attr("num_input", len(params))})


def run_or_capture(func: Any, args: Sequence[Any], ty: Any) -> Any:
    """The call that records `func` into a CUDA graph at first, and replays it from then on."""
    return _with_context("run_or_capture", func, [relax.Tuple(list(args))], ty)


def _with_context(name: str, func: Any, args: Sequence[Any], ty: Any) -> Any:
    """A call of the virtual machine's CUDA graph builtins; each has one entry here, number 0."""
    packed = relax.ExternFunc(f"vm.builtin.cuda_graph.{name}")
    return relax.op.call_builtin_with_ctx(packed, relax.Tuple([func, *args, relax.prim_value(0)]), ty_args=ty)


def _copy(emitter: Emitter, shape: Sequence[int], dtype: str) -> Any:
    x = te.placeholder(tuple(shape), dtype, name="x")
    return emitter.function(te.create_prim_func([x, te.compute(tuple(shape), lambda *i: x(*i), name="copy")]), "copy")
