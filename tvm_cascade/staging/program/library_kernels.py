"""Kernels of a library, cuDNN, in place of ours: a single packed call for a product and the operators fused behind.

    call_packed("tvm_cascade.cudnn", text, x, [addend], weight, [bias], y)

`text` is a JSON object that describes the computation (`LibraryProduct.text`). The program's user registers the
function (`runtime/library_kernels.py`); inside a captured program the function runs once, while kernels are recorded,
so no Python stays in the loop. If a tensor is a part of another along the channels, the call gets the whole tensor and
the part's begin.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import te, tirx

from tvm_cascade.passes.read.relax_names import convolution_attributes, oihw_axes
from tvm_cascade.staging.program.graph import WIDE, StageGraph
from tvm_cascade.staging.program.precision import is_product
from tvm_cascade.staging.program.specs import Kernel, Slice, Spec, reads, writes

CUDNN = "tvm_cascade.cudnn"  # the packed function


@dataclass(frozen=True)
class LibraryProduct:
    """A convolution of an image with channels last, or a matrix product, with the operations on the result."""

    source: int  # tensor that is multiplied
    weight: np.ndarray  # of a convolution [out channels][rows][columns][in channels], of a product [depth][columns]
    strides: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()  # top, left, bottom, right
    dilation: tuple[int, ...] = ()
    bias: np.ndarray | None = None  # one number a channel, float32
    addend: int | None = None  # tensor that is added then
    clip: tuple[float, float] | None = None  # bounds of the result at last

    @property
    def columns(self) -> int:
        """Return the result's number of channels."""
        return self.weight.shape[0] if self.weight.ndim == 4 else self.weight.shape[1]

    def text(self, depth: int, begins: Sequence[int], types: Sequence[str], tf32: bool) -> str:
        """Format the computation as JSON text for the packed function.

        `begins`: first channels of source, addend and result in their tensors. `types`: element types of the call's
        tensors; TVM may report others, as bfloat16 is computed in float32.
        """
        low, high = self.clip or (None, None)
        said: dict[str, Any] = {"kind": "conv2d" if self.weight.ndim == 4 else "matmul"}
        said |= {"strides": self.strides, "padding": self.padding, "dilation": self.dilation}
        said |= {"channels": [depth, self.columns], "begins": list(begins), "types": list(types)}
        said |= {"tf32": tf32, "bias": self.bias is not None, "addend": self.addend is not None}
        said |= {"low": low, "high": None if high == inf else high}
        return json.dumps(said, separators=(",", ":"))


def library_kernel(
    net: StageGraph, spec: Spec, name: str, slices: Mapping[int, Slice] = MappingProxyType({})
) -> Kernel | None:
    """Build the kernel that calls the library for `spec`; None without a library kernel. `slices`: as for
    `build_kernels`.
    """
    product = _product(net, spec)
    outputs = writes(net.graph, spec)
    if product is None or (spec.merge is None and len(outputs) != 1):
        return None
    inputs = reads(net.graph, spec)
    if set(inputs) != {product.source} | ({product.addend} if product.addend is not None else set()):
        return None
    given = [net.graph.tensors[t] for t in inputs]
    parts = [slices.get(t) for t in inputs] + [slices.get(outputs[0]) if spec.merge is None else None]
    if any(part is not None and part.axis != len(part.shape) - 1 for part in parts):
        return None
    written = net.graph.tensors[outputs[0]]
    whole = (*written.shape[:-1], product.columns)
    weight = product.weight.astype(net.multiplied)
    constants = [np.ascontiguousarray(weight), *([] if product.bias is None else [product.bias])]
    shapes = [part.shape if part else t.shape for part, t in zip(parts, given, strict=False)]
    places = [te.placeholder(s, t.dtype, name=f"x{k}") for k, (s, t) in enumerate(zip(shapes, given, strict=True))]
    places += [te.placeholder(c.shape, str(c.dtype), name=f"c{k}") for k, c in enumerate(constants)]
    begins = {t: part.begin if part else 0 for t, part in zip((*inputs, -1), parts, strict=True)}
    at = [begins[product.source], begins.get(product.addend if product.addend is not None else -2, 0), begins[-1]]
    depth = net.graph.tensors[product.source].shape[-1]
    order = sorted(range(len(inputs)), key=lambda k: inputs[k] != product.source)  # the source first
    types = [*(given[k].dtype for k in order), *(str(c.dtype) for c in constants), written.dtype]
    text = product.text(depth, at, types, net.tf32)

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        return tirx.call_packed(CUDNN, text, *(ins[k] for k in order), *ins[len(inputs) :], outs[0])

    last = parts[-1]
    result = te.extern(last.shape if last else whole, places, body, name="library", dtype=written.dtype)
    func = te.create_prim_func([*places, result]).with_attr("tirx.is_scheduled", True)
    return Kernel(name, func, inputs, tuple(constants), outputs, spec.merge is not None)


def calls_library(func: Any) -> bool:
    """Test whether a PrimFunc calls the library."""
    found = False

    def called(call: tvm.ir.Call) -> None:
        nonlocal found
        first = getattr(call.args[0], "value", None) if len(call.args) else None
        found = found or (isinstance(first, str) and first == CUDNN)  # a cast's value is an expression

    tvm_ffi.structural_walk(func.body, (tvm.ir.Call, called))
    return found


def with_library(
    net: StageGraph,
    specs: Sequence[Spec],
    kernels: Sequence[Kernel],
    slices: Mapping[int, Slice],
    chosen: Callable[[Any], bool],
) -> tuple[Kernel, ...]:
    """Replace kernels by the library's if `chosen` accepts the PrimFunc, given before parts are written."""
    made = []
    for spec, kernel in zip(specs, kernels, strict=True):
        found = library_kernel(net, spec, kernel.name, slices) if chosen(kernel.plain) else None
        made.append(found or kernel)
    return tuple(made)


def _product(net: StageGraph, spec: Spec) -> LibraryProduct | None:
    """Return a kernel as a product by constant weights, with at most bias, addend and activation; None for other
    kernels.
    """
    if spec.merge is not None:
        merge = spec.merge
        if merge.is_convolution and merge.layout != "NHWC":
            return None
        source = reads(net.graph, spec)[0]
        weight = merge.weight.transpose(0, 2, 3, 1) if merge.is_convolution else merge.weight
        head = LibraryProduct(source, weight, merge.strides, merge.padding, merge.dilation)
        rows = zip(merge.tail, merge.constants, strict=True)
        tail = [(call, [c for c in row if c is not None], ()) for call, row in rows]
    else:
        first = spec.ops[0]
        found = _head(net, first)
        if found is None:
            return None
        head, tail = found, list(_tail(net, spec.ops))
        if len(tail) != len(spec.ops) - 1:
            return None
    if net.graph.tensors[head.source].dtype != net.multiplied:
        return None
    return _with_tail(net, head, tail)


def _head(net: StageGraph, i: int) -> LibraryProduct | None:
    op, call = net.graph.ops[i], net.calls[i]
    weight = net.constant(call.args[1]) if is_product(net, i) and len(op.inputs) == 1 else None
    if weight is None:
        return None
    if op.kind == "conv2d":
        attrs = convolution_attributes(call.attrs)
        if attrs["layout"] != "NHWC":
            return None
        ohwi = weight.transpose(oihw_axes(str(call.attrs.kernel_layout))).transpose(0, 2, 3, 1)
        sliding = (tuple(int(v) for v in attrs[name]) for name in ("strides", "padding", "dilation"))
        return LibraryProduct(op.inputs[0], ohwi, *sliding)
    return LibraryProduct(op.inputs[0], weight) if weight.ndim == 2 else None


def _tail(net: StageGraph, ops: Sequence[int]) -> Iterator[tuple[Any, list[np.ndarray], tuple[int, ...]]]:
    """Yield the operators behind the product, each on the previous result: call, constants and other tensors."""
    (before,) = net.graph.ops[ops[0]].outputs
    for i in ops[1:]:
        op, call = net.graph.ops[i], net.calls[i]
        if before not in op.inputs or len(op.outputs) != 1:
            return
        held = [c for a in call.args if (c := net.constant(a)) is not None]
        others = tuple(t for t in op.inputs if t != before)
        if op.inputs.count(before) != 1:
            return
        yield call, held, others
        (before,) = op.outputs


def _with_tail(
    net: StageGraph, head: LibraryProduct, tail: Sequence[tuple[Any, list[np.ndarray], tuple[int, ...]]]
) -> LibraryProduct | None:
    """Return the product with bias, addend and activation; None for another order or another operator."""
    made = head
    for call, constants, others in tail:
        name = str(getattr(call.op, "name", ""))
        if made.clip is not None:
            return None
        if name == "relax.nn.relu":
            made = replace(made, clip=(0.0, inf))
        elif name == "relax.clip":
            bounds = [float(getattr(a, "value", a).value) for a in call.args[1:]]
            made = replace(made, clip=(bounds[0], bounds[1]))
        elif name == "relax.add" and made.addend is None and len(constants) == 1 and not others:
            (held,) = constants
            if held.size not in (1, made.columns) or (held.ndim and held.shape[-1] != held.size):
                return None
            total = np.broadcast_to(held.reshape(-1), (made.columns,)).astype(WIDE)
            made = replace(made, bias=np.ascontiguousarray(total if made.bias is None else made.bias + total))
        elif name == "relax.add" and made.addend is None and len(others) == 1 and not constants:
            shape = net.graph.tensors[others[0]].shape
            if shape[-1] != made.columns or len(shape) != len(net.graph.tensors[head.source].shape):
                return None
            made = replace(made, addend=others[0])
        else:
            return None
    return made
