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
from tvm_cascade.schedules.tuning.code_size import code_bytes
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
    return len(named), code_bytes(plan, made.kernels_of(plan), core.core, core.merges_kernels)


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


def test_constants_of_a_parameter() -> None:
    """Every constant is a parameter, or a multiple of one plus a number, in all merged kernels."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        members = int(rng.integers(2, 5))
        columns = {tuple(map(int, rng.integers(-9, 10, members))) for _ in range(int(rng.integers(1, 12)))}
        columns = {column for column in columns if len(set(column)) > 1}
        parameters, affine = merge_kernels._parameters(columns)
        assert set(affine) == columns and set(parameters) <= columns
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
