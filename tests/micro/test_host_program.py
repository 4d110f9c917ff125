"""The build that runs in this process: kernels stay functions of their own, which LLVM compiles one by one."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import tvm_cascade

MODEL = Path(str(files("tvm_cascade.testing") / "data" / "shapes.tflite"))


def test_kernels_are_not_moved_into_the_driver(tmp_path: Path) -> None:
    tvm_cascade.compile(MODEL, target="host", output=tmp_path / "p", layerwise=True)
    functions = (tmp_path / "p" / "host" / "program.ll").read_text().split("\ndefine ")[1:]
    convolutions = [f for f in functions if "conv2d" in f.split("\n", 1)[0]]
    assert len(convolutions) >= 3
    (driver,) = (
        f for f in functions if "host_main_compute_" in f.split("\n", 1)[0] or "_invoke(" in f.split("\n", 1)[0]
    )
    assert driver.count("\n") < sum(f.count("\n") for f in convolutions)
