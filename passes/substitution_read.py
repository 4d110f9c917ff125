"""Relax functions as substitution graphs. Operators that no rule knows become opaque and keep their call.

Only straight-line functions of one kind are read: every block holds bindings of calls, tuples and their items on static
shapes. For anything else `read_function` raises `GraphError` with the reason, and the pass leaves the function alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import relax

from tvm_cascade.errors import GraphError
from tvm_cascade.passes.substitution_islands import IslandReader
from tvm_cascade.substitution.dag import Dag, Pool, Ref

Value = Any  # a Ref, or a list of values for a tuple

_BINARY = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "maximum": "maximum",
           "minimum": "minimum"}  # fmt: skip
_UNARY = {"nn.relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "exp": "exp", "sqrt": "sqrt", "rsqrt": "rsqrt",
          "negative": "neg"}  # fmt: skip
_KERNEL_LAYOUTS = {"OIHW": (0, 1, 2, 3), "HWIO": (3, 2, 0, 1), "OHWI": (0, 3, 1, 2), "HWOI": (2, 3, 0, 1)}


@dataclass(frozen=True, slots=True)
class Read:
    """A function as a graph, with all that writing it back needs."""

    dag: Dag
    constants: dict[str, np.ndarray]  # by the names of weight leaves
    calls: tuple[relax.Call, ...]  # by the `key` of opaque operators
    params: tuple[relax.Var, ...]
    result: Any  # the function's result: an output's number, or a tuple of results


class _NotKnownError(Exception):
    """An operator whose attributes no rule can express: it becomes opaque."""


def read_function(func: relax.Function) -> Read:
    """The graph of a Relax function. Raises `GraphError` where it has none."""
    return _Reader().read(func)


@dataclass
class _Reader:
    pool: Pool = field(default_factory=Pool)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    calls: list[relax.Call] = field(default_factory=list)
    env: dict[Any, Value] = field(default_factory=dict)
    shared: dict[Any, Ref] = field(default_factory=dict)
    definitions: dict[Any, Any] = field(default_factory=dict)

    def read(self, func: relax.Function) -> Read:
        if not isinstance(func.body, relax.SeqExpr):
            raise GraphError("the function's body is no sequence of bindings")
        inputs = []
        for param in func.params:
            inputs.append(self.pool.input(param.name, *_tensor(param.ty)))
            self.env[param] = inputs[-1]
        if len({r for r in inputs}) != len(inputs):
            raise GraphError("two parameters of the function have the same name")
        for block in func.body.blocks:
            for binding in block.bindings:
                if not isinstance(binding, relax.VarBinding):
                    raise GraphError("the function matches shapes: only static ones can be rewritten")
                self.definitions[binding.var] = binding.value
                self.env[binding.var] = self._value(binding.value)
        result = self._value(func.body.body)
        outputs: list[Ref] = []
        shape = _number(result, outputs)
        dag = Dag(self.pool, tuple(inputs), tuple(outputs))
        return Read(dag, self.constants, tuple(self.calls), tuple(func.params), shape)

    def _value(self, expr: Any) -> Value:
        if isinstance(expr, relax.Var):
            return self.env[expr]
        if isinstance(expr, relax.Tuple):
            return [self._value(f) for f in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value)[expr.index]
        if isinstance(expr, relax.Call):
            return self._call(expr)
        if is_constant(expr):
            if expr not in self.shared:
                self.shared[expr] = self._constant(expr.value.numpy())
            return self.shared[expr]
        raise GraphError(f"the function holds a {type(expr).__name__}: only calls can be rewritten")

    def _constant(self, value: np.ndarray) -> Ref:
        """A leaf; a single number is one of its own, so that rules can see ones and zeros."""
        if value.size == 1:
            return self.pool.make("full", types=((value.shape, str(value.dtype)),), value=value.item())
        return self.leaf(value)

    def leaf(self, value: np.ndarray) -> Ref:
        """A weight of its own."""
        name = f"constant{len(self.constants)}"
        self.constants[name] = value
        return self.pool.weight(name, value.shape, str(value.dtype))

    def _call(self, call: Any) -> Value:
        name = str(getattr(call.op, "name", "")).removeprefix("relax.")
        try:
            if name == "quantize" and (island := self._island(call)) is not None:
                return island
            if any(self._dequantized(a) for a in call.args):
                raise _NotKnownError  # an island of `LowerQuantized`: it must arrive there as it is
            if name in _BINARY:
                return self._binary(_BINARY[name], call)
            if name in _UNARY:
                return self._make(_UNARY[name], self._ref(call.args[0]))
            if name in _READERS:
                return _READERS[name](self, call)
        except _NotKnownError:
            pass
        return self._opaque(call)

    def _island(self, call: Any) -> Ref | None:
        return IslandReader(self.pool, self.definitions, self._ref, self.leaf).read(call)

    def _dequantized(self, arg: Any) -> bool:
        fields = arg.fields if isinstance(arg, relax.Tuple) else [arg]
        refs = [v for f in fields if isinstance(f, relax.Var) and isinstance(v := self.env.get(f), Ref)]
        keys = [int(r.node["key"]) for r in refs if r.node.kind == "opaque"]  # type: ignore[call-overload]
        return any(str(getattr(self.calls[k].op, "name", "")) == "relax.dequantize" for k in keys)

    def _ref(self, expr: Any) -> Ref:
        value = self._value(expr)
        if isinstance(value, list):
            raise _NotKnownError
        return value

    def _make(self, kind: str, *refs: Ref, **attrs: Any) -> Ref:
        return self.pool.make(kind, *refs, **attrs)

    def _binary(self, kind: str, call: Any) -> Ref:
        a, b = self._ref(call.args[0]), self._ref(call.args[1])
        if a.type.dtype != b.type.dtype:
            raise _NotKnownError
        return self._make(kind, a, b)

    def _opaque(self, call: Any) -> Value:
        refs: list[Ref] = []
        for arg in call.args:
            self._operands(arg, refs)
        many = isinstance(call.ty, relax.TupleType)
        types = tuple(tuple(_tensor(t)) for t in (call.ty.fields if many else [call.ty]))
        self.calls.append(call)
        node = self.pool.make("opaque", *refs, key=len(self.calls) - 1, types=types).node
        made = [Ref(node, p) for p in range(len(types))]
        return made if many else made[0]

    def _operands(self, arg: Any, refs: list[Ref]) -> None:
        if isinstance(arg, relax.Tuple):
            for f in arg.fields:
                self._operands(f, refs)
        elif isinstance(arg, relax.Var) and isinstance(self.env.get(arg), list):
            raise GraphError("an operator reads a tuple variable")
        elif isinstance(arg, relax.Var) or is_constant(arg):
            refs.append(self._ref(arg))
        elif isinstance(arg, relax.Call):
            raise GraphError("calls are nested: normalize the module first")


def _number(value: Value, outputs: list[Ref]) -> Any:
    """The nesting of a result, its references put into `outputs`."""
    if isinstance(value, list):
        return tuple(_number(v, outputs) for v in value)
    outputs.append(value)
    return len(outputs) - 1


def is_constant(expr: Any) -> bool:
    return hasattr(expr, "value") and hasattr(expr.value, "numpy")


def _tensor(ty: Any) -> tuple[tuple[int, ...], str]:
    extents = getattr(getattr(ty, "shape", None), "values", None)
    if not isinstance(ty, relax.TensorType) or extents is None or not all(hasattr(d, "value") for d in extents):
        raise GraphError(f"{ty} is no tensor of static shape")
    return tuple(int(d) for d in extents), str(ty.dtype)


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


def _axis(value: Any, rank: int) -> int:
    return int(value) % rank


def _conv2d(r: _Reader, call: Any) -> Ref:
    x, w, a = r._ref(call.args[0]), r._ref(call.args[1]), call.attrs
    layout, kernel = str(a.data_layout), str(a.kernel_layout)
    groups = int(a.groups)
    if layout not in ("NCHW", "NHWC") or kernel not in _KERNEL_LAYOUTS or str(a.out_layout) not in ("", layout):
        raise _NotKnownError
    if x.type.dtype != w.type.dtype or str(call.ty.dtype) != ("int32" if x.type.dtype == "int8" else x.type.dtype):
        raise _NotKnownError
    if kernel == "HWOI" and w.shape[3] != 1:  # depthwise with several outputs a channel: TVM's order is its own
        raise _NotKnownError
    if kernel != "OIHW":
        w = r._make("transpose", w, perm=_KERNEL_LAYOUTS[kernel])
    attrs = {"strides": _ints(a.strides), "padding": _ints(a.padding), "dilation": _ints(a.dilation)}
    return r._make("conv2d", x, w, groups=groups, layout=layout, act="", **attrs)


def _pool(kind: str) -> Callable[[_Reader, Any], Ref]:
    def read(r: _Reader, call: Any) -> Ref:
        x, a = r._ref(call.args[0]), call.attrs
        layout = str(a.layout)
        if layout not in ("NCHW", "NHWC") or _ints(a.dilation) != (1, 1) or len(x.shape) != 4:
            raise _NotKnownError
        attrs: dict[str, Any] = {"kernel": _ints(a.pool_size), "strides": _ints(a.strides), "padding": _ints(a.padding)}
        if kind == "avg_pool2d":
            attrs["count_pad"] = bool(a.count_include_pad)
        made = r._make(kind, x, layout=layout, ceil=bool(a.ceil_mode), **attrs)
        if made.shape != _tensor(call.ty)[0]:
            raise _NotKnownError
        return made

    return read


def _matmul(r: _Reader, call: Any) -> Ref:
    a, b = r._ref(call.args[0]), r._ref(call.args[1])
    if len(a.shape) < 2 or len(b.shape) < 2 or a.type.dtype != b.type.dtype:
        raise _NotKnownError
    made = r._make("matmul", a, b, act="")
    if tuple(made.type) != _tensor(call.ty):
        raise _NotKnownError
    return made


def _batch_norm(r: _Reader, call: Any) -> Value:
    a = call.attrs
    if bool(a.training) or not (bool(a.center) and bool(a.scale)):
        raise _NotKnownError
    refs = [r._ref(x) for x in call.args]
    y = r._make("batch_norm", *refs, axis=_axis(a.axis, len(refs[0].shape)), eps=float(a.epsilon))
    return [y, refs[3], refs[4]]


def _clip(r: _Reader, call: Any) -> Ref:
    low, high = (float(getattr(v, "value", v)) for v in call.args[1:3])
    if (low, high) == (0.0, 6.0):
        return r._make("relu6", r._ref(call.args[0]))
    return r._make("clip", r._ref(call.args[0]), low=low, high=high)


def _reshape(r: _Reader, call: Any) -> Ref:
    x, shape = r._ref(call.args[0]), _tensor(call.ty)[0]
    return x if x.shape == shape else r._make("reshape", x, shape=shape)


def _broadcast(r: _Reader, call: Any) -> Ref:
    x, (shape, dtype) = r._ref(call.args[0]), _tensor(call.ty)
    if x.shape == shape:
        return x
    if x.node.kind == "full":  # a leaf of its own: equal weights of different layers must not become one
        return r._constant(np.full(shape, x.node["value"], dtype))
    if not x.node.constant:
        raise _NotKnownError
    ones = r._make("full", types=((shape, dtype),), value=1)
    return r._make("mul", x, ones)


def _permute(r: _Reader, call: Any) -> Ref:
    x = r._ref(call.args[0])
    axes = call.attrs.axes
    perm = tuple(reversed(range(len(x.shape)))) if axes is None else tuple(_axis(i, len(x.shape)) for i in axes)
    return r._make("transpose", x, perm=perm)


def _concat(r: _Reader, call: Any) -> Ref:
    refs = r._value(call.args[0])
    return r._make("concat", *refs, axis=_axis(call.attrs.axis, len(refs[0].shape)))


def _split(r: _Reader, call: Any) -> Value:
    x = r._ref(call.args[0])
    axis = _axis(call.attrs.axis, len(x.shape))
    sizes = tuple(_tensor(t)[0][axis] for t in call.ty.fields)
    node = r._make("split", x, axis=axis, sizes=sizes).node
    return [Ref(node, p) for p in range(len(sizes))]


def _mean(r: _Reader, call: Any) -> Ref:
    x = r._ref(call.args[0])
    axes = call.attrs.axis
    chosen = range(len(x.shape)) if axes is None else sorted(_axis(i, len(x.shape)) for i in axes)
    return r._make("mean", x, axes=tuple(chosen), keepdims=bool(call.attrs.keepdims))


def _softmax(r: _Reader, call: Any) -> Ref:
    x = r._ref(call.args[0])
    return r._make("softmax", x, axis=_axis(call.attrs.axis, len(x.shape)))


def _uniform(value: float) -> Callable[[_Reader, Any], Ref]:
    def read(r: _Reader, call: Any) -> Ref:
        return r._make("full", types=(_tensor(call.ty),), value=value)

    return read


def _dropout(r: _Reader, call: Any) -> Value:
    x = r._ref(call.args[0])
    return [x, x]  # nothing is dropped at inference; nobody reads the mask


_READERS: dict[str, Callable[[_Reader, Any], Value]] = {
    "nn.conv2d": _conv2d,
    "nn.max_pool2d": _pool("max_pool2d"),
    "nn.avg_pool2d": _pool("avg_pool2d"),
    "matmul": _matmul,
    "nn.batch_norm": _batch_norm,
    "clip": _clip,
    "reshape": _reshape,
    "flatten": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "broadcast_to": _broadcast,
    "permute_dims": _permute,
    "concat": _concat,
    "split": _split,
    "mean": _mean,
    "nn.softmax": _softmax,
    "nn.dropout": _dropout,
    "ones": _uniform(1.0),
    "zeros": _uniform(0.0),
}
