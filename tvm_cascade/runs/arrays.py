"""Input and output arrays of a run by tensor name: .npz files are read and written, random inputs are drawn."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from math import ceil, floor, isfinite
from pathlib import Path

import numpy as np

from tvm_cascade.emit.image import Image
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.plain_files import readable
from tvm_cascade.publish import whole_file
from tvm_cascade.tensor_spec import Domain, TensorSpec


def read_inputs(image: Image, given: str | Path | Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
    """Read the input arrays of all networks by `Image.label`: from an .npz file or a mapping; random if `given` is
    None.

    Raises `UsageError` if an input is missing, or an array's type or shape differs from the model's input (nothing is
    reshaped), `LoadError` if the file is no .npz.
    """
    if given is None:
        return random_inputs(image)
    arrays = given if isinstance(given, Mapping) else load_arrays(given)
    feed: dict[str, np.ndarray] = {}
    for label, spec in image.named_inputs():
        if label not in arrays:
            raise UsageError(f"no input '{label}' among {', '.join(arrays) or 'none'}")
        value = np.asarray(arrays[label])
        spec.check(value, label)
        feed[label] = value
    return feed


def read_frames(image: Image, path: Path) -> list[dict[str, np.ndarray]]:
    """Read the inputs for a sequence of calls, by `Image.label`, from an .npz with a single array per input.

    The first axis counts the calls; every call runs all networks once. A batch axis of one behind may be left out. With
    a single input and a single array, any name will do.

    Raises as `read_inputs`, and `UsageError` if inputs have different numbers of calls, or none.
    """
    arrays, specs = load_arrays(path), list(image.named_inputs())
    if len(specs) == len(arrays) == 1:
        arrays = dict(zip([specs[0][0]], arrays.values(), strict=True))
    found: dict[str, np.ndarray] = {}
    for label, spec in specs:
        if label not in arrays:
            raise UsageError(f"no input '{label}' among {', '.join(arrays) or 'none'}")
        given = np.asarray(arrays[label])
        forms = (spec.shape, *((spec.shape[1:],) if spec.shape[:1] == (1,) else ()))
        if str(given.dtype) != spec.dtype or given.shape[1:] not in forms:
            wanted = f"{spec.dtype}[frames, {', '.join(map(str, forms[-1]))}]"
            raise UsageError(f"input '{label}' is {given.dtype}{list(given.shape)}, a sequence of calls wants {wanted}")
        found[label] = given.reshape(-1, *spec.shape) if given.size else given
    counts = {len(a) for a in found.values()}
    if len(counts) != 1 or counts == {0}:
        raise UsageError(
            f"{path} holds {' and '.join(map(str, sorted(counts)))} calls of the inputs: give as many of each"
        )
    return [{label: array[k] for label, array in found.items()} for k in range(counts.pop())]


def load_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Load the arrays of an .npz by name."""
    try:
        archive = np.load(readable(path))
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise LoadError(path, "holds a single array; save an .npz with one array per input")
        with archive:
            return {k: archive[k] for k in archive.files}
    except OSError as error:
        raise LoadError(path, error.strerror or "cannot be read") from None
    except (ValueError, zipfile.BadZipFile, EOFError):
        raise LoadError(path, "is no .npz of plain arrays (numpy.savez writes one)") from None


def random_inputs(image: Image, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw random input arrays for all networks, by `Image.label`.

    Integers are uniform over the type (indices: below the extent), floats standard normal; inputs with a domain get
    numbers within it, both ends included. The generator is seeded again for each network, so a network gets the same
    inputs in a bundle as alone.
    """
    feed: dict[str, np.ndarray] = {}
    for network in image.networks:
        rng = np.random.default_rng(seed)
        feed |= {image.label(network, spec.name): random_input(spec, rng) for spec in network.inputs}
    return feed


def random_input(spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    """Draw an input."""
    dtype, domain = np.dtype(spec.dtype), spec.domain or Domain()
    if dtype.kind in "iu":
        low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if spec.extent is None else (0, spec.extent - 1)
        scale, zero = spec.scale or 1.0, spec.zero_point or 0
        low = max(low, ceil(domain.low / scale) + zero) if isfinite(domain.low) else low
        high = min(high, floor(domain.high / scale) + zero) if isfinite(domain.high) else high
        values = rng.integers(low, max(low, high), spec.shape, dtype=dtype, endpoint=True)
        values = _with_ends(values, spec, low, high)
        return np.where(values == zero, dtype.type(zero + 1), values) if domain.nonzero else values
    if dtype.kind == "b":
        return rng.random(spec.shape) < 0.5
    if isfinite(domain.low) and isfinite(domain.high):
        values = rng.uniform(domain.low, domain.high, spec.shape)
    else:
        values = rng.standard_normal(spec.shape)
        if isfinite(domain.low):
            values = domain.low + np.abs(values)
        elif isfinite(domain.high):
            values = domain.high - np.abs(values)
    return _with_ends(values.astype(dtype), spec, domain.low, domain.high)


def _with_ends(values: np.ndarray, spec: TensorSpec, low: float, high: float) -> np.ndarray:
    """Set the first and last value to the domain's ends, if there is a domain and there are three or more values."""
    if spec.domain is not None and values.size > 2:
        for place, end in ((0, low), (-1, high)):
            if isfinite(end):
                values.flat[place] = end
    return values


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write `arrays` to an .npz file atomically."""
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
