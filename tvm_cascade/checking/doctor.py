"""`tvm-cascade doctor`: check the installed packages and programs, and a model's operators; name remedies."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_cascade import extras
from tvm_cascade.cache import package_version
from tvm_cascade.cores import CORES
from tvm_cascade.cores.families import ARM, RISCV
from tvm_cascade.cost.processor import Processor, kept
from tvm_cascade.cuda_toolkit import RUNTIME, driver_version, find_nvcc, loads_runtime, packaged_runtime
from tvm_cascade.errors import UnsupportedOperatorError
from tvm_cascade.schema.filled import filled
from tvm_cascade.schema.projects import Diagnosis, Installed, LeftFloat, ProcessorJson

if TYPE_CHECKING:
    from tvm_cascade.passes.float_remains import FloatRemain

_OLDEST_PYTHON = (3, 10)
_PACKAGES = (  # distribution, what for, required
    ("apache-tvm", "compiling networks", True),
    ("numpy", "compiling networks", True),
    ("scipy", "planning memory", True),
    ("xgboost", "learned cost models", True),
    ("tflite", "reading .tflite files", True),
    ("jinja2", "the page of --report", True),
    ("onnx", "reading .onnx files", False),
    ("torch", "reading .pt2 files", False),
    ("ai-edge-litert", "checking .tflite against the reference (--check)", False),
    ("onnxruntime", "checking and quantizing .onnx", False),
    ("torchao", "quantizing .pt2", False),
    ("ai-edge-quantizer", "quantizing .tflite", False),
    ("matplotlib", "--picture of stages and optimize", False),
    ("pillow", "folders of images as data", False),
    ("pyserial", "real boards: --port, --list, monitor", False),
)
_DRIVER = "install NVIDIA's driver (libcuda.so.1); stages run on the CPU without"
_TOOLKIT = f"{extras.remedy('nvidia-cuda-nvcc')}, or install the CUDA toolkit"
_TVM_HAS_CUDA = "import tvm; print(tvm.get_global_func('device_api.cuda', allow_missing=True) is not None)"
_TOOLS = (  # program, what for, remedy
    (ARM.gcc, "compile for Cortex-M", ARM.compiler_remedy),
    (ARM.qemu, "run on emulated Cortex-M boards", ARM.qemu_remedy),
    (RISCV.gcc, "compile for riscv32", RISCV.compiler_remedy),
    (RISCV.qemu, "run on the emulated riscv32 board", RISCV.qemu_remedy),
    ("gcc", "host builds under sanitizers", "apt-get install gcc (Debian, Ubuntu) or xcode-select --install (macOS)"),
    ("pyocd", "flash", "pip install pyocd"),
    ("openocd", "flash", "apt-get install openocd (Debian, Ubuntu) or brew install open-ocd (macOS)"),
    ("st-flash", "flash", "apt-get install stlink-tools (Debian, Ubuntu) or brew install stlink (macOS)"),
    (
        "cmake",
        "building an emitted folder without this program",
        "apt-get install cmake ninja-build or brew install cmake",
    ),
)


@dataclass(frozen=True, slots=True)
class Check:
    """The result for a single package, program or library. `remedy` is "" if nothing needs to be done."""

    name: str
    found: bool
    version: str  # "" where unknown or not found
    needed_for: str
    required: bool  # without it nothing works
    remedy: str = ""

    def to_dict(self) -> Installed:
        """Return the check as a JSON object."""
        return filled(Installed, self)

    def __str__(self) -> str:
        if self.found:
            return f"{self.name} {self.version}".rstrip()
        return f"{self.name}: {'missing' if self.required else 'not installed'} ({self.needed_for}): {self.remedy}"


@dataclass(frozen=True, slots=True)
class Doctor:
    """Results of all checks and, for a given model, the operators that cannot be compiled or stay float."""

    checks: tuple[Check, ...]
    unsupported: tuple[str, ...] = ()  # operators that cannot be imported
    left_float: tuple[FloatRemain, ...] = ()
    model: str | None = None
    float_bytes: int = 0  # largest tensor of a network that is float throughout, whose `left_float` is empty; else 0
    unread: bool = False  # the model was not read, because something required is missing
    remedy: str = ""  # what leaves the unsupported operators out
    processor: Processor | None = None  # of this machine, measured by `--measure` now or earlier

    @property
    def ok(self) -> bool:
        """Return True if everything required is installed and the model, if any, has no unsupported operator."""
        return healthy(self.checks) and not self.unsupported

    def to_dict(self) -> Diagnosis:
        """Return the JSON object of `tvm-cascade doctor --json`."""
        read = {
            "unsupported_operators": None if self.unread else self.unsupported,
            "left_float": None if self.unread else [filled(LeftFloat, one) for one in self.left_float],
        }
        checks = [check.to_dict() for check in self.checks]
        cpu = None if self.processor is None else filled(ProcessorJson, self.processor)
        return filled(Diagnosis, self, checks=checks, float_network=self.float_bytes > 0, processor=cpu, **read)

    def _answer(self) -> str:
        """Return the line on the checks' sum."""
        version = f"tvm-cascade {package_version('tvm-cascade') or ''}".rstrip()
        missing = [check.name for check in self.checks if check.required and not check.found]
        absent = sum(not check.found for check in self.checks if not check.required)
        if missing:
            return f"{version}: cannot work without {', '.join(missing)}"
        return f"{version}: everything that is required is installed" + (
            f"; {absent} optional ones are not" if absent else ""
        )

    def to_text(self) -> str:
        """Format the results: the conclusion, then a single line for each finding."""
        lines = [
            f"{'ok     ' if check.found else 'MISSING' if check.required else 'absent '} {check}"
            for check in self.checks
        ]
        if self.processor is not None:
            first, *others = self.processor.to_text().splitlines()
            lines += [f"cpu     {first}", *(f"        {line}" for line in others)]
        lines = [self._answer(), *lines]
        if self.model is None:
            return "\n".join(lines)
        if self.unread:
            return "\n".join([*lines, f"        {self.model} was not read: install what is missing first"])
        lines += [f"MISSING operator of {self.model}: {name}" for name in self.unsupported]
        lines += [f"        {self.remedy}"] if self.remedy else []
        lines += [f"float   {_left_float(one)}" for one in self.left_float]
        lines += [_in_all(self.left_float)] if len(self.left_float) > 1 else []
        if self.float_bytes:
            lines.append(_float_network(self.model, self.float_bytes))
        elif not self.unsupported and not self.left_float:
            lines.append(f"ok      {self.model}: every operator is supported")
        return "\n".join(lines)


def diagnose(model: str | Path | None = None) -> Doctor:
    """Check this machine, and list the operators of `model` that are unsupported or stay float.

    Raises `LoadError` if the model cannot be read for a reason besides unsupported operators, `GraphError` for an
    operator that can be imported but not compiled.
    """
    return replace(_diagnose(model), processor=kept())


def _diagnose(model: str | Path | None) -> Doctor:
    checks = check_all()
    if model is None:
        return Doctor(checks)
    if not healthy(checks):
        return Doctor(checks, model=str(model), unread=True)
    import tvm  # may itself be what is missing: not at the top

    from tvm_cascade.passes.extract_graph import extract_graph
    from tvm_cascade.passes.float_remains import float_remains
    from tvm_cascade.passes.lower_quantized import LowerQuantized, holds_integers
    from tvm_cascade.pipeline import load, told_with_cut

    missing, remedy = (), ""
    try:
        loaded = load(model)
        mod = loaded.mod
    except UnsupportedOperatorError as error:
        loaded, mod, missing, remedy = None, error.partial, error.described, error.remedy
    if not isinstance(mod, tvm.IRModule):
        return Doctor(checks, missing, (), str(model), remedy=remedy)
    lowered = tvm.transform.Sequential([LowerQuantized()])(mod)
    remains = float_remains(lowered)
    if loaded is not None:
        with told_with_cut(loaded):
            extract_graph(lowered)  # raises GraphError for operators that cannot be compiled
    if not holds_integers(mod):
        largest = max((one.bytes for one in remains), default=0)
        return Doctor(checks, missing, (), str(model), largest, remedy=remedy)
    return Doctor(checks, missing, remains, str(model), remedy=remedy)


def _left_float(one: FloatRemain) -> str:
    """Describe an operator of a quantized network that computes in floats, and the cost."""
    parts = [f"writes {_as_floats(one.bytes)}"]
    parts += [f"{one.macs} multiply-accumulates"] if one.macs else []
    parts += [f"{_as_floats(one.flash_bytes)} in flash"] if one.flash_bytes else []
    return f"{one.operator}: {one.reason}; {', '.join(parts)}, by float kernels"


def _as_floats(size: int) -> str:
    more = size - size // 4  # stored integers take a byte where floats take four
    return f"{size} bytes of floats, {more} more than as int8"


def _in_all(left: Sequence[FloatRemain]) -> str:
    slow = ", ".join(name for name, target in CORES.items() if not target.fpu)
    macs, flash = sum(one.macs for one in left), sum(one.flash_bytes for one in left)
    return (
        f"float   in all: {len(left)} operators, the largest tensor of {max(one.bytes for one in left)} bytes, "
        f"{macs} multiply-accumulates on floats, {flash} bytes of floats in flash; by software on {slow}"
    )


def _float_network(model: str, largest: int) -> str:
    fast = ", ".join(name for name, target in CORES.items() if target.fpu)
    slow = ", ".join(name for name, target in CORES.items() if not target.fpu)
    return (
        f"ok      {model}: a float network; it runs in float, by hardware on {fast}, by software on {slow}; "
        f"its largest tensor takes {largest} bytes, {largest // 4} if quantized to int8"
    )


def check_all() -> tuple[Check, ...]:
    """Run every check in a fixed order: Python, packages, programs, newlib, GPU tools."""
    packages = (check_package(*entry) for entry in _PACKAGES)
    tools = (check_tool(*entry) for entry in _TOOLS)
    return (_check_python(), *packages, *tools, check_newlib(), *check_cuda())


def healthy(checks: Sequence[Check]) -> bool:
    """Return True if every required check has passed."""
    return all(check.found for check in checks if check.required)


def check_package(name: str, needed_for: str, required: bool) -> Check:
    """Check that a Python distribution, or the same library for CPUs alone, is installed; imports nothing."""
    for distribution in (name, f"{name}-cpu"):
        with suppress(metadata.PackageNotFoundError):
            return Check(name, True, metadata.version(distribution), needed_for, required)
    return Check(name, False, "", needed_for, required, extras.remedy(name))


def check_tool(name: str, needed_for: str, remedy: str) -> Check:
    """Check that a program is on the path and starts."""
    path = shutil.which(name)
    if path is None:
        return Check(name, False, "", needed_for, False, remedy)
    first = (_output(path, "--version").splitlines() or [""])[0]
    if not first:
        return Check(name, False, "", needed_for, False, f"{path} does not start; reinstall it: {remedy}")
    match = re.search(r"\d+(?:\.\d+)+", first)
    return Check(name, True, match[0] if match else "", needed_for, False)


def check_newlib() -> Check:
    """Check that the cross compiler has a C library: Debian packages the two separately."""
    needed_for = "linking firmware"
    gcc = shutil.which(ARM.gcc)
    if gcc is not None and Path(_output(gcc, "-print-file-name=libc_nano.a").strip()).is_absolute():
        return Check("newlib", True, "", needed_for, False)
    return Check("newlib", False, "", needed_for, False, ARM.compiler_remedy)


def check_cuda() -> tuple[Check, ...]:
    """Check the tools for stages on a GPU: NVIDIA's driver, CUDA's runtime library, TVM's CUDA runtime, and a compiler."""
    what, version = "run stages on a GPU", driver_version()
    driver = Check("CUDA driver", version is not None, version or "", what, False, _DRIVER if version is None else "")
    loaded, packaged = loads_runtime(), packaged_runtime()
    remedy = f"add {packaged} to LD_LIBRARY_PATH" if packaged else _TOOLKIT
    library = Check("CUDA runtime", loaded, RUNTIME if loaded else "", what, False, "" if loaded else remedy)
    runs = driver.found and loaded and _output(sys.executable, "-c", _TVM_HAS_CUDA).strip() == "True"
    missing = (
        "the build of TVM has none" if driver.found and loaded else "needs NVIDIA's driver and CUDA's runtime library"
    )
    tvm = Check("TVM's CUDA runtime", runs, "", what, False, "" if runs else missing)
    return driver, library, tvm, _check_cuda_compiler()


def _check_cuda_compiler() -> Check:
    """Check for nvcc, on the path or packaged, else for nvrtc from cuda-bindings."""
    needed_for, nvcc = "compile stages for CUDA", find_nvcc()
    if nvcc is not None:
        return replace(check_tool(nvcc, needed_for, _TOOLKIT), name="nvcc")
    bindings = check_package("cuda-bindings", needed_for, False)
    return bindings if bindings.found else replace(bindings, name="nvcc", remedy=_TOOLKIT)


def _check_python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] >= _OLDEST_PYTHON:
        return Check("python", True, version, "everything", True)
    return Check("python", False, version, "everything", True, "install Python 3.10 to 3.13")


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
