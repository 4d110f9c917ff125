"""The build that runs in this process: kernels stay functions of their own, which LLVM compiles one by one."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.emit import host
from tvm_cascade.emit.host import HostProgram, run_host

MODEL = Path(str(files("tvm_cascade.testing") / "data" / "shapes.tflite"))


@pytest.fixture(autouse=True)
def quick_programs_are_linked() -> None:
    """They are not here: programs are read as users' are."""


def test_kernels_are_not_moved_into_the_driver(tmp_path: Path) -> None:
    tvm_cascade.compile(MODEL, target="host", output=tmp_path / "p", layerwise=True)
    functions = (tmp_path / "p" / "host" / "program.ll").read_text().split("\ndefine ")[1:]
    names = [f.split("\n", 1)[0] for f in functions]
    assert sum("conv2d" in name for name in names) == 9, "each of the network's convolutions is a function of its own"
    assert sum("dense" in name for name in names) == 1  # what is as small as a mean may be part of its caller


def test_programs_of_many_kernels_are_not_optimised_and_compute_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: list[HostProgram] = []
    for most in (host._MOST_OPTIMISED, 0):
        monkeypatch.setattr(host, "_MOST_OPTIMISED", most)
        folder = tmp_path / str(most)
        tvm_cascade.compile(MODEL, target="host", output=folder, cache=False)
        metadata = json.loads((folder / "metadata.json").read_text())
        programs.append(HostProgram.load(folder / "host", metadata["host"]))
    plain = programs[1].llvm
    assert plain.count(" alloca ") > programs[0].llvm.count(" alloca "), "values lie on the stack"
    random = np.random.default_rng(5)
    feed = {s.name: random.integers(-99, 99, s.shape).astype(s.dtype) for s in programs[0].inputs}
    first, second = (run_host(program, [feed]) for program in programs)
    assert first.executed_macs == second.executed_macs
    for name, value in first.outputs[0].items():
        np.testing.assert_array_equal(value, second.outputs[0][name])
