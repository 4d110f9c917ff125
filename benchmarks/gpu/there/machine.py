"""Compiled programs on this machine's GPU, or on its CPU: TVM's runtime and its FFI alone, without `import tvm`."""

# The packed tvm_ffi is found at run time.
# pyright: reportMissingImports=false
from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent.parent  # the pack
CPU, CUDA = "cpu", "cuda"
_LEAST_RUNS = 25  # that are timed, however long they take
_POOLED = 2  # an allocator of the virtual machine
_COUNTS = ("allocations", "launches", "captures", "captured_kernels", "replays", "copies")


def find_gpu() -> str | None:
    """None where a GPU can be used, else one sentence that says what is missing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no GPU here: NVIDIA's driver (libcuda.so.1) is not installed"
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "no GPU here: NVIDIA's driver lists no device (is CUDA_VISIBLE_DEVICES empty?)"
    return None


def cuda_runtime() -> str:
    """The path or name of CUDA's runtime library: the machine's, PyTorch's, or the packed one."""
    places = [Path(p) / "nvidia" for p in sys.path if p]
    found = [str(f) for p in places if p.is_dir() for f in sorted(p.glob("*/lib/libcudart.so.13"))]
    for name in ("libcudart.so.13", "/usr/local/cuda/lib64/libcudart.so.13", *found):
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            return name
        except OSError:
            continue
    packed = HERE / "lib" / "libcudart.so.13"
    if not packed.is_file():
        raise SystemExit("no CUDA runtime: libcudart.so.13 is neither installed, nor in PyTorch, nor in this folder")
    ctypes.CDLL(str(packed), mode=ctypes.RTLD_GLOBAL)
    return str(packed)


class Machine:
    """The device `cuda` or `cpu`; with `stand_in`, CUDA is a library that counts what is asked of it."""

    def __init__(self, device: str, stand_in: bool = False) -> None:
        os.environ["TVM_FFI_DISABLE_TORCH_C_DLPACK"] = "1"
        sys.path.insert(0, str(HERE / "python"))
        self.stand_in: Any = None
        if stand_in:
            self.stand_in = ctypes.CDLL(str(HERE / "stand_in" / "libcudart.so.13"), mode=ctypes.RTLD_GLOBAL)
            self.stand_in.stub_count.restype = ctypes.c_int64
            ctypes.CDLL(str(HERE / "stand_in" / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
        elif device == CUDA:
            cuda_runtime()
        import tvm_ffi

        self._ffi = tvm_ffi
        ctypes.CDLL(str(HERE / "lib" / "libtvm_runtime.so"), mode=ctypes.RTLD_GLOBAL)
        if device == CUDA or stand_in:
            ctypes.CDLL(str(HERE / "lib" / "libtvm_runtime_cuda.so"), mode=ctypes.RTLD_GLOBAL)
        self.device = tvm_ffi.device(device, 0)
        self._alloc = self.function("runtime.TVMTensorAllocWithScope")
        self._sync = self.function("runtime.Device_StreamSync")

    def function(self, name: str) -> Any:
        """A global function of TVM's runtime."""
        return self._ffi.get_global_func(name)

    def load(self, library: Path) -> Any:
        """A compiled library, as a module."""
        return self._ffi.load_module(str(library))

    def tensor(self, array: np.ndarray) -> Any:
        """A copy on the device."""
        array = np.ascontiguousarray(array)
        made = self._alloc(self._ffi.Shape(array.shape), str(array.dtype), self.device, None)
        self.function("runtime.TVMTensorCopyFromBytes")(made, array.ctypes.data_as(ctypes.c_void_p), array.nbytes)
        return made

    def empty(self, shape: Sequence[int], dtype: str, _device: Any) -> Any:
        """Memory on the device."""
        return self._alloc(self._ffi.Shape(shape), dtype, self.device, None)

    def array(self, tensor: Any) -> np.ndarray:
        """A copy as numpy's array."""
        array = np.empty(tuple(tensor.shape), str(tensor.dtype))
        copy = self.function("runtime.TVMTensorCopyToBytes")
        copy(tensor, array.ctypes.data_as(ctypes.c_void_p), array.nbytes)
        return array

    def sync(self) -> None:
        """Wait for the device."""
        self._sync(self.device, 0)

    def counts(self) -> dict[str, int]:
        """What the stand-in was asked for so far; nothing on a real device."""
        if self.stand_in is None:
            return {}
        return {name: int(self.stand_in.stub_count(k)) for k, name in enumerate(_COUNTS)}


class Program:
    """One function of a compiled library, in a virtual machine of its own."""

    def __init__(self, machine: Machine, library: Any, function: str) -> None:
        self.machine = machine
        self._vm = library["vm_load_executable"]()
        devices = [machine.device] if machine.device.type == CPU else [machine.device, machine._ffi.device(CPU, 0)]
        setup = [x for d in devices for x in (d.dlpack_device_type(), d.index, _POOLED)]
        self._vm["vm_initialization"](*setup)
        self._function = self._vm[function]

    def launch(self) -> None:
        """Run a function without inputs, and neither wait for it nor read what it computes."""
        self._function()

    def run(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """Outputs, in order."""
        result = self._function(*(self.machine.tensor(x) for x in inputs))
        values = [result] if hasattr(result, "dtype") else list(result)
        return [self.machine.array(v) for v in values]

    def times_ms(
        self,
        inputs: Sequence[np.ndarray],
        repeats: int,
        warm_up: int = 3,
        seconds: float = 3.0,
        between: Callable[[], Any] | None = None,
    ) -> list[float]:
        """Wall-clock milliseconds of `repeats` runs, each waited for; of 25 at least where they take longer than `seconds`.
        `between` is called before each of them, and waited for."""
        held = [self.machine.tensor(x) for x in inputs]
        for _ in range(warm_up):
            self._function(*held)
        self.machine.sync()
        times: list[float] = []
        while len(times) < repeats and (len(times) < _LEAST_RUNS or sum(times) < seconds * 1e3):
            if between is not None:
                between()
                self.machine.sync()
            start = time.perf_counter()
            self._function(*held)
            self.machine.sync()
            times.append((time.perf_counter() - start) * 1e3)
        return times
