"""`stage_graph`: a Relax function as the `Graph` that the inter-operator scheduler works on, one `Op` per binding.

Lighter than `extract_graph`: operators keep their Relax form (a merge needs to see a convolution as a convolution), no
kernel is cut, and windows come from the operators' own attributes. `PrimFunc` calls take part as well, with the
kind that their `op_kind` attribute tells and without windows.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir.expr import GenericConst

from tvm_cascade.errors import GraphError
from tvm_cascade.graph import IDENTITY, Graph, Op, Tensor, Window

VECTOR_BYTES = 64  # generated kernels load and store whole vectors: tensors inside of others begin at multiples of it
_VIEWS = ("reshape", "flatten", "squeeze", "expand_dims")
_KINDS = MappingProxyType({"multiply": "mul", "subtract": "sub", "strided_slice": "strided_slice", "take": "gather"})


_FOLD: Mapping[str, Callable[..., np.ndarray]] = MappingProxyType(
    {
        "add": np.add,
        "subtract": np.subtract,
        "multiply": np.multiply,
        "divide": np.divide,
        "power": np.power,
        "sqrt": np.sqrt,
        "rsqrt": lambda x: (1.0 / np.sqrt(x)).astype(x.dtype),
        "negative": np.negative,
    }
)
_RESHAPE = ("reshape", "expand_dims", "squeeze", "flatten")


@dataclass(frozen=True)
class Binding:
    """What an operator of the graph is in Relax."""

    var: relax.Var
    call: Any  # relax.Call


@dataclass(frozen=True)
class StageGraph:
    """A graph, the simplified module that it was read from, and each operator's binding."""

    graph: Graph
    mod: tvm.IRModule
    bindings: tuple[Binding, ...]
    env: Mapping[Any, tuple[int, ...]] = field(hash=False)  # tensors that each variable stands for
    constants: Mapping[Any, np.ndarray] = field(hash=False)  # variables that hold computed constants
    result: Any = None  # the function's result expression

    def constant(self, expr: Any) -> np.ndarray | None:
        """The value of a constant argument, None for an activation."""
        return _constant(expr, self.constants)

    def tensors_of(self, expr: Any) -> tuple[int, ...]:
        """The activations that an argument stands for."""
        return _tensors_of(expr, self.env)


def simplify(mod: tvm.IRModule) -> tvm.IRModule:
    """Inference form: batch normalization folded or decomposed, dead code gone. The input stays as it is.

    Constants are computed by the reader: TVM's own folding compiles a kernel for each.
    """
    passes = [
        relax.transform.FoldBatchnormToConv2D(),
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(),
    ]
    return tvm.transform.Sequential(passes)(mod.clone())


def stage_graph(mod: tvm.IRModule, function: str = "main") -> StageGraph:
    """Read `function`. Raises `GraphError` for symbolic shapes and for anything but straight-line code."""
    if function not in {g.name_hint for g in mod.get_global_vars()}:
        raise GraphError(f"the module has no function {function}")
    simple = simplify(mod)
    found = _Reader(simple, function).read()
    if all(op.inputs for op in found.graph.ops):
        return found
    return _Reader(relax.transform.FoldConstant()(simple), function).read()


class _Reader:
    def __init__(self, mod: tvm.IRModule, function: str) -> None:
        self.mod = mod
        self.func = mod[function]
        self.name = function
        self.tensors: list[Tensor] = []
        self.ops: list[Op] = []
        self.bindings: list[Binding] = []
        self.env: dict[Any, tuple[int, ...]] = {}
        self.constants: dict[Any, np.ndarray] = {}
        self.used: dict[str, int] = {}

    def read(self) -> StageGraph:
        inputs: list[int] = []
        for param in self.func.params:
            self.env[param] = (self._tensor(param.ty, param.name),)
            inputs += self.env[param]
        body = self.func.body
        if not isinstance(body, relax.SeqExpr):
            raise GraphError("the function's body is no sequence of bindings")
        for block in body.blocks:
            for binding in block.bindings:
                self._binding(binding.var, binding.value)
        outputs = self._read(body.body)
        graph = Graph(tuple(self.tensors), tuple(self.ops), tuple(inputs), tuple(dict.fromkeys(outputs)), self.name)
        return StageGraph(graph, self.mod, tuple(self.bindings), self.env, self.constants, body.body)

    def _binding(self, var: Any, value: Any) -> None:
        if isinstance(value, (relax.Var, relax.Tuple, relax.TupleGetItem)):
            self.env[var] = self._read(value)
            return
        constant = self.constant(value) if isinstance(value, GenericConst) else self._fold(var, value)
        if constant is not None:
            self.env[var], self.constants[var] = (), constant
            return
        if not isinstance(value, relax.Call):
            raise GraphError(f"{type(value).__name__} in the function: only straight-line code is supported")
        if _name(value) == "dropout":
            self.env[var] = self._read(value.args[0]) * 2
            return
        kind = self._kind(value)
        name = self._unique(kind)
        inputs = tuple(t for a in value.args for t in self._read(a))
        types = list(var.ty.fields) if isinstance(var.ty, relax.TupleType) else [var.ty]
        layout = getattr(value.attrs, "data_layout", None) or getattr(value.attrs, "layout", None)
        axes = _axes(layout) or self._like(inputs, types[0])
        if layout and axes and inputs:
            self._lay_out(inputs[0], axes)
        outputs = tuple(self._tensor(t, name if k == 0 else f"{name}:{k}", axes) for k, t in enumerate(types))
        self.env[var] = outputs
        self.ops.append(self._op(name, kind, value, inputs, outputs))
        self.bindings.append(Binding(var, value))

    def _op(self, name: str, kind: str, call: Any, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Op:
        weights = [c for a in _flat(call.args) if (c := self.constant(a)) is not None]
        weight_bytes = sum(int(w.nbytes) for w in weights)
        windows, columns, macs, attrs = _geometry(kind, call, [self.tensors[t] for t in (*inputs, *outputs)])
        if _name(call) == "call_tir":
            macs = _stored_macs(kind, [w.shape for w in weights], self.tensors[outputs[0]])
        count = len(inputs)
        offsets = self._view_offsets(kind, call, inputs, outputs)
        return Op(
            len(self.ops), name, kind, inputs, outputs, (windows,) * count, (columns,) * count, macs=macs,
            weight_bytes=weight_bytes, view=bool(offsets), view_offsets=offsets, attrs=MappingProxyType(attrs),
        )  # fmt: skip

    def _view_offsets(self, kind: str, call: Any, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> tuple[int, ...]:
        """Where each output lies in the input's memory, in bytes; nothing where the operator moves data."""
        if len(inputs) != 1 or _name(call) == "call_tir":
            return ()
        if kind in _VIEWS and len(outputs) == 1:
            return (0,)
        if kind != "split" or prod(self.tensors[inputs[0]].shape[: _axis(call, self.tensors[inputs[0]])]) != 1:
            return ()
        offsets = (0, *accumulate(self.tensors[t].bytes for t in outputs[:-1]))
        return () if any(o % VECTOR_BYTES for o in offsets) else offsets

    def _read(self, expr: Any) -> tuple[int, ...]:
        return _tensors_of(expr, self.env)

    def constant(self, expr: Any) -> np.ndarray | None:
        return _constant(expr, self.constants)

    def _fold(self, var: Any, value: Any) -> np.ndarray | None:
        """The value of an operator on constants, None where it is none or we cannot compute it."""
        if not isinstance(value, relax.Call):
            return None
        name, given = _name(value), [self.constant(a) for a in value.args]
        if not given or given[0] is None:
            return None
        if name in _RESHAPE:
            return given[0].reshape(_shape(var.ty, name))
        if name == "broadcast_to":
            return np.ascontiguousarray(np.broadcast_to(given[0], _shape(var.ty, name)))
        if name == "permute_dims":
            axes = getattr(value.attrs, "axes", None)
            return np.ascontiguousarray(given[0].transpose(None if axes is None else [int(a) for a in axes]))
        if name == "astype":
            return given[0].astype(str(var.ty.dtype))
        if name in _FOLD and all(g is not None for g in given):
            return np.asarray(_FOLD[name](*given), dtype=str(var.ty.dtype))
        return None

    def _kind(self, call: Any) -> str:
        name = _name(call)
        if name == "call_tir":
            target = call.args[0]
            return str((self.mod[target].attrs or {}).get("op_kind", target.name_hint))
        if name == "conv2d":
            groups, shape = int(call.attrs.groups), _shape(call.args[0].ty, "input")
            channels = shape[str(call.attrs.data_layout).index("C")]
            return "depthwise_conv2d" if groups == channels and groups > 1 else "conv2d"
        if name == "matmul":
            return "matmul" if self.constant(call.args[1]) is None else "dense"
        return _KINDS.get(name, name)

    def _lay_out(self, t: int, axes: tuple[int, int]) -> None:
        """An input of the graph learns its layout from the first operator that has one."""
        tensor = self.tensors[t]
        if tensor.row_axis is None and len(tensor.shape) == 4:
            self.tensors[t] = replace(tensor, row_axis=axes[0], col_axis=axes[1])

    def _like(self, inputs: Sequence[int], ty: Any) -> tuple[int, int] | None:
        """Row and column axis of the first input of the same rank."""
        for t in inputs:
            tensor = self.tensors[t]
            if tensor.row_axis is not None and tensor.col_axis is not None and len(tensor.shape) == len(_shape(ty, "")):
                return tensor.row_axis, tensor.col_axis
        return None

    def _tensor(self, ty: Any, name: str, axes: tuple[int, int] | None = None) -> int:
        shape = _shape(ty, name)
        rows, columns = axes if axes and len(shape) == 4 else (None, None)
        self.tensors.append(Tensor(len(self.tensors), name, shape, str(ty.dtype), rows, columns))
        return len(self.tensors) - 1

    def _unique(self, kind: str) -> str:
        count = self.used.get(kind, 0)
        self.used[kind] = count + 1
        return f"{kind}_{count}"


def _constant(expr: Any, constants: Mapping[Any, np.ndarray]) -> np.ndarray | None:
    if isinstance(expr, GenericConst):
        held: Any = getattr(expr, "value", None)
        return held.numpy() if hasattr(held, "numpy") else None
    return constants.get(expr) if isinstance(expr, relax.Var) else None


def _tensors_of(expr: Any, env: Mapping[Any, tuple[int, ...]]) -> tuple[int, ...]:
    """Activation tensors of an argument; constants, shapes and numbers have none."""
    if isinstance(expr, relax.Var):
        return env.get(expr, ())
    if isinstance(expr, relax.Tuple):
        return tuple(t for f in expr.fields for t in _tensors_of(f, env))
    if isinstance(expr, relax.TupleGetItem):
        return (_tensors_of(expr.tuple_value, env)[expr.index],)
    return ()


def _name(call: Any) -> str:
    name = getattr(call.op, "name", None) or getattr(call.op, "name_hint", "call")
    return str(name).split(".")[-1]


def _shape(ty: Any, name: str) -> tuple[int, ...]:
    extents = getattr(getattr(ty, "shape", None), "values", None)
    if extents is None or not all(hasattr(d, "value") for d in extents):
        raise GraphError(f"the shape of {name} is not static: fix it with input shapes")
    return tuple(int(d) for d in extents)


def _flat(args: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for a in args:
        found += _flat(list(a.fields)) if isinstance(a, relax.Tuple) else [a]
    return found


def _axis(call: Any, tensor: Tensor) -> int:
    """The axis of a split or concatenation, from the front."""
    return int(call.attrs.axis) % len(tensor.shape)


def _axes(layout: str | None) -> tuple[int, int] | None:
    return (layout.index("H"), layout.index("W")) if layout and "H" in layout and "W" in layout else None


def _geometry(
    kind: str, call: Any, tensors: Sequence[Tensor]
) -> tuple[Window | None, Window | None, int, dict[str, object]]:
    """Row window, column window, multiply-accumulates and attributes of one call."""
    out = tensors[-1]
    if _name(call) == "call_tir":
        return None, None, 0, {"mergeable": False}
    if kind in ("conv2d", "depthwise_conv2d") and hasattr(call.attrs, "kernel_layout"):
        attrs = call.attrs
        weight = _shape(call.args[1].ty, "weights")
        places = [str(attrs.kernel_layout).index(letter) for letter in "HWI"]
        if kind == "depthwise_conv2d" and str(attrs.kernel_layout) == "HWOI":
            places[2] = 3
        kh, kw, depth = (weight[p] for p in places)
        rows, columns = _windows((kh, kw), attrs.strides, attrs.padding, attrs.dilation)
        return (
            rows,
            columns,
            prod(out.shape) * kh * kw * depth,
            {"groups": int(attrs.groups), "data_layout": str(attrs.data_layout)},
        )
    if kind in ("max_pool2d", "avg_pool2d"):
        attrs = call.attrs
        rows, columns = _windows(attrs.pool_size, attrs.strides, attrs.padding, attrs.dilation)
        return rows, columns, 0, {}
    if kind in ("dense", "matmul") and _name(call) == "matmul":
        return None, None, prod(out.shape) * _shape(call.args[0].ty, "input")[-1], {}
    same = out.row_axis is not None and all(t.rows == out.rows and t.columns == out.columns for t in tensors)
    return (IDENTITY, IDENTITY, 0, {}) if same else (None, None, 0, {})


def _stored_macs(kind: str, constants: Sequence[tuple[int, ...]], out: Tensor) -> int:
    """Multiply-accumulates of a `call_tir` by its kind; its weights come first among the constants.

    Convolutions have them as [height, width, in / groups, out], depthwise ones as [height, width, channels, multiplier],
    products as a matrix of any orientation.
    """
    if not constants:
        return 0
    weights = constants[0]
    if kind == "conv2d" and len(weights) == 4:
        return prod(out.shape) * prod(weights[:3])
    if kind == "depthwise_conv2d" and len(weights) == 4:
        return prod(out.shape) * prod(weights[:2])
    if kind in ("dense", "matmul") and len(weights) == 2 and out.shape[-1] in weights:
        return prod(out.shape) * (prod(weights) // out.shape[-1])
    return 0


def _windows(
    kernel: Sequence[Any], strides: Sequence[Any], padding: Sequence[Any], dilation: Sequence[Any]
) -> tuple[Window, Window]:
    rows, columns = (
        Window(int(k), int(s), int(d), int(p))
        for k, s, d, p in zip(kernel, strides, dilation, list(padding)[:2], strict=True)
    )
    return rows, columns
