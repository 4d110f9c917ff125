"""Operators on real numbers by scales that are powers of two: many sums lie halfway between two outputs, and round to even."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_cascade import api, pipeline
from tvm_cascade.cores import kernel_target
from tvm_cascade.passes.candidates.candidate import KernelSource
from tvm_cascade.request import LoadRequest, PlanRequest
from tvm_cascade.schedules.rules.requantize import plan_requantize, reference

onnx = pytest.importorskip("onnx")


@pytest.mark.parametrize("zero_out", [-128, 0, 55])
@pytest.mark.parametrize("m, s", [(1 << 30, 0), (1 << 30, -7), (5 << 28, -1), (3 << 29, -9), (0, -3)])
def test_the_narrow_form_equals_the_reference_at_every_step(m: int, s: int, zero_out: int) -> None:
    acc = np.arange(-40000, 40000, dtype=np.int64)
    q = plan_requantize(np.array([m]), np.array([s]), acc[:1], acc[-1:], zero_out, (-128, 127), even=True)
    assert (q.narrow, q.short) == (bool(m), not m)
    n, addend, k = (int(v) for v in q.table[0])
    product = acc * n
    assert np.abs(product).max() + abs(addend) < 1 << 31
    want = reference(acc, np.full_like(acc, m), np.full_like(acc, s), zero_out, (-128, 127), even=True)
    if m:
        np.testing.assert_array_equal(np.clip((product + addend - 1 + (product >> k & 1)) >> k, -128, 127), want)


def test_sums_beyond_31_bits_have_the_general_form() -> None:
    far = np.array([1 << 24])
    for m, s in (((1 << 30) + (1 << 20), -1), (1 << 30, 3)):
        q = plan_requantize(np.array([m]), np.array([s]), -far, far, 0, (-128, 127), even=True)
        assert not q.short and not q.narrow and q.reason
    assert plan_requantize(np.array([1 << 30]), np.array([-4]), -far, far, 0, (-128, 127)).short  # LiteRT's rounding


class Network:
    """Writes operators between quantized values; scales are powers of two, if `base` is 1, and else differ by its powers."""

    def __init__(self, base: float) -> None:
        self.base, self.rng = base, np.random.default_rng(5)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, data: Any) -> str:
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(data), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(onnx.helper.make_node(kind, list(inputs), [f"v{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]

    def stored(self, x: str, power: int, zero: int) -> str:
        numbers = self.constant(np.float32(self.base ** len(self.nodes) * 2.0**power)), self.constant(np.int8(zero))
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, *numbers), *numbers)

    def weights(self, *shape: int) -> str:
        data = self.constant(self.rng.integers(-9, 10, shape).astype("int8"))
        return self.node("DequantizeLinear", data, self.constant(np.float32(2.0**-6)), self.constant(np.int8(0)))

    def save(self, path: Path) -> Path:
        x = self.stored("x", -6, -5)
        a = self.stored(self.node("Conv", x, self.weights(8, 4, 3, 3), pads=[1] * 4), -4, 3)
        b = self.stored(self.node("Relu", self.node("Conv", a, self.weights(8, 1, 3, 3), group=8, pads=[1] * 4)), -4, 1)
        c = self.stored(self.node("Add", a, b), -3, -7)
        d = self.stored(self.node("Mul", c, b), -2, 9)
        e = self.stored(self.node("AveragePool", d, kernel_shape=[2, 2], strides=[2, 2]), -2, 9)
        f = self.stored(self.node("GlobalAveragePool", e), -4, 2)
        g = self.node("Gemm", self.node("Flatten", f), self.weights(5, 8), transB=1)
        y = self.stored(g, -5, 0)
        info, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
        ends = [info("x", kind, (1, 4, 8, 8))], [info(y, kind, (1, 5))]
        graph = onnx.helper.make_graph(self.nodes, "g", *ends, self.constants)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, path)
        return path


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m0plus", "riscv32"])
def test_plans_round_to_even(target: str, tmp_path: Path) -> None:
    path = Network(1.0).save(tmp_path / "halves.onnx")
    loaded = pipeline.load(path, LoadRequest(stored_io=True))
    planned = pipeline.plan(loaded, PlanRequest(), KernelSource(kernel_target(target, "c")))
    pipeline.check(planned)


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55", "riscv32"])
def test_firmware_rounds_to_even_for_few_more_instructions(target: str, emulator: None, tmp_path: Path) -> None:
    counts = []
    for base in (1.0, 1.01):  # of the second nothing lies halfway
        path = Network(base).save(tmp_path / f"{base}.onnx")
        made = api.compile(path, target=target, output=tmp_path / f"{base}", stored_io=True)
        ran = api.run(tmp_path / f"{base}", board=made.board, check=path)
        assert ran.match and ran.equals_host
        counts.append(ran.instructions)
    assert counts[0] <= 1.15 * counts[1]
