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
from tvm_cascade.tensor_spec import TensorSpec

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
    """Return True if the first output looks like scores of classes: one row of two or more numbers."""
    shape = network.outputs[0].shape
    return 2 <= prod(shape) == max(shape, default=0)


def golden_header(network: Network, golden: Golden | None, labels: Sequence[str]) -> str:
    """Write `<name>_golden.h`: the self-test, and the class with the largest score by number and name."""
    name, guard = network.name, f"{network.name.upper()}_GOLDEN_H"
    parts = [_self_test(network, golden)] if golden is not None else []
    parts += [_classes(network, labels)] if has_classes(network) else []
    return (
        f"/* {name}: {'a self-test, and ' if golden else ''}names of classes. Written by `tvm-cascade export`. */\n"
        f'#ifndef {guard}\n#define {guard}\n\n#include "{name}.h"\n\n#include <stdint.h>\n\n'
        + "\n".join(parts)
        + "\n#endif\n"
    )


def _self_test(network: Network, golden: Golden) -> str:
    name = network.name
    arrays, fills, tests = "", "", ""
    for spec in network.inputs:
        stored = golden.inputs[spec.name].reshape(-1)
        if golden.repeated:
            stored = stored[: REPEATED // stored.itemsize]
        arrays += _array(f"{name}_golden_{spec.c_name}", spec, stored)
        fills += (
            f"    for (uint32_t i = 0; i < {prod(spec.shape)}u; ++i) {{\n"
            f"        (({C_TYPES[spec.dtype]} *)(uintptr_t)inputs.{spec.c_name})[i] = "
            f"{name}_golden_{spec.c_name}[i % {stored.size}u];\n    }}\n"
        )
    for spec in network.outputs:
        want = golden.outputs[spec.name].reshape(-1)
        arrays += _array(f"{name}_golden_{spec.c_name}", spec, want)
        tests += f"    for (uint32_t i = 0; i < {want.size}u; ++i) {{\n{_difference(name, spec, want)}    }}\n"
    reset = f"    (void){name}_reset();\n" if network.interface.states else ""
    what = "random inputs, which repeat" if golden.repeated else "your inputs"
    return (
        f"/* Golden arrays: {what}; outputs by {golden.by}. */\n{arrays}\n"
        f"/* Run the network on the golden input. 0: every output is right; {DIFFERS}: one differs; else the status of\n"
        f" * {name}_run(). It overwrites the arena"
        f"{', and states begin anew' if reset else ''}. */\n"
        f"static inline int32_t {name}_self_test(void)\n{{\n"
        f"    struct {name}_inputs inputs;\n    struct {name}_outputs outputs;\n\n"
        f"    (void){name}_map_inputs(&inputs);\n    (void){name}_map_outputs(&outputs);\n{reset}{fills}"
        f"    const int32_t status = {name}_run(&inputs, &outputs);\n"
        f"    if (status != 0) {{\n        return status;\n    }}\n{tests}{reset}    return 0;\n}}\n"
    )


def _array(name: str, spec: TensorSpec, values: np.ndarray) -> str:
    numbers = ", ".join(map(_number, values))
    lines = "\n".join(f"    {line}" for line in wrap(numbers, _WIDTH, break_long_words=False))
    return f"static const {C_TYPES[spec.dtype]} {name}[{values.size}] = {{\n{lines}\n}};\n"


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


def _difference(name: str, spec: TensorSpec, want: np.ndarray) -> str:
    """Write C that returns from the self-test if element `i` of an output differs."""
    have, golden = f"outputs.{spec.c_name}[i]", f"{name}_golden_{spec.c_name}[i]"
    if spec.dtype.startswith("float"):
        finite = want[np.isfinite(want)]
        allowed = _TOLERANCE * float(np.abs(finite).max(initial=0.0))
        kind = C_TYPES[spec.dtype]
        return (
            f"        const {kind} gap = {have} - {golden};\n"
            f"        if ({have} != {golden} && !({have} != {have} && {golden} != {golden}) &&\n"
            f"            !(gap <= ({kind}){allowed!r} && gap >= -({kind}){allowed!r})) {{\n"
            f"            return {DIFFERS};\n        }}\n"
        )
    return f"        if ({have} != {golden}) {{\n            return {DIFFERS};\n        }}\n"


def _classes(network: Network, labels: Sequence[str]) -> str:
    name, spec = network.name, network.outputs[0]
    count = prod(spec.shape)
    names = ""
    if labels:
        texts = ",\n".join(f"    {_c_string(label)}" for label in labels)
        names = f"/* Names of the classes. */\nstatic const char *const {name}_labels[{count}] = {{\n{texts}\n}};\n\n"
    return (
        f"{names}/* The number of the first largest score. */\n"
        f"static inline uint32_t {name}_class(const struct {name}_outputs *outputs)\n{{\n    uint32_t best = 0;\n"
        f"    for (uint32_t i = 1; i < {count}u; ++i) {{\n"
        f"        if (outputs->{spec.c_name}[i] > outputs->{spec.c_name}[best]) {{\n            best = i;\n        }}\n"
        "    }\n    return best;\n}\n"
    )


def _c_string(text: str) -> str:
    """Write a C string literal; bytes beyond ASCII are octal escapes of UTF-8."""
    kept = {ord("\n"): "\\n", ord('"'): '\\"', ord("\\"): "\\\\", ord("?"): "\\?"}
    body = "".join(kept.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in text.encode())
    return f'"{body}"'
