"""A hand-written network with the interface that the code generator emits: y = clamp(a * w + b) in int8."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.tensor_spec import TensorSpec

LENGTH = 24
WEIGHTS = np.array([(k * 37) % 256 - 128 for k in range(LENGTH)], dtype=np.int8)

HEADER = """\
#ifndef TOY_H
#define TOY_H
#include <stdint.h>
#define TOY_ARENA_SIZE {arena}
#define TOY_ARENA_ALIGN 4
#define TOY_INPUT0_SIZE 24
#define TOY_INPUT1_SIZE 24
#define TOY_OUTPUT0_SIZE 24
#ifdef TVM_CASCADE_SHARED_ARENA
extern uint8_t tvm_cascade_arena[];
#define toy_arena tvm_cascade_arena
#else
extern uint8_t toy_arena[];
#endif
#ifdef __cplusplus
extern "C" {{
#endif
struct toy_inputs {{ const void *a; const void *b; }};
struct toy_outputs {{ void *y; }};
int32_t toy_run(const struct toy_inputs *inputs, const struct toy_outputs *outputs);
void toy_map_inputs(struct toy_inputs *inputs);
void toy_map_outputs(struct toy_outputs *outputs);
#ifdef __cplusplus
}}
#endif
#endif
"""

SOURCE = """\
#include "toy.h"
#include <string.h>
extern const int8_t toy_weights[24];
extern const uint8_t toy_padding[];
#ifndef TVM_CASCADE_SHARED_ARENA
__attribute__((section(".bss.toy_arena"), aligned(TOY_ARENA_ALIGN))) uint8_t toy_arena[TOY_ARENA_SIZE];
#endif

void toy_map_inputs(struct toy_inputs *inputs) {{ inputs->a = toy_arena; inputs->b = toy_arena + 24; }}
void toy_map_outputs(struct toy_outputs *outputs) {{ outputs->y = toy_arena + 48; }}

int32_t toy_run(const struct toy_inputs *inputs, const struct toy_outputs *outputs)
{{
    int8_t *a = (int8_t *)toy_arena, *b = a + 24, *y = a + 48;
    if (inputs->a != (const void *)a) memcpy(a, inputs->a, 24);
    if (inputs->b != (const void *)b) memcpy(b, inputs->b, 24);
    for (int i = 0; i < 24; ++i) {{
        int32_t v = a[i] * toy_weights[i] + b[i];
        y[i] = (int8_t)(v < -128 ? -128 : v > 127 ? 127 : v);
    }}
    {extra}
    if (outputs->y != (void *)y) memcpy(outputs->y, y, 24);
    return 0;
}}
"""


def toy_reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.clip(a.astype(np.int32) * WEIGHTS + b.reshape(a.shape), -128, 127).astype(np.int8)


def _toy(arena: int = 80, extra: str = "", weight_bytes: int = 0, prologue: str = "") -> EmittedNetwork:
    """`arena` bytes of which 72 are used, `extra` statements in toy_run, `weight_bytes` of further constants."""
    weights = ", ".join(map(str, WEIGHTS))
    padding = f"const uint8_t toy_padding[{weight_bytes}] = {{1}};" if weight_bytes else ""
    files = {
        "toy.h": HEADER.format(arena=arena),
        "toy.c": prologue + SOURCE.format(extra=extra),
        "toy_weights.c": "#include <stdint.h>\n"
        "extern const int8_t toy_weights[24];\nextern const uint8_t toy_padding[];\n"
        f"const int8_t toy_weights[24] = {{{weights}}};\n{padding}\n",
    }
    tensor = {"dtype": "int8", "shape": (1, LENGTH)}
    return EmittedNetwork(
        name="toy",
        files={name: text.encode() for name, text in files.items()},
        sources=("toy.c", "toy_weights.c"),
        objects=(),
        inputs=(
            TensorSpec("serving/a:0", c_name="a", scale=0.5, zero_point=3, **tensor),
            TensorSpec("b */ #error", (1, 6, 4), "int8", c_name="b"),
        ),
        outputs=(TensorSpec("StatefulPartitionedCall:0", c_name="y", **tensor),),
        arena_bytes=arena,
        arena_align=4,
    )


def _streaming_toy() -> EmittedNetwork:
    """The same network, asking for its second input in six rows of four bytes, from the last byte of a whole one."""
    network = _toy()
    header = (
        network.files["toy.h"]
        .decode()
        .replace("const void *b;", "int32_t (*b)(void *context, int32_t row, int8_t *to); void *b_context;")
    )
    source = network.files["toy.c"].decode()
    for old, new in (
        ("inputs->b = toy_arena + 24;", ""),
        ("    if (inputs->b != (const void *)b) memcpy(b, inputs->b, 24);\n", ""),
        (
            "for (int i = 0; i < 24; ++i) {",
            "for (int i = 0; i < 24; ++i) {\n"
            "        if (i % 4 == 0 && inputs->b(inputs->b_context, i / 4, b + i) != 0) return -3;",
        ),
    ):
        assert old in source
        source = source.replace(old, new)
    a, b = network.inputs
    return replace(
        network,
        files={**network.files, "toy.h": header.encode(), "toy.c": source.encode()},
        inputs=(a, replace(b, stream_axis=1)),
        requests=(1,) * 6,
    )


@pytest.fixture(scope="session")
def streaming_toy() -> EmittedNetwork:
    return _streaming_toy()


def _renamed(network: EmittedNetwork, name: str) -> EmittedNetwork:
    """The same network under another name."""
    files = {
        file.replace("toy", name): text.replace(b"toy", name.encode()).replace(b"TOY", name.upper().encode())
        for file, text in network.files.items()
    }
    sources = tuple(source.replace("toy", name) for source in network.sources)
    return replace(network, name=name, files=files, sources=sources)


@pytest.fixture(scope="session")
def renamed() -> Callable[[EmittedNetwork, str], EmittedNetwork]:
    return _renamed


@pytest.fixture(scope="session")
def make_toy() -> Callable[..., EmittedNetwork]:
    return _toy


@pytest.fixture(scope="session")
def toy() -> EmittedNetwork:
    return _toy()


@pytest.fixture(scope="session")
def toy_inputs() -> list[tuple[np.ndarray, np.ndarray]]:
    """Three inferences; random bytes cover both paint patterns."""
    rng = np.random.default_rng(7)
    draw = lambda *shape: rng.integers(-128, 128, shape, dtype=np.int8)  # noqa: E731
    return [(draw(1, LENGTH), draw(1, 6, 4)) for _ in range(3)]


@pytest.fixture(scope="session")
def reference() -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return toy_reference


@pytest.fixture(scope="session")
def arm_gcc() -> None:
    if shutil.which("arm-none-eabi-gcc") is None:
        pytest.skip("arm-none-eabi-gcc is not installed")


@pytest.fixture(scope="session")
def emulator_tools(arm_gcc: None) -> None:
    if shutil.which("qemu-system-arm") is None:
        pytest.skip("qemu-system-arm is not installed")
