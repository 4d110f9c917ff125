"""Float operators, element by element, in their readers: every bit as before, fewer operators, no more memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

import tvm_cascade
from tvm_cascade.passes.executed_plan import _library, _Network
from tvm_cascade.passes.fuse_elementwise import fuse_elementwise
from tvm_cascade.passes.relax_ops import Source, read_function
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.tir import tirx, tvm_ffi
from tvm_cascade.testing.cost_cases import cases

R: Any = relax.op
SHAPE = (1, 3, 4, 5)
NARROW = [(1, 1, 1, 5), (1, 3, 1, 1), (1, 3, 4, 1), (1, 1, 4, 5)]


def computed(source: Source) -> list[np.ndarray]:
    """The outputs of a function's calls, each run on whole tensors."""
    network = _Network(source)
    network.library = _library(network, [])
    return [network.values[t] for t in source.outputs]


def fused(mod: Any, vectors: bool = False) -> tuple[Source, Source]:
    """A function as it is read, and with its operators in their readers."""
    return read_function(mod, "main"), read_function(mod, "main", lambda s: fuse_elementwise(s, vectors))


def one(build: Any, shape: tuple[int, ...] = SHAPE, dtype: str = "float32") -> Any:
    """A module of one function, whose outputs `build(builder, x)` makes."""
    x, bb = relax.Var("x", relax.TensorType(shape, dtype)), relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            made = bb.emit_output(build(bb, x))
        bb.emit_func_output(made)
    return bb.finalize()


class Draw:
    """A random network of operators on floats and their reductions."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def build(self, bb: Any, x: Any) -> Any:
        values, narrow = [bb.emit(R.astype(x, "float32"))], []
        for _ in range(int(self.random.integers(4, 14))):
            value = self._next(bb, values, narrow)
            of_shape = tuple(int(d) for d in value.ty.shape.values) == SHAPE
            (values if of_shape else narrow).append(value)
        return bb.emit(relax.Tuple([values[-1], values[int(self.random.integers(len(values)))]]))

    def _next(self, bb: Any, values: list[Any], narrow: list[Any]) -> Any:
        pick = lambda among: among[int(self.random.integers(len(among)))]  # noqa: E731
        a, kind = pick(values[-3:]), int(self.random.integers(9))
        if kind == 0:
            return bb.emit(pick([R.tanh, R.abs, R.negative, R.sigmoid, R.nn.relu])(a))
        if kind == 1:
            return bb.emit(R.clip(a, -1.5, 2.0))
        if kind == 2:
            axes = pick([[1], [1, 2], [3], [2, 3], [1, 2, 3]])
            return bb.emit(pick([R.mean, R.sum, R.max, R.variance])(a, axes, keepdims=True))
        if kind == 3:
            return bb.emit(R.where(R.greater(a, pick(values)), a, pick(values)))
        if kind == 4:
            return bb.emit(R.divide(a, bb.emit(R.add(bb.emit(R.abs(pick(values))), relax.const(np.float32(1))))))
        with_narrow = kind == 5 and narrow
        if with_narrow or kind == 6:
            shape = NARROW[int(self.random.integers(len(NARROW)))]
            b = pick(narrow) if with_narrow else relax.const(self.random.standard_normal(shape).astype("float32"))
        else:
            b = pick(values)
        return bb.emit(pick([R.add, R.subtract, R.multiply, R.maximum])(a, b))


@pytest.mark.parametrize("seed", range(12 * int(os.environ.get("TVM_CASCADE_SWEEP", "1"))))
def test_random_networks_compute_the_same_bits(seed: int) -> None:
    draw = Draw(seed)
    apart, together = fused(one(draw.build, dtype=("float32", "int8")[seed % 2]), vectors=seed % 5 == 0)
    assert len(together.calls) <= len(apart.calls)
    for have, want in zip(computed(together), computed(apart), strict=True):
        np.testing.assert_array_equal(have, want)


def kinds(mod: Any, vectors: bool = False) -> list[str]:
    return [c.kind for c in fused(mod, vectors)[1].calls]


def test_a_chain_is_one_operator() -> None:
    def chain(bb: Any, x: Any) -> Any:
        t = bb.emit(
            R.tanh(bb.emit(R.add(bb.emit(R.multiply(x, relax.const(np.float32(2)))), relax.const(np.float32(1)))))
        )
        return R.multiply(t, x)

    assert kinds(one(chain)) == ["tir_tanh"]  # the kind whose instructions count


def test_a_normalization_stores_no_difference_to_its_mean() -> None:
    def norm(bb: Any, x: Any) -> Any:
        d = bb.emit(R.subtract(x, bb.emit(R.mean(x, [1, 2], keepdims=True))))
        v = bb.emit(R.mean(bb.emit(R.multiply(d, d)), [1, 2], keepdims=True))
        return R.divide(d, bb.emit(R.sqrt(v)))

    source = fused(one(norm))[1]
    maps = [t.index for t in source.tensors if t.shape == SHAPE]
    squares = next(c.outputs[0] for c in source.calls if c.kind == "multiply")  # added up row by row
    assert maps == [*source.inputs, squares, *source.outputs]


def test_sums_keep_a_single_input() -> None:
    def total(bb: Any, x: Any) -> Any:
        y = bb.emit(R.add(bb.emit(R.tanh(x)), bb.emit(R.nn.softmax(x, 3))))
        return R.sum(y, [1, 2], keepdims=True)

    reading = [c for c in fused(one(total))[1].calls if c.kind.startswith("sum")]
    assert [len(c.inputs) for c in reading] == [1]


def test_functions_are_not_computed_twice() -> None:
    def twice(bb: Any, x: Any) -> Any:
        e = bb.emit(R.exp(x))
        return R.divide(e, bb.emit(R.sum(e, [3], keepdims=True)))

    mod = one(twice)
    assert len(fused(mod)[1].calls) == len(fused(mod)[0].calls) == 3


def test_elements_that_are_read_often_are_stored() -> None:
    def product(bb: Any, x: Any) -> Any:
        t = bb.emit(R.add(x, relax.const(np.float32(1))))
        w = relax.const(np.ones((3, 5, 7), "float32"))
        return R.matmul(bb.emit(R.reshape(t, (1, 12, 5))), bb.emit(R.reshape(w, (1, 5, 21))))

    assert len(kinds(one(product))) == len(fused(one(product))[0].calls)


def test_sums_and_casts_stay_apart_where_loops_are_vectors() -> None:
    def squares(bb: Any, x: Any) -> Any:
        y = bb.emit(R.astype(x, "float32"))
        return R.sum(bb.emit(R.multiply(y, y)), [3], keepdims=True)

    mod = one(squares, dtype="int8")
    assert len(kinds(mod)) == 1
    assert len(kinds(mod, vectors=True)) == 3


def test_a_choice_by_its_own_operand_is_one_operator() -> None:
    def threshold(bb: Any, x: Any) -> Any:
        return R.where(bb.emit(R.greater(x, relax.const(np.float32(0.5)))), x, relax.const(np.float32(0)))

    assert len(kinds(one(threshold))) == 1


@pytest.mark.parametrize("made", [R.subtract, R.divide, R.not_equal, R.less_equal])
def test_a_value_and_itself_stay_two_operands(made: Any) -> None:
    """`x - x` is NaN for infinities, `x != x` is true for NaN; TVM simplifies both."""

    def itself(bb: Any, x: Any) -> Any:
        y = bb.emit(made(x, bb.emit(x)))  # read as two operands
        if made in (R.subtract, R.divide):
            return R.where(bb.emit(R.greater(x, relax.const(np.float32(0.5)))), x, y)
        return R.where(y, x, relax.const(np.float32(0)))

    kinds = (tirx.Sub, tirx.Div, tirx.NE, tirx.LE)
    for call in fused(one(itself))[1].calls:
        pairs = [(n.a, n.b) for kind in kinds for n in tir.collect(call.func.body, kind)]
        assert not any(tir.loads(a) and tvm_ffi.structural_equal(a, b) for a, b in pairs)


def test_a_comparison_is_fused_into_choices_alone() -> None:
    """`not x < y` is true for NaN, and TVM simplifies it to `x >= y`."""

    def negated(bb: Any, x: Any) -> Any:
        return R.logical_not(bb.emit(R.less(x, relax.const(np.float32(0.5)))))

    assert kinds(one(negated)) == ["less", "tir_logical_not"]


@pytest.mark.parametrize(("dtype", "calls"), [("int32", 2), ("float32", 1)])
def test_scaled_integers_are_rounded_before_sums_where_compilers_join_them(dtype: str, calls: int) -> None:
    def scaled(bb: Any, x: Any) -> Any:
        y = bb.emit(R.astype(x, "float32")) if dtype == "int32" else x
        return R.add(bb.emit(R.multiply(y, relax.const(np.float32(0.3)))), relax.const(np.float32(1)))

    mod = one(scaled, dtype=dtype)
    apart, together = (read_function(mod, "main", lambda s, j=j: fuse_elementwise(s, joins=j)) for j in (True, False))
    assert [len(s.calls) for s in (apart, together)] == [calls, 1]


def test_two_operands_that_would_live_longer_are_added_first() -> None:
    """`a + b` leaves one tensor alive while `c` is computed, a fused `a + b + c` two."""

    def three(bb: Any, x: Any) -> Any:
        a, b = bb.emit(R.nn.softmax(x, 3)), bb.emit(R.nn.softmax(x, 1))
        total = bb.emit(R.add(a, b))
        return R.add(total, bb.emit(R.nn.softmax(x, 2)))

    mod = one(three)
    assert len(kinds(mod)) == len(fused(mod)[0].calls)


NORMS = [
    "InstanceNormalization (qdq)",
    "BatchNormalization (qdq)",
    "LpNormalization (qdq)",
    "Mish (float)",
    "Div by pixels (qdq)",
]


@pytest.mark.parametrize("label", NORMS)
def test_plans_take_no_more_memory(label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(c for c in cases() if c.label == label)
    path = case.write(tmp_path)
    together = tvm_cascade.plan(path, target="cortex-m4", stored_io=case.form == "qdq")
    monkeypatch.setattr("tvm_cascade.passes.prepare_graph.fuse_elementwise", lambda source, **_options: source)
    apart = tvm_cascade.plan(path, target="cortex-m4", stored_io=case.form == "qdq")
    assert together.peak_bytes < apart.peak_bytes
