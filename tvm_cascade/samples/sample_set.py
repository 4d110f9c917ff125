"""`SampleSet`: N samples for a network's inputs in the program's form, with labels if there are any."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from tvm_cascade.errors import UsageError
from tvm_cascade.samples.columns import Column, columns
from tvm_cascade.samples.files import FileSamples, Ranges
from tvm_cascade.samples.stored_values import stored_values
from tvm_cascade.tensor_spec import TensorSpec

LABELS = "labels"  # name of the array of labels, unless an input is called so
Feed = dict[str, np.ndarray]  # the inputs of one inference by name, in the types and shapes of their specs
Data = str | Path | Mapping[str, np.ndarray]


class SampleSet(Protocol):
    """N samples; batches are asked for in order."""

    @property
    def count(self) -> int: ...
    @property
    def labels(self) -> np.ndarray | None:
        """Return every sample's label, or None without labels."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the names of labels 0, 1, ...; empty if there are none."""
        ...

    def batch(self, first: int, last: int) -> list[Feed]: ...


def open_samples(data: Data, specs: Sequence[TensorSpec], spans: Ranges | None = None) -> SampleSet:
    """Open the samples in an .npz, in arrays by name or in a folder of images or sounds, for inputs described by
    `specs`.

    `spans`: real values for black and white, or for the least and the greatest amplitude (`FileSamples`).

    Raises `UsageError` if the data does not fit the inputs or itself, `LoadError` if it cannot be read.
    """
    if not isinstance(data, Mapping) and Path(data).is_dir():
        return FileSamples(Path(data), specs, spans)
    if spans is not None:
        raise UsageError("--range is for folders of images or sounds: the values of arrays are taken as they are")
    return ArraySamples(data, specs)


def require_data(data: Data) -> None:
    """Raise `UsageError` or `LoadError` for data that is not there or cannot be read, whatever the network is."""
    if isinstance(data, Mapping):
        return
    if not isinstance(data, (str, Path)):
        raise UsageError("--data: give the path of an .npz or of a folder, or arrays by name")
    if not Path(data).is_dir():
        columns(data)


def sample_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Return the shape of an input sample, without the batch axis."""
    return spec.shape[1:] if spec.shape[:1] == (1,) else spec.shape


class ArraySamples:
    """Samples in arrays, a single array per input by name; see `open_samples`."""

    class_names: tuple[str, ...] = ()

    def __init__(self, data: Data, specs: Sequence[TensorSpec]) -> None:
        names = [spec.name for spec in specs]
        self._specs, self._columns = tuple(specs), _by_input(columns(data), names)
        self._what = "the data" if isinstance(data, Mapping) else str(data)
        for spec in specs:
            self._require_input(spec)
        if strange := [n for n in self._columns if n not in names and n != LABELS]:
            raise UsageError(
                f"{self._what}: the array '{strange[0]}' is no input; inputs: {', '.join(names)}; labels: {LABELS}; "
                f"write it by {_savez(names)}"
            )
        self.count = self._counted()
        labels = None if LABELS in names else self._columns.get(LABELS)
        self.labels = None if labels is None else self._label_numbers(labels)

    def batch(self, first: int, last: int) -> list[Feed]:
        stored = {s.name: stored_values(self._columns[s.name].rows(first, last), s, self._what) for s in self._specs}
        return [{s.name: stored[s.name][k].reshape(s.shape) for s in self._specs} for k in range(last - first)]

    def _require_input(self, spec: TensorSpec) -> None:
        column = self._columns.get(spec.name)
        if column is None:
            there = f"it has {', '.join(self._columns)}" if self._columns else "it has none"
            call = _savez([one.name for one in self._specs])
            raise UsageError(
                f"{self._what}: no array '{spec.name}' for the input of that name; {there}; write it by {call}"
            )
        want = sample_shape(spec)
        if column.shape[1:] not in (want, spec.shape):
            raise UsageError(
                f"{self._what}: the array '{spec.name}' is {list(column.shape)}; N samples of this input are "
                f"[N{''.join(f', {d}' for d in want)}]"
            )

    def _counted(self) -> int:
        """Count the samples. Raises `UsageError` for none, or if arrays have different numbers."""
        counts = {name: column.shape[0] for name, column in self._columns.items()}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{count} of '{name}'" for name, count in counts.items())
            raise UsageError(f"{self._what}: arrays hold different numbers of samples: {told}")
        count = next(iter(counts.values()), 0)
        if not count:
            raise UsageError(f"{self._what} holds no sample")
        return count

    def _label_numbers(self, column: Column) -> np.ndarray:
        if column.dtype.kind not in "iu" or any(d != 1 for d in column.shape[1:]):
            form = f"{column.dtype}{list(column.shape)}"
            raise UsageError(f"{self._what}: '{LABELS}' is {form}; give N integers, the number of each sample's class")
        return column.rows(0, self.count).reshape(self.count).astype(np.int64)


def _by_input(held: Mapping[str, Column], names: Sequence[str]) -> dict[str, Column]:
    """Return arrays by input name, if an array can only be meant for that input.

    The array of an only input may have any name but the labels'. `serving_default_mel:0`, a name given by Keras
    converters, is also `mel`.
    """
    free = [name for name in names if name not in held]
    others = [name for name in held if name not in names and name != LABELS]
    if len(names) == len(free) == len(others) == 1:
        meant = {others[0]: free[0]}
    else:
        plain = {name: _plain(name) for name in (*free, *others)}
        alone = Counter(plain[name] for name in free), Counter(plain[name] for name in others)
        meant = {o: n for o in others for n in free if plain[o] == plain[n] and all(c[plain[n]] == 1 for c in alone)}
    return {meant.get(name, name): column for name, column in held.items()}


def _plain(name: str) -> str:
    """Return a tensor's name without TensorFlow's additions."""
    return re.sub(r":\d+$", "", name.removeprefix("serving_default_"))


def _savez(names: Sequence[str]) -> str:
    """Return the call for writing data for inputs with these names."""
    plain = [_plain(name) for name in names]
    words = plain if len(set(plain)) == len(plain) and all(map(str.isidentifier, plain)) else None
    arrays = ", ".join(f"{w}=..." for w in words) if words else "**{" + ", ".join(f"{n!r}: ..." for n in names) + "}"
    return f'numpy.savez("D.npz", {arrays}, {LABELS}=...)'


def batches(samples: SampleSet, specs: Iterable[TensorSpec], most: int) -> list[tuple[int, int]]:
    """Divide the samples into half-open ranges: at most `most` samples each, and inputs of at most 16 MiB."""
    size = max(1, min(most, (16 << 20) // max(1, sum(spec.bytes for spec in specs))))
    return [(first, min(first + size, samples.count)) for first in range(0, samples.count, size)]
