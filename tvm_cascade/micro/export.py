"""A compiled network as a package of other build systems: a Zephyr module, an Arduino library.

Both hold the network alone (header, sources, weights, compiled kernels if any) and an example that calls it. Zephyr's
layout is that of its documentation's "Modules (External projects)", Arduino's that of its "Library specification" 1.5.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tvm_cascade.errors import ToolError, UsageError
from tvm_cascade.micro.network import IoSpec
from tvm_cascade.micro.project import Project, fill_template, read_project, user_callback
from tvm_cascade.micro.toolchain import find_tool
from tvm_cascade.publish import publish, require_empty

VERSION = "1.0.0"  # of the packages; the network's own versions are in metadata.json


def export_folder(folder: Path, kind: str, out: Path) -> tuple[str, ...]:
    """The compiled project in `folder` as a package of `kind`: `zephyr` or `arduino`. Raises as `export_zephyr`."""
    kinds = {"zephyr": export_zephyr, "arduino": export_arduino}
    if kind not in kinds:
        raise UsageError(f"unknown kind of package {kind!r}; known: {', '.join(kinds)}")
    return kinds[kind](read_project(folder), out)


def export_zephyr(project: Project, out: Path) -> tuple[str, ...]:
    """Write `project` as a Zephyr module with a sample into the new folder `out`; returns the files, relative to it.

    An application switches it on with `CONFIG_TVM_CASCADE_<NAME>=y`.

    Raises `UsageError` if `out` exists and is not empty, `MissingToolError` if compiled kernels have to be packed and
    the target's binutils are missing.
    """

    def write(folder: Path) -> None:
        name = project.name
        for source in project.sources:
            _copy(project.folder / source, folder / "src" / source)
        _copy_headers(project, folder / "include")
        archive = ""
        if project.objects:
            _pack(project, folder / "lib" / f"lib{name}_kernels.a")
            archive = (
                f"  zephyr_library_import({name}_kernels ${{CMAKE_CURRENT_SOURCE_DIR}}/lib/lib{name}_kernels.a)\n"
                f"  zephyr_library_link_libraries({name}_kernels)\n"
            )
        hard_float = "-mfloat-abi=hard" in project.target.gcc_flags and bool(project.objects)
        values = {
            **_values(project),
            "sources": "\n".join(f"    src/{source}" for source in project.sources),
            "archive": archive,
            "flags": " ".join(project.network_flags),
            "float": "CONFIG_FPU=y\nCONFIG_FP_HARDABI=y\n" if hard_float else "",
        }
        for place, text in _ZEPHYR.items():
            _write(folder / place.replace("NAME", name), fill_template(text, values))

    return _publish(write, out)


def export_arduino(project: Project, out: Path) -> tuple[str, ...]:
    """Write `project` as an Arduino library with an example sketch into the new folder `out`; returns its files.

    Raises as `export_zephyr`.
    """

    def write(folder: Path) -> None:
        name, target = project.name, project.target
        for source in project.sources:  # libraries cannot name compiler options of their own
            text = (project.folder / source).read_text(encoding="utf-8")
            _write(folder / "src" / source, _ONE_ARENA + text)
        _copy_headers(project, folder / "src")
        precompiled = ""
        if project.objects:
            _pack(project, folder / "src" / _arduino_folder(target.gcc_flags, target.mcpu) / f"lib{name}_kernels.a")
            precompiled = f"precompiled=true\nldflags=-l{name}_kernels\n"
        values = {**_values(project), "precompiled": precompiled}
        for place, text in _ARDUINO.items():
            _write(folder / place.replace("NAME", name), fill_template(text, values))

    return _publish(write, out)


_ONE_ARENA = """/* one arena holds values of several types */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-strict-aliasing")
#endif
"""


def _arduino_folder(flags: tuple[str, ...], mcpu: str) -> str:
    """Where the Arduino builder looks for compiled code: `<core>/<fpu>-<float abi>`, or `<core>` without an FPU."""
    options = dict(flag.lstrip("-").split("=", 1) for flag in flags if "=" in flag)
    fpu, abi = options.get("mfpu", "auto"), options.get("mfloat-abi", "soft")
    return f"{mcpu}/{fpu}-{abi}" if fpu != "auto" else mcpu


def _values(project: Project) -> dict[str, str]:
    name, interface = project.name, project.interface
    streamed = [spec for spec in interface.inputs if spec.stream_axis is not None]
    return {
        "name": name,
        "NAME": name.upper(),
        "version": VERSION,
        "target": project.target.name,
        "arena_bytes": str(interface.arena_bytes),
        "callbacks": "".join(user_callback(spec, spec.c_name) for spec in streamed),
        "set_callbacks": "".join(f"    inputs.{s.c_name} = read_{s.c_name};\n" for s in streamed),
        "inputs": "\n".join(_about("inputs", spec) for spec in interface.inputs),
        "outputs": "\n".join(_about("outputs", spec) for spec in interface.outputs),
    }


def _about(side: str, spec: IoSpec) -> str:
    real = "" if spec.scale is None else f", real = {spec.scale!r} * (q - {spec.zero_point or 0})"
    return f"     * {side}.{spec.c_name}: {spec.dtype}{list(spec.shape)}{real}"


def _publish(write: Callable[[Path], None], out: Path) -> tuple[str, ...]:
    """Let `write` fill the new folder `out`; returns its files."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not empty; name a new folder")
    with publish(out, require_empty) as staging:
        write(staging)
        files = tuple(sorted(str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file()))
    return files


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _copy(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, to)


def _copy_headers(project: Project, folder: Path) -> None:
    header = f"{project.name}.h"
    _copy(project.folder / header, folder / header)


def _pack(project: Project, archive: Path) -> None:
    """Compiled kernels as a static library, reproducible to the byte."""
    family = project.target.family
    tool = find_tool(f"{family.prefix}ar", family.compiler_remedy)
    archive.parent.mkdir(parents=True, exist_ok=True)
    objects = [str(project.folder / name) for name in project.objects]
    done = subprocess.run(
        (tool, "rcsD", str(archive), *objects), capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise ToolError(f"{tool} failed: {done.stderr.strip()}")


_ZEPHYR: Mapping[str, str] = {
    "zephyr/module.yml": """\
name: @name@
build:
  cmake: .
  kconfig: Kconfig
samples:
  - samples
""",
    "Kconfig": """\
config TVM_CASCADE_@NAME@
    bool "Neural network @name@"
    help
      A network compiled by tvm_cascade for @target@: it takes @arena_bytes@ bytes of RAM beside its stack.
""",
    "CMakeLists.txt": """\
if(CONFIG_TVM_CASCADE_@NAME@)
  zephyr_include_directories(include)
  zephyr_library_named(@name@)
  zephyr_library_sources(
@sources@
  )
  zephyr_library_compile_options(-O2 -fno-strict-aliasing @flags@)
@archive@endif()
""",
    "README.md": """\
# @name@ for Zephyr

A neural network compiled by tvm_cascade for @target@. Add this folder to `ZEPHYR_EXTRA_MODULES` or to your west
manifest, set `CONFIG_TVM_CASCADE_@NAME@=y`, include `@name@.h`. `samples/@name@` calls it:

```
west build -b <board> samples/@name@
```
""",
    "samples/NAME/CMakeLists.txt": """\
cmake_minimum_required(VERSION 3.20.0)
list(APPEND ZEPHYR_EXTRA_MODULES ${CMAKE_CURRENT_SOURCE_DIR}/../..)
find_package(Zephyr REQUIRED HINTS $ENV{ZEPHYR_BASE})
project(@name@_sample C)
target_sources(app PRIVATE src/main.c)
""",
    "samples/NAME/prj.conf": "CONFIG_TVM_CASCADE_@NAME@=y\nCONFIG_MAIN_STACK_SIZE=4096\n@float@",
    "samples/NAME/sample.yaml": """\
sample:
  name: @name@
tests:
  sample.tvm_cascade.@name@:
    build_only: true
""",
    "samples/NAME/src/main.c": """\
#include <zephyr/kernel.h>
#include <zephyr/sys/printk.h>

#include "@name@.h"
@callbacks@
int main(void)
{
    struct @name@_inputs inputs;
    struct @name@_outputs outputs;

    @name@_map_inputs(&inputs);
    @name@_map_outputs(&outputs);
@set_callbacks@    /* USER CODE: write the inputs, in place.
@inputs@
     */
    const int32_t status = @name@_run(&inputs, &outputs);
    printk("@name@: status %d\\n", (int)status);
    /* USER CODE: read the outputs.
@outputs@
     */
    return (int)status;
}
""",
}

_ARDUINO: Mapping[str, str] = {
    "library.properties": """\
name=@name@
version=@version@
author=tvm_cascade
maintainer=tvm_cascade
sentence=A neural network compiled for @target@.
paragraph=It takes @arena_bytes@ bytes of RAM beside its stack, and no memory at run time.
category=Data Processing
url=https://tvm.apache.org
architectures=*
includes=@name@.h
@precompiled@""",
    "keywords.txt": "@name@_run\tKEYWORD2\n@name@_map_inputs\tKEYWORD2\n@name@_map_outputs\tKEYWORD2\n",
    "README.md": """\
# @name@ for Arduino

A neural network compiled by tvm_cascade for @target@. Copy this folder into your sketchbook's `libraries`, then open
File > Examples > @name@.
""",
    "examples/NAME/NAME.ino": """\
#include <@name@.h>

static struct @name@_inputs inputs;
static struct @name@_outputs outputs;
@callbacks@
void setup()
{
    Serial.begin(115200);
}

void loop()
{
    @name@_map_inputs(&inputs);
    @name@_map_outputs(&outputs);
@set_callbacks@    /* USER CODE: write the inputs, in place.
@inputs@
     */
    const int32_t status = @name@_run(&inputs, &outputs);
    Serial.print("@name@: status ");
    Serial.println((long)status);
    /* USER CODE: read the outputs.
@outputs@
     */
    delay(1000);
}
""",
}
