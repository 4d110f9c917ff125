"""A golden input of a network and its outputs as C: `<name>_self_test()` runs it on the device and compares every element.

Random inputs repeat their first bytes, so that they take little flash; a user's are stored whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from textwrap import wrap

import numpy as np

from tvm_cascade.emit.network import C_TYPES, Network
from tvm_cascade.emit.template import render

REPEATED = 4096  # bytes of a random input that are stored, at most
_WIDTH = 118  # columns of a line of numbers
_TOLERANCE = 1e-4  # of floats, of the largest absolute value of the output, as `run --check` has it
DIFFERS = -100  # the self-test's status where an output differs


@dataclass(frozen=True, slots=True)
class Golden:
    """One input of a network, by tensor name, and the outputs."""

    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    by: str  # what computed the outputs
    repeated: bool  # inputs repeat their first `REPEATED` bytes


def with_repeats(array: np.ndarray) -> np.ndarray:
    """Return an array of the same shape that repeats the first `REPEATED` bytes."""
    flat, count = array.reshape(-1), REPEATED // array.itemsize
    return np.resize(flat[:count], flat.shape).reshape(array.shape)


def has_self_test(network: Network) -> bool:
    """Return True if a network can test itself: it takes whole inputs."""
    return not any(spec.streamed for spec in network.inputs)


def has_classes(network: Network) -> bool:
    """Return True if the first output looks like scores of classes: a single row of two or more numbers."""
    shape = network.outputs[0].shape
    return 2 <= prod(shape) == max(shape, default=0)


def golden_header(network: Network, golden: Golden | None, labels: Sequence[str]) -> str:
    """Write `<name>_golden.h`: the self-test, and the class with the largest score by number and name."""
    stored = [(spec, golden.inputs[spec.name].reshape(-1)) for spec in network.inputs] if golden else []
    if golden is not None and golden.repeated:
        stored = [(spec, values[: REPEATED // values.itemsize]) for spec, values in stored]
    made = [(spec, golden.outputs[spec.name].reshape(-1)) for spec in network.outputs] if golden else []
    return render(
        "golden.h.j2",
        {"numbers": _numbers, "allowed": _allowed, "product": prod, "string": _c_string},
        name=network.name, golden=golden, inputs=stored, outputs=made, types=C_TYPES, differs=DIFFERS, labels=labels,
        states=network.interface.states, classed=has_classes(network), scores=network.outputs[0],
    )  # fmt: skip


def _numbers(values: np.ndarray) -> str:
    lines = wrap(", ".join(map(_number, values)), _WIDTH, break_long_words=False)
    return "\n".join(f"    {line}" for line in lines)


def _allowed(want: np.ndarray) -> str:
    """Return the difference that a self-test allows of floats."""
    return repr(_TOLERANCE * float(np.abs(want[np.isfinite(want)]).max(initial=0.0)))


def _number(value: np.generic) -> str:
    if value.dtype.kind == "f":
        if not np.isfinite(value):
            return "(0.0f / 0.0f)" if np.isnan(value) else f"({'-' if float(value) < 0 else ''}1.0f / 0.0f)"
        return f"{float(value)!r}f" if value.dtype.itemsize < 8 else repr(float(value))
    if value.dtype.kind == "b":
        return str(int(value))
    least = value.dtype.kind == "i" and value.dtype.itemsize >= 4 and int(value) == np.iinfo(value.dtype).min
    suffix = {4: "", 8: "LL"}.get(value.dtype.itemsize, "") + ("U" if value.dtype.kind == "u" else "")
    return f"({int(value) + 1}{suffix} - 1)" if least else f"{int(value)}{suffix}"


def _c_string(text: str) -> str:
    """Write a C string literal; bytes beyond ASCII are octal escapes of UTF-8."""
    kept = {ord("\n"): "\\n", ord('"'): '\\"', ord("\\"): "\\\\", ord("?"): "\\?"}
    body = "".join(kept.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in text.encode())
    return f'"{body}"'
