"""Model files to Relax modules with static shapes: the way into the pipeline.

Defects of Relax's importers are corrected in `tvm_cascade/importers/`, a single module for each file format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import tvm

from tvm_cascade import checks
from tvm_cascade.errors import CascadeError, LoadError, UsageError
from tvm_cascade.fixed_inputs import FixedInput
from tvm_cascade.importers.cut import FileGraph, Remedy, cut_out, until_option
from tvm_cascade.importers.cut_by_trial import until_by_trial
from tvm_cascade.importers.cut_file import cut_copy, cut_data, file_graph, fixed_in_file
from tvm_cascade.importers.fixed import with_fixed
from tvm_cascade.importers.index_inputs import with_index_inputs
from tvm_cascade.importers.input_domains import with_input_domains
from tvm_cascade.importers.interface import attach, has_interface, io_spec
from tvm_cascade.importers.kernel_layout import planned_in_kernel_layout
from tvm_cascade.importers.limits import check_types
from tvm_cascade.importers.shorter_end import end_of_work
from tvm_cascade.importers.states import with_pairs
from tvm_cascade.importers.stored_io import storable_inputs, store_io, with_scales
from tvm_cascade.plain_files import readable
from tvm_cascade.tensor_spec import Cut, IoSpec, TensorSpec

if TYPE_CHECKING:
    from tvm_cascade.importers.sliding import Frame

__all__ = [
    "IoSpec", "TensorSpec", "has_interface", "io_spec", "load", "load_frame", "planned_in_kernel_layout", "storable_inputs",
    "until_option",
]  # fmt: skip

MAX_FILE_BYTES = 1 << 30

_Shapes = Mapping[str, tuple[int, ...]]
_Loader = Callable[[Path, bytes, _Shapes, bool, Sequence[FixedInput], bool, str], tvm.IRModule]
# An importer of a format is imported with the first file of it.


def _tflite(
    path: Path,
    data: bytes,
    input_shapes: _Shapes,
    stateless: bool,
    fixed: Sequence[FixedInput],
    unrolled: bool,
    like: str,
) -> tvm.IRModule:
    from tvm_cascade.importers.tflite.load import load_tflite

    return load_tflite(path, data, input_shapes, stateless, fixed, unrolled, like)


def _onnx(
    path: Path,
    data: bytes,
    input_shapes: _Shapes,
    _stateless: bool,
    _fixed: Sequence[FixedInput],
    unrolled: bool,
    _like: str,
) -> tvm.IRModule:
    from tvm_cascade.importers.onnx.load import load_onnx

    return load_onnx(path, data, input_shapes, unrolled)


def _torch(path: Path, data: bytes, input_shapes: _Shapes, *_: object) -> tvm.IRModule:
    from tvm_cascade.importers.torch.load import load_torch

    return load_torch(path, data, input_shapes)


_LOADERS: Mapping[str, _Loader] = MappingProxyType(
    {".tflite": _tflite, ".lite": _tflite, ".onnx": _onnx, ".pt2": _torch}
)


def load(
    path: str | PathLike[str],
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    stored_io: bool = False,
    until: str | Sequence[str] = (),
    from_: str | Sequence[str] = (),
    state: Mapping[str, str] | None = None,
    stateless: bool = False,
    input_value: Mapping[str, object] | None = None,
    unrolled: bool = False,
    like: str | None = None,
) -> tvm.IRModule:
    """Read the model in the file `path` into a Relax module.

    Parameters
    ----------
    path : path
        A `.tflite` file, an `.onnx` file where the `onnx` extra is installed, or a `.pt2` file (torch.export) where
        `torch` is.
    input_shapes : mapping of name to shape, optional
        Fixes the symbolic sizes of inputs.
    stored_io : bool
        Float inputs that are only quantized, and outputs that are only dequantized, become stored integers.
    until, from_ : name or names, optional
        Tensors in the file (`.onnx`: values, `.pt2`: nodes) that become the outputs, and tensors that become inputs: only
        the operators between are read. Of a quantized network they are its stored integers, with scale and zero point.
    state : mapping of input to output, optional
        What the output returns is what the input takes in the next call: both become a state of the network.
    stateless : bool
        Recurrent layers of a `.tflite` file begin anew in every call; without it they keep their states, as LiteRT does.
    input_value : mapping of input to value, optional
        Inputs that always have the same value: a number, an array or the path of a `.npy` file. They are folded into the network.
    unrolled : bool
        Every step of a Loop, Scan or WHILE is written out, as rewrites and schedules of stages want it; without it such a node
        is a single operator that runs its body in every step.
    like : "tflm", optional
        Fully connected layers of a `.tflite` file are rounded twice, as in TensorFlow Lite Micro; LiteRT rounds them once.

    Returns
    -------
    IRModule
        Its `main` computes the model. Quantized operators are islands, operators of real numbers between stored integers
        (`passes.islands`), for `passes.LowerQuantized`; `io_spec` reads names, types and quantization of inputs and outputs
        back from it.

    Raises
    ------
    UnsupportedOperatorError
        For operators that cannot be imported; names them and what can.
    LoadError
        For a file that is missing, truncated or no model.
    UsageError
        For an input or tensor that the model does not have, or a shape that contradicts it; with `stored_io` where no
        input or output can be stored integers.
    MissingToolError
        For `.onnx` without the `onnx` package, `.pt2` without `torch`.
    """
    path = Path(path)
    data, cut = _read(path), Cut(checks.names("until", until), checks.names("from_", from_))
    loader = _LOADERS.get(path.suffix.lower()) or _by_content(path, data)
    fixed, shapes = checks.input_values("input_value", input_value), dict(input_shapes or {})
    data, known = fixed_in_file(path, data, fixed, shapes)
    shapes = {name: shape for name, shape in shapes.items() if name not in {f.name for f in known}}
    if like and loader is not _tflite:
        raise UsageError(f"--like {like} is about .tflite files, and {path.name} is none: leave it out")
    mod = loader(path, cut_data(path, data, cut), shapes, stateless, fixed, unrolled, like or "")
    check_types(path, mod)
    mod = with_fixed(attach(mod, replace(io_spec(mod), cut=cut)), () if known else fixed, known)
    mod = with_input_domains(with_index_inputs(with_scales(mod)))
    mod = with_pairs(mod, checks.pairs("state", state))
    return store_io(mod) if stored_io else mod


def wide_inputs(path: Path) -> frozenset[str]:
    """Return the names of an ONNX file's int64 inputs; a loaded module takes these indices as int32. Empty for other
    formats.
    """
    if path.suffix != ".onnx":
        return frozenset()
    from tvm_cascade.importers.onnx.graph import wide_inputs as of_onnx

    return of_onnx(path)


def load_frame(mod: tvm.IRModule, hop: int, most_state: int | None = None, axis: int = 1) -> Frame:
    """Load the network for one frame (`importers.sliding.load_frame`). The modules are imported only for such networks."""
    from tvm_cascade.importers import sliding

    return sliding.load_frame(mod, hop, most_state, axis)


def cut_in_front(
    path: str | PathLike[str],
    input_shapes: Mapping[str, tuple[int, ...]] | None,
    cut: Cut,
    compiles: Callable[[tvm.IRModule], bool],
) -> Remedy:
    """Find the cut before the operators that can be read but not compiled, in a file already restricted to `cut`.

    `compiles` tests a part of the file. Return a remedy without text if no cut helps.
    """
    with _parts(Path(path), input_shapes, cut) as (graph, part):

        def try_until(names: Sequence[str]) -> bool:
            try:
                return compiles(part(names))
            except CascadeError:
                return False

        return until_by_trial(graph, try_until)


def cut_behind_work(
    path: str | PathLike[str],
    input_shapes: Mapping[str, tuple[int, ...]] | None,
    cut: Cut,
    lacks_work: Callable[[tvm.IRModule], bool],
) -> tuple[str, ...]:
    """Find the tensors at which a file, already restricted to `cut`, may end so that the host does the rest
    (`importers.shorter_end`).

    `lacks_work` tells whether a part omits some of the file's work. Return () if there are none. Raises the errors of
    `load`.
    """
    with _parts(Path(path), input_shapes, cut) as (graph, part):

        def sizes(names: Sequence[str]) -> Mapping[str, int]:
            try:
                return {spec.name: spec.bytes for spec in io_spec(part(names)).outputs}
            except CascadeError:
                return {}

        return end_of_work(graph, lambda names: lacks_work(part(names)), sizes)


@contextmanager
def _parts(
    path: Path, input_shapes: Mapping[str, tuple[int, ...]] | None, cut: Cut
) -> Iterator[tuple[FileGraph, Callable[[Sequence[str]], tvm.IRModule]]]:
    """Yield the graph of a file restricted to `cut`, and a function that loads the part ending at named tensors."""
    with cut_copy(path, cut) as copy:
        graph = file_graph(copy, _read(copy))

        def part(names: Sequence[str]) -> tvm.IRModule:
            inputs = cut_out(graph, Cut(tuple(names))).inputs
            return load(copy, {k: v for k, v in (input_shapes or {}).items() if k in inputs}, until=names)

        yield graph, part


_TO_ONNX = (
    'torch.onnx.export(model, (example,), "model.onnx"), or by '
    'torch.export.save(torch.export.export(model, (example,)), "model.pt2")'
)
_TO_TFLITE = 'open("model.tflite", "wb").write(tf.lite.TFLiteConverter.{}.convert())'
_CONVERTED = {  # by what a file of another tool ends in: what it is, and the call that makes one that is read here
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".safetensors"), ("a checkpoint of PyTorch", _TO_ONNX)),
    **dict.fromkeys((".keras", ".h5", ".hdf5"), ("a model of Keras", _TO_TFLITE.format("from_keras_model(model)"))),
    ".pb": ("a graph of TensorFlow", _TO_TFLITE.format('from_saved_model("FOLDER")')),
}


def _read(path: Path) -> bytes:
    try:
        if path.is_dir():
            if (path / "saved_model.pb").exists():
                call = _TO_TFLITE.format(f'from_saved_model("{path}")')
                raise LoadError(path, "is a SavedModel of TensorFlow, which becomes a file that is read here by", call)
            raise LoadError(path, "is a directory, not a model file")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise LoadError(path, f"is larger than {MAX_FILE_BYTES} bytes")
        data = readable(path).read_bytes()
    except OSError as error:
        raise LoadError(path, error.strerror or str(error)) from error
    if not data:
        raise LoadError(path, "is empty")
    return data


def _by_content(path: Path, data: bytes) -> _Loader:
    if data[4:8] == b"TFL3":
        return _tflite
    supported = f"supported: {', '.join(_LOADERS)}"
    if path.suffix.lower() in _CONVERTED:
        what, call = _CONVERTED[path.suffix.lower()]
        raise LoadError(path, f"unknown format; {supported}; {what} becomes one of these by", call)
    raise LoadError(path, f"unknown format; {supported}")
