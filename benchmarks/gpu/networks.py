"""The networks of the GPU benchmark, with weights that compress, and as records that PyTorch's side reads.

A folder for a machine without a network has to be small, and random weights are not. Every constant therefore repeats
its first `PERIOD` values: distributions stay as they are, and `xz` finds the rest. The period is a prime, so that no two
rows of a matrix are equal. Values do not change the time of a kernel.
"""

from __future__ import annotations

import re
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

NETWORKS: dict[
    str, tuple[Callable[[int], tvm.IRModule], str]
] = {  # how a network of a batch is made; its scheduling unit
    "inception_v3": (inception_v3, "fused"),
    "squeezenet": (squeezenet, "fused"),
    "nasnet": (lambda _batch: nasnet.network("float32").mod, "sepconv"),
    "randwire": (lambda _batch: randwire.network(dtype="float32").mod, "sepconv"),
}
BATCHED = ("inception_v3", "squeezenet")  # those that are made for several images, too
DISTINCT = 7  # images of a batch at most, a prime: the others repeat them
SMALL = "small"  # the network that is checked by tools and rehearsed on a CPU: several branches, merges, little work


def small(batch: int = 1) -> tvm.IRModule:
    """The last block of Inception V3 with a sixteenth of its channels: 11 operators, 6 of them at the same time."""
    return inception_e(batch, width=0.0625)


def of_batch(name: str, batch: int) -> str:
    """The name of a network for a batch of several images."""
    return f"{name}_b{batch}"


def batch_of(name: str) -> tuple[str, int]:
    """The network and the batch that a name of `of_batch` tells, or 1."""
    told = re.fullmatch(r"(.+)_b(\d+)", name)
    return (told[1], int(told[2])) if told else (name, 1)


@dataclass(frozen=True)
class Network:
    """A network with its weights, its inputs and what it computes of them."""

    mod: tvm.IRModule
    record: dict[str, Any]  # see `record_of`
    constants: dict[str, np.ndarray]  # of the record, by position
    inputs: tuple[np.ndarray, ...]  # of `DISTINCT` images where the batch is larger
    expected: tuple[np.ndarray, ...]  # of these, by numpy, operator by operator


def read(make: Callable[[int], tvm.IRModule], batch: int = 1, seed: int = 0) -> Network:
    """Build a network; inputs are standard normal, and repeat their first values where there are several images."""
    mod = repeated(make(batch))
    graph = read_function(mod["main"])
    few = graph if batch <= DISTINCT else read_function(repeated(make(DISTINCT))["main"])
    random = np.random.default_rng(seed)
    inputs = {str(r.node["name"]): random.standard_normal(r.shape).astype(r.type.dtype) for r in few.dag.inputs}
    if batch > 1:
        inputs = {name: np.resize(x.ravel()[:PERIOD], x.shape) for name, x in inputs.items()}
    expected = tuple(np.asarray(x) for x in run(few.dag, {**few.constants, **inputs}))
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
