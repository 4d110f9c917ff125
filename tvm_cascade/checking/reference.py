"""Reference outputs of a model (`run --check`, `validate`): by LiteRT's reference kernels for `.tflite` (the `test` extra), ONNX
Runtime or ONNX's evaluator for `.onnx` (`checking.onnx_reference`), torch for `.pt2`.

The last two compute quantized networks in floats and round after every operator; kernels add and rescale integers.
Where sums of floats lie next to a tie, `checking.doubles` says which neighbour is right.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tvm_cascade import extras
from tvm_cascade.checking.litert_defects import doubts, object_tree, packed, repaired
from tvm_cascade.checking.onnx_reference import ONNX_FLOATS, OnnxReference, read_onnx
from tvm_cascade.checking.sensitivity import read_program, run_exported
from tvm_cascade.errors import LoadError, MissingToolError, UsageError
from tvm_cascade.importers.torch.archive import open_program
from tvm_cascade.messages import last_line
from tvm_cascade.plain_files import readable
from tvm_cascade.tensor_spec import unique_names

Scales = Mapping[str, tuple[float | None, int | None]]  # scale and zero point by name
Arrays = Mapping[str, np.ndarray]


class Reference(Protocol):
    """A reference for a single file, opened once; raises as `open_reference` does."""

    @property
    def by(self) -> str:
        """Return the computing program's name."""
        ...

    @property
    def note(self) -> str:
        """Return the reason for not using the preferred reference, the repairs, and the doubts; "" if there is nothing
        to say.
        """
        ...

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Run an inference and return outputs by name; buffers and variables keep the values left by the previous
        inference.
        """
        ...

    def anew(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Run an inference from the initial buffers and variables, and return outputs by name."""
        ...


@dataclass(frozen=True)
class Expected:
    """Reference outputs of an inference, named as in the model."""

    outputs: Arrays
    by: str = ""  # what computed them
    note: str = ""  # `Reference.note`


def open_reference(path: Path, inputs: Arrays, scales: Scales | None = None, like: str = "") -> Reference:
    """Open the reference for the file's suffix.

    If the model takes floats, stored integers are dequantized by their `scales` first; `inputs`, the first inputs, give
    the shapes left open by the file. A `.tflite` file is computed with the rounding of the library `like`; empty: LiteRT's.

    Raises `MissingToolError` without ai-edge-litert (or onnx, or torch), `UsageError` for an unknown suffix and for
    inputs that do not match the model, `LoadError` for a file that is damaged or refused by the reference.
    """
    if path.suffix == ".tflite":
        return LiteRtReference(path, inputs, scales or {}, like)
    if path.suffix == ".onnx":
        return _OnnxReference(path, scales or {})
    if path.suffix == ".pt2":
        return _TorchReference(path, scales or {})
    raise UsageError(f"--check knows .tflite, .onnx and .pt2 files, not {path.name}")


def reference_outputs(path: Path, inputs: Arrays, scales: Scales | None = None) -> Expected:
    """Return the outputs of an inference. Raises as `open_reference`."""
    reference = open_reference(path, inputs, scales)
    outputs = reference.run(inputs)
    return Expected(outputs, reference.by, reference.note)


class _OnnxReference:
    """ONNX Runtime or ONNX's evaluator, which keep nothing between calls."""

    def __init__(self, path: Path, scales: Scales) -> None:
        self._path, self._scales, self._program = path, scales, OnnxReference(path)
        graph = read_onnx(path).graph
        weights = {w.name for w in graph.initializer}
        self._wanted = dict.fromkeys(str(i.name) for i in graph.input if i.name not in weights)
        self._floats = float_inputs(path)

    @property
    def by(self) -> str:
        return self._program.by

    @property
    def note(self) -> str:
        return self._program.note

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        _require_same(self._path, self._wanted, inputs)
        return self._program.run(as_floats(inputs, self._floats, self._scales))

    anew = run


class _TorchReference:
    """The reference torch, with a module that keeps buffers between calls."""

    by, note = "torch", ""

    def __init__(self, path: Path, scales: Scales) -> None:
        self._path, self._scales, self._exported = path, scales, exported_program(path)
        self._module: Any = None
        names = self._exported.graph_signature.user_inputs
        self._wanted = dict.fromkeys(n for n in names if isinstance(n, str))
        self._floats = float_inputs(path)

    def anew(self, inputs: Arrays) -> dict[str, np.ndarray]:
        self._module = None
        return self.run(inputs)

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        _require_same(self._path, self._wanted, inputs)
        if self._module is None:
            self._module = _of_floats(self._exported)
        return run_exported(self._exported, as_floats(inputs, self._floats, self._scales), self._module)


def _of_floats(exported: Any) -> Any:
    """Return a program's module; in float32 if its inputs have 16 bits, as kernels compute it."""
    nodes = [
        n for n in exported.graph.nodes if n.op == "placeholder" and n.name in exported.graph_signature.user_inputs
    ]
    kinds = {str(getattr(n.meta.get("val"), "dtype", "")) for n in nodes}
    module = exported.module()
    return module.float() if kinds & {"torch.float16", "torch.bfloat16"} else module


def as_floats(inputs: Arrays, floats: Container[str], scales: Scales) -> dict[str, np.ndarray]:
    """Return the inputs, with those in `floats` dequantized by scale."""
    return {n: real(a, *scales[n]) if n in floats and n in scales else a for n, a in inputs.items()}


def real(stored: np.ndarray, scale: float | None, zero_point: int | None) -> np.ndarray:
    """Dequantize stored integers to float32; floats, and integers without a scale, are returned as they are."""
    if scale is None or stored.dtype.kind == "f":
        return stored
    return (np.float32(scale) * (stored.astype("int64") - (zero_point or 0)).astype("float32")).astype("float32")


def output_steps(path: Path) -> dict[str, float]:
    """Return the quantization steps of outputs that an ONNX or torch model dequantizes, by name."""
    if path.suffix == ".onnx":
        from onnx import numpy_helper

        graph = read_onnx(path).graph
        weights = {w.name: w for w in graph.initializer}
        made = {o: n for n in graph.node for o in n.output}
        last = {o.name: made[o.name] for o in graph.output if o.name in made}
        scales = {
            name: weights[n.input[1]]
            for name, n in last.items()
            if n.op_type == "DequantizeLinear" and n.input[1] in weights
        }
        return {name: float(numpy_helper.to_array(s).max()) for name, s in scales.items()}
    if path.suffix == ".pt2":
        nodes = next(n for n in _shared_program(path).graph.nodes if n.op == "output").all_input_nodes
        return {str(n.name): float(n.args[1]) for n in nodes if "dequantize_per_tensor" in str(n.target)}
    return {}


def float_inputs(path: Path) -> set[str]:
    """Return the names of float inputs in an ONNX or torch model."""
    if path.suffix == ".onnx":
        kinds = read_onnx(path).graph.input
        return {str(i.name) for i in kinds if i.type.tensor_type.elem_type in ONNX_FLOATS}
    nodes = {str(n.name): n.meta.get("val") for n in _shared_program(path).graph.nodes if n.op == "placeholder"}
    return {name for name, value in nodes.items() if hasattr(value, "dtype") and value.dtype.is_floating_point}


def exported_program(path: Path) -> Any:
    """Read the program in a `.pt2` file. Raises `LoadError` for any other content."""
    return _read(path, lambda: open_program(readable(path).read_bytes()))


def _shared_program(path: Path) -> Any:
    """Return the same as `exported_program`, for callers that change nothing in the program (`read_program`)."""
    return _read(path, lambda: read_program(path))


def _read(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except MissingToolError:
        raise
    except Exception as error:  # of many types, by version
        raise LoadError(path, f"not a program of torch.export: {last_line(error)}") from error


class LiteRtReference:
    """LiteRT's reference kernels on a `.tflite` file; raises as `open_reference` does."""

    def __init__(self, path: Path, inputs: Mapping[str, np.ndarray], scales: Scales, like: str = "") -> None:
        """Open an interpreter; `inputs` gives the shapes left open by the file, `like` as for `open_reference`."""
        try:
            data = readable(path).read_bytes()
        except OSError as error:
            raise LoadError(path, error.strerror or str(error)) from error
        if data[4:8] != b"TFL3":
            raise LoadError(path, "not a TFLite model" if data else "is empty")
        self._path, self._scales = path, scales
        self.interpreter, note, refused = _interpreter(data, path, inputs, like)
        self.by = f"LiteRT's {'ordinary' if refused else 'reference'} kernels"
        self.note = "; ".join(filter(None, [note, refused, doubts(self.interpreter)]))
        self._details = _named_details(self.interpreter.get_input_details())
        self._floats = {name for name, d in self._details.items() if np.dtype(d["dtype"]).kind == "f"}
        self._forms = {n: (str(np.dtype(d["dtype"])), tuple(d["shape"])) for n, d in self._details.items()}

    @property
    def quantized(self) -> bool:
        """Return True if any tensor holds stored integers."""
        details = self.interpreter.get_tensor_details()
        return any(d["dtype"] in (np.int8, np.uint8, np.int16) for d in details)

    def anew(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run an inference from the initial variables, and return outputs by name."""
        self.interpreter.reset_all_variables()
        return self.run(inputs)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run an inference and return outputs by name; variables keep the values left by the previous inference."""
        inputs = as_floats(inputs, self._floats, self._scales)
        _require_same(self._path, self._forms, inputs)
        for name, detail in self._details.items():
            self.interpreter.set_tensor(detail["index"], inputs[name])
        try:
            self.interpreter.invoke()
        except RuntimeError as error:  # such as integers to a negative power
            text = (
                f"{self._path.name}: the reference refuses these inputs ({last_line(error)}): give others by --inputs"
            )
            raise UsageError(text) from error
        results = _named_details(self.interpreter.get_output_details())
        return {name: self.interpreter.get_tensor(d["index"]).copy() for name, d in results.items()}


def _named_details(details: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return LiteRT's records of inputs or outputs under the importer's names, in order."""
    names = unique_names(str(d["name"]) or f"tensor_{d['index']}" for d in details)
    return dict(zip(names, details, strict=True))


def _require_same(
    path: Path, wanted: Mapping[str, tuple[str, tuple[int, ...]] | None], inputs: Mapping[str, np.ndarray]
) -> None:
    """Raise `UsageError` if an input wanted by the model is not among the `inputs` of the compiled network."""
    for name, form in wanted.items():
        given = inputs.get(name)
        if given is None or (form is not None and (str(given.dtype), given.shape) != (form[0], tuple(form[1]))):
            raise UsageError(
                f"{path.name} is not the model that was compiled: it wants {', '.join(wanted)}, "
                f"the project has {', '.join(f'{k} {v.dtype}{list(v.shape)}' for k, v in inputs.items())}"
            )


def _interpreter(data: bytes, path: Path, inputs: Mapping[str, np.ndarray], like: str) -> tuple[Any, str, str]:
    """Make an interpreter, with the changes made to hide known defects and the reference kernels' refusal, if any.

    If the reference kernels refuse the model, the ordinary kernels run. `inputs` give the extents left open by the
    file.
    """
    litert = extras.load("ai-edge-litert", ".interpreter")
    Interpreter, OpResolverType = litert.Interpreter, litert.OpResolverType
    try:
        data, changes = repaired(data, like)
        cleared = _cleared(data)
    except Exception as error:  # flatbuffers raises whatever reading beyond the end gives
        raise LoadError(path, "not a TFLite model, or truncated") from error
    reasons: list[str] = []
    for resolver in (OpResolverType.BUILTIN_REF, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES):
        for content in (data, cleared):
            try:
                interpreter = Interpreter(model_content=content, experimental_op_resolver_type=resolver, num_threads=1)
                _resize(interpreter, inputs)
                interpreter.allocate_tensors()
            except (ValueError, RuntimeError) as error:
                reasons.append(str(error).strip().splitlines()[0])
            else:
                notes = [f"LiteRT with {change}" for change in changes]
                ordinary = resolver != OpResolverType.BUILTIN_REF
                refused = f"the reference ones say: {reasons[-1]}" if ordinary else ""
                return interpreter, "; ".join(notes), refused
    raise LoadError(path, f"the reference interpreter refuses it: {reasons[-1]}")


def _resize(interpreter: Any, inputs: Mapping[str, np.ndarray]) -> None:
    for name, detail in _named_details(interpreter.get_input_details()).items():
        given = inputs.get(name)
        if given is not None and tuple(detail["shape"]) != given.shape and -1 in detail["shape_signature"]:
            with suppress(ValueError):  # of another rank: refused where inputs are compared
                interpreter.resize_tensor_input(detail["index"], given.shape, strict=True)


def _cleared(data: bytes) -> bytes:
    """Set every quantized_dimension beyond a tensor's rank, which LiteRT refuses, to 0."""
    model = object_tree(data)
    for graph in model.subgraphs or ():
        for tensor in graph.tensors or ():
            rank = 0 if tensor.shape is None else len(tensor.shape)
            if tensor.quantization is not None and tensor.quantization.quantizedDimension >= max(rank, 1):
                tensor.quantization.quantizedDimension = 0
    return packed(model)
