"""A compiled network as a package of other build systems: a Zephyr module, an Arduino library.

Both hold the network alone (header, sources, weights, compiled kernels if any) and an example that calls it. Zephyr's
layout is that of its documentation's "Modules (External projects)", Arduino's that of its "Library specification" 1.5.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tvm_cascade.cores import Core
from tvm_cascade.cores.families import ARM, RISCV
from tvm_cascade.errors import ToolError, UsageError
from tvm_cascade.micro.bundle import NAME, arena_text, is_bundle, read_bundle
from tvm_cascade.micro.export_layouts import ARDUINO, ZEPHYR
from tvm_cascade.micro.names import c_identifier
from tvm_cascade.micro.network import IoSpec
from tvm_cascade.micro.project import Project, fill_template, read_project, user_callback
from tvm_cascade.micro.shared_weights import HEADER, SOURCE
from tvm_cascade.micro.toolchain import find_tool
from tvm_cascade.publish import publish, require_empty

VERSION = "1.0.0"  # of the packages; the network's own versions are in metadata.json
_ARDUINO_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")


@dataclass(frozen=True, slots=True)
class _Content:
    """The networks of a package; several share one arena."""

    name: str  # C identifier, of the package
    networks: tuple[Project, ...]
    arena_bytes: int
    arena: str = ""  # C source of the shared arena, empty for a single network
    constants: Mapping[str, str] = field(default_factory=dict)  # header and source of weights that several have

    @property
    def target(self) -> Core:
        return self.networks[0].target

    @property
    def has_objects(self) -> bool:
        return any(network.objects for network in self.networks)

    def sources(self) -> Iterator[tuple[str, str]]:
        """Names and texts of the C sources."""
        for network in self.networks:
            for source in network.sources:
                yield source, (network.folder / source).read_text(encoding="utf-8")
        if self.arena:
            yield "arena.c", self.arena
        yield from ((name, text) for name, text in self.constants.items() if name == SOURCE)

    def headers(self) -> Iterator[tuple[str, str]]:
        """Names and texts of the headers: with a shared arena they say so themselves, whatever the build defines."""
        for network in self.networks:
            header = f"{network.name}.h"
            yield header, (_SHARED if self.arena else "") + (network.folder / header).read_text(encoding="utf-8")
        yield from ((name, text) for name, text in self.constants.items() if name == HEADER)

    @property
    def uses_math(self) -> bool:
        """Whether functions of <math.h> may be called; what objects call is not looked at."""
        return self.has_objects or any("#include <math.h>" in text for _, text in self.sources())


def _content(folder: Path) -> _Content:
    if not is_bundle(folder):
        project = read_project(folder)
        return _single(project)
    bundle = read_bundle(folder)
    shared = (HEADER, SOURCE) if bundle.shared_weight_bytes else ()
    constants = {name: (folder / name).read_text(encoding="utf-8") for name in shared}
    name = c_identifier(folder.resolve().name, NAME)
    return _Content(name, bundle.networks, bundle.arena_bytes, arena_text(bundle), constants)


def _single(project: Project) -> _Content:
    return _Content(project.name, (project,), project.interface.arena_bytes)


def export_folder(folder: Path, kind: str, out: Path) -> tuple[str, ...]:
    """The compiled project or the bundle in `folder` as a package of `kind`: `zephyr` or `arduino`.

    A bundle becomes one package, named as its folder, whose networks share their arena. Raises as `export_zephyr`.
    """
    kinds = {"zephyr": _export_zephyr, "arduino": _export_arduino}
    if kind not in kinds:
        raise UsageError(f"unknown kind of package {kind!r}; known: {', '.join(kinds)}")
    return kinds[kind](_content(folder), out)


def export_zephyr(project: Project, out: Path) -> tuple[str, ...]:
    """Write `project` as a Zephyr module with a sample into the new folder `out`; returns the files, relative to it.

    An application switches it on with `CONFIG_TVM_CASCADE_<NAME>=y`.

    Raises `UsageError` if `out` exists and is not empty, `MissingToolError` if compiled kernels have to be packed and
    the target's binutils are missing.
    """
    return _export_zephyr(_single(project), out)


def export_arduino(project: Project, out: Path) -> tuple[str, ...]:
    """Write `project` as an Arduino library with an example sketch into the new folder `out`; returns its files.

    Raises as `export_zephyr`, and `UsageError` for compiled kernels of cores that Arduino takes none of, and for folder
    names that it does not take.
    """
    return _export_arduino(_single(project), out)


def _export_zephyr(content: _Content, out: Path) -> tuple[str, ...]:
    def write(folder: Path) -> None:
        name = content.name
        archive = ""
        if content.has_objects:
            _pack(content, folder / "lib" / f"lib{name}_kernels.a")
            archive = (
                f"  zephyr_library_import(tvm_cascade_{name}_kernels "
                f"${{CMAKE_CURRENT_SOURCE_DIR}}/lib/lib{name}_kernels.a)\n"
                f"  zephyr_library_link_libraries(tvm_cascade_{name}_kernels)\n"
            )
        for source, text in content.sources():
            _write(folder / "src" / source, text)
        for header, text in content.headers():
            _write(folder / "include" / header, text)
        values = {
            **_values(content),
            "sources": "\n".join(f"    src/{source}" for source, _ in content.sources()),
            "archive": archive,
            "flags": " ".join(sorted({flag for network in content.networks for flag in network.network_flags})),
            "needs": _zephyr_needs(content),
            "arch": f"    arch_allow: {content.target.family.name}\n" if content.has_objects else "",
            "settings": _zephyr_settings(content),
        }
        for place, text in ZEPHYR.items():
            _write(folder / place.replace("NAME", name), fill_template(text, values))

    return _publish(write, out)


def _zephyr_needs(content: _Content) -> str:
    """Kconfig lines: a full libm where its functions may be called, and cores that execute compiled kernels."""
    lines = ["    select REQUIRES_FULL_LIBC\n"] if content.uses_math else []
    if content.has_objects and content.target.family is ARM:
        cores = " || ".join(f"CPU_{core.upper().replace('-', '_')}" for core in content.target.runs_on)
        lines.append(f"    depends on {cores}\n")
    if content.has_objects and content.target.family is RISCV:
        lines.append("    depends on RISCV && !64BIT\n")
    if _hard_float_objects(content):
        lines.append("    depends on FP_HARDABI\n")
    return "".join(lines)


def _zephyr_settings(content: _Content) -> str:
    """Of the sample: the floating point unit where it serves, its calling convention where kernels are compiled for it."""
    floats = any(
        spec.dtype.startswith("float")
        for network in content.networks
        for spec in (*network.interface.inputs, *network.interface.outputs)
    )
    hard = _hard_float_objects(content)
    unit = "CONFIG_FPU=y\n" if hard or (floats and content.target.fpu) else ""
    return unit + ("CONFIG_FP_HARDABI=y\n" if hard else "")


def _hard_float_objects(content: _Content) -> bool:
    return content.has_objects and "-mfloat-abi=hard" in content.target.gcc_flags


def _export_arduino(content: _Content, out: Path) -> tuple[str, ...]:
    if not _ARDUINO_FOLDER.match(out.name):
        raise UsageError(
            f"Arduino takes no library folder named {out.name!r}: letters, digits, '_', '.' and '-', 63 at most, no leading mark"
        )
    if content.has_objects and content.target.family is not ARM:
        raise UsageError(
            f"Arduino takes compiled kernels of Arm cores alone, not of {content.target.name}: compile with --emit c"
        )

    def write(folder: Path) -> None:
        name, target = content.name, content.target
        precompiled = ""
        if content.has_objects:
            for core in target.runs_on:  # the builder's `build.mcu`; it tries `<core>/<fpu>-<float abi>` before
                _pack(content, folder / "src" / core / f"lib{name}_kernels.a")
            precompiled = f"precompiled=true\nldflags=-l{name}_kernels\n"
        for source, text in content.sources():
            _write(folder / "src" / source, text)
        for header, text in content.headers():
            _write(folder / "src" / header, (_kernel_guard(target) if content.has_objects else "") + text)
        values = {
            **_values(content),
            # names that begin so are Arduino's own
            "library": f"network_{name}" if name.startswith("arduino") else name,
            "headers": ",".join(f"{network.name}.h" for network in content.networks),
            "keywords": "".join(
                f"{network.name}_{function}\tKEYWORD2\n"
                for network in content.networks
                for function in ("run", "map_inputs", "map_outputs")
            ),
            "precompiled": precompiled,
            "boards": _arduino_boards(content),
        }
        for place, text in ARDUINO.items():
            _write(folder / place.replace("NAME", name), fill_template(text, values))

    return _publish(write, out)


_SHARED = """/* The networks of this package share one arena. */
#ifndef TVM_CASCADE_SHARED_ARENA
#define TVM_CASCADE_SHARED_ARENA
#endif
"""


def _arduino_boards(content: _Content) -> str:
    """For the README: boards that the library serves."""
    if not content.has_objects:
        return "It serves boards of 32 bits."
    cores = ", ".join(content.target.runs_on)
    return (
        f"Its kernels are compiled\nwith `{' '.join(content.target.gcc_flags)}`, for boards of {cores}\n"
        "with the same `-mfloat-abi`. Arduino IDE 1.8.13 and arduino-cli 0.11 are the first to find them."
    )


def _kernel_guard(target: Core) -> str:
    """C that refuses a board whose options show that it does not run, or not link, kernels compiled for `target`."""
    misfits = [f"__ARM_ARCH < {target.triple.removeprefix('thumbv')[0]}"]
    if target.fpu:
        misfits += ["!defined(__ARM_PCS_VFP)", "!defined(__ARM_FEATURE_DSP)"]
    else:
        misfits += ["defined(__ARM_PCS_VFP)"]
    if "-mfpu=fpv5-d16" in target.gcc_flags:
        misfits += ["!(__ARM_FP & 8)"]
    if target.triple.startswith("thumbv8.1m"):
        misfits += ["!defined(__ARM_FEATURE_MVE)"]
    return f"""#if {" || ".join(misfits)}
#error "compiled for {" ".join(target.gcc_flags)}: for this board, compile the network with --emit c"
#endif
"""


def _values(content: _Content) -> dict[str, str]:
    names = [network.name for network in content.networks]
    several = len(names) > 1
    return {
        "name": content.name,
        "NAME": content.name.upper(),
        "version": VERSION,
        "target": content.target.name,
        "arena_bytes": str(content.arena_bytes),
        "what": f"{len(names)} neural networks" if several else "A neural network",
        "includes": "\n".join(f'#include "{name}.h"' for name in names),
        "library_includes": "\n".join(f"#include <{name}.h>" for name in names),
        "include_words": ", ".join(f"`{name}.h`" for name in names),
        "calls": "\n".join(_call(network) for network in content.networks),
        "print_all": "\n".join(f'    printk("{name}: status %d\\n", (int)call_{name}());' for name in names),
        "report_all": "\n".join(
            f'    Serial.print("{name}: status ");\n    Serial.println((long)call_{name}());' for name in names
        ),
    }


def _call(network: Project) -> str:
    """A function `call_<name>` of an example: one inference, and the callbacks of streamed inputs before it."""
    name, interface = network.name, network.interface
    streamed = [spec for spec in interface.inputs if spec.stream_axis is not None]
    about_inputs = "\n".join(_about("inputs", spec) for spec in interface.inputs)
    about_outputs = "\n".join(_about("outputs", spec) for spec in interface.outputs)
    return (
        "".join(user_callback(spec, f"{name}_{spec.c_name}") for spec in streamed)
        + f"""
static int32_t call_{name}(void)
{{
    struct {name}_inputs inputs;
    struct {name}_outputs outputs;

    (void){name}_map_inputs(&inputs);
    (void){name}_map_outputs(&outputs);
"""
        + "".join(f"    inputs.{spec.c_name} = read_{name}_{spec.c_name};\n" for spec in streamed)
        + f"""    /* USER CODE: write the inputs, in place.
{about_inputs}
     */
    const int32_t status = {name}_run(&inputs, &outputs);
    /* USER CODE: read the outputs.
{about_outputs}
     */
    return status;
}}
"""
    )


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


def _pack(content: _Content, archive: Path) -> None:
    """Compiled kernels as a static library, reproducible to the byte."""
    family = content.target.family
    tool = find_tool(f"{family.prefix}ar", family.compiler_remedy)
    archive.parent.mkdir(parents=True, exist_ok=True)
    objects = [str(network.folder / name) for network in content.networks for name in network.objects]
    done = subprocess.run(
        (tool, "rcsD", str(archive), *objects), capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise ToolError(f"{tool} failed: {done.stderr.strip()}")
