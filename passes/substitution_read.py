"""Converts Relax functions to substitution graphs. Operators that no rule supports become opaque and keep their call.

Only straight-line functions are converted: blocks hold bindings of calls, tuples and tuple items with static shapes. For
anything else `read_function` raises `GraphError` with the reason, and the pass does not change the function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from tvm import relax

from tvm_cascade.errors import GraphError
from tvm_cascade.operators.table import BINARY, UNARY
from tvm_cascade.passes.islands.reader import Operators, is_dequantize, read_operators
from tvm_cascade.passes.origin import file_name
from tvm_cascade.passes.read import relax_names
from tvm_cascade.passes.read.opaque_channels import OpaqueChannels
from tvm_cascade.passes.read.program import Argument, OperatorCall, Program, numbers_in, read_program
from tvm_cascade.passes.substitution_quantized import QuantizedReader
from tvm_cascade.program.quant import NotLowered
from tvm_cascade.search_monitor import counted
from tvm_cascade.substitution.dag import Dag, Pool, Ref


@dataclass(frozen=True, slots=True)
class Read:
    """A function as a graph, with the data needed to write it back."""

    dag: Dag
    constants: dict[str, np.ndarray]  # by name of the weight leaf
    calls: tuple[relax.Call, ...]  # by attribute `key` of opaque operators
    params: tuple[relax.Var, ...]
    result: Any  # the function's result: an index into `dag.outputs`, or a nested tuple of them
    files: Mapping[str, Ref] = field(default_factory=dict)  # values by the names that a model's file gives them


class _NotKnownError(Exception):
    """The operator or its attributes cannot be represented in the graph: it becomes opaque."""


def read_function(func: relax.Function, channels: OpaqueChannels | None = None) -> Read:
    """Return the graph of a Relax function. Raises `GraphError` if the function cannot be converted.

    With `channels`, opaque operators have attributes that say what they do to channels; one with a table reads the tensor
    that it is of as a further operand.
    """
    program = read_program(func)
    if program.matches_shapes:
        raise GraphError("the function matches shapes: only static ones can be rewritten")
    return _Reader(program, channels).read(func)


@dataclass
class _Reader:
    """Converts a program's calls to graph operators, in order; constants become leaves when first read."""

    program: Program
    channels: OpaqueChannels | None = None
    pool: Pool = field(default_factory=Pool)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    calls: list[relax.Call] = field(default_factory=list)
    refs: dict[int, Ref] = field(default_factory=dict)  # by the program's values

    def read(self, func: relax.Function) -> Read:
        values = self.program.values
        for number in self.program.inputs:
            self.refs[number] = self.pool.input(values[number].name, values[number].shape, values[number].dtype)
        inputs = tuple(self.refs[number] for number in self.program.inputs)
        if len(set(inputs)) != len(inputs):
            raise GraphError("two parameters of the function have the same name")
        for call in counted("operators read", self.program.calls):
            self.refs.update(zip(call.outputs, self._call(call), strict=True))
        outputs: list[Ref] = []
        result = self._number(self.program.result, outputs)
        graph = Dag(self.pool, inputs, tuple(outputs))
        return Read(graph, self.constants, tuple(self.calls), tuple(func.params), result, self._files())

    def _files(self) -> dict[str, Ref]:
        """Return the values that bear a name of the file; if several share a name, the last, which is the file's tensor."""
        values = self.program.values
        found = {file_name(values[number].name): ref for number, ref in sorted(self.refs.items())}
        return {name: ref for name, ref in found.items() if name is not None}

    def ref(self, argument: Argument) -> Ref:
        """Return the graph value of a tensor argument."""
        if not isinstance(argument, int):
            raise _NotKnownError
        if argument not in self.refs:
            value = self.program.values[argument].constant
            assert value is not None, "calls come after what they read"
            self.refs[argument] = self.constant(value)
        return self.refs[argument]

    def constant(self, value: np.ndarray) -> Ref:
        """Make a leaf for a constant: `full` for a single element, which rules match as 0 or 1, else a weight."""
        return self.full(value.shape, str(value.dtype), value.item()) if value.size == 1 else self.leaf(value)

    def full(self, shape: tuple[int, ...], dtype: str, value: float) -> Ref:
        """Make a leaf filled with a single number."""
        return self.pool.make("full", types=((shape, dtype),), value=value)

    def leaf(self, value: np.ndarray) -> Ref:
        """Make a new weight leaf."""
        name = f"constant{len(self.constants)}"
        self.constants[name] = value
        return self.pool.weight(name, value.shape, str(value.dtype))

    def make(self, kind: str, *refs: Ref, **attrs: Any) -> Ref:
        return self.pool.make(kind, *refs, **attrs)

    def shape(self, call: OperatorCall) -> tuple[int, ...]:
        """Return the shape of a call's first output."""
        return self.program.values[call.outputs[0]].shape

    def dtype(self, call: OperatorCall) -> str:
        return self.program.values[call.outputs[0]].dtype

    def _call(self, call: OperatorCall) -> Sequence[Ref]:
        kind = relax_names.table_kind(call.last_name)
        try:
            if call.name == "quantize" and (stored := self._quantized(call)) is not None:
                return [stored]
            if any(self._dequantized(a) for a in call.arguments):
                raise _NotKnownError  # part of an island that `LowerQuantized` must find unchanged
            if call.name in _READERS:
                refs = _READERS[call.name](self, call)
                return [refs] if isinstance(refs, Ref) else refs
            if kind in BINARY:
                return [self._binary(kind, call)]
            if kind in UNARY:
                return [self.make(kind, self.ref(call.arguments[0]))]
        except _NotKnownError:
            pass
        return self._opaque(call)

    @cached_property
    def operators(self) -> Operators:
        """Return the function's operators, quantized operators included."""
        return read_operators(self.program.definitions.items())

    def _quantized(self, call: OperatorCall) -> Ref | None:
        def ref(expr: Any) -> Ref:
            return self.ref(self.program.argument(expr))

        try:
            operator = self.operators.operator(call.expr)
            return None if operator is None else QuantizedReader(self.pool, ref, self.leaf).read(operator)
        except NotLowered:
            return None

    def _dequantized(self, argument: Argument) -> bool:
        refs = [self.refs[v] for v in numbers_in(argument) if v in self.refs]
        keys = [int(r.node["key"]) for r in refs if r.node.kind == "opaque"]  # type: ignore[call-overload]
        return any(is_dequantize(self.calls[k]) for k in keys)

    def _binary(self, kind: str, call: OperatorCall) -> Ref:
        a, b = self.ref(call.arguments[0]), self.ref(call.arguments[1])
        if a.type.dtype != b.type.dtype:
            raise _NotKnownError
        return self.make(kind, a, b)

    def _opaque(self, call: OperatorCall) -> Sequence[Ref]:
        if any(isinstance(e, relax.Var) and isinstance(self.program.argument(e), tuple) for e in _leaves(call.expr)):
            raise GraphError("an operator reads a tuple variable")
        refs = [self.ref(v) for a in call.arguments for v in numbers_in(a)]
        values = [self.program.values[v] for v in call.outputs]
        self.calls.append(call.expr)
        types = tuple((v.shape, v.dtype) for v in values)
        told: dict[str, Any] = {}
        if self.channels is not None:
            told, source = self.channels.of(self.program, call, self.operators)
            refs += [] if source is None else [self.ref(self.program.argument(source))]
        node = self.pool.make("opaque", *refs, key=len(self.calls) - 1, types=types, **told).node
        return [Ref(node, p) for p in range(len(types))]

    def _number(self, result: Argument, outputs: list[Ref]) -> Any:
        """Append the tensors of a result to `outputs`; return the result with indices into `outputs` in their place."""
        if isinstance(result, tuple):
            return tuple(self._number(r, outputs) for r in result)
        outputs.append(self.ref(result))
        return len(outputs) - 1


def _leaves(expr: Any) -> list[Any]:
    """Return the arguments of a call or tuple, with nested tuples flattened."""
    parts = expr.args if isinstance(expr, relax.Call) else expr.fields
    return [x for p in parts for x in (_leaves(p) if isinstance(p, relax.Tuple) else [p])]


def _conv2d(r: _Reader, call: OperatorCall) -> Ref:
    x, w, a = r.ref(call.arguments[0]), r.ref(call.arguments[1]), call.expr.attrs
    layout, kernel = str(a.data_layout), str(a.kernel_layout)
    if (
        layout not in ("NCHW", "NHWC")
        or kernel not in relax_names.KERNEL_LAYOUTS
        or str(a.out_layout) not in ("", layout)
    ):
        raise _NotKnownError
    if x.type.dtype != w.type.dtype or r.dtype(call) != ("int32" if x.type.dtype == "int8" else x.type.dtype):
        raise _NotKnownError
    if kernel == "HWOI" and w.shape[3] != 1:  # depthwise with a multiplier: TVM orders its outputs differently
        raise _NotKnownError
    if kernel != "OIHW":
        w = r.make("transpose", w, perm=relax_names.oihw_axes(kernel))
    return r.make("conv2d", x, w, act="", **relax_names.convolution_attributes(a))


def _pool(r: _Reader, call: OperatorCall) -> Ref:
    x, a, kind = r.ref(call.arguments[0]), call.expr.attrs, call.last_name
    if str(a.layout) not in ("NCHW", "NHWC") or any(d != 1 for d in a.dilation) or len(x.shape) != 4:
        raise _NotKnownError
    pooled = r.make(kind, x, **relax_names.pool_attributes(kind, a))
    if pooled.shape != r.shape(call):
        raise _NotKnownError
    return pooled


def _matmul(r: _Reader, call: OperatorCall) -> Ref:
    a, b = r.ref(call.arguments[0]), r.ref(call.arguments[1])
    if len(a.shape) < 2 or len(b.shape) < 2 or a.type.dtype != b.type.dtype:
        raise _NotKnownError
    product = r.make("matmul", a, b, act="")
    if tuple(product.type) != (r.shape(call), r.dtype(call)):
        raise _NotKnownError
    return product


def _batch_norm(r: _Reader, call: OperatorCall) -> Sequence[Ref]:
    a = call.expr.attrs
    if bool(a.training) or not (bool(a.center) and bool(a.scale)):
        raise _NotKnownError
    refs = [r.ref(x) for x in call.arguments]
    y = r.make("batch_norm", *refs, axis=relax_names.axis_of(a.axis, len(refs[0].shape)), eps=float(a.epsilon))
    return [y, refs[3], refs[4]]


def _clip(r: _Reader, call: OperatorCall) -> Ref:
    low, high = (float(getattr(v, "value", v)) for v in call.expr.args[1:3])
    x = r.ref(call.arguments[0])
    return r.make("relu6", x) if (low, high) == (0.0, 6.0) else r.make("clip", x, low=low, high=high)


def _reshape(r: _Reader, call: OperatorCall) -> Ref:
    x, shape = r.ref(call.arguments[0]), r.shape(call)
    return x if x.shape == shape else r.make("reshape", x, shape=shape)


def _broadcast(r: _Reader, call: OperatorCall) -> Ref:
    x, shape, dtype = r.ref(call.arguments[0]), r.shape(call), r.dtype(call)
    if x.shape == shape:
        return x
    if x.node.kind == "full":  # a separate leaf: equal weights of different layers must not be merged
        return r.constant(np.full(shape, x.node["value"], dtype))
    if not x.node.constant:
        raise _NotKnownError
    return r.make("mul", x, r.full(shape, dtype, 1))


def _of_first(
    kind: str, attributes: Callable[[tuple[int, ...], Any], dict[str, Any]]
) -> Callable[[_Reader, OperatorCall], Ref]:
    """Build a reader of unary operators; `attributes` maps the operand's shape and Relax's attributes to the table's."""

    def read(r: _Reader, call: OperatorCall) -> Ref:
        x = r.ref(call.arguments[0])
        return r.make(kind, x, **attributes(x.shape, call.expr.attrs))

    return read


def _permutation(shape: tuple[int, ...], a: Any) -> dict[str, Any]:
    axes = range(len(shape))[::-1] if a.axes is None else a.axes
    return {"perm": tuple(relax_names.axis_of(i, len(shape)) for i in axes)}


def _mean(shape: tuple[int, ...], a: Any) -> dict[str, Any]:
    axes = range(len(shape)) if a.axis is None else a.axis
    return {"axes": tuple(sorted(relax_names.axis_of(i, len(shape)) for i in axes)), "keepdims": bool(a.keepdims)}


def _concat(r: _Reader, call: OperatorCall) -> Ref:
    refs = [r.ref(v) for v in call.arguments[0]]
    return r.make("concat", *refs, axis=relax_names.axis_of(call.expr.attrs.axis, len(refs[0].shape)))


def _split(r: _Reader, call: OperatorCall) -> Sequence[Ref]:
    x = r.ref(call.arguments[0])
    axis = relax_names.axis_of(call.expr.attrs.axis, len(x.shape))
    sizes = tuple(r.program.values[v].shape[axis] for v in call.outputs)
    node = r.make("split", x, axis=axis, sizes=sizes).node
    return [Ref(node, p) for p in range(len(sizes))]


_READERS: dict[str, Callable[[_Reader, OperatorCall], Ref | Sequence[Ref]]] = {
    "nn.conv2d": _conv2d,
    "nn.max_pool2d": _pool,
    "nn.avg_pool2d": _pool,
    "matmul": _matmul,
    "nn.batch_norm": _batch_norm,
    "clip": _clip,
    "reshape": _reshape,
    **dict.fromkeys(("flatten", "squeeze", "expand_dims"), _reshape),
    "broadcast_to": _broadcast,
    "permute_dims": _of_first("transpose", _permutation),
    "concat": _concat,
    "split": _split,
    "mean": _of_first("mean", _mean),
    "nn.softmax": _of_first("softmax", lambda shape, a: {"axis": relax_names.axis_of(a.axis, len(shape))}),
    "nn.dropout": lambda r, call: [r.ref(call.arguments[0])] * 2,  # nothing is dropped; nobody reads the mask
    "ones": lambda r, call: r.full(r.shape(call), r.dtype(call), 1.0),
    "zeros": lambda r, call: r.full(r.shape(call), r.dtype(call), 0.0),
}
