"""Export of substitution graphs to ONNX, so that other engines can run an optimized graph (MetaFlow, section 5).

Images must be NCHW, the only layout of ONNX. Needs the package onnx (the extra `onnx`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tvm_cascade import extras
from tvm_cascade.errors import UnsupportedOperatorError
from tvm_cascade.operators.elementwise import program_terms
from tvm_cascade.publish import whole_file
from tvm_cascade.substitution.dag import Dag, Node, Ref
from tvm_cascade.substitution.onnx_fusing import fuse

OPSET = 17
_REMEDY = "it has no ONNX form, which has images as NCHW; give the output another ending than .onnx: a Relax module is saved then"
_PLAIN = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "maximum": "Max", "minimum": "Min", "relu": "Relu",
          "sigmoid": "Sigmoid", "tanh": "Tanh", "exp": "Exp", "sqrt": "Sqrt", "neg": "Neg"}  # fmt: skip


class Emitter(Protocol):
    """What writes an ONNX graph."""

    def emit(self, kind: str, inputs: list[str], outputs: int = 1, **attrs: Any) -> list[str]:
        """Add a node; returns the names of its outputs."""
        ...

    def tensor(self, value: np.ndarray) -> str:
        """Add a constant; returns its name."""
        ...

    def type_code(self, dtype: str) -> int:
        """ONNX's number of a type."""
        ...


class Opaque(Protocol):
    """What knows the opaque operators of a graph, whose meaning is not in the graph."""

    def name(self, node: Node) -> str:
        """The operator's name, for messages."""
        ...

    def has_form(self, node: Node) -> bool:
        """Whether `write` can."""
        ...

    def write(self, e: Emitter, node: Node, names: list[str]) -> list[str]:
        """Add the nodes of an operator whose tensors have these names; returns the names of its results."""
        ...


class NoneKnown:
    """Knows none of them."""

    def name(self, node: Node) -> str:
        """See `Opaque`."""
        return node.kind

    def has_form(self, node: Node) -> bool:
        """See `Opaque`."""
        return False

    def write(self, e: Emitter, node: Node, names: list[str]) -> list[str]:
        """See `Opaque`."""
        raise NotImplementedError


def export_onnx(
    dag: Dag,
    folded: Mapping[Ref, np.ndarray],
    path: str | Path,
    outputs: tuple[str, ...] | None = None,
    opaque: Opaque = NoneKnown(),  # noqa: B008
    inputs: tuple[tuple[str, str], ...] | None = None,
) -> Path:
    """Write the graph with its folded constants (`substitution_write.fold`) to an ONNX file.

    `outputs` are names; None: `output0`, `output1`, ... `inputs` are names and element types, which are cast to those of the
    graph; None: those of the graph.

    Raises `UnsupportedOperatorError` where an operator has no ONNX form,
    `MissingToolError` without onnx.
    """
    onnx = extras.load("onnx")
    target = Path(path)
    require_onnx_form(dag, target, opaque)
    model = _Exporter(dag, folded, inputs, outputs, opaque).model()
    onnx.checker.check_model(model)
    with whole_file(target) as partial:
        onnx.save(model, str(partial))
    return target


def require_onnx_form(dag: Dag, path: str | Path, opaque: Opaque = NoneKnown()) -> None:  # noqa: B008
    """Raises `UnsupportedOperatorError` where an operator of the graph has no ONNX form.

    What the rules make of a graph has a form where the graph has: so a network can be asked before it is searched.
    """
    bad = sorted(
        {opaque.name(n) for n in dag.nodes if not (_writable(n) or (n.kind == "opaque" and opaque.has_form(n)))}
    )
    if bad:
        raise UnsupportedOperatorError(path, bad, remedy=_REMEDY)


def _writable(node: Node) -> bool:
    if node.get("layout", "NCHW") != "NCHW":
        return False
    kinds = {str(term[0]) for term in program_terms(node["program"])} if node.kind == "fused" else {node.kind}
    act = str(node.get("act", ""))
    return all(k in ("conv2d", "matmul") or k in _PLAIN or k in _WRITERS for k in (*kinds, *([act] if act else [])))


class _Exporter:
    def __init__(
        self,
        dag: Dag,
        folded: Mapping[Ref, np.ndarray],
        inputs: tuple[tuple[str, str], ...] | None,
        outputs: tuple[str, ...] | None,
        opaque: Opaque,
    ) -> None:
        from onnx import helper, numpy_helper

        self.helper, self.numpy_helper = helper, numpy_helper
        self.dag, self.folded = dag, folded
        self.opaque = opaque
        self.inputs = inputs or tuple((str(r.node["name"]), r.type.dtype) for r in dag.inputs)
        self.names: dict[Ref, str] = {r: name for r, (name, _) in zip(dag.inputs, self.inputs, strict=True)}
        self.results = outputs or tuple(f"output{i}" for i in range(len(dag.outputs)))
        self.taken = {*self.names.values(), *self.results}
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self.constants: dict[str, Any] = {}  # the same by their names

    def model(self) -> Any:
        inputs = [self._info(name, r, dtype) for r, (name, dtype) in zip(self.dag.inputs, self.inputs, strict=True)]
        for ref, (name, dtype) in zip(self.dag.inputs, self.inputs, strict=True):
            if dtype != ref.type.dtype:
                (self.names[ref],) = self.emit("Cast", [name], to=self.type_code(ref.type.dtype))
        for node in self.dag.nodes:
            self._node(node)
        results = [self._result(ref, name) for ref, name in zip(self.dag.outputs, self.results, strict=True)]
        nodes = fuse(self.nodes, self._constant, self.tensor, self.helper.make_node, self.results, self._shapes().get)
        used = {name for node in nodes for name in node.input} | {*self.results}
        tensors = [t for t in self.tensors if t.name in used]
        graph = self.helper.make_graph(nodes, "tvm_cascade", inputs, results, tensors)
        opset = [self.helper.make_opsetid("", OPSET)]
        return self.helper.make_model(graph, opset_imports=opset, ir_version=8, producer_name="tvm_cascade")

    def _result(self, ref: Ref, name: str) -> Any:
        """Call what computes an output by the output's name; what is an input, a constant or an output already is copied."""
        made = self._name(ref)
        maker = next((node for node in self.nodes if made in node.output), None)
        if maker is None or made in self.results:
            self.nodes.append(self.helper.make_node("Identity", [made], [name]))
            return self._info(name, ref)
        for node in self.nodes:
            for names in (node.input, node.output):
                names[:] = [name if n == made else n for n in names]
        self.names = {r: name if n == made else n for r, n in self.names.items()}
        return self._info(name, ref)

    def _free(self, name: str) -> str:
        """`name`, made unlike those of inputs and outputs."""
        while name in self.taken:
            name += "_"
        return name

    def _info(self, name: str, ref: Ref, dtype: str = "") -> Any:
        return self.helper.make_tensor_value_info(name, self.type_code(dtype or ref.type.dtype), list(ref.shape))

    def _name(self, ref: Ref) -> str:
        if ref not in self.names:
            self.names[ref] = self.tensor(self.folded[ref])
        return self.names[ref]

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the tensors of the graph; what lies within a fused operator is not there."""
        return {name: tuple(int(d) for d in ref.shape) for ref, name in self.names.items()}

    def _constant(self, name: str) -> np.ndarray | None:
        held = self.constants.get(name)
        return None if held is None else self.numpy_helper.to_array(held)

    def tensor(self, value: np.ndarray) -> str:
        """Add an initializer; returns its name."""
        name = self._free(f"constant{len(self.tensors)}")
        self.tensors.append(self.numpy_helper.from_array(np.asarray(value, order="C"), name))
        self.constants[name] = self.tensors[-1]
        return name

    def type_code(self, dtype: str) -> int:
        """ONNX's number of a type."""
        return self.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def emit(self, kind: str, inputs: list[str], outputs: int = 1, **attrs: Any) -> list[str]:
        """Add an ONNX node; returns the names of its outputs."""
        names = [self._free(f"{kind.lower()}{len(self.nodes)}_{i}") for i in range(outputs)]
        self.nodes.append(self.helper.make_node(kind, inputs, names, **attrs))
        return names

    def _node(self, node: Node) -> None:
        args = [self._name(r) for r in node.inputs]
        if node.kind == "opaque":
            results = self.opaque.write(self, node, args)
        elif node.kind == "fused":
            results = [self._program(node["program"], args, {})]
        elif node.kind == "conv2d":
            attrs = {"kernel_shape": node.inputs[1].shape[2:], "strides": node["strides"], "pads": node["padding"]}
            results = self.emit("Conv", args, dilations=node["dilation"], group=node["groups"], **attrs)
            results = self._activated(results, str(node["act"]))
        elif node.kind == "matmul":
            flat = args[2:] and all(len(r.shape) == 2 for r in node.inputs[:2]) and len(node.inputs[2].shape) < 3
            results = self.emit("Gemm", args) if flat else self.emit("MatMul", args[:2])
            results = self.emit("Add", [results[0], args[2]]) if args[2:] and not flat else results
            results = self._activated(results, str(node["act"]))
        else:
            results = self._step(node.kind, dict(node.attrs), args)
        for port, name in enumerate(results):
            self.names[Ref(node, port)] = name

    def _step(self, kind: str, attrs: Mapping[str, Any], args: list[str]) -> list[str]:
        if kind in _PLAIN:
            return self.emit(_PLAIN[kind], args)
        return _WRITERS[kind](self, attrs, args)

    def _activated(self, x: list[str], act: str) -> list[str]:
        return self._step(act, {}, x) if act else x

    def _program(self, term: Any, args: list[str], known: dict[Any, str]) -> str:
        if isinstance(term, int):
            return args[term]
        if term not in known:
            operands = [self._program(t, args, known) for t in term[2]]
            known[term] = self._step(term[0], dict(term[1]), operands)[0]
        return known[term]


def _pool(kind: str) -> Any:
    def write(e: _Exporter, a: Mapping[str, Any], args: list[str]) -> list[str]:
        more = {"count_include_pad": int(a["count_pad"])} if "count_pad" in a else {}
        return e.emit(kind, args, kernel_shape=a["kernel"], strides=a["strides"], pads=a["padding"],
                      ceil_mode=int(a["ceil"]), **more)  # fmt: skip

    return write


def _clip(e: _Exporter, a: Mapping[str, Any], args: list[str]) -> list[str]:
    bounds = [e.tensor(np.array(a.get(k, v), "float32")) for k, v in (("low", 0), ("high", 6))]
    return e.emit("Clip", [*args, *bounds])


def _rsqrt(e: _Exporter, a: Mapping[str, Any], args: list[str]) -> list[str]:
    return e.emit("Reciprocal", e.emit("Sqrt", args))


def _silu(e: _Exporter, a: Mapping[str, Any], args: list[str]) -> list[str]:
    return e.emit("Mul", [*args, *e.emit("Sigmoid", args)])


def _split(e: _Exporter, a: Mapping[str, Any], args: list[str]) -> list[str]:
    sizes = e.tensor(np.array(a["sizes"], "int64"))
    return e.emit("Split", [*args, sizes], len(a["sizes"]), axis=a["axis"])


def _pad(e: _Exporter, a: Mapping[str, Any], args: list[str]) -> list[str]:
    widths = [w[0] for w in a["widths"]] + [w[1] for w in a["widths"]]
    return e.emit("Pad", [*args, e.tensor(np.array(widths, "int64"))])


def _reshape(e: _Exporter, a: Mapping[str, Any], args: list[str]) -> list[str]:
    return e.emit("Reshape", [*args, e.tensor(np.array(a["shape"], "int64"))])


_WRITERS: Mapping[str, Callable[[_Exporter, Mapping[str, Any], list[str]], list[str]]] = {
    "max_pool2d": _pool("MaxPool"),
    "avg_pool2d": _pool("AveragePool"),
    "batch_norm": lambda e, a, args: e.emit("BatchNormalization", args, epsilon=a["eps"]),
    "concat": lambda e, a, args: e.emit("Concat", args, axis=a["axis"]),
    "transpose": lambda e, a, args: e.emit("Transpose", args, perm=a["perm"]),
    "mean": lambda e, a, args: e.emit("ReduceMean", args, axes=a["axes"], keepdims=int(a["keepdims"])),
    "softmax": lambda e, a, args: e.emit("Softmax", args, axis=a["axis"]),
    "relu6": _clip,
    "clip": _clip,
    "rsqrt": _rsqrt,
    "silu": _silu,
    "split": _split,
    "pad": _pad,
    "reshape": _reshape,
}
