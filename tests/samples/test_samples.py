"""Data sets: arrays of an .npz read batch by batch, images and sounds as an input stores them, and what is refused."""

from __future__ import annotations

import importlib.util
import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tvm_cascade.errors import CascadeError, LoadError, MissingToolError, UsageError
from tvm_cascade.samples.columns import FileColumn, columns
from tvm_cascade.samples.sample_set import batches, open_samples
from tvm_cascade.tensor_spec import TensorSpec

INT8 = TensorSpec("x", (1, 3, 2), "int8", 0.5, 1)
FLOAT = TensorSpec("x", (1, 3, 2), "float32")


def stored(path_or_arrays, spec: TensorSpec, span=None) -> np.ndarray:
    """All samples of a set for one input, along a new first axis."""
    found = open_samples(path_or_arrays, [spec], span)
    return np.stack([feed[spec.name] for feed in found.batch(0, found.count)])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_batches_of_a_file_are_its_samples(save, order: str, tmp_path: Path) -> None:
    x = np.asarray(np.random.default_rng(0).standard_normal((7, 3, 2)), ">f4", order=order)
    save(tmp_path / "d.npz", x=x, labels=np.arange(7, dtype=np.uint8))
    found = open_samples(tmp_path / "d.npz", [FLOAT])
    assert found.labels is not None and found.labels.tolist() == list(range(7))
    for first, last in ((0, 3), (3, 6), (6, 7), (2, 4)):  # the last one begins anew
        made = [feed["x"] for feed in found.batch(first, last)]
        assert all(a.shape == (1, 3, 2) and a.dtype == np.float32 for a in made)
        assert np.array_equal(np.concatenate(made), x[first:last])


def test_a_batch_reads_no_more_than_its_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((1000, 64), np.int8))
    (column,) = columns(tmp_path / "d.npz").values()
    assert isinstance(column, FileColumn)
    read = 0

    class Counting:
        def __init__(self, stream) -> None:
            self.stream = stream

        def read(self, size: int) -> bytes:
            nonlocal read
            read += size
            return self.stream.read(size)

    column.rows(0, 1)
    column._stream = Counting(column._stream)  # type: ignore[assignment]
    column.rows(1, 11)
    assert read == 640


def test_batches_hold_few_samples_and_few_bytes() -> None:
    found = open_samples({"x": np.zeros((10, 3, 2), np.int8)}, [INT8])
    assert batches(found, [INT8], 4) == [(0, 4), (4, 8), (8, 10)]
    assert batches(found, [TensorSpec("x", (1, 6 << 20), "int8")], 4) == [(k, k + 2) for k in range(0, 10, 2)]


def test_stored_values_are_taken_and_real_ones_are_quantized() -> None:
    raw = np.arange(-6, 6, dtype=np.int8).reshape(2, 3, 2)
    assert np.array_equal(stored({"x": raw}, INT8)[:, 0], raw)
    real = 0.5 * (raw.astype(np.float64) - 1)
    for dtype in ("float16", "float32", "float64"):
        assert np.array_equal(stored({"x": real.astype(dtype)}, INT8)[:, 0], raw)
    assert stored({"x": np.full((1, 3, 2), 1e9)}, INT8).max() == 127  # the greatest value that is stored
    assert np.array_equal(
        stored({"x": raw.astype(np.int64)}, INT8)[:, 0], 2 * raw + 1
    )  # integers of another type: real
    assert stored({"x": raw}, FLOAT).dtype == np.float32
    indices = TensorSpec("x", (1, 3, 2), "int32", extent=9)
    assert stored({"x": np.full((1, 3, 2), 8, np.int64)}, indices).dtype == np.int32


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({}, "no array 'x'"),
        (
            {"y": np.zeros((2, 3, 2)), "z": np.zeros((2, 3, 2))},
            "for the input of that name; it has y, z; write it by",
        ),
        ({"x": np.zeros((2, 2, 3))}, r"'x' is \[2, 2, 3\]; N samples of this input are \[N, 3, 2\]"),
        ({"x": np.zeros((2, 3, 2)), "labels": np.zeros(3, int)}, "2 of 'x', 3 of 'labels'"),
        ({"x": np.zeros((2, 3, 2)), "label": np.zeros(2, int)}, "'label' is no input; inputs: x; labels: labels"),
        ({"x": np.zeros((2, 3, 2)), "labels": np.zeros(2)}, "give N integers"),
        ({"x": np.zeros((0, 3, 2))}, "no sample"),
        ({"x": np.float32(1)}, "single number"),
        ({"x": np.full((1, 3, 2), np.nan)}, "no numbers"),
    ],
)
def test_data_that_does_not_fit(arrays, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        stored(arrays, INT8)
    if arrays:
        np.savez(tmp_path / "d.npz", **arrays)
        with pytest.raises(UsageError, match=says):
            stored(tmp_path / "d.npz", INT8)


def test_arrays_are_found_by_the_names_that_keras_gives_inputs() -> None:
    one, two = np.zeros((2, 3, 2), np.int8), np.ones((2, 3, 2), np.int8)
    mel, image = (TensorSpec(f"serving_default_{name}:0", (1, 3, 2), "int8", 0.5, 1) for name in ("mel", "image"))
    for name in ("mel", "mel:0", "serving_default_mel", mel.name, "x_test"):  # an only input takes the only array
        found = open_samples({name: two, "labels": np.zeros(2, int)}, [mel])
        assert found.count == 2 and found.batch(0, 1)[0][mel.name].all()
    both = open_samples({"image": one, "mel": two}, [mel, image]).batch(0, 1)[0]
    assert both[mel.name].all() and not both[image.name].any()
    call = 'write it by numpy.savez("D.npz", mel=..., image=..., labels=...)'
    for wrong in ({"mel": one}, {"mel": one, "image": two, "label": one}, {"a": one, "b": two}):
        with pytest.raises(UsageError) as raised:
            open_samples(wrong, [mel, image])
        assert str(raised.value).endswith(call)
    dashed = TensorSpec("in-1", (1, 3, 2), "int8", 0.5, 1)
    with pytest.raises(UsageError, match=r"\*\*\{'in-1': \.\.\.\}, labels="):
        open_samples({"a": one, "b": two}, [dashed])


@pytest.mark.parametrize("value", [0.5, 9, -10])
def test_indices_that_an_input_cannot_take(value: float) -> None:
    with pytest.raises(UsageError, match="'x' has"):
        stored({"x": np.full((1, 3, 2), value)}, TensorSpec("x", (1, 3, 2), "int32", extent=9))


def test_files_that_are_no_data(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    np.savez(tmp_path / "objects.npz", x=np.array([{}], object))
    np.savez(tmp_path / "whole.npz", x=np.zeros((9, 3, 2)))
    (tmp_path / "half.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:300])
    for name in ("none.npz", "one.npy", "objects.npz", "half.npz"):
        with pytest.raises(LoadError, match=name):
            stored(tmp_path / name, INT8)


def test_images_as_the_input_stores_them(tmp_path: Path) -> None:
    pixels = np.arange(30, dtype=np.uint8).reshape(2, 5, 3) * 8
    for folder, shift in (("b", 0), ("a", 1)):
        (tmp_path / folder).mkdir()
        Image.fromarray(pixels + shift).save(tmp_path / folder / "i.png")
    found = open_samples(tmp_path, [TensorSpec("x", (1, 2, 5, 3), "int8", 0.1, -128)])
    assert found.class_names == ("a", "b") and found.labels is not None and found.labels.tolist() == [0, 1]
    assert np.array_equal(found.batch(1, 2)[0]["x"][0], (pixels.astype(int) - 128).astype(np.int8))
    planes = stored(tmp_path / "b", TensorSpec("x", (1, 3, 2, 5), "float32"), ((-1.0, 1.0),))[0, 0]
    assert np.abs(planes - (pixels.transpose(2, 0, 1) / 127.5 - 1)).max() < 1e-6
    low, high = np.array([-2.1, -2.0, -1.8]), np.array([2.2, 2.4, 2.6])  # of each channel, whichever axis counts them
    each = tuple(zip(low, high, strict=True))
    want = low + (high - low) * (pixels / 255)
    last = stored(tmp_path / "b", TensorSpec("x", (1, 2, 5, 3), "float32"), each)[0, 0]
    first = stored(tmp_path / "b", TensorSpec("x", (1, 3, 2, 5), "float32"), each)[0, 0]
    assert np.abs(last - want).max() < 1e-6 and np.array_equal(first, last.transpose(2, 0, 1))
    with pytest.raises(UsageError, match="--range gives 2 ranges, and the input takes 3 channels"):
        stored(tmp_path / "b", TensorSpec("x", (1, 2, 5, 3), "float32"), each[:2])
    grey = stored(tmp_path / "b", TensorSpec("x", (1, 2, 3), "uint8"))[0, 0]
    assert np.array_equal(grey, np.asarray(Image.fromarray(pixels).convert("L"))[:, 1:4])  # around the centre
    assert open_samples(tmp_path / "b", [TensorSpec("x", (1, 2, 2), "uint8")]).labels is None


def write_wave(path: Path, values: np.ndarray, width: int = 2, channels: int = 1, rate: int = 16000) -> None:
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        if width == 1:
            file.writeframes((values + 128).astype(np.uint8).tobytes())
        else:
            file.writeframes(np.asarray(values, "<i4").view(np.uint8).reshape(-1, 4)[:, :width].tobytes())


def test_sounds_are_centred_and_exact(tmp_path: Path) -> None:
    values = np.array([-32768, 7, 100, 32767])
    write_wave(tmp_path / "s.wav", values)
    int16 = TensorSpec("x", (1, 6), "int16")
    assert stored(tmp_path, int16)[0, 0].tolist() == [0, *values, 0]
    assert stored(tmp_path, TensorSpec("x", (1, 2, 1), "int16"))[0].ravel().tolist() == [7, 100]
    assert np.allclose(stored(tmp_path, TensorSpec("x", (4,), "float32"))[0], values / 32768)
    write_wave(tmp_path / "s.wav", np.array([5, 7, -2, -4]), channels=2)
    assert stored(tmp_path, int16)[0, 0].tolist() == [0, 0, 6, -3, 0, 0]
    write_wave(tmp_path / "s.wav", values * 256, width=3)
    assert stored(tmp_path, int16)[0, 0].tolist() == [0, *values, 0]
    write_wave(tmp_path / "s.wav", np.array([-128, 3]), width=1)
    assert stored(tmp_path, int16)[0, 0].tolist() == [0, 0, -32768, 3 * 256, 0, 0]


def folder_of(tmp_path: Path, *names: str) -> Path:
    for k, name in enumerate(names):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("wav"):
            write_wave(path, np.zeros(3, int), rate=8000 + k)
        elif name.endswith("bad.png"):
            path.write_bytes(b"no image")
        else:
            Image.new("L", (2, 2)).save(path)
    return tmp_path


@pytest.mark.parametrize(
    ("names", "shape", "says"),
    [
        ((), (1, 2, 2, 1), "holds no images or sounds"),
        (("i.png", "s.wav"), (1, 2, 2, 1), "images and sounds"),
        (("i.png", "a/i.png"), (1, 2, 2, 1), "i.png lies beside class folders such as a"),
        (("i.png",), (1, 49, 10, 7), "which no image fills; compute what the network takes"),
        (("s.wav",), (1, 49, 10), "no waveform; compute what"),
        (("a.wav", "b.wav"), (1, 4), "b.wav has 8001 samples a second, .*a.wav 8000"),
        (("bad.png",), (1, 2, 2, 1), "no image that Pillow reads"),
    ],
)
def test_folders_that_do_not_fit(names, shape, says: str, tmp_path: Path) -> None:
    with pytest.raises(CascadeError, match=says):
        stored(folder_of(tmp_path, *names), TensorSpec("x", shape, "uint8"))


def test_a_folder_serves_one_input(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has 2 inputs"):
        open_samples(folder_of(tmp_path, "i.png"), [INT8, FLOAT])
    with pytest.raises(UsageError, match="--range"):
        open_samples({"x": np.zeros((1, 3, 2))}, [INT8], (0.0, 1.0))


def test_images_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path, "i.png")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "PIL" else find(name, *a))
    with pytest.raises(MissingToolError, match=r"pillow is not installed: pip install 'tvm-cascade\[images\]'"):
        stored(tmp_path, TensorSpec("x", (1, 2, 2, 1), "uint8"))
