"""Cuts of model files, before anything else reads them: a file's contents in, the contents of a smaller file out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from tvm_cascade.errors import CascadeError, LoadError, MissingToolError
from tvm_cascade.importers.tflite_cut import cut_tflite
from tvm_cascade.importers.tflite_model import MalformedModel
from tvm_cascade.importers.torch_cut import cut_torch
from tvm_cascade.messages import last_line, printable
from tvm_cascade.tensor_spec import Cut


def cut_data(path: Path, data: bytes, cut: Cut) -> bytes:
    """The contents of a file of the format of `data` with what a cut leaves; `data` itself where nothing is cut.

    Raises
    ------
    UsageError
        For a tensor that the file does not have, with similar names.
    LoadError
        For a file that is no model.
    MissingToolError
        For `.onnx` without the `onnx` package, `.pt2` without `torch`.
    """
    if not cut:
        return data
    cutter = _CUTTERS.get(path.suffix.lower(), _tflite)
    try:
        return cutter(path, data, cut)
    except CascadeError:
        raise
    except MalformedModel as error:
        raise LoadError(path, printable(str(error))) from error
    except Exception as error:  # protobuf and zip raise types of their own, by version
        raise LoadError(path, f"not a model of its format, or truncated: {last_line(error)}") from error


@contextmanager
def cut_copy(path: Path, cut: Cut) -> Iterator[Path]:
    """The path of a copy of the file `path` with what a cut leaves, while the context lasts; `path` where nothing is cut."""
    if not cut:
        yield path
        return
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LoadError(path, error.strerror or str(error)) from error
    with TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(cut_data(path, data, cut))
        yield copy


def _tflite(_path: Path, data: bytes, cut: Cut) -> bytes:
    return cut_tflite(data, cut)


def _onnx(path: Path, data: bytes, cut: Cut) -> bytes:
    try:
        import onnx
        from onnx.external_data_helper import load_external_data_for_model

        from tvm_cascade.importers.onnx_cut import cut_onnx
    except ImportError as error:
        raise MissingToolError("onnx", "pip install 'tvm_cascade[onnx]'") from error
    model = onnx.load_model_from_string(data)
    load_external_data_for_model(model, str(path.parent))
    return cut_onnx(model, cut).SerializeToString()


def _torch(_path: Path, data: bytes, cut: Cut) -> bytes:
    return cut_torch(data, cut)


_CUTTERS: Mapping[str, Callable[[Path, bytes, Cut], bytes]] = MappingProxyType({".onnx": _onnx, ".pt2": _torch})
