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
how = {"padding": 1, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
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
# ``export --front-end`` puts both into a package, with an example that takes its samples from a microphone's driver: that of
# Zephyr (``--as zephyr``) or of Arduino's library PDM (``--as arduino``).
print(f"next: tvm-cascade export {folder} --as arduino --front-end {front_end} -o {out / 'words'}")
