"""`plan` estimates the code of the image that `compile` links, on every family of cores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.ir import IRModule

from tvm_cascade import api
from tvm_cascade.testing import time_series
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.estimate_cases import of_file, separable
from tvm_cascade.testing.recurrent_cells import gru, lstm
from tvm_cascade.testing.tflite import ModelWriter

_CORES = ("cortex-m0plus", "cortex-m4", "cortex-m7", "cortex-m55", "riscv32")


def _sums() -> bytes:
    """Write a chain of sums, each of another scale, so that no kernel is shared."""
    w = ModelWriter()
    x = first = w.activation((1, 16), "int8", 0.1)
    for k in range(40):
        made = w.tensor((1, 16), "int8", 0.1 + 0.003 * (k + 1))
        w.operator("ADD", [x, first], [made], "AddOptions")
        x = made
    return w.finish()


_NETWORKS: dict[str, Callable[[], IRModule]] = {
    "gru": lambda: of_file(gru()),
    "lstm": lambda: of_file(lstm()),
    "float gru": lambda: of_file(gru(dtype="float32")),
    "float convolutions": lambda: separable("float32"),
    "signal": time_series.activity,
}

pytestmark = pytest.mark.usefixtures("quick_host")


def _network() -> IRModule:
    net = Net("int8", seed=5)
    x = net.conv(net.input((1, 24, 24, 3), "image"), 8, (3, 3), 2, "same", activation="relu")
    for width in (16, 24):
        x = net.conv(net.depthwise(x, (3, 3), 1, "same", activation="relu"), width, kernel=(1, 1), activation="relu")
    return net.finish(net.dense(net.global_pool(x), 5))


@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4", "cortex-m55"])
def test_estimated_code_of_a_linked_image(target: str, tmp_path: Path, arm_gcc: None) -> None:
    told = api.plan(_network(), target=target)
    made = api.compile(_network(), target=target, output=tmp_path / "project")
    assert told.flash is not None and made.flash_bytes is not None
    weights, code = told.flash
    assert 0.7 < code / (made.flash_bytes - weights) < 1.3, (code, weights, made.flash_bytes)


@pytest.mark.parametrize("target", _CORES)
@pytest.mark.parametrize("name", _NETWORKS)
def test_estimated_flash_of_a_linked_image(name: str, target: str, tmp_path: Path, emulator_tools: None) -> None:
    """Recurrent layers whose steps are written out among them, of which most is the driver."""
    made: Any = api.compile(_NETWORKS[name](), target=target, output=tmp_path / "project").to_dict()
    estimate, linked = made["weight_bytes"] + made["estimated_code_bytes"], made["flash_bytes"]
    assert linked is not None and abs(estimate / linked - 1) < 0.1, (estimate, linked)


@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4", "riscv32"])
def test_estimated_flash_of_kernels_without_products(target: str, tmp_path: Path, emulator_tools: None) -> None:
    """On Cortex-M0+ and RISC-V they are hardly larger than on Cortex-M4, and products more than twice."""
    made: Any = api.compile(of_file(_sums()), target=target, output=tmp_path / "project").to_dict()
    estimate, linked = made["weight_bytes"] + made["estimated_code_bytes"], made["flash_bytes"]
    assert linked is not None and abs(estimate / linked - 1) < 0.1, (estimate, linked)


def _mean() -> bytes:
    """Write a mean of floats: without hardware for them most of the image is the library's arithmetic."""
    w = ModelWriter()
    x, axes = w.activation((1, 4, 16), "float32"), w.constant(np.array([2], "int32"))
    w.operator("MEAN", [x, axes], [w.tensor((1, 4), "float32")], "ReducerOptions", keepDims=False)
    return w.finish()


def _moved() -> bytes:
    """Write a transpose of floats, which computes nothing."""
    w = ModelWriter()
    x, axes = w.activation((1, 4, 6), "float32"), w.constant(np.array([0, 2, 1], "int32"))
    w.operator("TRANSPOSE", [x, axes], [w.tensor((1, 6, 4), "float32")], "TransposeOptions")
    return w.finish()


def _averages() -> bytes:
    """Write averages of floats over partial windows, whose divisor is computed for each."""
    w = ModelWriter()
    x, made = w.activation((1, 11, 6, 1), "float32"), w.tensor((1, 11, 6, 1), "float32")
    window = {"filterHeight": 3, "filterWidth": 3, "strideH": 1, "strideW": 1, "padding": 0}
    w.operator("AVERAGE_POOL_2D", [x], [made], "Pool2DOptions", **window)
    return w.finish()


def _ratio() -> bytes:
    """Write a quotient of two computed floats."""
    w = ModelWriter()
    shape = (1, 4, 6)
    x, y = w.activation(shape, "float32"), w.activation(shape, "float32")
    w.operator("DIV", [x, y], [w.tensor(shape, "float32")], "DivOptions")
    return w.finish()


@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m3", "cortex-m4", "riscv32"])
@pytest.mark.parametrize("made", [_mean, _moved])
def test_estimated_flash_of_what_floats_link(
    made: Callable[[], bytes], target: str, tmp_path: Path, emulator_tools: None
) -> None:
    told: Any = api.compile(of_file(made()), target=target, output=tmp_path / "project").to_dict()
    estimate, linked = told["weight_bytes"] + told["estimated_code_bytes"], told["flash_bytes"]
    assert linked is not None and abs(estimate / linked - 1) < 0.1, (estimate, linked)


@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m3", "cortex-m4", "riscv32"])
@pytest.mark.parametrize("made", [_averages, _ratio])
def test_estimated_flash_of_computed_divisors(
    made: Callable[[], bytes], target: str, tmp_path: Path, emulator_tools: None
) -> None:
    told: Any = api.compile(of_file(made()), target=target, output=tmp_path / "project").to_dict()
    estimate, linked = told["weight_bytes"] + told["estimated_code_bytes"], told["flash_bytes"]
    assert linked is not None and abs(estimate / linked - 1) < 0.2, (estimate, linked)


@pytest.mark.parametrize("name", ["kws_dscnn_int8", "ad01_int8"])
def test_estimated_flash_of_public_networks(name: str, tmp_path: Path, emulator_tools: None, test_data: Path) -> None:
    for target in _CORES[1:]:  # ad01 does not fit into the flash of a micro:bit
        made: Any = api.compile(
            test_data / "models" / f"{name}.tflite", target=target, output=tmp_path / target
        ).to_dict()
        estimate, linked = made["weight_bytes"] + made["estimated_code_bytes"], made["flash_bytes"]
        assert linked is not None and abs(estimate / linked - 1) < 0.1, (target, estimate, linked)
