"""Packages needed only by some commands, and the extra for each."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from tvm_cascade.errors import MissingToolError

_EXTRAS = {  # package -> (its module, the extra that installs it)
    "ai-edge-litert": ("ai_edge_litert", "check"),
    "ai-edge-quantizer": ("ai_edge_quantizer", "ai-edge"),
    "matplotlib": ("matplotlib", "plot"),
    "nvidia-cuda-nvcc": ("nvidia", "cuda"),
    "onnx": ("onnx", "onnx"),
    "onnxruntime": ("onnxruntime", "check"),
    "onnxscript": ("onnxscript", "torch"),
    "pillow": ("PIL", "images"),
    "pyserial": ("serial", "board"),
    "torch": ("torch", "torch"),
    "torchao": ("torchao", "torchao"),
}
_WITH_PYTORCH = ("torch", "torchao")  # extras that install PyTorch


def remedy(package: str) -> str:
    """Return the command for installing a package; for PyTorch also that of its CPU build, a third of the size."""
    if package not in _EXTRAS:
        return f"pip install {package}"
    distribution = f"'tvm-cascade[{_EXTRAS[package][1]}]'"
    if _EXTRAS[package][1] not in _WITH_PYTORCH:
        return f"pip install {distribution}"
    return f"pip install {distribution}, or without CUDA: uv pip install --torch-backend=cpu {distribution}"


def need(package: str) -> None:
    """Raise `MissingToolError` if `package` is not installed, before any long work. Imports nothing."""
    if importlib.util.find_spec(_EXTRAS[package][0]) is None:
        raise MissingToolError(package, remedy(package))


def load(package: str, submodule: str = "") -> ModuleType:
    """Import a package's module, or a submodule such as ".figure"; raises `MissingToolError` without the package."""
    try:
        return importlib.import_module(_EXTRAS[package][0] + submodule)
    except ImportError:
        raise MissingToolError(package, remedy(package)) from None
