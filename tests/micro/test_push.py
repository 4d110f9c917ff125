"""A network whose window slides, in C: rows are pushed as they come, and a run gives the outputs of the window so far."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.emit.host import HostProgram, run_host
from tvm_cascade.emit.image import host_records, read_image
from tvm_cascade.errors import UsageError
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.tflite import ModelWriter

WARNINGS = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror", "-Wcast-align")
HOP, ROWS, WIDTH, FRAMES = 2, 12, 4, 20

MAIN = """
#include "slide.h"
#include <stdio.h>

static void frames(int32_t from, int32_t count)
{
    for (int32_t k = from; k < from + count; ++k) {
        int8_t rows[SLIDE_INPUT0_SIZE];
        int8_t results[SLIDE_OUTPUT0_SIZE];
        struct slide_outputs outputs = {results};
        for (int32_t i = 0; i < SLIDE_INPUT0_SIZE; ++i) {
            rows[i] = (int8_t)((i + k * SLIDE_INPUT0_SIZE) * 41 % 251);
        }
        if (slide_push(rows) != SLIDE_OK || slide_run(NULL, &outputs) != SLIDE_OK) {
            printf("no run\\n");
        }
        printf("%d %d %d\\n", results[0], results[1], results[2]);
    }
}

int main(void)
{
    struct slide_outputs outputs;
    slide_map_outputs(&outputs);
    if (slide_push(NULL) != SLIDE_NULL_POINTER || slide_run(NULL, &outputs) != SLIDE_NULL_POINTER) {
        return 1; /* nothing was pushed */
    }
    frames(0, 20);
    if (slide_run(NULL, &outputs) != SLIDE_NULL_POINTER) {
        return 1; /* what was pushed is taken once */
    }
    slide_reset();
    frames(8, 12);
    return 0;
}
"""


@pytest.mark.usefixtures("quick_host", "emulator")
def test_rows_that_are_pushed(tmp_path: Path) -> None:
    net = Net("int8")
    x = net.conv(net.input((1, ROWS, 1, WIDTH)), 8, (3, 1), padding="valid", activation="relu")
    mod = net.finish(net.dense(net.flatten(net.global_pool(net.conv(x, 8, 1))), 3))
    folder = tmp_path / "p"
    told = tvm_cascade.compile(mod, target="cortex-m4", output=folder, hop=HOP, axis="time", name="slide")
    assert told.frame is not None and told.frame["window_rows"] == ROWS
    assert told.frame["macs"] == told.macs < told.frame["whole_macs"]
    stream = (np.arange(FRAMES * HOP * WIDTH) * 41 % 251).astype("uint8").astype("int8").reshape(FRAMES, HOP, 1, WIDTH)
    image = read_image(folder)
    record = next(iter(host_records(image).values()))
    program = HostProgram.load(record.folder, record.data)
    (name,) = (spec.name for spec in program.inputs)
    done = run_host(program, [{name: rows[None]} for rows in stream])
    wanted = [" ".join(map(str, next(iter(outputs.values())).ravel())) for outputs in done.outputs]
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    (tmp_path / "main.c").write_text(MAIN)
    sources = [str(folder / f) for f in ("slide.c", "slide_weights.c")]
    flags = (*WARNINGS, f"-I{folder}", str(tmp_path / "main.c"))
    subprocess.run(("gcc", *flags, *sources, "-o", str(tmp_path / "program")), check=True)
    ran = subprocess.run((str(tmp_path / "program"),), capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(set(wanted)) > 10 and ran[:FRAMES] == wanted
    full = ROWS // HOP - 1  # frames after which the window is full again
    assert ran[FRAMES + full :] == wanted[8 + full :]


@pytest.mark.parametrize("width", [1, 4])
def test_kernels_of_one_row_read_all_rows_of_a_state(
    width: int, tmp_path: Path, quick_host: None, emulator: None
) -> None:
    """Every row is an output: of a map of one pixel a row, in the emulator, with kernels of the core."""
    net = Net("int8")
    x = net.conv(net.input((1, ROWS, width, 16)), 16, (3, 1), padding="valid", activation="relu")
    mod = net.finish(net.conv(x, 8, 1))
    tvm_cascade.compile(mod, target="cortex-m4", output=tmp_path / "p", hop=1, name="slide")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "f.npz", input0=rng.integers(-128, 128, (ROWS + 4, 1, width, 16), "int8"))
    done = tvm_cascade.run(tmp_path / "p", frames=tmp_path / "f.npz")
    assert done.equals_host and done.frames == ROWS + 4


def test_every_frame_is_checked_against_the_whole_window(tmp_path: Path) -> None:
    """By LiteRT on the model's file; a sequence that is shorter than the window says so, and one wrong weight is found."""
    pytest.importorskip("ai_edge_litert")
    files = []
    for seed in (0, 1):
        writer = ModelWriter()
        x = writer.activation((1, ROWS, 1, WIDTH), "int8", 0.05, 3)
        hidden = _over_time(writer, np.random.default_rng(seed), x)
        axes = writer.constant(np.array([1, 2], "int32"))
        writer.operator(
            "MEAN", [hidden, axes], [writer.tensor((1, 8), "int8", 0.02, -128)], "ReducerOptions", keepDims=False
        )
        files.append(tmp_path / f"m{seed}.tflite")
        files[-1].write_bytes(writer.finish())
    tvm_cascade.compile(files[0], target="host", output=tmp_path / "p", hop=HOP)
    (name,) = (spec.name for spec in tvm_cascade.frontend.io_spec(tvm_cascade.load(files[0])).inputs)
    rows = np.random.default_rng(0).integers(-128, 128, (FRAMES, HOP, 1, WIDTH), "int8")
    np.savez(tmp_path / "f.npz", **{name: rows})
    done = tvm_cascade.run(tmp_path / "p", frames=tmp_path / "f.npz", check=files[0])
    assert done.match and done.frames == FRAMES
    assert not tvm_cascade.run(tmp_path / "p", frames=tmp_path / "f.npz", check=files[1]).match
    np.savez(tmp_path / "f.npz", **{name: rows[: ROWS // HOP - 1]})
    with pytest.raises(UsageError, match="one of 12 rows takes 6 calls of 2 or more"):
        tvm_cascade.run(tmp_path / "p", frames=tmp_path / "f.npz", check=files[0])


def test_sums_of_unsigned_integers_run(tmp_path: Path) -> None:
    """A mean and a pool over all rows of uint8, whose sums are kept: every frame equals LiteRT on the whole window."""
    pytest.importorskip("ai_edge_litert")
    rows, writer, rng = 34, ModelWriter(), np.random.default_rng(3)
    hidden = _over_time(writer, rng, writer.activation((1, rows, 1, WIDTH), "uint8", 0.05, 131), rows, 128)
    axes = writer.constant(np.array([1, 2], "int32"))
    means = writer.tensor((1, 8), "uint8", 0.02, 5)
    writer.operator("MEAN", [hidden, axes], [means], "ReducerOptions", keepDims=False)
    how = {"padding": 1, "strideH": 1, "strideW": 1, "filterHeight": rows - 2, "filterWidth": 1}
    pooled = writer.tensor((1, 1, 1, 8), "uint8", 0.03, 0)
    writer.operator("AVERAGE_POOL_2D", [hidden], [pooled], "Pool2DOptions", **how)
    path, folder = tmp_path / "m.tflite", tmp_path / "p"
    path.write_bytes(writer.finish())
    told = tvm_cascade.compile(path, target="host", output=folder, hop=1)
    assert told.frame is not None and len(told.frame["running_sums"]) == 2
    level = 20 + 90 * (1 + np.sin(np.arange(90) / 7))  # of noise whose level wanders
    stream = (128 + rng.standard_normal((90, 1, 1, WIDTH)) * level[:, None, None, None]).clip(0, 255)
    np.savez(tmp_path / "f.npz", stream.astype("uint8"))
    done = tvm_cascade.run(folder, frames=tmp_path / "f.npz", check=path)
    assert done.match and done.frames == 90
    assert all(len(np.unique(made[rows:], axis=0)) > 20 for made in done.outputs.values())


def _over_time(writer: ModelWriter, rng: np.random.Generator, x: int, rows: int = ROWS, zero: int = 0) -> int:
    """A convolution over three rows, of int8; with the zero point 128 of uint8."""
    dtype = "uint8" if zero else "int8"
    weights = writer.constant((rng.integers(-127, 128, (8, 3, 1, WIDTH)) + zero).astype(dtype), 0.01, zero)
    bias = writer.constant(rng.integers(-900, 900, 8).astype("int32"), 0.0005)
    made = writer.tensor((1, rows - 2, 1, 8), dtype, 0.03, zero - 128)
    how = {
        "padding": 1,
        "strideH": 1,
        "strideW": 1,
        "dilationHFactor": 1,
        "dilationWFactor": 1,
        "fusedActivationFunction": 1,
    }
    writer.operator("CONV_2D", [x, weights, bias], [made], "Conv2DOptions", inner=True, **how)
    return made
