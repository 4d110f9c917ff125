"""Emits a staged program as a Relax function: explicit storage, tensors at planned offsets, and kernel calls only."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax

from tvm_cascade.graph import ITEM_BYTES
from tvm_cascade.passes.integer.expressions import constant
from tvm_cascade.passes.relax_functions import sequence, typed
from tvm_cascade.staging.program.memory import MemoryPlan
from tvm_cascade.staging.program.program import ALIGNMENT, Program
from tvm_cascade.staging.program.specs import Kernel

_NOTHING = relax.TupleType([])


class Lines:
    """Builder of one Relax function from bindings for storage, views and calls."""

    def __init__(self) -> None:
        self.bindings: list[Any] = []

    def bind(self, value: Any, ty: Any = _NOTHING, name: str = "_") -> Any:
        """Add a binding; returns the binding's variable."""
        var = relax.Var(name, ty)
        self.bindings.append(relax.VarBinding(var, typed(value, ty)))
        return var

    def call(self, function: Any, args: Sequence[Any]) -> None:
        """Call a kernel, which returns nothing."""
        self.bind(relax.Call(function, list(args)))

    def storage(self, size: int, name: str) -> Any:
        """Allocate `size` bytes as a uint8 tensor, of which `view` makes views."""
        space = relax.ShapeExpr([size])
        block = self.bind(relax.op.memory.alloc_storage(space, 0, "global", "uint8"), relax.AnyType(), name)
        whole = relax.op.memory.alloc_tensor(block, 0, space, "uint8")
        return self.bind(whole, relax.TensorType((size,), "uint8"), name)

    def view(self, storage: Any, offset: int, shape: Sequence[int], dtype: str, name: str = "view") -> Any:
        """Emit a tensor at a byte offset in a storage; the tensor's own `byte_offset` is zero, as kernels require."""
        ty = relax.TensorType(tuple(shape), dtype)
        view = self.bind(relax.op.memory.view(storage, relax.ShapeExpr(list(shape)), dtype, offset), ty, name)
        return self.bind(relax.op.memory.ensure_zero_offset(view), ty, name) if offset else view

    def tensor(self, shape: Sequence[int], dtype: str, name: str) -> Any:
        """Emit a tensor in new storage."""
        return self.view(self.storage(prod(shape) * ITEM_BYTES[dtype], f"{name}_bytes"), 0, shape, dtype)

    def function(self, params: Sequence[Any], result: Any, ret: Any) -> Any:
        """Make the Relax function of all bindings so far, with return type `ret`; marked pure, as lowered functions
        are.
        """
        body = sequence([relax.BindingBlock(self.bindings)], result)
        return relax.Function(list(params), body, ret).with_attr("relax.force_pure", True)


class Emitter(Lines):
    """Builder for a staged program's function and module: `constants` and kernel calls first, then `finish`."""

    def __init__(self, program: Program, plan: MemoryPlan, static: bool = False) -> None:
        """Make an emitter. `static`: the function takes the arena, with inputs and outputs inside, as parameter."""
        super().__init__()
        self.program, self.plan = program, plan
        self.graph = program.net.graph
        self._builder = relax.BlockBuilder()
        self._values: dict[Hashable, Any] = {}
        self._storages: dict[int, Any] = {}
        self.params = []
        size = max(plan.allocation.peak, ALIGNMENT)
        if static:
            self.arena = relax.Var("arena", relax.TensorType((size,), "uint8"))
            return
        for t in self.graph.inputs:
            tensor = self.graph.tensors[t]
            self.params.append(relax.Var(tensor.name, relax.TensorType(tensor.shape, tensor.dtype)))
            self._values["tensor", t] = self.params[-1]
        self.arena = self.storage(size, "arena") if plan.offsets else None

    def add(self, func: Any, name: str) -> Any:
        """Add a kernel or a Relax function to the module under a free name; returns its global variable."""
        return self._builder.add_func(func, name)

    def constants(self, kernels: Sequence[Kernel]) -> None:
        """Register the constants of all kernels under the keys `("constant", kernel, position)`."""
        for k, kernel in enumerate(kernels):
            self._values |= {("constant", k, c): constant(value) for c, value in enumerate(kernel.constants)}

    def arguments(self, k: int, kernel: Kernel) -> list[Any]:
        """List the arguments of the program's kernel `k`."""
        return [self.value(key) for key in keys(self.program, k, kernel)]

    def value(self, key: Any) -> Any:
        """Return the Relax value of a key: `("tensor", t)`, a constant, or `("shaped", t, shape)` (t's bytes in that
        shape).
        """
        expr = self._values.get(key)
        if expr is None:
            tensor = self.graph.tensors[key[1]]
            shape = tensor.shape if key[0] == "tensor" else key[2]
            expr = self._values[key] = self._tensor(key[1], shape, tensor.dtype)
        return expr

    def finish(self) -> tvm.IRModule:
        """Return the module with `main` and the kernels."""
        result = self.result()
        return self.module(self.function(self.params, result, result.ty), len(self.params))

    def module(self, main: Any, inputs: int) -> tvm.IRModule:
        """Return the module with the added functions and `main`, which has `inputs` inputs."""
        return with_main(self._builder, main, inputs)

    def _tensor(self, t: int, shape: Sequence[int], dtype: str) -> Any:
        place = self.program.places[t]
        if place.root in self.plan.offsets:
            storage, base = self.arena, self.plan.offsets[place.root]
        else:
            storage, base = self._own(place.root), 0
        return self.view(storage, base + place.offset, shape, dtype, self.graph.tensors[t].name)

    def _own(self, root: int) -> Any:
        """Return storage outside the arena, for tensors the function returns to the caller."""
        if root not in self._storages:
            self._storages[root] = self.storage(self.program.bytes_of(root), f"storage_{root}")
        return self._storages[root]

    def result(self) -> Any:
        """Return the function's result: tensors and constants, nested in tuples as in the original function."""
        tensors = self.program.net.tensors
        return self.nested_result(lambda value: self.value(("tensor", tensors[value])))

    def nested_result(self, tensor_of: Callable[[int], Any]) -> Any:
        """Return the function's result; `tensor_of` gives the tensor for a program value, constants excepted."""
        net = self.program.net

        def nested(part: Any) -> Any:
            if isinstance(part, tuple):
                return relax.Tuple([nested(p) for p in part])
            return constant(net.constants[part]) if part in net.constants else tensor_of(part)

        return nested(net.program.result)


def with_main(builder: Any, main: Any, inputs: int) -> tvm.IRModule:
    """Add the function `main` with `inputs` inputs, and return the builder's module."""
    builder.add_func(main.with_attrs({"num_input": inputs, "global_symbol": "main"}), "main")
    return builder.get()


def keys(program: Program, k: int, kernel: Kernel) -> tuple[Hashable, ...]:
    """List the keys (see `Emitter.value`) of a kernel's parameters: inputs, constants, outputs."""
    shapes = [tuple(int(d) for d in p.ty.shape) for p in kernel.func.params]

    def key(t: int, shape: tuple[int, ...]) -> Hashable:
        if shape == program.net.graph.tensors[t].shape and t not in program.slices:
            return ("tensor", t)
        return ("shaped", program.slices[t].root if t in program.slices else t, shape)

    ins = [key(t, shape) for t, shape in zip(kernel.inputs, shapes, strict=False)]
    constants = [("constant", k, c) for c in range(len(kernel.constants))]
    if kernel.merged:
        first = min(kernel.outputs, key=lambda t: program.places[t].offset)
        return (*ins, *constants, ("shaped", first, shapes[-1]))
    outs = shapes[len(shapes) - len(kernel.outputs) :]
    return (*ins, *constants, *(key(t, shape) for t, shape in zip(kernel.outputs, outs, strict=True)))
