"""The cases of the ONNX backend suite: a model, its inputs, and the outputs that the suite says are right.

Those that the `onnx` package generates for single operators (`node/`), and those in its data that PyTorch exported or
that are of simple networks: all with tensors of numbers in and out. Left out are operators that draw random numbers,
sequences, optional values and strings as inputs or outputs, types shorter than 8 bits, and functions of the file's own.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
_HELD = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BOOL}
_HELD |= {getattr(TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)}
_GROUPS = ("simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True, slots=True)
class Case:
    """One case of the suite; `name` is its group and its name there."""

    name: str
    model: Any
    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]

    def rank(self) -> str:
        """A hexadecimal number by which cases are drawn: the same in every run."""
        return hashlib.sha256(self.name.encode()).hexdigest()


def suite() -> list[Case]:
    """Every case of the installed `onnx` package, by name."""
    found = [case for case in (*_generated(), *_stored()) if _is_of_tensors(case)]
    return sorted(found, key=lambda case: case.name)


def _generated() -> Iterator[Case]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = collect_testcases(None)
    for case in made:
        drawn = "training_dropout" in case.name and "zero_ratio" not in case.name
        if case.model is not None and case.data_sets and not drawn and _takes_tensors(case.model):
            inputs, outputs = case.data_sets[0]
            yield Case(f"node/{case.name}", case.model, [*map(np.asarray, inputs)], [*map(np.asarray, outputs)])


def _stored() -> Iterator[Case]:
    import onnx.backend.test as package

    for group in _GROUPS:
        for path in sorted((Path(package.__file__).parent / "data" / group).glob("*/model.onnx")):
            model = onnx.load(path)
            if (path.parent / "test_data_set_0" / "output_0.pb").is_file() and _takes_tensors(model):
                sides = [_tensors(path.parent / "test_data_set_0", side) for side in ("input", "output")]
                yield Case(f"{group}/{path.parent.name}", model, *sides)


def _tensors(folder: Path, side: str) -> list[np.ndarray]:
    files = sorted(folder.glob(f"{side}_*.pb"), key=lambda path: int(path.stem.rsplit("_", 1)[1]))
    return [np.asarray(numpy_helper.to_array(onnx.load_tensor(path))) for path in files]


def _takes_tensors(model: Any) -> bool:
    """Whether a model has tensors of numbers as inputs and outputs, and only operators of ONNX's own that draw nothing."""
    values = [*model.graph.input, *model.graph.output]
    held = all(v.type.HasField("tensor_type") and v.type.tensor_type.elem_type in _HELD for v in values)
    return held and len(model.graph.output) > 0 and not model.functions and _is_plain(model.graph)


def _is_plain(graph: Any) -> bool:
    for node in graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type in _RANDOM:
            return False
        if not all(_is_plain(a.g) for a in node.attribute if a.type == AttributeProto.GRAPH):
            return False
    return True


def _is_of_tensors(case: Case) -> bool:
    held = all(array.dtype.kind in "fiub" for array in (*case.inputs, *case.outputs))
    return held and len(case.outputs) == len(case.model.graph.output)
