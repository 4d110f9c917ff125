"""Checks of what is installed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tvm_cascade.cache import package_version
from tvm_cascade.checking import doctor
from tvm_cascade.checking.doctor import (
    Check,
    Doctor,
    check_all,
    check_newlib,
    check_package,
    check_tool,
    diagnose,
    healthy,
)
from tvm_cascade.cli.guard import guarded
from tvm_cascade.passes.float_remains import FloatRemain
from tvm_cascade.testing.tflite import ModelWriter


def test_all_checks_have_a_version_or_a_remedy() -> None:
    checks = check_all()
    assert {"python", "apache-tvm", "arm-none-eabi-gcc", "qemu-system-arm", "newlib"} <= {one.name for one in checks}
    assert healthy(checks)
    for one in checks:
        assert one.found or one.remedy, one
        assert one.name in str(one)


def test_missing_package_and_tool() -> None:
    package = check_package("no-such-distribution", "nothing", True)
    assert not package.found and not healthy([package])
    assert str(package) == "no-such-distribution: missing (nothing): pip install no-such-distribution"
    tool = check_tool("no-such-tool", "nothing", "apt-get install it")
    assert not tool.found and healthy([tool])


def test_tool_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "arm-none-eabi-gcc"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "does not start" in check_tool("arm-none-eabi-gcc", "x", "y").remedy
    assert not check_newlib().found


def test_results_as_json_and_text() -> None:
    missing = Check("x", False, "", "all", True, "get it")
    found = Doctor(
        (missing,), ("CUSTOM",), (FloatRemain("y", "relax.tanh", 64, "no integer form", 12, 40),), "m.tflite"
    )
    assert not found.ok
    assert json.loads(json.dumps(found.to_dict()))["left_float"] == [
        {"operator": "relax.tanh", "reason": "no integer form", "bytes": 64, "macs": 12, "flash_bytes": 40}
    ]
    first, *lines = found.to_text().splitlines()
    assert first == f"tvm-cascade {package_version('tvm-cascade')}: cannot work without x"
    assert lines == [
        "MISSING x: missing (all): get it",
        "MISSING operator of m.tflite: CUSTOM",
        "float   relax.tanh: no integer form; writes 64 bytes of floats, 48 more than as int8, "
        "12 multiply-accumulates, 40 bytes of floats, 30 more than as int8 in flash, by float kernels",
    ]


def test_diagnose_without_and_with_a_model(models: Path) -> None:
    assert diagnose().ok
    found = diagnose(models / "kws_dscnn_int8.tflite")
    assert found.ok and found.to_text().splitlines()[-1].endswith("every operator is supported")


def test_a_float_network_is_no_list_of_failures(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    writer = ModelWriter()
    x = writer.activation((1, 8), "float32")
    writer.operator("TANH", [x], [writer.tensor((1, 8), "float32")])
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    found = diagnose(tmp_path / "m.tflite")
    assert found.ok and not found.left_float and found.to_dict()["float_network"] is True
    last = found.to_text().splitlines()[-1]
    assert "a float network; it runs in float, by hardware on cortex-m4" in last and "32 bytes, 8 if" in last


def test_every_operator_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    writer = ModelWriter()
    x = writer.activation((1, 4, 8), "int8", 0.1, 0)
    for options in ({"batchDims": 1}, {"batchDims": 1}):
        places = writer.constant(np.zeros((1, 2), "int32"))
        out = writer.tensor((1, 4, 2), "int8", 0.1, 0)
        writer.operator("GATHER", [x, places], [out], "GatherOptions", axis=2, **options)
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    found = diagnose(tmp_path / "m.tflite")
    assert not found.ok and [name.split(":")[0] for name in found.unsupported] == [
        "GATHER (operator 0)",
        "GATHER (operator 1)",
    ]


def test_one_list_of_what_is_missing_and_what_stays_float(tmp_path: Path) -> None:
    """Unknown, without a quantized form, and float: all in one file."""
    pytest.importorskip("ai_edge_litert")
    writer = ModelWriter()
    flat = writer.activation((1, 8), "int8", 0.1, 0)
    real, made = writer.tensor((1, 8), "float32"), writer.tensor((1, 3), "float32")
    writer.operator("DEQUANTIZE", [flat], [real], "DequantizeOptions", inner=True)
    weights = writer.constant(np.ones((3, 8), "float32"))
    writer.operator("FULLY_CONNECTED", [real, weights, -1], [made], "FullyConnectedOptions", inner=True)
    writer.operator("QUANTIZE", [made], [writer.tensor((1, 3), "int8", 0.1, 0)], "QuantizeOptions")
    writer.operator("CUMSUM", [flat, writer.constant(np.array(1, "int32"))], [writer.tensor((1, 8), "int8", 0.1, 0)])
    writer.operator("LSH_PROJECTION", [flat], [writer.tensor((1, 4), "int32")], "LSHProjectionOptions")
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    found = diagnose(tmp_path / "m.tflite")
    assert found.unsupported == ("quantized CUMSUM", "LSH_PROJECTION")
    assert [(one.operator, one.bytes, one.macs, one.flash_bytes) for one in found.left_float] == [
        ("dequantize", 32, 0, 0),
        ("relax.matmul", 12, 24, 96),
    ]
    assert "in all: 2 operators, the largest tensor of 32 bytes, 24 multiply" in found.to_text().splitlines()[-1]


def test_a_model_is_not_read_where_something_required_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = check_package("no-such-distribution", "compiling networks", True)
    monkeypatch.setattr("tvm_cascade.checking.doctor.check_all", lambda: (gone,))
    found = diagnose("net.tflite")
    assert found.unread and not found.ok
    assert found.to_text().splitlines()[-1].strip() == "net.tflite was not read: install what is missing first"


def test_a_missing_package_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    @guarded
    def command() -> None:
        raise ModuleNotFoundError("No module named 'tvm.ir'", name="tvm.ir")

    with pytest.raises(SystemExit) as caught:
        command()
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(
        "tvm-cascade: the Python package tvm is not installed; `tvm-cascade doctor`"
    )


def test_cuda_is_checked_part_by_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Driver, CUDA's library, TVM's runtime upon both, and a compiler each say what is missing."""
    for name, value in (
        ("driver_version", "13.0"),
        ("loads_runtime", False),
        ("packaged_runtime", tmp_path),
        ("find_nvcc", None),
    ):
        monkeypatch.setattr(doctor, name, lambda value=value: value)
    driver, library, runtime, compiler = doctor.check_cuda()
    assert driver.found and driver.version == "13.0" and not driver.remedy
    assert not library.found and library.remedy == f"add {tmp_path} to LD_LIBRARY_PATH"
    assert not runtime.found and "driver and CUDA's runtime library" in runtime.remedy
    assert compiler.found or "tvm-cascade[cuda]" in compiler.remedy
