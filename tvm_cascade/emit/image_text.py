"""Texts of an image's files other than the networks' own: programs, CMake project, README, shared arena (`arena.c`)."""

from __future__ import annotations

from tvm_cascade.boards.board import Board
from tvm_cascade.emit.cmake import cmake_library, compile_flags
from tvm_cascade.emit.image import Image
from tvm_cascade.emit.main_text import describe, main_source, serial_sources
from tvm_cascade.emit.network import Network, NetworkMemory
from tvm_cascade.emit.shared_weights import SOURCE
from tvm_cascade.emit.template import fill_template, template

_SERIAL_ROW = "| `serial_main.c`, `uart.h` | the board's end of `tvm-cascade run --port`, in place of main.c |\n"
_KINDS = {"c": "generated source", "o": "compiled kernels"}  # of files, by suffix


def files(image: Image, board: Board) -> dict[str, str]:
    """Write the texts by file name: CMake files, README, `main.c`, serial programs if the board has a port, and
    `arena.c` for several networks.
    """
    values = _build_values(image)
    readme = "bundle_README.md.in" if image.several else "README.md.in"
    texts = {
        "CMakeLists.txt": fill_template(template("CMakeLists.txt.in"), values),
        "toolchain.cmake": fill_template(template("toolchain.cmake.in"), values),
        "README.md": fill_template(template(readme), values | _readme_values(image, board)),
        "main.c": main_source(image),
        **(serial_sources(image.networks) if board.uart is not None else {}),
    }
    return texts | ({"arena.c": arena_source(image)} if image.several else {})


def own_sources(image: Image) -> tuple[str, ...]:
    """Return the sources needed by each program besides the networks': the shared arena, shared weights."""
    if not image.several:
        return ()
    return ("arena.c", SOURCE) if image.shared_weight_bytes else ("arena.c",)


def arena_source(image: Image) -> str:
    """Write `arena.c`: the shared arena or memories; an #error stops the build if a recompiled network needs more."""
    align, arrays = image.arena_align, {m.name: m for m in image.arrays if m.bytes or not m.name}
    checks = [
        f"#if {n.name.upper()}_{m.label.upper()}_SIZE > {max(arrays[m.name].bytes, 1)} || "
        f"{n.name.upper()}_ARENA_ALIGN > {align}\n"
        f'#error "{n.name} was compiled again and needs another arena: bundle again"\n#endif\n'
        for n in image.networks
        for m in n.interface.arrays
        if m.name in arrays
    ]
    return (
        "/* The arena of all networks of this image: as large as the largest needs. */\n#include <stdint.h>\n\n"
        + "".join(f'#include "{network.name}.h"\n' for network in image.networks)
        + "\n"
        + "".join(checks)
        + "".join(_shared_array(m, align) for m in arrays.values())
        + "\n/* Not 0 while one of them runs: the others refuse to. */\n"
        "extern volatile uint8_t tvm_cascade_arena_busy;\n"
        "volatile uint8_t tvm_cascade_arena_busy;\n"
    )


def _shared_array(memory: NetworkMemory, align: int) -> str:
    """Define a shared array; the build may name the section in a memory of the board."""
    size = max(memory.bytes, 1)
    array, section, named = f"tvm_cascade_{memory.label}", f'".bss.tvm_cascade_{memory.label}"', ""
    if memory.name:
        section = f"{array}_section".upper()
        named = f'#ifndef {section}\n#define {section} ".{memory.name}"\n#endif\n'
    placed = f"__attribute__((section({section}), aligned({align}))) uint8_t {array}[{size}];\n"
    return f"\n{named}extern uint8_t {array}[{size}];\n{placed}"


def library_files(image: Image, board: Board | None) -> dict[str, str]:
    """Write the texts by file name for a folder that nothing is linked in: `CMakeLists.txt` and the README."""
    network = image.networks[0]
    values = {"name": network.name, "sources": " ".join(network.sources)}
    described = _build_values(image) | _described(network) | {"how_to_use": _how_to_use(network, board)}
    return {
        "CMakeLists.txt": fill_template(template("host_CMakeLists.txt.in"), values),
        "README.md": fill_template(template("library_README.md.in"), described),
    }


def _build_values(image: Image) -> dict[str, str]:
    """Return the values for the templates CMakeLists.txt, toolchain.cmake and README.md."""
    networks, target = image.networks, image.target
    libraries = [cmake_library(n.name, n.sources, n.objects, n.c_flags, image.defines) for n in networks]
    return {
        "name": image.name,
        "board": image.board,
        "target": target.name,
        "family": target.family.name,
        "gcc": target.family.gcc,
        "arena_bytes": str(image.arena_bytes),
        "target_flags": " ".join(target.gcc_flags),
        "compile_flags": " ".join(compile_flags(image.optimise)),
        "link_flags": " ".join(target.family.link_flags),
        "libraries": "\n".join(libraries),
        "library_names": " ".join(f"{n.name}_network" for n in networks),
        "main_sources": " ".join(("main.c", *own_sources(image), "startup.c")),
    }


def _readme_values(image: Image, board: Board) -> dict[str, str]:
    how_to_run = {"how_to_run": _how_to_run(image, board)}
    if image.several:
        shared = {n.name: sum(m.shared_bytes for m in n.interface.arrays) for n in image.networks}
        rows = [f"| `{name}.h`, `{name}.c`, ... | {size} |" for name, size in shared.items()]
        return {"network_rows": "\n".join(rows), **how_to_run}
    serial_row = _SERIAL_ROW if board.uart is not None else ""
    return {**how_to_run, "serial_row": serial_row, **_described(image.networks[0])}


def _described(network: Network) -> dict[str, str]:
    """Return the values of a README that describe a network: files, weights, inputs and outputs."""
    rows = [
        f"| `{name}` | {_KINDS.get(name.rsplit('.', 1)[-1], 'generated')} |"
        for name in (*network.objects, *network.sources)
    ]
    rows += [f"| `{name}` | the weights, for memory of your choice |" for name in _in_file(network)]
    return {
        "file_rows": "\n".join(rows),
        "stay": "" if _in_file(network) else ", weights stay in flash",
        "weights": _weights(network),
        "list_inputs": describe("inputs", network.inputs, "- "),
        "list_outputs": describe("outputs", network.outputs, "- "),
    }


def _in_file(network: Network) -> tuple[str, ...]:
    """Return the name of the network's weights file, if present."""
    stored = network.interface.weights
    return (stored.file,) if stored is not None and stored.in_file else ()


def _weights(network: Network) -> str:
    """Write the README's paragraph on weights that are not linked with the code; empty for others."""
    name, stored = network.name, network.interface.weights
    if stored is None:
        return ""
    if not stored.in_file:
        return (
            f"Weights lie in the section `.tvm_weights` (`-D{name.upper()}_FLASH_SECTION` names another): `boards/*/link.ld`\n"
            "says in which memory. An edited `link.ld` stays as it is.\n\n"
        )
    what = {
        "file": f"give its place to `{name}_bind_weights`: any memory that the core addresses, at a multiple of 8 bytes. The\n"
        "example, and `tvm-cascade flash`, take the flash behind the image.",
        "stream": f"write a `port_read_weights` that reads it in parts, and call `{name}_bind_weights`.",
    }
    return (
        f"Weights are not in the image: they are `{stored.file}`. Before the first run {what[stored.storage]}\n"
        f"A file that does not belong to the code is refused (errors in `{name}.h`). The network trained again and compiled\n"
        "with the same options has the same code, mostly: then its file replaces this one, and nothing is linked again.\n\n"
    )


def _how_to_use(network: Network, board: Board | None) -> str:
    """Return the paragraph on the network in a program: by ESP-IDF for a chip of Espressif, else by CMake."""
    if board is not None and board.name.startswith("esp32"):
        return (
            "ESP-IDF builds it for the board. `tvm-cascade export` writes a component, with an example whose `main.c` tests the\n"
            "network on the device:\n\n```\ntvm-cascade export . --as esp-idf -o component\n"
            f"cd component/examples/{network.name}\n"
            f"idf.py set-target {board.name} && idf.py build flash monitor\n```"
        )
    return (
        "In a program of your own: `add_subdirectory` of this folder in CMake, and "
        f"`target_link_libraries(... {network.name})`.\n"
        "The header says where the arena may lie, what is returned, and what threads may do."
    )


def _how_to_run(image: Image, board: Board) -> str:
    """Return the commands that run the image: in an emulator, the board's or the core's default board's, and on the
    board.
    """
    if board.qemu_machine is not None:
        emulated = f"Run and measure it in the emulator: `tvm-cascade run . --board {board.name}`."
    else:
        other = image.target.default_board
        emulated = f"No emulator knows {board.name}. Run and measure it on the emulated {other}: `tvm-cascade run .`."
    if board.uart is not None:
        own = "On the board itself: `tvm-cascade flash .`, then `tvm-cascade run . --port /dev/ttyACM0`."
    else:
        own = (
            "On the board itself: `tvm-cascade flash . --image application`. `run --port` needs a `uart` in the board's file:\n"
            f"add one to a copy of `boards/{board.name}/board.json`, and compile with that as `--board`."
        )
    return f"{emulated}\n{own}"
