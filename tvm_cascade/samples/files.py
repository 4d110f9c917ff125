"""Samples from a folder of images or sounds: a subfolder is a class, in sorted order, and every file in it a sample.

Images are read by Pillow (the `images` extra), turned upright, scaled until they cover the input and cut around their
centre; their channels are converted to the input's. Sounds are .wav files, read by the standard library: the mean over
channels, cut or filled with silence on both sides. Nothing is resampled.
"""

from __future__ import annotations

import wave
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

from tvm_cascade import extras
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.messages import last_line
from tvm_cascade.samples.stored_values import stored_values
from tvm_cascade.tensor_spec import TensorSpec

Range = tuple[float, float]  # real values of black and white, or of the least and the greatest amplitude
Ranges = tuple[Range, ...]  # one, or for images one a channel

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_SOUNDS = (".wav",)
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # channels -> as Pillow calls them
_ADVICE = "compute what the network takes and save it in an .npz, one array per input (--help says how)"


class FileSamples:
    """The files in a folder as samples for a network's only input; see `sample_set.SampleSet`.

    `spans` gives the real values of black and white, for all channels or for each, or of the least and the greatest
    amplitude. By default these are the ends of the range stored by an integer input, 0 and 1 for images of a float
    input, -1 and 1 for sounds.

    Raises `UsageError` for a folder without samples or a network unable to take them, `MissingToolError` without
    Pillow, `LoadError` for an unreadable file.
    """

    def __init__(self, folder: Path, specs: Sequence[TensorSpec], spans: Ranges | None = None) -> None:
        if len(specs) != 1:
            raise UsageError(f"{folder}: the network has {len(specs)} inputs, a folder serves one; {_ADVICE}")
        (self._spec,) = specs
        self._paths, self.class_names, labels = _listed(folder)
        self.count = len(self._paths)
        self.labels = np.array(labels, np.int64) if self.class_names else None
        images = {path.suffix.lower() in _IMAGES for path in self._paths}
        if len(images) > 1:
            raise UsageError(f"{folder} holds images and sounds; a data set is of one kind")
        self._images = images.pop()
        self._rate: tuple[int, Path] | None = None  # of the first sound
        if self._images:
            extras.need("pillow")
        self._form = _image_form(self._spec) if self._images else _waveform(self._spec)
        self._low, self._high = self._ends(spans or (_whole_range(self._spec, self._images),))

    def _ends(self, spans: Ranges) -> tuple[np.ndarray, np.ndarray]:
        """Return the real values of black and white, shaped to fit a sample's channels."""
        _, _, channels, channels_first = self._form
        if len(spans) not in (1, channels):
            what = f"{channels} channels" if self._images else "sounds"
            raise UsageError(
                f"--range gives {len(spans)} ranges, and the input takes {what}: give one, or one a channel"
            )
        low, high = np.array(spans).T
        return (low[:, None, None], high[:, None, None]) if channels_first else (low, high)

    def batch(self, first: int, last: int) -> list[dict[str, np.ndarray]]:
        return [self._sample(path) for path in self._paths[first:last]]

    def _sample(self, path: Path) -> dict[str, np.ndarray]:
        share = self._image(path) if self._images else self._sound(path)
        real = self._low + (self._high - self._low) * share
        if self._spec.scale is None and np.dtype(self._spec.dtype).kind in "iu":
            info = np.iinfo(self._spec.dtype)
            real = np.clip(np.rint(real), info.min, info.max)
        return {self._spec.name: stored_values(real, self._spec, str(path)).reshape(self._spec.shape)}

    def _image(self, path: Path) -> np.ndarray:
        """Read pixels from 0 (black) to 1 (white)."""
        image, operations = extras.load("pillow", ".Image"), extras.load("pillow", ".ImageOps")
        height, width, channels, channels_first = self._form
        try:
            with image.open(path) as opened:
                upright = operations.exif_transpose(opened).convert(_MODES[channels])
            cut = operations.fit(upright, (width, height), image.Resampling.BILINEAR)
        except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
            raise LoadError(path, f"no image that Pillow reads ({last_line(error)})") from None
        pixels = np.asarray(cut, np.float64).reshape(height, width, channels) / 255
        return pixels.transpose(2, 0, 1) if channels_first else pixels

    def _sound(self, path: Path) -> np.ndarray:
        """Read a sound as amplitudes from 0 to 1, silence at 0.5; cut or pad both ends to the input's length."""
        amplitudes, rate = _read_wave(path)
        if self._rate is None:
            self._rate = rate, path
        if rate != self._rate[0]:
            raise UsageError(f"{path} has {rate} samples a second, {self._rate[1]} {self._rate[0]}; resample them")
        made, length, wanted = np.zeros(self._form[0]), len(amplitudes), self._form[0]
        skip, to = max(0, (length - wanted) // 2), max(0, (wanted - length) // 2)
        part = amplitudes[skip : skip + wanted]
        made[to : to + len(part)] = part
        return (made + 1) / 2


def _listed(folder: Path) -> tuple[list[Path], tuple[str, ...], list[int]]:
    """List the files, the class names (none if the folder has no subfolders) and every file's class."""
    classes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    here = _files(folder)
    if here and classes:
        raise UsageError(
            f"{folder}: {here[0].name} lies beside class folders such as {classes[0].name}; move it into one"
        )
    found = [(path, k) for k, one in enumerate(classes) for path in _files(one)] or [(path, 0) for path in here]
    if not found:
        known = " ".join((*_IMAGES, *_SOUNDS))
        raise UsageError(f"{folder} holds no images or sounds ({known}), neither itself nor in folders by class")
    return [path for path, _ in found], tuple(p.name for p in classes), [k for _, k in found]


def _files(folder: Path) -> list[Path]:
    known = (*_IMAGES, *_SOUNDS)
    return sorted(p for p in folder.iterdir() if p.is_file() and p.suffix.lower() in known and p.name[0] != ".")


def _whole_range(spec: TensorSpec, images: bool) -> Range:
    if np.dtype(spec.dtype).kind not in "iu":
        return (0.0, 1.0) if images else (-1.0, 1.0)
    info, scale, zero = np.iinfo(spec.dtype), spec.scale, spec.zero_point or 0
    ends = (float(info.min), float(info.max + (not images)))  # an amplitude of 1 itself does not occur
    return ends if scale is None else (scale * (ends[0] - zero), scale * (ends[1] - zero))


def _image_form(spec: TensorSpec) -> tuple[int, int, int, bool]:
    """Return height, width, channels and whether channels are the first axis."""
    shape = spec.shape[1:] if spec.shape[:1] == (1,) and len(spec.shape) > 2 else spec.shape
    if len(shape) == 2:
        return *shape, 1, False
    if len(shape) == 3 and shape[2] in _MODES:
        return shape[0], shape[1], shape[2], False
    if len(shape) == 3 and shape[0] in _MODES:
        return shape[1], shape[2], shape[0], True
    raise UsageError(f"the input '{spec.name}' is {spec.type_text}, which no image fills; {_ADVICE}")


def _waveform(spec: TensorSpec) -> tuple[int, int, int, bool]:
    """Return the waveform length taken by an input, in place of `_image_form`."""
    length = prod(spec.shape)
    if max(spec.shape, default=0) != length:
        raise UsageError(f"the input '{spec.name}' is {spec.type_text}, no waveform; {_ADVICE}")
    return length, 1, 1, False


def _read_wave(path: Path) -> tuple[np.ndarray, int]:
    """Read amplitudes from -1 to 1, the mean over all channels, and samples per second."""
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(file.getnframes())
    except OSError as error:
        raise LoadError(path, error.strerror or "cannot be read") from None
    except (wave.Error, EOFError) as error:
        raise LoadError(path, f"no .wav of whole numbers ({str(error) or 'it ends early'})") from None
    data = data[: len(data) - len(data) % (width * channels)]
    if width == 1:
        values = np.frombuffer(data, np.uint8).astype(np.float64) - 128
    else:  # little-endian; filled up to 32 bits from below
        parts = np.frombuffer(data, np.uint8).reshape(-1, width)
        wide = np.zeros((len(parts), 4), np.uint8)
        wide[:, 4 - width :] = parts
        values = wide.view("<i4").reshape(-1).astype(np.float64) / (1 << 8 * (4 - width))
    return values.reshape(-1, channels).mean(axis=1) / (1 << (8 * width - 1)), rate
