"""Cut model files before anything else reads the contents: bytes in, a smaller file's bytes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from tvm_cascade import extras
from tvm_cascade.errors import CascadeError, LoadError
from tvm_cascade.fixed_inputs import FixedInput
from tvm_cascade.importers.cut import FileGraph
from tvm_cascade.importers.onnx.file import read_model
from tvm_cascade.importers.tflite import cut as tflite_cut
from tvm_cascade.importers.tflite.model import MalformedModel, open_model
from tvm_cascade.importers.torch import cut as torch_cut
from tvm_cascade.messages import last_line, printable
from tvm_cascade.plain_files import readable
from tvm_cascade.tensor_spec import Cut

_Result = TypeVar("_Result")


def cut_data(path: Path, data: bytes, cut: Cut) -> bytes:
    """Return the contents of a file after a cut; `data` itself without a cut.

    Raises
    ------
    UsageError
        For a tensor that the file does not have, with similar names.
    LoadError
        For a file that is no model.
    MissingToolError
        For `.onnx` without the `onnx` package, `.pt2` without `torch`.
    """
    return _handled(path, data, _format(path).cut, cut) if cut else data


def fixed_in_file(
    path: Path, data: bytes, fixed: Sequence[FixedInput], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[bytes, tuple[FixedInput, ...]]:
    """Return an ONNX file's contents with some inputs made constant, and these inputs; other formats unchanged, with no
    inputs.

    Raises
    ------
    UsageError
        For an input that the file does not have, and a value that it cannot have.
    """
    if not fixed or path.suffix.lower() != ".onnx":
        return data, ()
    extras.need("onnx")
    from tvm_cascade.importers.onnx.fixed import fix_onnx

    return _handled(path, data, partial(fix_onnx, fixed=fixed, input_shapes=shapes))


def file_graph(path: Path, data: bytes) -> FileGraph:
    """Read a file's graph, by tensor names. Raises the errors of `cut_data`."""
    return _handled(path, data, _format(path).graph)


def _handled(path: Path, data: bytes, function: Callable[..., _Result], *more: Cut) -> _Result:
    """Call `function(path, data, *more)`, and turn its errors into errors for users."""
    try:
        return function(path, data, *more)
    except CascadeError:
        raise
    except MalformedModel as error:
        raise LoadError(path, printable(str(error))) from error
    except Exception as error:  # protobuf and zip raise types of their own, by version
        raise LoadError(path, f"not a model of its format, or truncated: {last_line(error)}") from error


@contextmanager
def cut_copy(path: Path, cut: Cut) -> Iterator[Path]:
    """Yield the path to a temporary, cut copy of the file `path`; yield `path` without a cut."""
    if not cut:
        yield path
        return
    try:
        data = readable(path).read_bytes()
    except OSError as error:
        raise LoadError(path, error.strerror or str(error)) from error
    with TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(cut_data(path, data, cut))
        yield copy


def _tflite_graph(_path: Path, data: bytes) -> FileGraph:
    return tflite_cut.graph_of(open_model(data))


def _cut_tflite(_path: Path, data: bytes, cut: Cut) -> bytes:
    return tflite_cut.cut_tflite(data, cut)


def _onnx_graph(path: Path, data: bytes) -> FileGraph:
    model = read_model(path, data)
    from tvm_cascade.importers.onnx.cut import graph_of
    from tvm_cascade.importers.onnx.graph import in_order

    return graph_of(in_order(path, model))


def _cut_onnx(path: Path, data: bytes, cut: Cut) -> bytes:
    model = read_model(path, data)
    from tvm_cascade.importers.onnx.cut import cut_onnx

    return cut_onnx(model, cut).SerializeToString()


def _torch_graph(_path: Path, data: bytes) -> FileGraph:
    return torch_cut.graph_of(torch_cut.open_program(data))


def _cut_torch(_path: Path, data: bytes, cut: Cut) -> bytes:
    return torch_cut.cut_torch(data, cut)


class _Format(NamedTuple):
    """The functions for a single file format: read the graph, cut the contents."""

    graph: Callable[[Path, bytes], FileGraph]
    cut: Callable[[Path, bytes, Cut], bytes]


_FORMATS: Mapping[str, _Format] = MappingProxyType(
    {".onnx": _Format(_onnx_graph, _cut_onnx), ".pt2": _Format(_torch_graph, _cut_torch)}
)


def _format(path: Path) -> _Format:
    return _FORMATS.get(path.suffix.lower(), _Format(_tflite_graph, _cut_tflite))
