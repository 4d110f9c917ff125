"""Sums of int8 and of products of int8 in generic kernels: by DSP instructions on the host, by vectors in the emulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_cascade import api
from tvm_cascade.cores import get_core, kernel_target
from tvm_cascade.frontend import load
from tvm_cascade.pipeline import prepare
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.kernels.kernel import Role, RowKernel
from tvm_cascade.schedules.rules.dot_products import with_dot_products
from tvm_cascade.schedules.rules.emit import KernelBuilder
from tvm_cascade.schedules.tir import i32, ir, tirx
from tvm_cascade.testing.c_kernel import CKernel
from tvm_cascade.testing.estimate_cases import lstm
from tvm_cascade.testing.tflite import ModelWriter

M4, M55 = kernel_target("cortex-m4", "c"), kernel_target("cortex-m55", "obj")


def summing(count: int, offsets: tuple[int, ...], step: int = 1) -> RowKernel:
    """A kernel that adds up `count` products of elements of as many inputs as there are offsets, each plus its offset; one
    input: elements. It reads every `step`-th element."""
    k = KernelBuilder(["int8"] * len(offsets), (), ["int32"])
    xs = [k.view(given[0], "int8", "xs") for given in k.inputs]
    out = k.view(k.outputs[0], "int32", "outs")

    def emit() -> None:
        acc = k.local(1, "acc")
        k.store(acc, 0, i32(7))
        with k.loop(count, "i") as i:
            added, *others = (x[i * step + 1].astype("int32") + o for x, o in zip(xs, offsets, strict=True))
            for other in others:
                added = added * other
            k.store(acc, 0, acc[i32(0)] + added)
        k.store(out, 0, acc[i32(0)])

    return k.kernel(emit)


@pytest.mark.parametrize("count", [4, 5, 7, 8, 19, 64])
@pytest.mark.parametrize("offsets", [(0, 0), (-127, 0), (0, 128), (100, -3), (0,), (-128,)])
def test_pairs_add_what_the_loop_adds(count: int, offsets: tuple[int, ...], tmp_path: Path) -> None:
    rng = np.random.default_rng(count)
    xs = [rng.choice(np.array([-128, -1, 0, 1, 127, 55], "int8"), count + 1) for _ in offsets]
    made = with_dot_products(summing(count, offsets), M4)
    assert made is not None and made.rule == "dot_products.pairs" and not made.scheduled
    out = np.zeros(1, "int32")
    slots: dict[Role, Any] = {Role.SLOT: [0] * len(xs), Role.SLOTS: [1] * len(xs)}
    CKernel(made, tmp_path)(0, slots | {Role.INPUT: xs, Role.OUTPUT: [out]})
    terms = [x[1:].astype(np.int64) + o for x, o in zip(xs, offsets, strict=True)]
    assert out[0] == 7 + int(np.prod(terms, axis=0).sum())


def test_instructions_are_as_few_as_lanes_allow() -> None:
    def products(count: int, offset: int) -> list[str]:
        made = with_dot_products(summing(count, (offset, 0)), M55)
        assert made is not None
        return [str(tir.dtype_of(c.args[-1])) for c in tir.collect(made.func, ir.Call) if "llvm" in str(c.op)]

    assert products(31, 0) == ["int8x16", "int16x8", "int32x4"]  # and three alone
    assert products(16, 0) == products(48, 0) == ["int8x16"]
    assert products(31, -5) == ["int16x8", "int32x4"]


def test_other_loops_stay_as_they_are() -> None:
    assert with_dot_products(summing(9, (0, 0)), kernel_target("cortex-m3", "c")) is None
    assert with_dot_products(summing(9, (0, 0), step=2), M4) is None
    assert with_dot_products(summing(3, (0, 0)), M4) is None
    assert with_dot_products(summing(9, (40000, 0)), M4) is None  # a pair has 16 bits
    assert with_dot_products(summing(9, (0, 0, 0)), M4) is None
    kernel = summing(9, (0, 0))
    floats = tir.replace(kernel.func.body, tirx.Cast, lambda c: c.value.astype("float32").astype("int32"))
    assert with_dot_products(replace(kernel, code=kernel.func.with_body(floats)), M4) is None


def states_and_sums(writer: ModelWriter) -> None:
    """LSTMs whose products leave rests of every size, a dense layer with a zero point that no schedule serves, a mean of all."""
    for depth, units in ((5, 21), (16, 12), (7, 38)):
        lstm(writer, steps=3, depth=depth, units=units)
    rng = np.random.default_rng(3)
    for depth in (4, 11, 29):
        weights = writer.constant(rng.integers(-127, 128, (6, depth)).astype("int8"), 0.01)
        x, out = writer.activation((3, depth), "int8", 0.05, -17), writer.tensor((3, 6), "int8", 1e-4, 3)
        writer.operator("FULLY_CONNECTED", [x, weights, -1], [out], "FullyConnectedOptions")
        y, mean = writer.activation((3, depth), "int8", 0.05, 7), writer.tensor((), "int8", 0.03, 1)
        axes = writer.constant(np.array([0, 1], "int32"))
        writer.operator("MEAN", [y, axes], [mean], "ReducerOptions", keepDims=False)


@pytest.mark.emulator
@pytest.mark.usefixtures("quick_host")
@pytest.mark.parametrize("core", ["cortex-m4", "cortex-m55"])
def test_firmware_is_exact(core: str, emulator: None, tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    writer, model = ModelWriter(), tmp_path / "m.tflite"
    states_and_sums(writer)
    model.write_bytes(writer.finish())
    found = prepare(load(model), kernel_target(core, get_core(core).backend))
    kernels = zip(found.graph.ops, found.kernels, strict=True)
    kinds = {op.kind for op, kernel in kernels if kernel is not None and kernel.rule.startswith("dot_products.")}
    assert kinds == {"lstm", "dense", "mean"}
    made = api.compile(model, target=core, output=tmp_path / "p")
    report: Any = api.run(tmp_path / "p", board=made.board, check=model).to_dict()
    assert report["match"] is True
