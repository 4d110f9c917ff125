"""Writes `main` of a staged program: explicit storage, tensors at planned offsets, kernel calls, nothing else."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te

from tvm_cascade.errors import GraphError
from tvm_cascade.passes.stage_kernels import Kernel
from tvm_cascade.passes.stage_program import ALIGNMENT, MemoryPlan, Program

_NOTHING = relax.TupleType([])


class Emitter:
    """Collects bindings and kernels; `finish` returns the module."""

    def __init__(self, program: Program, plan: MemoryPlan, static: bool = False) -> None:
        """`static`: write a function of the arena, inputs and outputs in it, instead of `main`."""
        self.program, self.plan = program, plan
        self.graph = program.net.graph
        self.bindings: list[Any] = []
        self._builder = relax.BlockBuilder()
        self._fills: dict[int, Any] = {}
        self._values: dict[Hashable, Any] = {}
        self._storages: dict[int, Any] = {}
        self.params = []
        if static:
            size = max(plan.allocation.peak, ALIGNMENT)
            self.arena = relax.Var("arena", relax.TensorType((size,), "uint8"))
            return
        for t in self.graph.inputs:
            tensor = self.graph.tensors[t]
            self.params.append(relax.Var(tensor.name, relax.TensorType(tensor.shape, tensor.dtype)))
            self._values["tensor", t] = self.params[-1]
        self.arena = self._storage("arena", max(plan.allocation.peak, ALIGNMENT)) if plan.roots else None

    def function(self, func: Any, name: str) -> Any:
        """Add a kernel, or a Relax function, under a free name."""
        return self._builder.add_func(func, name)

    def call(self, gv: Any, args: Sequence[Any], result: Any = _NOTHING) -> Any:
        """Call a kernel or a packed function; the result's variable."""
        return self.bind(relax.Call(gv, list(args)), result)

    def bind(self, value: Any, ty: Any = None, name: str = "_") -> Any:
        """One more binding."""
        var = relax.Var(name, ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def constants(self, values: Mapping[Hashable, np.ndarray]) -> None:
        """Make constants known under their keys."""
        for key, value in values.items():
            self._values.setdefault(key, relax.const(value))

    def value(self, key: Any) -> Any:
        """What a key stands for: `("tensor", t)`, `("merged", t, shape)` at the place of t, or a constant."""
        found = self._values.get(key)
        if found is None:
            tensor = self.graph.tensors[key[1]]
            shape = tensor.shape if key[0] == "tensor" else key[2]
            found = self._values[key] = self._tensor(key[1], shape, tensor.dtype)
        return found

    def poison(self, time: int) -> None:
        """Overwrite with NaN every byte of the arena that holds nothing across the start of step `time`."""
        kept = sorted(
            (offset, offset + b.size)
            for offset, b in zip(self.plan.allocation.offsets, self.plan.problem.buffers, strict=True)
            if b.lower < time < b.upper
        )
        first = 0
        for low, high in [*kept, (self.plan.allocation.peak, self.plan.allocation.peak)]:
            start = -(-first // 4) * 4
            if low - start >= 4:
                self._fill(start, (low - start) // 4)
            first = max(first, high)

    def finish(self) -> tvm.IRModule:
        """The module with `main` and the kernels."""
        result = self.result()
        body = relax.SeqExpr([relax.BindingBlock(self.bindings)], result)
        ret = result.ty if result.ty is not None else None
        func = relax.Function(self.params, body, ret, is_pure=False).with_attr("num_input", len(self.params))
        return self.module({"main": func})

    def module(self, functions: Mapping[str, Any]) -> tvm.IRModule:
        """The kernels and some Relax functions."""
        mod = self._builder.get()
        for name, func in functions.items():
            mod[name] = func.with_attr("global_symbol", name).with_attr("relax.force_pure", True)
        return mod

    def _storage(self, name: str, size: int) -> Any:
        """A block of bytes. Views of it carry no byte offset, which kernels would refuse."""
        space = relax.ShapeExpr([size])
        block = self.bind(relax.op.memory.alloc_storage(space, 0, "global", "uint8"), relax.AnyType(), name)
        whole = relax.op.memory.alloc_tensor(block, 0, space, "uint8")
        return self.bind(whole, relax.TensorType((size,), "uint8"), name)

    def _tensor(self, t: int, shape: Sequence[int], dtype: str) -> Any:
        place = self.program.places[t]
        if place.root in self.plan.roots:
            storage, base = self.arena, self.plan.offset(place.root)
        else:
            storage, base = self._own(place.root), 0
        return self._at(storage, base + place.offset, shape, dtype, self.graph.tensors[t].name)

    def _at(self, storage: Any, offset: int, shape: Sequence[int], dtype: str, name: str) -> Any:
        ty = relax.TensorType(tuple(shape), dtype)
        view = self.bind(relax.op.memory.view(storage, relax.ShapeExpr(list(shape)), dtype, offset), ty, name)
        return self.bind(relax.op.memory.ensure_zero_offset(view), ty, name) if offset else view

    def _own(self, root: int) -> Any:
        """Storage of its own for what the function returns: the caller keeps it, not the arena."""
        if root not in self._storages:
            ends = [p.offset + self.graph.tensors[t].bytes for t, p in enumerate(self.program.places) if p.root == root]
            self._storages[root] = self._storage(f"storage_{root}", max(ends))
        return self._storages[root]

    def _fill(self, offset: int, count: int) -> None:
        if count not in self._fills:
            out = te.compute((count,), lambda i: te.const(float("nan"), "float32"), name="poison")
            self._fills[count] = self.function(te.create_prim_func([out]), f"poison_{count}")
        target = self._at(self.arena, offset, (count,), "float32", "dead")
        self.call(self._fills[count], [target])

    def result(self) -> Any:
        """The function's result, with the structure of the original one."""
        expr = self.program.net.result
        found = [self.value(("tensor", t)) for t in self.program.net.tensors_of(expr)]
        if not found:
            raise GraphError("the function returns a constant")
        return relax.Tuple(found) if isinstance(expr.ty, relax.TupleType) else found[0]


def keys(program: Program, k: int, kernel: Kernel) -> tuple[Hashable, ...]:
    """What the kernel's parameters are bound to: inputs, constants, outputs."""
    cut = program.slices
    ins = [("merged", cut[t].root, cut[t].shape) if t in cut else ("tensor", t) for t in kernel.inputs]
    constants = [("constant", k, c) for c in range(len(kernel.constants))]
    if not kernel.merged:
        return (*ins, *constants, *(("tensor", t) for t in kernel.outputs))
    shape = tuple(int(d) for d in kernel.func.params[-1].ty.shape)
    return (*ins, *constants, ("merged", program.places[kernel.outputs[0]].root, shape))
