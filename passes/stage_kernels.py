"""Builds the kernels of a staged program: one unscheduled PrimFunc per kernel, its constants computed and packed.

A kernel is an anchor operator with the operators fused into it (`parallel.units`). They become one primitive Relax
function, which TVM legalizes and fuses. On CPUs float convolutions without groups and dense layers use the TE of
`schedules.stages.cpu_float`, with weights packed here. Merged operators share one kernel with stacked, zero-padded weights.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.tirx import PrimFunc

from tvm_cascade.graph import Graph
from tvm_cascade.passes.integer.expressions import constant
from tvm_cascade.passes.read.relax_names import convolution_attributes, oihw_axes
from tvm_cascade.passes.relax_functions import add_function, called_functions
from tvm_cascade.passes.stage_graph import StageGraph
from tvm_cascade.passes.stage_merge import Merge
from tvm_cascade.schedules.stages.cpu_float import direct_conv2d, direct_product, pack_columns, pack_weights


@dataclass(frozen=True)
class Kernel:
    """A PrimFunc with parameters inputs, constants, outputs; tensors by index into `StageGraph.graph.tensors`.

    A merged kernel writes one tensor, the concatenation of all `outputs` along the channels.
    """

    name: str
    func: PrimFunc
    inputs: tuple[int, ...]
    constants: tuple[np.ndarray, ...]
    outputs: tuple[int, ...]
    merged: bool = False


@dataclass(frozen=True)
class Spec:
    """The operators that a kernel computes, fused or, with `merge`, merged into one wider operator."""

    ops: tuple[int, ...]
    merge: Merge | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """A non-contiguous tensor: `[begin, begin + extent)` along `axis` of the merged tensor at `root`."""

    root: int
    shape: tuple[int, ...]  # of the merged tensor
    axis: int
    begin: int


def reads(graph: Graph, spec: Spec) -> tuple[int, ...]:
    """Tensors that a kernel reads and does not compute, in the order of its parameters."""
    inside = {t for i in spec.ops for t in graph.ops[i].outputs}
    return tuple(dict.fromkeys(t for i in spec.ops for t in graph.ops[i].inputs if t not in inside))


def writes(graph: Graph, spec: Spec) -> tuple[int, ...]:
    """Tensors that a kernel computes and that are graph outputs or read by other kernels."""
    written = [t for i in spec.ops for t in graph.ops[i].outputs]
    return tuple(t for t in written if t in graph.outputs or set(graph.consumers[t]) - set(spec.ops))


def build_kernels(
    net: StageGraph, specs: Sequence[Spec], cpu: bool, slices: Mapping[int, Slice] = MappingProxyType({})
) -> tuple[Kernel, ...]:
    """The kernels of `specs`, in order. `cpu` selects the TE of `cpu_float`; `slices` are read inside the merged tensor."""
    bb = relax.BlockBuilder()
    builders = [_Builder(net, spec, f"kernel_{k}", cpu, slices) for k, spec in enumerate(specs)]
    gvs = [b.function(bb) for b in builders]
    activations = [relax.Var(f"{b.name}_{k}", b.type_read(t)) for b in builders for k, t in enumerate(b.inputs)]

    def emit() -> Any:
        at = iter(activations)
        calls = [
            relax.Call(gv, [*(next(at) for _ in b.inputs), *map(constant, b.constants)])
            for gv, b in zip(gvs, builders, strict=True)
        ]
        return relax.Tuple([bb.emit(call) for call in calls])

    add_function(bb, "main", activations, emit)
    mod = bb.get()
    for name, func in net.mod.functions.items():
        if isinstance(func, PrimFunc):
            mod[name] = func
    passes = [relax.transform.LegalizeOps(), relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]
    mod = tvm.transform.Sequential(passes)(mod)
    functions = (mod[gv].without_attr("global_symbol").without_attr("op_pattern") for gv in called_functions(mod))
    return tuple(
        Kernel(b.name, func, b.inputs, tuple(b.constants), b.outputs, b.spec.merge is not None)
        for b, func in zip(builders, functions, strict=True)
    )


class _Builder:
    """Writes one kernel as a primitive Relax function whose constants are parameters."""

    def __init__(self, net: StageGraph, spec: Spec, name: str, cpu: bool, slices: Mapping[int, Slice]) -> None:
        self.net, self.spec, self.name, self.cpu, self.slices = net, spec, name, cpu, slices
        self.inputs, self.outputs = reads(net.graph, spec), writes(net.graph, spec)
        self.constants: list[np.ndarray] = []
        self._params = [relax.Var(f"x{k}", self.type_read(t)) for k, t in enumerate(self.inputs)]
        self._exprs: dict[int, Any] = dict(zip(self.inputs, self._params, strict=True))

    def type_read(self, t: int) -> Any:
        """The type of an input parameter: the tensor's, or that of the merged tensor of which it is a slice."""
        tensor = self.net.graph.tensors[t]
        return relax.TensorType(self.slices[t].shape if t in self.slices else tensor.shape, tensor.dtype)

    def _cut_inputs(self, bb: Any) -> None:
        """Emit a `strided_slice` for each input that is a slice; it is fused into the kernel."""
        for t in self.inputs:
            if t in self.slices:
                cut, extent = self.slices[t], self.net.graph.tensors[t].shape[self.slices[t].axis]
                part = relax.op.strided_slice(self._exprs[t], [cut.axis], [cut.begin], [cut.begin + extent])
                self._exprs[t] = bb.emit(part)

    def function(self, bb: Any) -> Any:
        """Add the primitive function to `bb`'s module; its parameters are the inputs, then the constants."""
        with bb.function(self.name, attrs={"Primitive": True}, private=True):
            with bb.dataflow():
                self._cut_inputs(bb)
                out = bb.emit_output(self._merged(bb, self.spec.merge) if self.spec.merge else self._plain_ops(bb))
            return bb.emit_func_output(out, self._params)

    def _value(self, expr: Any) -> Any:
        """A call's argument inside the kernel: an activation's value, a scalar constant inline, others as parameters."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._value(f) for f in expr.fields])
        held, tensors = self.net.constant(expr), self.net.tensors_of(expr)
        if held is not None:
            return constant(held) if held.ndim == 0 else self._parameter(held)
        operands = [self._exprs[t] for t in tensors]
        return (
            relax.Tuple(operands) if isinstance(getattr(expr, "ty", None), relax.TupleType) else (operands or [expr])[0]
        )

    def _packed(self, i: int) -> Any:
        """The weights of a convolution or dense layer, packed for the TE of `cpu_float`, as a parameter."""
        op, call = self.net.graph.ops[i], self.net.calls[i]
        weights = self.net.constant(call.args[1])
        assert weights is not None
        if op.kind == "dense":
            return self._parameter(pack_columns(weights, self.net.graph.tensors[op.inputs[0]].shape[-2]))
        return self._parameter(pack_weights(weights.transpose(oihw_axes(str(call.attrs.kernel_layout)))))

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
            direct, product = self.cpu and self._is_direct(i), self.cpu and self._is_product(i)
            args = [
                self._packed(i) if k == 1 and (direct or product) else self._value(a) for k, a in enumerate(call.args)
            ]
            if direct:
                channels = self.net.graph.tensors[op.outputs[0]].shape[str(call.attrs.data_layout).index("C")]
                attrs = convolution_attributes(call.attrs)
                geometry = (attrs[k] for k in ("strides", "padding", "dilation", "layout"))
                value = bb.emit_te(direct_conv2d, *args, channels, *geometry)
            elif product:
                value = bb.emit_te(direct_product, *args, self.net.graph.tensors[op.outputs[0]].shape[-1])
            else:
                value = bb.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
            many = len(op.outputs) > 1
            for k, t in enumerate(op.outputs):
                self._exprs[t] = bb.emit(relax.TupleGetItem(value, k)) if many else value
        results = [self._exprs[t] for t in self.outputs]
        return results[0] if len(results) == 1 else relax.Tuple(results)

    def _merged(self, bb: Any, merge: Merge) -> Any:
        x, weights = self._exprs[self.inputs[0]], merge.weight
        if merge.kind == "conv2d":
            weight = self._parameter(pack_weights(weights) if self.cpu else weights)
            geometry = (list(merge.strides), list(merge.padding), list(merge.dilation))
            if self.cpu:
                value = bb.emit_te(direct_conv2d, x, weight, merge.channels, *map(tuple, geometry), merge.layout)
            else:
                value = bb.emit(relax.op.nn.conv2d(x, weight, *geometry, 1, merge.layout, "OIHW"))
        elif self.cpu:
            weight = self._parameter(pack_columns(weights, self.net.graph.tensors[self.inputs[0]].shape[-2]))
            value = bb.emit_te(direct_product, x, weight, merge.channels)
        else:
            value = bb.emit(relax.op.matmul(x, self._parameter(weights)))
        for call, row in zip(merge.tail, merge.constants, strict=True):
            args = [value if c is None else self._parameter(c) for c in row]
            value = bb.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
        return value
