"""Where NVIDIA's programs and libraries are: on this machine, or in its packages from PyPI. Loads no TVM."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
from pathlib import Path

RUNTIME = "libcudart.so.13"  # CUDA's runtime library, of the version that TVM's CUDA runtime is linked against


def packaged_toolkit() -> Path | None:
    """The folder of NVIDIA's packages of CUDA 13 from PyPI (the extra `cuda`: nvcc and libcudart), where they are installed."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) / "cu13" for place in (spec.submodule_search_locations or ())] if spec else []
    return next((place for place in places if place.is_dir()), None)


def find_nvcc() -> str | None:
    """The path of nvcc: that on the PATH, else that of the extra `cuda`; None where neither is installed."""
    packaged = packaged_toolkit()
    return shutil.which("nvcc") or (shutil.which(str(packaged / "bin" / "nvcc")) if packaged else None)


def driver_version() -> str | None:
    """The version of CUDA that NVIDIA's driver (libcuda.so.1) supports, such as "13.0"; None without a driver.

    "" is a driver that does not tell its version.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int(0)
    if driver.cuDriverGetVersion(ctypes.byref(version)) or not version.value:
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def packaged_runtime() -> Path | None:
    """The folder of CUDA's runtime library among NVIDIA's packages from PyPI; None where it is not installed."""
    toolkit = packaged_toolkit()
    return toolkit / "lib" if toolkit and (toolkit / "lib" / RUNTIME).exists() else None


def loads_runtime() -> bool:
    """Whether CUDA's runtime library is found where TVM looks for it: in the folders of the dynamic linker."""
    try:
        ctypes.CDLL(RUNTIME)
    except OSError:
        return False
    return True
