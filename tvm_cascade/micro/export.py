"""Export a compiled folder as a package for another build system: a Zephyr module or an Arduino library.

Both contain the networks (headers, sources, weights, compiled kernels if any) and an example that calls them. Their other
files come from `templates/zephyr/` and `templates/arduino/`: Zephyr's layout follows its documentation's "Modules (External
projects)", Arduino's its "Library specification" 1.5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tvm_cascade.cores import Core
from tvm_cascade.cores.families import ARM, RISCV
from tvm_cascade.errors import UsageError
from tvm_cascade.micro.image import Image, read_image
from tvm_cascade.micro.image_text import arena_source
from tvm_cascade.micro.main_text import user_callback
from tvm_cascade.micro.names import c_identifier
from tvm_cascade.micro.network import Network
from tvm_cascade.micro.shared_weights import HEADER, SOURCE
from tvm_cascade.micro.template import fill_template, template_folder
from tvm_cascade.micro.toolchain import find_tool, run_tool
from tvm_cascade.publish import publish, require_empty
from tvm_cascade.tensor_spec import TensorSpec

VERSION = "1.0.0"  # of the packages; the network's own versions are in metadata.json
_ARDUINO_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")


@dataclass(frozen=True, slots=True)
class _Package:
    """An image to be exported, and the name of the package."""

    name: str  # C identifier
    image: Image

    @property
    def networks(self) -> tuple[Network, ...]:
        return self.image.networks

    @property
    def target(self) -> Core:
        return self.image.target

    @property
    def has_objects(self) -> bool:
        return any(network.objects for network in self.networks)

    def _text(self, name: str) -> str:
        return (self.image.folder / name).read_text(encoding="utf-8")

    def sources(self) -> Iterator[tuple[str, str]]:
        """Names and texts of the C sources."""
        for network in self.networks:
            yield from ((source, self._text(source)) for source in network.sources)
        if self.image.several:
            yield "arena.c", arena_source(self.image)
        if self.image.shared_weight_bytes:
            yield SOURCE, self._text(SOURCE)

    def headers(self) -> Iterator[tuple[str, str]]:
        """Names and texts of the headers; those of several networks define TVM_CASCADE_SHARED_ARENA themselves."""
        for network in self.networks:
            header = f"{network.name}.h"
            yield header, (_SHARED if self.image.several else "") + self._text(header)
        if self.image.shared_weight_bytes:
            yield HEADER, self._text(HEADER)

    @property
    def uses_math(self) -> bool:
        """Whether functions of <math.h> may be called; objects are not examined and count as callers."""
        return self.has_objects or any("#include <math.h>" in text for _, text in self.sources())


def export_folder(folder: Path, kind: str, out: Path) -> tuple[str, ...]:
    """Write the compiled `folder` as a package of `kind` into the new folder `out`; returns the files, relative to it.

    Parameters
    ----------
    kind : str
        `zephyr`, a module with a sample, which an application switches on with `CONFIG_TVM_CASCADE_<NAME>=y`; or
        `arduino`, a library with an example sketch.

    Raises
    ------
    UsageError
        `kind` is unknown, or `out` exists and is not empty; for Arduino also if kernels are compiled for another family
        of cores than Arm, or if the name of `out` is no valid name of a library folder.
    MissingToolError
        Compiled kernels have to be packed and the target's binutils are missing.
    """
    kinds = {"zephyr": _write_zephyr, "arduino": _write_arduino}
    if kind not in kinds:
        raise UsageError(f"unknown kind of package {kind!r}; known: {', '.join(kinds)}")
    image = read_image(folder)
    if image.networks[0].interface.memories:
        raise UsageError(
            f"{image.name} lies in memories of its board: packages have one arena; compile without --memory"
        )
    # named after its network, or after its folder where there are several
    package = _Package(c_identifier(folder.resolve().name, image.name) if image.several else image.name, image)
    if kind == "arduino":
        _refuse_arduino(package, out)
    with publish(out, require_empty) as staging:
        values = kinds[kind](package, staging) | _values(package)
        for place, text in template_folder(kind).items():
            _write(staging / place.replace("NAME", package.name), fill_template(text, values))
        return tuple(sorted(str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file()))


def _write_zephyr(package: _Package, folder: Path) -> dict[str, str]:
    """Write the networks' files in the layout of a Zephyr module; returns the template values that only Zephyr needs."""
    name = package.name
    archive = ""
    if package.has_objects:
        _pack(package, folder / "lib" / f"lib{name}_kernels.a")
        archive = (
            f"  zephyr_library_import(tvm_cascade_{name}_kernels "
            f"${{CMAKE_CURRENT_SOURCE_DIR}}/lib/lib{name}_kernels.a)\n"
            f"  zephyr_library_link_libraries(tvm_cascade_{name}_kernels)\n"
        )
    for source, text in package.sources():
        _write(folder / "src" / source, text)
    for header, text in package.headers():
        _write(folder / "include" / header, text)
    return {
        "sources": "\n".join(f"    src/{source}" for source, _ in package.sources()),
        "archive": archive,
        "flags": " ".join(sorted({flag for network in package.networks for flag in network.c_flags})),
        "needs": _zephyr_needs(package),
        "arch": f"    arch_allow: {package.target.family.name}\n" if package.has_objects else "",
        "settings": _zephyr_settings(package),
    }


def _zephyr_needs(package: _Package) -> str:
    """Kconfig lines: a full libm where its functions may be called, and cores that execute compiled kernels."""
    lines = ["    select REQUIRES_FULL_LIBC\n"] if package.uses_math else []
    if package.has_objects and package.target.family is ARM:
        cores = " || ".join(f"CPU_{core.upper().replace('-', '_')}" for core in package.target.runs_on)
        lines.append(f"    depends on {cores}\n")
    if package.has_objects and package.target.family is RISCV:
        lines.append("    depends on RISCV && !64BIT\n")
    if _hard_float_objects(package):
        lines.append("    depends on FP_HARDABI\n")
    return "".join(lines)


def _zephyr_settings(package: _Package) -> str:
    """Settings of the sample: the floating point unit where it is of use, and hard-float calls where kernels need them."""
    floats = any(
        spec.dtype.startswith("float") for network in package.networks for spec in (*network.inputs, *network.outputs)
    )
    hard = _hard_float_objects(package)
    unit = "CONFIG_FPU=y\n" if hard or (floats and package.target.fpu) else ""
    return unit + ("CONFIG_FP_HARDABI=y\n" if hard else "")


def _hard_float_objects(package: _Package) -> bool:
    return package.has_objects and "-mfloat-abi=hard" in package.target.gcc_flags


def _refuse_arduino(package: _Package, out: Path) -> None:
    if not _ARDUINO_FOLDER.match(out.name):
        raise UsageError(
            f"Arduino takes no library folder named {out.name!r}: letters, digits, '_', '.' and '-', 63 at most, no leading mark"
        )
    if package.has_objects and package.target.family is not ARM:
        raise UsageError(
            f"Arduino takes compiled kernels of Arm cores alone, not of {package.target.name}: compile with --emit c"
        )


def _write_arduino(package: _Package, folder: Path) -> dict[str, str]:
    """Write the networks' files in the layout of an Arduino library; returns the template values that only Arduino needs."""
    name, target = package.name, package.target
    precompiled = guard = ""
    if package.has_objects:
        for core in target.runs_on:  # folder by the builder's `build.mcu`; it tries `<core>/<fpu>-<float abi>` first
            _pack(package, folder / "src" / core / f"lib{name}_kernels.a")
        precompiled, guard = f"precompiled=true\nldflags=-l{name}_kernels\n", _kernel_guard(target)
    for source, text in package.sources():
        _write(folder / "src" / source, text)
    for header, text in package.headers():
        _write(folder / "src" / header, guard + text)
    return {
        "library": f"network_{name}" if name.startswith("arduino") else name,  # Arduino reserves this prefix
        "headers": ",".join(f"{network.name}.h" for network in package.networks),
        "keywords": "".join(
            f"{network.name}_{function}\tKEYWORD2\n"
            for network in package.networks
            for function in ("run", "map_inputs", "map_outputs")
        ),
        "precompiled": precompiled,
        "boards": _arduino_boards(package),
    }


_SHARED = """/* The networks of this package share one arena. */
#ifndef TVM_CASCADE_SHARED_ARENA
#define TVM_CASCADE_SHARED_ARENA
#endif
"""


def _arduino_boards(package: _Package) -> str:
    """The sentence of the README that says which boards the library is for."""
    if not package.has_objects:
        return "It serves boards of 32 bits."
    cores = ", ".join(package.target.runs_on)
    return (
        f"Its kernels are compiled\nwith `{' '.join(package.target.gcc_flags)}`, for boards of {cores}\n"
        "with the same `-mfloat-abi`. Arduino IDE 1.8.13 and arduino-cli 0.11 are the first to find them."
    )


def _kernel_guard(target: Core) -> str:
    """Preprocessor check with an #error where the compiler's options show that kernels of `target` cannot run or link."""
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


def _values(package: _Package) -> dict[str, str]:
    names = [network.name for network in package.networks]
    several = len(names) > 1
    return {
        "name": package.name,
        "NAME": package.name.upper(),
        "version": VERSION,
        "target": package.target.name,
        "arena_bytes": str(package.image.arena_bytes),
        "what": f"{len(names)} neural networks" if several else "A neural network",
        "includes": "\n".join(f'#include "{name}.h"' for name in names),
        "library_includes": "\n".join(f"#include <{name}.h>" for name in names),
        "include_words": ", ".join(f"`{name}.h`" for name in names),
        "calls": "\n".join(_call(network) for network in package.networks),
        "print_all": "\n".join(f'    printk("{name}: status %d\\n", (int)call_{name}());' for name in names),
        "report_all": "\n".join(
            f'    Serial.print("{name}: status ");\n    Serial.println((long)call_{name}());' for name in names
        ),
    }


def _call(network: Network) -> str:
    """C of an example's function `call_<name>`, which runs one inference, preceded by callbacks of streamed inputs."""
    name = network.name
    streamed = [spec for spec in network.inputs if spec.streamed]
    about_inputs = "\n".join(_about("inputs", spec) for spec in network.inputs)
    about_outputs = "\n".join(_about("outputs", spec) for spec in network.outputs)
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


def _about(side: str, spec: TensorSpec) -> str:
    real = "" if spec.scale is None else f", real = {spec.scale!r} * (q - {spec.zero_point or 0})"
    return f"     * {side}.{spec.c_name}: {spec.type_text}{real}"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _pack(package: _Package, archive: Path) -> None:
    """Write the objects with the kernels as a static library, deterministically (`ar D`)."""
    family = package.target.family
    tool = find_tool(f"{family.prefix}ar", family.compiler_remedy)
    archive.parent.mkdir(parents=True, exist_ok=True)
    objects = [str(package.image.folder / name) for network in package.networks for name in network.objects]
    run_tool((tool, "rcsD", str(archive), *objects))
