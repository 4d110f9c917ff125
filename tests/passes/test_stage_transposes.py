"""Operands of attention as PyTorch's files write them: transpositions, parts and repetitions inside the attention's kernel."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.kernels.cpu_float import cpu_schedule
from tvm_cascade.staging.program.kernels import build_kernels
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.staging.program.specs import Spec
from tvm_cascade.staging.program.transposes import with_plain_transposes
from tvm_cascade.testing.quick_build import quick_run

Var = relax.Var
CPU = AnalyticCost(find_device("cpu2"))


def module(inputs: dict[str, tuple[int, ...]], write: Callable[..., relax.Expr]) -> tvm.IRModule:
    """Build a module of float32 inputs; `write` emits by its first argument."""
    builder = relax.BlockBuilder()
    variables = [Var(name, relax.TensorType(shape, "float32")) for name, shape in inputs.items()]
    with builder.function("main", variables):
        with builder.dataflow():
            out = builder.emit_output(write(builder.emit, *variables))
        builder.emit_func_output(out)
    return builder.finalize()


def kinds(mod: tvm.IRModule) -> list[str]:
    return [op.kind for op in stage_network(mod, "llvm").graph.ops if not op.view]


def check(mod: tvm.IRModule) -> None:
    """Compare the staged program with TVM's own build of the module."""
    random = np.random.default_rng(0)
    data = [random.standard_normal([int(d) for d in p.ty.shape.values]).astype("float32") for p in mod["main"].params]
    (expected,) = quick_run(mod, *data)
    net = stage_network(mod, "llvm")
    found = schedule(net.graph, CPU, Options()).schedule
    (made,) = Session(compile_stages(lower_stages(net, unit_graph(net.graph, "fused"), found, LowerOptions()))).run(
        *data
    )
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def there_and_back(emit, x):
    a = emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
    b = emit(relax.op.reshape(a, (3, 7, 5)))
    c = emit(relax.op.permute_dims(b, [0, 2, 1]))
    return emit(relax.op.reshape(c, (1, 3, 5, 7)))


def back_in_order(emit, x):
    a = emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
    return emit(relax.op.permute_dims(a, [0, 2, 1, 3]))


def sliced(emit, x):
    a = emit(relax.op.permute_dims(x, [2, 0, 1, 3]))
    return emit(relax.op.strided_slice(a, [0], [1], [3]))


def by_steps(emit, x):
    a = emit(relax.op.permute_dims(x, [2, 0, 1, 3]))
    return emit(relax.op.strided_slice(a, [0], [0], [3], [2]))


def element(emit, x):
    a = emit(relax.op.permute_dims(x, [2, 0, 1, 3]))
    return emit(relax.op.take(a, relax.const(2, "int64"), axis=0))


def repeated(emit, x):
    a = emit(relax.op.expand_dims(x, 2))
    b = emit(relax.op.broadcast_to(a, (1, 7, 4, 3, 5)))
    return emit(relax.op.reshape(b, (1, 28, 3, 5)))


def repeated_in_front(emit, x):
    """A broadcast of the first axis repeats whole tensors, not heads."""
    b = emit(relax.op.broadcast_to(x, (4, 7, 3, 5)))
    return emit(relax.op.reshape(b, (28, 3, 5)))


@pytest.mark.parametrize(
    ("write", "left"),
    [
        (there_and_back, ["permute_dims"]),
        (back_in_order, []),
        (sliced, ["strided_slice", "permute_dims"]),
        (by_steps, ["permute_dims", "strided_slice"]),
        (element, ["strided_slice", "permute_dims"]),
        (repeated, ["repeat"]),
        (repeated_in_front, ["broadcast_to"]),
    ],
)
def test_runs_of_transpositions(write, left):
    def with_sum(emit, x):
        return emit(relax.op.abs(write(emit, x)))

    mod = module({"x": (1, 7, 3, 5)}, with_sum)
    assert kinds(mod) == [*left, "abs"]
    check(mod)


def grouped(rows: int, length: int, heads: int = 4, groups: int = 2, depth: int = 16) -> tvm.IRModule:
    """Attention of some rows over a cache with fewer heads, as `torch.export` writes scaled_dot_product_attention."""

    def write(emit, q, k, v):
        def all_heads(x):
            wide = emit(relax.op.expand_dims(x, 2))
            wide = emit(relax.op.broadcast_to(wide, (1, groups, heads // groups, length, depth)))
            return emit(relax.op.reshape(wide, (1, heads, length, depth)))

        root = relax.const(np.float32(depth**-0.25))
        keys = emit(relax.op.reshape(all_heads(k), (heads, length, depth)))
        keys = emit(relax.op.permute_dims(keys, [0, 2, 1]))
        keys = emit(relax.op.multiply(emit(relax.op.reshape(keys, (1, heads, depth, length))), root))
        scores = emit(relax.op.matmul(emit(relax.op.multiply(q, root)), keys))
        weights = emit(relax.op.nn.softmax(scores, axis=-1))
        mixed = emit(relax.op.matmul(weights, all_heads(v)))
        return emit(relax.op.permute_dims(mixed, [0, 2, 1, 3]))

    return module(
        {"q": (1, heads, rows, depth), "k": (1, groups, length, depth), "v": (1, groups, length, depth)}, write
    )


@pytest.mark.parametrize("length", [1, 9, 32])
@pytest.mark.parametrize("rows", [1, 4, 6])
def test_heads_of_a_cache_are_read_where_they_lie(rows, length):
    mod = grouped(rows, length)
    check(mod)
    net = stage_network(mod, "llvm")
    kernels = [k for kernels in unit_graph(net.graph, "fused").kernels for k in kernels if not net.graph.ops[k[0]].view]
    assert len(kernels) == 1
    (kernel,) = build_kernels(net, [Spec(kernels[0])], True)
    scheduled = cpu_schedule(kernel.func, False, 6)
    assert scheduled.rule == "attention" and not scheduled.refused
    assert ("keys_pack" in scheduled.func.script()) == (rows > 4 or length == 1)  # a single key needs no transposition


def in_one_product(emit, x):
    """Queries, keys and values of one product, as timm and torch.nn.MultiheadAttention write them."""
    split = emit(relax.op.reshape(x, (1, 9, 3, 2, 16)))
    moved = emit(relax.op.permute_dims(split, [2, 0, 3, 1, 4]))
    q, k, v = (emit(relax.op.take(moved, relax.const(i, "int64"), axis=0)) for i in range(3))
    scores = emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 1, 3, 2]))))
    mixed = emit(relax.op.matmul(emit(relax.op.nn.softmax(scores, axis=-1)), v))
    return emit(relax.op.permute_dims(mixed, [0, 2, 1, 3]))


def test_parts_of_one_product_are_read_where_they_lie():
    mod = module({"x": (1, 9, 96)}, in_one_product)
    net = stage_network(mod, "llvm")
    assert sum(not net.graph.ops[k[0]].view for kernels in unit_graph(net.graph, "fused").kernels for k in kernels) == 1
    check(mod)


def chain(random: np.random.Generator) -> tvm.IRModule:
    """Build a random chain of transpositions, reshapes, slices, elements and repetitions."""

    def write(emit: Callable[..., relax.Expr], v: relax.Expr) -> relax.Expr:
        for kind in random.integers(0, 6, random.integers(3, 9)):
            now = [int(d) for d in v.ty.shape]
            axis = int(random.integers(0, len(now)))
            begin, last = sorted(int(n) for n in random.integers(0, now[axis], 2))
            if kind == 0:
                v = emit(relax.op.permute_dims(v, [int(a) for a in random.permutation(len(now))]))
            elif kind == 1:
                v = emit(relax.op.permute_dims(v))
            elif kind == 2:
                long = [d for d in now if d > 1]
                v = emit(relax.op.reshape(v, [*long[:axis], 1, *long[axis:]]))
            elif kind == 3:
                v = emit(relax.op.strided_slice(v, [axis - len(now)], [begin], [last + 1]))
            elif kind == 4 and len(now) > 1:
                v = emit(relax.op.take(v, relax.const(np.int64(begin)), axis=axis))
            elif kind == 5 and len(now) < 5:
                wide = emit(relax.op.reshape(v, [*now[: axis + 1], 1, *now[axis + 1 :]]))
                wide = emit(relax.op.broadcast_to(wide, [*now[: axis + 1], 2, *now[axis + 1 :]]))
                v = emit(relax.op.reshape(wide, [*now[:axis], 2 * now[axis], *now[axis + 1 :]]))
        return relax.op.negative(v)

    return module({"x": tuple(int(d) for d in random.choice([1, 2, 3, 4], random.integers(2, 6)))}, write)


def test_random_chains_compute_the_same() -> None:
    random = np.random.default_rng(3)
    changed = 0
    for _ in range(25):
        mod = chain(random)
        made = with_plain_transposes(mod)
        x = random.standard_normal([int(d) for d in mod["main"].params[0].ty.shape]).astype("float32")
        (expected,), (found,) = quick_run(mod, x), quick_run(made, x)
        np.testing.assert_array_equal(found, expected)
        changed += not tvm_ffi.structural_equal(mod, made)
    assert changed > 10


def test_a_slice_at_a_symbolic_place_stays() -> None:
    n = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x, sizes = Var("x", relax.TensorType((4, 6), "float32")), Var("sizes", relax.ShapeType([n]))
    with builder.function("main", [x, sizes]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(x))
            out = builder.emit_output(relax.op.strided_slice(turned, [0], [0], [n]))
        builder.emit_func_output(out)
    mod = builder.finalize()
    assert tvm_ffi.structural_equal(with_plain_transposes(mod), mod)
