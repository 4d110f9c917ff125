"""Small Keras networks as `.tflite` files: `python benchmarks/keras_files.py FOLDER [NAME ...]`.

Runs in an environment with TensorFlow (`pip install tensorflow-cpu`); `keras_networks.py` compares what is made of the files.
Every network is converted four times: in float, with int8 weights alone (no data), to int8, and to int16 with int8 weights.
Weights and data are random, from a fixed seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf

L: Any = tf.keras.layers
KINDS = ("float", "dynamic", "int8", "int16x8")
IMAGE, SERIES, IDS = (12, 12, 3), (9, 4), (7,)  # shapes of inputs without the batch
WORDS = 1000  # what the sweep draws ids below
Network = Callable[[Any], Any]


def _residual(x: Any) -> Any:
    y = L.Conv2D(8, 3, padding="same", activation="relu")(x)
    z = L.BatchNormalization()(L.Conv2D(8, 3, padding="same")(y))
    return L.ReLU()(L.Add()([y, z]))


def _bottleneck(x: Any) -> Any:
    y = L.ReLU(6.0)(L.BatchNormalization()(L.Conv2D(18, 1)(x)))
    y = L.ReLU(6.0)(L.BatchNormalization()(L.DepthwiseConv2D(3, padding="same")(y)))
    return L.Add()([x, L.Conv2D(3, 1)(y)])


def _inception(x: Any) -> Any:
    parts = [L.Conv2D(4, 1)(x), L.Conv2D(4, 3, padding="same")(x), L.MaxPooling2D(3, 1, padding="same")(x)]
    return L.Concatenate()(parts)


def _u_net(x: Any) -> Any:
    down = L.Conv2D(6, 3, padding="same", activation="relu")(x)
    deep = L.Conv2D(8, 3, strides=2, padding="same", activation="relu")(down)
    up = L.Conv2DTranspose(6, 3, strides=2, padding="same")(deep)
    return L.Conv2D(2, 1, activation="sigmoid")(L.Concatenate()([down, up]))


def _excited(x: Any) -> Any:
    y = L.Conv2D(8, 3, activation="relu")(x)
    s = L.Dense(8, activation="sigmoid")(L.Dense(3, activation="relu")(L.GlobalAveragePooling2D()(y)))
    return L.Multiply()([y, L.Reshape((1, 1, 8))(s)])


def _classified(x: Any) -> Any:
    return L.Dense(5, activation="softmax")(L.Flatten()(L.MaxPooling2D(2)(L.Conv2D(6, 3, activation="relu")(x))))


def _attention(x: Any) -> Any:
    y = L.MultiHeadAttention(2, 4)(x, x)
    return L.Dense(3)(L.LayerNormalization()(L.Add()([x, y])))


def _merged(x: Any) -> Any:
    a, b = L.Conv2D(4, 1)(x), L.Conv2D(4, 3, padding="same")(x)
    return L.Concatenate()([L.Subtract()([a, b]), L.Multiply()([a, b]), L.Maximum()([a, b]), L.Average()([a, b])])


def _activated(*names: str) -> Network:
    def network(x: Any) -> Any:
        return L.Concatenate()([L.Activation(name)(L.Conv2D(4, 1)(x)) for name in names])

    return network


def _chain(*layers: Callable[[], Any]) -> Network:
    def network(x: Any) -> Any:
        for layer in layers:
            x = layer()(x)
        return x

    return network


OF_IMAGES: Mapping[str, Network] = {
    "classifier": _classified,
    "residual": _residual,
    "bottleneck": _bottleneck,
    "inception": _inception,
    "u_net": _u_net,
    "squeeze_excite": _excited,
    "merges": _merged,
    "strided": _chain(lambda: L.Conv2D(8, 5, strides=2, padding="same"), lambda: L.Conv2D(4, 3, strides=(2, 1))),
    "dilated": _chain(
        lambda: L.Conv2D(6, 3, dilation_rate=2, padding="same"), lambda: L.DepthwiseConv2D(3, dilation_rate=2)
    ),
    "multiplied": _chain(lambda: L.DepthwiseConv2D(3, depth_multiplier=3), lambda: L.Conv2D(4, 1, activation="relu")),
    "separable": _chain(
        lambda: L.SeparableConv2D(8, 3, padding="same", activation="relu"), lambda: L.SeparableConv2D(4, 3)
    ),
    "grouped": _chain(lambda: L.Conv2D(8, 1), lambda: L.Conv2D(12, 3, groups=4, padding="same")),
    "transposed": _chain(lambda: L.Conv2DTranspose(5, 4, strides=2), lambda: L.Conv2DTranspose(3, 3, padding="same")),
    "pools": _chain(
        lambda: L.AveragePooling2D(2),
        lambda: L.MaxPooling2D(3, 1, padding="same"),
        lambda: L.AveragePooling2D(3, 1, padding="same"),
    ),
    "global_pools": lambda x: L.Concatenate()([L.GlobalAveragePooling2D()(x), L.GlobalMaxPooling2D()(x)]),
    "resized": _chain(
        lambda: L.UpSampling2D(2), lambda: L.Conv2D(4, 3), lambda: L.UpSampling2D((2, 3), interpolation="bilinear")
    ),
    "padded": _chain(
        lambda: L.ZeroPadding2D(((1, 0), (2, 1))), lambda: L.Conv2D(4, 3), lambda: L.Cropping2D(((1, 2), (0, 3)))
    ),
    "sigmoids": _activated("sigmoid", "tanh", "hard_sigmoid", "softmax"),
    "rectifiers": _activated("relu", "relu6", "leaky_relu", "elu", "selu"),
    "smooth": _activated("swish", "gelu", "hard_swish", "softplus", "softsign", "exponential"),
    "prelu": _chain(lambda: L.Conv2D(6, 3), lambda: L.PReLU(shared_axes=[1, 2], alpha_initializer="random_uniform")),
    "normalized": _chain(lambda: L.Conv2D(6, 3), L.LayerNormalization, lambda: L.GroupNormalization(2)),
    "moved": _chain(lambda: L.Permute((3, 1, 2)), lambda: L.Reshape((6, 6, 12)), lambda: L.Conv2D(4, 1)),
    "by_rows": _chain(lambda: L.Reshape((12, 36)), lambda: L.TimeDistributed(L.Dense(5, activation="relu"))),
}
OF_SERIES: Mapping[str, Network] = {
    "conv1d": _chain(
        lambda: L.Conv1D(8, 3, activation="relu"), lambda: L.Conv1D(4, 2, strides=2), L.GlobalAveragePooling1D
    ),
    "causal": _chain(
        lambda: L.Conv1D(8, 3, padding="causal", dilation_rate=2), lambda: L.Conv1D(4, 3, padding="causal")
    ),
    "pools1d": _chain(lambda: L.MaxPooling1D(2), lambda: L.AveragePooling1D(2), lambda: L.UpSampling1D(2)),
    "depthwise1d": _chain(lambda: L.DepthwiseConv1D(3, padding="same"), lambda: L.SeparableConv1D(6, 3)),
    "lstm": _chain(lambda: L.LSTM(6), lambda: L.Dense(3)),
    "lstm_sequences": _chain(lambda: L.LSTM(6, return_sequences=True), lambda: L.LSTM(5, return_sequences=True)),
    "lstm_both_ways": _chain(lambda: L.Bidirectional(L.LSTM(5)), lambda: L.Dense(3, activation="softmax")),
    "gru": _chain(lambda: L.GRU(6, return_sequences=True), lambda: L.Dense(3)),
    "gru_unrolled": _chain(lambda: L.GRU(5, unroll=True, reset_after=False)),
    "rnn": _chain(lambda: L.SimpleRNN(6), lambda: L.Dense(3, activation="sigmoid")),
    "attention": _attention,
    "mixer": _chain(
        lambda: L.Permute((2, 1)), lambda: L.Dense(9, activation="gelu"), lambda: L.Permute((2, 1)), lambda: L.Dense(4)
    ),
}
OF_IDS: Mapping[str, Network] = {
    "bag_of_words": _chain(
        lambda: L.Embedding(WORDS, 6), L.GlobalAveragePooling1D, lambda: L.Dense(3, activation="softmax")
    ),
    "words_lstm": _chain(lambda: L.Embedding(WORDS, 6), lambda: L.LSTM(5), lambda: L.Dense(2)),
    "words_conv": _chain(
        lambda: L.Embedding(WORDS, 6), lambda: L.Conv1D(8, 3, activation="relu"), L.GlobalMaxPooling1D
    ),
}
NETWORKS = {
    **{name: (IMAGE, "float32", network) for name, network in OF_IMAGES.items()},
    **{name: (SERIES, "float32", network) for name, network in OF_SERIES.items()},
    **{name: (IDS, "int32", network) for name, network in OF_IDS.items()},
}


def converted(name: str, kind: str) -> bytes:
    """The file of a network."""
    shape, dtype, network = NETWORKS[name]
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(7)
    rng = np.random.default_rng(7)
    given = tf.keras.Input(batch_shape=(1, *shape), dtype=dtype)
    converter = tf.lite.TFLiteConverter.from_keras_model(tf.keras.Model(given, network(given)))
    if kind != "float":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if kind in ("int8", "int16x8"):
        converter.representative_dataset = lambda: ([_drawn(rng, shape, dtype)] for _ in range(8))
        wide = tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
        converter.target_spec.supported_ops = [wide if kind == "int16x8" else tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    if kind == "int8" and dtype == "float32":
        converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "int32":
        return rng.integers(0, WORDS, (1, *shape)).astype(dtype)
    return rng.uniform(-1, 1, (1, *shape)).astype(dtype)


def write(folder: Path, name: str, kinds: Sequence[str]) -> None:
    """The files of a network; where the converter refuses it, a text that says why."""
    for kind in kinds:
        try:
            (folder / f"{name}.{kind}.tflite").write_bytes(converted(name, kind))
        except Exception as error:
            lines = str(error).strip().splitlines()
            (folder / f"{name}.{kind}.txt").write_text(lines[-1] if lines else type(error).__name__)


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    if len(names) > 1 and names[1] in KINDS:  # of a process of its own, since the converter may crash
        return write(folder, names[0], names[1:])
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or list(NETWORKS):
        while missing := [k for k in KINDS if not list(folder.glob(f"{name}.{k}.*"))]:
            subprocess.run([sys.executable, __file__, str(folder), name, *missing], check=False)
            left = [k for k in missing if not list(folder.glob(f"{name}.{k}.*"))]
            if left:
                (folder / f"{name}.{left[0]}.txt").write_text("the converter crashed")
    return None


if __name__ == "__main__":
    main()
