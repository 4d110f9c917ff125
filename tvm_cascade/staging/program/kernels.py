"""Builds the kernels of a staged program: a single unscheduled PrimFunc per kernel, constants computed and packed.

A kernel is an anchor operator with the fused operators (`parallel.units`). They become one primitive Relax function,
legalized and fused by TVM. On CPUs float convolutions without groups and dense layers use the TE of
`staging.kernels.cpu_float`, with weights packed here. Merged operators share a single kernel with stacked, zero-padded
weights.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.tirx import PrimFunc

from tvm_cascade.cost.winograd import winograd_size
from tvm_cascade.operators.table import ELEMENTWISE
from tvm_cascade.passes.casts import saturates
from tvm_cascade.passes.integer.expressions import constant
from tvm_cascade.passes.legalizations import legalizations
from tvm_cascade.passes.read.relax_names import convolution_attributes, oihw_axes
from tvm_cascade.passes.relax_functions import add_function, called_functions, is_call_tir
from tvm_cascade.staging.kernels.cpu_compute import (
    LANES,
    PACKED,
    attention_dots,
    attention_mix,
    attention_scores,
    direct_conv2d,
    direct_depthwise,
    direct_pointwise,
    direct_product,
    pack,
    pack_columns,
    pack_rows,
    pack_taps,
    pack_weights,
    softmax,
    takes_pixels,
    unpack,
    whole,
)
from tvm_cascade.staging.kernels.cpu_integer import PLAIN, Dot, integer_product, pack_integers
from tvm_cascade.staging.kernels.cpu_stored import pack_stored
from tvm_cascade.staging.kernels.cpu_winograd import pack_winograd, winograd_conv2d
from tvm_cascade.staging.kernels.cuda_compute import convolution_as_product, dense_as_product
from tvm_cascade.staging.program.graph import WIDE, StageGraph
from tvm_cascade.staging.program.integers import PRODUCT
from tvm_cascade.staging.program.layouts import packed_shape
from tvm_cascade.staging.program.merge import Merge
from tvm_cascade.staging.program.operators import least_operand, takes_numbers
from tvm_cascade.staging.program.parts import write_part
from tvm_cascade.staging.program.precision import is_product
from tvm_cascade.staging.program.specs import Kernel, Slice, Spec, reads, writes

_FEW_ROWS = 4  # of queries, for which keys are not packed
_LEAST_ROWS = 16  # of a product that is shared among tiles of results on CUDA: one of less streams its matrix once


def build_kernels(
    net: StageGraph,
    specs: Sequence[Spec],
    cpu: bool,
    slices: Mapping[int, Slice] = MappingProxyType({}),
    packed: Set[int] = frozenset(),
    winograd: int = 4,
    accumulators: int | None = None,
    dot: Dot = PLAIN,
) -> tuple[Kernel, ...]:
    """Build the kernels for `specs`, in order. `cpu` selects the TE of `cpu_float`.

    `slices` are read inside the merged tensor; `packed` tensors have the layout of `stage_layouts`; `winograd`: largest
    tiles of `cpu_winograd`, 0 for none; `accumulators`: of the processor (`processors.accumulators`), None for any; `dot`: of
    products of integers (`processors.integer_dot`).
    """
    bb = relax.BlockBuilder()
    options = (cpu, slices, packed, winograd, accumulators, dot)
    builders = [_Builder(net, spec, f"kernel_{k}", *options) for k, spec in enumerate(specs)]
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
            mod[name] = _with_long_shapes(func)
    passes = [
        relax.transform.LegalizeOps(legalizations(saturates(net.mod))),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
    mod = tvm.transform.Sequential(passes)(mod)
    functions = (mod[gv].without_attr("global_symbol").without_attr("op_pattern") for gv in called_functions(mod))
    return tuple(
        Kernel(b.name, b.placed(func), b.inputs, tuple(b.constants), b.outputs, b.spec.merge is not None, func)
        for b, func in zip(builders, functions, strict=True)
    )


def _with_long_shapes(func: Any) -> PrimFunc:
    """Convert the shapes of a PrimFunc's buffers to int64, as in Relax: `FuseTIR` compares them."""
    buffers = {p: p.ty.shape for p in func.params if hasattr(p.ty, "shape")}
    if not all(isinstance(d, tirx.IntImm) for shape in buffers.values() for d in shape):
        return func
    made = {
        p: tirx.decl_buffer([tirx.IntImm("int64", int(d)) for d in shape], p.ty.dtype, p.name, layout=None)
        for p, shape in buffers.items()
        if any(str(d.ty) != "int64" for d in shape) and p.ty.layout is None and not p.ty.strides
    }
    if not made:
        return func
    body = tvm_ffi.structural_map(func.body, [(tirx.Var, lambda v: made.get(v, v))], order="post")
    return PrimFunc([made.get(p, p) for p in func.params], body, func.ret_type, func.attrs)


class _Builder:
    """Writes a kernel as a primitive Relax function with constants as parameters."""

    def __init__(
        self,
        net: StageGraph,
        spec: Spec,
        name: str,
        cpu: bool,
        slices: Mapping[int, Slice],
        packed: Set[int],
        winograd: int,
        accumulators: int | None,
        dot: Dot,
    ) -> None:
        self.winograd, self.accumulators, self.dot = winograd, accumulators, dot
        self.net, self.spec, self.name, self.cpu, self.slices, self.packed = net, spec, name, cpu, slices, packed
        self.inputs, self.outputs = reads(net.graph, spec), writes(net.graph, spec)
        self.constants: list[np.ndarray] = []
        self._params = [relax.Var(f"x{k}", self.type_read(t)) for k, t in enumerate(self.inputs)]
        self._given: dict[int, Any] = dict(zip(self.inputs, self._params, strict=True))
        self._exprs: dict[int, Any] = {t: x for t, x in self._given.items() if t not in packed}  # in plain layout
        self._narrow = {t for t in self.inputs if net.is_narrow(t)}  # not widened yet
        self._stored: dict[int, Any] = {}  # narrow inputs as they are stored

    def type_read(self, t: int) -> Any:
        """Return the type of an input parameter: the tensor's, or for a slice the merged tensor's."""
        tensor = self.net.graph.tensors[t]
        if t in self.packed:
            return relax.TensorType(packed_shape(tensor.shape), tensor.dtype)
        return relax.TensorType(self.slices[t].shape if t in self.slices else tensor.shape, tensor.dtype)

    def _cut_inputs(self, bb: Any) -> None:
        """Emit a `strided_slice`, fused into the kernel, for each input that is a slice."""
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

    def placed(self, func: PrimFunc) -> PrimFunc:
        """Replace the kernel's results by the larger tensors they are parts of; a merge writes all parts and stays as
        is.
        """
        if self.spec.merge is None:
            for k, t in enumerate(self.outputs, len(self.inputs) + len(self.constants)):
                func = write_part(func, k, self.slices[t]) if t in self.slices else func
        return func

    def _plain(self, bb: Any, t: int) -> Any:
        """Emit a tensor in plain layout and wide; unpacking and widening are fused into the readers."""
        if t not in self._exprs:
            self._exprs[t] = bb.emit_te(unpack, self._given[t])
        if t in self._narrow:
            self._narrow.remove(t)
            self._stored[t] = self._exprs[t]
            self._exprs[t] = bb.emit(relax.op.astype(self._exprs[t], WIDE))
        return self._exprs[t]

    def _multiplied(self, bb: Any, t: int) -> Any:
        """Emit a tensor in plain layout, in the type products multiply."""
        if t in self._narrow:
            return self._exprs[t]
        wide = self._plain(bb, t)
        return self._stored[t] if t in self._stored else bb.emit(relax.op.astype(wide, self.net.multiplied))

    def _written(self, bb: Any, t: int, value: Any) -> Any:
        """Emit the kernel's written value, packed or rounded as the tensor is stored."""
        if self.net.is_narrow(t):
            return bb.emit(relax.op.astype(value, self.net.multiplied))
        return bb.emit_te(pack, value) if t in self.packed else value

    def _value(self, bb: Any, expr: Any, i: int) -> Any:
        """Emit an argument of operator `i`: an activation's value, a constant as parameter, or an inline constant.

        Constants have as many channels as the call's result; channels that fill up a vector are zeros.
        """
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._value(bb, f, i) for f in expr.fields])
        held, tensors = self.net.constant(expr), self.net.tensors_of(expr)
        if held is not None:
            op, call = self.net.graph.ops[i], self.net.calls[i]
            result, *read = (self.net.graph.tensors[t].shape for t in (op.outputs[0], *op.inputs))
            held = least_operand(call, held, result, read)
            inline = held.ndim == 0 and takes_numbers(call)
            return constant(held) if inline else self._parameter(self._filled(held, op.outputs[0]))
        operands = [self._plain(bb, t) for t in tensors]
        return (
            relax.Tuple(operands) if isinstance(getattr(expr, "ty", None), relax.TupleType) else (operands or [expr])[0]
        )

    def _channels(self, out: int, axis: int) -> int:
        """Return the channels of tensor `out` inside the kernel; `axis` is the plain layout's channel axis."""
        channels = self.net.graph.tensors[out].shape[axis]
        return whole(channels) if out in self.packed else channels

    def _filled(self, held: np.ndarray, out: int) -> np.ndarray:
        more = self._channels(out, 1) - held.shape[-3] if out in self.packed and held.ndim >= 3 else 0
        if more == 0 or held.shape[-3] == 1:
            return held
        return np.pad(held, [(0, more if axis == held.ndim - 3 else 0) for axis in range(held.ndim)])

    def _parameter(self, value: np.ndarray) -> Any:
        self.constants.append(np.ascontiguousarray(value).reshape(value.shape))  # it gives numbers an axis
        var = relax.Var(f"c{len(self.constants) - 1}", relax.TensorType(value.shape, str(value.dtype)))
        self._params.append(var)
        return var

    def _is_direct(self, i: int) -> bool:
        op, call = self.net.graph.ops[i], self.net.calls[i]
        return (
            op.kind == "conv2d"
            and len(op.inputs) == 1
            and op.attrs.get("groups") == 1
            and str(call.attrs.data_layout) in ("NCHW", "NHWC")
            and self.net.graph.tensors[op.inputs[0]].dtype in (WIDE, self.net.multiplied)
            and self.net.constant(call.args[1]) is not None
        )

    def _is_alone(self, i: int) -> bool:
        """Test whether operator `i` has a single result in this kernel and only element-wise companions."""
        others = [self.net.graph.ops[j] for j in self.spec.ops if j != i]
        return len(self.outputs) == 1 and all(op.kind in ELEMENTWISE for op in others)

    def _tiled(self, bb: Any, i: int) -> Any:
        """Emit a convolution, or a product of more than a few rows, for CUDA; None for another operator."""
        op, call = self.net.graph.ops[i], self.net.calls[i]
        weight = self.net.constant(call.args[1]) if self._is_direct(i) or self._is_product(i) else None
        if weight is None:
            return None
        if op.kind == "conv2d":
            attrs = convolution_attributes(call.attrs)
            geometry = (attrs["strides"], attrs["padding"], attrs["dilation"])
            oihw = weight.transpose(oihw_axes(str(call.attrs.kernel_layout)))
            return self._tiled_convolution(bb, op.inputs[0], oihw, geometry, attrs["layout"])
        shape = self.net.graph.tensors[op.inputs[0]].shape
        if prod(shape[:-1]) < _LEAST_ROWS:
            return None
        return self._as_product(bb, op.inputs[0], *dense_as_product(shape, weight, self.net.arithmetic))

    def _tiled_convolution(self, bb: Any, t: int, oihw: np.ndarray, geometry: Sequence[Any], layout: str) -> Any:
        shape = self.net.graph.tensors[t].shape
        return self._as_product(bb, t, *convolution_as_product(shape, layout, oihw, geometry, self.net.arithmetic))

    @property
    def _narrows(self) -> bool:
        """Test whether products multiply narrow values."""
        return self.net.multiplied != WIDE

    def _as_product(self, bb: Any, t: int, weight: np.ndarray, compute: Any) -> Any:
        x = self._multiplied(bb, t) if self._narrows else self._plain(bb, t)
        return bb.emit_te(compute, x, self._factor(weight) if self._narrows else self._parameter(weight))

    def _is_product(self, i: int) -> bool:
        op, call = self.net.graph.ops[i], self.net.calls[i]
        if op.kind != "dense" or getattr(call.op, "name", "") != "relax.matmul" or len(op.inputs) != 1:
            return False
        source, weight = self.net.graph.tensors[op.inputs[0]], self.net.constant(call.args[1])
        floats = source.dtype in (WIDE, self.net.multiplied)
        return floats and len(source.shape) >= 2 and weight is not None and weight.ndim == 2

    def _is_last_axis(self, i: int) -> bool:
        """Test whether a softmax is over the last axis, in float32."""
        tensor = self.net.graph.tensors[self.net.graph.ops[i].inputs[0]]
        return self.net.graph.ops[i].attrs.get("axis") == len(tensor.shape) - 1 and tensor.dtype == "float32"

    def _has_softmax_behind(self, i: int) -> bool:
        """Test whether a product computes attention scores: a softmax follows in this kernel."""
        return any(self.net.graph.ops[j].kind == "softmax" for j in self.spec.ops if j > i)

    def _reads_keys_once(self, i: int) -> bool:
        """Test whether a product of attention has few rows, and keys whose depth is contiguous and fills vectors."""
        graph, t = self.net.graph, self.net.graph.ops[i].inputs[1]
        rows, depth = graph.tensors[self.net.graph.ops[i].inputs[0]].shape[-2:]
        if rows > _FEW_ROWS or depth % LANES:
            return False
        while (producer := graph.producer[t]) in self.spec.ops and producer is not None:
            op, call = graph.ops[producer], self.net.calls[producer]
            if op.kind == "permute_dims":
                rank, axes = len(graph.tensors[t].shape), call.attrs.axes
                return axes is None or int(axes[-1]) % rank != rank - 1
            t = op.inputs[0]
        return False

    def _columns(self, i: int) -> int:
        return self.net.graph.tensors[self.net.graph.ops[i].outputs[0]].shape[-1]

    def _mixes(self, i: int) -> bool:
        """Test whether operator `i` is the softmax of an attention, and part of the product behind it (`attention_mix`).

        Columns that fill up the last vector need scores that are computed by elements and numbers alone.
        """
        ops = self.net.graph.ops
        products = [j for j in self.spec.ops if ops[j].kind == "matmul"]
        if ops[i].kind != "softmax" or len(products) != 2 or not products[0] < i < products[1]:
            return False
        if ops[products[1]].inputs[0] != ops[i].outputs[0]:
            return False
        if self._columns(i) % LANES == 0:
            return True
        between = self._between(products[0], i)
        return between is not None and all(self._by_numbers(j) for j in between)

    def _between(self, first: int, last: int) -> list[int] | None:
        """List the operators on the path from `first` to `last`, each with one input; None for another path."""
        graph, path, at = self.net.graph, [], last
        while at != first:
            inputs = set(graph.ops[at].inputs)
            producer = graph.producer[next(iter(inputs))] if len(inputs) == 1 else None
            if producer is None or producer not in self.spec.ops:
                return None
            at = producer
            path.append(at)
        return path[:-1]

    def _by_numbers(self, i: int) -> bool:
        """Test whether an operator is element-wise and its constants are single numbers."""
        held = [c for a in self.net.calls[i].args if (c := self.net.constant(a)) is not None]
        return self.net.graph.ops[i].kind in ELEMENTWISE and all(c.size == 1 for c in held)

    def _direct(self, bb: Any, i: int) -> Any:
        """Emit the operator by the TE of `cpu_float`; None without such TE."""
        op, call = self.net.graph.ops[i], self.net.calls[i]
        if not self.cpu and self._is_alone(i) and (tiled := self._tiled(bb, i)) is not None:
            return tiled
        if self.net.multiplied != WIDE:
            return self._narrow_product(bb, i) if is_product(self.net, i) else None
        if not self.cpu:
            return None
        if op.kind == "softmax" and self._is_last_axis(i):
            source = self._plain(bb, op.inputs[0])
            return source if self._mixes(i) else bb.emit_te(softmax, source)
        if op.kind == "matmul" and self._has_softmax_behind(i):
            filled = next((whole(self._columns(j)) for j in self.spec.ops if self._mixes(j)), None)
            compute = attention_dots if self._reads_keys_once(i) else attention_scores
            return bb.emit_te(compute, *(self._plain(bb, t) for t in op.inputs), filled)
        if op.kind == "matmul" and any(self._mixes(j) and j < i for j in self.spec.ops):
            return bb.emit_te(attention_mix, *(self._plain(bb, t) for t in op.inputs))
        if is_call_tir(call) and (self.net.mod[call.args[0]].attrs or {}).get(PRODUCT):
            return self._integer_product(bb, call)
        if self._is_product(i):
            weights, rows = self.net.constant(call.args[1]), self.net.graph.tensors[op.inputs[0]].shape[-2]
            assert weights is not None
            if (stored := self._stored_product(bb, i, rows)) is not None:
                return stored
            return self._product(bb, self._plain(bb, op.inputs[0]), weights, rows)
        depthwise = op.kind == "depthwise_conv2d" and op.inputs[0] in self.packed
        if not self._is_direct(i) and not depthwise:
            return None
        attrs, weights = convolution_attributes(call.attrs), self.net.constant(call.args[1])
        if weights is None:
            return None
        oihw = weights.transpose(oihw_axes(str(call.attrs.kernel_layout)))
        geometry = (attrs["strides"], attrs["padding"], attrs["dilation"])
        if depthwise:
            given = self._given.get(op.inputs[0])
            source = bb.emit_te(pack, self._exprs[op.inputs[0]]) if given is None else given
            return bb.emit_te(direct_depthwise, source, self._parameter(pack_taps(oihw)), *geometry)
        channels = self._channels(op.outputs[0], attrs["layout"].index("C"))
        return self._convolution(bb, op.inputs[0], oihw, channels, geometry, attrs["layout"])

    def _convolution(
        self, bb: Any, t: int, oihw: np.ndarray, channels: int, geometry: Sequence[Any], layout: str
    ) -> Any:
        """Emit a convolution of tensor `t`, in the tensor's own layout, to `channels`."""
        packed = t in self.packed and t in self._given
        x, layout = (self._given[t], PACKED) if packed else (self._plain(bb, t), layout)
        size = self._winograd_size(t, oihw, geometry) if packed else None
        if size is not None:
            weight = self._parameter(pack_winograd(oihw, size))
            return bb.emit_te(winograd_conv2d, x, weight, channels, geometry[1], size)
        if layout == "NCHW" and self._is_pointwise(t, oihw, geometry):
            return bb.emit_te(direct_pointwise, self._plain(bb, t), self._parameter(pack_rows(oihw)), channels)
        weight = self._parameter(pack_weights(oihw, LANES if packed else 1))
        return bb.emit_te(direct_conv2d, x, weight, channels, *geometry, layout)

    def _is_pointwise(self, t: int, oihw: np.ndarray, geometry: Sequence[Any]) -> bool:
        """Test whether a convolution of tensor `t` multiplies pixels one by one, and the kernel writes pixel vectors."""
        strides, padding, _ = geometry
        alone = [*oihw.shape[2:], *strides, *padding] == [1, 1, 1, 1, 0, 0, 0, 0]
        plain = t not in self.packed and self.packed.isdisjoint(self.outputs)
        return alone and plain and takes_pixels(self.net.graph.tensors[t].shape, len(oihw))

    def _winograd_size(self, t: int, oihw: np.ndarray, geometry: Sequence[Any]) -> int | None:
        """Return the Winograd tile size for a convolution of tensor `t`; None if another form has less work."""
        strides, padding, dilation = ([int(v) for v in values] for values in geometry)
        alone = sum(self.net.graph.ops[i].kind not in ELEMENTWISE for i in self.spec.ops) == 1 or self.spec.merge
        if not alone or [*oihw.shape[2:], *strides, *dilation] != [3, 3, 1, 1, 1, 1]:
            return None
        _, channels, high, wide = self.net.graph.tensors[t].shape
        out = (high + padding[0] + padding[2] - 2, wide + padding[1] + padding[3] - 2)
        return winograd_size((channels, oihw.shape[0]), out, self.winograd)

    def _product(self, bb: Any, x: Any, weights: np.ndarray, rows: int) -> Any:
        packed = self._parameter(pack_columns(weights, rows, self.accumulators))
        return bb.emit_te(direct_product, x, packed, weights.shape[-1])

    def _stored_product(self, bb: Any, i: int, rows: int) -> Any:
        """Emit a product with weights as the file stores them; None for weights stored as floats."""
        weights = self.net.stored(self.net.calls[i].args[1])
        packed = None if weights is None else pack_stored(weights, rows, self.accumulators)
        if weights is None or packed is None:
            return None
        x, arrays = self._plain(bb, self.net.graph.ops[i].inputs[0]), map(self._parameter, packed.arrays)
        return bb.emit_te(packed.product, x, weights.values.shape[1], *arrays)

    def _integer_product(self, bb: Any, call: Any) -> Any:
        """Emit an integer product packed for the processor; None for a depth without whole steps."""
        *given, weights, sums, factors = call.args[1].fields
        operands = [self._plain(bb, t) for value in given for t in self.net.tensors_of(value)]
        held = [self.net.constant(value) for value in (weights, sums, factors)]
        matrix, total, factor = (value for value in held if value is not None)
        *_, rows, depth = (int(d.value) for d in operands[0].ty.shape)
        if depth % self.dot.step:
            return None
        plain = matrix.transpose(1, 3, 0, 2).reshape(-1, matrix.shape[0] * matrix.shape[2])[:depth, : len(total)]
        constants = (pack_integers(plain, self.dot, rows), total, factor)
        return bb.emit_te(
            integer_product,
            *operands,
            *map(self._parameter, constants),
            self.dot.reads,
            primfunc_name_hint="packed_integers",
        )

    def _narrow_product(self, bb: Any, i: int) -> Any:
        """Emit a product of narrow values, summed in float32."""
        call, values = self.net.calls[i], []
        for arg in call.args:
            held = self.net.constant(arg)
            values += (
                [self._multiplied(bb, t) for t in self.net.tensors_of(arg)] if held is None else [self._factor(held)]
            )
        if self.net.graph.ops[i].kind != "conv2d":
            return bb.emit(relax.op.matmul(*values, out_dtype=WIDE))
        attrs: Any = {name: list(getattr(call.attrs, name)) for name in ("strides", "padding", "dilation")}
        attrs |= {name: str(getattr(call.attrs, name)) for name in ("data_layout", "kernel_layout", "out_layout")}
        return bb.emit(relax.op.nn.conv2d(*values, **attrs, out_dtype=WIDE))

    def _factor(self, weight: np.ndarray) -> Any:
        return self._parameter(weight.astype(self.net.multiplied))

    def _factors(self, bb: Any, t: int, weight: np.ndarray, narrow: bool) -> tuple[Any, Any]:
        """Emit both factors of a merged product."""
        if narrow:
            return self._multiplied(bb, t), self._factor(weight)
        return self._plain(bb, t), self._parameter(weight)

    def _plain_ops(self, bb: Any) -> Any:
        for i in self.spec.ops:
            call, op = self.net.calls[i], self.net.graph.ops[i]
            value = self._direct(bb, i)
            if value is None:
                args = [self._value(bb, a, i) for a in call.args]
                value = bb.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
            many = len(op.outputs) > 1
            for k, t in enumerate(op.outputs):
                self._exprs[t] = bb.emit(relax.TupleGetItem(value, k)) if many else value
        results = [self._written(bb, t, self._exprs[t]) for t in self.outputs]
        return results[0] if len(results) == 1 else relax.Tuple(results)

    def _merged(self, bb: Any, merge: Merge) -> Any:
        t, packs = self.inputs[0], self.cpu and self.net.multiplied == WIDE
        narrow = self.net.multiplied != WIDE and is_product(self.net, self.spec.ops[0])
        summed: Any = {"out_dtype": WIDE} if narrow else {}
        if merge.is_convolution:
            geometry = (merge.strides, merge.padding, merge.dilation)
            if packs:
                value = self._convolution(bb, t, merge.weight, merge.channels, geometry, merge.layout)
            elif merge.layout in ("NCHW", "NHWC"):
                value = self._tiled_convolution(bb, t, merge.weight, geometry, merge.layout)
            else:
                factors = self._factors(bb, t, merge.weight, narrow)
                attrs: Any = dict(zip(("strides", "padding", "dilation"), map(list, geometry), strict=True))
                value = bb.emit(relax.op.nn.conv2d(*factors, **attrs, data_layout=merge.layout, **summed))
        elif packs:
            value = self._product(bb, self._plain(bb, t), merge.weight, self.net.graph.tensors[t].shape[-2])
        else:
            value = bb.emit(relax.op.matmul(*self._factors(bb, t, merge.weight, narrow), **summed))
        for call, row in zip(merge.tail, merge.constants, strict=True):
            args = [value if c is None else self._parameter(c) for c in row]
            value = bb.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
        return self._written(bb, self.outputs[0], value)
