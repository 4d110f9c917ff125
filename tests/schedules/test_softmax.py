"""Softmax by its own kernels: on the host against the reference's arithmetic, in the emulator against LiteRT."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm

from tvm_cascade import api
from tvm_cascade.cores import kernel_target
from tvm_cascade.emit.codegen import print_c
from tvm_cascade.frontend import load
from tvm_cascade.operators.record import TensorType
from tvm_cascade.passes.integer.softmax import exponentials
from tvm_cascade.pipeline import prepare
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.intrinsics import C_PRELUDE
from tvm_cascade.schedules.rules.select import first_rule

pytestmark = pytest.mark.usefixtures("quick_host")

HEAD = "#include <stdint.h>\n#include <stddef.h>\n#include <string.h>\n"


def kernel_of(shape: tuple[int, ...], dtype: str, table: np.ndarray) -> RowKernel | None:
    """What the rules make of a softmax on a Cortex-M4."""
    classes = TensorType(shape, dtype)
    return first_rule(OperatorSpec("softmax", (classes,), classes, (table,)), kernel_target("cortex-m4", "c"))


def run_row(kernel: RowKernel, folder: Path, x: np.ndarray) -> np.ndarray:
    mod = tvm.IRModule({"row_kernel": kernel.func.with_attr("global_symbol", "row_kernel")})
    text = print_c(mod).replace("static int32_t row_kernel", "int32_t row_kernel")
    (folder / "k.c").write_text(HEAD + C_PRELUDE + text)
    checked = ["-fsanitize=bounds,shift,signed-integer-overflow", "-fsanitize-undefined-trap-on-error"]
    command = ["gcc", "-O1", "-shared", "-fPIC", "-fno-strict-aliasing", *checked, str(folder / "k.c"), "-o"]
    subprocess.run([*command, str(folder / "k.so")], check=True)
    out = np.zeros_like(x)
    pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (x, kernel.constants[0], out)]
    number = ctypes.c_int32
    ctypes.CDLL(str(folder / "k.so")).row_kernel(pointers[0], number(0), number(1), *pointers[1:], number(0))
    return out


def srdhm(a: int, b: int) -> int:
    return (a * b + (1 << 30)) >> 31


def saturate(v: int) -> int:
    return max(min(v, (1 << 31) - 1), -(1 << 31))


def reference(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """gemmlowp's arithmetic in whole numbers, a row of the last axis at a time, every saturation kept."""
    exps = table[(x.max(-1, keepdims=True).astype(int) - x)].astype(np.int64)
    rows = []
    for row in exps.reshape(-1, x.shape[-1]):
        total = int((((row >> 11) + 1) >> 1).sum())
        zeros = 32 - total.bit_length()
        half = (total << zeros) >> 1
        guess = srdhm(half, -1010580540) + 1515870810
        for _ in range(3):
            guess += saturate(srdhm(guess, (1 << 29) - srdhm(half, guess)) * 4)
        scale, e = saturate(2 * guess), 35 - zeros
        rows.append([min((srdhm(int(v), scale) + (1 << (e - 1))) >> e, 255) for v in row])
    return (np.array(rows).reshape(x.shape) + np.iinfo(x.dtype).min).astype(x.dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_rows_equal_the_reference(dtype: str, tmp_path: Path) -> None:
    rng, info = np.random.default_rng(0), np.iinfo(dtype)
    for case, (shape, scale) in enumerate([((1, 3, 40, 10), 0.06), ((30, 3), 0.9), ((1, 517), 0.01)]):
        table = exponentials(scale, 1.0)
        kernel = kernel_of(shape, dtype, table)
        assert kernel is not None and kernel.rule == "softmax.classes"
        x = rng.integers(info.min, info.max + 1, shape[2:] if len(shape) > 2 else shape).astype(dtype)
        folder = tmp_path / str(case)
        folder.mkdir()
        np.testing.assert_array_equal(run_row(kernel, folder, x), reference(x, table), err_msg=str(shape))


@pytest.mark.parametrize("classes, alike", [(5, 1), (4000, 4000), (600, 520)])
def test_sums_from_one_to_thousands(classes: int, alike: int, tmp_path: Path) -> None:
    """Rounding by shifts of 23 to 34 bits; one class alone saturates the reciprocal and the output."""
    x, table = np.full((1, classes), -128, np.int8), exponentials(0.5, 1.0)
    x[0, :alike] = 127
    kernel = kernel_of((1, classes), "int8", table)
    assert kernel is not None
    np.testing.assert_array_equal(run_row(kernel, tmp_path, x), reference(x, table))


def test_what_is_no_softmax_of_bytes() -> None:
    table = exponentials(0.1, 1.0)
    assert kernel_of((1, 10), "int16", table) is None
    assert kernel_of((2, 3, 10), "int8", table) is None  # two batches: no row of the tensor is one of the kernel
    assert kernel_of((1, 10), "int8", table[:100]) is None


def several(folder: Path) -> Path:
    """Softmaxes of 12 and 100 classes and of 49 rows of 66, and a log softmax, side by side."""
    tflite = pytest.importorskip("tvm_cascade.testing.tflite", exc_type=ImportError)
    pytest.importorskip("ai_edge_litert")
    w = tflite.ModelWriter()
    for shape, scale in (((1, 12), 0.1), ((1, 100), 0.02), ((1, 9, 66), 0.3)):
        out = w.tensor(shape, "int8", 1 / 256, -128)
        w.operator("SOFTMAX", [w.activation(shape, "int8", scale, 3)], [out], "SoftmaxOptions", beta=1.0)
    out = w.tensor((1, 20), "int8", 1 / 16, 127)
    w.operator("LOG_SOFTMAX", [w.activation((1, 20), "int8", 0.1, 3)], [out], "LogSoftmaxOptions")
    path = folder / "m.tflite"
    path.write_bytes(w.finish())
    return path


@pytest.mark.emulator
@pytest.mark.parametrize(
    "target, backend, rule, limit",
    [
        ("cortex-m3", "c", "classes", 17_400),
        ("cortex-m4", "obj", "classes", 16_200),
        ("cortex-m55", "obj", "vectors", 5_000),
    ],
)
def test_firmware_equals_litert(
    target: str, backend: str, rule: str, limit: int, emulator: None, tmp_path: Path
) -> None:
    model = several(tmp_path)
    kernels = prepare(load(str(model)), kernel_target(target, backend)).kernels
    assert [k.rule for k in kernels if k is not None][:3] == [f"softmax.{rule}"] * 3
    made = api.compile(str(model), target=target, emit=backend, output=tmp_path / "p", layerwise=True)
    report = api.run(tmp_path / "p", board=made.board, check=str(model)).to_dict()
    assert report["match"] is True
    assert isinstance(report["instructions"], int) and report["instructions"] <= limit, report["instructions"]


@pytest.mark.parametrize(("scale", "zero_point", "classes"), [(1 / 18.5, -2, 3), (1 / 256, -128, 512)])
def test_a_result_of_another_scale_or_of_ties(
    scale: float, zero_point: int, classes: int, emulator: None, tmp_path: Path
) -> None:
    """Kernels of bytes store 256ths and round halves up: 1/512 of equal classes is half a step, and stays 0 here."""
    pytest.importorskip("onnx")
    from onnx import helper

    from tvm_cascade.testing.onnx_nodes import save_network

    constants = {"s": np.float32(0.25), "z": np.int8(0), "t": np.float32(scale), "u": np.int8(zero_point)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=1),
        helper.make_node("QuantizeLinear", ["y", "t", "u"], ["p"]),
        helper.make_node("DequantizeLinear", ["p", "t", "u"], ["out"]),
    ]
    x = (
        np.zeros((1, classes), "float32")
        if classes > 256
        else np.random.default_rng(0).normal(size=(21, classes)).astype("float32")
    )
    path = save_network(tmp_path / "m.onnx", nodes, {"x": x}, ["out"], constants)
    reals = np.exp(np.round(x / 0.25) * 0.25)
    want = np.round(reals / reals.sum(1, keepdims=True) / scale).clip(-128 - zero_point, 127 - zero_point) * scale
    for target in ("cortex-m4", "cortex-m55"):
        made = api.compile(path, target=target, output=tmp_path / target)
        report = api.run(tmp_path / target, board=made.board, inputs={"x": x})
        assert report.equals_host
        np.testing.assert_allclose(report.outputs["out"], want, atol=1e-6)
