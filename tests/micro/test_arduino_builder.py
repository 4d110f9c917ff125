"""Arduino libraries built by Arduino's own builder, for an emulated board that is a platform of its own, and run there."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.boards.board import load_board
from tvm_cascade.checking.reference import reference_outputs
from tvm_cascade.cores import get_core
from tvm_cascade.cores.families import ARM
from tvm_cascade.emit.bundle import write_bundle
from tvm_cascade.emit.export import export_folder
from tvm_cascade.emit.image import Image, read_image
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.template import startup_source, template
from tvm_cascade.emit.write_image import BuildOptions, write_image

pytestmark = pytest.mark.usefixtures("quick_host")

BUILDER = Path("/usr/share/arduino-builder")  # what Debian's builder knows of ctags
BOARD = load_board("mps2-an386")
M4 = get_core("cortex-m4")
Inputs = list[tuple[np.ndarray, np.ndarray]]

BOARDS = f"""\
desk.name=Emulated board
desk.build.core=serial
desk.build.variant=desk
desk.build.board=DESK
desk.build.mcu={M4.mcpu}
desk.build.fpu=-mfpu=fpv4-sp-d16
desk.build.float-abi=-mfloat-abi=hard
"""
# as the platform of STM32 boards has it: sizes first, and libraries behind the objects
PLATFORM = """\
name=Emulated boards
version=1.0.0
compiler.warning_flags=-w
compiler.warning_flags.all=-Wall -Wextra -Werror
compiler.libraries.ldflags=
cpu=-mcpu={build.mcu} {build.fpu} {build.float-abi} -mthumb
options=-c {cpu} -Os -ffunction-sections -fdata-sections -MMD -DARDUINO={runtime.ide.version} {compiler.warning_flags}
cpp=-std=gnu++17 -fno-rtti -fno-exceptions -fno-threadsafe-statics
link={cpu} -nostartfiles --specs=nano.specs -Wl,--gc-sections,-z,noexecstack "-T{build.variant.path}/link.ld"
recipe.c.o.pattern="arm-none-eabi-gcc" {options} -std=gnu17 {includes} "{source_file}" -o "{object_file}"
recipe.cpp.o.pattern="arm-none-eabi-g++" {options} {cpp} {includes} "{source_file}" -o "{object_file}"
recipe.ar.pattern="arm-none-eabi-ar" rcs "{archive_file_path}" "{object_file}"
elf=-o "{build.path}/{build.project_name}.elf"
recipe.c.combine.pattern="arm-none-eabi-gcc" {link} {elf} {object_files} {compiler.libraries.ldflags} "{archive_file_path}" -lm
"""
CORE_H = """\
#pragma once
#include <stdint.h>
struct Port {
    void begin(unsigned long baud);
    void print(const char *text);
    void print(long value);
    void print(unsigned long value) { print((long)value); }
    void println(const char *text) { print(text); print("\\n"); }
    void println(long value) { print(value); print("\\n"); }
    void println(unsigned long value) { println((long)value); }
};
extern Port Serial;
extern "C" void delay(unsigned long ms);
extern "C" unsigned long micros(void);
void setup(void);
void loop(void);
"""
CORE = """\
#include "Arduino.h"
#include "uart.h"
Port Serial;
void Port::begin(unsigned long) { uart_open(); }
void Port::print(const char *text) { while (*text) uart_put((uint8_t)*text++); }
void Port::print(long value)
{
    char text[24], *at = text + sizeof text;
    unsigned long rest = value < 0 ? 0ul - (unsigned long)value : (unsigned long)value;
    *--at = 0;
    do { *--at = (char)('0' + rest % 10); rest /= 10; } while (rest);
    if (value < 0) *--at = '-';
    print(at);
}
void delay(unsigned long) {}
unsigned long micros(void) { return 7; }
int main()
{
    setup();
    loop();
    register int operation __asm("r0") = 0x18, reason __asm("r1") = 0x20026; /* ends the emulation */
    __asm volatile("bkpt 0xAB" : : "r"(operation), "r"(reason) : "memory");
}
"""


@pytest.fixture(scope="module")
def builder(emulator_tools: None) -> str:
    path = shutil.which("arduino-builder")
    if path is None:
        pytest.skip("arduino-builder is not installed")
    return path


@pytest.fixture
def sketchbook(tmp_path: Path) -> Path:
    """Folders `hardware`, with a platform for the board's own start-up code and memories, and `libraries`."""
    place = tmp_path / "hardware" / "tvm_cascade" / "emulated"
    core, variant = place / "cores" / "serial", place / "variants" / "desk"
    core.mkdir(parents=True)
    variant.mkdir(parents=True)
    (place / "platform.txt").write_text(PLATFORM)
    (place / "boards.txt").write_text(BOARDS)
    (core / "Arduino.h").write_text(CORE_H)
    (core / "main.cpp").write_text(CORE)
    (core / "startup.c").write_text(startup_source(ARM))
    (core / "uart.h").write_text(template("uart.h"))
    return tmp_path


def put_board(sketchbook: Path, project: Path) -> None:
    """The board's files come from a project folder: linker script and addresses."""
    place = sketchbook / "hardware" / "tvm_cascade" / "emulated"
    shutil.copy(project / "boards" / BOARD.name / "link.ld", place / "variants" / "desk")
    shutil.copy(project / "boards" / BOARD.name / "board.h", place / "cores" / "serial")


def found(library: Path, mcu: str, fpu: str, abi: str) -> list[str]:
    """What Arduino IDE 1.8.13 and arduino-cli 0.11 and later hand to the linker for a precompiled library.

    Debian's builder is of the time before: it knows neither `precompiled` nor `ldflags`.
    """
    properties = dict(line.split("=", 1) for line in (library / "library.properties").read_text().splitlines())
    if properties.get("precompiled") != "true":
        return []
    for folder in (library / "src" / mcu / f"{fpu}-{abi}", library / "src" / mcu):
        if folder.is_dir() and any(path.is_file() for path in folder.iterdir()):
            return [f"-L{folder}", properties["ldflags"]]
    return []


def build(builder: str, sketchbook: Path, sketch: Path, flags: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    (sketchbook / "build").mkdir(exist_ok=True)
    command = [builder, "-compile", "-hardware", sketchbook / "hardware", "-hardware", BUILDER, "-tools", BUILDER]
    command += ["-libraries", sketchbook / "libraries", "-fqbn", "tvm_cascade:emulated:desk", "-warnings", "all"]
    command += ["-build-path", sketchbook / "build", "-prefs", f"compiler.libraries.ldflags={' '.join(flags)}", sketch]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=300)


def fill_in(sketch: Path, name: str, inputs: Sequence[tuple[str, bytes]], outputs: Sequence[tuple[str, int]]) -> None:
    """The example with user code: constants as inputs, and every byte of the outputs printed."""
    text = sketch.read_text()
    start = text.index(f"static int32_t call_{name}(void)")
    head, body = text[:start], text[start:]
    for place, data in inputs:
        head += f"static const uint8_t {place}_of_{name}[] = {{{','.join(map(str, data))}}};\n"
        copy = f"    memcpy((void *)(uintptr_t)inputs.{place}, {place}_of_{name}, sizeof {place}_of_{name});\n"
        body = body.replace("    const int32_t status", copy + "    const int32_t status", 1)
    for place, size in outputs:
        loop = (
            f"    for (uint32_t k = 0; k < {size}; ++k) Serial.println((long)((const int8_t *)outputs.{place})[k]);\n"
        )
        body = body.replace("    return status;", loop + "    return status;", 1)
    sketch.write_text("#include <string.h>\n" + head + body)


def printed(sketchbook: Path, sketch: str) -> dict[str, np.ndarray]:
    """What comes over the serial port of the emulated board, once through setup() and loop().

    By network: the bytes of its outputs, a line each, then "<name>: status 0, us 0" and the class, if there are classes.
    """
    command = [
        "qemu-system-arm", "-M", str(BOARD.qemu_machine), "-kernel", str(sketchbook / "build" / f"{sketch}.ino.elf"),
        "-display", "none", "-monitor", "none", "-serial", "stdio", "-semihosting-config", "enable=on,target=native",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=True, timeout=120, text=True)
    texts = re.findall(r"((?:-?\d+\n)*)(\w+): status 0, us 0", done.stdout)
    numbers = {name: list(map(int, text.split())) for text, name in texts}
    return {name: np.array(values, dtype=np.int8) for name, values in numbers.items()}


def test_the_example_of_a_library(
    tmp_path: Path, toy: EmittedNetwork, toy_inputs: Inputs, reference: Callable, builder: str, sketchbook: Path
) -> None:
    project = write_image(tmp_path / "p", (toy,), BuildOptions(M4, BOARD))
    put_board(sketchbook, project.folder)
    export_folder(project.folder, "arduino", sketchbook / "libraries" / "toy")
    sketch = sketchbook / "libraries" / "toy" / "examples" / "toy" / "toy.ino"
    done = build(builder, sketchbook, sketch)
    assert done.returncode == 0, done.stderr
    assert list(printed(sketchbook, "toy")) == ["toy"]
    a, b = toy_inputs[0]
    fill_in(sketch, "toy", [("a", a.tobytes()), ("b", b.tobytes())], [("y", 24)])
    done = build(builder, sketchbook, sketch)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(printed(sketchbook, "toy")["toy"], reference(a, b).ravel())
    sketch.write_text(sketch.read_text().replace("int32_t status", "int32_t unused = 0, status"))
    done = build(builder, sketchbook, sketch)  # the platform's warnings are errors
    assert done.returncode != 0 and "unused" in done.stderr


@pytest.fixture(scope="module")
def compiled(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Two real networks, one of them with kernels that LLVM has compiled."""
    folder = tmp_path_factory.mktemp("networks")
    projects: list[Image] = []
    for name, emit in (("ad01_int8", "obj"), ("kws_dscnn_int8", "c")):
        model = models / f"{name}.tflite"
        tvm_cascade.compile(model, target=M4.name, output=folder / name, board=BOARD.name, emit=emit)
        projects.append(read_image(folder / name))
    return write_bundle(folder / "both", projects, BOARD)


def test_real_networks_of_both_back_ends_in_one_library(
    compiled: Image, models: Path, builder: str, sketchbook: Path
) -> None:
    put_board(sketchbook, compiled.folder)
    library = sketchbook / "libraries" / "both"
    export_folder(compiled.folder, "arduino", library)
    sketch = library / "examples" / "both" / "both.ino"
    rng = np.random.default_rng(3)
    expected: dict[str, np.ndarray] = {}
    for network in compiled.networks:
        (x,), (y,) = network.inputs, network.outputs
        data = rng.integers(-128, 128, x.shape, dtype=np.int8)
        fill_in(sketch, network.name, [(x.c_name, data.tobytes())], [(y.c_name, y.bytes)])
        made = reference_outputs(models / f"{network.name}.tflite", {x.name: data}).outputs
        expected[network.name] = made[y.name].ravel()
    flags = found(library, M4.mcpu, "fpv4-sp-d16", "hard")
    assert len(flags) == 2
    assert found(library, "cortex-m7", "fpv5-sp-d16", "hard")  # as the STM32 platform has it
    assert not found(library, "cortex-m3", "", "")
    done = build(builder, sketchbook, sketch)
    assert done.returncode != 0 and "undefined reference to `ad01_int8_" in done.stderr
    done = build(builder, sketchbook, sketch, flags)
    assert done.returncode == 0, done.stderr
    got = printed(sketchbook, "both")
    assert list(got) == [network.name for network in compiled.networks]
    for name, outputs in expected.items():
        np.testing.assert_array_equal(got[name], outputs)


def test_a_board_that_cannot_take_the_kernels_is_told(compiled: Image, builder: str, sketchbook: Path) -> None:
    put_board(sketchbook, compiled.folder)
    library = sketchbook / "libraries" / "both"
    export_folder(compiled.folder, "arduino", library)
    boards = sketchbook / "hardware" / "tvm_cascade" / "emulated" / "boards.txt"
    boards.write_text(BOARDS.replace("-mfloat-abi=hard", "-mfloat-abi=softfp"))
    done = build(builder, sketchbook, library / "examples" / "both" / "both.ino")
    assert done.returncode != 0
    assert "for this board, compile the network with --emit c" in done.stderr
