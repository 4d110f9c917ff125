"""Constants that networks of a bundle have in common: kept once, every pointer leading to the bytes that it led to."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.emit import write_image
from tvm_cascade.emit.export import export_folder
from tvm_cascade.emit.shared_weights import LEAST, SOURCE, SYMBOL, SharedWeights, share
from tvm_cascade.emit.weights import Weights, emit_weights, laid_out, read_weights
from tvm_cascade.schedules.driver.lower_plan import FlashItem
from tvm_cascade.testing.tflite import ModelWriter

pytestmark = pytest.mark.usefixtures("quick_host")

SIZES = {"int8_t": 1, "int16_t": 2, "int32_t": 4, "int64_t": 8, "float": 4}
OWN = re.compile(r"\(&\((?:flash|\(\((\w+)\*\)\(void\*\)flash\))\[(\d+)\]\)\)")
COMMON = re.compile(rf"\(\((\w+)\*\)\(uintptr_t\)&\(\(const uint8_t\*\){SYMBOL}\)\[(\d+)\]\)")


def _random_network(rng: np.random.Generator, name: str, pool: list[bytes]) -> tuple[str, str, list[tuple[str, bytes]]]:
    """Source, weights, and what each pointer of the source leads to."""
    tables = rng.bytes(int(rng.integers(0, 5)) * 4)
    picked = {pool[k]: None for k in rng.integers(0, len(pool), 6)} | {rng.bytes(int(rng.integers(1, 9)) * 8): None}
    items: list[tuple[FlashItem, bytes]] = []
    for k, content in enumerate(picked):
        kinds = [t for t in ("int8", "int16", "int32", "int64", "float32") if len(content) % np.dtype(t).itemsize == 0]
        kind = str(rng.choice(kinds))
        shape = (len(content) // np.dtype(kind).itemsize,)
        items.append((FlashItem(f"op {k}", kind, shape, 0, len(content)), content))
    data, placed = laid_out(items, tables)
    first = [FlashItem("trace 0", "uint8", (len(tables),), 0, len(tables))] * bool(tables)
    leads, lines = [], []
    for item, (_, content) in zip(placed, items, strict=True):
        kind = "float" if item.dtype == "float32" else f"{item.dtype}_t"
        at = item.offset // SIZES[kind]
        lines.append(f"  f((&(flash[{at}])));" if kind == "int8_t" else f"  f((&((({kind}*)(void*)flash)[{at}])));")
        leads.append((kind, content))
    head = f'#include "{name}.h"\nstatic int32_t {name}_invoke(int8_t* arena, int8_t* flash) {{\n'
    indexed = "  t = ((uint8_t*)(void*)flash)[k];\n" * bool(tables)
    source = head + indexed + "\n".join(lines) + "\n}\n"
    return source, emit_weights(name, Weights(data, (*first, *placed), len(tables))), leads


@pytest.mark.parametrize("seed", range(12))
def test_every_pointer_leads_where_it_led(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pool = [rng.bytes(int(n)) for n in rng.integers(1, 99, 9)]
    networks, leads = {}, {}
    for name in ("a", "b", "c")[: 2 + seed % 2]:
        source, weights, leads[name] = _random_network(rng, name, pool)
        networks[name] = (source, weights)
    done = share(networks)
    words = re.findall(r"0x([0-9a-f]{8})u", done.files.get(SOURCE, ""))
    array = b"".join(int(word, 16).to_bytes(4, "little") for word in words)
    users: dict[bytes, set[str]] = {}
    own_bytes = 0
    for name, expected in leads.items():
        source = done.files.get(f"{name}.c", networks[name][0])
        weights = read_weights(done.files.get(f"{name}_weights.c", networks[name][1]))
        before = read_weights(networks[name][1])
        assert weights is not None and before is not None
        assert weights.data[: weights.tables] == before.data[: before.tables]
        calls = [line for line in source.splitlines() if line.startswith("  f(")]
        for line, (kind, content) in zip(calls, expected, strict=True):
            own, common = OWN.search(line), COMMON.search(line)
            match = own or common
            assert match is not None and (match[1] or "int8_t") == kind
            at = int(match[2]) * (SIZES[kind] if own else 1)
            assert (weights.data if own else array)[at : at + len(content)] == content and at % SIZES[kind] == 0
            if own:
                users.setdefault(content, set()).add(name)
        assert re.search(r"\bflash\b", source.split("{", 1)[1])
        own_bytes += len(before.data) - len(weights.data)
    assert done.saved == own_bytes - done.stored == own_bytes - (len(array) if done.stored == 0 else done.stored)
    assert all(len(names) == 1 or len(content) < LEAST for content, names in users.items())


def test_a_network_that_keeps_nothing_of_its_own() -> None:
    item = FlashItem("conv2d 0", "int8", (32,), 0, 32)
    networks = {}
    for name in ("a", "b"):
        head = f'#include "{name}.h"\nstatic int32_t {name}_invoke(int8_t* arena, int8_t* flash) {{\n'
        source = f"{head}  k(arena, (&(flash[0])));\n}}\nvoid {name}_run(void) {{\n  flash = 0;\n}}\n"
        networks[name] = (source, emit_weights(name, Weights(bytes(range(32)), (item,), 0)))
    done = share(networks)
    assert (done.stored, done.saved) == (32, 32)
    for name in networks:
        assert "int8_t* flash) {\n  (void)flash;\n  k(arena, ((int8_t*)(uintptr_t)" in done.files[f"{name}.c"]
        assert f"{name}_flash[1] = {{\n    0u,\n}};" in done.files[f"{name}_weights.c"]


def test_another_layout_is_left_alone() -> None:
    rng = np.random.default_rng(0)
    source, weights, _ = _random_network(rng, "a", [b"x" * 32])
    other = weights.replace(", tables in the first", ", first").replace("a_flash", "b_flash")
    assert share({"a": (source, weights), "b": (source, other)}) == SharedWeights({}, 0, 0)


def _head(path: Path, classes: int) -> None:
    """A classifier of `classes` over a backbone that is always the same."""
    rng, w = np.random.default_rng(0), ModelWriter()
    x = w.activation((1, 12, 12, 2), "int8", 0.1, 3, name="x")
    how: dict[str, Any] = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    channels = 2
    for out in (16, 24, classes):
        kernel = w.tensor((out, 3, 3, channels), "int8", 0.01, 0, data=rng.integers(-127, 128, (out, 3, 3, channels)))
        bias = w.tensor((out,), "int32", 0.001, 0, data=rng.integers(-99, 99, out))
        y = w.tensor((1, 12, 12, out), "int8", 0.1, 0)
        w.operator("CONV_2D", [x, kernel, bias], [y], "Conv2DOptions", **how)
        x, channels = y, out
    w.outputs = [x]
    path.write_bytes(w.finish())


@pytest.mark.parametrize("emit", ["c", "obj"])
def test_two_heads_over_one_backbone(
    tmp_path: Path, emulator_tools: None, emit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = []
    for name, classes, hot in (("dogs", 3, 0), ("cats", 5, 1000 if emit == "c" else 0)):
        _head(tmp_path / f"{name}.tflite", classes)
        folders.append(tmp_path / name)
        options: dict[str, Any] = {"emit": emit, "layerwise": name == "cats", "ram_weights": hot}
        tvm_cascade.compile(tmp_path / f"{name}.tflite", target="cortex-m4", output=folders[-1], **options)
    done = tvm_cascade.bundle(folders, output=tmp_path / "b")
    assert done.shared_weight_bytes > 24 * 16 * 9 and done.saved_flash_bytes >= done.shared_weight_bytes - 16
    assert f"{done.saved_flash_bytes} bytes of flash saved" in done.to_text()
    assert done.to_dict()["saved_flash_bytes"] == done.saved_flash_bytes
    monkeypatch.setattr(write_image, "share", lambda _: SharedWeights({}, 0, 0))
    apart = tvm_cascade.bundle(folders, output=tmp_path / "apart")
    assert 0.9 < (apart.flash_bytes - done.flash_bytes) / done.saved_flash_bytes <= 1.01  # code grows by a little
    ran, alone = tvm_cascade.run(tmp_path / "b"), tvm_cascade.run(tmp_path / "apart")
    assert ran.ok and alone.ok
    for name, value in alone.outputs.items():
        np.testing.assert_array_equal(ran.outputs[name], value)
    warnings = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Wcast-align", "-Werror")
    sources = [str(tmp_path / "b" / s) for s in (SOURCE, "dogs.c", "cats.c", "dogs_weights.c", "cats_weights.c")]
    command = ["arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb", *warnings, "-DTVM_CASCADE_SHARED_ARENA"]
    subprocess.run([*command, "-fsyntax-only", *sources], check=True)
    if emit == "c":
        written = export_folder(tmp_path / "b", "zephyr", tmp_path / "module")
        assert {f"src/{SOURCE}", "include/constants.h"} <= set(written)
        assert f"src/{SOURCE}" in (tmp_path / "module" / "CMakeLists.txt").read_text() or any(
            f"src/{SOURCE}" in p.read_text() for p in (tmp_path / "module").rglob("CMakeLists.txt")
        )
