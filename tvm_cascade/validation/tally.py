"""Counts sample by sample: classes, and differences between the outputs and the reference's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np

from tvm_cascade.checking.reference import real
from tvm_cascade.errors import ToolError
from tvm_cascade.tensor_spec import TensorSpec

MOST_CLASSES = 1000  # of a confusion matrix


class Tally:
    """Sums over samples; the properties are the figures of `ValidationReport` for the samples added so far.

    Outputs are compared as real values: stored integers are dequantized if the output has a scale.
    """

    def __init__(self, outputs: Sequence[TensorSpec], labelled: bool) -> None:
        """Set all counts to zero; `labelled`: samples have labels, so accuracy can be counted."""
        self._specs, self._labelled = tuple(outputs), labelled
        self.samples = self._right = self._reference_right = self._agree = 0
        self._elements, self._squares, self._absolute, self._cosines, self.max_abs_diff = 0, 0.0, 0.0, 0.0, 0.0
        classes = int(np.prod(self._specs[0].shape))
        self._confusion = np.zeros((classes, classes), np.int64) if labelled and classes <= MOST_CLASSES else None

    def add(self, made: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], label: int | None) -> None:
        """Count a single sample: the program's outputs, the reference's, and the class number.

        Raises `ToolError` if the reference has other outputs.
        """
        pairs = self._pairs(made, wanted)
        self.samples += 1
        have, want = (np.concatenate(side) for side in zip(*pairs, strict=True))
        gaps = np.abs(have - want)
        self._elements += gaps.size
        self._squares += float(gaps @ gaps)
        self._absolute += float(gaps.sum())
        self.max_abs_diff = max(self.max_abs_diff, float(gaps.max(initial=0.0)))
        self._cosines += cosine(have, want)
        found, expected = int(np.argmax(_first(made))), int(np.argmax(_first(wanted)))
        self._agree += found == expected
        if label is not None:
            self._right += found == label
            self._reference_right += expected == label
            if self._confusion is not None:
                self._confusion[label, found] += 1

    def _pairs(
        self, made: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return real values of every output, by position: the program's and the reference's."""
        sizes = [np.size(a) for a in wanted.values()]
        if sizes != [made[spec.name].size for spec in self._specs]:
            raise ToolError(
                f"the reference gives outputs of {sizes} elements, the program others; is it the same model?"
            )
        found = []
        for spec, want in zip(self._specs, wanted.values(), strict=True):
            both = (real(np.asarray(a), spec.scale, spec.zero_point) for a in (made[spec.name], want))
            have, want = (a.reshape(-1).astype(np.float64) for a in both)
            found.append((have, want))
        return found

    @property
    def accuracy(self) -> float | None:
        return self._right / self.samples if self._labelled else None

    @property
    def reference_accuracy(self) -> float | None:
        return self._reference_right / self.samples if self._labelled else None

    @property
    def agreement(self) -> float:
        return self._agree / self.samples

    @property
    def rmse(self) -> float:
        return sqrt(self._squares / max(1, self._elements))

    @property
    def mae(self) -> float:
        return self._absolute / max(1, self._elements)

    @property
    def cosine(self) -> float:
        return self._cosines / self.samples

    @property
    def confusion(self) -> tuple[tuple[int, ...], ...] | None:
        return None if self._confusion is None else tuple(tuple(int(n) for n in row) for row in self._confusion)


def _first(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    return next(iter(outputs.values()))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Compute the cosine of the angle between two vectors; 1 for two zero vectors, 0 for a single zero vector."""
    if np.array_equal(a, b):
        return 1.0
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0
