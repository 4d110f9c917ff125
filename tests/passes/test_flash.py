"""The estimate of flash counts equal kernels once, and writes only those that another may equal."""

from __future__ import annotations

import pytest
import tvm_ffi

from tvm_cascade.cores import kernel_target
from tvm_cascade.passes import choose_variants
from tvm_cascade.passes.choose_variants import flash_of
from tvm_cascade.pipeline import prepare
from tvm_cascade.schedules.rules.variants import shape_key
from tvm_cascade.schedules.tuning.kernel_cost import kernel_cost
from tvm_cascade.schedules.tuning.tune import PER_CALL, RUNTIME, shipped
from tvm_cascade.testing.builder import Net


def test_equal_kernels_count_once_and_few_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net("int8", seed=3)
    x = net.conv(net.input((1, 12, 12, 4), "image"), 8, (3, 3), padding="same", activation="relu")
    for _ in range(3):
        x = net.conv(net.depthwise(x, (3, 3), 1, "same", activation="relu"), 8, kernel=(1, 1), activation="relu")
    made = prepare(net.finish(net.dense(net.flatten(x), 6)), kernel_target("cortex-m4", "c"))
    hashed: list[object] = []
    structural_hash = tvm_ffi.structural_hash

    def counted(func: object) -> int:
        hashed.append(func)
        return structural_hash(func)

    monkeypatch.setattr(choose_variants.tvm_ffi, "structural_hash", counted)
    weights, code = flash_of(made.graph, made.extracted, made.kernels, made.core, shipped())
    monkeypatch.undo()
    chosen = [
        (o, k) for o, k in zip(made.extracted.operators, made.kernels, strict=True) if o is not None and k is not None
    ]
    functions = {tvm_ffi.structural_hash(k.func): (o, k) for o, k in reversed(chosen)}
    counts = [shipped().options(made.core, shape_key(o.spec)).get(k.rule) for o, k in functions.values()]
    kernels = [
        c.bytes if c is not None else kernel_cost(k.func).bytes
        for c, (_, k) in zip(counts, functions.values(), strict=True)
    ]
    operators = sum(not op.view for op in made.graph.ops)
    assert weights == made.graph.weight_bytes
    assert code == round(sum(kernels)) + RUNTIME + PER_CALL * operators
    assert len(functions) < len(chosen)
    assert len(hashed) <= 3  # of the six that have an equal
