"""The step that runs folders of `stages --emit`: `example.py`, and `example` where CMake and a C++ compiler are.

TVM is what this pack has of it: its runtime, and the part of its Python package that a program without compiler loads.
In a rehearsal folders for CUDA run on the stand-in, where kernels compute nothing: values are compared of those for a CPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import cuda_runtime
from packed import EMITTED, HERE, TOLERANCES, relative_error
from tvm_steps import Call, Row

Outputs = dict[str, np.ndarray]


def emitted(call: Call) -> list[Row]:
    """Every folder by its examples, against the expected outputs."""
    folder = call.work / "emitted"
    if not folder.exists():
        with tarfile.open(HERE / "networks" / "emitted.tar.xz") as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(folder)
    runners: dict[str, Callable[[Path, Mapping[str, str]], Outputs]] = {"example.py": _python}
    if shutil.which("cmake") and (shutil.which("c++") or shutil.which("g++")):
        runners["example.cc"] = _program
    return [_compared(call, folder / name, example, run) for name in EMITTED for example, run in runners.items()]


def _compared(call: Call, place: Path, example: str, run: Callable[[Path, Mapping[str, str]], Outputs]) -> Row:
    about = json.loads((place / "network" / "metadata.json").read_text())
    row: Row = {"folder": place.name, "example": example, "target": about["target"], "precision": about["precision"]}
    on_gpu = about["target"] == "cuda"
    try:
        found = run(place, _environment(call, on_gpu))
    except subprocess.CalledProcessError as error:
        lines = [x for x in (error.stdout + error.stderr).splitlines() if x.strip()] or ["nothing said"]
        return row | {"wrong": f"exit status {error.returncode}: {lines[-1][:300]}"}
    expected = _held(place / "expected.npz")
    names = sorted(expected)
    if sorted(found) != names or any(found[n].shape != expected[n].shape for n in names):
        return row | {"wrong": "outputs have other names or shapes than the network's"}
    if call.rehearsal and on_gpu:
        return row | {"note": "rehearsed with the stand-in for CUDA"}
    row["relative_error"] = error = relative_error([found[n] for n in names], [expected[n] for n in names])
    tolerance = TOLERANCES[about["precision"]]
    return row | ({"wrong": f"differs by more than {tolerance}"} if error > tolerance else {})


def _environment(call: Call, on_gpu: bool) -> dict[str, str]:
    """Of a process that finds the packed TVM, and CUDA's runtime library or the stand-in for it."""
    known = {**os.environ, "PYTHONPATH": str(HERE / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    known["TVM_FFI_DISABLE_TORCH_C_DLPACK"] = "1"
    if on_gpu:
        places = [str(HERE / "stand_in") if call.rehearsal else str(Path(cuda_runtime()).parent)]
        known["LD_LIBRARY_PATH"] = os.pathsep.join([*places, *filter(None, [known.get("LD_LIBRARY_PATH")])])
    return known


def _held(path: Path) -> Outputs:
    with np.load(path) as held:
        return {name: held[name] for name in held.files}


def _run(command: Sequence[str | Path], place: Path, environment: Mapping[str, str]) -> None:
    subprocess.run(
        [*map(str, command)], cwd=place / "network", env=dict(environment), check=True, capture_output=True, text=True
    )


def _python(place: Path, environment: Mapping[str, str]) -> Outputs:
    made = place / "python.npz"
    _run([sys.executable, "-B", "example.py", "--inputs", place / "inputs.npz", "--outputs", made], place, environment)
    return _held(made)


def _program(place: Path, environment: Mapping[str, str]) -> Outputs:
    build, network = place / "build", place / "network"
    runtime = f"-DTVM_RUNTIME={HERE / 'lib' / 'libtvm_runtime.so'}"
    python = [f"-D{name}_EXECUTABLE={sys.executable}" for name in ("Python", "Python3")]
    _run(["cmake", "-S", network, "-B", build, "-DCMAKE_BUILD_TYPE=Release", runtime, *python], place, environment)
    _run(["cmake", "--build", build], place, environment)
    about: Any = json.loads((network / "metadata.json").read_text())
    words: list[str] = []
    for name, array in _held(place / "inputs.npz").items():
        file = place / f"input_{len(words)}.bin"
        array.tofile(file)
        words += ["--input", f"{name}={file}"]
    files = {spec["name"]: place / f"output_{k}.bin" for k, spec in enumerate(about["outputs"])}
    for name, file in files.items():
        words += ["--output", f"{name}={file}"]
    _run([build / "example", *words], place, environment)
    specs = {spec["name"]: spec for spec in about["outputs"]}
    return {n: np.fromfile(f, specs[n]["dtype"]).reshape(specs[n]["shape"]) for n, f in files.items()}
