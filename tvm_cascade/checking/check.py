"""The check of a run against the model file's reference: `run --check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tvm_cascade.checking.compare_outputs import Verdict, compare_with_reference, largest_gaps, overall
from tvm_cascade.checking.reference import LiteRtReference, Reference, open_reference, output_steps, real
from tvm_cascade.checking.reference_calls import reference_calls, reference_windows
from tvm_cascade.checking.sensitivity import moved_inputs, quantizes
from tvm_cascade.checking.turned_reference import TurnedReference
from tvm_cascade.emit.image import Image
from tvm_cascade.importers.cut_file import cut_copy
from tvm_cascade.tensor_spec import TensorSpec

DRAWS = 2  # of roundings that are turned, or inputs that are moved, at random
_REACH_FACTOR = (
    2  # a quantized network may differ from a float reference by this multiple of what turned roundings change
)
MOVED_FACTOR = 8  # a float network may differ by this multiple of what a unit in the last place of its inputs changes
Arrays = Mapping[str, np.ndarray]
_Calls: TypeAlias = Sequence[Arrays | None]


@dataclass(frozen=True, slots=True)
class Checked:
    """How a run compares with the reference."""

    verdict: Verdict
    by: str  # what computed the reference
    note: str  # `Reference.note`
    step: float | None  # largest quantization step of outputs that the file dequantizes


class Check:
    """The reference's outputs for every call, and the comparison with the program's outputs."""

    def __init__(self, image: Image, model: Path, feeds: Sequence[Arrays]) -> None:
        """Run the reference. Raises the errors of `open_reference`, and `UsageError` if a stream has no whole window."""
        self._image, self._model, self._feeds = image, model, feeds
        self._interface = image.networks[0].interface
        self._scales = {label: (spec.scale, spec.zero_point) for label, spec in image.named_inputs()}
        with cut_copy(model, self._interface.cut) as path:
            reference = self._open(path)
            self._expected = self._calls(reference, feeds)
            self.by, self.note = reference.by, reference.note
            self._steps = output_steps(path)

    def compare(self, made: Sequence[Arrays]) -> Checked:
        """Compare the program's outputs, call by call. If outputs differ, measure how far roundings may move outputs."""
        verdict = self._verdict(made)
        if verdict.match is False and not verdict.reason and not isinf(verdict.gap):
            verdict = self._verdict(made, self._allowed())
        return Checked(verdict, self.by, self.note, max(self._steps.values(), default=None))

    def by_output(self, made: Arrays) -> list[tuple[np.ndarray, np.ndarray, Verdict]]:
        """Compare the outputs of a single call each by itself: reference, program's array (real if the reference is), verdict.

        If any differs, `_allowed` measures how far roundings may move it.
        """
        found = self._each(made, {})
        if any(verdict.match is False for *_, verdict in found):
            found = self._each(made, self._allowed()[0])
        return found

    def _each(self, made: Arrays, allowed: Mapping[str, float]) -> list[tuple[np.ndarray, np.ndarray, Verdict]]:
        (expected,) = self._expected
        found = []
        for (name, want), spec in zip((expected or {}).items(), self._image.outputs, strict=True):
            stored = made[spec.name]
            have = real(stored, spec.scale, spec.zero_point) if want.dtype.kind == "f" else stored
            verdict = compare_with_reference({name: want}, {spec.name: stored}, [spec], allowed)
            found.append((want, have, verdict))
        return found

    def _verdict(self, made: Sequence[Arrays], allowed: Sequence[Mapping[str, float]] | None = None) -> Verdict:
        gaps = allowed or [{}] * len(made)
        calls = [(e, m, g) for e, m, g in zip(self._expected, made, gaps, strict=True) if e is not None]
        return overall(compare_with_reference(e, m, self._image.outputs, g) for e, m, g in calls)

    def _open(self, path: Path) -> Reference:
        first, sliding = self._feeds[0], self._sliding
        if sliding is not None:
            shape = list(sliding.shape)
            shape[sliding.window_axis] = sliding.window
            first = {sliding.name: np.zeros(shape, sliding.dtype)}
        kept = {s.spec.name: s.array for s in self._interface.states if s.returned}
        return open_reference(
            path, {**first, **kept, **self._interface.fixed_arrays}, self._scales, self._interface.like
        )

    @property
    def _sliding(self) -> TensorSpec | None:
        """Return the input for new rows only, if there is one."""
        return next((spec for spec in self._interface.inputs if spec.window), None)

    def _calls(self, reference: Reference, feeds: Sequence[Arrays]) -> _Calls:
        """Return the reference's outputs for every call; None for calls before the first whole window."""
        if self._sliding is not None:
            return reference_windows(reference, feeds, self._sliding, self._interface.fixed_arrays)
        whole = [{**feed, **self._interface.fixed_arrays} for feed in feeds]
        return reference_calls(reference, whole, self._interface.states)

    def _allowed(self) -> list[dict[str, float]]:
        """Return the changes roundings may cause, by call and output."""
        with cut_copy(self._model, self._interface.cut) as path:
            factor, pairs = self._changed(path)
        found: list[dict[str, float]] = []
        for k, want in enumerate(self._expected):
            gaps = [largest_gaps(base[k] or {}, moved[k] or {}) for base, moved in pairs]
            most = {name: factor * max((gap[name] for gap in gaps), default=0.0) for name in want or ()}
            found.append({name: max(gap, self._steps.get(name, 0.0)) for name, gap in most.items()})
        return found

    def _changed(self, path: Path) -> tuple[int, list[tuple[_Calls, _Calls]]]:
        """Return a factor and, for each draw, the reference's outputs without and with changed roundings.

        Return no pairs if reference and kernels compute the same integers, or if the reference fails.
        """
        randoms = [np.random.default_rng(seed) for seed in range(DRAWS)]
        if path.suffix == ".tflite" or not quantizes(path):
            reference = self._open(path)
            if isinstance(reference, LiteRtReference) and reference.quantized:
                return 0, []
            moved = [[moved_inputs(feed, rng) for feed in self._feeds] for rng in randoms]
            return MOVED_FACTOR, [(self._expected, self._calls(reference, feeds)) for feeds in moved]
        try:
            base, *turned = (
                self._calls(TurnedReference(path, self._scales, rng), self._feeds) for rng in (None, *randoms)
            )
        except Exception:  # what the evaluator refuses, ONNX Runtime has computed
            return 0, []
        return _REACH_FACTOR, [(base, calls) for calls in turned]
