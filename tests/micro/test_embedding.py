"""What an application meets when it embeds a network: arena placement, the hook, warnings, what is linked."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.boards.board import load_board
from tvm_cascade.emit.bundle import write_bundle
from tvm_cascade.emit.image import Image, read_image, read_network
from tvm_cascade.emit.toolchain import ToolError, build_image
from tvm_cascade.runs import emulator
from tvm_cascade.testing.builds import build_host
from tvm_cascade.testing.tflite import ModelWriter

pytestmark = pytest.mark.usefixtures("quick_host")

SIDE = 24  # pixels of the image
BOARD = load_board("mps2-an386")
STRICT = (
    "-Wcast-align",
    "-Wcast-qual",
    "-Wundef",
    "-Wredundant-decls",
    "-Wwrite-strings",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
    "-Wdouble-promotion",
    "-Wformat=2",
)
WARNINGS = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror", *STRICT)
ARENAS = ("", "-DTVM_CASCADE_SHARED_ARENA", "-DTVM_CASCADE_ARENA_POINTER")

HOOKED_MAIN = """\
#include "shapes.h"
#include <stdio.h>
#include <string.h>

static _Alignas(16) uint8_t memory[SHAPES_ARENA_SIZE];
static int32_t calls, last, stop_at;

static int32_t hook(void *context, int32_t done)
{
    if (context != &calls || done != last + 1) {
        return -99;
    }
    last = done;
    ++calls;
    return done == stop_at ? 42 : 0;
}

static int32_t once(int32_t at)
{
    struct shapes_inputs inputs;
    struct shapes_outputs outputs;
    calls = last = 0;
    stop_at = at;
    shapes_map_inputs(&inputs);
    shapes_map_outputs(&outputs);
    for (int i = 0; i < SHAPES_IMAGE_SIZE; ++i) {
        ((int8_t *)(uintptr_t)inputs.image)[i] = (int8_t)(i * 7);
    }
    if (at >= 0) {
        inputs.hook = hook;
        inputs.hook_context = &calls;
    }
    int32_t status = shapes_run(&inputs, &outputs);
    printf("%d %d", (int)status, (int)calls);
    for (int i = 0; i < SHAPES_SCORES_SIZE; ++i) {
        printf(" %d", outputs.scores[i]);
    }
    printf("\\n");
    return status;
}

int main(void)
{
    struct shapes_inputs inputs;
    struct shapes_outputs outputs;
    memset(&inputs, 1, sizeof inputs);
    memset(&outputs, 1, sizeof outputs);
    printf("%d\\n", (int)shapes_run(&inputs, &outputs));
    shapes_set_arena(memory, sizeof memory);
    printf("%d\\n", SHAPES_STEPS);
    once(-1);
    once(0);
    once(1);
    once(SHAPES_STEPS / 2);
    once(SHAPES_STEPS);
    return 0;
}
"""


@pytest.fixture(scope="module", autouse=True)
def _compilers(arm_gcc: None) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network, called `shapes`, of six operators that are cascaded."""
    rng, writer = np.random.default_rng(0), ModelWriter()
    x = writer.activation((1, SIDE, SIDE, 1), "int8", 0.1, 3, name="image")
    for channels, kernel, stride in ((8, 3, 1), (4, 1, 1), (8, 3, 2), (4, 1, 1), (8, 3, 2)):
        x = writer.convolution(x, channels, kernel, stride, rng)
    writer.outputs = [writer.convolution(x, 2, 1, 1, rng, name="scores")]
    path = tmp_path_factory.mktemp("model") / "shapes.tflite"
    path.write_bytes(writer.finish())
    return path


@pytest.fixture(scope="module")
def hooked(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("hooked") / "p"
    tvm_cascade.compile(model, target="cortex-m4", output=folder, emit="c", hook=True)
    return read_image(folder)


@pytest.fixture(scope="module")
def streaming(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("streaming") / "p"
    options = {"emit": "c", "hook": True, "stream_input": True, "granularity": "row", "name": "rows"}
    tvm_cascade.compile(model, target="cortex-m4", output=folder, **options)
    return read_image(folder)


@pytest.fixture(scope="module")
def as_object(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("object") / "p"
    tvm_cascade.compile(model, target="cortex-m4", output=folder, emit="obj", hook=True, layerwise=True, name="plain")
    return read_image(folder)


def _run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("compiler", ["arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb", "gcc", "clang"])
def test_no_warnings(compiler: str, hooked: Image, streaming: Image, as_object: Image, tmp_path: Path) -> None:
    if shutil.which(compiler.split()[0]) is None:
        pytest.skip(f"{compiler} is not installed")
    sources = [p.folder / f"{p.name}{part}.c" for p in (hooked, streaming) for part in ("", "_weights")]
    sources.append(as_object.folder / "plain.c")
    _run(*compiler.split(), *WARNINGS, "-c", *map(str, sources), cwd=tmp_path)
    for arena in ARENAS[1:]:
        _run(*compiler.split(), *WARNINGS, arena, "-std=c11", "-fsyntax-only", *map(str, sources))


def test_header_is_fit_for_cpp(hooked: Image, tmp_path: Path) -> None:
    gpp = shutil.which("arm-none-eabi-g++")
    if gpp is None:
        pytest.skip("arm-none-eabi-g++ is not installed")
    (tmp_path / "use.cpp").write_text('#include "shapes.h"\nint32_t use() { return shapes_run(nullptr, nullptr); }\n')
    strict = ("-Wall", "-Wextra", "-Wconversion", "-Wold-style-cast", "-Wshadow", "-pedantic", "-Werror")
    command = (*strict, f"-I{hooked.folder}", "-c", str(tmp_path / "use.cpp"), "-o", str(tmp_path / "use.o"))
    for other in filter(shutil.which, ("g++", "clang++")):
        _run(other, "-std=c++11", "-DTVM_CASCADE_ARENA_POINTER", *command)
        _run(other, "-std=c++20", "-DTVM_CASCADE_SHARED_ARENA", *command)
    _run(gpp, *command)
    assert "U shapes_run" in _run("arm-none-eabi-nm", str(tmp_path / "use.o"))


def test_hook_counts_steps_and_ends_the_run(model: Path, hooked: Image, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(HOOKED_MAIN)
    program = str(tmp_path / "a.out")
    sources = [str(hooked.folder / s) for s in hooked.networks[0].sources]
    flags = ("-std=c11", "-O1", "-DTVM_CASCADE_ARENA_POINTER", f"-I{hooked.folder}", "-o", program)
    _run("gcc", *flags, str(tmp_path / "main.c"), *sources)
    null, count, *runs = _run(program).splitlines()
    steps = int(count)
    assert null == "-1"  # no arena yet
    rows = [[int(v) for v in run.split()] for run in runs]
    assert [r[:2] for r in rows] == [[0, 0], [0, steps], [42, 1], [42, steps // 2], [42, steps]]
    assert rows[0][2:] == rows[1][2:]
    plan = tvm_cascade.plan(model, target="cortex-m4").plan
    assert steps == sum(len(segment.trace) for segment in plan.segments)


def test_hook_and_source_both_end_a_streamed_run(streaming: Image, tmp_path: Path) -> None:
    main = """
#include "rows.h"
#include <stdio.h>
#define SIDE 24
static int32_t calls, rows;
static int32_t hook(void *context, int32_t done) { ++calls; return done == *(int32_t *)context ? 7 : 0; }
static int32_t row(void *context, int32_t row, int8_t *to) {
    (void)row; for (int i = 0; i < SIDE; ++i) to[i] = (int8_t)i;
    return ++rows == *(int32_t *)context ? 9 : 0;
}
int main(void) {
    for (int32_t k = 0; k < 3; ++k) {
        int32_t hook_at = k == 1 ? 20 : 0, row_at = k == 2 ? 5 : 0;
        struct rows_inputs in; struct rows_outputs out;
        calls = rows = 0;
        rows_map_inputs(&in); rows_map_outputs(&out);
        in.image = row; in.image_context = &row_at; in.hook = hook; in.hook_context = &hook_at;
        int32_t status = rows_run(&in, &out);
        printf("%d %d %d %d\\n", (int)status, (int)calls, (int)rows, (int)ROWS_STEPS);
    }
    return 0;
}
"""
    (tmp_path / "main.c").write_text(main)
    program = str(tmp_path / "a.out")
    sources = [str(streaming.folder / s) for s in streaming.networks[0].sources]
    _run("gcc", "-O1", f"-I{streaming.folder}", "-o", program, str(tmp_path / "main.c"), *sources)
    full, hook, source = ([int(v) for v in line.split()] for line in _run(program).splitlines())
    assert full == [0, full[3], SIDE, full[3]]
    assert hook[:2] == [7, 20]
    assert source[0] == 9 and source[2] == 5 and source[1] < 20 + full[3]


STRIPED_MAIN = """
#include "striped.h"
#include <stdio.h>
#include <string.h>
static _Alignas(16) uint8_t memory[STRIPED_ARENA_SIZE + 1];
static int32_t last, rows, orderly;
static int32_t hook(void *context, int32_t done) {
    orderly = orderly && done == last + 1;
    last = done;
    return done == *(int32_t *)context ? 7 : 0;
}
static int32_t row(void *context, int32_t at, int8_t *to) {
    for (int i = 0; i < 64; ++i) to[i] = (int8_t)(i * 5 + at * 11);
    return ++rows == *(int32_t *)context ? 9 : 0;
}
int main(void) {
    const int32_t stops[][2] = {{0, 0}, {1, 0}, {STRIPED_STEPS / 2, 0}, {0, 3}, {STRIPED_STEPS, 0}, {0, 0}};
    for (int k = 0; k < 6; ++k) {
        int32_t hook_at = stops[k][0], row_at = stops[k][1];
        int8_t y[STRIPED_OUTPUT0_SIZE + 1];
        struct striped_inputs in; struct striped_outputs out;
        striped_arena = memory;
        last = rows = 0; orderly = 1;
        striped_map_inputs(&in);
        in.x = row; in.x_context = &row_at; in.hook = hook; in.hook_context = &hook_at; out.t9 = y + 1;
        memset(y, 0, sizeof y);
        int32_t status = striped_run(&in, &out);
        uint32_t sum = 0;
        for (uint32_t i = 1; i < sizeof y; ++i) sum = sum * 31u + (uint8_t)y[i];
        printf("%d %d %d %u\\n", (int)status, (int)orderly, (int)last, (unsigned)sum);
        striped_arena = memory + 1;
        if (striped_run(&in, &out) != STRIPED_MISALIGNED) return 1;
    }
    return 0;
}
"""


def test_progress_and_cancelling_of_a_network_in_stripes(tmp_path: Path) -> None:
    """Whole where it is not cancelled, also after it was; progress without a gap to its end; any output buffer."""
    rng, writer = np.random.default_rng(0), ModelWriter()
    x = writer.activation((1, 12, 16, 4), "int8", 0.1, 3, name="x")
    for stride in (1, 1, 2):
        x = writer.convolution(x, 4, 3, stride, rng)
    writer.outputs = [x]
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    folder = tmp_path / "p"
    options: dict[str, Any] = {"sram": 512, "max_macs": 2.0, "stream_input": True, "rewrite": False, "hook": True}
    done = tvm_cascade.compile(tmp_path / "m.tflite", target="host", name="striped", output=folder, **options)
    (segment,) = done.plan.segments
    assert len(segment.stripes) > 1
    steps = len(segment.trace) * len(segment.stripes)
    (tmp_path / "main.c").write_text(STRIPED_MAIN)
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DTVM_CASCADE_ARENA_POINTER")
    program = str(tmp_path / "a.out")
    sources = [str(folder / s) for s in read_image(folder).networks[0].sources]
    _run("gcc", "-std=c11", "-O1", *sanitizers, f"-I{folder}", "-o", program, str(tmp_path / "main.c"), *sources)
    runs = [[int(v) for v in line.split()] for line in _run(program).splitlines()]
    assert [run[:2] for run in runs] == [[0, 1], [7, 1], [7, 1], [9, 1], [7, 1], [0, 1]]
    assert [run[2] for run in runs] == [steps, 1, steps // 2, runs[3][2], steps, steps]
    assert runs[0] == runs[5] and runs[0][3] != 0 and [run[3] for run in runs[1:5]] == [0] * 4


def test_without_a_hook_nothing_is_paid(model: Path, hooked: Image, tmp_path: Path) -> None:
    tvm_cascade.compile(model, target="cortex-m4", output=tmp_path / "p", emit="c", granularity="row")
    text = (tmp_path / "p" / "shapes.c").read_text()
    assert "hook" not in text and "between_steps" not in text and "status" not in text.split("shapes_ready(")[0]
    assert "busy" not in text.replace("SHARED_ARENA)\n    shapes_busy = ", "").replace(
        "SHARED_ARENA)\n    if (shapes_busy", ""
    )
    assert "hook" in (hooked.folder / "shapes.c").read_text()


def test_only_memcpy_is_linked_and_nothing_recurs(hooked: Image, tmp_path: Path) -> None:
    for source in hooked.networks[0].sources:
        _run("arm-none-eabi-gcc", "-mcpu=cortex-m3", "-mthumb", "-O2", "-c", str(hooked.folder / source), cwd=tmp_path)
    symbols = _run("arm-none-eabi-nm", *(str(p) for p in sorted(tmp_path.glob("*.o"))))
    wanted = set(re.findall(r" U (\w+)", symbols)) - {"shapes_flash"}
    # 64-bit shifts are the compiler's own; floating point would be __aeabi_f* or __aeabi_d*
    assert wanted <= {"memcpy", "memset", "__aeabi_llsl", "__aeabi_lasr", "__aeabi_llsr", "__aeabi_lmul", "__clzsi2"}
    text = (hooked.folder / "shapes.c").read_text()
    bodies = dict(
        re.findall(r"^(?:static )?(?:inline )?(?:int32_t|void) (\w+)\([^)]*\) \{\n(.*?)^\}", text, flags=re.M | re.S)
    )
    seen: list[str] = []

    def visit(name: str, stack: tuple[str, ...]) -> None:
        assert name not in stack
        seen.append(name)
        for other in bodies:
            if re.search(rf"\b{other}\(", bodies[name]):
                visit(other, (*stack, name))

    visit("shapes_run", ())
    kernels = {name for name in bodies if name.startswith("conv2d_")}
    assert len(kernels) >= 6 and kernels | {"shapes_invoke", "shapes_between_steps"} <= set(
        seen
    )  # one for each convolution, or more


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_clean_under_sanitizers(compiler: str, hooked: Image, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    try:
        program = build_host(tmp_path, read_network(hooked, hooked.networks[0]), sanitize=True, compiler=compiler)
    except ToolError as error:
        pytest.skip(f"the compiler's sanitizers are not installed: {error}")
    image = np.random.default_rng(1).integers(-128, 128, (1, SIDE, SIDE, 1), dtype=np.int8)
    (tmp_path / "inputs.bin").write_bytes(struct.pack("<II", 0xA5, 1) + image.tobytes())
    done = subprocess.run((str(program),), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_arena_in_a_named_section(hooked: Image, tmp_path: Path) -> None:
    flags = ("-mcpu=cortex-m4", "-mthumb", '-DSHAPES_ARENA_SECTION=".noinit.fast"', "-c", "-o", str(tmp_path / "o"))
    _run("arm-none-eabi-gcc", *flags, str(hooked.folder / "shapes.c"))
    sections = _run("arm-none-eabi-readelf", "-SW", str(tmp_path / "o"))
    assert re.search(r"\.noinit\.fast\s+NOBITS", sections) and ".bss.shapes_arena" not in sections


def test_networks_share_an_arena_in_the_emulator(
    hooked: Image, streaming: Image, as_object: Image, tmp_path: Path, emulator_tools: None
) -> None:
    bundle = write_bundle(tmp_path / "b", [hooked, streaming, as_object], BOARD)
    built = build_image(bundle, BOARD)
    sizes = [p.arena_bytes for p in (hooked, streaming, as_object)]
    assert built.arena_bytes == max(sizes) < built.ram_bytes <= max(sizes) + 8 < sum(sizes)  # a byte says who runs
    image = np.random.default_rng(3).integers(-128, 128, (1, SIDE, SIDE, 1), dtype=np.int8)
    result = emulator.run(built.elf, BOARD, bundle, [[image] * 3, [image[:, ::-1]] * 3])
    alone = tvm_cascade.run(hooked.folder, board="host", inputs={"image": image}, outputs=tmp_path / "o.npz")
    assert alone.equals_host is not False
    with np.load(tmp_path / "o.npz") as expected:
        for output in result.outputs[0]:
            np.testing.assert_array_equal(output, expected["scores"])
    assert result.arena_high_water_bytes == max(sizes)
