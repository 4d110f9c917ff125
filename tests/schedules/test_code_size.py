"""The estimate of a plan's code: of the kernels that it calls, equal ones once."""

from __future__ import annotations

import tvm_ffi

from tvm_cascade.cascading import layerwise
from tvm_cascade.cores import kernel_target
from tvm_cascade.pipeline import prepare
from tvm_cascade.schedules.tir import PrimFunc
from tvm_cascade.schedules.tuning.code_size import code_bytes
from tvm_cascade.schedules.tuning.kernel_cost import kernel_cost
from tvm_cascade.schedules.tuning.tune import PER_CALL, RUNTIME
from tvm_cascade.testing.builder import Net


def test_equal_kernels_count_once() -> None:
    net = Net("int8", seed=3)
    x = net.conv(net.input((1, 12, 12, 4), "image"), 8, (3, 3), padding="same", activation="relu")
    for _ in range(3):
        x = net.conv(net.depthwise(x, (3, 3), 1, "same", activation="relu"), 8, kernel=(1, 1), activation="relu")
    made = prepare(net.finish(net.dense(net.flatten(x), 6)), kernel_target("riscv32", "c"))
    kernels = made.kernels_of(layerwise(made.graph))
    called = [func for kernel in kernels if kernel for _, func in kernel.functions("")]
    distinct: list[PrimFunc] = []
    for func in called:
        if not any(tvm_ffi.structural_equal(func, other) for other in distinct):
            distinct.append(func)
    assert len(distinct) < len(called)
    size = round(sum(kernel_cost(func).bytes for func in distinct) * made.core.core.code_size)
    operators = sum(not op.view for op in made.graph.ops)
    assert code_bytes(kernels, made.core.core) == size + RUNTIME + PER_CALL * operators
    assert made.core.core.code_size > 1
