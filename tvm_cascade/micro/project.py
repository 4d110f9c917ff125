"""The project folder: an emitted network with everything needed to build it for a board.

Layout: the network's own files, `main.c`, `startup.c`, the measuring port, `CMakeLists.txt`, `README.md`,
`metadata.json`, and `boards/<board>/` with `link.ld`, `board.h`, `board.cmake` and the board's own file, `board.json`: one
folder serves several boards.
Images are built into `build/<board>/`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_cascade.cores import Core, get_core
from tvm_cascade.errors import LoadError
from tvm_cascade.micro.board import Board, CounterRegister, UartSide, load_board
from tvm_cascade.micro.cmake import cmake_library, compile_flags
from tvm_cascade.micro.network import C_TYPES, EmittedNetwork, Interface, IoSpec

_TEMPLATES = Path(__file__).parent / "templates"
_VERBATIM = ("port.h", "port_semihosting.c", "measure.h", "uart.h")
METADATA = "metadata.json"
_KEY = "project"  # of metadata.json
_BOARD = "board.json"  # the board's file, in its folder


@dataclass(frozen=True, slots=True)
class Project:
    """A project folder as its metadata describes it: enough to build and run it again."""

    folder: Path
    interface: Interface
    sources: tuple[str, ...]
    objects: tuple[str, ...]
    network_flags: tuple[str, ...]
    target: Core
    board: str  # name of the board it was compiled for
    optimise: str

    @property
    def name(self) -> str:
        return self.interface.name

    def network(self) -> EmittedNetwork:
        """The network as it was emitted, read back from the folder."""
        names = (f"{self.name}.h", *self.sources, *self.objects)
        interface = self.interface
        return EmittedNetwork(
            name=self.name,
            files={name: (self.folder / name).read_bytes() for name in names},
            sources=self.sources,
            objects=self.objects,
            inputs=interface.inputs,
            outputs=interface.outputs,
            arena_bytes=interface.arena_bytes,
            arena_align=interface.arena_align,
            c_flags=self.network_flags,
            requests=interface.requests,
        )


def write_project(
    folder: Path,
    network: EmittedNetwork,
    target: Core,
    board: Board,
    optimise: str = "balanced",
    metadata: Mapping[str, object] | None = None,
) -> Project:
    """Write the folder for `network` on `board`; `metadata` is what the compiler wants to keep beside the interface.

    Existing files of the same names are overwritten. Raises `UsageError` if the board cannot run the target's code.
    """
    board.require_target(target)
    flags = compile_flags(optimise)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in network.files.items():
        (folder / name).write_bytes(content)
    copy_runtime(folder, target)
    values = {
        "name": network.name,
        "NAME": network.name.upper(),
        "board": board.name,
        "target": target.name,
        "family": target.family.name,
        "gcc": target.family.gcc,
        "arena_bytes": str(network.arena_bytes),
        "target_flags": " ".join(target.gcc_flags),
        "compile_flags": " ".join(flags),
        "libraries": cmake_library(network.name, network.sources, network.objects, network.c_flags),
        "library_names": f"{network.name}_network",
        "main_sources": "main.c startup.c",
        "link_flags": " ".join(target.family.link_flags),
        **_interface_text(network),
    }
    (folder / "serial_main.c").write_text(serial_source(network), encoding="utf-8")
    for name in ("main.c", "CMakeLists.txt", "README.md", "toolchain.cmake"):
        (folder / name).write_text(fill_template(template(f"{name}.in"), values), encoding="utf-8")
    own = {
        "interface": network.interface.to_dict(),
        "sources": network.sources,
        "objects": network.objects,
        "network_flags": network.c_flags,
        "target": target.name,
        "board": board.name,
        "optimise": optimise,
    }
    text = json.dumps({**(metadata or {}), _KEY: own}, indent=2) + "\n"
    (folder / METADATA).write_text(text, encoding="utf-8")
    add_board(folder, board)
    return read_project(folder)


def serial_source(network: EmittedNetwork) -> str:
    """The board's end of the serial protocol for one network."""
    values = {"name": network.name, "NAME": network.name.upper(), **_serial_text(network)}
    return fill_template(template("serial_main.c.in"), values)


def copy_runtime(folder: Path, target: Core) -> None:
    """Write the files that are the same for every network: start-up code, ports, measuring."""
    for name in _VERBATIM:
        (folder / name).write_text(template(name), encoding="utf-8")
    (folder / "startup.c").write_text(template(target.family.startup), encoding="utf-8")


def write_host_project(folder: Path, network: EmittedNetwork) -> None:
    """Write what a measuring program of this machine needs: the network, main.c and the host's port."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in network.files.items():
        (folder / name).write_bytes(content)
    for name in ("port.h", "port_host.c", "measure.h"):
        (folder / name).write_text(template(name), encoding="utf-8")
    values = {"name": network.name, "NAME": network.name.upper(), **_interface_text(network)}
    (folder / "main.c").write_text(fill_template(template("main.c.in"), values), encoding="utf-8")
    (folder / "board.h").write_text(board_header(None), encoding="utf-8")


def read_project(folder: Path) -> Project:
    """The project that `write_project` put into `folder`; raises `LoadError` where there is none."""
    path = folder / METADATA
    try:
        return project_from_metadata(folder, json.loads(path.read_text(encoding="utf-8"))[_KEY])
    except OSError as error:
        raise LoadError(path, f"{error.strerror}; is {folder} a folder made by `tvm-cascade compile`?") from None
    except (ValueError, KeyError, TypeError) as error:
        raise LoadError(path, f"is not the metadata of a compiled network ({error})") from None


def project_metadata(project: Project) -> dict[str, object]:
    """What `read_project` reads, JSON-ready."""
    return json.loads((project.folder / METADATA).read_text(encoding="utf-8"))[_KEY]


def project_from_metadata(folder: Path, own: Mapping[str, Any]) -> Project:
    """The project in `folder` that `own` describes; raises `KeyError` or `TypeError` for what describes none."""
    return Project(
        folder=folder,
        interface=Interface.from_dict(own["interface"]),
        sources=tuple(own["sources"]),
        objects=tuple(own["objects"]),
        network_flags=tuple(own["network_flags"]),
        target=get_core(own["target"]),
        board=str(own["board"]),
        optimise=str(own["optimise"]),
    )


def add_board(folder: Path, board: Board) -> Path:
    """Write `boards/<board>/` into a project folder and return it; what the user has changed there stays as it is."""
    place = folder / "boards" / board.name
    place.mkdir(parents=True, exist_ok=True)
    for name, text in _board_files(board).items():
        path = place / name
        old = path.read_text(encoding="utf-8") if path.is_file() else None
        if old != text and (name == _BOARD or old is None or old == _marked(old[: old.rfind("/*")])):
            path.write_text(text, encoding="utf-8")
    return place


def _board_files(board: Board) -> dict[str, str]:
    texts = {"link.ld": _marked(linker_script(board)), "board.h": _marked(board_header(board))}
    return texts | {"board.cmake": f"# {board.name}: {board.core}\n"} | ({_BOARD: board.source} if board.source else {})


def _marked(text: str) -> str:
    """`text` of a C file or script, and a line that tells whether anybody has edited it since."""
    crc = zlib.crc32(text.encode())
    return f"{text}/* Written from {_BOARD}, with CRC-32 {crc:08X} of all above; once edited, it stays. */\n"


def find_board(folder: Path, name_or_path: str) -> Board:
    """The board that `folder` was linked for under that name, as its file was then; any other as `load_board` finds it."""
    own = folder / "boards" / name_or_path / _BOARD
    return load_board(own if own.is_file() else name_or_path)


def linker_script(board: Board) -> str:
    """The linker script of a board: memories, sections, and a stack reserve that makes an overflow a link error."""
    vectors = ""
    if board.vectors:
        vectors = f"    VECTORS (rx) : ORIGIN = 0x{board.vectors.origin:08X}, LENGTH = {board.vectors.bytes}\n"
    stack = ""
    if board.stack:
        stack = f"    STACK_RAM (rw) : ORIGIN = 0x{board.stack.origin:08X}, LENGTH = {board.stack.bytes}\n"
    values = {
        "board": board.name,
        "vectors_region": vectors,
        "vectors_memory": "VECTORS" if board.vectors else "FLASH",
        "stack_region": stack,
        "stack_memory": "STACK_RAM" if board.stack else "RAM",
        "flash_origin": f"0x{board.flash.origin:08X}",
        "flash_bytes": str(board.flash.bytes),
        "ram_origin": f"0x{board.ram.origin:08X}",
        "ram_bytes": str(board.ram.bytes),
        "stack_reserve": str(board.stack_reserve),
    }
    return fill_template(template("link.ld.in"), values)


def board_header(board: Board | None) -> str:
    """`board.h`: how the board's instruction counter is set up and read, as inline functions; None is the host."""
    counter = board.counter if board else None
    return (
        f"/* Constants of {board.name if board else 'the host'}. */\n"
        "#ifndef TVM_CASCADE_BOARD_H\n#define TVM_CASCADE_BOARD_H\n\n#include <stdint.h>\n\n"
        f"static inline void counter_setup(void)\n{{\n{_stores(counter.setup if counter else ())}}}\n\n"
        f"static inline uint32_t counter_low(void)\n{{\n{_read(counter.low if counter else None)}}}\n\n"
        f"static inline uint32_t counter_coarse(void)\n{{\n{_read(counter.coarse if counter else None)}}}\n\n"
        f"{_uart_text(board)}#endif\n"
    )


def _uart_text(board: Board | None) -> str:
    if board is None or board.uart is None:
        return ""
    uart = board.uart
    places = f"#define UART_BASE 0x{uart.address:08X}u\n"
    if uart.receive is not None and uart.transmit is not None:
        places = _side_text("RECEIVE", uart.receive) + _side_text("TRANSMIT", uart.transmit)
    return (
        f"#define UART_{uart.kind.upper()} 1\n{places}\n"
        f"static inline void uart_setup(void)\n{{\n{_stores(uart.setup)}}}\n\n"
    )


def _side_text(name: str, side: UartSide) -> str:
    """Macros of one direction of a polled port: whether a byte may pass, and the register it passes through."""
    status, data = (f"(*(volatile uint{side.bits}_t *)0x{place:08X}u)" for place in (side.status, side.data))
    ready = "!=" if side.ready_when_set else "=="
    return f"#define UART_{name}_READY (({status} & 0x{side.mask:X}u) {ready} 0u)\n#define UART_{name}_DATA {data}\n"


def _stores(pairs: Sequence[tuple[int, int]]) -> str:
    return "".join(f"    {_store(*pair)}\n" for pair in pairs) or "    /* nothing to set up */\n"


def _store(address: int, value: int) -> str:
    return f"*(volatile uint32_t *)0x{address:08X}u = 0x{value:X}u;"


def _read(register: CounterRegister | None) -> str:
    if register is None:
        return "    return 0;\n"
    if register.csr:
        return _read_csr(register)
    sample = f"    {_store(*register.sample)}\n" if register.sample else ""
    mask = "" if register.bits == 32 else f" & 0x{(1 << register.bits) - 1:X}u"
    return f"{sample}    return *(volatile uint32_t *)0x{register.address:08X}u{mask};\n"


def _read_csr(register: CounterRegister) -> str:
    """The low half of a 64-bit counter, or the 32 bits of it from bit `log2(low_ticks)` on."""
    shift = register.low_ticks.bit_length() - 1
    low = f'__asm__ volatile("csrr %0, {register.csr}" : "=r"(low));'
    if shift == 0:
        return f"    uint32_t low;\n    {low}\n    return low;\n"
    high = f'__asm__ volatile("csrr %0, {register.csr}h" : "=r"({{}}));'
    return (
        "    uint32_t low;\n    uint32_t high;\n    uint32_t again;\n    do {\n"
        f"        {high.format('high')}\n        {low}\n        {high.format('again')}\n"
        f"    }} while (high != again);\n    return (high << {32 - shift}) | (low >> {shift});\n"
    )


def template(name: str) -> str:
    """The text of a file in `templates/`."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def fill_template(text: str, values: Mapping[str, str]) -> str:
    """`text` with every `@key@` replaced."""
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def _interface_text(network: EmittedNetwork) -> dict[str, str]:
    upper = network.name.upper()
    fill = [
        f"        fill(inputs.{spec.c_name}, {upper}_INPUT{k}_SIZE);"
        if spec.stream_axis is None
        else f"        inputs.{spec.c_name} = read_{spec.c_name};\n        inputs.{spec.c_name}_context = NULL;"
        for k, spec in enumerate(network.inputs)
    ]
    readers = [row_callback(spec, spec.c_name) for spec in network.inputs if spec.stream_axis is not None]
    write = [
        f"        port_write(outputs.{spec.c_name}, {upper}_OUTPUT{k}_SIZE);" for k, spec in enumerate(network.outputs)
    ]
    generated = {"h": "constants and declarations", "c": "generated source", "o": "compiled kernels"}
    others = [name for name in network.files if name != f"{network.name}.h"]
    rows = [f"| `{name}` | {generated.get(name.rsplit('.', 1)[-1], 'generated')} |" for name in others]
    return {
        "fill_inputs": "\n".join(fill),
        "row_readers": "".join(readers),
        "application_readers": "".join(
            user_callback(spec, spec.c_name) for spec in network.inputs if spec.stream_axis is not None
        ),
        "application_inputs": "".join(
            f"        inputs.{spec.c_name} = read_{spec.c_name};\n"
            for spec in network.inputs
            if spec.stream_axis is not None
        ),
        "write_outputs": "\n".join(write),
        "describe_inputs": _describe("inputs", network.inputs, "         * "),
        "describe_outputs": _describe("outputs", network.outputs, "         * "),
        "list_inputs": _describe("inputs", network.inputs, "- "),
        "list_outputs": _describe("outputs", network.outputs, "- "),
        "file_rows": "\n".join(rows),
    }


def _serial_text(network: EmittedNetwork) -> dict[str, str]:
    """The places of whole tensors and the callbacks of streamed ones, for serial_main.c."""
    upper = network.name.upper()
    whole = [(k, spec) for k, spec in enumerate(network.inputs) if spec.stream_axis is None]
    streamed = [spec for spec in network.inputs if spec.stream_axis is not None]
    inputs = [
        f"    s.in[{n}].data = (uint8_t *)(uintptr_t)s.inputs.{spec.c_name};\n"
        f"    s.in[{n}].size = {upper}_INPUT{k}_SIZE;"
        for n, (k, spec) in enumerate(whole)
    ]
    outputs = [
        f"    s.out[{k}].data = (uint8_t *)s.outputs.{spec.c_name};\n    s.out[{k}].size = {upper}_OUTPUT{k}_SIZE;"
        for k, spec in enumerate(network.outputs)
    ]
    callbacks = [
        f"    s->inputs.{spec.c_name} = read_{spec.c_name};\n    s->inputs.{spec.c_name}_context = s;"
        for spec in streamed
    ]
    return {
        "digest": f"0x{network.interface.digest:08X}",
        "input_count": str(len(whole)),
        "output_count": str(len(network.outputs)),
        "input_ranges": "\n".join(inputs),
        "output_ranges": "\n".join(outputs),
        "serial_inputs": "\n".join(callbacks),
        "row_server": (template("row_server.c.in") if streamed else "") + "".join(map(_row_callback, streamed)),
    }


def _row_callback(spec: IoSpec) -> str:
    """The callback that asks the other end of the serial link for one row of a streamed input."""
    return (
        f"\nstatic int32_t read_{spec.c_name}(void *context, int32_t row, {C_TYPES[spec.dtype]} *to)\n{{\n"
        f"    (void)row;\n    return want_row((struct session *)context, (uint8_t *)to, {spec.row_bytes}u);\n}}\n"
    )


def row_callback(spec: IoSpec, name: str) -> str:
    """The callback that reads one row of a streamed input from the port."""
    return (
        f"\nstatic int32_t read_{name}(void *context, int32_t row, {C_TYPES[spec.dtype]} *to)\n{{\n"
        "    (void)context;\n    (void)row;\n"
        f"    return port_read(to, {spec.row_bytes}u) == {spec.row_bytes}u ? 0 : -1;\n}}\n"
    )


def user_callback(spec: IoSpec, name: str) -> str:
    """The callback that the user fills in to deliver one row of a streamed input."""
    return (
        f"\nstatic int32_t read_{name}(void *context, int32_t row, {C_TYPES[spec.dtype]} *to)\n{{\n"
        f"    /* USER CODE: write the {spec.row_bytes} bytes of this row; other than 0 ends the run. */\n"
        "    (void)context;\n    (void)row;\n    (void)to;\n    return 0;\n}\n"
    )


def _describe(side: str, specs: Sequence[IoSpec], lead: str) -> str:
    """One line a tensor, from C-safe names only: a model's own names never reach generated text."""
    lines = []
    for spec in specs:
        quantized = "" if spec.scale is None else f", real = {spec.scale!r} * (q - {spec.zero_point or 0})"
        rows = "" if spec.stream_axis is None else f", asked for in rows of {spec.row_bytes} bytes"
        lines.append(f"{lead}{side}.{spec.c_name}: {spec.dtype}{list(spec.shape)}, {spec.bytes} bytes{rows}{quantized}")
    return "\n".join(lines)
