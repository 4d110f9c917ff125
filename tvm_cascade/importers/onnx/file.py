"""Read `.onnx` files: the model with all its tensors, external data included.

External data lies in files beside the model, for any working directory. Nothing outside the model's folder is read: a
file from strangers could name any other file on the machine, and make its contents weights.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from tvm_cascade import extras
from tvm_cascade.errors import LoadError, MissingToolError
from tvm_cascade.messages import last_line, printable

MAX_EXTERNAL_BYTES = 1 << 30  # as much as a model's own file may have


def read_model(path: Path, data: bytes | None = None) -> Any:
    """Return the model in the file `path`, or in its contents `data`, without references to external data.

    Raises
    ------
    MissingToolError
        Without the `onnx` package.
    LoadError
        For what is no model, and for external data that is missing, too short or outside the model's folder.
    """
    try:
        import onnx
        from onnx.external_data_helper import _get_all_tensors, uses_external_data
    except ImportError as error:
        raise MissingToolError("onnx", extras.remedy("onnx")) from error
    try:
        model = onnx.load_model_from_string(path.read_bytes() if data is None else data)
    except OSError as error:
        raise LoadError(path, error.strerror or str(error)) from error
    except Exception as error:  # protobuf raises types of its own, by version
        raise LoadError(path, "not an ONNX model, or truncated") from error
    total = 0
    for tensor in _get_all_tensors(model):
        if uses_external_data(tensor):
            _fill(path, tensor)
            total += len(tensor.raw_data)
            if total > MAX_EXTERNAL_BYTES:
                raise LoadError(path, f"has more than {MAX_EXTERNAL_BYTES} bytes of external data")
    return model


def external_files(path: Path) -> tuple[Path, ...]:
    """List the files beside an `.onnx` file that hold its external data. Raises as `read_model`."""
    import onnx
    from onnx.external_data_helper import ExternalDataInfo, _get_all_tensors, uses_external_data

    tensors = _get_all_tensors(onnx.load_model_from_string(path.read_bytes()))
    told = [(t.name, ExternalDataInfo(t).location) for t in tensors if uses_external_data(t)]
    return tuple(sorted({_beside(path, printable(name), str(location)) for name, location in told}))


def _fill(path: Path, tensor: Any) -> None:
    """Store the external data of `tensor` in the tensor itself."""
    from onnx.external_data_helper import ExternalDataInfo

    name = printable(tensor.name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of keys that mean nothing
            info = ExternalDataInfo(tensor)
    except ValueError as error:
        raise LoadError(path, f"the external data of {name} is malformed: {last_line(error)}") from error
    source = _beside(path, name, str(info.location))
    start = info.offset or 0
    try:
        size = source.stat().st_size
        length = size - start if info.length is None else info.length
        if not 0 <= length <= min(size - start, MAX_EXTERNAL_BYTES):
            raise LoadError(path, f"{source} is too short for the external data of {name}, or too long to be read")
        with source.open("rb") as stream:
            stream.seek(start)
            content = stream.read(length)
    except OSError as error:
        raise LoadError(source, f"the external data of {path}: {error.strerror or error}") from error
    tensor.raw_data = content
    tensor.ClearField("data_location")
    del tensor.external_data[:]


def _beside(path: Path, name: str, location: str) -> Path:
    """Return the file at `location` in the folder of the model `path`; for a link also in the folder of the model
    itself.

    Raises `LoadError` unless that is a plain file inside the folder.
    """
    folders = list(dict.fromkeys([path.parent, Path(os.path.realpath(path)).parent]))
    real = [Path(os.path.realpath(folder)) for folder in folders]
    outside = (
        f"the external data of {name} lies outside of the model's folder: {printable(location) or 'without a name'}"
    )
    remedy = "move it beside the model, or store the weights in the model (onnx.save)"
    if not location or "\0" in location or os.path.isabs(location) or ".." in Path(location).parts:
        raise LoadError(path, outside, remedy)
    candidates = [folder / location for folder in folders]
    source = next((c for c in candidates if os.path.lexists(c)), candidates[0])
    if not any(Path(os.path.realpath(source)).is_relative_to(folder) for folder in real):
        raise LoadError(path, outside, remedy)
    if not source.exists():
        raise LoadError(
            path, f"the external data of {name} is missing: {printable(location)}", "copy it beside the model"
        )
    if not source.is_file():
        raise LoadError(path, f"the external data of {name} is no plain file: {printable(location)}")
    return source
