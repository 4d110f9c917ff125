"""Random single-operator cases of operators on one tensor; see `operator_cases`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from tvm_cascade.testing.operator_cases import Generator, dims, log_uniform, quantized, zero_point
from tvm_cascade.testing.tflite import ModelWriter


def _input(rng: np.random.Generator, dtype: str, w: ModelWriter, hi: float = 1.0) -> tuple[int, tuple[int, ...], float]:
    shape = dims(rng, 2, 5, 5, 7)[4 - int(rng.integers(1, 5)) :]
    scale, zero = quantized(rng, dtype, 1e-3, hi)
    return w.activation(shape, dtype, scale, zero), shape, scale


def _fixed_output(name: str, scale: float, lowest: int) -> Generator:
    """Operators whose output quantization the reference prescribes; `lowest` is int8's zero point."""

    def generate(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
        if dtype == "int16":
            shape = dims(rng, 2, 5, 5, 7)[4 - int(rng.integers(1, 5)) :]
            step = float(rng.choice([1 / 4096, 1 / 2048, 1 / 8192, log_uniform(rng, 1e-4, 0.1)]))
            x = w.activation(shape, dtype, step, 0)
            w.operator(name, [x], [w.tensor(shape, dtype, 1 / 32768, 0)])
            return
        x, shape, _ = _input(rng, dtype, w)
        zero = lowest + (128 if dtype == "uint8" else 0)
        w.operator(name, [x], [w.tensor(shape, dtype, scale, zero)])

    return generate


def hard_swish(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    x, shape, scale = _input(rng, dtype, w, 0.3)
    out = w.tensor(shape, dtype, float(np.float32(scale * log_uniform(rng, 0.1, 3.0))), zero_point(rng, dtype))
    w.operator("HARD_SWISH", [x], [out], "HardSwishOptions")


def leaky_relu(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    x, shape, scale = _input(rng, dtype, w)
    out = w.tensor(shape, dtype, float(np.float32(scale * log_uniform(rng, 0.1, 4.0))), zero_point(rng, dtype))
    alpha = float(np.float32(rng.choice([0.01, 0.1, 0.3, 1.5, -0.2])))
    w.operator("LEAKY_RELU", [x], [out], "LeakyReluOptions", alpha=alpha)


def abs_(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    x, shape, scale = _input(rng, dtype, w)
    same = rng.random() < 0.3
    out_scale = scale if same else float(np.float32(scale * log_uniform(rng, 0.3, 3.0)))
    w.operator("ABS", [x], [w.tensor(shape, dtype, out_scale, zero_point(rng, dtype))], "AbsOptions")


def exp(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    x, shape, _ = _input(rng, dtype, w, 0.05 if dtype != "int16" else 2.5e-3)  # beyond e^88 floats are infinite
    out = w.tensor(shape, dtype, log_uniform(rng, 1e-2, 10.0), zero_point(rng, dtype))
    w.operator("EXP", [x], [out], "ExpOptions")


def log(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    x, shape, _ = _input(rng, dtype, w)
    w.operator("LOG", [x], [w.tensor(shape, dtype, log_uniform(rng, 5e-3, 0.1), zero_point(rng, dtype))])


def elu(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    x, shape, scale = _input(rng, dtype, w, 0.3)
    out = w.tensor(shape, dtype, float(np.float32(scale * log_uniform(rng, 0.1, 3.0))), zero_point(rng, dtype))
    w.operator("ELU", [x], [out])


_HIGHEST = {"int8": 127, "uint8": 255}


def log_softmax(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = dims(rng, 3, 3, 3, 20)[4 - int(rng.integers(1, 5)) :]
    x = w.activation(shape, dtype, *quantized(rng, dtype, 1e-3, 3.0))
    out = w.tensor(shape, dtype, 1 / 16, _HIGHEST.get(dtype, 0))
    w.operator("LOG_SOFTMAX", [x], [out], "LogSoftmaxOptions")


def l2_normalization(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = dims(rng, 3, 3, 3, 40)[4 - int(rng.integers(1, 5)) :]
    x = w.activation(shape, dtype, *quantized(rng, dtype))
    out = w.tensor(shape, dtype, 1 / 128, 128 if dtype == "uint8" else 0)
    w.operator("L2_NORMALIZATION", [x], [out], "L2NormOptions")


def neg(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    """The reference negates what is stored, so half of the cases have other scales and zero points behind it."""
    shape, pair = dims(rng, 3, 4, 5), quantized(rng, dtype)
    x = w.activation(shape, dtype, *pair)
    other = quantized(rng, dtype) if rng.integers(2) else pair
    w.operator("NEG", [x], [w.tensor(shape, dtype, *other)], "NegOptions")


OPERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "logistic": _fixed_output("LOGISTIC", 1 / 256, -128),
        "tanh": _fixed_output("TANH", 1 / 128, 0),
        "hard_swish": hard_swish,
        "leaky_relu": leaky_relu,
        "abs": abs_,
        "exp": exp,
        "log": log,
        "elu": elu,
        "log_softmax": log_softmax,
        "l2_normalization": l2_normalization,
        "neg": neg,
    }
)

_INT8_ONLY = frozenset({"abs", "exp", "log", "neg", "elu"})  # the reference has no uint8 form
SLOW = frozenset({"log_softmax", "l2_normalization"})  # to compile
INT16 = ("logistic", "tanh", "leaky_relu", "abs", "exp", "log", "neg")
KINDS = tuple(
    (name, dtype) for name in OPERATORS for dtype in ("int8", "uint8") if dtype == "int8" or name not in _INT8_ONLY
)
