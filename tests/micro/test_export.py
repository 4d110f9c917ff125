"""Exports: compiled the way their build systems would, with stand-ins for what those systems provide."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tvm_cascade.errors import UsageError
from tvm_cascade.micro.board import load_board
from tvm_cascade.micro.export import export_arduino, export_zephyr
from tvm_cascade.micro.network import EmittedNetwork
from tvm_cascade.micro.project import Project, write_project
from tvm_cascade.micro.target import get_target

M4 = get_target("cortex-m4")

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
struct Stream { void begin(long); void print(const char *); void println(long); };
extern Stream Serial;
void delay(unsigned long);
"""


@pytest.fixture
def project(tmp_path: Path, toy: EmittedNetwork) -> Project:
    return write_project(tmp_path / "p", toy, M4, load_board("mps2-an386"))


@pytest.fixture
def object_project(tmp_path: Path, toy: EmittedNetwork, arm_gcc: None) -> Project:
    """The toy network with its weights as a compiled object, as `--emit obj` has its kernels."""
    (tmp_path / "w.c").write_bytes(toy.files["toy_weights.c"])
    command = ["arm-none-eabi-gcc", *M4.gcc_flags, "-c", str(tmp_path / "w.c"), "-o", str(tmp_path / "w.o")]
    subprocess.run(command, check=True)
    files = {"toy.h": toy.files["toy.h"], "toy.c": toy.files["toy.c"], "toy_kernels.o": (tmp_path / "w.o").read_bytes()}
    network = replace(toy, files=files, sources=("toy.c",), objects=("toy_kernels.o",))
    return write_project(tmp_path / "po", network, M4, load_board("mps2-an386"))


@pytest.fixture
def streaming_project(tmp_path: Path, streaming_toy: EmittedNetwork) -> Project:
    return write_project(tmp_path / "ps", streaming_toy, M4, load_board("mps2-an386"))


@pytest.mark.parametrize("kind", ["project", "object_project", "streaming_project"])
def test_zephyr_module_builds(kind: str, tmp_path: Path, arm_gcc: None, request: pytest.FixtureRequest) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    files = export_zephyr(request.getfixturevalue(kind), tmp_path / "module")
    assert {"zephyr/module.yml", "Kconfig", "CMakeLists.txt", "include/toy.h", "src/toy.c"} <= set(files)
    assert ("lib/libtoy_kernels.a" in files) == (kind == "object_project")
    stand_in = tmp_path / "zephyr"
    for place, text in {
        "ZephyrConfig.cmake": ZEPHYR_CONFIG,
        "include/zephyr/kernel.h": "",
        "include/zephyr/sys/printk.h": "void printk(const char *, ...);\n",
    }.items():
        (stand_in / place).parent.mkdir(parents=True, exist_ok=True)
        (stand_in / place).write_text(text)
    sample, output = tmp_path / "module" / "samples" / "toy", tmp_path / "out"
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


@pytest.mark.parametrize("kind", ["project", "object_project", "streaming_project"])
def test_arduino_library_compiles(kind: str, tmp_path: Path, arm_gcc: None, request: pytest.FixtureRequest) -> None:
    files = export_arduino(request.getfixturevalue(kind), tmp_path / "toy")
    assert {"library.properties", "src/toy.h", "src/toy.c", "examples/toy/toy.ino"} <= set(files)
    properties = dict(line.split("=", 1) for line in (tmp_path / "toy/library.properties").read_text().splitlines())
    required = {"name", "version", "author", "maintainer", "sentence", "paragraph", "category", "url", "architectures"}
    assert required <= properties.keys() and all(properties.values())
    assert properties.get("precompiled") == ("true" if kind == "object_project" else None)
    if kind == "object_project":
        assert "src/cortex-m4/fpv4-sp-d16-hard/libtoy_kernels.a" in files
    (tmp_path / "Arduino.h").write_text(ARDUINO_H)
    source = tmp_path / "toy" / "src"
    flags = [*M4.gcc_flags, "-Wall", "-Wextra", "-Werror", f"-I{source}", "-c", "-o", "/dev/null"]
    sketch = ["-x", "c++", "-include", str(tmp_path / "Arduino.h"), str(tmp_path / "toy/examples/toy/toy.ino")]
    compiler = "arm-none-eabi-g++" if shutil.which("arm-none-eabi-g++") else "arm-none-eabi-gcc"
    for command in (
        [compiler, *flags, "-fno-exceptions", *sketch],
        *(["arm-none-eabi-gcc", *flags, str(path)] for path in source.glob("*.c")),
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_exports_are_reproducible_and_never_overwrite(tmp_path: Path, object_project: Project) -> None:
    for export in (export_zephyr, export_arduino):
        one, two = tmp_path / f"{export.__name__}1", tmp_path / f"{export.__name__}2"
        files = export(object_project, one)
        assert export(object_project, two) == files
        for file in files:
            assert (one / file).read_bytes() == (two / file).read_bytes()
            assert b"@" not in (one / file).read_bytes() or file.endswith((".a", ".c", ".h"))
        with pytest.raises(UsageError, match="exists and is not empty"):
            export(object_project, one)


def test_a_failed_export_leaves_nothing(tmp_path: Path, object_project: Project) -> None:
    (object_project.folder / "toy_kernels.o").unlink()
    with pytest.raises(Exception, match="toy_kernels"):
        export_zephyr(object_project, tmp_path / "x" / "module")
    assert not (tmp_path / "x").exists()
