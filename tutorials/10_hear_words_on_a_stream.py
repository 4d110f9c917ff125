"""
Hear words on a stream
======================

A microphone never stops. Compute what is new, and nothing twice.

.. code-block:: console

    $ python tutorials/10_hear_words_on_a_stream.py [--out DIR]

A network that spots keywords looks at a window of half a second, fifty times a second: 24 of 25 rows were there a frame ago.
Here two "words" are whistled, one that rises and one that falls, into .wav files that the tutorial makes itself. They become
rows of features by the audio front end, in C; numpy finds a small network for them, a ``.tflite`` file of int8; and that is
compiled with ``--hop 1``: a frame takes one new row and gives what the whole window would, bit for bit. At the end one C
program goes from the samples of a file to words. (Why things are so: rfc 0019.)
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np

import tvm_cascade
from tvm_cascade.testing.tflite import ModelWriter

parser = argparse.ArgumentParser(description="Hear words on a stream of sound.")
parser.add_argument("--out", type=Path, default=Path("stream-out"))
out = parser.parse_known_args()[0].out.absolute()
out.mkdir(parents=True, exist_ok=True)
if shutil.which("gcc") is None:
    print("gcc is not installed: this tutorial compiles C")
    raise SystemExit
board = all(shutil.which(tool) for tool in ("arm-none-eabi-gcc", "qemu-system-arm"))

# %%
# Sound
# -----
# Whistles that rise or fall by two octaves, of any pitch, length and loudness, in noise.
RATE, STEP, ROWS, CHANNELS = 16000, 320, 25, 40  # samples a second and a row; rows of a window, features of a row
WORDS = ("-", "up", "down")
rng = np.random.default_rng(0)


def recording(path: Path, count: int) -> list[tuple[int, int]]:
    """A .wav file of `count` words; returns the row in which each ends, and which it is."""
    pieces, ends, at = [], [], 0
    for word in rng.integers(1, 3, count):
        length = int(RATE * rng.uniform(0.32, 0.42))
        low = np.log(rng.uniform(350, 700))
        pitch = np.linspace(low, low + np.log(4.0), length)[:: 1 if word == 1 else -1]
        whistle = np.sin(np.cumsum(2 * np.pi * np.exp(pitch) / RATE)) * np.hanning(length) * rng.uniform(3000, 12000)
        silence = np.zeros(int(RATE * rng.uniform(0.7, 1.2)))
        pieces += [silence, whistle]
        at += len(silence) + length
        ends.append((at // STEP, int(word)))
    sound = np.concatenate([*pieces, np.zeros(RATE)])
    sound += rng.normal(0, 150, len(sound))
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(sound.astype("<i2").tobytes())
    return ends


training = recording(out / "training.wav", 60)
test = recording(out / "test.wav", 12)

# %%
# Features
# --------
# ``front-end`` writes the audio front end of TensorFlow Lite Micro as C; its defaults are those of micro_speech. What the
# network learns from is what it will hear: the same C, built for this machine.
front_end = out / "audio"
shutil.rmtree(front_end, ignore_errors=True)
subprocess.run((sys.executable, "-m", "tvm_cascade.cli", "front-end", "-o", str(front_end)), check=True)
library = out / "audio.so"
subprocess.run(("gcc", "-O2", "-shared", "-fPIC", str(front_end / "audio.c"), "-o", str(library)), check=True)
audio = ctypes.CDLL(str(library))


def features(path: Path) -> np.ndarray:
    """Rows of int8 features of a .wav file."""
    with wave.open(str(path), "rb") as file:
        sound = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    audio.audio_reset()
    row, quantized, rows = (ctypes.c_uint16 * CHANNELS)(), (ctypes.c_int8 * CHANNELS)(), []
    for at in range(0, len(sound) - STEP + 1, STEP):
        if audio.audio_push(sound[at : at + STEP].ctypes.data_as(ctypes.c_void_p), row):
            audio.audio_quantize(row, quantized)
            rows.append(list(quantized))
    return np.array(rows, "int8")


heard = features(out / "training.wav")
print(f"{len(heard)} rows of {heard.shape[1]} features, {heard.min()} to {heard.max()}")

# %%
# A network
# ---------
# Convolution over time (five rows, all channels), mean over the window, dense layer. Its filters are pieces of the words
# themselves, less their mean; the dense layer is a least-squares fit. Any framework would do instead. What matters for a
# stream is the form: valid (or causal) convolutions over time, and nothing that reads all rows but the mean in front of the end.
TAPS, FILTERS = 5, 32
windows = np.lib.stride_tricks.sliding_window_view(heard, ROWS, axis=0).transpose(0, 2, 1)  # [frames, rows, channels]
labels = np.zeros(len(windows), int)
known = np.ones(len(windows), bool)  # windows with part of a word only teach nothing
for end, word in training:
    known[max(end - 18 - ROWS, 0) : end + ROWS] = False
    known[end - ROWS : end - ROWS + 4] = True
    labels[end - ROWS : end - ROWS + 4] = word
known[: ROWS * 2] = True  # the silence at the begin
x = (windows.astype("f4") + 128) / 256
words = x[labels > 0]
chosen = rng.integers(0, len(words), FILTERS), rng.integers(4, ROWS - TAPS - 2, FILTERS)
filters = np.stack([words[k, t : t + TAPS] for k, t in zip(*chosen, strict=True)])
filters -= filters.mean(axis=(1, 2), keepdims=True)
filters /= np.linalg.norm(filters, axis=(1, 2), keepdims=True) + 1e-6
patches = np.lib.stride_tricks.sliding_window_view(x[known], TAPS, axis=1)  # [frames, positions, channels, taps]
sums = np.einsum("npct,ftc->npf", patches, filters, optimize=True)
bias = -sums.mean(axis=(0, 1))
maps = np.maximum(sums + bias, 0)
means = maps.mean(axis=1)
wanted = np.eye(3)[labels[known]]
share = 1 / np.bincount(labels[known], minlength=3)[labels[known]]  # every word weighs as much
given = np.column_stack([means, np.ones(len(means))])
fit = np.linalg.solve(given.T * share @ given + 1e-6 * np.eye(FILTERS + 1), given.T * share @ wanted)
print(f"training: {np.mean((given @ fit).argmax(1) == labels[known]):.1%} of {len(given)} windows")

# %%
# As int8, written as a ``.tflite`` file.


def spread(values: np.ndarray) -> float:
    return float(np.abs(values).max() / 127)


writer = ModelWriter()
window = writer.activation((1, ROWS, 1, CHANNELS), "int8", 1 / 256, -128, name="window")
scale_w, scale_map, scale_mean = spread(filters), float(maps.max() / 255), float(means.max() / 255)
scale_fit, scale_out = spread(fit[:-1]), spread(given @ fit)
convolved = writer.tensor((1, ROWS - TAPS + 1, 1, FILTERS), "int8", scale_map, -128)
taps = writer.constant(np.round(filters[:, :, None] / scale_w).astype("int8"), scale_w)
biases = writer.constant(np.round(bias * 256 / scale_w).astype("int32"), scale_w / 256)
how: dict[str, Any] = {"padding": 1, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
how["fusedActivationFunction"] = 1
writer.operator("CONV_2D", [window, taps, biases], [convolved], "Conv2DOptions", inner=True, **how)
pooled = writer.tensor((1, FILTERS), "int8", scale_mean, -128)
axes = writer.constant(np.array([1, 2], "int32"))
writer.operator("MEAN", [convolved, axes], [pooled], "ReducerOptions", inner=True, keepDims=False)
weights = writer.constant(np.round(fit[:-1].T / scale_fit).astype("int8"), scale_fit)
offsets = writer.constant(np.round(fit[-1] / (scale_fit * scale_mean)).astype("int32"), scale_fit * scale_mean)
scores = writer.tensor((1, 3), "int8", scale_out, name="scores")
writer.operator("FULLY_CONNECTED", [pooled, weights, offsets], [scores], "FullyConnectedOptions")
model = out / "words.tflite"
model.write_bytes(writer.finish())

# %%
# A frame instead of a window
# ---------------------------
# ``hop=1``: every call takes one new row. What later frames need again stays in the arena: four rows of the input, and the
# rows in front of the mean.
plan = tvm_cascade.plan(model, target="cortex-m4", hop=1, axis="time")
print(plan.to_text())
assert plan.frame is not None and plan.macs * 10 < plan.frame["whole_macs"]
folder = out / "firmware"
tvm_cascade.compile(model, target="cortex-m4" if board else "host", hop=1, emit="c", output=folder, name="words")

# %%
# ``run --frames`` makes one call after the other, on the emulated Cortex-M4 where it is installed. With ``check`` the reference
# computes the whole window of every frame beside it. On the command line, both steps are:
#
# .. code-block:: console
#
#     $ tvm-cascade compile words.tflite --target cortex-m4 --hop 1 --axis time -o firmware
#     $ tvm-cascade run firmware --frames frames.npz --outputs scores.npz --check words.tflite
rows = features(out / "test.wav")
np.savez(out / "frames.npz", window=rows[:, None, None])
done = tvm_cascade.run(folder, frames=out / "frames.npz", outputs=out / "scores.npz", check=model)
print(done.to_text())
assert done.match
best = np.load(out / "scores.npz")["scores"].reshape(-1, 3).argmax(1)


def spotted(answers: np.ndarray) -> list[tuple[int, int]]:
    """The row in which a word begins to be the answer for three rows, and which; half a second apart."""
    found: list[tuple[int, int]] = []
    for row in range(ROWS + 2, len(answers)):
        word = answers[row]
        if word and (answers[row - 2 : row + 1] == word).all() and (not found or row - found[-1][0] > 25):
            found.append((row, int(word)))
    return found


said = [WORDS[word] for _, word in test]
print("said  ", *said)
print("heard ", *(WORDS[word] for _, word in spotted(best)))
right = sum(any(word == w and -15 < row - end < 12 for row, w in spotted(best)) for end, word in test)
print(f"{right} of {len(test)} words")
assert right >= len(test) - 2

# %%
# From samples to words in C
# --------------------------
# The front end takes 320 samples and has a row; ``words_push`` takes the row; ``words_run`` without inputs answers for the
# window that ends there. There is no window and no ring buffer in the program. ``words_reset`` forgets all rows, after a gap
# of the sound for instance; the answers mean something once 25 rows have come again.
LISTEN = """#include "audio.h"
#include "words.h"
#include <stdio.h>

int main(int count, char **arguments)
{
    int16_t samples[AUDIO_STEP]; /* from a file here; in a product, from the microphone's driver */
    uint16_t features[AUDIO_CHANNELS];
    int8_t row[AUDIO_CHANNELS];
    int8_t scores[WORDS_SCORES_SIZE];
    struct words_outputs outputs = {scores};
    FILE *sound = fopen(arguments[count - 1], "rb");
    if (sound == NULL || fseek(sound, 44, SEEK_SET) != 0) { /* the head of a .wav file */
        return 1;
    }
    audio_reset();
    words_reset();
    while (fread(samples, sizeof samples, 1, sound) == 1) {
        if (audio_push(samples, features) == 0) {
            continue; /* the first window of sound is not full */
        }
        audio_quantize(features, row);
        if (words_push(row) != WORDS_OK || words_run(NULL, &outputs) != WORDS_OK) {
            return 1;
        }
        printf("%d %d %d\\n", scores[0], scores[1], scores[2]);
    }
    return fclose(sound);
}
"""
(out / "listen.c").write_text(LISTEN)
sources = [
    str(path) for path in (out / "listen.c", front_end / "audio.c", folder / "words.c", folder / "words_weights.c")
]
flags = ("-std=c11", "-O1", "-Wall", "-Wextra", f"-I{front_end}", f"-I{folder}")
subprocess.run(("gcc", *flags, *sources, "-o", str(out / "listen"), "-lm"), check=True)
ran = subprocess.run((str(out / "listen"), str(out / "test.wav")), check=True, capture_output=True, text=True)
answers = np.array([line.split() for line in ran.stdout.splitlines()], int)
assert (answers == np.load(out / "scores.npz")["scores"].reshape(-1, 3)).all()
print(f"{len(answers)} frames in C, each as before; heard", *(WORDS[w] for _, w in spotted(answers.argmax(1))))

# %%
# Networks that keep their states themselves
# ------------------------------------------
# Public networks for streams are often written for one row already. microWakeWord and Google's kws_streaming keep the last
# rows of every layer in variables of the file (``VAR_HANDLE``, ``READ_VARIABLE``, ``ASSIGN_VARIABLE``); Silero VAD and DTLN
# take them as inputs and return them as outputs. Here is the network above in both forms: int8 with variables, float with
# inputs and outputs. Each keeps four rows of features, and twenty of the maps in front of the mean.
KEPT = {"features": (TAPS - 1, CHANNELS), "maps": (ROWS - TAPS, FILTERS)}


def kept(writer: ModelWriter, name: str, new: int, dtype: str, numbers: tuple[Any, ...]) -> int:
    """Join the rows kept under a name with the new one behind them, and keep the last of these for the next call."""
    count, depth = KEPT[name]
    whole = writer.tensor((1, count + 1, 1, depth), dtype, *numbers)
    after = writer.tensor((1, count, 1, depth), dtype, *numbers, name=f"{name}_next")
    if dtype == "int8":
        handle, before = writer.variable(name), writer.tensor((1, count, 1, depth), dtype, *numbers)
        writer.operator("READ_VARIABLE", [handle], [before], "ReadVariableOptions", inner=True)
    else:
        before = writer.activation((1, count, 1, depth), dtype, name=name)
    writer.operator("CONCATENATION", [before, new], [whole], "ConcatenationOptions", inner=True, axis=1)
    cut = [writer.constant(np.array(v, "int32")) for v in ([0, 1, 0, 0], [1, count + 1, 1, depth], [1, 1, 1, 1])]
    writer.operator("STRIDED_SLICE", [whole, *cut], [after], "StridedSliceOptions", inner=dtype == "int8")
    if dtype == "int8":
        writer.operator("ASSIGN_VARIABLE", [handle, after], [], "AssignVariableOptions", inner=True)
    return whole


def streaming(dtype: str) -> Path:
    """Write the network of one row as a ``.tflite`` file."""
    writer, whole = ModelWriter(), dtype == "int8"
    known: list[tuple[Any, ...]] = [(1 / 256, -128), (scale_map, -128), (scale_mean, -128), (scale_out, 0)]
    of_rows, of_maps, of_means, of_scores = known if whole else [()] * 4
    for name, numbers in (("features", of_rows), ("maps", of_maps)) if whole else ():  # zero is stored as -128
        writer.begin_with({name: np.full((1, KEPT[name][0], 1, KEPT[name][1]), -128, "int8")}, *numbers)
    row = writer.activation((1, 1, 1, CHANNELS), dtype, *of_rows, name="row")
    parameters = (filters[:, :, None], bias, fit[:-1].T, fit[-1])
    steps = (scale_w, scale_w / 256, scale_fit, scale_fit * scale_mean)
    types = ("int8", "int32", "int8", "int32")
    taps, biases, weights, offsets = (
        writer.constant(np.round(data / step).astype(kind), step) if whole else writer.constant(data.astype("f4"))
        for data, step, kind in zip(parameters, steps, types, strict=True)
    )
    made = writer.tensor((1, 1, 1, FILTERS), dtype, *of_maps)
    window = kept(writer, "features", row, dtype, of_rows)
    writer.operator("CONV_2D", [window, taps, biases], [made], "Conv2DOptions", inner=True, **how)
    maps = kept(writer, "maps", made, dtype, of_maps)
    mean = writer.tensor((1, FILTERS), dtype, *of_means)
    axes = writer.constant(np.array([1, 2], "int32"))
    writer.operator("MEAN", [maps, axes], [mean], "ReducerOptions", inner=True, keepDims=False)
    scores = writer.tensor((1, 3), dtype, *of_scores, name="scores")
    writer.operator("FULLY_CONNECTED", [mean, weights, offsets], [scores], "FullyConnectedOptions")
    path = out / f"stream_{dtype}.tflite"
    path.write_bytes(writer.finish())
    return path


# %%
# ``state`` pairs inputs with outputs (``--state maps=maps_next``); variables need no option. States lie in the arena, begin
# as the file says, and are reset, saved and loaded by functions of the header. They hold the new row too: what the file
# joins for a call lies nowhere beside them. A clock tells how long a frame takes:
#
# .. code-block:: console
#
#     $ tvm-cascade compile stream_float32.tflite --target cortex-m4 --clock 80MHz \\
#         --state features=features_next --state maps=maps_next -o stream_float32
#     $ tvm-cascade run stream_float32 --frames rows.npz --check stream_float32.tflite
print("form             type     arena  of it states  instructions   ms a frame at 80 MHz")
whole_window = np.load(out / "scores.npz")["scores"].reshape(-1, 3)
for dtype, form in (("int8", "variables"), ("float32", "inputs, outputs")):
    file, made = streaming(dtype), out / f"stream_{dtype}"
    pairs = {} if dtype == "int8" else {name: f"{name}_next" for name in KEPT}
    target = "cortex-m4" if board else "host"
    project = tvm_cascade.compile(
        file, target=target, state=pairs, clock=80_000_000, emit="c", output=made, name=made.name
    )
    given = rows if dtype == "int8" else (rows.astype("f4") + 128) / 256
    np.savez(out / "rows.npz", row=given[:, None, None])
    ran = tvm_cascade.run(made, frames=out / "rows.npz", outputs=out / "streamed.npz", check=file)
    assert ran.match
    streamed = np.load(out / "streamed.npz")["scores"].reshape(-1, 3)
    if dtype == "int8":  # the same numbers as of whole windows, from the first full one on
        assert (streamed[ROWS - 1 :] == whole_window[ROWS - 1 :]).all()
    bytes_kept = sum(state["bytes"] for state in project.to_dict().get("states", []))
    figures = f"{ran.arena_bytes:6}  {bytes_kept:12}  {ran.instructions or 0:12}  {project.milliseconds or 0:11.3f}"
    print(f"{form:16} {dtype:8} {figures}")
    print("heard ", *(WORDS[w] for _, w in spotted(streamed.argmax(1))))

# %%
# ``export --front-end`` puts both into a package, with an example that takes its samples from a microphone's driver: that of
# Zephyr (``--as zephyr``) or of Arduino's library PDM (``--as arduino``).
print(f"next: tvm-cascade export {folder} --as arduino --front-end {front_end} -o {out / 'words'}")
