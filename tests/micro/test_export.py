"""Exports: compiled the way their build systems would, with stand-ins for what those systems provide."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tvm_cascade.boards.board import load_board
from tvm_cascade.cores import get_core
from tvm_cascade.emit.bundle import write_bundle
from tvm_cascade.emit.export import export_folder
from tvm_cascade.emit.image import Image
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.write_image import BuildOptions, write_image
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.tensor_spec import TensorSpec

M4 = get_core("cortex-m4")

# What the exports use of Zephyr: modules found through ZEPHYR_EXTRA_MODULES, switched on by prj.conf.
ZEPHYR_CONFIG = """\
project(Zephyr-Kernel C)
add_library(app STATIC)
add_library(zephyr_interface INTERFACE)
target_include_directories(zephyr_interface INTERFACE ${CMAKE_CURRENT_LIST_DIR}/include)
target_link_libraries(app PUBLIC zephyr_interface)
function(zephyr_include_directories)
  foreach(folder ${ARGN})
    get_filename_component(folder ${folder} ABSOLUTE)
    target_include_directories(zephyr_interface INTERFACE ${folder})
  endforeach()
endfunction()
macro(zephyr_library_named name)
  set(ZEPHYR_CURRENT_LIBRARY ${name})
  add_library(${name} STATIC)
  target_link_libraries(${name} PUBLIC zephyr_interface)
  target_link_libraries(app PUBLIC ${name})
endmacro()
macro(zephyr_library_sources)
  target_sources(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endmacro()
macro(zephyr_library_compile_options)
  target_compile_options(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endmacro()
macro(zephyr_library_import name file)
  if(NOT EXISTS ${file})
    message(FATAL_ERROR "no ${file}")
  endif()
  add_library(${name} STATIC IMPORTED GLOBAL)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION ${file})
endmacro()
macro(zephyr_library_link_libraries)
  target_link_libraries(${ZEPHYR_CURRENT_LIBRARY} PUBLIC ${ARGN})
endmacro()
file(STRINGS ${CMAKE_SOURCE_DIR}/prj.conf settings REGEX "=y$")
foreach(setting ${settings})
  string(REPLACE "=y" "" setting ${setting})
  set(${setting} y)
endforeach()
foreach(module ${ZEPHYR_EXTRA_MODULES})
  if(NOT EXISTS ${module}/zephyr/module.yml)
    message(FATAL_ERROR "${module} is no module")
  endif()
  get_filename_component(module ${module} ABSOLUTE)
  add_subdirectory(${module} ${CMAKE_BINARY_DIR}/modules)
endforeach()
"""

ARDUINO_H = """\
#pragma once
#include <stdint.h>
struct Stream {
    void begin(long);
    void print(const char *);
    void print(long);
    void print(unsigned long);
    void println(const char *);
    void println(long);
    void println(unsigned long);
};
unsigned long micros(void);
extern Stream Serial;
void delay(unsigned long);
"""


@pytest.fixture
def project(tmp_path: Path, toy: EmittedNetwork) -> Image:
    return write_image(tmp_path / "p", (toy,), BuildOptions(M4, load_board("mps2-an386")))


@pytest.fixture
def object_project(tmp_path: Path, toy: EmittedNetwork, arm_gcc: None) -> Image:
    """The toy network with its weights as a compiled object, as `--emit obj` has its kernels."""
    (tmp_path / "w.c").write_bytes(toy.files["toy_weights.c"])
    command = ["arm-none-eabi-gcc", *M4.gcc_flags, "-c", str(tmp_path / "w.c"), "-o", str(tmp_path / "w.o")]
    subprocess.run(command, check=True)
    files = {"toy.h": toy.files["toy.h"], "toy.c": toy.files["toy.c"], "toy_kernels.o": (tmp_path / "w.o").read_bytes()}
    network = replace(toy, files=files, sources=("toy.c",), objects=("toy_kernels.o",))
    return write_image(tmp_path / "po", (network,), BuildOptions(M4, load_board("mps2-an386")))


@pytest.fixture
def streaming_project(tmp_path: Path, streaming_toy: EmittedNetwork) -> Image:
    return write_image(tmp_path / "ps", (streaming_toy,), BuildOptions(M4, load_board("mps2-an386")))


@pytest.fixture
def duo(tmp_path: Path, object_project: Image, streaming_toy: EmittedNetwork, renamed: Callable) -> Image:
    """A bundle of a network with compiled kernels and one with a streamed input."""
    rows = write_image(tmp_path / "pr", (renamed(streaming_toy, "rows"),), BuildOptions(M4, load_board("mps2-an386")))
    return write_bundle(tmp_path / "duo", [object_project, rows], load_board("mps2-an386"))


KINDS = ["project", "object_project", "streaming_project", "duo"]


@pytest.mark.parametrize("kind", KINDS)
def test_zephyr_module_builds(kind: str, tmp_path: Path, arm_gcc: None, request: pytest.FixtureRequest) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    name, objects = ("duo" if kind == "duo" else "toy"), kind in ("object_project", "duo")
    files = export_folder(request.getfixturevalue(kind).folder, "zephyr", tmp_path / "module")
    assert {"zephyr/module.yml", "Kconfig", "CMakeLists.txt", "include/toy.h", "src/toy.c"} <= set(files)
    assert (f"lib/lib{name}_kernels.a" in files) == objects
    kconfig = (tmp_path / "module/Kconfig").read_text()
    assert f"config TVM_CASCADE_{name.upper()}\n" in kconfig
    for need in (" select REQUIRES_FULL_LIBC", " depends on CPU_CORTEX_M4 || CPU_CORTEX_M7", " depends on FP_HARDABI"):
        assert (need in kconfig) == objects
    assert ("arch_allow: arm\n" in (tmp_path / f"module/samples/{name}/sample.yaml").read_text()) == objects
    settings = (tmp_path / f"module/samples/{name}/prj.conf").read_text()
    assert ("CONFIG_FP_HARDABI=y" in settings) == objects
    stand_in = tmp_path / "zephyr"
    for place, text in {
        "ZephyrConfig.cmake": ZEPHYR_CONFIG,
        "include/zephyr/kernel.h": "#include <stdint.h>\nuint32_t k_cycle_get_32(void);\n#define k_cyc_to_us_floor32(c) (c)\n",
        "include/zephyr/sys/printk.h": "void printk(const char *, ...);\n",
    }.items():
        (stand_in / place).parent.mkdir(parents=True, exist_ok=True)
        (stand_in / place).write_text(text)
    sample, output = tmp_path / "module" / "samples" / name, tmp_path / "out"
    (tmp_path / "tools.cmake").write_text(
        "set(CMAKE_SYSTEM_NAME Generic)\nset(CMAKE_C_COMPILER arm-none-eabi-gcc)\n"
        f'set(CMAKE_C_FLAGS_INIT "{" ".join(M4.gcc_flags)} -Wall -Wextra -Werror")\n'
        "set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)\n"
    )
    tools = f"-DCMAKE_TOOLCHAIN_FILE={tmp_path / 'tools.cmake'}"
    for command in (
        ["cmake", "-S", str(sample), "-B", str(output), tools, f"-DZephyr_DIR={stand_in}"],
        ["cmake", "--build", str(output)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (output / "libapp.a").exists()


# Of Zephyr's own options those that a module asks for; its tools read Kconfig with a kconfiglib of their own.
ZEPHYR_KCONFIG = """\
mainmenu "Zephyr"
config @CORE@
    bool
    default y
config CPU_HAS_FPU
    bool
    default y
config FPU
    bool "Floating point unit"
    depends on CPU_HAS_FPU
choice
    prompt "Floating point ABI"
    depends on FPU
    default FP_SOFTABI
config FP_HARDABI
    bool "hard"
config FP_SOFTABI
    bool "soft"
endchoice
config REQUIRES_FULL_LIBC
    bool
config MAIN_STACK_SIZE
    int "bytes"
    default 1024
osource "@MODULE@/Kconfig"
"""


@pytest.mark.parametrize("core", ["CPU_CORTEX_M4", "CPU_CORTEX_M7", "CPU_CORTEX_M3"])
@pytest.mark.parametrize("kind", ["project", "object_project"])
def test_zephyr_configures_the_sample(kind: str, core: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Options that nobody knows are a warning; where needs are not met the module is off, at which Zephyr's build stops."""
    kconfiglib = pytest.importorskip("kconfiglib")
    export_folder(request.getfixturevalue(kind).folder, "zephyr", tmp_path / "module")
    text = ZEPHYR_KCONFIG.replace("@CORE@", core).replace("@MODULE@", str(tmp_path / "module"))
    (tmp_path / "Kconfig").write_text(text)
    tree = kconfiglib.Kconfig(str(tmp_path / "Kconfig"), warn_to_stderr=False)
    tree.load_config(str(tmp_path / "module/samples/toy/prj.conf"))
    held = {name: tree.syms[name].str_value for name in ("TVM_CASCADE_TOY", "FP_HARDABI", "REQUIRES_FULL_LIBC")}
    objects, fits = kind == "object_project", kind == "project" or core != "CPU_CORTEX_M3"
    asked = "y" if objects else "n"
    assert not tree.warnings
    assert held == {
        "TVM_CASCADE_TOY": "y" if fits else "n",
        "FP_HARDABI": asked,
        "REQUIRES_FULL_LIBC": asked if fits else "n",
    }


def lint_library(folder: Path) -> dict[str, str]:
    """The rules of Arduino's library specification 1.5 and of arduino-lint that concern what is exported."""
    properties = dict(line.split("=", 1) for line in (folder / "library.properties").read_text().splitlines())
    required = {"name", "version", "author", "maintainer", "sentence", "paragraph", "category", "url", "architectures"}
    assert required <= properties.keys() and all(properties.values())
    known = required | {"includes", "precompiled", "ldflags", "depends", "dot_a_linkage", "license"}
    assert properties.keys() <= known
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,62}", properties["name"])
    assert re.search(r"[A-Za-z]", properties["name"]) and not properties["name"].lower().startswith("arduino")
    assert re.fullmatch(r"\d+\.\d+\.\d+", properties["version"])
    assert properties["category"] == "Data Processing"  # one of nine that are allowed
    assert properties["sentence"] not in properties["paragraph"]
    assert all((folder / "src" / header).is_file() for header in properties["includes"].split(","))
    for sketch in (folder / "examples").iterdir():
        assert (sketch / f"{sketch.name}.ino").is_file()
    for line in (folder / "keywords.txt").read_text().splitlines():
        assert re.fullmatch(r"\w+\tKEYWORD2", line)
    assert not [p for p in folder.rglob("*") if p.suffix in (".exe", ".pde") or p.is_symlink()]
    return properties


@pytest.mark.parametrize("kind", KINDS)
def test_arduino_library_compiles(kind: str, tmp_path: Path, arm_gcc: None, request: pytest.FixtureRequest) -> None:
    name, objects = ("duo" if kind == "duo" else "toy"), kind in ("object_project", "duo")
    files = export_folder(request.getfixturevalue(kind).folder, "arduino", tmp_path / "toy")
    assert {"library.properties", "src/toy.h", "src/toy.c", f"examples/{name}/{name}.ino"} <= set(files)
    properties = lint_library(tmp_path / "toy")
    assert properties["includes"] == ("toy.h,rows.h" if kind == "duo" else "toy.h")
    assert properties.get("precompiled") == ("true" if objects else None)
    for core in ("cortex-m4", "cortex-m7", "cortex-m33"):
        assert (f"src/{core}/lib{name}_kernels.a" in files) == objects
    (tmp_path / "Arduino.h").write_text(ARDUINO_H)
    source = tmp_path / "toy" / "src"
    flags = [*M4.gcc_flags, "-Wall", "-Wextra", "-Werror", f"-I{source}", "-c", "-o", "/dev/null"]
    sketch = ["-x", "c++", "-include", str(tmp_path / "Arduino.h"), str(tmp_path / f"toy/examples/{name}/{name}.ino")]
    compiler = "arm-none-eabi-g++" if shutil.which("arm-none-eabi-g++") else "arm-none-eabi-gcc"
    for command in (
        [compiler, *flags, "-fno-exceptions", *sketch],
        *(["arm-none-eabi-gcc", *flags, str(path)] for path in source.glob("*.c")),
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("target", "fits", "does_not"),
    [
        ("cortex-m0plus", ["-mcpu=cortex-m0", "-mcpu=cortex-m4 -mfloat-abi=soft"], ["M4"]),
        ("cortex-m3", ["-mcpu=cortex-m3"], ["-mcpu=cortex-m0", "M4"]),
        ("cortex-m4", ["M4", "M7", "M33"], ["-mcpu=cortex-m4 -mfloat-abi=softfp", "-mcpu=cortex-m3"]),
        ("cortex-m7", ["M7"], ["-mcpu=cortex-m7 -mfpu=fpv5-sp-d16 -mfloat-abi=hard"]),
        ("cortex-m33", ["M33", "M55"], ["M7", "-mcpu=cortex-m33+nodsp -mfpu=fpv5-sp-d16 -mfloat-abi=hard"]),
        ("cortex-m55", ["M55"], ["M33", "-mcpu=cortex-m55+nomve -mfloat-abi=hard"]),
    ],
)
def test_kernels_refuse_boards_that_cannot_take_them(
    target: str, fits: list[str], does_not: list[str], tmp_path: Path, toy: EmittedNetwork, arm_gcc: None
) -> None:
    core = get_core(target)
    network = replace(toy, files={**toy.files, "toy_kernels.o": b"not looked into"}, objects=("toy_kernels.o",))
    project = write_image(tmp_path / "p", (network,), BuildOptions(core, load_board(core.default_board)))
    export_folder(project.folder, "arduino", tmp_path / "lib")
    include = f'#include "{tmp_path}/lib/src/toy.h"\n'
    for boards, taken in ((fits, True), (does_not, False)):
        for board in boards:
            name = board.replace("M", "cortex-m") if board[0] == "M" else ""
            options = get_core(name).gcc_flags if name else ("-mthumb", *board.split())
            command = ["arm-none-eabi-gcc", *options, "-Werror", "-fsyntax-only", "-x", "c", "-"]
            done = subprocess.run(command, input=include, capture_output=True, text=True, check=False)
            assert (done.returncode == 0) == taken, (board, done.stderr)
            assert taken or "for this board, compile the network with --emit c" in done.stderr


def test_networks_of_a_bundle_share_their_arena(tmp_path: Path, duo: Image) -> None:
    """Without a word from the build system: the only arena among the symbols is the shared one."""
    export_folder(duo.folder, "arduino", tmp_path / "lib")
    sources = [str(path) for path in (tmp_path / "lib/src").glob("*.c")]
    command = ["arm-none-eabi-gcc", *M4.gcc_flags, "-r", "-nostdlib", *sources, "-o", str(tmp_path / "all.o")]
    subprocess.run(command, check=True)
    listed = subprocess.run(
        ["arm-none-eabi-nm", "-S", str(tmp_path / "all.o")], capture_output=True, text=True, check=True
    ).stdout
    arenas = [line.split() for line in listed.splitlines() if line.endswith("_arena")]
    assert [(words[-1], int(words[1], 16)) for words in arenas] == [("tvm_cascade_arena", duo.arena_bytes)]


def test_names_that_other_systems_keep_for_themselves(tmp_path: Path, toy: EmittedNetwork, renamed: Callable) -> None:
    board = load_board("mps2-an386")
    project = write_image(tmp_path / "p", (renamed(toy, "arduino_wake"),), BuildOptions(M4, board))
    export_folder(project.folder, "arduino", tmp_path / "wake")
    assert lint_library(tmp_path / "wake")["name"] == "network_arduino_wake"
    for wrong in ("my library", "-x", "x" * 64):
        with pytest.raises(UsageError, match="Arduino takes no library folder named"):
            export_folder(project.folder, "arduino", tmp_path / wrong)
    # the name of a library of Zephyr's
    kernel = write_image(tmp_path / "k", (renamed(toy, "kernel"),), BuildOptions(M4, board))
    export_folder(kernel.folder, "zephyr", tmp_path / "module")
    assert "zephyr_library_named(tvm_cascade_kernel)" in (tmp_path / "module/CMakeLists.txt").read_text()
    assert "name: tvm_cascade_kernel\n" in (tmp_path / "module/zephyr/module.yml").read_text()  # modules replace others


def test_floats_and_compiled_kernels_of_other_cores(tmp_path: Path, toy: EmittedNetwork) -> None:
    y = TensorSpec("y", (1, 6), "float32", c_name="y")
    source = b"#include <math.h>\n" + toy.files["toy.c"]
    network = replace(toy, outputs=(y,), files={**toy.files, "toy.c": source})
    project = write_image(tmp_path / "f", (network,), BuildOptions(M4, load_board("mps2-an386")))
    export_folder(project.folder, "zephyr", tmp_path / "module")
    assert "select REQUIRES_FULL_LIBC" in (tmp_path / "module/Kconfig").read_text()
    assert "CONFIG_FPU=y\n" in (tmp_path / "module/samples/toy/prj.conf").read_text()
    files = {**toy.files, "toy_kernels.o": b"not looked into"}
    riscv = replace(toy, files=files, objects=("toy_kernels.o",))
    other = write_image(tmp_path / "r", (riscv,), BuildOptions(get_core("riscv32"), load_board("riscv32-virt")))
    export_folder(other.folder, "zephyr", tmp_path / "other")
    assert "depends on RISCV && !64BIT\n" in (tmp_path / "other/Kconfig").read_text()
    with pytest.raises(UsageError, match=r"of Arm cores alone, and .* compiled for riscv32: compile with --emit c"):
        export_folder(other.folder, "arduino", tmp_path / "lib")
    with pytest.raises(UsageError, match="unknown kind of package 'mbed'"):
        export_folder(project.folder, "mbed", tmp_path / "lib")


def test_exports_are_reproducible_and_never_overwrite(tmp_path: Path, object_project: Image) -> None:
    for kind in ("zephyr", "arduino"):
        one, two = tmp_path / f"{kind}1", tmp_path / f"{kind}2"
        files = export_folder(object_project.folder, kind, one)
        assert export_folder(object_project.folder, kind, two) == files
        for file in files:
            assert (one / file).read_bytes() == (two / file).read_bytes()
            assert b"@" not in (one / file).read_bytes() or file.endswith((".a", ".c", ".h"))
        with pytest.raises(UsageError, match="exists and is not empty"):
            export_folder(object_project.folder, kind, one)


@pytest.mark.parametrize("name", ["../outside.c", "/etc/hostname", "sub/../../outside.c", "link.c"])
def test_files_outside_of_the_folder_are_not_copied(tmp_path: Path, object_project: Image, name: str) -> None:
    folder = tmp_path / "project"
    shutil.copytree(object_project.folder, folder)
    (tmp_path / "outside.c").write_text("int secret;\n")
    (folder / "link.c").symlink_to(tmp_path / "outside.c")
    data = json.loads((folder / "metadata.json").read_text())
    data["project"]["sources"] = [*data["project"]["sources"], name]
    (folder / "metadata.json").write_text(json.dumps(data))
    with pytest.raises(LoadError, match="lies outside of the folder"):
        export_folder(folder, "zephyr", tmp_path / "package")
    assert not (tmp_path / "package").exists()


def test_a_failed_export_leaves_nothing(tmp_path: Path, object_project: Image) -> None:
    (object_project.folder / "toy_kernels.o").unlink()
    with pytest.raises(Exception, match="toy_kernels"):
        export_folder(object_project.folder, "zephyr", tmp_path / "x" / "module")
    assert not (tmp_path / "x").exists()
