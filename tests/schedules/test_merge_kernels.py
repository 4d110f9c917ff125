"""Kernels that differ in constants alone are one function, which computes what they compute."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tvm.ir import IRModule

import tvm_cascade
from tvm_cascade.cascading import layerwise
from tvm_cascade.cores import kernel_target
from tvm_cascade.pipeline import lower, prepare
from tvm_cascade.schedules.driver import merge_kernels
from tvm_cascade.schedules.rules.elementwise import STORED, Binary, _in_registers, rescale
from tvm_cascade.schedules.rules.emit import KernelBuilder
from tvm_cascade.schedules.tir import PrimFunc, tirx
from tvm_cascade.schedules.tuning.code_size import code_bytes
from tvm_cascade.schedules.tuning.merge_price import merge_choice
from tvm_cascade.testing.builder import Net


def _network(dtype: str = "int8") -> IRModule:
    """Build convolutions whose kernels have other extents and strides, and a residual sum of each."""
    net = Net(dtype, seed=5)
    x = net.conv(net.input((1, 32, 32, 3), "image"), 16, (3, 3), 1, "same", activation="relu")
    for width in (16, 32, 64):
        x = net.conv(x, width, (3, 3), 1 if width == 16 else 2, "same", activation="relu")
        x = net.add(x, net.conv(x, width, (3, 3), 1, "same", activation="relu"))
    return net.finish(net.dense(net.global_pool(x), 5))


def _functions(optimise: str) -> tuple[int, int]:
    """Return the kernels of the network's layer by layer plan, and the estimate of its code's bytes."""
    made = prepare(_network(), kernel_target("cortex-m4", "c", optimise))
    plan = layerwise(made.graph)
    core = made.core
    lowered = lower(made, plan)
    named = {name for own in lowered.kernels for name in own}
    assert named == {gv.name_hint for gv in lowered.mod.get_global_vars()} - {lowered.invoke}
    return len(named), code_bytes(plan, made.kernels_of(plan), core.core, merge_choice(core))


def test_fewer_functions() -> None:
    (usual, more), (merged, fewer) = _functions("balanced"), _functions("size")
    assert merged <= usual - 2, (merged, usual)
    assert fewer < more


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("core", "dtype"),
    [*((core, "int8") for core in ("cortex-m0plus", "cortex-m4", "cortex-m55", "riscv32")), ("cortex-m4", "float32")],
)
def test_results(core: str, dtype: str, tmp_path: Path, emulator: None, quick_host: None) -> None:
    flash: dict[str, int | None] = {}
    for optimise in ("balanced", "size"):
        folder = tmp_path / optimise
        flash[optimise] = tvm_cascade.compile(
            _network(dtype), target=core, output=folder, optimise=optimise
        ).flash_bytes
        assert tvm_cascade.run(folder).equals_host, optimise
    assert None not in flash.values() and flash["size"] < flash["balanced"]


def _incremented(inner: int) -> PrimFunc:
    """Write a kernel of 200 passes over a loop that LLVM writes out where its extent `inner` is known."""
    k = KernelBuilder(["int8"], [], ["int8"])
    x, out = k.view(k.inputs[0][0], "int8", "xs"), k.view(k.outputs[0], "int8", "outs")

    def emit() -> None:
        with k.loop(200, "i") as i, k.loop(inner, "j") as j:
            k.store(out, i * inner + j, (x[i * inner + j].astype("int32") + 1).astype("int8"))

    return k.kernel(emit).func


@pytest.mark.parametrize(
    ("backend", "others", "code_price", "merged"),
    [
        ("obj", 0, 0.0, 0),  # most of the network's instructions for a hundred bytes
        ("obj", 1_000_000, 0.0, 1),  # few of them
        ("obj", 0, 1e9, 1),  # a byte may cost anything
        ("c", 0, 0.0, 1),  # GCC leaves the loop as it is
    ],
)
def test_the_price_of_a_byte_decides(backend: str, others: int, code_price: float, merged: int) -> None:
    functions = {"4": _incremented(4), "8": _incremented(8), "other": _network_kernel()}
    choice = merge_choice(kernel_target("cortex-m4", backend, "size", code_price))
    assert choice is not None and merge_choice(kernel_target("cortex-m4", backend)) is None
    found = choice(functions, {"4": 1, "8": 1, "other": others})
    assert [set(m.arguments) for m in found] == [{"4", "8"}] * merged


def _network_kernel() -> PrimFunc:
    k = KernelBuilder(["int8"], [], ["int8"])
    out = k.view(k.outputs[0], "int8", "outs")
    return k.kernel(lambda: k.store(out, 0, tirx.const(1, "int8"))).func


def test_the_dearest_kernel_is_left_out() -> None:
    """A kernel that runs often keeps its constants; the rest of its group is merged."""
    functions = {str(n): _incremented(n) for n in (4, 6, 8)} | {"other": _network_kernel()}
    choice = merge_choice(kernel_target("cortex-m4", "obj", "size"))
    assert choice is not None
    (merged,) = choice(functions, {"4": 1000, "6": 1, "8": 1, "other": 1_000_000})
    assert set(merged.arguments) == {"6", "8"}


def test_what_is_divisible_stays_so() -> None:
    """Parameters of constants with a common factor are multiplied by it, so that quotients need no care of signs."""
    parameters, affine = merge_kernels._parameters([(640, 128, 8)])
    assert parameters == [(80, 16, 1)]
    assert affine[640, 128, 8] == merge_kernels._Affine(0, 8, 0)


def test_constants_of_a_parameter() -> None:
    """Every constant is a multiple of a parameter plus a number, in all merged kernels."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        members = int(rng.integers(2, 5))
        columns = {tuple(map(int, rng.integers(-9, 10, members))) for _ in range(int(rng.integers(1, 12)))}
        columns = {column for column in columns if len(set(column)) > 1}
        parameters, affine = merge_kernels._parameters(columns)
        assert set(affine) == columns
        for column, how in affine.items():
            values = parameters[how.parameter]
            assert column == tuple(how.factor * v + how.term for v in values)
    assert len(merge_kernels._parameters([(1000, 1001), (5, 3_000_000)])[0]) == 2  # no product beyond int32
    assert len(merge_kernels._parameters([(16, 32, 64), (48, 96, 192), (15, 31, 63)])[0]) == 1


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sums_rescaled_in_registers(dtype: str) -> None:
    """A factor and shifts give the table's numbers for every byte, or no factor is given."""
    rng, found = np.random.default_rng(4), 0
    for _ in range(400):
        ratio = int(rng.integers(1 << 30, 1 << 31)), -int(rng.integers(0, 6))
        zero = int(rng.choice(STORED[dtype]))
        op = Binary("add", 16, (zero, 0), (ratio, (1 << 30, 0), (1 << 30, 0)), 0, (-128, 127), dtype=dtype)
        numbers = _in_registers(op, 0)
        if numbers is None:
            continue
        found += 1
        centre, factor, half, right = numbers
        x = STORED[dtype].astype(np.int64)
        high = ((x * (2 << 20) - centre) * factor + (1 << 31)) >> 32
        got = (high + (high >> 31) + half) >> right
        assert np.array_equal(got, rescale((x - zero) << 20, ratio))
    assert found > 300
    assert _in_registers(dataclasses.replace(op, ratios=((1 << 30, 1), *op.ratios[1:])), 0) is None
