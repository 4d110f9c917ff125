"""The needs of `validate` for references (`checking.reference`)."""

from __future__ import annotations

from pathlib import Path

from tvm_cascade import extras
from tvm_cascade.errors import UsageError

_NEEDS = {".tflite": ("ai-edge-litert",), ".onnx": ("onnx", "onnxruntime"), ".pt2": ("torch",)}


def require_reference(path: Path) -> None:
    """Raise `MissingToolError` if a file's reference is not installed, `UsageError` for an unknown suffix."""
    if path.suffix not in _NEEDS:
        raise UsageError(f"validate takes .tflite, .onnx and .pt2 files, not {path.name}")
    for package in _NEEDS[path.suffix]:
        extras.need(package)
