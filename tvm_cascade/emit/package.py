"""The common parts of packages for foreign build systems: the record `Package` and the base class `PackageKind`.

A kind is a module in `micro.packages` with an object `KIND`; its texts are the files in `templates/<module>/`. `NAME`
in a path is replaced by the package's name, `@key@` in a text by a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from tvm_cascade.cores import Core
from tvm_cascade.cores.families import Family
from tvm_cascade.emit.golden import Golden, golden_header, has_classes
from tvm_cascade.emit.hearing import Hearing, example_call
from tvm_cascade.emit.image import Image
from tvm_cascade.emit.image_text import arena_source
from tvm_cascade.emit.main_text import user_callback
from tvm_cascade.emit.network import Network, NetworkMemory
from tvm_cascade.emit.shared_weights import HEADER, SOURCE
from tvm_cascade.emit.template import fill_template, render, template
from tvm_cascade.emit.toolchain import find_tool, run_tool
from tvm_cascade.errors import UsageError
from tvm_cascade.tensor_spec import TensorSpec

VERSION = "1.0.0"  # of the packages; the network's own versions are in metadata.json


@dataclass(frozen=True, slots=True)
class Package:
    """An image to be exported, and the name of the package."""

    name: str  # C identifier
    image: Image
    hearing: Hearing | None = None  # a front end whose C lies beside, and that the example calls
    golden: Mapping[str, Golden] = field(default_factory=dict)  # by network
    labels: tuple[str, ...] = ()  # of the classes of the only network

    @property
    def networks(self) -> tuple[Network, ...]:
        return self.image.networks

    @property
    def target(self) -> Core:
        return self.image.target

    @property
    def memories(self) -> tuple[tuple[str, NetworkMemory], ...]:
        """Return the board's memories with arrays, each with a name prefix; empty if everything lies in an arena."""
        own = [(n.name, m) for n in self.networks for m in n.interface.memories if m.all_bytes]
        if self.image.several:  # networks share their arrays, and have copies of weights of their own
            own = [(name, replace(m, bytes=0)) for name, m in own if m.weights]
            own += [("tvm_cascade", replace(m, weights=0)) for m in self.image.arrays if m.name and m.bytes]
        return tuple(own)

    @property
    def has_objects(self) -> bool:
        """Return True if kernels are already compiled (`--emit obj`)."""
        return any(network.objects for network in self.networks)

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the compiler options needed by the sources."""
        needed = {flag for network in self.networks for flag in network.c_flags}
        return ("-O2", "-fno-strict-aliasing", *sorted(needed))

    def _text(self, name: str) -> str:
        return (self.image.folder / name).read_text(encoding="utf-8")

    def sources(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts of the C sources."""
        for network in self.networks:
            yield from ((source, self._text(source)) for source in network.sources)
        if self.image.several:
            yield "arena.c", arena_source(self.image)
        if self.image.shared_weight_bytes:
            yield SOURCE, self._text(SOURCE)
        yield from self._heard(".c")

    def headers(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts of the headers; with several networks, headers define TVM_CASCADE_SHARED_ARENA
        themselves.
        """
        shared = "".join(f"#ifndef {name}\n#define {name}\n#endif\n" for name in self.image.defines)
        about = "/* The networks of this package share one arena. */\n" if shared else ""
        for network in self.networks:
            header, stored = f"{network.name}.h", network.interface.weights
            section = _SECTION.format(network.name.upper()) if stored is not None and not stored.in_file else ""
            yield header, about + shared + section + self._text(header)
        if self.image.shared_weight_bytes:
            yield HEADER, self._text(HEADER)
        for network in filter(self.extended, self.networks):
            text = golden_header(network, self.golden.get(network.name), self.labels)
            yield f"{network.name}_golden.h", text
        yield from self._heard(".h")

    def extended(self, network: Network) -> bool:
        """Return True if a header with a self-test or classes is written for a network."""
        wanted = bool(self.golden) or bool(self.labels)
        return self.hearing is None and (network.name in self.golden or (wanted and has_classes(network)))

    def _heard(self, end: str) -> Iterator[tuple[str, str]]:
        texts = {} if self.hearing is None else self.hearing.texts
        yield from ((name, text) for name, text in texts.items() if name.endswith(end))

    @property
    def uses_math(self) -> bool:
        """Return True if functions of <math.h> may be called; objects are not examined and count as callers."""
        return self.has_objects or any("#include <math.h>" in text for _, text in self.sources())


class PackageKind:
    """A kind of package: the refused features, and the files besides the templates'."""

    templates: str  # folder in `templates/`
    title: str  # in a sentence: "a Zephyr module"
    sections: ClassVar[Mapping[str, tuple[tuple[str, str], ...]]] = {}  # by name of a memory: conditions of the C
    # preprocessor, and the section that its linker scripts have for the memory where one holds
    microphone = "listen.c.in"  # template of how an example with a front end gets its samples
    compiled: tuple[Family, ...] = ()  # cores whose compiled kernels (`--emit obj`) it can hold

    def refuse(self, package: Package, out: Path) -> None:
        """Raise `UsageError` if the package cannot be of this kind, or not in the folder `out`."""
        if package.has_objects and package.target.family not in self.compiled:
            families = " and ".join(family.name.title() for family in self.compiled)
            held = f"compiled kernels of {families} cores alone" if families else "C for any core"
            raise UsageError(
                f"{self.title} holds {held}, and the kernels of {package.name} are compiled for "
                f"{package.target.name}: compile with --emit c"
            )

    def write(self, package: Package, folder: Path) -> dict[str, str]:
        """Write the networks' files below `folder`. Return the values of template keys that only this kind of package
        has.
        """
        raise NotImplementedError

    def finish(self, package: Package, folder: Path) -> None:
        """Complete the package after the templates are filled; override to add to the folder."""


def section_macro(prefix: str, memory: NetworkMemory) -> str:
    """Name the macro for the section of a memory's array."""
    return f"{prefix}_{memory.label}_SECTION".upper()


def weights_macro(prefix: str) -> str:
    """Name the macro for the section of copied weights."""
    return f"{prefix}_WEIGHTS_SECTION".upper()


def section_text(package: Package, known: Mapping[str, tuple[tuple[str, str], ...]]) -> str:
    """Write C that sets the section for every memory's array: a `known` section of the board, or else bss, in the
    build's RAM.
    """
    lines: list[str] = []
    macros = [(n, m, section_macro(n, m)) for n, m in package.memories if m.bytes]
    macros += [(n, m, weights_macro(n)) for n, m in package.memories if m.weights]
    for prefix, memory, macro in macros:
        lines.append(f"#ifndef {macro}")
        own = known.get(memory.name, ())
        for k, (condition, section) in enumerate(own):
            lines += [f"#{'elif' if k else 'if'} {condition}", f'#define {macro} "{section}"']
        other = f'#define {macro} ".bss.{prefix}_{memory.label}"'
        lines += ["#else", other, "#endif"] if own else [other]
        lines.append("#endif")
    return "".join(f"{line}\n" for line in lines)


# every linker script has .rodata.*; the build may name another section
_SECTION = '#ifndef {0}_FLASH_SECTION\n#define {0}_FLASH_SECTION ".rodata.tvm_weights"\n#endif\n'


def write_sources(package: Package, sources: Path, headers: Path, before: str = "") -> None:
    """Write the C sources into a single folder and the headers, behind the text `before`, into another."""
    for source, text in package.sources():
        write_file(sources / source, text)
    for header, text in package.headers():
        write_file(headers / header, before + text)


def kernel_guard(target: Core) -> str:
    """Write a preprocessor check with an #error if the compiler's options show that kernels for `target` cannot run or
    link.
    """
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


def common_values(package: Package) -> dict[str, str]:
    """Return the values for every kind's templates."""
    names = [network.name for network in package.networks]
    several = len(names) > 1
    tested = [name for name in names if name in package.golden and package.hearing is None]
    classed = [n.name for n in package.networks if package.extended(n) and has_classes(n)]
    headers = [*names, *([package.hearing.name] if package.hearing else [])]
    headers += [f"{n.name}_golden" for n in package.networks if package.extended(n)]
    values = {
        "name": package.name,
        "NAME": package.name.upper(),
        "version": VERSION,
        "target": package.target.name,
        "arena_bytes": str(package.image.arena_bytes),
        "what": f"{len(names)} neural networks" if several else "A neural network",
        "flags": " ".join(package.flags),
        "memories": render("package_memories.md.j2", memories=package.memories, networks=package.networks),
        "includes": "\n".join(f'#include "{name}.h"' for name in headers),
        "include_words": ", ".join(f"`{name}.h`" for name in names),
        "calls": "\n".join(_call(network, package.hearing, network.name in classed) for network in package.networks),
        "print_all": "\n".join(
            [
                *(self_test_line(name, "printk") for name in tested),
                *(_zephyr_report(package, name, name in classed) for name in names),
            ]
        ),
        "call_all": "\n".join(
            [
                *(f"    if (status == 0) status = {name}_self_test();" for name in tested),
                *(f"    if (status == 0) status = call_{name}();" for name in names),
            ]
        ),
    }
    if package.hearing is not None:  # there are samples all the time
        (name,) = names
        values["print_all"] = f"    while (call_{name}() == 0) {{\n        k_msleep(1);\n    }}"
    values["sketch"] = render(
        "sketch.cpp.j2", headers=headers, names=names, tested=tested, classed=classed, labels=package.labels,
        calls=values["calls"], hears=package.hearing is not None,
    )  # fmt: skip
    return values


def self_test_line(name: str, print_: str) -> str:
    """Write a line of a C example that runs the self-test of a network and prints the verdict."""
    return f'    {print_}("{name}: self-test %s\\n", {name}_self_test() == 0 ? "passed" : "FAILED");'


def _class_text(package: Package, name: str) -> str:
    """Return the C expression for the class of the last call: a name, or a number without labels."""
    return f"{name}_labels[class_{name}]" if package.labels else f"class_{name}"


def printed_report(package: Package, name: str, classed: bool, print_: str, clock: str, passed: str) -> str:
    """Write the lines of a C example that run a network and print its status, time and class.

    `clock` is an expression for a time, `passed` one for the microseconds since `begin_<name>`.
    """
    kind = "%s" if package.labels else "%u"
    value = _class_text(package, name) if package.labels else f"(unsigned)class_{name}"
    more, argument = (f", class {kind}", f", {value}") if classed else ("", "")
    return (
        f"    const uint32_t begin_{name} = (uint32_t){clock};\n"
        f"    const int32_t status_{name} = call_{name}();\n"
        f"    const uint32_t us_{name} = (uint32_t)({passed.format(f'begin_{name}')});\n"
        f'    {print_}("{name}: status %d, us %u{more}\\n", (int)status_{name}, (unsigned)us_{name}{argument});'
    )


def _zephyr_report(package: Package, name: str, classed: bool) -> str:
    return printed_report(
        package, name, classed, "printk", "k_cycle_get_32()", "k_cyc_to_us_floor32(k_cycle_get_32() - {})"
    )


def _call(network: Network, hearing: Hearing | None, classed: bool = False) -> str:
    """Write the C function `call_<name>` of an example, which runs an inference, after callbacks for streamed inputs.

    With a front end the function listens, and runs once per set of rows.
    """
    name = network.name
    about_inputs = "\n".join(_about("inputs", spec) for spec in network.inputs)
    about_outputs = "\n".join(_about("outputs", spec) for spec in network.outputs)
    if hearing is not None:
        return example_call(network, hearing, about_outputs)
    stored = network.interface.weights
    return render(
        "package_call.c.j2", name=name, inputs=network.inputs, classed=classed, about_inputs=about_inputs,
        about_outputs=about_outputs, stored=stored if stored is not None and stored.in_file else None,
        port=fill_template(template("main_stream_application_port.c.in"), {"name": name}),
        readers="".join(user_callback(s, f"{name}_{s.c_name}") for s in network.inputs if s.streamed),
    )  # fmt: skip


def _about(side: str, spec: TensorSpec) -> str:
    real = "" if spec.scale is None else f", real = {spec.scale!r} * (q - {spec.zero_point or 0})"
    return f"     * {side}.{spec.c_name}: {spec.type_text}{real}"


def write_file(path: Path, text: str) -> None:
    """Write a text, and create missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_archive(package: Package, archive: Path) -> None:
    """Write the objects with the kernels as a static library, deterministically (`ar D`)."""
    family = package.target.family
    tool = find_tool(f"{family.prefix}ar", family.compiler_remedy)
    archive.parent.mkdir(parents=True, exist_ok=True)
    objects = [str(package.image.folder / name) for network in package.networks for name in network.objects]
    run_tool((tool, "rcsD", str(archive), *objects))
