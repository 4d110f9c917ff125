"""Converts substitution graphs back to Relax functions, with constants folded and fused operators expanded.

A convolution's bias and activation and the program of a `fused` operator become separate Relax operators; TVM's own
`FuseOps` fuses them again. The flag of `exclusive_concat` has no Relax form and is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from tvm import relax

from tvm_cascade.operators.table import BINARY, UNARY
from tvm_cascade.passes.integer.expressions import constant
from tvm_cascade.passes.islands.writer import IslandWriter
from tvm_cascade.passes.origin import NamingBuilder, marked
from tvm_cascade.passes.read.program import is_constant
from tvm_cascade.passes.read.relax_names import relax_operator
from tvm_cascade.passes.substitution_read import Read
from tvm_cascade.substitution.dag import Dag, Node, Ref
from tvm_cascade.substitution.evaluate import evaluate

_R: Any = relax.op


def write_function(dag: Dag, read: Read, attrs: Any = None) -> relax.Function:
    """Return `dag`, a rewritten `read.dag`, as a function with the same parameters and result."""
    return _Writer(dag, read, False).write(attrs)


def write_with_parameters(dag: Dag, read: Read, attrs: Any = None) -> tuple[relax.Function, dict[str, np.ndarray]]:
    """Return a function as `write_function`, with every constant as a further parameter, and the constants by parameter."""
    writer = _Writer(dag, read, True)
    func = writer.write(attrs)
    return func, writer.lifted


def fold(dag: Dag, constants: Mapping[str, np.ndarray]) -> dict[Ref, np.ndarray]:
    """Return the values of the graph's constant nodes. Derived values are computed in float64 and rounded once."""
    return {ref: folded(ref, constants) for ref in dag.constants()}


def folded(ref: Ref, constants: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the value of a constant as `fold` does."""
    if ref.node.kind == "weight":
        return constants[str(ref.node["name"])]
    wide = _Wide(constants)
    return np.broadcast_to(evaluate((ref,), wide)[ref], ref.shape).astype(ref.type.dtype, order="C")


class _Wide(Mapping[str, np.ndarray]):
    """Constants of which floats are read in float64."""

    def __init__(self, constants: Mapping[str, np.ndarray]) -> None:
        self._constants = constants

    def __getitem__(self, name: str) -> np.ndarray:
        value = self._constants[name]
        return value.astype("float64") if value.dtype.kind == "f" else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._constants)

    def __len__(self) -> int:
        return len(self._constants)


class _Writer:
    def __init__(self, dag: Dag, read: Read, lift: bool) -> None:
        self._dag, self._read, self._lift = dag, read, lift
        self.lifted: dict[str, np.ndarray] = {}
        self._vars: list[relax.Var] = []
        self._constants: dict[tuple[Ref, str], Any] = {}  # by value and form (see `_form`)
        self._folded = fold(dag, read.constants)
        self._builder = NamingBuilder()
        self._emit = self._builder.emit
        self._names = {ref: name for name, ref in read.files.items()}
        self._exprs: dict[Ref, Any] = dict(zip(dag.inputs, read.params, strict=True))

    def write(self, attrs: Any) -> relax.Function:
        bb = self._builder
        given = dict(attrs or {})
        name = str(given.pop("global_symbol", "main"))
        with bb.function(name, attrs=given or None):
            with bb.dataflow():
                for node in self._dag.nodes:
                    self._emit_node(node)
                results = [bb.emit_output(self._expr(r)) for r in self._dag.outputs]
            bb.emit_func_output(_nested(self._read.result, results), [*self._read.params, *self._vars])
        return bb.finalize()[name]

    def _value(self, ref: Ref, form: str) -> np.ndarray:
        value = self._folded[ref]
        if form == "HWIO":
            value = value.transpose(2, 3, 1, 0)
        elif form == "NCHW bias":
            value = value.reshape(1, -1, 1, 1)
        return np.ascontiguousarray(value) if form else value

    def _constant(self, ref: Ref, form: str = "") -> Any:
        if (ref, form) not in self._constants:
            value = self._value(ref, form)
            self._constants[ref, form] = self._parameter(value) if self._lift else constant(value)
        return self._constants[ref, form]

    def _parameter(self, value: Any) -> relax.Var:
        self._vars.append(relax.Var(f"constant{len(self.lifted)}", relax.TensorType(value.shape, str(value.dtype))))
        self.lifted[self._vars[-1].name] = value
        return self._vars[-1]

    def _emit_node(self, node: Node) -> None:
        name = self._names.get(node.result)
        self._builder.name = "" if name is None else marked(name)
        value = self._node(node)
        if len(node.types) == 1 and not isinstance(value.ty, relax.TupleType):
            self._exprs[Ref(node, 0)] = value
            return
        for port in range(len(node.types)):
            self._exprs[Ref(node, port)] = self._builder.emit(relax.TupleGetItem(value, port))

    def _expr(self, ref: Ref) -> Any:
        return self._constant(ref) if ref.node.constant else self._exprs[ref]

    def _node(self, node: Node) -> relax.Var:
        if node.kind == "opaque":
            return self._emit(self._opaque(node))
        if node.kind == "conv2d":
            return self._conv2d(node)
        if node.kind in ("qconv2d", "qmatmul", "qadd"):
            read = [self._expr(r) for r in node.inputs if not r.node.constant]
            return IslandWriter(self._emit, self._folded.__getitem__).write(node, read)
        if node.kind == "fused":
            return self._fused(node)
        args = [self._expr(r) for r in node.inputs]
        if node.kind == "matmul":
            y = self._emit(_R.matmul(args[0], args[1], out_dtype=_wide(node)))
            return self._activated(y if len(args) == 2 else self._emit(_R.add(y, args[2])), str(node["act"]))
        return self._step(node.kind, dict(node.attrs), args)

    def _step(self, kind: str, a: Mapping[str, Any], args: list[Any]) -> relax.Var:
        if kind in _WRITERS:
            return self._emit(_WRITERS[kind](a, args))
        assert kind in BINARY | UNARY, f"{kind} has no form in Relax"
        return self._emit(relax_operator(kind)(*args))

    def _activated(self, x: relax.Var, act: str) -> relax.Var:
        return self._step(act, {}, [x]) if act else x

    def _conv2d(self, node: Node) -> relax.Var:
        layout = str(node["layout"])
        kernel, weights = self._kernel(node.inputs[1], layout)
        attrs: dict[str, Any] = {k: list(node[k]) for k in ("strides", "padding", "dilation")}  # type: ignore[call-overload]
        attrs |= {"data_layout": layout, "kernel_layout": kernel, "groups": int(node["groups"])}  # type: ignore[call-overload]
        y = self._emit(_R.nn.conv2d(self._expr(node.inputs[0]), weights, **attrs, out_dtype=_wide(node)))
        if len(node.inputs) > 2:
            bias, form = node.inputs[2], _form(node, 2)
            if bias.node.constant:
                bias = self._constant(bias, form)
            else:
                bias = self._emit(_R.reshape(self._expr(bias), (1, -1, 1, 1))) if form else self._expr(bias)
            y = self._emit(_R.add(y, bias))
        return self._activated(y, str(node["act"]))

    def _kernel(self, weights: Ref, layout: str) -> tuple[str, Any]:
        """Return layout and value of a convolution's weights: OIHW for NCHW, HWIO for NHWC (transposed if necessary)."""
        if layout == "NCHW":
            return "OIHW", self._expr(weights)
        if weights.node.constant:
            return "HWIO", self._constant(weights, "HWIO")
        if weights.node.kind == "transpose" and weights.node["perm"] == (3, 2, 0, 1):
            return "HWIO", self._expr(weights.node.inputs[0])
        return "HWIO", self._emit(_R.permute_dims(self._expr(weights), [2, 3, 1, 0]))

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

        return relax.Call(call.op, [argument(a) for a in call.args], call.attrs, call.ty_args)


def _nested(shape: Any, results: list[Any]) -> Any:
    return results[shape] if isinstance(shape, int) else relax.Tuple([_nested(s, results) for s in shape])


def _form(node: Node, operand: int) -> str:
    """Return the written form of a constant operand: "HWIO" weights, "NCHW bias" of shape (1, C, 1, 1), "" if unchanged."""
    if node.kind != "conv2d" or operand == 0:
        return ""
    if operand == 1:
        return "HWIO" if node["layout"] == "NHWC" else ""
    return "NCHW bias" if node["layout"] == "NCHW" else ""


def _wide(node: Node) -> str | None:
    return "int32" if node.type.dtype == "int32" else None


def _pool(op: Any) -> Any:
    def write(a: Mapping[str, Any], args: list[Any]) -> Any:
        include = bool(a.get("count_pad", False))
        return op(args[0], list(a["kernel"]), list(a["strides"]), list(a["padding"]), ceil_mode=a["ceil"],
                  count_include_pad=include, layout=a["layout"])  # fmt: skip

    return write


def _split(a: Mapping[str, Any], args: list[Any]) -> Any:
    return _R.split(args[0], [int(v) for v in np.cumsum(a["sizes"])[:-1]], axis=a["axis"])


def _batch_norm(a: Mapping[str, Any], args: list[Any]) -> Any:
    y = _R.nn.batch_norm(*args, axis=a["axis"], epsilon=a["eps"], training=False)
    return relax.TupleGetItem(y, 0)


_WRITERS: Mapping[str, Any] = {
    "max_pool2d": _pool(_R.nn.max_pool2d),
    "avg_pool2d": _pool(_R.nn.avg_pool2d),
    "batch_norm": _batch_norm,
    "concat": lambda a, args: _R.concat(args, axis=a["axis"]),
    "split": _split,
    "transpose": lambda a, args: _R.permute_dims(args[0], list(a["perm"])),
    "reshape": lambda a, args: _R.reshape(args[0], a["shape"]),
    "mean": lambda a, args: _R.mean(args[0], list(a["axes"]), keepdims=a["keepdims"]),
    "softmax": lambda a, args: _R.nn.softmax(args[0], axis=a["axis"]),
    "relu6": lambda a, args: _R.clip(args[0], 0.0, 6.0),
    "clip": lambda a, args: _R.clip(args[0], a["low"], a["high"]),
    "pad": lambda a, args: _R.nn.pad(args[0], [int(v) for pair in a["widths"] for v in pair]),
}
