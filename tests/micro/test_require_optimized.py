"""`compile --require optimized` refuses generic kernels; symbols of the linked image are audited."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tvm_cascade
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.errors import NotOptimizedError

onnx = pytest.importorskip("onnx")

INTEGERS = Path(str(files("tvm_cascade.testing") / "data" / "shapes.tflite"))


@pytest.fixture
def floats(tmp_path: Path) -> Path:
    """A convolution of floats."""
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    w = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype("float32")
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, c, 8, 8]) for n, c in (("x", 3), ("y", 4))]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [numpy_helper.from_array(w, "w")])
    path = tmp_path / "floats.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_layers_with_kernels_of_the_core_are_compiled(tmp_path: Path) -> None:
    made = tvm_cascade.compile(INTEGERS, target="cortex-m4", output=tmp_path / "p", require="optimized", link=False)
    assert made.files


def test_generic_kernels_are_refused_by_name(floats: Path, tmp_path: Path) -> None:
    """Floats of a core without hardware for them have no kernels of their own."""
    with pytest.raises(NotOptimizedError, match="no kernel of its own for ") as error:
        tvm_cascade.compile(floats, target="cortex-m0plus", output=tmp_path / "p", require="optimized", link=False)
    assert error.value.operators and not (tmp_path / "p").exists()
    assert tvm_cascade.compile(floats, target="cortex-m0plus", output=tmp_path / "p", link=False).files


def test_the_exit_status_is_1(floats: Path, tmp_path: Path) -> None:
    asked = [
        "compile",
        str(floats),
        "--target",
        "riscv32",
        "--require",
        "optimized",
        "-o",
        str(tmp_path / "p"),
        "--json",
    ]
    done = CliRunner().invoke(main, asked)
    error = json.loads(done.stdout)["error"]
    assert done.exit_code == 1 and error["kind"] == "not_optimized" and error["operators"]


@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4", "riscv32"])
def test_heap_and_float_functions_of_the_image_are_listed(
    target: str, floats: Path, tmp_path: Path, emulator: None
) -> None:
    """Floats of the Cortex-M4 are computed by hardware; nothing has a heap."""
    symbols = []
    for name, model in (("integers", INTEGERS), ("floats", floats)):
        tvm_cascade.compile(model, target=target, output=tmp_path / name)
        symbols.append(json.loads((tmp_path / name / "metadata.json").read_text())["image"]["symbols"])
    assert symbols[0] == {"heap": [], "soft_float": []} and symbols[1]["heap"] == []
    product = {"cortex-m0plus": ["__aeabi_fadd", "__aeabi_fmul"], "riscv32": ["__addsf3", "__mulsf3"]}.get(target, [])
    assert set(product) <= set(symbols[1]["soft_float"]) and bool(product) == bool(symbols[1]["soft_float"])
