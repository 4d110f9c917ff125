"""Every operator as firmware: one network of them all, side by side, on an emulated board, against the reference kernels.

The kernels' own C is compared here; what they compute over many shapes and scales is compared in
`tests/passes/test_lower_quantized_operators.py`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

import tvm_cascade
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.report import frontier
from tvm_cascade.testing import activation_cases, choice_cases, move_cases, operator_cases, weighted_cases
from tvm_cascade.testing.reference import Reference, random_inputs
from tvm_cascade.testing.tflite import ModelWriter

pytestmark = pytest.mark.usefixtures("quick_host")

MODULES = (operator_cases, activation_cases, weighted_cases, move_cases, choice_cases)
ALL = {name: make for module in MODULES for name, make in module.OPERATORS.items()}
STRICT = ("-Wcast-align=strict", "-Wundef", "-Wstrict-prototypes", "-Wmissing-prototypes", "-Wdouble-promotion")
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror", *STRICT)


def _named(dtype: str) -> list[str]:
    """The operators that have a form in `dtype`, but for one whose kernel is not the reference's."""
    if dtype == "float32":
        names = {**operator_cases.FLOAT, **ALL}
    elif dtype == "int16":
        names = {n: None for m in MODULES for n in m.INT16}
    else:
        kinds = {n for m in (activation_cases, weighted_cases, choice_cases) for n, kind in m.KINDS if kind == dtype}
        names = {n: None for n in (*operator_cases.OPERATORS, *kinds, *move_cases.OPERATORS)}
    return sorted(n for n in names if n != "elu")


@pytest.mark.filterwarnings("ignore:invalid value")  # logarithms of what is negative, on both sides
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "float32"])
def test_equal_to_the_reference_without_a_warning(
    tmp_path: Path, emulator: None, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        frontier, "bounds", lambda *_: None
    )  # half of the time; nobody asks what such a network could take
    writer, names = ModelWriter(), []
    for name in _named(dtype):
        {**ALL, **operator_cases.FLOAT}[name](np.random.default_rng(len(name)), dtype, writer)
        names += [name] * (len(writer.outputs) - len(names))
    path = tmp_path / "every.tflite"
    path.write_bytes(writer.finish())
    tvm_cascade.compile(path, target="cortex-m4", output=tmp_path / "fw", emit="c", layerwise=True, rewrite=False)
    subprocess.run(("gcc", *WARNINGS, "-fsyntax-only", "every.c"), cwd=tmp_path / "fw", check=True)
    reference = Reference(path.read_bytes())
    arrays = random_inputs(reference.inputs, 0)
    feeds = dict(zip((i.name for i in io_spec(load(path)).own_inputs), arrays, strict=True))
    done = tvm_cascade.run(tmp_path / "fw", inputs=feeds)
    for name, ours, theirs in zip(names, done.outputs.values(), reference.run(arrays), strict=True):
        reach = 1e-4 * max(float(np.nanmax(np.abs(theirs))), 1e-3) if dtype == "float32" else 0
        np.testing.assert_allclose(ours.astype("float64"), theirs, rtol=0, atol=reach, err_msg=name)


@pytest.mark.parametrize("operator, seed", [("reshape", 0), ("depthwise_conv2d", 2)])
def test_nothing_left_to_compute(tmp_path: Path, operator: str, seed: int) -> None:
    """A view alone; an operator whose bounds leave its output one value, whatever it reads."""
    writer = ModelWriter()
    ALL[operator](np.random.default_rng(seed), "int8", writer)
    path = tmp_path / "m.tflite"
    path.write_bytes(writer.finish())
    tvm_cascade.compile(path, target="host", output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=path).match


def test_an_output_of_one_value_is_not_written_over_inputs(tmp_path: Path) -> None:
    """Of two images, where rows do not lie one behind the other; the plan was refused by its own replay."""
    writer = ModelWriter()
    inputs = [writer.activation((2, 2, 3, 7), "int8", scale, zero) for scale, zero in ((0.2, 82), (0.009, -128))]
    out = writer.tensor((2, 2, 3, 7), "int8", 12.0, 127)
    writer.operator("SUB", inputs, [out], "SubOptions", fusedActivationFunction=1)
    path = tmp_path / "m.tflite"
    path.write_bytes(writer.finish())
    tvm_cascade.compile(path, target="host", output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=path).match
