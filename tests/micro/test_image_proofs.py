"""What firmware never does, read from the machine code of linked images: no heap, no recursion, no floats among integers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.testing.image import Image, read_image
from tvm_cascade.testing.tflite import ModelWriter

pytestmark = pytest.mark.usefixtures("quick_host")


def _network(path: Path) -> None:
    """An int8 network with a kernel of every sort: convolutions, pools, sums, tables, softmax."""
    rng, w = np.random.default_rng(0), ModelWriter()
    x = w.activation((1, 8, 8, 4), "int8", 0.1, 3, name="x")
    how: dict[str, Any] = {"padding": 0, "strideH": 1, "strideW": 1}
    kernel = w.tensor((4, 3, 3, 4), "int8", 0.01, 0, data=rng.integers(-127, 128, (4, 3, 3, 4)))
    made = w.tensor((1, 8, 8, 4), "int8", 0.1, 0)
    w.operator("CONV_2D", [x, kernel], [made], "Conv2DOptions", dilationHFactor=1, dilationWFactor=1, **how)
    taps = w.tensor((1, 3, 3, 4), "int8", 0.01, 0, axis=3, data=rng.integers(-127, 128, (1, 3, 3, 4)))
    deep = w.tensor((1, 8, 8, 4), "int8", 0.1, 0)
    options: dict[str, Any] = {"depthMultiplier": 1, "dilationHFactor": 1, "dilationWFactor": 1, **how}
    w.operator("DEPTHWISE_CONV_2D", [made, taps], [deep], "DepthwiseConv2DOptions", **options)
    total = w.tensor((1, 8, 8, 4), "int8", 0.2, 0)
    w.operator("ADD", [made, deep], [total], "AddOptions")
    table = w.tensor((1, 8, 8, 4), "int8", 1 / 256, -128)
    w.operator("LOGISTIC", [total], [table])
    pooled = w.tensor((1, 4, 4, 4), "int8", 1 / 256, -128)
    pool: dict[str, Any] = {"padding": 1, "strideH": 2, "strideW": 2, "filterHeight": 2, "filterWidth": 2}
    w.operator("AVERAGE_POOL_2D", [table], [pooled], "Pool2DOptions", **pool)
    out = w.tensor((1, 4, 4, 4), "int8", 1 / 256, -128)
    w.operator("SOFTMAX", [pooled], [out], "SoftmaxOptions", beta=1.0)
    w.outputs = [out]
    path.write_bytes(w.finish())


@pytest.mark.parametrize(
    "target, emit", [("cortex-m0plus", "c"), ("cortex-m4", "obj"), ("cortex-m55", "obj"), ("riscv32", "c")]
)
def test_no_heap_no_recursion_no_floats(target: str, emit: str, tmp_path: Path, emulator: None) -> None:
    prefix = "riscv64-unknown-elf-" if target == "riscv32" else "arm-none-eabi-"
    if shutil.which(f"{prefix}gcc") is None:
        pytest.skip(f"{prefix}gcc is not installed")
    _network(tmp_path / "m.tflite")
    done = tvm_cascade.compile(
        tmp_path / "m.tflite", target=target, emit=emit, output=tmp_path / "p", name="net", hook=True
    )
    image = read_image(tmp_path / "p" / str(done.elf), prefix)
    reached = image.reached("net_run")
    assert "memcpy" in reached and sum(len(image.functions[name]) for name in reached) > 400
    assert (image.heap(), image.recursive("net_run"), image.floats()) == (set(), set(), set())


def test_the_proofs_can_fail(tmp_path: Path, arm_gcc: None) -> None:
    text = """
    #include <stdlib.h>
    int odd(int n);
    int even(int n) { return n == 0 ? 1 : odd(n - 1) + 1; }
    int odd(int n) { return n == 0 ? 0 : even(n - 1) + 2; }
    float scale(float x) { return x * 1.5f; }
    char *volatile kept;
    int net_run(int n) { kept = malloc(even(n)); return (int)scale((float)n); }
    int main(void) { return net_run(3); }
    void *_sbrk(int n) { static char heap[64]; (void)n; return heap; }
    """
    (tmp_path / "m.c").write_text(text)
    for core in ("cortex-m3", "cortex-m4 -mfpu=fpv4-sp-d16 -mfloat-abi=hard"):
        flags = (
            "-mthumb",
            "-O1",
            "-fno-inline",
            "-fno-optimize-sibling-calls",
            "--specs=nosys.specs",
            "-w",
            "-o",
            "m.elf",
        )
        command = ("arm-none-eabi-gcc", *f"-mcpu={core}".split(), *flags, "-o", "m.elf", "m.c")
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        image: Image = read_image(tmp_path / "m.elf", "arm-none-eabi-")
        assert {"malloc"} <= image.heap() and image.recursive("net_run") >= {"odd", "even"}
        assert ("scale" in image.floats()) == ("m4" in core) and image.floats()
