"""`stage_graph`: converts a Relax function to the `Graph` of the inter-operator scheduler, one `Op` per call.

Lighter than `extract_graph`: operators keep their Relax form (merging needs the convolutions as such), no row kernels
are derived, and windows come from the operators' attributes. Calls of PrimFuncs are operators too, without windows; their
kind is the attribute `op_kind`.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_cascade.errors import GraphError
from tvm_cascade.graph import IDENTITY, Graph, Op, Tensor, Window
from tvm_cascade.operators.record import Family, TensorType
from tvm_cascade.operators.table import OPERATORS, VIEWS
from tvm_cascade.passes.call_names import with_file_names
from tvm_cascade.passes.origin import file_name, plain
from tvm_cascade.passes.read import relax_names
from tvm_cascade.passes.read.program import Argument, OperatorCall, Program, numbers_in, read_program
from tvm_cascade.passes.relax_functions import is_call_tir, without_dead_code
from tvm_cascade.passes.static_regions import loses_calls_out, why_no_operator
from tvm_cascade.passes.stored_constants import StoredConstant, read_stored
from tvm_cascade.staging.program.operators import with_plain_operators

Ids = tuple[int, ...]  # tensor indices
WIDE = "float32"  # that kernels compute in
VECTOR_BYTES = 64  # kernels load and store whole vectors: tensors inside of other tensors are aligned to this


@dataclass(frozen=True)
class StageGraph:
    """A graph, the simplified module from which it was read, and the Relax call of each operator."""

    graph: Graph
    mod: tvm.IRModule
    calls: tuple[Any, ...]  # relax.Call, by operator
    program: Program = field(hash=False)
    tensors: Mapping[int, int] = field(hash=False)  # value number of an activation in `program` -> tensor index
    constants: Mapping[int, np.ndarray] = field(hash=False)  # value number of a constant or folded value -> array
    tf32: bool = (
        False  # whether products of float32 are on tensor cores, which round what they multiply (`stage_precision`)
    )
    multiplied: str = WIDE  # type of what products multiply, and sum up in float32 (`stage_precision`)

    @property
    def arithmetic(self) -> str:
        """Return the arithmetic of products, as in `cost.tiles`."""
        return "tf32" if self.tf32 else self.multiplied

    def is_narrow(self, t: int) -> bool:
        """Test whether a tensor is stored in a narrower type than kernels compute in."""
        return self.multiplied != WIDE and self.graph.tensors[t].dtype == self.multiplied

    def constant(self, expr: Any) -> np.ndarray | None:
        """Return the array of a constant (or folded) argument; None for an activation."""
        value = self.program.argument(expr)
        return self.constants.get(value) if isinstance(value, int) else None

    def stored(self, expr: Any) -> StoredConstant | None:
        """Return a constant argument as a file stores it, in integers of at most 8 bits; None for any other argument."""
        return read_stored(expr, self.program.definitions)

    def tensors_of(self, expr: Any) -> tuple[int, ...]:
        """Return the tensor indices of an argument's activations; empty for constants, shapes and numbers."""
        return tuple(self.tensors[v] for v in numbers_in(self.program.argument(expr)) if v in self.tensors)


def simplify(mod: tvm.IRModule) -> tvm.IRModule:
    """Copy `mod` in inference form: batch norms folded or decomposed, operators as `stage_operators` asks, no dead
    code.

    Other constants are folded by `_Reader`, because TVM's FoldConstant compiles a kernel for each. Raises `GraphError`
    for batch normalization by batch statistics, and for dead calls out of TVM.
    """
    for func in (f for f in mod.functions.values() if isinstance(f, relax.Function)):
        relax.analysis.post_order_visit(func, _require_inference)
    passes = [
        relax.transform.FoldBatchnormToConv2D(),
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
    ]
    simple = without_dead_code(tvm.transform.Sequential(passes)(with_plain_operators(mod.clone())))
    if loses_calls_out(mod, simple):
        raise GraphError("the result of a call out of TVM is unused: the call would be removed as dead code")
    return simple


def _require_inference(expr: Any) -> None:
    """Raise `GraphError` for a batch normalization as in training: its inference form would compute something else."""
    if getattr(getattr(expr, "op", None), "name", "") == "relax.nn.batch_norm" and expr.attrs.training:
        raise GraphError("a batch norm takes its statistics from the batch, as in training")


def stage_graph(mod: tvm.IRModule, function: str = "main") -> StageGraph:
    """Read `function`. Raises `GraphError` for symbolic shapes and for anything but straight-line code."""
    if function not in {g.name_hint for g in mod.get_global_vars()}:
        raise GraphError(f"the module has no function {function}")
    simple = simplify(mod)
    net = _Reader(simple, function).read()
    if all(op.inputs for op in net.graph.ops):
        return net
    return _Reader(relax.transform.FoldConstant()(simple), function).read()


class _Reader:
    """Converts every call on activations to an operator, and folds calls on constants."""

    def __init__(self, mod: tvm.IRModule, function: str) -> None:
        self.mod, self.function = mod, function
        self.program = read_program(mod[function])
        self.tensors: list[Tensor] = []
        self.ops: list[Op] = []
        self.calls: list[Any] = []
        self.tensor_of: dict[int, int] = {}  # by the program's values
        self.constants = dict(self.program.constants)
        self.used = Counter[str]()
        self.in_file: dict[str, str] = {}  # name of a tensor -> that of the model's file

    def read(self) -> StageGraph:
        program = self.program
        for value in program.inputs:
            self._tensor(value, plain(program.values[value].name))
        inputs = tuple(self.tensor_of[v] for v in program.inputs)
        for call in program.calls:
            self._call(call)
        outputs = tuple(dict.fromkeys(self._activations(program.result)))
        if not outputs or not _holds_tensors_alone(program.result):
            raise GraphError("the function returns no tensor that it computes, or something that is no tensor")
        tensors, ops = with_file_names(self.tensors, self.ops, inputs, outputs, self.in_file)
        graph = Graph(tensors, ops, inputs, outputs, self.function)
        return StageGraph(graph, self.mod, tuple(self.calls), program, self.tensor_of, self.constants)

    def _activations(self, argument: Argument) -> tuple[int, ...]:
        return tuple(self.tensor_of[v] for v in numbers_in(argument) if v in self.tensor_of)

    def _constant(self, argument: Argument) -> np.ndarray | None:
        return self.constants.get(argument) if isinstance(argument, int) else None

    def _call(self, call: OperatorCall) -> None:
        reason = why_no_operator(self.mod, call.expr) or _why_not_fused(self.mod, call.expr)
        if reason is not None:
            raise GraphError(f"{self.program.values[call.outputs[0]].name}: {reason}" if call.outputs else reason)
        if not call.outputs:
            raise GraphError(f"{call.last_name} computes no tensor")
        folded = self._fold(call)
        if folded is not None:
            self.constants[call.outputs[0]] = folded
            return
        if call.last_name == "dropout":  # nothing is dropped at inference; nobody reads the mask
            (source,) = self._activations(call.arguments[0])
            self.tensor_of.update(dict.fromkeys(call.outputs, source))
            return
        kind = self._kind(call)
        name = f"{kind}_{self.used[kind]}"
        self.used[kind] += 1
        inputs = tuple(t for a in call.arguments for t in self._activations(a))
        axes = relax_names.row_and_column_axis(call.expr.attrs)
        if axes and inputs:
            self._lay_out(inputs[0], axes)
        shape = self.program.values[call.outputs[0]].shape
        axes = axes or self._like(inputs, shape)
        for k, value in enumerate(call.outputs):
            self._tensor(value, name if k == 0 else f"{name}:{k}", axes)
        self.ops.append(self._op(name, kind, call, inputs))
        self.calls.append(call.expr)

    def _op(self, name: str, kind: str, call: OperatorCall, inputs: Ids) -> Op:
        weights = [c for a in call.arguments for v in numbers_in(a) if (c := self.constants.get(v)) is not None]
        outputs = tuple(self.tensor_of[v] for v in call.outputs)
        if call.name == "call_tir":  # a lowered operator: the attributes are on its PrimFunc, not on the call
            macs = _macs_by_weights(kind, [w.shape for w in weights], self.tensors[outputs[0]])
            geometry = _Geometry(macs=macs, attrs={"mergeable": False})
        else:
            geometry = self._geometry(kind, call, inputs, outputs)
        offsets = self._view_offsets(kind, call, inputs, outputs)
        return Op(
            len(self.ops), name, kind, inputs, outputs, (geometry.rows,) * len(inputs), (geometry.columns,) * len(inputs),
            macs=geometry.macs, weight_bytes=sum(int(w.nbytes) for w in weights), view=bool(offsets),
            view_offsets=offsets, attrs=MappingProxyType(dict(geometry.attrs)),
        )  # fmt: skip

    def _geometry(self, kind: str, call: OperatorCall, inputs: Sequence[int], outputs: Sequence[int]) -> _Geometry:
        """Return windows, multiply-accumulates and attributes of an operator, from the operator table."""
        operator, attrs = OPERATORS.get(kind), call.expr.attrs
        read = [self.program.values[v] for a in call.arguments[:2] for v in numbers_in(a)]
        written = tuple(TensorType(self.tensors[t].shape, self.tensors[t].dtype) for t in outputs)
        if operator is None:
            return self._unchanged_rows(inputs, outputs)
        if operator.family is Family.CONVOLUTION and operator.windows is not None and hasattr(attrs, "kernel_layout"):
            types = (
                TensorType(read[0].shape),
                TensorType(tuple(read[1].shape[a] for a in relax_names.oihw_axes(str(attrs.kernel_layout)))),
            )
            table_attrs = relax_names.convolution_attributes(attrs)
            rows, columns = operator.windows(types, written, table_attrs)
            geometry = {"groups": table_attrs["groups"], "data_layout": table_attrs["layout"]}
            return _Geometry(rows, columns, operator.macs(types, written, table_attrs), geometry)
        if operator.family is Family.POOL and operator.windows is not None:
            rows, columns = operator.windows(
                (), written, {**relax_names.pool_attributes(kind, attrs), "dilation": attrs.dilation}
            )
            return _Geometry(rows, columns)
        if operator.family is Family.PRODUCT and call.name == "matmul":
            is_stored = read_stored(call.expr.args[1], self.program.definitions) is not None
            merges: dict[str, object] = {"mergeable": False} if is_stored else {}  # a merge would widen the weights
            return _Geometry(macs=operator.macs((TensorType(read[0].shape),), written, {}), attrs=merges)
        unchanged = self._unchanged_rows(inputs, outputs)
        if kind == "softmax":
            axis = relax_names.axis_of(attrs.axis, len(self.tensors[outputs[0]].shape))
            return replace(unchanged, attrs={"axis": axis})
        return unchanged

    def _unchanged_rows(self, inputs: Sequence[int], outputs: Sequence[int]) -> _Geometry:
        """Return identity windows if all tensors of the operator have the same rows and columns, else unknown windows."""
        out = self.tensors[outputs[-1]]
        tensors = [self.tensors[t] for t in (*inputs, *outputs)]
        same = out.row_axis is not None and all(t.rows == out.rows and t.columns == out.columns for t in tensors)
        return _Geometry(IDENTITY, IDENTITY) if same else _Geometry()

    def _view_offsets(self, kind: str, call: OperatorCall, inputs: Ids, outputs: Ids) -> tuple[int, ...]:
        """Return the byte offset of each output in the input if the operator is a view; else empty."""
        if len(inputs) != 1 or call.name == "call_tir":
            return ()
        if kind in VIEWS and len(outputs) == 1:
            return (0,)
        source = self.tensors[inputs[0]]
        if kind != "split" or prod(source.shape[: relax_names.axis_of(call.expr.attrs.axis, len(source.shape))]) != 1:
            return ()
        offsets = (0, *accumulate(self.tensors[t].bytes for t in outputs[:-1]))
        return () if any(o % VECTOR_BYTES for o in offsets) else offsets

    def _fold(self, call: OperatorCall) -> np.ndarray | None:
        """Compute an operator on constants; None if an argument is not constant, or the operator cannot be evaluated
        here.
        """
        name, given = call.last_name, [self._constant(a) for a in call.arguments]
        if not given or given[0] is None:
            return None
        output = self.program.values[call.outputs[0]]
        if name in VIEWS:
            return given[0].reshape(output.shape)
        if name == "broadcast_to":
            return np.broadcast_to(given[0], output.shape)
        if name == "permute_dims":
            axes = getattr(call.expr.attrs, "axes", None)
            return np.ascontiguousarray(given[0].transpose(None if axes is None else [int(a) for a in axes]))
        if name == "astype":
            return given[0].astype(output.dtype)
        operator = OPERATORS.get(name)
        if operator is None or operator.evaluate is None or any(g is None for g in given):
            return None
        known = operator.family in (Family.UNARY, Family.BINARY)
        return np.asarray(operator.evaluate({}, *given), dtype=output.dtype) if known else None

    def _kind(self, call: OperatorCall) -> str:
        name, expr = call.last_name, call.expr
        if name == "call_tir":
            target = expr.args[0]
            return str((self.mod[target].attrs or {}).get("op_kind", target.name_hint))
        if name == "conv2d":
            groups, shape = int(expr.attrs.groups), self.program.values[call.arguments[0]].shape
            channels = shape[str(expr.attrs.data_layout).index("C")]
            return "depthwise_conv2d" if groups == channels and groups > 1 else "conv2d"
        if name == "matmul":
            return "matmul" if self._constant(call.arguments[1]) is None else "dense"
        return relax_names.graph_kind(name)

    def _lay_out(self, t: int, axes: tuple[int, int]) -> None:
        """Set the row and column axis of a rank-4 tensor without any, from a reading operator's layout."""
        tensor = self.tensors[t]
        if tensor.row_axis is None and len(tensor.shape) == 4:
            self.tensors[t] = replace(tensor, row_axis=axes[0], col_axis=axes[1])

    def _like(self, inputs: Sequence[int], shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Return row and column axes from the first input with known axes and the rank of `shape`."""
        known = ((x.row_axis, x.col_axis, len(x.shape)) for x in (self.tensors[t] for t in inputs))
        return next(((r, c) for r, c, rank in known if r is not None and c is not None and rank == len(shape)), None)

    def _tensor(self, value: int, name: str, axes: tuple[int, int] | None = None) -> None:
        record = self.program.values[value]
        if 0 in record.shape:
            raise GraphError(f"{name} is empty")
        if (known := file_name(record.name)) is not None:
            self.in_file[name] = known
        rows, columns = axes if axes and len(record.shape) == 4 else (None, None)
        self.tensor_of[value] = len(self.tensors)
        self.tensors.append(Tensor(len(self.tensors), name, record.shape, record.dtype, rows, columns))


@dataclass(frozen=True, slots=True)
class _Geometry:
    """An operator's windows, multiply-accumulates and attributes; a window of None is unknown."""

    rows: Window | None = None
    columns: Window | None = None
    macs: int = 0
    attrs: Mapping[str, object] = field(default_factory=dict)


def _why_not_fused(mod: tvm.IRModule, call: Any) -> str | None:
    """Explain why TVM's `FuseTIR` breaks the PrimFunc of a `call_tir` (64-bit sizes replace the callers'); None if not."""
    if not is_call_tir(call):
        return None
    sizes = (d for p in mod[call.args[0]].params for d in getattr(p.ty, "shape", ()))
    if any(not isinstance(d, tirx.IntImm) and str(d.ty) != "int64" for d in sizes):
        return f"the code of {call.args[0].name_hint} has symbolic sizes of 32 bits"
    return None


def _holds_tensors_alone(argument: Argument) -> bool:
    """Test whether an argument is a tensor, or a tuple of tensors and such tuples."""
    return isinstance(argument, int) or (isinstance(argument, tuple) and all(map(_holds_tensors_alone, argument)))


def _macs_by_weights(kind: str, constants: Sequence[tuple[int, ...]], out: Tensor) -> int:
    """Count the multiply-accumulates of a `call_tir` by kind and by the shape of the weights, the first constant.

    Weight layouts: convolutions [height, width, in / groups, out], depthwise ones [height, width, channels, multiplier],
    products a matrix of either orientation.
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
