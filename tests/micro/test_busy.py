"""A network that is asked to run, or for its places, while its arena is in use says so, and the run that uses it is right."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.boards.board import load_board
from tvm_cascade.emit.bundle import write_bundle
from tvm_cascade.emit.image import Image, read_image
from tvm_cascade.emit.image_text import arena_source
from tvm_cascade.emit.toolchain import Program, build_image, link
from tvm_cascade.testing.tflite import ModelWriter

pytestmark = pytest.mark.usefixtures("quick_host")

BOARD = load_board("mps2-an386")
MAIN = """
#include "one.h"
#include "rows.h"
#include "plain.h"
#include <string.h>

/* `own` is what functions of the network that runs answer from inside of it, `other` those of its neighbours. */
static int32_t own, other, bad, calls;
static int8_t pixels[ONE_INPUT0_SIZE];

static void tell(int32_t first, int32_t second, int32_t third, uint32_t sum);

static void intrude(void)
{
    struct one_inputs i1; struct one_outputs o1;
    struct plain_inputs i3; struct plain_outputs o3;
    memset(&i1, 1, sizeof i1);
    memset(&o3, 1, sizeof o3);
    own = one_map_inputs(&i1);
    bad += (own != 0 && i1.x != 0) || i1.hook != 0;
    bad += one_map_outputs(&o1) != own || (own != 0 && o1.t0 != 0) || one_run(&i1, &o1) != own;
    other = plain_map_inputs(&i3);
    bad += plain_map_outputs(&o3) != other || (other != 0 && o3.t0 != 0) || plain_run(&i3, &o3) != other;
}

static int32_t hook(void *context, int32_t done)
{
    ++calls;
    if (done == *(int32_t *)context) {
        return 7;
    }
    intrude();
    return 0;
}

static int32_t row(void *context, int32_t at, int8_t *to)
{
    (void)context;
    intrude();
    memcpy(to, pixels + at * 16, 16);
    return 0;
}

static uint32_t sum_of(const int8_t *data, int32_t count)
{
    uint32_t sum = 0;
    for (int32_t i = 0; i < count; ++i) {
        sum = sum * 31u + (uint8_t)data[i];
    }
    return sum;
}

static void run_one(int32_t stop)
{
    struct one_inputs in; struct one_outputs out;
    int8_t y[ONE_OUTPUT0_SIZE];
    memset(y, 0, sizeof y);
    bad += one_map_inputs(&in) != ONE_OK;
    in.x = pixels;
    out.t0 = y;
    if (stop >= 0) {
        in.hook = hook;
        in.hook_context = &stop;
    }
    const int32_t status = one_run(&in, &out);
    tell(status, own, other, sum_of(y, ONE_OUTPUT0_SIZE));
}

static void run_rows(void)
{
    struct rows_inputs in; struct rows_outputs out;
    bad += rows_map_inputs(&in) != 0 || in.x != 0;
    rows_map_outputs(&out);
    bad += rows_run(&in, &out) != ROWS_NULL_POINTER;
    in.x = row;
    const int32_t status = rows_run(&in, &out);
    tell(status, own, other, sum_of(out.t0, ROWS_OUTPUT0_SIZE));
}

static void run_plain(void)
{
    struct plain_inputs in; struct plain_outputs out;
    bad += plain_map_inputs(&in) != 0 || plain_map_outputs(&out) != 0;
    memcpy((void *)(uintptr_t)in.x, pixels, sizeof pixels);
    const int32_t status = plain_run(&in, &out);
    tell(status, 0, bad + (plain_map_inputs(0) != PLAIN_NULL_POINTER), sum_of(out.t0, PLAIN_OUTPUT0_SIZE));
}

static void all(void)
{
    for (uint32_t i = 0; i < sizeof pixels; ++i) {
        pixels[i] = (int8_t)(i * 5);
    }
    run_one(-1);
    run_one(0);
    run_one(2);
    run_one(1);
    run_rows();
    run_plain();
}
"""
ON_HOST = """
#include <stdio.h>
static void tell(int32_t first, int32_t second, int32_t third, uint32_t sum)
{
    printf("%d %d %d %u\\n", (int)first, (int)second, (int)third, (unsigned)sum);
}
int main(void) { all(); return 0; }
"""
ON_BOARD = """
#include "port.h"
static void tell(int32_t first, int32_t second, int32_t third, uint32_t sum)
{
    const int32_t words[4] = {first, second, third, (int32_t)sum};
    port_write(words, sizeof words);
}
int main(void) { port_open(); all(); port_exit(0); return 0; }
"""


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory, arm_gcc: None) -> list[Image]:
    """One small network three times: with a hook, with rows that are asked for, and with neither."""
    place, made = tmp_path_factory.mktemp("busy"), []
    rng, writer = np.random.default_rng(0), ModelWriter()
    x = writer.activation((1, 8, 8, 2), "int8", 0.1, 3, name="x")
    kernel = writer.tensor((4, 3, 3, 2), "int8", 0.01, 0, data=rng.integers(-127, 128, (4, 3, 3, 2)))
    bias = writer.tensor((4,), "int32", 0.001, 0, data=rng.integers(-99, 99, 4))
    y = writer.tensor((1, 8, 8, 4), "int8", 0.1, 0, name="t0")
    how: dict[str, Any] = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    writer.operator("CONV_2D", [x, kernel, bias], [y], "Conv2DOptions", **how)
    writer.outputs = [y]
    (place / "m.tflite").write_bytes(writer.finish())
    for name in ("one", "rows", "plain"):
        options: dict[str, Any] = {"emit": "c", "hook": name == "one", "stream_input": name == "rows"}
        tvm_cascade.compile(place / "m.tflite", target="cortex-m4", name=name, output=place / name, **options)
        made.append(read_image(place / name))
    return made


def _expected(lines: list[list[int]], neighbour: int) -> None:
    """Undisturbed and disturbed runs make the same; a cancelled one leaves nothing behind; `bad` stays 0."""
    sums = [line[3] for line in lines]
    assert sums[0] == sums[1] == sums[4] == sums[5] != 0 and sums[2] == sums[3] == 0
    assert [line[0] for line in lines] == [0, 0, 7, 7, 0, 0]
    assert [line[1] for line in lines[1:4]] == [-3] * 3
    assert [line[2] for line in lines[1:5]] == [neighbour] * 4
    assert lines[4][1] == (-3 if neighbour else 0) and lines[5][2] == 0


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_on_the_host(projects: list[Image], tmp_path: Path, shared: bool, compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    (tmp_path / "main.c").write_text(MAIN + ON_HOST)
    sources = [str(p.folder / s) for p in projects for s in p.networks[0].sources]
    flags = ["-O1", *(f"-I{p.folder}" for p in projects)]
    if shared:
        bundle = write_bundle(tmp_path / "b", projects, BOARD)
        (tmp_path / "arena.c").write_text(arena_source(bundle))
        sources.append(str(tmp_path / "arena.c"))
        flags.append("-DTVM_CASCADE_SHARED_ARENA")
    program = str(tmp_path / "a.out")
    sanitizers = ["-fsanitize=undefined", "-fno-sanitize-recover=all"] if compiler == "gcc" else []
    command = [compiler, *flags, *sanitizers, "-o", program, str(tmp_path / "main.c"), *sources]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    _expected([[int(v) for v in line.split()] for line in done.stdout.splitlines()], -3 if shared else 0)


def test_in_the_emulator(projects: list[Image], tmp_path: Path, emulator_tools: None) -> None:
    bundle = write_bundle(tmp_path / "b", projects, BOARD)
    built = build_image(bundle, BOARD)
    assert built.arena_bytes < built.ram_bytes < built.arena_bytes + 4 + 8  # a byte, and what aligns both ends
    (bundle.folder / "main.c").write_text(MAIN + ON_BOARD)
    networks = (s for p in projects for s in p.networks[0].sources)
    names = ["main.c", "startup.c", "port_semihosting.c", "arena.c", *networks]
    names += ["constants.c"] if (bundle.folder / "constants.c").is_file() else []
    sources = dict.fromkeys(names, ("-DTVM_CASCADE_SHARED_ARENA", "-DTVM_CASCADE_EMULATOR"))
    program = Program("busy", bundle.folder, bundle.target, "size", sources, (), bundle.arena_bytes)
    elf = link(program, BOARD, tmp_path / "build").elf
    (elf.parent / "inputs.bin").write_bytes(b"")
    command = ["qemu-system-arm", "-M", "mps2-an386", "-kernel", str(elf), "-display", "none", "-monitor", "none"]
    command += ["-serial", "none", "-semihosting-config", "enable=on,target=native"]
    subprocess.run(command, cwd=elf.parent, check=True, timeout=60, stdin=subprocess.DEVNULL, capture_output=True)
    words = np.frombuffer((elf.parent / "results.bin").read_bytes(), "<i4").reshape(-1, 4)
    _expected(words.tolist(), -3)


def test_memory_that_an_arena_cannot_be(projects: list[Image], tmp_path: Path) -> None:
    main = """
#include "one.h"
#include <stdio.h>
static _Alignas(16) uint8_t memory[ONE_ARENA_SIZE + 8];
static int32_t inside;
static int32_t hook(void *c, int32_t d) { (void)c; (void)d; inside = one_set_arena(memory, sizeof memory); return 0; }
int main(void) {
    struct one_inputs in; struct one_outputs out;
    const int32_t mapped = one_map_inputs(&in);
    printf("%d %d ", (int)mapped, in.x == NULL && in.hook == NULL);
    printf("%d %d ", (int)one_map_outputs(&out), (int)one_run(&in, &out));
    printf("%d ", (int)one_set_arena(NULL, sizeof memory));
    printf("%d ", (int)one_set_arena(memory + 1, sizeof memory - 1));
    printf("%d %d ", (int)one_set_arena(memory, ONE_ARENA_SIZE - 1), one_arena == NULL);
    printf("%d ", (int)one_set_arena(memory + 8, ONE_ARENA_SIZE));
    printf("%d %d ", (int)one_map_inputs(NULL), (int)one_run(NULL, NULL));
    one_map_inputs(&in); one_map_outputs(&out);
    in.hook = hook;
    const int32_t status = one_run(&in, &out);
    printf("%d %d", (int)status, (int)inside);
    return one_arena != memory + 8;
}
"""
    (tmp_path / "main.c").write_text(main)
    one, program = projects[0], str(tmp_path / "a.out")
    flags = ["-std=c11", "-DTVM_CASCADE_ARENA_POINTER", "-fsanitize=undefined", "-fno-sanitize-recover=all"]
    sources = [str(one.folder / s) for s in one.networks[0].sources]
    subprocess.run(["gcc", *flags, f"-I{one.folder}", "-o", program, str(tmp_path / "main.c"), *sources], check=True)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    assert done.stdout == "-1 1 -1 -1 -1 -2 -4 1 0 -1 -1 0 -3"
