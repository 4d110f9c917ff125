"""Convert values from a data set to the values stored by an input."""

from __future__ import annotations

import numpy as np

from tvm_cascade.errors import UsageError
from tvm_cascade.tensor_spec import TensorSpec


def stored_values(values: np.ndarray, spec: TensorSpec, what: str = "the data") -> np.ndarray:
    """Convert `values` to the element type of an input.

    Values in that type are taken unchanged. All others are real values: an input with a scale stores `round(value /
    scale) + zero_point`, within the type's range, a float input the float, and an integer input without a scale, such
    as indices, the same integers.

    Raises `UsageError`, which names `what`, for integers an input without a scale cannot hold, and for real values that
    are not numbers.
    """
    dtype = np.dtype(spec.dtype)
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if values.dtype == dtype:
        return _within(values, spec, what)
    if dtype.kind not in "iu":
        return values.astype(dtype)
    info = np.iinfo(dtype)
    if spec.scale is not None:
        real = values.astype(np.float64)
        if np.isnan(real).any():
            raise UsageError(f"{what}: the array '{spec.name}' has values that are no numbers, for an input of {dtype}")
        return np.clip(np.rint(real / spec.scale) + (spec.zero_point or 0), info.min, info.max).astype(dtype)
    if not ((values >= info.min) & (values <= info.max) & (np.floor(values) == values)).all():
        raise UsageError(
            f"{what}: the array '{spec.name}' has values that its input, {dtype} without a scale, cannot hold"
        )
    return _within(values.astype(dtype), spec, what)


def _within(values: np.ndarray, spec: TensorSpec, what: str) -> np.ndarray:
    """Check `values`: for an index input they must lie below the extent, or count from the end if negative."""
    extent = spec.extent
    if extent is not None and values.size and not (-extent <= values.min() and values.max() < extent):
        raise UsageError(f"{what}: the array '{spec.name}' has indices outside of 0 to {extent - 1}")
    return values
