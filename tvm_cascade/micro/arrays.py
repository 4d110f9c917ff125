"""Arrays that a run reads and writes, by name: files of inputs and outputs, and inputs drawn at random."""

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
    """Every input of every network by its label, from an .npz, from arrays, or random ones where `given` is None.

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
    """Every input of every network by its label: uniform over an integer type, standard normal for floats.

    Each network draws from the seed anew, so it gets what it gets alone.
    """
    feed: dict[str, np.ndarray] = {}
    for network in image.networks:
        rng = np.random.default_rng(seed)
        feed |= {image.label(network, spec.name): _random(spec, rng) for spec in network.inputs}
    return feed


def _random(spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    dtype = np.dtype(spec.dtype)
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return rng.integers(low, high, spec.shape, dtype=dtype, endpoint=True)
    return rng.standard_normal(spec.shape).astype(dtype)


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz whole or not at all."""
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
