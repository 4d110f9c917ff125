"""Independent rows: what is proven holds by brute force on random networks, and what mixes rows is refused."""

from __future__ import annotations

import os
from random import Random

import numpy as np
import pytest
from tvm import relax

from tvm_cascade.errors import GraphError
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.staging.program.rows import require_same_rows, row_function

T, C = 3, 4  # a tensor is (batch, T, C)
SWEEP = int(os.environ.get("TVM_CASCADE_SWEEP", "1"))
op = relax.op


def const(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def k(array: np.ndarray):
    return relax.const(array, str(array.dtype))


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


# name: what a step is in Relax and in numpy, of x and the batch
WITHIN = {
    "relu": (lambda x, b: op.nn.relu(x), lambda x, b: np.maximum(x, 0)),
    "self": (lambda x, b: op.add(x, op.tanh(x)), lambda x, b: x + np.tanh(x)),
    "bias": (lambda x, b: op.add(x, k(const(C))), lambda x, b: x + const(C)),
    "places": (lambda x, b: op.add(x, k(const(1, T, C))), lambda x, b: x + const(1, T, C)),
    "dense": (lambda x, b: op.matmul(x, k(const(C, C))), lambda x, b: x @ const(C, C)),
    "flat": (
        lambda x, b: op.reshape(op.matmul(op.reshape(x, (b * T, C)), k(const(C, C))), (b, T, C)),
        lambda x, b: x @ const(C, C),
    ),
    "swapped": (
        lambda x, b: op.permute_dims(op.nn.softmax(op.permute_dims(x, (0, 2, 1)), 2), (0, 2, 1)),
        lambda x, b: softmax(x, 1),
    ),
    "softmax": (lambda x, b: op.nn.softmax(x, 2), lambda x, b: softmax(x, 2)),
    "norm": (
        lambda x, b: op.nn.layer_norm(x, k(np.ones(C, "float32")), k(np.zeros(C, "float32")), axes=[-1]),
        lambda x, b: norm(x),
    ),
    "mean": (lambda x, b: op.subtract(x, op.mean(x, 1, True)), lambda x, b: x - x.mean(1, keepdims=True)),
    "attend": (
        lambda x, b: op.matmul(op.nn.softmax(op.matmul(x, op.permute_dims(x, (0, 2, 1))), 2), x),
        lambda x, b: softmax(x @ x.transpose(0, 2, 1), 2) @ x,
    ),
    "turned": (lambda x, b: op.flip(x, 1), lambda x, b: x[:, ::-1]),
    "taken": (
        lambda x, b: op.take(x, k(np.array([2, 0, 1], "int64")), axis=1),
        lambda x, b: x[:, [2, 0, 1]],
    ),
    "halves": (
        lambda x, b: op.concat([op.strided_slice(x, [2], [2], [4]), op.strided_slice(x, [2], [0], [2])], axis=2),
        lambda x, b: np.concatenate([x[..., 2:], x[..., :2]], 2),
    ),
    "sums": (lambda x, b: op.cumsum(x, 1), lambda x, b: np.cumsum(x, 1, dtype="float32")),
    "repeated": (
        lambda x, b: op.add(x, op.broadcast_to(k(const(1, T, 1)), (b, T, C))),
        lambda x, b: x + const(1, T, 1),
    ),
}
ACROSS = {
    "softmax of rows": (lambda x, b: op.nn.softmax(x, 0), lambda x, b: softmax(x, 0)),
    "mean of rows": (lambda x, b: op.subtract(x, op.mean(x, 0, True)), lambda x, b: x - x.mean(0, keepdims=True)),
    "rows turned": (lambda x, b: op.flip(x, 0), lambda x, b: x[::-1]),
    "sums of rows": (lambda x, b: op.cumsum(x, 0), lambda x, b: np.cumsum(x, 0, dtype="float32")),
    "row numbers": (
        lambda x, b: op.add(x, k(np.arange(b, dtype="float32").reshape(b, 1, 1))),
        lambda x, b: x + np.arange(b, dtype="float32").reshape(b, 1, 1),
    ),
    "batch": (lambda x, b: op.multiply(x, k(np.float32(b))), lambda x, b: x * np.float32(b)),
    "rows taken": (
        lambda x, b: op.take(x, k(np.arange(b)[::-1].astype("int64").copy()), axis=0),
        lambda x, b: x[::-1],
    ),
    "mixed": (
        lambda x, b: op.reshape(op.permute_dims(x, (1, 0, 2)), (b, T, C)),
        lambda x, b: x.transpose(1, 0, 2).reshape(b, T, C),
    ),
    "attended rows": (
        lambda x, b: op.reshape(
            op.matmul(
                op.nn.softmax(op.matmul(op.reshape(x, (b * T, C)), op.permute_dims(op.reshape(x, (b * T, C)))), 1),
                op.reshape(x, (b * T, C)),
            ),
            (b, T, C),
        ),
        lambda x, b: (softmax(x.reshape(b * T, C) @ x.reshape(b * T, C).T, 1) @ x.reshape(b * T, C)).reshape(b, T, C),
    ),
}
INNER = {  # rows that are not in front for a while: they hold, and are not proven
    "there and back": (
        lambda x, b: op.permute_dims(op.nn.relu(op.permute_dims(x, (1, 2, 0))), (2, 0, 1)),
        lambda x, b: np.maximum(x, 0),
    ),
}
STEPS = WITHIN | ACROSS | INNER


def built(names, batch: int):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((batch, T, C), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for name in names:
                y = builder.emit(STEPS[name][0](y, batch))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    return stage_network(builder.finalize(), "llvm")


def proven(names, batches=(1, 2, 4)) -> bool:
    try:
        require_same_rows({b: row_function(built(names, b), b, [0]) for b in batches})
    except GraphError:
        return False
    return True


def computed(names, x: np.ndarray) -> np.ndarray:
    for name in names:
        x = STEPS[name][1](x, len(x))
    return x


def holds(names) -> bool:
    """Brute force: every row is what it is alone, whatever the others are, and in any batch."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, T, C)).astype("float32")
    alone = np.concatenate([computed(names, row[None]) for row in x])
    for batch in (2, 3, 4):
        for _ in range(3):
            order = rng.permutation(4)[:batch]
            if not np.allclose(computed(names, x[order]), alone[order], rtol=1e-4, atol=1e-4):
                return False
    return True


@pytest.mark.parametrize("name", WITHIN)
def test_steps_within_a_row_are_proven(name):
    assert holds([name]) and proven([name])


@pytest.mark.parametrize("name", ACROSS)
def test_steps_across_rows_are_refused(name):
    assert not holds([name]) and not proven([name])


@pytest.mark.parametrize("name", INNER)
def test_rows_that_are_not_in_front_are_refused(name):
    assert holds([name]) and not proven([name])


@pytest.mark.parametrize("seed", range(40 * SWEEP))
def test_random_networks_against_brute_force(seed):
    """Whatever is proven holds; of networks without a step across rows all are proven."""
    rng = Random(seed)
    names = [rng.choice(list(WITHIN)) for _ in range(rng.randint(2, 6))]
    if seed % 2:
        names.insert(rng.randrange(len(names)), rng.choice(list(ACROSS)))
    if proven(names):
        assert holds(names)
    assert proven(names) == (seed % 2 == 0)


def test_what_is_refused_is_told():
    with pytest.raises(
        GraphError, match=r"a row reads .*, which may be of another row|rows are not computed in the same"
    ):
        row_function(built(["rows turned"], 4), 4, [0])
    with pytest.raises(GraphError, match="its programs for batches of 2 and 4 compute rows in different ways"):
        require_same_rows({b: row_function(built(["batch"], b), b, [0]) for b in (2, 4)})
    with pytest.raises(GraphError, match="no input has rows"):
        row_function(built(["relu"], 2), 2, [])


def test_an_output_without_rows_is_refused():
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((2, T, C), "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            made = builder.emit_output(relax.Tuple([builder.emit(op.nn.relu(x)), builder.emit(op.tanh(y))]))
        builder.emit_func_output(made)
    net = stage_network(builder.finalize(), "llvm")
    assert row_function(net, 2, [0, 1])
    with pytest.raises(GraphError, match="an output does not depend on the batch"):
        row_function(net, 2, [0])
