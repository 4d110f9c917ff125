"""Keras applications as int8 `.tflite` files: `python benchmarks/zoo_convert.py FOLDER [NAME...]`.

Runs in an environment of its own with TensorFlow (`pip install tensorflow-cpu`); nothing else here needs that. Weights
are random (`weights=None`) from a fixed seed and the representative data too: shapes and arithmetic are those of the
trained networks, values are not. Batch normalizations take the statistics of a random batch, without which activations
would shrink from layer to layer until no multiplier could hold them (LiteRT aborts on such a file).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

APPLICATIONS = {
    "mobilenet_v2": ("MobileNetV2", 224),
    "efficientnet_b0": ("EfficientNetB0", 224),
    "resnet50": ("ResNet50", 224),
    "densenet121": ("DenseNet121", 224),
    "nasnet_mobile": ("NASNetMobile", 224),
    "inception_v3": ("InceptionV3", 299),
}


def convert(application: str, size: int) -> bytes:
    """The application, post-training quantized to int8 inside and out."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(7)
    image = tf.keras.Input(batch_shape=(1, size, size, 3))  # a fixed batch, without which SHAPE remains in the file
    model = getattr(tf.keras.applications, application)(weights=None, input_tensor=image)
    rng = np.random.default_rng(7)
    _normalize(model, rng.uniform(-1, 1, (1, size, size, 3)).astype(np.float32))
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: (
        [rng.uniform(-1, 1, (1, size, size, 3)).astype(np.float32)] for _ in range(2)
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


def _normalize(model: tf.keras.Model, batch: np.ndarray) -> None:
    """Statistics of every normalization from `batch`, and logits that are far enough apart to tell classes."""
    for layer in model.layers:
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            layer.momentum = 0.0
    model(batch, training=True)
    *weights, bias = model.layers[-1].get_weights()
    model.layers[-1].set_weights([4 * w for w in weights] + [bias])


def main() -> None:
    """Convert what is not there yet."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or APPLICATIONS:
        path = folder / f"{name}.tflite"
        if path.exists():
            continue
        started = time.perf_counter()
        path.write_bytes(convert(*APPLICATIONS[name]))
        print(f"{name}: {path.stat().st_size} bytes in {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
