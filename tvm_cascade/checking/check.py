"""The check of a run against the model file's reference: `run --check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isinf
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tvm_cascade.checking.compare_outputs import (
    FLOAT_TOLERANCE,
    Reach,
    Reaches,
    Verdict,
    compare_with_reference,
    differs,
    largest_gaps,
    overall,
)
from tvm_cascade.checking.doubles import DoubleReference, Turn
from tvm_cascade.checking.onnx_reference import read_onnx, untrusted
from tvm_cascade.checking.reference import LiteRtReference, Reference, open_reference, output_steps, real
from tvm_cascade.checking.reference_calls import reference_calls, reference_windows
from tvm_cascade.checking.sensitivity import moved_inputs, quantizes
from tvm_cascade.emit.image import Image
from tvm_cascade.importers.cut_file import cut_copy
from tvm_cascade.tensor_spec import TensorSpec

DRAWS = 2  # of inputs that are moved, or near-ties that are turned, at random
_REACH_FACTOR = 2  # outputs may differ by this multiple of what turned near-ties change, in as many times the elements
MOVED_FACTOR = 8  # a float network may differ by this multiple of what a unit in the last place of its inputs changes
_UNKNOWN = "it cannot be evaluated in double precision, so which elements lie next to a tie is not known"
Arrays = Mapping[str, np.ndarray]
_Calls: TypeAlias = Sequence[Arrays | None]
_Allowed: TypeAlias = Sequence[Reaches]  # by call


@dataclass(frozen=True, slots=True)
class Checked:
    """How a run compares with the reference."""

    verdict: Verdict
    by: str  # what computed the reference
    note: str  # `Reference.note`
    step: float | None  # largest quantization step of outputs that the file dequantizes
    exact: bool = False  # equal in double precision, where the reference's own roundings differ


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
        """Compare the program's outputs, call by call.

        If outputs differ, a quantized network is evaluated in double precision; what differs there too is held to what
        near-ties explain. Of a float network, measure how far roundings may move the outputs.
        """
        verdict, exact = self._judged(made)
        return Checked(verdict, self.by, self.note, max(self._steps.values(), default=None), exact)

    def by_output(self, made: Arrays) -> list[tuple[np.ndarray, np.ndarray, Verdict]]:
        """Compare the outputs of a single call each by itself, as `compare` does all: reference, program's array (real if
        the reference is), verdict.
        """
        (expected,) = self._expected
        found = []
        for k, (want, spec) in enumerate(zip((expected or {}).values(), self._image.outputs, strict=True)):
            stored = made[spec.name]
            have = real(stored, spec.scale, spec.zero_point) if want.dtype.kind == "f" else stored
            found.append((want, have, self._judged([made], k)[0]))
        return found

    def _judged(self, made: Sequence[Arrays], only: int | None = None) -> tuple[Verdict, bool]:
        """Return the verdict on all outputs, or on a single one, and whether it needed double precision."""
        verdict = self._verdict(self._expected, made, only)
        if verdict.match is not False or verdict.reason or isinf(verdict.gap):
            return verdict, False
        if self._doubles is None:
            return self._verdict(self._expected, made, only, self._moved), False
        ((base, *_), trusted) = self._doubles
        if not base:
            few = verdict.gap <= max(self._steps.values(), default=1.0) * (1 + FLOAT_TOLERANCE)
            return (replace(verdict, match=None, reason=_UNKNOWN) if few else verdict), False
        if trusted and self._verdict(base, made, only).match:
            return replace(verdict, match=True, allowed=verdict.gap), True
        return self._verdict(base if trusted else self._expected, made, only, self._reaches), False

    def _verdict(
        self, expected: _Calls, made: Sequence[Arrays], only: int | None = None, allowed: _Allowed | None = None
    ) -> Verdict:
        picked = slice(None) if only is None else slice(only, only + 1)
        outputs, reaches = self._image.outputs[picked], allowed or [{}] * len(made)
        verdicts = []
        for want, have, reach in zip(expected, made, reaches, strict=True):
            if want is not None:
                pairs = dict([*want.items()][picked]), dict([*have.items()][picked])
                verdicts.append(compare_with_reference(*pairs, outputs, reach, self._steps))
        return overall(verdicts)

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

    @cached_property
    def _doubles(self) -> tuple[list[_Calls], bool] | None:
        """Return the outputs in double precision, without and with turned near-ties, and whether they are ONNX's.

        Return None for float networks and where LiteRT computes the same integers; nothing but [[]] if an operator fails.
        """
        if self._model.suffix == ".tflite":
            return None
        with cut_copy(self._model, self._interface.cut) as path:
            if not quantizes(path):
                return None
            trusted = path.suffix != ".onnx" or not any(untrusted(read_onnx(path)))
            shares = (1.0, *[0.5] * DRAWS)
            turns = [None, *(Turn(np.random.default_rng(k), share) for k, share in enumerate(shares))]
            try:
                found = [self._calls(DoubleReference(path, self._scales, t), self._feeds) for t in turns]
            except Exception:  # what the evaluator refuses, ONNX Runtime has computed
                return [[]], trusted
            return (found if _shapes(found[0]) == _shapes(self._expected) else [[]]), trusted

    @cached_property
    def _reaches(self) -> list[dict[str, Reach]]:
        """Return what turned near-ties change, by call and output."""
        assert self._doubles is not None
        base, *turned = self._doubles[0]
        found: list[dict[str, Reach]] = []
        for k, want in enumerate(base):
            moved = [calls[k] or {} for calls in turned]
            found.append({name: self._reach(name, array, moved) for name, array in (want or {}).items()})
        return found

    def _reach(self, name: str, want: np.ndarray, moved: Sequence[Arrays]) -> Reach:
        gap = max(largest_gaps({name: want}, {name: arrays[name]})[name] for arrays in moved)
        share = max(float(differs(want, arrays[name], self._steps.get(name)).mean()) for arrays in moved)
        return Reach(_REACH_FACTOR * gap, _REACH_FACTOR * share)

    @cached_property
    def _moved(self) -> list[dict[str, Reach]]:
        """Return the changes that moved inputs cause, by call and output; none if LiteRT computes the same integers."""
        with cut_copy(self._model, self._interface.cut) as path:
            reference = self._open(path)
            if isinstance(reference, LiteRtReference) and reference.quantized:
                return [{}] * len(self._expected)
            randoms = [np.random.default_rng(seed) for seed in range(DRAWS)]
            moved = [self._calls(reference, [moved_inputs(feed, rng) for feed in self._feeds]) for rng in randoms]
        found: list[dict[str, Reach]] = []
        for k, want in enumerate(self._expected):
            gaps = [largest_gaps(want or {}, calls[k] or {}) for calls in moved]
            found.append({name: Reach(MOVED_FACTOR * max(gap[name] for gap in gaps)) for name in want or ()})
        return found


def _shapes(calls: _Calls) -> list[list[tuple[int, ...]]]:
    return [[array.shape for array in (outputs or {}).values()] for outputs in calls]
