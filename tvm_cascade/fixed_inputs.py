"""`FixedInput`: an input that has the same value in every call (`--input-value`), and is folded into the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.errors import UsageError
from tvm_cascade.plain_files import readable

_NUMBERS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class FixedInput:
    """An input by name, with a value: an array, or a number for all elements."""

    name: str
    dtype: str  # of numpy
    shape: tuple[int, ...] | None  # None: a number, whatever the shape of the input
    data: bytes

    @property
    def array(self) -> np.ndarray:
        """Return the value as an array; a number has rank 0."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape or ())

    def of_input(self, dtype: str, shape: Sequence[int]) -> FixedInput:
        """Convert the value to the input's type and shape. Raise `UsageError` if the shape differs or the type cannot
        hold the value.
        """
        given = self.array
        if self.shape is not None and self.shape != tuple(shape):
            raise self._refused(dtype, shape, f"the value has the shape {list(self.shape)}")
        with np.errstate(invalid="ignore", over="ignore"):
            made = given.astype(dtype)
        exact = made.dtype.kind == "f" and given.dtype.kind == "f"
        if not exact and (made.astype(given.dtype) != given).any():
            raise self._refused(dtype, shape, f"{dtype} does not hold the value")
        whole = np.ascontiguousarray(np.broadcast_to(made, tuple(shape)))
        return FixedInput(self.name, dtype, tuple(shape), whole.tobytes())

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready copy."""
        return {"name": self.name, "dtype": self.dtype, "shape": self.shape, "data": self.data.hex()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FixedInput:
        """Read the output of `to_dict`. Raise `KeyError`, `TypeError` or `ValueError` for malformed records."""
        shape = None if data["shape"] is None else tuple(int(d) for d in data["shape"])
        return cls(str(data["name"]), str(data["dtype"]), shape, bytes.fromhex(data["data"]))

    def _refused(self, dtype: str, shape: Sequence[int], why: str) -> UsageError:
        return UsageError(f"--input-value {self.name}: the input is {dtype}{list(shape)}: {why}")


def fixed_inputs(values: Mapping[str, Any]) -> tuple[FixedInput, ...]:
    """Convert values to fixed inputs: numbers, arrays, texts of numbers, paths to `.npy` files. Raise `UsageError` for
    anything else.
    """
    return tuple(_fixed(name, value) for name, value in values.items())


def split(texts: Sequence[str]) -> dict[str, str]:
    """Split texts NAME=V into values by name. Raise `UsageError` for other texts, and for a name given twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if not name or not value or name in found:
            why = "it is given twice" if name in found else "write NAME=NUMBER or NAME=FILE.npy"
            raise UsageError(f"--input-value {text!r}: {why}")
        found[name] = value
    return found


def _fixed(name: str, value: Any) -> FixedInput:
    if isinstance(value, FixedInput):
        return value
    if isinstance(value, (str, Path)):
        value = _read(name, str(value))
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise UsageError(f"--input-value {name}: give a number, an array of numbers, or a .npy file of them")
    shape = None if array.ndim == 0 and not isinstance(value, np.ndarray) else array.shape
    return FixedInput(name, str(array.dtype), shape, np.ascontiguousarray(array).tobytes())


def _read(name: str, text: str) -> Any:
    """Parse a text as a number, or load the named `.npy` file."""
    if text.lower() in _NUMBERS:
        return _NUMBERS[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    if not text.endswith(".npy"):
        raise UsageError(f"--input-value {name}={text}: write a number, or the name of a .npy file")
    try:
        return np.load(readable(Path(text)), allow_pickle=False)
    except OSError as error:
        raise UsageError(f"--input-value {name}: {text}: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise UsageError(f"--input-value {name}: {text} is no .npy file of numbers ({error})") from None
