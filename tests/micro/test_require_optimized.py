"""`compile --require` refuses generic kernels, a heap and floats; symbols of the linked image are audited."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tvm_cascade
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.cores import get_core
from tvm_cascade.emit.audit import require_audited
from tvm_cascade.emit.toolchain import run_tool
from tvm_cascade.errors import AuditError, NotOptimizedError, UsageError
from tvm_cascade.graph import Graph
from tvm_cascade.testing.onnx_layers import Layers

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


@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4", "cortex-m55", "riscv32"])
def test_an_integer_image_has_no_heap_and_no_floats(target: str, tmp_path: Path, emulator: None) -> None:
    every = ("optimized", "no-heap", "no-float")
    assert tvm_cascade.compile(INTEGERS, target=target, output=tmp_path / "p", require=every).elf


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("cortex-m0plus", "__aeabi_f"),
        ("cortex-m4", r"v\w+\.f32 in "),
        ("cortex-m55", r"v\w+\.f"),
        ("riscv32", "__addsf3"),
    ],
)
def test_floats_are_refused_with_their_layers(
    target: str, what: str, floats: Path, tmp_path: Path, emulator: None
) -> None:
    """A unit for floats computes floats, too: the audit is of instructions there."""
    match = f"--require no-float: the image has {what}.*layers of floats: y.*; quantize the network"
    with pytest.raises(AuditError, match=match) as error:
        tvm_cascade.compile(floats, target=target, output=tmp_path / "p", require=["no-float", "no-heap"])
    assert "y" in error.value.operators and error.value.exit_status == 1 and not (tmp_path / "p").exists()
    assert tvm_cascade.compile(floats, target=target, output=tmp_path / "p", require="no-heap").elf


def test_floats_at_the_ends_alone_have_their_own_remedy(tmp_path: Path, emulator: None) -> None:
    layers = Layers()
    result = layers.stored(layers.node("Conv", layers.stored("x"), layers.weight((4, 4, 3, 3), 0)), 0.5)
    layers.save(tmp_path / "ends.onnx", result, (1, 4, 6, 6), 4)
    asked = {"target": "cortex-m4", "output": tmp_path / "p", "require": "no-float"}
    with pytest.raises(AuditError, match=r"layers that convert floats: .*; --stored-io leaves them to the application"):
        tvm_cascade.compile(tmp_path / "ends.onnx", **asked)
    assert tvm_cascade.compile(tmp_path / "ends.onnx", **asked, stored_io=True).elf


@pytest.mark.parametrize("target", ["cortex-m4", "riscv32"])
def test_a_heap_is_named_with_its_caller(target: str, tmp_path: Path, emulator: None) -> None:
    source, elf, core = tmp_path / "a.c", tmp_path / "a.elf", get_core(target)
    source.write_text(
        "#include <stdlib.h>\nvoid *volatile kept; void *_sbrk(int n) { return (void *)n; }\n"
        "void *sbrk(int n) { return _sbrk(n); }\n"
        "__attribute__((noinline)) void grow(void) { kept = malloc(8); }\nvoid Reset_Handler(void) { grow(); }\n"
    )
    flags = (*core.gcc_flags, "-nostartfiles", "-Wl,-eReset_Handler")
    run_tool((core.family.gcc, *flags, str(source), "-o", str(elf)))
    with pytest.raises(AuditError, match=r"--require no-heap: the image has .*(malloc|sbrk).*; .* or leave") as error:
        require_audited(elf, core.family, ["no-heap"], Graph((), (), (), ()))
    assert "called by" in str(error.value)
    require_audited(elf, core.family, ["no-float"], Graph((), (), (), ()))


def test_an_audit_needs_an_image(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="audits the linked image; leave --no-link out"):
        tvm_cascade.compile(INTEGERS, target="cortex-m4", output=tmp_path / "p", require="no-heap", link=False)
    with pytest.raises(UsageError, match="audits an image, and none is linked for host"):
        tvm_cascade.compile(INTEGERS, target="host", output=tmp_path / "p", require="no-float")
    with pytest.raises(UsageError, match="--require 'none': give optimized, no-heap or no-float"):
        tvm_cascade.compile(INTEGERS, target="cortex-m4", output=tmp_path / "p", require="none")
