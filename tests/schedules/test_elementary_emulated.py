"""Elementary functions of floats in firmware: polynomials, whose errors, NaN and infinities are those of C's library."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper

from tvm_cascade import api
from tvm_cascade.cores import get_core
from tvm_cascade.schedules.rules.elementary import polynomials_of

Array = np.ndarray
_erf = np.frompyfunc(math.erf, 1, 1)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


# nodes and value in float64, relative error, and what errors may be near zero
FUNCTIONS: dict[str, tuple[list[tuple[str, list[str]]], Callable[[Array], Array], float, float]] = {
    "exp": ([("Exp", ["x"])], np.exp, 2e-7, 2e-38),
    "log": ([("Log", ["x"])], np.log, 2e-7, 0),
    "sigmoid": ([("Sigmoid", ["x"])], sigmoid, 4e-7, 2e-38),
    "tanh": ([("Tanh", ["x"])], np.tanh, 6e-7, 2e-38),
    "erf": ([("Erf", ["x"])], lambda x: _erf(x).astype(np.float64), 8e-7, 2e-38),
    "silu": ([("Sigmoid", ["x"]), ("Mul", ["x", "silu0"])], lambda x: x * sigmoid(x), 6e-7, 1e-36),
    "log1p": ([("Add", ["x", "one"]), ("Log", ["log1p0"])], np.log1p, 2e-6, 1e-7),
    "mish": ([("Mish", ["x"])], lambda x: x * np.tanh(np.logaddexp(0, x)), 2e-6, 1e-36),
}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 88.7, 89.0, -87.0, 1e-30, -1e-30, 3.4e38, -3.4e38, 1.0, -1.0, 9.0, 3.92]
X = np.concatenate([np.linspace(-25, 25, 1200), np.geomspace(1e-20, 1e20, 300), SPECIAL]).astype(np.float32)


def model(path: Path) -> None:
    """Write a network of all functions of one input."""
    nodes, outputs = [], []
    for name, (steps, *_) in FUNCTIONS.items():
        for k, (kind, inputs) in enumerate(steps):
            nodes.append(helper.make_node(kind, inputs, [name if k == len(steps) - 1 else f"{name}{k}"]))
        outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, len(X)]))
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, len(X)])
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    graph = helper.make_graph(nodes, "functions", [given], outputs, [one])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)


@pytest.mark.parametrize("core", ["cortex-m4", "cortex-m7", "cortex-m55"])
@pytest.mark.usefixtures("emulator")
@pytest.mark.filterwarnings("ignore")
def test_values_in_the_emulator(core: str, tmp_path: Path) -> None:
    model(tmp_path / "functions.onnx")
    made = api.compile(
        tmp_path / "functions.onnx", target=core, emit="c" if core != "cortex-m55" else "obj", output=tmp_path / "p"
    )
    api.run(tmp_path / "p", inputs={"x": X[None]}, outputs=tmp_path / "made.npz")
    outputs, x = np.load(tmp_path / "made.npz"), X.astype(np.float64)
    for name, (_, value, relative, near_zero) in FUNCTIONS.items():
        least = near_zero
        if name == "mish" and "log" not in polynomials_of(get_core(core)):  # log(1 + exp(x)) loses a small power
            least = 1e-6
        want, got = value(x).astype(np.float32), outputs[name].ravel()
        np.testing.assert_allclose(got, want, rtol=relative, atol=least, equal_nan=True, err_msg=name)
    text = "".join(p.read_text() for p in made.folder.glob("*.c"))
    assert not any(f"{name}f(" in text for name in ("exp", "tanh", "erf"))


def test_cores_that_compute_functions_without_the_library() -> None:
    assert "exp" in polynomials_of(get_core("cortex-m4")) and "log" in polynomials_of(get_core("cortex-m33"))
    assert "log" not in polynomials_of(get_core("cortex-m55"))
    assert not any(polynomials_of(get_core(core)) for core in ("cortex-m0plus", "cortex-m3", "riscv32", "host"))
