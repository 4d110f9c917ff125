"""The estimate of a plan's code: of the kernels that it calls, equal ones once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import relax

import tvm_cascade
from tvm_cascade.cascading import layerwise
from tvm_cascade.cores import kernel_target
from tvm_cascade.pipeline import prepare
from tvm_cascade.schedules.tir import PrimFunc
from tvm_cascade.schedules.tuning.code_size import (
    PER_CALL_ALONE,
    PER_LOOP,
    SOFT_ELEMENTARY,
    SOFT_FLOAT_CODE,
    code_bytes,
    function_bytes,
    weight_bytes,
)
from tvm_cascade.schedules.tuning.kernel_cost import kernel_cost
from tvm_cascade.testing.builder import Net


def test_equal_kernels_count_once() -> None:
    net = Net("int8", seed=3)
    x = net.conv(net.input((1, 12, 12, 4), "image"), 8, (3, 3), padding="same", activation="relu")
    for _ in range(3):
        x = net.conv(net.depthwise(x, (3, 3), 1, "same", activation="relu"), 8, kernel=(1, 1), activation="relu")
    made = prepare(net.finish(net.dense(net.flatten(x), 6)), kernel_target("riscv32", "c"))
    plan = layerwise(made.graph)
    kernels = made.kernels_of(plan)
    called = [func for kernel in kernels if kernel for _, func in kernel.functions("")]
    distinct: list[PrimFunc] = []
    for func in called:
        if not any(tvm_ffi.structural_equal(func, other) for other in distinct):
            distinct.append(func)
    assert len(distinct) < len(called)
    looped, once = 7, 1  # the product at the end has no rows: its code is that of the driver
    core = made.core.core
    size = round(sum(function_bytes(func, core, inlined=func is called[-1]) for func in distinct))
    driver = PER_LOOP * looped + PER_CALL_ALONE * once
    assert code_bytes(plan, kernels, core) == size + core.image_bytes["start"] + driver


def test_names_of_operators_make_no_code() -> None:
    """Equal kernels of a recurrent cell whose steps are written out are written once, without their constant arguments."""
    sizes, weights, row = {}, relax.const(np.eye(6, dtype="float32")), relax.const(np.zeros((1, 6), "float32")).ty
    for calls in (1, 2, 3):
        builder, value = relax.BlockBuilder(), relax.Var("x", row)
        with builder.function("main", [value]):
            with builder.dataflow():
                for _ in range(calls):
                    value = builder.emit(relax.op.matmul(value, weights))
                value = builder.emit_output(value)
            builder.emit_func_output(value)
        made = prepare(builder.finalize(), kernel_target("cortex-m4", "c"))
        plan = layerwise(made.graph)
        sizes[calls] = code_bytes(plan, made.kernels_of(plan), made.core.core)
    assert sizes[3] - sizes[2] == PER_CALL_ALONE


def test_weights_that_several_operators_share_count_once() -> None:
    """As those of a recurrent cell whose steps are written out."""
    sizes = []
    weights = relax.const(np.random.default_rng(0).normal(size=(6, 6)).astype("float32"), "float32")
    row = relax.const(np.zeros((1, 6), "float32")).ty
    for steps in (1, 5):
        builder, value = relax.BlockBuilder(), relax.Var("x", row)
        with builder.function("main", [value]):
            with builder.dataflow():
                for _ in range(steps):
                    value = builder.emit(relax.op.matmul(value, weights))
                value = builder.emit_output(value)
            builder.emit_func_output(value)
        made = prepare(builder.finalize(), kernel_target("riscv32", "c"))
        sizes.append(weight_bytes(made.kernels_of(layerwise(made.graph))))
    assert sizes[0] == sizes[1] >= 6 * 6 * 4


@pytest.mark.parametrize(("activation", "library"), [("relu", 296), ("tanh", 4_010 + SOFT_ELEMENTARY)])
def test_floats_without_hardware_link_a_library(activation: str, library: int) -> None:
    """Comparisons take 296 bytes on RISC-V, all arithmetic 4,010: what kernels compute counts."""
    net = Net("float32", seed=3)
    made = prepare(net.finish(getattr(net, activation)(net.input((1, 6), "x"))), kernel_target("riscv32", "c"))
    plan, core = layerwise(made.graph), made.core.core
    (kernel,) = kernels = made.kernels_of(plan)
    assert kernel is not None
    wider = 1 + (core.code_size - 1) * SOFT_FLOAT_CODE
    size = round(sum(kernel_cost(func, inlined=True).bytes for _, func in kernel.functions("")) * wider)
    assert code_bytes(plan, kernels, core) == size + core.image_bytes["start"] + PER_CALL_ALONE + library


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "tanh"])
def test_flash_of_elementary_functions(activation: str, emulator: None, tmp_path: Path) -> None:
    """Polynomials stand in the kernels that compute them, beside no library."""
    net = Net("float32", seed=3)
    module = net.finish(getattr(net, activation)(net.input((1, 6), "x")))
    made: Any = tvm_cascade.compile(module, target="cortex-m4", output=tmp_path / "p").to_dict()
    estimate = made["weight_bytes"] + made["estimated_code_bytes"]
    assert abs(estimate / made["flash_bytes"] - 1) < 0.1, (estimate, made["flash_bytes"])


@pytest.mark.parametrize("width", [12, 24])
def test_flash_of_float_convolutions(width: int, emulator: None, tmp_path: Path) -> None:
    """Code of scalar floats is wider than code of integers."""
    net = Net("float32", seed=3)
    x = net.conv(net.conv(net.input((1, 16, 16, 3)), width, 3, activation="relu"), width, 3, activation="relu")
    x = net.conv(net.conv(x, 8, 5, stride=2), 4, 1)
    made: Any = tvm_cascade.compile(net.finish(x), target="cortex-m4", output=tmp_path / "p").to_dict()
    estimate = made["weight_bytes"] + made["estimated_code_bytes"]
    assert abs(estimate / made["flash_bytes"] - 1) < 0.1, (estimate, made["flash_bytes"])
