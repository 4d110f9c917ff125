"""From scheduling units to kernels: one unscheduled PrimFunc per kernel, its constants computed and packed.

A kernel is an anchor with what rides along (`parallel.units`). Its operators become one primitive Relax function, which
TVM legalizes and fuses. On CPUs float convolutions without groups are written as `schedules.stages.cpu_float.direct_conv2d`
with weights packed here. Merged operators get one kernel, weights stacked and enlarged with zeros.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import tvm
from tvm import relax
from tvm.tirx import PrimFunc

from tvm_cascade.graph import Tensor
from tvm_cascade.passes.stage_graph import StageGraph
from tvm_cascade.passes.stage_merge import Merge
from tvm_cascade.schedules.stages.cpu_float import direct_conv2d, direct_product, pack_columns, pack_weights


@dataclass(frozen=True)
class Kernel:
    """A PrimFunc with parameters inputs, constants, outputs; tensors by index into `StageGraph.graph.tensors`.

    A merged kernel writes one tensor that holds all `outputs` behind one another along the channels.
    """

    name: str
    func: PrimFunc
    inputs: tuple[int, ...]
    constants: tuple[np.ndarray, ...]
    outputs: tuple[int, ...]
    merged: bool = False


@dataclass(frozen=True)
class Spec:
    """What a kernel computes: operators of the graph, or a merge of several."""

    ops: tuple[int, ...]
    merge: Merge | None = None


class Cut(Protocol):
    """A tensor that kernels read as a part of a merged one (`stage_program.Slice`)."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def axis(self) -> int: ...

    @property
    def begin(self) -> int: ...


def build_kernels(
    net: StageGraph, specs: Sequence[Spec], cpu: bool, slices: Mapping[int, Cut] = MappingProxyType({})
) -> tuple[Kernel, ...]:
    """The kernels of `specs`, in order. `cpu` chooses the CPU's own convolution; `slices` are read where they lie."""
    bb = relax.BlockBuilder()
    builders = [_Builder(net, spec, f"kernel_{k}", cpu, slices) for k, spec in enumerate(specs)]
    gvs = [b.function(bb) for b in builders]
    activations = [relax.Var(name, ty) for b in builders for name, ty in b.reads()]
    with bb.function("main", activations):
        at = iter(activations)
        with bb.dataflow():
            made = []
            for gv, b in zip(gvs, builders, strict=True):
                args = [next(at) for _ in b.inputs] + [relax.const(c) for c in b.constants]
                made.append(bb.emit(relax.Call(gv, args)))
            out = bb.emit_output(relax.Tuple(made))
        bb.emit_func_output(out)
    mod = bb.get()
    for name, func in net.mod.functions.items():
        if isinstance(func, PrimFunc):
            mod[name] = func
    passes = [relax.transform.LegalizeOps(), relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]
    mod = tvm.transform.Sequential(passes)(mod)
    calls = [
        binding.value.args[0]
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call) and getattr(binding.value.op, "name", "") == "relax.call_tir"
    ]
    return tuple(
        Kernel(b.name, _plain(mod[gv]), b.inputs, tuple(b.constants), b.outputs, b.spec.merge is not None)
        for b, gv in zip(builders, calls, strict=True)
    )


def _type(tensor: Tensor) -> Any:
    return relax.TensorType(tensor.shape, tensor.dtype)


def _plain(func: Any) -> PrimFunc:
    for attr in ("global_symbol", "op_pattern"):
        if func.attrs and attr in func.attrs:
            func = func.without_attr(attr)
    return func


class _Builder:
    """Writes one kernel as a primitive Relax function whose constants are parameters."""

    def __init__(self, net: StageGraph, spec: Spec, name: str, cpu: bool, slices: Mapping[int, Cut]) -> None:
        self.net, self.spec, self.name, self.cpu, self.slices = net, spec, name, cpu, slices
        graph = net.graph
        inside = {t for i in spec.ops for t in graph.ops[i].outputs}
        self.inputs = tuple(dict.fromkeys(t for i in spec.ops for t in graph.ops[i].inputs if t not in inside))
        used = {t for i in spec.ops for t in graph.ops[i].outputs if t in graph.outputs}
        used |= {t for t in inside if set(graph.consumers[t]) - set(spec.ops)}
        self.outputs = tuple(t for i in spec.ops for t in graph.ops[i].outputs if t in used)
        self.constants: list[np.ndarray] = []
        self._params = [relax.Var(f"x{k}", self._read(t)) for k, t in enumerate(self.inputs)]
        self._exprs: dict[int, Any] = dict(zip(self.inputs, self._params, strict=True))
        self._lines: list[Any] = []

    def reads(self) -> list[tuple[str, Any]]:
        """Name and type of what each input is read from."""
        return [(f"{self.name}_{k}", self._read(t)) for k, t in enumerate(self.inputs)]

    def _read(self, t: int) -> Any:
        tensor = self.net.graph.tensors[t]
        return relax.TensorType(self.slices[t].shape, tensor.dtype) if t in self.slices else _type(tensor)

    def _cut_inputs(self, bb: Any) -> None:
        """Slices become values inside of the kernel, which its loops compute on the way."""
        for t in self.inputs:
            if t in self.slices:
                cut, extent = self.slices[t], self.net.graph.tensors[t].shape[self.slices[t].axis]
                part = relax.op.strided_slice(self._exprs[t], [cut.axis], [cut.begin], [cut.begin + extent])
                self._exprs[t] = bb.emit(part)

    def function(self, bb: Any) -> Any:
        """Add the function to `bb`'s module; its parameters are inputs, then `constants`."""
        self._prepare()
        with bb.function(self.name, self._params, attrs={"Primitive": True}, private=True):
            with bb.dataflow():
                self._cut_inputs(bb)
                result = self._merged(bb) if self.spec.merge else self._plain_ops(bb)
                out = bb.emit_output(result)
            gv = bb.emit_func_output(out)
        return gv

    def _prepare(self) -> None:
        """Constants become parameters before the function is opened: weights packed, scalars left inline."""
        self._packed: dict[int, Any] = {}
        self._args: dict[int, list[Any]] = {}
        if self.spec.merge:
            merge = self.spec.merge
            self._weight = self._parameter(self._pack_merged(merge) if self.cpu else merge.weight)
            self._tail = [[self._parameter(c) if c is not None else None for c in row] for row in merge.constants]
            return
        for i in self.spec.ops:
            call = self.net.calls[i]
            packed = self.cpu and (self._is_direct(i) or self._is_product(i))
            self._args[i] = [self._argument(a, packed and k == 1, i) for k, a in enumerate(call.args)]

    def _pack_merged(self, merge: Merge) -> np.ndarray:
        if merge.kind == "conv2d":
            return pack_weights(merge.weight)
        return pack_columns(merge.weight, self.net.graph.tensors[self.inputs[0]].shape[-2])

    def _argument(self, expr: Any, weights: bool, i: int) -> Any:
        if isinstance(expr, relax.Tuple):
            found = [(f, self.net.constant(f)) for f in expr.fields]
            return relax.Tuple([f if c is None else self._parameter(c) for f, c in found])
        value = self.net.constant(expr)
        if value is None:
            return expr
        if weights and self.net.graph.ops[i].kind == "dense":
            rows = self.net.graph.tensors[self.net.graph.ops[i].inputs[0]].shape[-2]
            return self._parameter(pack_columns(value, rows))
        if weights:
            layout = str(self.net.calls[i].attrs.kernel_layout)
            return self._parameter(pack_weights(_oihw(value, layout)))
        return relax.const(value) if value.ndim == 0 else self._parameter(value)

    def _parameter(self, value: np.ndarray) -> Any:
        self.constants.append(np.ascontiguousarray(value))
        var = relax.Var(f"c{len(self.constants) - 1}", relax.TensorType(value.shape, str(value.dtype)))
        self._params.append(var)
        return var

    def _is_direct(self, i: int) -> bool:
        op, call = self.net.graph.ops[i], self.net.calls[i]
        return (
            op.kind == "conv2d"
            and op.attrs.get("groups") == 1
            and str(call.attrs.data_layout) in ("NCHW", "NHWC")
            and self.net.graph.tensors[op.inputs[0]].dtype == "float32"
            and self.net.constant(call.args[1]) is not None
        )

    def _is_product(self, i: int) -> bool:
        op, call = self.net.graph.ops[i], self.net.calls[i]
        if op.kind != "dense" or getattr(call.op, "name", "") != "relax.matmul" or len(op.inputs) != 1:
            return False
        source, weight = self.net.graph.tensors[op.inputs[0]], self.net.constant(call.args[1])
        return source.dtype == "float32" and len(source.shape) >= 2 and weight is not None and weight.ndim == 2

    def _plain_ops(self, bb: Any) -> Any:
        for i in self.spec.ops:
            call, op = self.net.calls[i], self.net.graph.ops[i]
            args = [self._value(a) for a in self._args[i]]
            if self.cpu and self._is_direct(i):
                channels = self.net.graph.tensors[op.outputs[0]].shape[str(call.attrs.data_layout).index("C")]
                value = bb.emit_te(direct_conv2d, *args, channels, *_attributes(call.attrs))
            elif self.cpu and self._is_product(i):
                value = bb.emit_te(direct_product, *args, self.net.graph.tensors[op.outputs[0]].shape[-1])
            else:
                value = bb.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
            many = len(op.outputs) > 1
            for k, t in enumerate(op.outputs):
                self._exprs[t] = bb.emit(relax.TupleGetItem(value, k)) if many else value
        found = [self._exprs[t] for t in self.outputs]
        return found[0] if len(found) == 1 else relax.Tuple(found)

    def _value(self, expr: Any) -> Any:
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._value(f) for f in expr.fields])
        tensors = self.net.tensors_of(expr)
        if not tensors:
            return expr
        found = [self._exprs[t] for t in tensors]
        is_tuple = isinstance(getattr(expr, "ty", None), relax.TupleType)
        return relax.Tuple(found) if is_tuple else found[0]

    def _merged(self, bb: Any) -> Any:
        merge = self.spec.merge
        assert merge is not None
        x = self._exprs[self.inputs[0]]
        if merge.kind != "conv2d" and self.cpu:
            value = bb.emit_te(direct_product, x, self._weight, merge.channels)
        elif merge.kind != "conv2d":
            value = bb.emit(relax.op.matmul(x, self._weight))
        elif self.cpu:
            geometry = (merge.strides, merge.padding, merge.dilation, merge.layout)
            value = bb.emit_te(direct_conv2d, x, self._weight, merge.channels, *geometry)
        else:
            value = bb.emit(
                relax.op.nn.conv2d(
                    x,
                    self._weight,
                    list(merge.strides),
                    list(merge.padding),
                    list(merge.dilation),
                    1,
                    merge.layout,
                    "OIHW",
                )
            )
        for call, row in zip(merge.tail, self._tail, strict=True):
            extra = iter(row)
            args = [value if (c := next(extra)) is None else c for _ in call.args]
            value = bb.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
        return value


def _attributes(attrs: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]:
    return (
        tuple(int(s) for s in attrs.strides),
        tuple(int(p) for p in attrs.padding),
        tuple(int(d) for d in attrs.dilation),
        str(attrs.data_layout),
    )


def _oihw(weight: np.ndarray, layout: str) -> np.ndarray:
    return weight.transpose([layout.index(letter) for letter in "OIHW"])
