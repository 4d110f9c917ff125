"""
From Keras to a board
=====================

Train, convert and quantize by TensorFlow's converter with representative data, look where accuracy went, compile for a board by
name, and take the package into your build system. TensorFlow is needed: ``pip install tensorflow``.

.. code-block:: console

    $ python tutorials/14_from_keras_to_a_board.py [--out DIR]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import tvm_cascade
from tvm_cascade.errors import MissingToolError

try:
    import tensorflow as tf  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise SystemExit(f"{error}: pip install tensorflow") from None

parser = argparse.ArgumentParser(description="Bring a network from Keras to a board.")
parser.add_argument("--out", type=Path, default=Path("keras-out"))
out = parser.parse_known_args()[0].out.absolute()
out.mkdir(parents=True, exist_ok=True)
SIZE = 16


# %%
# Pictures
# --------
# Bars on noise: across, upright, or both ways. Yours are photographs, sounds, readings of a sensor.
def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw pictures [count, SIZE, SIZE] with a bar, and their classes: 0 across, 1 upright, 2 both."""
    rng = np.random.default_rng(seed)
    images, labels = rng.normal(0, 0.3, (count, SIZE, SIZE)).astype("float32"), rng.integers(0, 3, count)
    for image, label, at in zip(images, labels, rng.integers(2, SIZE - 2, (count, 2)), strict=True):
        if label != 1:
            image[at[0]] += 1
        if label != 0:
            image[:, at[1]] += 1
    return images, labels


train, train_labels = pictures(600, 0)
test, test_labels = pictures(200, 1)

# %%
# Train
# -----
# A small network and a minute of training, or less.
tf.keras.utils.set_random_seed(0)
keras = tf.keras
net = keras.Sequential([keras.Input((SIZE, SIZE, 1), batch_size=1, name="image")])
for channels, stride in ((8, 1), (16, 2), (16, 2)):
    net.add(keras.layers.Conv2D(channels, 3, stride, padding="same", use_bias=False))
    net.add(keras.layers.BatchNormalization())
    net.add(keras.layers.ReLU())
net.add(keras.layers.GlobalMaxPooling2D())
net.add(keras.layers.Dense(3))
training = keras.Sequential([keras.Input((SIZE, SIZE, 1)), *net.layers])  # with a batch of any size
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
training.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
training.fit(train[..., None], train_labels, batch_size=50, epochs=12, verbose=0)
right = training.evaluate(test[..., None], test_labels, verbose=0)[1]
print(f"{100 * right:.1f} % of the test pictures are right in Keras")


# %%
# Convert and quantize
# --------------------
# The representative data decide the ranges of the activations. The last line lets the program take and return int8.
def samples() -> object:
    """Yield the inputs of one call at a time."""
    for image in train[:300, ..., None]:
        yield [image[None]]


converter = tf.lite.TFLiteConverter.from_keras_model(net)
converter.optimizations = [tf.lite.Optimize.DEFAULT]
converter.representative_dataset = samples
converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
converter.inference_input_type = converter.inference_output_type = tf.int8
(out / "int8.tflite").write_bytes(converter.convert())
np.savez(out / "test.npz", image=test[..., None], labels=test_labels)

# %%
# Where did accuracy go?
# ----------------------
# The data are float: they are stored as the input's int8. By layer, each tensor is compared with the same network in floats.
report = tvm_cascade.validate(out / "int8.tflite", data=out / "test.npz", by_layer="own")
print(report.to_text())
assert report.accuracy is not None and report.accuracy > right - 0.05

# %%
# To a board
# ----------
# ``plan`` says whether the network fits a board by its name. ``compile`` writes the project, ``run`` compares it with the
# reference kernels in an emulator of the board's core, and ``export`` makes a package for your build system. Its example tests
# the network on the device.
plan = tvm_cascade.plan(out / "int8.tflite", target="nucleo-f446re")
print(plan.to_text())
try:
    made = tvm_cascade.compile(out / "int8.tflite", target="nucleo-f446re", output=out / "firmware")
    print(made.to_text())
    done = tvm_cascade.run(out / "firmware", check=out / "int8.tflite")
except MissingToolError as error:
    raise SystemExit(f"the rest needs a cross compiler and an emulator: {error}") from None
print(done.to_text())
assert done.match
files = tvm_cascade.export(out / "firmware", kind="platformio", check=out / "int8.tflite", output=out / "lib")
print(f"{len(files)} files for PlatformIO in {out / 'lib'}")
