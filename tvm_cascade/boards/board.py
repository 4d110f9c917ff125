"""Board descriptions in JSON: one file for each board, in `boards/` or at a path of the user's. Adding a board takes no code.

A compiled folder has copies of all linked boards' files, so `run` and `flash` find a user's board by name.

A microcontroller is described like a board: the file lists the common parts of all boards with this microcontroller.
Both kinds are targets on the command line (`boards.machines`): `--target stm32f746ng`.

Keys of a board file (addresses are JSON numbers or strings such as "0x20000000", sizes are bytes):

microcontroller              optional: the name of another file here; keys that this file leaves out are taken from there
name, description, core      core: the name that QEMU and the data sheet use, for example "cortex-m4"
memory.flash, memory.ram     {origin, bytes}: where code and weights go, and the SRAM that the arena and the stack share
memory.vectors               {origin, bytes}, optional: where the core boots from if that is not the start of flash
memory.boot                  {origin, words}, optional: 32-bit words that flash begins with, or that the boot ROM looks for
memory.stack                 {origin, bytes}, optional: a second RAM for the stack alone, so that the arena may take all of
                             memory.ram
                             Memories must not overlap and must begin at multiples of 8
memories                     {NAME: {origin, bytes}}, optional: RAMs that `--memory NAME` places blocks in, in the section
                             .NAME, the fastest first; each lies inside memory.ram, or apart from all of memory
  wait, line                 of each of them and of memory.flash, optional: cycles of the core that an access waits beside
                             the core's own (0 for none), and the bytes that it moves, 4 by default
  cacheable, dma             true or false, optional: whether the core has a cache before it, and whether the controllers
                             for direct access reach it
  data                       of memory.flash, optional: where the core reads its first byte as data, if not where it executes
aliases                      list of other names, optional: of boards that have this microcontroller
clock                        Hz, optional: the highest that the core may have
current                      {amperes, volts}, optional: what it draws at that clock while it computes
sources                      {KEY: text}, optional: the document that the figures under a key come from; under "compared", what
                             was compared with which
stack_reserve                bytes of RAM kept free for the stack, at least 128
qemu                         {machine}, or null for a board that no emulator knows
counter                      null, or how executed instructions are read in the emulator:
  setup                      list of [address, value] stores, done once, optional
  low                        {address, bits, counts: "up" | "down", sample}; `sample`, optional, is an [address, value]
                             stored before each read
  coarse                     {address, bits, low_ticks, sample}, optional: a slower counter that advances once per
                             `low_ticks` ticks of `low`; it tells how often `low` has wrapped
  csr                        in place of low, coarse and setup: a 64-bit RISC-V counter such as "minstret"
  ticks_per_instruction      ticks of `low` at 128 ns of virtual time per instruction (`-icount shift=7`)
uart                         {kind, address, setup, baud}, optional: the port of the serial protocol; `setup`, optional, is a
                             list of [address, value] stores that give it clock, pins and speed, which is `baud`, 115200
                             by default; [address, mask, value] waits until the register, masked, is `value`. Kind
                             "polled" describes any other port by the registers of its two directions, in place of the
                             address:
  receive, transmit          {status, mask, ready, data, bits}: a byte can be read or written while `status` & `mask` is
                             not 0 ("ready": "set", the default) or is 0 ("clear"); it is read from or written to `data`.
                             `bits` is the width of accesses to both registers: 8, 16 or 32 (default)
flash_tool                   {pyocd, openocd, stflash, uf2, esptool}, optional: pyocd's target name (`pyocd list
                             --targets`), openocd's list of configuration files, whether st-flash can write it (true),
                             the family of .uf2 files that its boot ROM takes on a drive, esptool's name of the chip
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import cast

from tvm_cascade.boards.board_record import (
    Board,
    Boot,
    Counter,
    CounterRegister,
    FlashTool,
    Supply,
    Uart,
    UartSide,
    available_ram,
)
from tvm_cascade.boards.region import Memory, Region
from tvm_cascade.cores.families import family_of_core
from tvm_cascade.errors import UsageError
from tvm_cascade.plain_files import readable

__all__ = [
    "Board", "Boot", "Counter", "CounterRegister", "FlashTool", "Supply", "Uart", "UartSide", "available_ram", "list_boards",
    "load_board", "read_board",
]  # fmt: skip

_FOLDER = Path(__file__).parent / "data"
UART_KINDS = ("cmsdk", "nrf51", "stm32", "pl011", "ns16550", "polled")
_LIKE = "microcontroller"
_REQUIRED = ("name", "core", "memory", "stack_reserve")
_OPTIONAL = (
    "description",
    "aliases",
    "memories",
    "qemu",
    "counter",
    "uart",
    "flash_tool",
    "clock",
    "current",
    "sources",
)
_LEAST_RAM = 128  # bytes, of RAM and of the stack reserve: less holds no frame of any function
_ALIGN = 8  # bytes, of memories: the stack's


def list_boards() -> tuple[str, ...]:
    """List the boards shipped with the project, sorted by name."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


@cache
def board_aliases() -> dict[str, str]:
    """Return the boards' trade names, each with the board's name."""
    files = ((path.stem, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(_FOLDER.glob("*.json")))
    return {alias: name for name, data in files for alias in data.get("aliases", ())}


def load_board(name_or_path: str | Path) -> Board:
    """Load a board by name, or from a user's JSON file.

    Raises `UsageError` for an unknown name and for a file with a wrong key, naming the key.
    """
    text = str(name_or_path)
    if text.endswith(".json") or "/" in text:
        path = Path(text)
    else:
        path = _FOLDER / f"{text}.json"
        if not path.is_file():
            path = _FOLDER / f"{board_aliases().get(text, text)}.json"
        if not path.is_file():
            raise UsageError(
                f"unknown board {text!r}; known: {', '.join(list_boards())}, or the path of a board's .json file"
            )
    try:
        board = read_board(readable(path).read_text(encoding="utf-8"), path)
        return replace(board, called=text) if text in board_aliases() else board
    except OSError as error:
        raise UsageError(f"board file {path}: {error.strerror}") from None


def read_board(source: str, path: Path) -> Board:
    """Parse the text of a board file; `path` is for messages. Raises `UsageError` as `load_board`."""
    reader = _Reader(str(path))
    try:
        data = json.loads(source, object_pairs_hook=reader.distinct)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"board file {path} is no JSON: {error}") from None
    if isinstance(data, dict) and _LIKE in data:
        data = reader.filled(data)
        return replace(reader.board(data), source=json.dumps(data, indent=2) + "\n", derived=True)
    return replace(reader.board(data), source=source)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Parser from a board file's JSON to a `Board`; every error names the file and the key."""

    path: str

    def fail(self, key: str, want: str) -> UsageError:
        return UsageError(f"board file {self.path}: {key} must be {want}")

    def table(self, value: object, key: str, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict:
        if not isinstance(value, dict):
            raise self.fail(key, f"an object with {', '.join(required)}")
        for name in required:
            if name not in value:
                raise UsageError(f"board file {self.path}: {key} lacks {name}")
        for name in value:
            if name not in required and name not in optional:
                known = ", ".join(required + optional)
                raise UsageError(f"board file {self.path}: {key} has an unknown key {name!r}; known: {known}")
        return cast(dict, value)

    def number(self, value: object, key: str, low: int, high: int) -> int:
        try:
            number = int(value, 0) if isinstance(value, str) else value
        except ValueError:
            number = None
        if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
            raise self.fail(key, f"a whole number from {low} to {high}")
        return number

    def distinct(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        """Build a dict from a JSON object: a hook for `json.loads`, which refuses duplicate keys (`json` would keep the
        last).
        """
        made = dict(pairs)
        for name, _ in pairs if len(made) < len(pairs) else ():
            if sum(name == other for other, _ in pairs) > 1:
                raise UsageError(f"board file {self.path}: the key {name!r} comes twice in one object")
        return made

    def filled(self, data: Mapping[str, object]) -> dict[str, object]:
        """Fill in the keys that a board takes from the file of its microcontroller."""
        name = data[_LIKE]
        if name not in list_boards():
            raise self.fail(_LIKE, f"one of {', '.join(list_boards())}")
        common = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        if _LIKE in common:
            raise self.fail(_LIKE, "a file that names no other")
        own = {key: value for key, value in data.items() if key != _LIKE}
        taken = {key: value for key, value in common.items() if key not in ("name", "aliases")}
        parts = {
            key: {**taken[key], **cast("dict[str, object]", own[key])}
            for key in ("memory", "sources")
            if isinstance(own.get(key), dict) and key in taken
        }
        return taken | own | parts

    def address(self, value: object, key: str) -> int:
        return self.number(value, key, 0, 0xFFFFFFFF)

    def text(self, value: object, key: str) -> str:
        if not isinstance(value, str) or not value or not all(c.isalnum() or c in "-_." for c in value):
            raise self.fail(key, "a name of letters, digits, '-', '_' and '.'")
        return value

    def core(self, value: object) -> str:
        core = self.text(value, "core")
        try:
            family_of_core(core)
        except UsageError as error:
            raise UsageError(f"board file {self.path}: {error}") from None
        return core

    def region(self, value: object, key: str, least: int = 1, facts: tuple[str, ...] = ()) -> Memory:
        table = self.table(value, key, ("origin", "bytes"), facts)
        origin = self.address(table["origin"], f"{key}.origin")
        if origin % _ALIGN:
            raise self.fail(f"{key}.origin", f"a multiple of {_ALIGN}")
        size = self.number(table["bytes"], f"{key}.bytes", least, (1 << 32) - origin)
        line = self.number(table.get("line", 4), f"{key}.line", 1, 256)
        if line & (line - 1):
            raise self.fail(f"{key}.line", "a power of two")
        wait = self.real(table["wait"], f"{key}.wait", 0.0) if "wait" in table else None
        cacheable, dma = (self.yes_or_no(table, key, name) for name in ("cacheable", "dma"))
        return Memory(origin, size, wait, line, cacheable, dma)

    def real(self, value: object, key: str, least: float) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < inf:
            raise self.fail(key, f"a number of at least {least:g}")
        return float(value)

    def yes_or_no(self, table: Mapping[str, object], key: str, name: str) -> bool | None:
        value = table.get(name)
        if name in table and not isinstance(value, bool):
            raise self.fail(f"{key}.{name}", "true or false")
        return cast("bool | None", value)

    def memory(self, value: object) -> dict[str, Memory]:
        table = self.table(value, "memory", ("flash", "ram"), ("vectors", "stack", "boot"))
        boot = self.boot(table.pop("boot")) if "boot" in (table := dict(table)) else None
        made = {
            name: self.region(
                one,
                f"memory.{name}",
                _LEAST_RAM if name in ("ram", "stack") else 1,
                ("wait", "line", "cacheable", "data") if name == "flash" else (),
            )
            for name, one in table.items()
        }
        if boot is not None:
            made["boot"] = Memory(boot.origin, 4 * len(boot.words))
        low_to_high = sorted(made.items(), key=lambda item: item[1].origin)
        for (below, first), (above, second) in pairwise(low_to_high):
            if second.origin < first.end:
                raise UsageError(
                    f"board file {self.path}: memory.{below} (0x{first.origin:08x} to 0x{first.end:08x}) and "
                    f"memory.{above} (from 0x{second.origin:08x}) overlap"
                )
        return made

    def flash_data(self, flash: Mapping[str, object]) -> int | None:
        return self.address(flash["data"], "memory.flash.data") if "data" in flash else None

    def boot(self, value: object) -> Boot:
        table = self.table(value, "memory.boot", ("origin", "words"))
        if not isinstance(table["words"], list) or not table["words"]:
            raise self.fail("memory.boot.words", "a list of 32-bit words")
        words = tuple(self.address(word, "memory.boot.words") for word in table["words"])
        return Boot(self.address(table["origin"], "memory.boot.origin"), words)

    def memories(self, value: object, memory: Mapping[str, Region]) -> dict[str, Memory]:
        """Read RAMs by name."""
        named = self.table(value, "memories", (), tuple(value) if isinstance(value, dict) else ())
        facts = ("wait", "line", "cacheable", "dma")
        made = {
            self.text(name, "memories"): self.region(one, f"memories.{name}", facts=facts)
            for name, one in named.items()
        }
        for name, one in made.items():
            others = [other for other in (*memory.values(), *made.values()) if other is not one]
            if any(one.meets(other) for other in others) and not one.inside(memory["ram"]):
                raise self.fail(f"memories.{name}", "inside of memory.ram, or apart from every other memory")
        return made

    def store(self, value: object, key: str) -> tuple[int, int]:
        if not isinstance(value, list) or len(value) != 2:
            raise self.fail(key, "a pair [address, value]")
        return self.address(value[0], key), self.address(value[1], key)

    def stores(self, value: object, key: str) -> tuple[tuple[int, int], ...]:
        if not isinstance(value, list):
            raise self.fail(key, "a list of pairs [address, value]")
        return tuple(self.store(pair, key) for pair in value)

    def steps(self, value: object, key: str) -> tuple[tuple[int, ...], ...]:
        if not isinstance(value, list) or not all(isinstance(one, list) and len(one) in (2, 3) for one in value):
            raise self.fail(key, "a list of pairs [address, value] and of triples [address, mask, value]")
        return tuple(tuple(self.address(number, key) for number in one) for one in value)

    def register(self, value: object, key: str, own: str) -> CounterRegister:
        table = self.table(value, key, ("address", "bits"), (own, "sample"))
        counts = table.get("counts", "up")
        if counts not in ("up", "down"):
            raise self.fail(f"{key}.counts", "up or down")
        return CounterRegister(
            address=self.address(table["address"], f"{key}.address"),
            bits=self.number(table["bits"], f"{key}.bits", 1, 32),
            down=counts == "down",
            low_ticks=self.number(table.get("low_ticks", 1), f"{key}.low_ticks", 1, 1 << 32),
            sample=self.store(table["sample"], f"{key}.sample") if "sample" in table else None,
        )

    def counter(self, value: object) -> Counter:
        table = self.table(value, "counter", ("ticks_per_instruction",), ("low", "coarse", "setup", "csr"))
        ticks = table["ticks_per_instruction"]
        if not isinstance(ticks, (int, float)) or isinstance(ticks, bool) or ticks <= 0:
            raise self.fail("counter.ticks_per_instruction", "a positive number")
        if "csr" in table:
            csr = self.text(table["csr"], "counter.csr")
            coarse = CounterRegister(0, 32, low_ticks=1 << 16, csr=csr)
            return Counter(CounterRegister(0, 32, csr=csr), float(ticks), coarse)
        if "low" not in table:
            raise UsageError(f"board file {self.path}: counter lacks low or csr")
        return Counter(
            low=self.register(table["low"], "counter.low", "counts"),
            ticks_per_instruction=float(ticks),
            coarse=self.register(table["coarse"], "counter.coarse", "low_ticks") if "coarse" in table else None,
            setup=self.stores(table.get("setup", []), "counter.setup"),
        )

    def uart(self, value: object) -> Uart:
        sides = ("receive", "transmit")
        kind = value.get("kind") if isinstance(value, dict) else None
        if kind is not None and kind not in UART_KINDS:
            raise self.fail("uart.kind", f"one of {', '.join(UART_KINDS)}")
        places = sides if kind == "polled" else ("address",)
        table = self.table(value, "uart", ("kind", *places), ("setup", "baud"))
        setup = self.steps(table.get("setup", []), "uart.setup")
        baud = self.number(table.get("baud", 115200), "uart.baud", 300, 4_000_000)
        if kind == "polled":
            receive, transmit = (self.uart_side(table[side], f"uart.{side}") for side in sides)
            return Uart(kind, 0, setup, baud, receive, transmit)
        return Uart(table["kind"], self.address(table["address"], "uart.address"), setup, baud)

    def uart_side(self, value: object, key: str) -> UartSide:
        table = self.table(value, key, ("status", "mask", "data"), ("ready", "bits"))
        if table.get("ready", "set") not in ("set", "clear"):
            raise self.fail(f"{key}.ready", "set or clear")
        bits = table.get("bits", 32)
        if bits not in (8, 16, 32) or isinstance(bits, bool):
            raise self.fail(f"{key}.bits", "8, 16 or 32")
        return UartSide(
            status=self.address(table["status"], f"{key}.status"),
            mask=self.number(table["mask"], f"{key}.mask", 1, (1 << bits) - 1),
            data=self.address(table["data"], f"{key}.data"),
            ready_when_set=table.get("ready", "set") == "set",
            bits=bits,
        )

    def flash_tool(self, value: object) -> FlashTool:
        table = self.table(value, "flash_tool", (), ("pyocd", "openocd", "stflash", "uf2", "esptool"))
        files = table.get("openocd", [])
        if not isinstance(files, list) or not all(isinstance(one, str) and one.endswith(".cfg") for one in files):
            raise self.fail("flash_tool.openocd", "a list of .cfg files")
        if not isinstance(table.get("stflash", False), bool):
            raise self.fail("flash_tool.stflash", "true or false")
        pyocd = self.text(table["pyocd"], "flash_tool.pyocd") if "pyocd" in table else ""
        uf2 = self.address(table["uf2"], "flash_tool.uf2") if "uf2" in table else None
        esptool = self.text(table["esptool"], "flash_tool.esptool") if "esptool" in table else ""
        return FlashTool(pyocd, tuple(files), table.get("stflash", False), uf2, esptool)

    def aliases(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            raise self.fail("aliases", "a list of names")
        return tuple(value)

    def supply(self, value: object) -> Supply:
        table = self.table(value, "current", ("amperes", "volts"))
        return Supply(*(self.real(table[key], f"current.{key}", 1e-9) for key in ("amperes", "volts")))

    def sources(self, value: object) -> dict[str, str]:
        table = self.table(value, "sources", (), tuple(value) if isinstance(value, dict) else ())
        if not all(isinstance(text, str) and text for text in table.values()):
            raise self.fail("sources", "an object of texts")
        return table

    def board(self, value: object) -> Board:
        table = self.table(value, "the board", _REQUIRED, _OPTIONAL)
        memory = self.memory(table["memory"])
        qemu = table.get("qemu")
        machine = None if qemu is None else self.table(qemu, "qemu", ("machine",))["machine"]
        return Board(
            name=self.text(table["name"], "name"),
            core=self.core(table["core"]),
            flash=memory["flash"],
            ram=memory["ram"],
            stack_reserve=self.number(
                table["stack_reserve"], "stack_reserve", _LEAST_RAM, memory.get("stack", memory["ram"]).bytes
            ),
            vectors=memory.get("vectors"),
            stack=memory.get("stack"),
            flash_data=self.flash_data(table["memory"]["flash"]),
            boot=self.boot(table["memory"]["boot"]) if "boot" in memory else None,
            qemu_machine=None if machine is None else self.text(machine, "qemu.machine"),
            counter=None if table.get("counter") is None else self.counter(table["counter"]),
            uart=None if table.get("uart") is None else self.uart(table["uart"]),
            flash_tool=None if table.get("flash_tool") is None else self.flash_tool(table["flash_tool"]),
            description=str(table.get("description", "")),
            aliases=self.aliases(table.get("aliases", [])),
            memories=self.memories(table.get("memories", {}), memory),
            clock=self.number(table["clock"], "clock", 1, 1 << 40) if "clock" in table else None,
            supply=self.supply(table["current"]) if "current" in table else None,
            sources=self.sources(table.get("sources", {})),
        )
