"""A data set's arrays, read some samples at a time: an .npz file of any size takes the memory of a batch."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.plain_files import readable

_NO_ARRAYS = "is no .npz of plain arrays (numpy.savez writes one)"
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Column(Protocol):
    """An array in a data set, samples along the first axis."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...
    def rows(self, first: int, last: int) -> np.ndarray:
        """Read samples `first` to `last`, exclusive. Batches are asked for in order."""
        ...


@dataclass(frozen=True)
class ArrayColumn:
    """An array in memory."""

    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    def rows(self, first: int, last: int) -> np.ndarray:
        return self.array[first:last]


@dataclass
class FileColumn:
    """An array kept in an .npz file, which is open from the first read on."""

    path: Path
    member: str  # of the archive
    shape: tuple[int, ...]
    dtype: np.dtype
    _stream: IO[bytes] | None = field(default=None, repr=False)
    _next: int = 0  # the sample that the stream stands before

    def rows(self, first: int, last: int) -> np.ndarray:
        try:
            if self._stream is None or first != self._next:
                with zipfile.ZipFile(self.path) as archive:  # an open member keeps the file open
                    self._stream = archive.open(self.member)
                _header(self._stream)
                self._skip(first)
            data = self._stream.read((last - first) * self._sample_bytes)
        except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
            raise LoadError(self.path, getattr(error, "strerror", None) or _NO_ARRAYS) from None
        if len(data) != (last - first) * self._sample_bytes:
            raise LoadError(self.path, f"ends inside of the array '{self.member.removesuffix('.npy')}'")
        self._next = last
        return np.frombuffer(data, self.dtype).reshape(last - first, *self.shape[1:])

    @property
    def _sample_bytes(self) -> int:
        return prod(self.shape[1:]) * self.dtype.itemsize

    def _skip(self, samples: int) -> None:
        assert self._stream is not None
        for _ in range(samples):
            self._stream.read(self._sample_bytes)


def columns(data: str | Path | Mapping[str, np.ndarray]) -> dict[str, Column]:
    """Open the arrays in an .npz, or in a mapping, by name.

    Raises `LoadError` if the file cannot be read or holds anything but plain arrays, `UsageError` for an array without
    a first axis.
    """
    if isinstance(data, Mapping):
        found: dict[str, Column] = {str(name): ArrayColumn(np.asarray(array)) for name, array in data.items()}
    else:
        found = _of_file(Path(data))
    for name, column in found.items():
        if not column.shape:
            raise UsageError(f"array '{name}' of the data is a single number; its first axis counts samples")
    return found


def _of_file(path: Path) -> dict[str, Column]:
    try:
        if not zipfile.is_zipfile(readable(path)):
            with path.open("rb"):  # says why where there is no such file
                raise LoadError(path, _NO_ARRAYS)
        with zipfile.ZipFile(path) as archive:
            return {member.removesuffix(".npy"): _column(path, archive, member) for member in archive.namelist()}
    except OSError as error:
        raise LoadError(path, error.strerror or "cannot be read") from None
    except (ValueError, EOFError, zipfile.BadZipFile):
        raise LoadError(path, _NO_ARRAYS) from None


def _column(path: Path, archive: zipfile.ZipFile, member: str) -> Column:
    with archive.open(member) as stream:
        shape, by_columns, dtype = _header(stream)
        if dtype.hasobject or dtype.kind not in "biuf":
            raise LoadError(path, f"the array '{member.removesuffix('.npy')}' holds {dtype}, no numbers")
        if by_columns and len(shape) > 1:  # its samples are strewn over the file
            data = stream.read(prod(shape) * dtype.itemsize)
            return ArrayColumn(np.frombuffer(data, dtype).reshape(shape[::-1]).T)
    return FileColumn(path, member, shape, dtype)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read shape, axis order (True if the first axis varies fastest) and element type; the stream then stands before
    the values.
    """
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(version)
    return _HEADERS[version](stream)
