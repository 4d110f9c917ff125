"""From the values of a data set to those that an input stores."""

from __future__ import annotations

import numpy as np

from tvm_cascade.errors import UsageError
from tvm_cascade.tensor_spec import TensorSpec


def stored_values(values: np.ndarray, spec: TensorSpec, what: str = "the data") -> np.ndarray:
    """`values` in the element type of an input.

    Values of that type are taken as they are. Others are real values: an input with a scale stores
    `round(value / scale) + zero_point`, within the range of its type, a float input their floats, and an integer input
    without a scale, such as indices, the same integers.

    Raises `UsageError`, which names `what`, for integers that an input without a scale cannot hold, and for real values
    that are not numbers.
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
    """`values`; those of an input of indices have to lie below its extent, or count from the end as negative ones do."""
    extent = spec.extent
    if extent is not None and values.size and not (-extent <= values.min() and values.max() < extent):
        raise UsageError(f"{what}: the array '{spec.name}' has indices outside of 0 to {extent - 1}")
    return values
