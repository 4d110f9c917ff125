"""Integers rounded from sums of float products, which every compiler and every standard of C rounds alike."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade import api
from tvm_cascade.testing.tflite import ModelWriter

pytestmark = [pytest.mark.emulator, pytest.mark.usefixtures("emulator", "quick_host")]
_GCC = "arm-none-eabi-gcc -O2 -mcpu=cortex-m4 -mthumb -mfpu=fpv4-sp-d16 -mfloat-abi=hard -S -o -"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file whose reference interpolates in floats: of 840 numbers, four change where a sum is fused."""
    writer = ModelWriter()
    x = writer.activation((1, 7, 10, 2), "uint8", 0.05, 128)
    size = writer.tensor((2,), "int32", data=np.array([14, 30], "int32"))
    out = writer.tensor((1, 14, 30, 2), "uint8", 0.05, 128)
    writer.operator("RESIZE_BILINEAR", [x, size], [out], "ResizeBilinearOptions")
    (tmp_path / "resized.tflite").write_bytes(writer.finish())
    return tmp_path / "resized.tflite"


@pytest.mark.parametrize(("target", "emit"), [("cortex-m55", "obj"), ("cortex-m4", "obj"), ("cortex-m4", "c")])
def test_no_product_is_fused(path: Path, target: str, emit: str) -> None:
    api.compile(path, target=target, emit=emit, output=path.with_name("fw"))
    report = api.run(path.with_name("fw"), check=path)
    assert report.match and report.max_abs_diff == 0
    host = (path.with_name("fw") / "host" / "program.ll").read_text()
    assert "llvm.arithmetic.fence" in host  # AArch64 would fuse, too


def test_nor_with_the_extensions_of_gnu(path: Path) -> None:
    api.compile(path, target="cortex-m4", output=path.with_name("fw"))
    source = path.with_name("fw") / "resized.c"

    def fused(text: str) -> bool:
        source.write_text(text)
        command = [*_GCC.split(), "-std=gnu11", str(source)]
        return "vfma" in subprocess.run(command, capture_output=True, text=True, check=True).stdout

    text = source.read_text()
    assert not fused(text)
    assert fused(text.replace(', "fp-contract=off"', ""))
