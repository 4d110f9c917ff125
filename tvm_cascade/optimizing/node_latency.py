"""Latencies of operators measured on a bench, as a cost for substitution graphs.

Each operator is written as a separate Relax function and lowered as by `ScheduleStages`, so the measured kernel is the
kernel that will run. Records go through the store shared by every measured cost; equal operators in further graphs, and
in further runs with the same database, are not measured again.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import tvm
from tvm import relax

from tvm_cascade.cost import OpFeatures
from tvm_cascade.cost.interface import Groups, Runner
from tvm_cascade.cost.measured import MeasuredCost
from tvm_cascade.cost.records import CONCURRENT
from tvm_cascade.errors import GraphError
from tvm_cascade.measured.runners import runner_on
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.passes.substitution_read import Read
from tvm_cascade.passes.substitution_write import write_function
from tvm_cascade.runtime.bench import Bench
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.substitution.costs import STAGES, Engine, Latency, op_features
from tvm_cascade.substitution.dag import Dag, Node, Pool, Ref


class NodeRunner:
    """A `cost.interface.Runner` for operators of substitution graphs; `know` registers an operator before it can run."""

    def __init__(self, calls: Sequence[relax.Call], bench: Bench, engine: Engine = STAGES) -> None:
        self.bench, self.workers, self.device = bench, bench.workers, f"{bench.name}:node"
        self.engine = engine
        self._calls = tuple(calls)
        self._nodes: dict[OpFeatures, Node] = {}
        self._runners: dict[OpFeatures, tuple[Runner, list[OpFeatures]]] = {}

    def know(self, node: Node) -> OpFeatures:
        """Register an operator; return features by which the operator can be run."""
        features = op_features(node, self.engine)
        if node.kind == "opaque":  # no attribute of the graph tells two of them apart
            features = replace(features, shape=(*features.shape, int(node["key"])))  # type: ignore[call-overload]
        self._nodes.setdefault(features, node)
        return features

    def run(self, groups: Groups, repeats: int) -> list[float]:
        """Measure the milliseconds of the operators in sequence."""
        columns = [self._operator(op, repeats) for group in groups for op in group]
        return [sum(row) for row in zip(*columns, strict=True)]

    def run_merged(self, parts: Sequence[OpFeatures], repeats: int) -> list[float]:
        """Return infinity: merging is left to substitutions."""
        return [float("inf")] * repeats

    def is_able(self, op: OpFeatures) -> bool:
        """Return True if a registered operator can be run."""
        try:
            return bool(self._runner_of(op)[1])
        except GraphError:
            return False

    def _operator(self, op: OpFeatures, repeats: int) -> list[float]:
        runner, kernels = self._runner_of(op)
        return runner.run([kernels], repeats) if kernels else [0.0] * repeats

    def _runner_of(self, op: OpFeatures) -> tuple[Runner, list[OpFeatures]]:
        """Return the runner of an operator, and its kernels. Raises `GraphError` if the operator cannot be staged."""
        if op not in self._runners:
            net = stage_network(self._module(self._nodes[op]), self.bench.target)
            units = unit_graph(net.graph, "fused")
            kernels = [k for unit in units.features for k in unit if k.kind != "view"]
            self._runners[op] = runner_on(self.bench, net, units), kernels
        return self._runners[op]

    def _module(self, node: Node) -> tvm.IRModule:
        """Build a module with this operator alone: activations are parameters, constants are random."""
        pool, random = Pool(), np.random.default_rng(0)
        inputs: dict[Ref, Ref] = {}
        constants: dict[str, np.ndarray] = {}
        operands: list[Ref] = []
        for i, r in enumerate(node.inputs):
            if not r.node.constant:
                inputs.setdefault(r, pool.input(f"x{i}", *r.type))
                operands.append(inputs[r])
                continue
            constants[f"w{i}"] = random.random(r.shape).astype(r.type.dtype)
            operands.append(pool.weight(f"w{i}", *r.type))
        copy = pool.node(node.kind, tuple(operands), node.attrs, node.types)
        outputs = tuple(Ref(copy, p) for p in range(len(copy.types)))
        params = tuple(relax.Var(str(r.node["name"]), relax.TensorType(*r.type)) for r in inputs.values())
        result = 0 if len(outputs) == 1 else tuple(range(len(outputs)))
        dag = Dag(pool, tuple(inputs.values()), outputs)
        func = write_function(dag, Read(dag, constants, self._calls, params, result))
        return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


@dataclass(eq=False)
class KernelLatency(Latency):
    """Milliseconds of operators in sequence, by a measuring model; an operator that cannot be run costs 0 (see
    `refused`).
    """

    runner: NodeRunner | None = None
    refused: dict[str, str] = field(default_factory=dict)  # kinds that could not be measured, with the reason

    def node(self, node: Node) -> float:
        assert self.model is not None and self.runner is not None
        features = self.runner.know(node)
        if features.kind == "view":
            return 0.0
        try:
            return self.model.op_ms(features)
        except GraphError as error:
            self.refused[node.kind] = str(error)
            return 0.0

    def foresee(self, nodes: Iterable[Node]) -> None:
        """Measure new operators, several at the same time if the bench can; a predicting model measures none."""
        if isinstance(self.model, MeasuredCost):
            self.model.fill((CONCURRENT, [[op]]) for op in self._unknown(self.model, nodes))

    def _unknown(self, measured: MeasuredCost, nodes: Iterable[Node]) -> Iterator[OpFeatures]:
        """Find the measurable operators without a record; yield their features."""
        assert self.runner is not None
        for node in nodes:
            op = self.runner.know(node)
            if measured.known(CONCURRENT, [[op]]) is None and self.runner.is_able(op):
                yield op
