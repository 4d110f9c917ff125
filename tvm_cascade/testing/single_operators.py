"""Single operators of TFLite with scales, zero points, types and attributes that no converter would write.

A random case of the generators (`operator_cases` and its siblings), one operator with its tensors, is changed in up to three
places of the raw file. LiteRT's reference kernels, where they take it, say what is right; where they do not, only a crash is
a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tvm_cascade.checking.litert_defects import doubts, packed, repaired
from tvm_cascade.errors import CascadeError
from tvm_cascade.frontend import load
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing import activation_cases, choice_cases, move_cases, operator_cases, weighted_cases
from tvm_cascade.testing.forked import CRASH, PASS, REFUSED, WRONG, Outcome, forked
from tvm_cascade.testing.operator_cases import Generator, log_uniform
from tvm_cascade.testing.reference import Compiled, Reference, random_inputs
from tvm_cascade.testing.tflite import ELEMENT_TYPES, ModelWriter

UNKNOWN = "unknown"  # the reference takes no such operator, or is known to be wrong
_INPUTS = 3
_TYPES = {number: name for name, number in ELEMENT_TYPES.items()}
_QUANTIZED = ("int8", "uint8", "int16")
GENERATORS: Mapping[str, Generator] = {
    **operator_cases.OPERATORS,
    **activation_cases.OPERATORS,
    **choice_cases.OPERATORS,
    **move_cases.OPERATORS,
    **weighted_cases.OPERATORS,
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn file, and what was changed in it."""

    name: str  # the generator, its type, the seed, the changes
    data: bytes


def drawn(seed: int) -> Drawn:
    """The file of a seed."""
    from ai_edge_litert import schema_py_generated as schema

    rng, names = np.random.default_rng(seed), sorted(GENERATORS)
    name, dtype = str(rng.choice(names)), str(rng.choice(["int8", "int8", "uint8", "int16", "float32"]))
    writer = ModelWriter()
    GENERATORS[name](rng, dtype, writer)
    model: Any = schema.ModelT.InitFromPackedBuf(writer.finish(), 0)
    changes = [change for _ in range(int(rng.integers(0, 4))) if (change := _changed(rng, model.subgraphs[0], model))]
    return Drawn(" ".join((name, dtype, str(seed), *changes)), packed(model))


def examined(case: Drawn) -> Outcome:
    """Whether what is compiled of a file computes what the reference computes. The reference, which some files crash, has a
    process of its own."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "case.tflite"
        path.write_bytes(case.data)
        ((_, said),) = forked([path], _referred)
        if said.verdict != PASS:
            return Outcome(UNKNOWN, said.reason)
        with np.load(path.with_suffix(".npz")) as held:
            runs = [[held[f"{k}/{side}"] for k in range(int(held[side]))] for side in ("inputs", "outputs")]
        try:
            lower: Any = LowerQuantized()
            lowered = lower(load(path, stateless=True))
        except CascadeError as error:
            return Outcome(REFUSED, str(error).replace(f"{folder}/", ""))
        except Exception as error:
            return Outcome(CRASH, f"{type(error).__name__}: {error}"[-300:])
    given, wanted = ([side[k::_INPUTS] for k in range(_INPUTS)] for side in runs)
    run = Compiled(lowered)
    pairs = (pair for a, want in zip(given, wanted, strict=True) for pair in zip(run(*a), want, strict=True))
    gap = next((g for ours, theirs in pairs if (g := _gap(ours, theirs))), "")
    left = ", ".join(r.operator for r in float_remains(lowered)) if gap else ""
    return Outcome(WRONG, gap + (f" (computed in floats: {left})" if left else "")) if gap else Outcome(PASS)


def _referred(path: Path) -> Outcome:
    """Write random inputs, and what the reference makes of them, beside the file: every tensor for all runs in turn."""
    try:
        reference = Reference(repaired(path.read_bytes())[0])
        if doubt := doubts(reference.interpreter):
            return Outcome(UNKNOWN, doubt)
        runs = [[small(a) for a in random_inputs(reference.inputs, k)] for k in range(_INPUTS)]
        made = [reference.run(arrays) for arrays in runs]
    except (ValueError, RuntimeError) as error:
        return Outcome(UNKNOWN, str(error).splitlines()[0])
    held: dict[str, Any] = {}
    for side, values in (("inputs", runs), ("outputs", made)):
        arrays = [array for tensor in zip(*values, strict=True) for array in tensor]
        held |= {side: len(arrays), **{f"{k}/{side}": array for k, array in enumerate(arrays)}}
    np.savez(path.with_suffix(".npz"), **held)
    return Outcome(PASS)


def small(array: np.ndarray) -> np.ndarray:
    """Return an array whose integers of 32 and 64 bits are so small that no sum overflows."""
    return (array % 1000).astype(array.dtype) if array.dtype.itemsize > 2 and array.dtype.kind == "i" else array


def _gap(ours: np.ndarray, theirs: np.ndarray) -> str:
    """How two outputs differ; nothing where they agree, floats within 1e-5 of the largest."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"{ours.dtype} {list(ours.shape)}, not {theirs.dtype} {list(theirs.shape)}"
    same = ours == theirs
    if theirs.dtype.kind == "f":
        largest = float(np.max(np.abs(theirs[np.isfinite(theirs)]), initial=1e-3))
        same = np.isclose(ours, theirs, 1e-5, 1e-5 * largest, equal_nan=True)
    return "" if same.all() else f"{int((~same).sum())} of {same.size} differ, {ours[~same][0]} for {theirs[~same][0]}"


def _changed(rng: np.random.Generator, graph: Any, model: Any) -> str:
    """Change one place in the file; returns what, or nothing where the place has nothing to change."""
    return str(_CHANGES[int(rng.integers(len(_CHANGES)))](rng, graph, model))


def _tensor(rng: np.random.Generator, graph: Any, quantized: bool = True) -> int | None:
    fitting = [k for k, t in enumerate(graph.tensors) if not quantized or _scales(t) is not None]
    return int(rng.choice(fitting)) if fitting else None


def _scales(tensor: Any) -> np.ndarray | None:
    q = tensor.quantization
    return None if q is None or q.scale is None or not len(q.scale) else np.asarray(q.scale)


def _scale(rng: np.random.Generator, graph: Any, _model: Any) -> str:
    if (k := _tensor(rng, graph)) is None:
        return ""
    factor = np.float32(log_uniform(rng, 1e-3, 1e3))
    graph.tensors[k].quantization.scale = np.asarray(graph.tensors[k].quantization.scale, "float32") * factor
    return f"scale of {k} by {factor:.3g}"


def _zero_point(rng: np.random.Generator, graph: Any, _model: Any) -> str:
    k = _tensor(rng, graph)
    dtype = "" if k is None else _TYPES[graph.tensors[k].type]
    if k is None or dtype not in _QUANTIZED:
        return ""
    info = np.iinfo(dtype)
    zero = int(rng.integers(info.min, info.max + 1))
    graph.tensors[k].quantization.zeroPoint = np.full(len(graph.tensors[k].quantization.scale), zero, "int64")
    return f"zero point of {k} {zero}"


def _like_another(rng: np.random.Generator, graph: Any, _model: Any) -> str:
    k, other = _tensor(rng, graph), _tensor(rng, graph)
    if k is None or other is None or len(graph.tensors[other].quantization.scale) != 1:
        return ""
    graph.tensors[k].quantization = graph.tensors[other].quantization
    return f"quantization of {k} as of {other}"


def change_type(rng: np.random.Generator, graph: Any, model: Any) -> str:
    k = _tensor(rng, graph, quantized=False)
    if k is None:
        return ""
    tensor, name = graph.tensors[k], str(rng.choice([*_QUANTIZED, "float32", "int32"]))
    held = model.buffers[tensor.buffer].data
    if held is not None and len(held):
        values = np.asarray(held, "uint8").view(_TYPES[tensor.type])
        model.buffers[tensor.buffer].data = np.frombuffer(values.astype(name).tobytes(), "uint8")
    tensor.type = ELEMENT_TYPES[name]
    return f"type of {k} {name}"


def change_attribute(rng: np.random.Generator, graph: Any, _model: Any) -> str:
    options = graph.operators[int(rng.integers(len(graph.operators)))].builtinOptions
    fields = [f for f, v in vars(options).items() if isinstance(v, (bool, int, float))] if options is not None else []
    if not fields:
        return ""
    field = str(rng.choice(sorted(fields)))
    old = getattr(options, field)
    new: Any = not old if isinstance(old, bool) else float(rng.choice([0.0, -1.0, 0.5, 3.0]))
    if isinstance(old, int) and not isinstance(old, bool):
        new = int(rng.choice([0, 1, 2, 3, 4, -1, old + 1]))
    setattr(options, field, new)
    return f"{field} {new}"


def _left_out(rng: np.random.Generator, graph: Any, _model: Any) -> str:
    operator = graph.operators[int(rng.integers(len(graph.operators)))]
    if len(operator.inputs) < 3:
        return ""
    operator.inputs = np.array([*operator.inputs[:-1], -1], "int32")
    return "without its last input"


_CHANGES: tuple[Callable[[np.random.Generator, Any, Any], str], ...] = (
    _scale,
    _scale,
    _zero_point,
    _zero_point,
    _like_another,
    change_type,
    change_attribute,
    change_attribute,
    _left_out,
)
