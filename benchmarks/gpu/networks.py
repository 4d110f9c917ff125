"""The networks of the GPU benchmark, with weights that compress, and as records that PyTorch's side reads.

A folder for a machine without a network has to be small, and random weights are not. Every constant therefore repeats
its first `PERIOD` values: distributions stay as they are, and `xz` finds the rest. The period is a prime, so that no two
rows of a matrix are equal. Values do not change the time of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_cascade.passes.substitution_read import read_function
from tvm_cascade.passes.substitution_write import fold
from tvm_cascade.schedules.tir import tvm_ffi
from tvm_cascade.substitution.dag import Dag, Ref
from tvm_cascade.substitution.evaluate import run
from tvm_cascade.testing.zoo import nasnet, randwire
from tvm_cascade.testing.zoo.inception import inception_e, inception_v3
from tvm_cascade.testing.zoo.squeezenet import squeezenet

PERIOD = 4093  # values, a prime

NETWORKS: dict[str, tuple[Callable[[], tvm.IRModule], str]] = {  # how a network is made, and its scheduling unit
    "inception_v3": (inception_v3, "fused"),
    "squeezenet": (squeezenet, "fused"),
    "nasnet": (lambda: nasnet.network("float32").mod, "sepconv"),
    "randwire": (lambda: randwire.network(dtype="float32").mod, "sepconv"),
}
SMALL = "small"  # the network that is checked by tools and rehearsed on a CPU: several branches, merges, little work


def small() -> tvm.IRModule:
    """The last block of Inception V3 with a sixteenth of its channels: 11 operators, 6 of them at the same time."""
    return inception_e(width=0.0625)


@dataclass(frozen=True)
class Network:
    """A network with its weights, its inputs and what it computes of them."""

    mod: tvm.IRModule
    record: dict[str, Any]  # see `record_of`
    constants: dict[str, np.ndarray]  # of the record, by position
    inputs: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]  # by numpy, operator by operator


def read(make: Callable[[], tvm.IRModule], seed: int = 0) -> Network:
    """Build a network; inputs are standard normal."""
    mod = repeated(make())
    graph = read_function(mod["main"])
    random = np.random.default_rng(seed)
    inputs = {str(r.node["name"]): random.standard_normal(r.shape).astype(r.type.dtype) for r in graph.dag.inputs}
    expected = tuple(np.asarray(x) for x in run(graph.dag, {**graph.constants, **inputs}))
    record, constants = record_of(graph.dag, graph.constants)
    return Network(mod, record, constants, tuple(inputs.values()), expected)


def repeated(mod: tvm.IRModule, period: int = PERIOD) -> tvm.IRModule:
    """The module with every constant of more than `period` values repeating the first `period` of them."""

    def shorter(constant: Any) -> Any:
        value = constant.value.numpy()
        return relax.const(np.resize(value.ravel()[:period], value.shape)) if value.size > period else constant

    mod = mod.clone()
    mod["main"] = tvm_ffi.structural_map(mod["main"], (type(relax.const(np.zeros(1, "float32"))), shorter))
    return mod


def record_of(dag: Dag, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A graph as plain data, and its constants by position (`"0"`, `"1"`, ...).

    Values are numbered: the inputs, then the constants, then the outputs of the nodes in order.
    """
    constants = fold(dag, weights)
    number: dict[Ref, int] = {ref: k for k, ref in enumerate((*dag.inputs, *constants))}
    nodes = []
    for node in dag.nodes:
        operands = [number[r] for r in node.inputs]
        for port in range(len(node.types)):
            number[Ref(node, port)] = len(number)
        nodes.append({"kind": node.kind, "attrs": dict(node.attrs), "inputs": operands, "outputs": len(node.types)})
    inputs = [[list(map(int, r.shape)), r.type.dtype] for r in dag.inputs]
    data = {"inputs": inputs, "constants": len(constants), "nodes": nodes, "outputs": [number[r] for r in dag.outputs]}
    return data, {str(k): np.ascontiguousarray(value) for k, value in enumerate(constants.values())}
