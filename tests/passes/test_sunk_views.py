"""Views of maps behind elementwise operators: where they go, that values stay, and what a plan gains by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade.importers.kernel_layout import in_kernel_layout
from tvm_cascade.passes.layout.sunk_views import with_sunk_views
from tvm_cascade.passes.lower_quantized import lowered
from tvm_cascade.passes.main_rewriting import bindings_of, name_of, shape_of
from tvm_cascade.testing.quick_build import virtual_machine

MAP, SIGNAL = (1, 1, 20, 4), (1, 20, 4)


def network(build: Any, dtype: str = "float32") -> Any:
    """Return a module whose `main` is `build(builder, x, y)` of a map and a signal."""
    bb = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in (("x", MAP), ("y", SIGNAL)))
    with bb.function("main", [x, y]):
        with bb.dataflow():
            value = bb.emit_output(build(bb, x, y))
        bb.emit_func_output(value)
    return bb.finalize()


def shapes(mod: Any, *kinds: str) -> list[tuple[int, ...]]:
    return [shape_of(b.var) for b in bindings_of(mod["main"]) if name_of(b.value) in kinds]


def same(mod: Any, other: Any, dtype: str = "float32") -> bool:
    rng = np.random.default_rng(2)
    data = [tvm.runtime.tensor((rng.standard_normal(s) * 40).astype(dtype)) for s in (MAP, SIGNAL)]
    want, got = (virtual_machine(m)["main"](*data).numpy() for m in (mod, other))
    return want.shape == got.shape and bool(np.array_equal(want, got))


def viewed(bb: Any, x: Any, shape: tuple[int, ...] = SIGNAL) -> Any:
    return bb.emit(relax.op.reshape(x, shape))


def gated(bb: Any, x: Any, y: Any) -> Any:
    a = bb.emit(relax.op.tanh(viewed(bb, x)))
    b = bb.emit(relax.op.multiply(a, bb.emit(relax.op.sigmoid(viewed(bb, bb.emit(relax.op.nn.relu(x)))))))
    c = bb.emit(relax.op.add(b, y))  # a signal that never was a map
    d = bb.emit(relax.op.add(c, relax.const(np.arange(4, dtype="float32"))))
    return bb.emit(relax.op.abs(bb.emit(relax.op.multiply(d, relax.const(np.float32(0.5))))))


def flat(bb: Any, x: Any, _y: Any) -> Any:
    return bb.emit(relax.op.nn.relu(viewed(bb, viewed(bb, x), (1, 80))))


def squeezed(bb: Any, x: Any, y: Any) -> Any:
    """Gates by channel, as of squeeze and excite over time."""
    gates = bb.emit(relax.op.sigmoid(bb.emit(relax.op.mean(y, axis=[1]))))
    return bb.emit(relax.op.add(bb.emit(relax.op.multiply(viewed(bb, x), gates)), viewed(bb, x)))


@pytest.mark.parametrize("build", [gated, flat])
def test_operators_run_on_the_map(build: Any) -> None:
    mod = network(build)
    sunk = with_sunk_views(mod)
    made = shapes(sunk, "tanh", "sigmoid", "multiply", "add", "abs", "nn.relu")
    assert set(made) == {MAP} and len(made) == len(shapes(mod, "tanh", "sigmoid", "multiply", "add", "abs", "nn.relu"))
    assert same(mod, sunk) and with_sunk_views(sunk) is sunk


@pytest.mark.parametrize(("axis", "begin", "end", "step"), [(2, 2, 4, 1), (2, 3, 0, -2), (-1, 0, 2, 1), (1, 3, 19, 4)])
def test_slices_of_a_signal_are_slices_of_the_map(axis: int, begin: int, end: int, step: int) -> None:
    def halved(bb: Any, x: Any, _: Any) -> Any:
        part = bb.emit(relax.op.strided_slice(viewed(bb, x), [axis], [begin], [end], [step]))
        return bb.emit(relax.op.multiply(part, bb.emit(relax.op.sigmoid(part))))

    mod = network(halved)
    sunk = with_sunk_views(mod)
    assert all(len(shape) == 4 for shape in shapes(sunk, "strided_slice", "sigmoid", "multiply")) and same(mod, sunk)


def test_gates_of_channels_are_broadcast_over_the_map() -> None:
    mod = network(squeezed)
    sunk = with_sunk_views(mod)
    assert set(shapes(sunk, "multiply", "add")) == {MAP} and same(mod, sunk)


def test_a_map_again_is_no_view() -> None:
    """The view in front of the next convolution ends with the view behind the last."""

    def build(bb: Any, x: Any, _y: Any) -> Any:
        return bb.emit(relax.op.exp(viewed(bb, bb.emit(relax.op.tanh(viewed(bb, x))), MAP)))

    mod = network(build)
    sunk = with_sunk_views(mod)
    assert shapes(sunk, "reshape") == [] and same(mod, sunk)


def test_stored_anew_behind_a_flatten() -> None:
    """Of integers, the whole operator moves; what reads real numbers finds them where they were."""

    def numbers(scale: float, zero: int) -> tuple[Any, Any]:
        return relax.const(np.float32(scale)), relax.const(np.int8(zero))

    def build(bb: Any, x: Any, _y: Any) -> Any:
        real = bb.emit(relax.op.dequantize(viewed(bb, x, (1, 80)), *numbers(0.1, -3), axis=0))
        stored = bb.emit(relax.op.quantize(real, *numbers(0.12, 5), axis=1, out_dtype="int8"))
        data = np.random.default_rng(3).integers(-9, 9, (80, 5)).astype("int8")
        weights = bb.emit(relax.op.dequantize(relax.const(data), *numbers(0.1, 0)))
        again = bb.emit(relax.op.dequantize(stored, *numbers(0.12, 5), axis=1))
        product = bb.emit(relax.op.matmul(again, weights))
        return bb.emit(relax.op.quantize(product, *numbers(0.5, 0), out_dtype="int8"))

    mod = network(build, "int8")
    sunk = in_kernel_layout(mod)
    assert shapes(sunk, "quantize") == [MAP, (1, 5)]
    assert same(lowered(mod), lowered(sunk), "int8")


@pytest.mark.parametrize(("axis", "place"), [(2, 3), (1, 2), (-1, 3)])
def test_concats_run_on_the_map(axis: int, place: int) -> None:
    def build(bb: Any, x: Any, _y: Any) -> Any:
        parts = [viewed(bb, x), bb.emit(relax.op.tanh(viewed(bb, x)))]
        return bb.emit(relax.op.nn.relu(bb.emit(relax.op.concat(parts, axis=axis))))

    mod = network(build)
    sunk = with_sunk_views(mod)
    joined = tuple(d * (1 + (k == place)) for k, d in enumerate(MAP))
    assert set(shapes(sunk, "concat", "nn.relu")) == {joined} and same(mod, sunk)


def test_concats_of_stored_integers_run_on_the_map() -> None:
    def numbers(scale: float, zero: int) -> tuple[Any, Any]:
        return relax.const(np.float32(scale)), relax.const(np.int8(zero))

    def build(bb: Any, x: Any, _y: Any) -> Any:
        parts = [bb.emit(relax.op.dequantize(viewed(bb, x), *numbers(s, 3), axis=0)) for s in (0.1, 0.07)]
        joined = bb.emit(relax.op.concat(parts, axis=2))
        return bb.emit(relax.op.quantize(joined, *numbers(0.12, 5), axis=0, out_dtype="int8"))

    mod = network(build, "int8")
    sunk = in_kernel_layout(mod)
    assert shapes(sunk, "quantize") == [(1, 1, 20, 8)]
    assert same(lowered(mod), lowered(sunk), "int8")


def with_a_signal(bb: Any, x: Any, y: Any) -> Any:
    return bb.emit(relax.op.concat([viewed(bb, x), y], axis=2))


def in_a_row_and_a_column(bb: Any, x: Any, _y: Any) -> Any:
    column = bb.emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
    return bb.emit(relax.op.concat([viewed(bb, x), viewed(bb, bb.emit(relax.op.tanh(column)))], axis=2))


@pytest.mark.parametrize("build", [with_a_signal, in_a_row_and_a_column])
def test_parts_that_do_not_fit_stay(build: Any) -> None:
    mod = network(build)
    sunk = with_sunk_views(mod)
    assert shapes(sunk, "concat") == [(1, 20, 8)] and same(mod, sunk)


def as_rows(bb: Any, x: Any, y: Any) -> Any:
    return bb.emit(relax.op.multiply(viewed(bb, x, (20, 4)), viewed(bb, y, (20, 4))))


def of_other_rows(bb: Any, x: Any, _y: Any) -> Any:
    return bb.emit(relax.op.add(viewed(bb, x, (10, 8)), relax.const(np.arange(8, dtype="float32"))))


def no_view(bb: Any, x: Any, _y: Any) -> Any:
    return bb.emit(relax.op.tanh(x))


@pytest.mark.parametrize(("build", "moves"), [(as_rows, True), (of_other_rows, False), (no_view, False)])
def test_operands_that_do_not_fit_stay(build: Any, moves: bool) -> None:
    mod = network(build)
    sunk = with_sunk_views(mod)
    assert (sunk is not mod) == moves and same(mod, sunk)
