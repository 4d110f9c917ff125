"""Substitution graphs as Relax functions: constants folded, every kernel as plain Relax operators.

A convolution's bias and activation and the program of a `fused` operator come out as the operators they stand for:
TVM's own `FuseOps` puts them into one kernel again. `exclusive_concat`'s flag has no Relax form and is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax

from tvm_cascade.passes.substitution_read import Read, is_constant
from tvm_cascade.substitution.dag import Dag, Node, Ref
from tvm_cascade.substitution.evaluate import evaluate

_BINARY = {"add": relax.op.add, "sub": relax.op.subtract, "mul": relax.op.multiply, "div": relax.op.divide,
           "maximum": relax.op.maximum, "minimum": relax.op.minimum}  # fmt: skip
_UNARY = {"relu": relax.op.nn.relu, "sigmoid": relax.op.sigmoid, "tanh": relax.op.tanh, "exp": relax.op.exp,
          "sqrt": relax.op.sqrt, "rsqrt": relax.op.rsqrt, "neg": relax.op.negative}  # fmt: skip


def write_function(dag: Dag, read: Read, attrs: Any = None) -> relax.Function:
    """`dag`, a rewritten `read.dag`, as a function with the same parameters and result."""
    return _Writer(dag, read).write(attrs)


def fold(dag: Dag, constants: Mapping[str, np.ndarray]) -> dict[Ref, np.ndarray]:
    """Values of the graph's constants. Derived ones are computed in float64 and rounded once."""
    wide = {n: v.astype("float64") if v.dtype.kind == "f" else v for n, v in constants.items()}
    made: dict[Ref, np.ndarray] = {}
    for ref in dag.constants():
        if ref.node.kind == "weight":
            made[ref] = constants[str(ref.node["name"])]
        else:
            value = evaluate((ref,), wide)[ref]
            made[ref] = np.ascontiguousarray(np.broadcast_to(value, ref.shape).astype(ref.type.dtype))
    return made


class _Writer:
    def __init__(self, dag: Dag, read: Read) -> None:
        self._dag, self._read = dag, read
        self._folded = fold(dag, read.constants)
        self._builder = relax.BlockBuilder()
        self._exprs: dict[Ref, Any] = dict(zip(dag.inputs, read.params, strict=True))

    def write(self, attrs: Any) -> relax.Function:
        bb = self._builder
        given = {k: attrs[k] for k in attrs.keys() if k != "global_symbol"} if attrs is not None else {}  # noqa: SIM118
        with bb.function("main", list(self._read.params), attrs=given or None):
            with bb.dataflow():
                for node in self._dag.nodes:
                    self._emit_node(node)
                results = [bb.emit_output(self._expr(r)) for r in self._dag.outputs]
            bb.emit_func_output(relax.Tuple(results) if self._read.tuple_result else results[0])
        return bb.finalize()["main"]

    def _emit_node(self, node: Node) -> None:
        made = self._node(node)
        if len(node.types) == 1 and not isinstance(made.ty, relax.TupleType):
            self._exprs[Ref(node, 0)] = made
            return
        for port in range(len(node.types)):
            self._exprs[Ref(node, port)] = self._builder.emit(relax.TupleGetItem(made, port))

    def _emit(self, call: Any) -> relax.Var:
        return self._builder.emit(call)

    def _expr(self, ref: Ref) -> Any:
        if ref not in self._exprs:
            self._exprs[ref] = relax.const(self._folded[ref])
        return self._exprs[ref]

    def _node(self, node: Node) -> relax.Var:
        if node.kind == "opaque":
            return self._emit(self._opaque(node))
        if node.kind == "conv2d":
            return self._conv2d(node)
        if node.kind == "fused":
            return self._fused(node)
        args = [self._expr(r) for r in node.inputs]
        if node.kind == "matmul":
            y = self._emit(relax.op.matmul(args[0], args[1], out_dtype=_wide(node)))
            return self._activated(y if len(args) == 2 else self._emit(relax.op.add(y, args[2])), str(node["act"]))
        return self._step(node.kind, dict(node.attrs), args)

    def _step(self, kind: str, a: Mapping[str, Any], args: list[Any]) -> relax.Var:
        if kind in _BINARY:
            return self._emit(_BINARY[kind](*args))
        if kind in _UNARY or kind == "relu6":
            return self._activated(args[0], kind)
        return self._emit(_WRITERS[kind](a, args))

    def _activated(self, x: relax.Var, act: str) -> relax.Var:
        if not act:
            return x
        return self._emit(relax.op.clip(x, 0.0, 6.0) if act == "relu6" else _UNARY[act](x))

    def _conv2d(self, node: Node) -> relax.Var:
        layout = str(node["layout"])
        kernel, weights = self._kernel(node.inputs[1], layout)
        attrs = {k: list(node[k]) for k in ("strides", "padding", "dilation")}  # type: ignore[call-overload]
        y = self._emit(
            relax.op.nn.conv2d(
                self._expr(node.inputs[0]),
                weights,
                **attrs,
                groups=int(node["groups"]),  # type: ignore[call-overload]
                data_layout=layout,
                kernel_layout=kernel,
                out_dtype=_wide(node),
            )
        )
        if len(node.inputs) > 2:
            bias = self._expr(node.inputs[2])
            if layout == "NCHW":
                bias = relax.const(bias.value.numpy().reshape(1, -1, 1, 1)) if is_constant(bias) else (
                    self._emit(relax.op.reshape(bias, (1, node.shape[1], 1, 1)))
                )  # fmt: skip
            y = self._emit(relax.op.add(y, bias))
        return self._activated(y, str(node["act"]))

    def _kernel(self, weights: Ref, layout: str) -> tuple[str, Any]:
        """Layout and value of a kernel: HWIO for NHWC images where it is a constant or came as HWIO."""
        if layout == "NCHW":
            return "OIHW", self._expr(weights)
        if weights.node.constant:
            return "HWIO", relax.const(np.ascontiguousarray(self._folded[weights].transpose(2, 3, 1, 0)))
        if weights.node.kind == "transpose" and weights.node["perm"] == (3, 2, 0, 1):
            return "HWIO", self._expr(weights.node.inputs[0])
        return "HWIO", self._emit(relax.op.permute_dims(self._expr(weights), [2, 3, 1, 0]))

    def _fused(self, node: Node) -> relax.Var:
        known: dict[Any, relax.Var] = {}

        def value(term: Any) -> Any:
            if isinstance(term, int):
                return self._expr(node.inputs[term])
            if term not in known:
                known[term] = self._step(term[0], dict(term[1]), [value(t) for t in term[2]])
            return known[term]

        return value(node["program"])

    def _opaque(self, node: Node) -> relax.Call:
        call = self._read.calls[int(node["key"])]  # type: ignore[call-overload]
        operands = iter(node.inputs)

        def argument(arg: Any) -> Any:
            if isinstance(arg, relax.Tuple):
                return relax.Tuple([argument(f) for f in arg.fields])
            if isinstance(arg, relax.Var) or is_constant(arg):
                return self._expr(next(operands))
            return arg

        args = [argument(a) for a in call.args]
        return relax.Call(call.op, args, call.attrs, call.ty_args)


def _wide(node: Node) -> str | None:
    return "int32" if node.type.dtype == "int32" else None


def _pool(op: Any) -> Any:
    def write(a: Mapping[str, Any], args: list[Any]) -> Any:
        include = bool(a.get("count_pad", False))
        return op(args[0], list(a["kernel"]), list(a["strides"]), list(a["padding"]), ceil_mode=a["ceil"],
                  count_include_pad=include, layout=a["layout"])  # fmt: skip

    return write


def _split(a: Mapping[str, Any], args: list[Any]) -> Any:
    return relax.op.split(args[0], [int(v) for v in np.cumsum(a["sizes"])[:-1]], axis=a["axis"])


def _batch_norm(a: Mapping[str, Any], args: list[Any]) -> Any:
    y = relax.op.nn.batch_norm(*args, axis=a["axis"], epsilon=a["eps"], training=False)
    return relax.TupleGetItem(y, 0)


_WRITERS: Mapping[str, Any] = {
    "max_pool2d": _pool(relax.op.nn.max_pool2d),
    "avg_pool2d": _pool(relax.op.nn.avg_pool2d),
    "batch_norm": _batch_norm,
    "concat": lambda a, args: relax.op.concat(args, axis=a["axis"]),
    "split": _split,
    "transpose": lambda a, args: relax.op.permute_dims(args[0], list(a["perm"])),
    "reshape": lambda a, args: relax.op.reshape(args[0], a["shape"]),
    "mean": lambda a, args: relax.op.mean(args[0], list(a["axes"]), keepdims=a["keepdims"]),
    "softmax": lambda a, args: relax.op.nn.softmax(args[0], axis=a["axis"]),
    "clip": lambda a, args: relax.op.clip(args[0], a["low"], a["high"]),
    "pad": lambda a, args: relax.op.nn.pad(args[0], [int(v) for pair in a["widths"] for v in pair]),
}
