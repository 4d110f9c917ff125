"""`PartitionRegions`: outlines the largest regions of `main` that can cascade into private functions, BYOC style.

Match: every operator with known windows (`extract_graph` derives them from TIR, never from the name). Merge:
neighbouring matched operators, as long as no two regions depend on each other mutually (`cascading.regions`). The
planner uses the same partition: each segment lies in a single region.

Before::

    @R.function
    def main(x: R.Tensor((1, 16, 16, 3), "int8")):
        with R.dataflow():
            a = R.call_tir(cls.conv2d, (x, weights), out_ty=R.Tensor((1, 16, 16, 8), "int8"))
            b = R.call_tir(cls.relu, (a,), out_ty=R.Tensor((1, 16, 16, 8), "int8"))
            c = R.call_tir(cls.flip, (b,), out_ty=R.Tensor((1, 16, 16, 8), "int8"))   # rows in descending order
            d = R.call_tir(cls.add, (c, c), out_ty=R.Tensor((1, 16, 16, 8), "int8"))
            R.output(d)
        return d

After::

    @R.function(private=True)
    def region_0(x: R.Tensor((1, 16, 16, 3), "int8")):
        R.func_attr({"tvm_cascade.region": 0, "tvm_cascade.operators": ["conv2d", "relu"]})
        with R.dataflow():
            a = R.call_tir(cls.conv2d, (x, weights), ...)
            b = R.call_tir(cls.relu, (a,), ...)
            R.output(b)
        return b

    @R.function
    def main(x: R.Tensor((1, 16, 16, 3), "int8")):
        R.func_attr({"tvm_cascade.left_out": {"flip": "x: rows are not read in ascending order"}})
        with R.dataflow():
            b = cls.region_0(x)
            c = R.call_tir(cls.flip, (b,), ...)
            d = cls.region_1(c)
            R.output(d)
        return d

The module can be run without further passes, and `Cascade` accepts it, inlining the regions before reading the graph.
(Relax's `FuseOpsByPattern` and `MergeCompositeFunctions` only merge producers with consumers; here operators that read
the same tensor are in a single region too.)
"""

# TVM's nodes get their fields and operators at run time, where no type checker sees them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.ir import GlobalVar, IRModule

from tvm_cascade.cascading.regions import Partition, partition, region_order
from tvm_cascade.graph import Graph
from tvm_cascade.passes.base import CascadePass, PassResult
from tvm_cascade.passes.extract_graph import analyse
from tvm_cascade.passes.integer.expressions import constant
from tvm_cascade.passes.relax_functions import add_function
from tvm_cascade.passes.relax_ops import Call, Source, read_function

REGION, OPERATORS, LEFT_OUT = "tvm_cascade.region", "tvm_cascade.operators", "tvm_cascade.left_out"


@dataclass(frozen=True)
class PartitionRegions(CascadePass):
    """Move the operators of every region into a private function called by `main`.

    Requires a function `main` of straight-line code with static shapes. Ensures that the module computes the same
    values; Relax operators are legalized. The module docstring shows an example.

    Raises `GraphError` if `main` is not straight-line code with static shapes.
    """

    def call(self, mod: IRModule) -> PassResult:
        """Move each region into a private function."""
        inlined = relax.transform.InlinePrivateFunctions()(mod)
        source = read_function(inlined, "main")
        graph = analyse(source).graph
        return PassResult.compare(mod, _Writer(inlined, source, graph, partition(graph)).write())


class _Writer:
    """Writer of the partitioned module; operator k in `graph` is call k in `source`."""

    def __init__(self, mod: IRModule, source: Source, graph: Graph, regions: Partition) -> None:
        self.source, self.graph, self.regions = source, graph, regions
        self.main = mod["main"]
        others = {gv: func for gv, func in mod.functions.items() if gv.name_hint != "main"}
        kept = {g: f for g, f in others.items() if not isinstance(f, relax.Function) or "global_symbol" in f.attrs}
        self.builder = relax.BlockBuilder(IRModule(kept, attrs=mod.attrs))

    def write(self) -> IRModule:
        made = [self._region(k, ops) for k, ops in enumerate(self.regions.regions)]
        params = [relax.Var(p.name, p.ty) for p in self.main.params]
        values: dict[int, Any] = dict(zip(self.source.inputs, params, strict=True))

        def emit() -> Any:
            for o in region_order(self.graph, self.regions):
                region = self.regions.region_of[o]
                if region is None:
                    self._call(self.source.calls[o], values)
                elif o == self.regions.regions[region][0]:
                    gv, taken, given = made[region]
                    self._bind(relax.Call(gv, [values[t] for t in taken]), given, values)
            results = [values[t] for t in self.source.outputs]
            return results if isinstance(self.main.body.ty, relax.TupleType) else results[0]

        attrs = {str(k): v for k, v in (self.main.attrs or {}).items() if str(k) != "global_symbol"}
        left_out = {self.graph.ops[x.op].name: x.reason for x in self.regions.left_out}
        add_function(self.builder, "main", params, emit, attrs={**attrs, LEFT_OUT: left_out})
        return relax.transform.DeadCodeElimination()(self.builder.finalize())

    def _region(self, k: int, ops: Sequence[int]) -> tuple[GlobalVar, tuple[int, ...], tuple[int, ...]]:
        """Build region `k`'s function; return this with the tensor indices of parameters and results."""
        inside = set(ops)
        made = [t for o in ops for t in self.graph.ops[o].outputs]
        taken = tuple(dict.fromkeys(t for o in ops for t in self.graph.ops[o].inputs if t not in set(made)))
        outer = self.graph.outputs
        given = tuple(t for t in made if t in outer or any(c not in inside for c in self.graph.consumers[t]))
        infos = [self.source.tensors[t] for t in taken]
        params = [relax.Var(i.name.replace(":", "_"), relax.TensorType(i.shape, i.dtype)) for i in infos]
        values: dict[int, Any] = dict(zip(taken, params, strict=True))

        def emit() -> Any:
            for o in ops:
                self._call(self.source.calls[o], values)
            return values[given[0]] if len(given) == 1 else [values[t] for t in given]

        attrs = {REGION: k, OPERATORS: [self.graph.ops[o].name for o in ops]}
        return add_function(self.builder, f"region_{k}", params, emit, attrs=attrs, private=True), taken, given

    def _call(self, call: Call, values: dict[int, Any]) -> None:
        gv = self.builder.add_func(call.func.without_attr("global_symbol"), call.name)
        arguments = [values[t] for t in call.inputs] + [constant(c) for c in call.constants]
        infos = [self.source.tensors[t] for t in call.outputs]
        types = [relax.TensorType(i.shape, i.dtype) for i in infos]
        out = types if len(types) > 1 else types[0]
        self._bind(relax.op.call_tir(gv, arguments, out_ty=out), call.outputs, values)

    def _bind(self, call: Any, tensors: Sequence[int], values: dict[int, Any]) -> None:
        result = self.builder.emit(call)
        if len(tensors) == 1:
            values[tensors[0]] = result
        else:
            values.update({t: self.builder.emit(relax.TupleGetItem(result, n)) for n, t in enumerate(tensors)})
