"""The places of NVIDIA's programs and libraries: on this machine, or in packages from PyPI. Loads no TVM."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
from pathlib import Path

RUNTIME = "libcudart.so.13"  # CUDA's runtime library, of the version that TVM's CUDA runtime is linked against


def packaged_toolkit() -> Path | None:
    """Return the folder of NVIDIA's CUDA 13 packages from PyPI (extra `cuda`: nvcc and libcudart); None if not
    installed.
    """
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) / "cu13" for place in (spec.submodule_search_locations or ())] if spec else []
    return next((place for place in places if place.is_dir()), None)


def find_nvcc() -> str | None:
    """Find nvcc on the PATH, else in the extra `cuda`; None if neither is installed."""
    packaged = packaged_toolkit()
    return shutil.which("nvcc") or (shutil.which(str(packaged / "bin" / "nvcc")) if packaged else None)


def driver_version() -> str | None:
    """Return the CUDA version supported by NVIDIA's driver (libcuda.so.1), such as "13.0"; None without a driver.

    Return "" if the driver does not report a version.
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
    """Return the folder with CUDA's runtime library in NVIDIA's packages from PyPI; None if not installed."""
    toolkit = packaged_toolkit()
    return toolkit / "lib" if toolkit and (toolkit / "lib" / RUNTIME).exists() else None


def loads_runtime() -> bool:
    """Test whether the dynamic linker finds CUDA's runtime library, as TVM needs it."""
    try:
        ctypes.CDLL(RUNTIME)
    except OSError:
        return False
    return True
