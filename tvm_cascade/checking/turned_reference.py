"""References with random roundings, which measure how far roundings move the outputs (`checking.sensitivity`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tvm_cascade.checking.reference import Arrays, Scales, as_floats, float_inputs
from tvm_cascade.checking.sensitivity import in_own_types, onnx_evaluator, run_turned
from tvm_cascade.importers.onnx.file import read_model
from tvm_cascade.tensor_spec import unique_names


class TurnedReference:
    """A reference for an ONNX or torch network with randomly changed roundings, or unchanged ones."""

    by, note = "", ""

    def __init__(self, path: Path, scales: Scales, rng: np.random.Generator | None) -> None:
        """Open the network. Raises the evaluator's errors for a refused model."""
        self._path, self._scales, self._rng = path, scales, rng
        self._floats = float_inputs(path)
        if path.suffix == ".onnx":
            self._session, self._model = onnx_evaluator(path, rng, spelled=True), read_model(path)

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Run an inference and return outputs by name; raises whatever an operator fails with."""
        inputs = as_floats(inputs, self._floats, self._scales)
        if self._path.suffix == ".pt2":
            return run_turned(self._path, inputs, self._rng)
        values = self._session.run(None, dict(in_own_types(self._model, inputs)))
        names = unique_names(map(str, self._session.output_names))
        return {n: np.asarray(v) for n, v in zip(names, values, strict=True)}

    anew = run
