"""Several networks in one image, sharing one arena.

The networks are compiled with TVM_CASCADE_SHARED_ARENA, which makes each of them use `tvm_cascade_arena` in place of an
array of its own; `arena.c` defines it, as large as the largest needs: the maximum of the arenas, not their sum. Constants
that several of them have are kept once, in `constants.c`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tvm_cascade.cores import Core
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.micro.board import Board
from tvm_cascade.micro.cmake import cmake_library, compile_flags
from tvm_cascade.micro.network import Interface, IoSpec
from tvm_cascade.micro.project import (
    METADATA,
    Project,
    add_board,
    copy_runtime,
    fill_template,
    find_board,
    project_from_metadata,
    project_metadata,
    read_project,
    row_callback,
    serial_source,
    template,
    user_callback,
)
from tvm_cascade.micro.shared_weights import SOURCE, share
from tvm_cascade.micro.toolchain import IMAGES, BuildResult, build_image, require_uart
from tvm_cascade.publish import publish, require_empty

NAME = "networks"  # of the image
_HOST = "host"  # the folder of a project's program for this machine
_DEFINES = re.compile(r"^#define (?!tvm_cascade)(\w+)", re.M)
SHARED = "-DTVM_CASCADE_SHARED_ARENA"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A folder of several networks. A run executes all of them once, in order."""

    folder: Path
    networks: tuple[Project, ...]
    target: Core
    optimise: str
    board: str = ""  # that it was bundled for
    shared_weight_bytes: int = 0  # in constants.c, which is there if they are not 0
    saved_flash_bytes: int = 0  # by them, against networks of their own

    @property
    def arena_bytes(self) -> int:
        """Bytes of the shared arena."""
        return max(network.interface.arena_bytes for network in self.networks)

    @property
    def outputs(self) -> tuple[IoSpec, ...]:
        """Outputs of all networks, one network after the other."""
        return tuple(spec for network in self.networks for spec in network.interface.outputs)

    def pack_inputs(self, arrays: Sequence[np.ndarray]) -> bytes:
        """The inputs of all networks, one network after the other, as the firmware reads them."""
        parts, start = [], 0
        for network in self.networks:
            end = start + len(network.interface.inputs)
            parts.append(network.interface.pack_inputs(arrays[start:end]))
            start = end
        if start != len(arrays):
            raise UsageError(f"{len(arrays)} input arrays given, the networks have {start}")
        return b"".join(parts)

    def unpack_outputs(self, data: bytes) -> tuple[np.ndarray, ...]:
        """The arrays of `outputs`."""
        return Interface(NAME, (), self.outputs, 0, 1).unpack_outputs(data)


@dataclass(frozen=True, slots=True)
class BundleResult:
    """A finished bundle and its image; sizes in bytes."""

    folder: Path
    networks: tuple[str, ...]
    board: str
    arena_bytes: int  # of the arena that all share
    separate_bytes: int  # what arenas of their own would take together
    ram_bytes: int
    flash_bytes: int
    elf: str  # relative to `folder`
    shared_weight_bytes: int = 0  # of `flash_bytes`: weights that several networks have, kept once
    saved_flash_bytes: int = 0  # by them

    def to_dict(self) -> dict[str, object]:
        """The JSON object of `tvm-cascade bundle --json`."""
        names = ("arena_bytes", "separate_bytes", "ram_bytes", "flash_bytes", "elf")
        names += ("shared_weight_bytes", "saved_flash_bytes")
        own = {"networks": list(self.networks), "board": self.board}
        return own | {name: getattr(self, name) for name in names}

    def to_text(self) -> str:
        """What was written, in a few lines."""
        return "\n".join(
            [
                f"networks        {', '.join(self.networks)}",
                f"arena           {self.arena_bytes} bytes, shared; {self.separate_bytes} bytes if each had its own",
                f"RAM             {self.ram_bytes} bytes of arena, data and bss, without the stack",
                f"flash           {self.flash_bytes} bytes of code, weights and tables",
                f"shared weights  {self.shared_weight_bytes} bytes, kept once: {self.saved_flash_bytes} bytes of flash saved",
                f"image           {self.folder / self.elf}",
            ]
        )


def make_bundle(folders: Sequence[Path], out: Path, board: Board | str | None = None) -> BundleResult:
    """Write and build a bundle of compiled project folders, complete or not at all.

    `board` None takes the one that the first network was compiled for. Raises as `write_bundle` and `build_bundle`.
    """
    projects = [read_project(Path(folder)) for folder in folders]
    _check(out, projects)
    if not isinstance(board, Board):
        first = projects[0]
        board = find_board(first.folder, board or first.board)
    with publish(out, require_empty) as staging:
        bundle = write_bundle(staging, projects, board)
        built = build_bundle(bundle, board)
        elf = str(built.elf.relative_to(staging))
    separate = sum(project.interface.arena_bytes for project in projects)
    names = tuple(project.name for project in projects)
    sizes = (bundle.arena_bytes, separate, built.ram_bytes, built.flash_bytes)
    return BundleResult(out, names, board.name, *sizes, elf, bundle.shared_weight_bytes, bundle.saved_flash_bytes)


def write_bundle(folder: Path, projects: Sequence[Project], board: Board) -> Bundle:
    """Copy the networks of compiled project folders into the new folder `folder`, with a main.c that calls them all.

    Raises `UsageError` for fewer than two networks, equal names, different targets, a board that cannot run them,
    networks that were compiled without a sharable arena, or a folder that is not empty.
    """
    target = _check(folder, projects)
    board.require_target(target)
    folder.mkdir(parents=True, exist_ok=True)
    for project in projects:
        for name in (f"{project.name}.h", *project.sources, *project.objects):
            shutil.copyfile(project.folder / name, folder / name)
    networks = tuple(replace(project, folder=folder) for project in projects)
    bundle = Bundle(folder, networks, target, projects[0].optimise, board.name, *_share_weights(folder, networks))
    copy_runtime(folder, target)
    (folder / "main.c").write_text(fill_template(template("bundle_main.c.in"), _main_text(bundle)), encoding="utf-8")
    (folder / "serial_main.c").write_text(_serial_main(bundle), encoding="utf-8")
    for project in projects:  # whose digest is that of their own files
        (folder / _serial_file(project)).write_text(serial_source(project.network()), encoding="utf-8")
    for name in ("CMakeLists.txt", "toolchain.cmake", "README.md"):
        source = "bundle_README.md.in" if name == "README.md" else f"{name}.in"
        (folder / name).write_text(fill_template(template(source), _build_text(bundle)), encoding="utf-8")
    (folder / "arena.c").write_text(arena_text(bundle), encoding="utf-8")
    names = [project.name for project in projects]
    own = {"networks": names, "target": target.name, "board": board.name, "arena_bytes": bundle.arena_bytes}
    own |= {"shared_weight_bytes": bundle.shared_weight_bytes, "saved_flash_bytes": bundle.saved_flash_bytes}
    own |= {"projects": [project_metadata(project) for project in projects], "hosts": _copy_hosts(folder, projects)}
    (folder / METADATA).write_text(json.dumps({"bundle": own}, indent=2) + "\n", encoding="utf-8")
    add_board(folder, board)
    return bundle


def is_bundle(folder: Path) -> bool:
    """Whether `folder` holds several networks rather than one."""
    try:
        return "bundle" in json.loads((folder / METADATA).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def read_bundle(folder: Path) -> Bundle:
    """The bundle that `write_bundle` put into `folder`; raises `LoadError` where there is none."""
    path = folder / METADATA
    try:
        own = json.loads(path.read_text(encoding="utf-8"))["bundle"]
        networks = tuple(project_from_metadata(folder, one) for one in own["projects"])
        shared = [int(own.get(name, 0)) for name in ("shared_weight_bytes", "saved_flash_bytes")]
        return Bundle(folder, networks, networks[0].target, networks[0].optimise, str(own["board"]), *shared)
    except OSError as error:
        raise LoadError(path, error.strerror or str(error)) from None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise LoadError(path, f"is not the metadata of a bundle ({error}); bundle again") from None


def _share_weights(folder: Path, networks: Sequence[Project]) -> tuple[int, int]:
    """Keep weights once that several networks have; returns their bytes, and those saved."""
    sources = {n.name: (f"{n.name}.c", f"{n.name}_weights.c") for n in networks}
    emitted = [n for n in networks if set(sources[n.name]) <= set(n.sources)]
    texts = {n.name: [(folder / source).read_text(encoding="utf-8") for source in sources[n.name]] for n in emitted}
    shared = share({name: (source, weights) for name, (source, weights) in texts.items()})
    for name, text in shared.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return shared.stored, shared.saved


def _copy_hosts(folder: Path, projects: Sequence[Project]) -> dict[str, object]:
    """The programs of this machine that the projects were compiled with, and what a run must know of them."""
    found: dict[str, object] = {}
    for project in projects:
        metadata = json.loads((project.folder / METADATA).read_text(encoding="utf-8"))
        if (project.folder / _HOST).is_dir() and {"host", "plan"} <= set(metadata):
            shutil.copytree(project.folder / _HOST, folder / _HOST / project.name)
            found[project.name] = {"host": metadata["host"], "macs": metadata["plan"]["macs"]}
    return found


def build_bundle(
    bundle: Bundle,
    board: Board,
    image: str = "emulator",
    jobs: int = 2,
    unless_current: Callable[[str], None] | None = None,
) -> BuildResult:
    """Build an image of a bundle: `emulator` (measured), `serial` or `application`. As `toolchain.build_project`."""
    board.require_target(bundle.target)
    require_uart(board, image)
    own_sources, defines, suffix = IMAGES[image]
    sources = {source: (*n.network_flags, SHARED) for n in bundle.networks for source in n.sources}
    own: dict[str, tuple[str, ...]] = dict.fromkeys((*own_sources, *_own_sources(bundle)), (*defines, SHARED))
    if image == "serial":
        for k, network in enumerate(bundle.networks):
            serve = f"-DTVM_CASCADE_SERVE=serve_{network.name}"
            own[_serial_file(network)] = (*defines, SHARED, serve, *(["-DTVM_CASCADE_OTHER"] if k else []))
    return build_image(
        name=NAME,
        folder=bundle.folder,
        target=bundle.target,
        board=board,
        optimise=bundle.optimise,
        sources={**sources, **own},
        objects=[name for network in bundle.networks for name in network.objects],
        arena_bytes=bundle.arena_bytes,
        output=bundle.folder / "build" / (board.name + suffix),
        jobs=jobs,
        unless_current=unless_current,
    )


def _check(folder: Path, projects: Sequence[Project]) -> Core:
    names = [project.name for project in projects]
    if len(names) < 2:
        raise UsageError("a bundle takes at least two networks")
    if len(set(names)) < len(names):
        raise UsageError(f"networks of a bundle need different names, not {', '.join(names)}: compile with --name NAME")
    targets = {project.target.name: project.target for project in projects}
    if len(targets) > 1:
        raise UsageError(f"networks of a bundle need one target, not {', '.join(targets)}")
    taken: dict[str, str] = {}  # files and macros, of which network
    for project in projects:
        header = (project.folder / f"{project.name}.h").read_text(encoding="utf-8")
        if "TVM_CASCADE_SHARED_ARENA" not in header:
            raise UsageError(f"{project.folder} was compiled without a sharable arena: compile it again")
        own = {*project.sources, *project.objects, *_DEFINES.findall(header)}
        if same := sorted(own & taken.keys()):
            raise UsageError(
                f"networks {taken[same[0]]} and {project.name} both have a {same[0]}: compile one with another --name"
            )
        taken |= dict.fromkeys(own, project.name)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} exists and is not empty; name a new folder")
    return projects[0].target


def _own_sources(bundle: Bundle) -> tuple[str, ...]:
    """Sources of the bundle that belong to no network."""
    return ("arena.c", SOURCE) if bundle.shared_weight_bytes else ("arena.c",)


def _serial_file(network: Project) -> str:
    return f"serial_{network.name}.c"


def _serial_main(bundle: Bundle) -> str:
    names = [f"serve_{network.name}" for network in bundle.networks]
    declarations = "\n".join(f"uint32_t {name}(int);" for name in names)
    return fill_template(template("bundle_serial_main.c.in"), {"declarations": declarations, "serve": ", ".join(names)})


def arena_text(bundle: Bundle) -> str:
    """C source of the shared arena, which does not compile beside a network that needs a larger one."""
    size, align = bundle.arena_bytes, max(network.interface.arena_align for network in bundle.networks)
    names = [network.name for network in bundle.networks]
    checks = [
        f"#if {name.upper()}_ARENA_SIZE > {size} || {name.upper()}_ARENA_ALIGN > {align}\n"
        f'#error "{name} was compiled again and needs another arena: bundle again"\n#endif\n'
        for name in names
    ]
    return (
        "/* The arena of all networks of this image: as large as the largest needs. */\n#include <stdint.h>\n\n"
        + "".join(f'#include "{name}.h"\n' for name in names)
        + "\n"
        + "".join(checks)
        + f"\nextern uint8_t tvm_cascade_arena[{size}];\n"
        f'__attribute__((section(".bss.tvm_cascade_arena"), aligned({align}))) '
        f"uint8_t tvm_cascade_arena[{size}];\n\n"
        "/* Not 0 while one of them runs: the others refuse to. */\n"
        "extern volatile uint8_t tvm_cascade_arena_busy;\n"
        "volatile uint8_t tvm_cascade_arena_busy;\n"
    )


def _main_text(bundle: Bundle) -> dict[str, str]:
    streamed = [(n.name, s) for n in bundle.networks for s in n.interface.inputs if s.stream_axis is not None]
    return {
        "includes": "\n".join(f'#include "{network.name}.h"' for network in bundle.networks),
        "arena_bytes": str(bundle.arena_bytes),
        "row_readers": "".join(row_callback(spec, f"{name}_{spec.c_name}") for name, spec in streamed),
        "application_readers": "".join(user_callback(spec, f"{name}_{spec.c_name}") for name, spec in streamed),
        "measured_networks": "\n".join(_measured(network) for network in bundle.networks),
        "application_networks": "\n".join(_application(network) for network in bundle.networks),
    }


def _build_text(bundle: Bundle) -> dict[str, str]:
    """What CMakeLists.txt, toolchain.cmake and README.md say of a bundle."""
    networks, target = bundle.networks, bundle.target
    define = SHARED.removeprefix("-D")
    libraries = [cmake_library(n.name, n.sources, n.objects, n.network_flags, (define,)) for n in networks]
    rows = [f"| `{n.name}.h`, `{n.name}.c`, ... | {n.interface.arena_bytes} |" for n in networks]
    return {
        "name": NAME,
        "board": bundle.board,
        "target": target.name,
        "family": target.family.name,
        "gcc": target.family.gcc,
        "arena_bytes": str(bundle.arena_bytes),
        "target_flags": " ".join(target.gcc_flags),
        "compile_flags": " ".join(compile_flags(bundle.optimise)),
        "link_flags": " ".join(target.family.link_flags),
        "libraries": "\n".join(libraries),
        "library_names": " ".join(f"{n.name}_network" for n in networks),
        "main_sources": " ".join(("main.c", *_own_sources(bundle), "startup.c")),
        "network_rows": "\n".join(rows),
    }


def _prepare(network: Project) -> list[str]:
    """Declarations and mapping of one network, callbacks included."""
    name = network.name
    lines = [
        f"struct {name}_inputs inputs;",
        f"struct {name}_outputs outputs;",
        f"(void){name}_map_inputs(&inputs);",
        f"(void){name}_map_outputs(&outputs);",
    ]
    for spec in network.interface.inputs:
        if spec.stream_axis is not None:
            lines.append(f"inputs.{spec.c_name} = read_{name}_{spec.c_name};")
            lines.append(f"inputs.{spec.c_name}_context = 0;")
    return lines


def _measured(network: Project) -> str:
    name, upper, interface = network.name, network.name.upper(), network.interface
    whole = [(k, spec) for k, spec in enumerate(interface.inputs) if spec.stream_axis is None]
    return _block(
        *_prepare(network),
        *(f"fill(inputs.{spec.c_name}, {upper}_INPUT{k}_SIZE);" for k, spec in whole),
        "const uint32_t coarse = counter_coarse();",
        "low = counter_low();",
        f"const int32_t result = {name}_run(&inputs, &outputs);",
        "ticks += counter_low() - low;",
        "coarse_ticks += counter_coarse() - coarse;",
        "status = status != 0 ? status : result;",
        *(f"port_write(outputs.{spec.c_name}, {upper}_OUTPUT{k}_SIZE);" for k, spec in enumerate(interface.outputs)),
    )


def _application(network: Project) -> str:
    return _block(
        *_prepare(network),
        "/* USER CODE: write the inputs. */",
        f"if ({network.name}_run(&inputs, &outputs) != 0) {{",
        "    return 1;",
        "}",
        "/* USER CODE: read the outputs. */",
    )


def _block(*lines: str) -> str:
    """A C block of its own inside of main's loop."""
    return "\n".join(("        {", *(f"            {line}" for line in lines), "        }"))
