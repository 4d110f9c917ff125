"""Pads that convolutions take over: through views and quantization, in files of every kind, and those that stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_cascade
from tvm_cascade.frontend import load
from tvm_cascade.passes.folded_pads import with_folded_pads
from tvm_cascade.passes.main_rewriting import bindings_of, name_of
from tvm_cascade.testing.causal_files import WRITERS
from tvm_cascade.testing.quick_build import virtual_machine

_DOORS = [pytest.param(s, marks=[pytest.mark.torch] if s == ".pt2" else []) for s in WRITERS]


def network(build: Any, shape: tuple[int, ...] = (1, 20, 4)) -> Any:
    """Return a module whose `main` is `build(builder, x)`."""
    bb, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            value = bb.emit_output(build(bb, x))
        bb.emit_func_output(value)
    return bb.finalize()


def weights(*shape: int) -> Any:
    return relax.const(np.random.default_rng(1).standard_normal(shape).astype("float32"))


def convolved(bb: Any, value: Any, **window: Any) -> Any:
    return bb.emit(relax.op.nn.conv2d(value, weights(1, 3, 4, 5), data_layout="NHWC", kernel_layout="HWIO", **window))


def padded(bb: Any, x: Any, value: float = 0.0, widths: tuple[int, ...] = (0, 0, 4, 1, 0, 0)) -> Any:
    return bb.emit(relax.op.nn.pad(x, widths, "constant", value))


def kinds(mod: Any) -> list[str]:
    return [name_of(b.value) for b in bindings_of(mod["main"])]


def same(mod: Any, folded: Any) -> bool:
    data = tvm.runtime.tensor(np.random.default_rng(2).standard_normal((1, 20, 4)).astype("float32"))
    want, got = (virtual_machine(m)["main"](data).numpy() for m in (mod, folded))
    return bool(np.array_equal(want, got))


def through_a_view(bb: Any, x: Any) -> Any:
    return convolved(bb, bb.emit(relax.op.reshape(padded(bb, x), (1, 1, 25, 4))), padding=[0, 1], dilation=[1, 2])


def through_quantization_and_a_transpose(bb: Any, x: Any) -> Any:
    numbers = relax.const(np.float32(0.03)), relax.const(np.int8(-7))
    stored = bb.emit(relax.op.quantize(padded(bb, x), *numbers, axis=1, out_dtype="int8"))
    moved = bb.emit(relax.op.permute_dims(bb.emit(relax.op.reshape(stored, (1, 25, 1, 4))), [0, 2, 1, 3]))
    return convolved(bb, bb.emit(relax.op.dequantize(moved, *numbers, axis=3)))


def into_two_convolutions(bb: Any, x: Any) -> Any:
    row = bb.emit(relax.op.reshape(padded(bb, padded(bb, x, widths=(0, 0, 0, 2, 0, 0))), (1, 1, 27, 4)))
    return bb.emit(relax.op.add(convolved(bb, row), convolved(bb, bb.emit(relax.op.nn.relu(row)))))


@pytest.mark.parametrize("build", [through_a_view, through_quantization_and_a_transpose, into_two_convolutions])
def test_pads_become_padding(build: Any) -> None:
    mod = network(build)
    folded = with_folded_pads(mod)
    assert "nn.pad" not in kinds(folded) and kinds(folded).count("nn.conv2d") == kinds(mod).count("nn.conv2d")
    assert same(mod, folded)


def by_one(bb: Any, x: Any) -> Any:
    return convolved(bb, bb.emit(relax.op.reshape(padded(bb, x, 1.0), (1, 1, 25, 4))))


def split_by_a_view(bb: Any, x: Any) -> Any:
    return convolved(bb, bb.emit(relax.op.reshape(padded(bb, x), (1, 5, 5, 4))))


def over_channels(bb: Any, x: Any) -> Any:
    narrow = bb.emit(relax.op.strided_slice(x, [2], [0], [3], [1]))
    return convolved(bb, bb.emit(relax.op.reshape(padded(bb, narrow, widths=(0, 0, 0, 0, 1, 0)), (1, 1, 20, 4))))


def read_by_an_addition(bb: Any, x: Any) -> Any:
    row = bb.emit(relax.op.reshape(padded(bb, x), (1, 1, 25, 4)))
    return bb.emit(relax.op.add(convolved(bb, row, padding=[0, 1]), bb.emit(relax.op.sum(row, [3], keepdims=True))))


def at_a_quantized_one(bb: Any, x: Any) -> Any:
    numbers = relax.const(np.float32(0.03)), relax.const(np.int8(-7))
    stored = bb.emit(relax.op.quantize(x, *numbers, axis=1, out_dtype="int8"))
    real = bb.emit(relax.op.dequantize(padded(bb, stored, -6.0), *numbers, axis=2))
    return convolved(bb, bb.emit(relax.op.reshape(real, (1, 1, 25, 4))))


@pytest.mark.parametrize("build", [by_one, split_by_a_view, over_channels, read_by_an_addition, at_a_quantized_one])
def test_pads_that_stay(build: Any) -> None:
    mod = network(build)
    assert with_folded_pads(mod) is mod


@pytest.mark.parametrize("door", _DOORS)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_causal_padding_of_every_file_is_the_convolutions(dtype: str, door: str, tmp_path: Path) -> None:
    pytest.importorskip("torch" if door == ".pt2" else "onnx")
    path = tmp_path / f"n{door}"
    WRITERS[door](path, dtype)
    assert "nn.pad" not in kinds(load(path))


@pytest.mark.parametrize("door", _DOORS)
@pytest.mark.parametrize(("dtype", "most", "instructions"), [("float32", 3840, 124_000), ("int8", 960, 119_000)])
def test_causal_networks_are_as_small_and_exact_from_every_file(
    dtype: str, most: int, instructions: int, door: str, tmp_path: Path, emulator: None
) -> None:
    pytest.importorskip("torch" if door == ".pt2" else "onnx")
    path, stored = tmp_path / f"n{door}", dtype == "int8" and door != ".tflite"
    WRITERS[door](path, dtype)
    made = tvm_cascade.compile(path, target="cortex-m4", output=tmp_path / "p", stored_io=stored)
    done = tvm_cascade.run(tmp_path / "p", check=path)
    assert done.match and done.arena_high_water_bytes == made.plan.peak <= most
    assert done.instructions is not None and done.instructions <= instructions
