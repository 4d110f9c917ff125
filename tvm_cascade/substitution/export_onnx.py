"""Export substitution graphs to ONNX, for other engines (MetaFlow, section 5).

Images must be NCHW, ONNX's only layout. Needs the package onnx (the extra `onnx`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tvm_cascade import extras
from tvm_cascade.errors import UnsupportedOperatorError
from tvm_cascade.operators.elementwise import program_terms
from tvm_cascade.operators.table import CONVOLUTIONS, PRODUCTS
from tvm_cascade.publish import whole_file
from tvm_cascade.substitution.dag import Dag, Node, Ref
from tvm_cascade.substitution.file_nodes import FileNodes, Region, outer_reads
from tvm_cascade.substitution.onnx_fusing import fuse

OPSET = 17
_FUSING = 14  # the least version of ONNX with all that `fuse` writes
_REMEDY = "it has no ONNX form, which has images as NCHW; give the output another ending than .onnx: a Relax module is saved then"
_PLAIN = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "maximum": "Max", "minimum": "Min", "relu": "Relu",
          "sigmoid": "Sigmoid", "tanh": "Tanh", "exp": "Exp", "sqrt": "Sqrt", "neg": "Neg"}  # fmt: skip


class Emitter(Protocol):
    """What writes an ONNX graph."""

    def emit(self, kind: str, inputs: list[str], outputs: int = 1, **attrs: Any) -> list[str]:
        """Add a node; return its output names."""
        ...

    def tensor(self, value: np.ndarray) -> str:
        """Add a constant; returns its name."""
        ...

    def type_code(self, dtype: str) -> int:
        """Return ONNX's number for a type."""
        ...


class Opaque(Protocol):
    """Knowledge about a graph's opaque operators, whose meaning is outside the graph."""

    def name(self, node: Node) -> str:
        """Return the operator's name, for messages."""
        ...

    def has_form(self, node: Node) -> bool:
        """Return True if `write` can write the operator."""
        ...

    def write(self, e: Emitter, node: Node, names: list[str]) -> list[str]:
        """Add an operator's nodes on tensors with these names; return its result names."""
        ...


class NoneKnown:
    """Knows no opaque operator."""

    def name(self, node: Node) -> str:
        """Return the operator's name, see `Opaque`."""
        return node.kind

    def has_form(self, node: Node) -> bool:
        """Return False, see `Opaque`."""
        return False

    def write(self, e: Emitter, node: Node, names: list[str]) -> list[str]:
        """Write nothing, see `Opaque`."""
        raise NotImplementedError


def export_onnx(
    dag: Dag,
    folded: Mapping[Ref, np.ndarray],
    path: str | Path,
    outputs: tuple[str, ...] | None = None,
    opaque: Opaque = NoneKnown(),  # noqa: B008
    inputs: tuple[tuple[str, str], ...] | None = None,
) -> Path:
    """Write the graph with its folded constants (`substitution_write.fold`) to an ONNX file, as `onnx_model` makes it.

    Raises `UnsupportedOperatorError` where an operator has no ONNX form,
    `MissingToolError` without onnx.
    """
    onnx = extras.load("onnx")
    target = Path(path)
    require_onnx_form(dag, target, opaque)
    model = onnx_model(dag, folded, outputs, opaque, inputs)
    onnx.checker.check_model(model)
    with whole_file(target) as partial:
        onnx.save(model, str(partial))
    return target


def onnx_model(
    dag: Dag,
    folded: Mapping[Ref, np.ndarray],
    outputs: tuple[str, ...] | None = None,
    opaque: Opaque = NoneKnown(),  # noqa: B008
    inputs: tuple[tuple[str, str], ...] | None = None,
    files: FileNodes | None = None,
) -> Any:
    """Return the ONNX model for a graph in which every operator has a form (`without_form`).

    `outputs` are names; None: `output0`, `output1`, ... `inputs` are names and element types, cast to the graph's;
    None: the graph's own. With `files`, the file's nodes are written unchanged wherever the graph still holds their
    region.
    """
    return _Exporter(dag, folded, inputs, outputs, opaque, files).model()


def require_onnx_form(dag: Dag, path: str | Path, opaque: Opaque = NoneKnown(), files: FileNodes | None = None) -> None:  # noqa: B008
    """Raise `UnsupportedOperatorError` for an operator without an ONNX form (`without_form`)."""
    bad = without_form(dag, opaque, files)
    if bad:
        raise UnsupportedOperatorError(path, bad, remedy=_REMEDY)


def without_form(dag: Dag, opaque: Opaque, files: FileNodes | None = None) -> list[str]:
    """Return the names of a graph's unwritable operators, in alphabetic order."""
    return sorted({opaque.name(n) for n in written_anew(dag, files) if not (_writable(n) or _has_form(opaque, n))})


def _has_form(opaque: Opaque, node: Node) -> bool:
    return node.kind == "opaque" and opaque.has_form(node)


def written_anew(dag: Dag, files: FileNodes | None) -> set[Node]:
    """Return a graph's operators not written as nodes of the file."""
    return _demanded(dag, files)[1]


_Written = tuple[Region, Mapping[Ref, Ref]]
"""A region of the file, and by the values that it reads those that it reads here."""


def _demanded(dag: Dag, files: FileNodes | None) -> tuple[dict[Ref, _Written], set[Node]]:
    """Return the values written as nodes of the file, and the operators written anew."""
    as_file: dict[Ref, _Written] = {}
    anew: set[Node] = set()
    seen: set[Ref] = set()
    used: set[str] = set()
    waiting = list(dag.outputs)
    while waiting:
        ref = waiting.pop()
        if ref in seen or ref.node.constant or ref.node.kind == "input":
            continue
        seen.add(ref)
        found = _as_file(ref, files, used) if files is not None else None
        if found is None:
            anew.add(ref.node)
            waiting += ref.node.inputs
        else:
            as_file[ref] = found
            used.add(found[0].name)
            waiting += [found[1].get(read, read) for read in found[0].reads]
    return as_file, anew


def _as_file(ref: Ref, files: FileNodes, used: set[str]) -> _Written | None:
    region = files.as_read(ref)
    found = files.moved(ref, used) if region is None else (region, {})
    if found is not None and len(found[0].nodes) > len(found[0].inside) and all(map(_writable, found[0].inside)):
        return None  # reading has folded some of the nodes
    return found


def _writable(node: Node) -> bool:
    if node.get("layout", "NCHW") != "NCHW":
        return False
    kinds = {str(term[0]) for term in program_terms(node["program"])} if node.kind == "fused" else {node.kind}
    act = str(node.get("act", ""))
    return all(k in PRODUCTS or k in _PLAIN or k in _WRITERS for k in (*kinds, *([act] if act else [])))


class _Exporter:
    def __init__(
        self,
        dag: Dag,
        folded: Mapping[Ref, np.ndarray],
        inputs: tuple[tuple[str, str], ...] | None,
        outputs: tuple[str, ...] | None,
        opaque: Opaque,
        files: FileNodes | None,
    ) -> None:
        from onnx import helper, numpy_helper

        self.helper, self.numpy_helper = helper, numpy_helper
        self.dag, self.folded = dag, folded
        self.opaque = opaque
        self.inputs = inputs or tuple((str(r.node["name"]), r.type.dtype) for r in dag.inputs)
        self.names: dict[Ref, str] = {r: name for r, (name, _) in zip(dag.inputs, self.inputs, strict=True)}
        self.results = outputs or tuple(f"output{i}" for i in range(len(dag.outputs)))
        self.files = files
        self.as_file, self.anew = _demanded(dag, files)
        self.opset = OPSET if files is None else files.opset
        self.taken = {*self.names.values(), *self.results, *(() if files is None else files.taken())}
        self.raw = dict(self.names)  # inputs in the types of the file
        self.cast = {r for r, (_, dtype) in zip(dag.inputs, self.inputs, strict=True) if dtype != r.type.dtype}
        self.copied: dict[tuple[int, tuple[str, ...]], Any] = {}  # nodes of the file, by themselves and what they read
        self.titles: set[str] = set()  # names of nodes of the file that are written
        own = {
            n
            for r, n in zip(dag.outputs, self.results, strict=True)
            if r in self.as_file and self.as_file[r][0].name == n
        }
        self.written = {*self.names.values(), *self.results} - own  # names of the file that something else has
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self.constants: dict[str, Any] = {}  # the same by their names
        self.same: dict[tuple[str, tuple[int, ...], bytes], str] = {}  # names by value

    def model(self) -> Any:
        inputs = [self._info(name, r, dtype) for r, (name, dtype) in zip(self.dag.inputs, self.inputs, strict=True)]
        roots: dict[Node, list[Ref]] = {}
        for ref in self.as_file:
            roots.setdefault(ref.node, []).append(ref)
        for node in self.dag.nodes:
            for ref in sorted(roots.get(node, ()), key=lambda r: r.port):
                self._copy(ref, *self.as_file[ref])
            if node in self.anew:
                self._node(node)
        results = [self._result(ref, name) for ref, name in zip(self.dag.outputs, self.results, strict=True)]
        nodes = self.nodes
        if self.opset >= _FUSING:
            inner = [name for node in nodes for name in outer_reads(node)]
            nodes = fuse(
                nodes, self._constant, self.tensor, self.helper.make_node, (*self.results, *inner), self._shapes().get
            )
        copies = {id(copy) for copy in self.copied.values()}
        nodes = [node if id(node) in copies else self._in_opset(node) for node in nodes]
        used = {name for node in nodes for name in (*node.input, *outer_reads(node))} | {*self.results}
        tensors = [t for t in self.tensors if t.name in used]
        graph = self.helper.make_graph(nodes, "tvm_cascade", inputs, results, tensors)
        if self.files is None:
            opset = [self.helper.make_opsetid("", OPSET)]
            return self.helper.make_model(graph, opset_imports=opset, ir_version=8, producer_name="tvm_cascade")
        source = self.files.model
        return self.helper.make_model(
            graph, opset_imports=source.opset_import, ir_version=max(source.ir_version, 8), functions=source.functions,
            producer_name="tvm_cascade",
        )  # fmt: skip

    def _copy(self, root: Ref, region: Region, bound: Mapping[Ref, Ref]) -> None:
        """Add the file's nodes that compute a value; their operands are present already."""
        assert self.files is not None
        names: dict[str, str] = {}
        for name, read in sorted(self.files.called(region), key=lambda pair: pair[0]):
            ref = bound.get(read, read)
            names[name] = self.raw[ref] if self.raw.get(ref) == name else self._name(ref)
        for node in region.nodes:
            made = self._copied(node, [self._operand(name, names) for name in node.input], names)
            names.update(zip(node.output, made.output, strict=True))
        self.names[root] = names[region.name]

    def _operand(self, name: str, names: Mapping[str, str]) -> str:
        """Return the name for a file node's operand `name`; add a constant of the file."""
        if not name or name in names:
            return names.get(name, name)
        assert self.files is not None
        if name in self.files.constants and name not in self.constants:
            self.tensors.append(self.files.constants[name])
            self.constants[name] = self.files.constants[name]
        elif name not in self.files.constants:  # folded when the file was read
            ref = self.files.values[name]
            if ref not in self.names and ref not in self.folded:
                self.names[ref] = self.tensor(self.files.fold(ref))
            return self._name(ref)
        return name

    def _copied(self, node: Any, read: list[str], names: Mapping[str, str]) -> Any:
        """Return the file's node with these inputs: added now, or before."""
        inner = outer_reads(node)
        key = id(node), (*read, *(names.get(name, name) for name in sorted(inner)))
        if key not in self.copied:
            for name in inner:  # of its subgraphs, which read outer tensors by their names
                held = self._operand(name, names)
                if held != name and name not in self.written:
                    self.nodes.append(self.helper.make_node("Identity", [held], [name]))
                    self.written.add(name)
            copy = type(node)()
            copy.CopyFrom(node)
            if node.name in self.titles:
                copy.name = ""  # names are unlike
            self.titles.add(node.name)
            copy.input[:] = read
            copy.output[:] = [self._own(name) for name in node.output]
            self.nodes.append(copy)
            self.copied[key] = copy
        return self.copied[key]

    def _own(self, name: str) -> str:
        """Return the file's name, if still free."""
        own = name if name not in self.written else self._free(name)
        self.written.add(own)
        self.taken.add(own)
        return own if name else ""

    def _in_opset(self, node: Any) -> Any:
        """Return a new node in the file's ONNX version: some operands are attributes in earlier or later versions."""
        attrs = {a.name: self.helper.get_attribute_value(a) for a in node.attribute}
        inputs, kind = list(node.input), node.op_type
        if self.opset >= 18 and kind.startswith("Reduce") and "axes" in attrs:
            inputs.append(self.tensor(np.array(attrs.pop("axes"), "int64")))
        for name, (place, since) in _OPERANDS.get(kind, {}).items():
            held = self._constant(inputs[place]) if self.opset < since and len(inputs) > place else None
            if held is not None:
                attrs[name] = held.item() if held.size == 1 and held.ndim == 0 else held.tolist()
                inputs[place] = ""
        if self.opset < 10 and not attrs.get("ceil_mode", 1):
            del attrs["ceil_mode"]
        while inputs and not inputs[-1]:
            inputs.pop()
        return self.helper.make_node(kind, inputs, list(node.output), **attrs)

    def _result(self, ref: Ref, name: str) -> Any:
        """Give an output of the model its name: rename the tensor, or copy the tensor by an Identity if it is an input,
        a constant or another output.
        """
        made = self._name(ref)
        if made == name and ref.node.kind != "input":
            return self._info(name, ref)
        maker = next((node for node in self.nodes if made in node.output), None)
        read_inside = any(made in outer_reads(node) for node in self.nodes)
        if maker is None or made in self.results or read_inside:
            self.nodes.append(self.helper.make_node("Identity", [made], [name]))
            return self._info(name, ref)
        for node in self.nodes:
            for names in (node.input, node.output):
                names[:] = [name if n == made else n for n in names]
        self.names = {r: name if n == made else n for r, n in self.names.items()}
        return self._info(name, ref)

    def _free(self, name: str) -> str:
        """Return `name`, made different from input and output names."""
        while name in self.taken:
            name += "_"
        return name

    def _info(self, name: str, ref: Ref, dtype: str = "") -> Any:
        return self.helper.make_tensor_value_info(name, self.type_code(dtype or ref.type.dtype), list(ref.shape))

    def _name(self, ref: Ref) -> str:
        """Return a value's name, in the graph's type: an input with another type in the file is cast on first use."""
        if ref in self.cast:
            (self.names[ref],) = self.emit("Cast", [self.raw[ref]], to=self.type_code(ref.type.dtype))
            self.cast.remove(ref)
        elif ref not in self.names:
            self.names[ref] = self.tensor(self.folded[ref])
        return self.names[ref]

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the graph's tensor shapes, without the inside of fused operators."""
        return {name: tuple(int(d) for d in ref.shape) for ref, name in self.names.items()}

    def _constant(self, name: str) -> np.ndarray | None:
        held = self.constants.get(name)
        return None if held is None else self.numpy_helper.to_array(held)

    def tensor(self, value: np.ndarray) -> str:
        """Add an initializer, each value once; returns its name."""
        value = np.asarray(value, order="C")
        key = value.dtype.str, value.shape, value.tobytes()
        if key in self.same:
            return self.same[key]
        name = self._free(f"constant{len(self.tensors)}")
        self.taken.add(name)
        self.tensors.append(self.numpy_helper.from_array(value, name))
        self.same[key] = name
        self.constants[name] = self.tensors[-1]
        return name

    def type_code(self, dtype: str) -> int:
        """Return ONNX's number for a type."""
        return self.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def emit(self, kind: str, inputs: list[str], outputs: int = 1, **attrs: Any) -> list[str]:
        """Add an ONNX node; return its output names."""
        names = [self._free(f"{kind.lower()}{len(self.nodes)}_{i}") for i in range(outputs)]
        self.taken.update(names)
        self.nodes.append(self.helper.make_node(kind, inputs, names, **attrs))
        return names

    def _node(self, node: Node) -> None:
        args = [self._name(r) for r in node.inputs]
        if node.kind == "opaque":
            results = self.opaque.write(self, node, args)
        elif node.kind == "fused":
            results = [self._program(node["program"], args, {})]
        elif node.kind in CONVOLUTIONS:
            attrs = {"kernel_shape": node.inputs[1].shape[2:], "strides": node["strides"], "pads": node["padding"]}
            results = self.emit("Conv", args, dilations=node["dilation"], group=node["groups"], **attrs)
            results = self._activated(results, str(node["act"]))
        elif node.kind in PRODUCTS:
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


_OPERANDS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "Clip": {"min": (1, 11), "max": (2, 11)},
    "Pad": {"pads": (1, 11), "value": (2, 11)},
    "ReduceSum": {"axes": (1, 13)},
    "Split": {"split": (1, 13)},
}
"""Attributes that became operands: by kind their places among these, and since which version of ONNX."""

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
