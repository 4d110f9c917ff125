"""Input and output arrays of a run by tensor name: .npz files are read and written, random inputs are drawn."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.micro.image import Image
from tvm_cascade.publish import whole_file
from tvm_cascade.tensor_spec import TensorSpec


def read_inputs(image: Image, given: str | Path | Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
    """Input arrays of all networks by `Image.label`: from an .npz file, from a mapping, or random where `given` is None.

    Raises `UsageError` where an input is missing, or an array has another element type or shape than the model's input
    (nothing is reshaped), `LoadError` where the file is no .npz.
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


def load_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz by name."""
    try:
        archive = np.load(path)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise LoadError(path, "holds a single array; save an .npz with one array per input")
        with archive:
            return {k: archive[k] for k in archive.files}
    except OSError as error:
        raise LoadError(path, error.strerror or "cannot be read") from None
    except (ValueError, zipfile.BadZipFile, EOFError):
        raise LoadError(path, "is no .npz of plain arrays (numpy.savez writes one)") from None


def random_inputs(image: Image, seed: int = 0) -> dict[str, np.ndarray]:
    """Random input arrays of all networks by `Image.label`: integers uniform over their type (indices: below
    their extent), floats standard normal.

    The generator is seeded again for each network, so a network of a bundle gets the same inputs as when it runs alone.
    """
    feed: dict[str, np.ndarray] = {}
    for network in image.networks:
        rng = np.random.default_rng(seed)
        feed |= {image.label(network, spec.name): _random(spec, rng) for spec in network.inputs}
    return feed


def _random(spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    dtype = np.dtype(spec.dtype)
    if dtype.kind in "iu":
        low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if spec.extent is None else (0, spec.extent - 1)
        return rng.integers(low, high, spec.shape, dtype=dtype, endpoint=True)
    return rng.standard_normal(spec.shape).astype(dtype)


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write `arrays` to an .npz file atomically."""
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
