"""Board descriptions in JSON: one file for each board, in `boards/` or at a path of the user's. Adding a board takes no code.

A compiled folder has a copy of the file of every board it was linked for, so `run` and `flash` find a user's board by name.

Keys of a board file (addresses are JSON numbers or strings such as "0x20000000", sizes are bytes):

name, description, core      core: the name that QEMU and the data sheet use, for example "cortex-m4"
memory.flash, memory.ram     {origin, bytes}: where code and weights go, and the SRAM that the arena and the stack share
memory.vectors               {origin, bytes}, optional: where the core boots from if that is not the start of flash
memory.stack                 {origin, bytes}, optional: a second RAM for the stack alone, so that the arena may take all of
                             memory.ram
                             Memories must not overlap and must begin at multiples of 8
memories                     {NAME: {origin, bytes}}, optional: RAMs that `--memory NAME=SIZE` places blocks in, in the
                             section .NAME; each lies inside of memory.ram, or apart from all of memory
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
                             by default. Kind "polled" describes any other port by the registers of its two directions,
                             in place of the address:
  receive, transmit          {status, mask, ready, data, bits}: a byte can be read or written while `status` & `mask` is
                             not 0 ("ready": "set", the default) or is 0 ("clear"); it is read from or written to `data`.
                             `bits` is the width of accesses to both registers: 8, 16 or 32 (default)
flash_tool                   {pyocd, openocd, stflash}, optional: pyocd's target name (`pyocd list --targets`), openocd's
                             list of configuration files, and whether st-flash can write it (true)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import cast

from tvm_cascade.cores import Core
from tvm_cascade.cores.families import Family, family_of_core
from tvm_cascade.errors import UsageError
from tvm_cascade.micro.region import Region

_FOLDER = Path(__file__).parent / "boards"
UART_KINDS = ("cmsdk", "nrf51", "stm32", "pl011", "ns16550", "polled")
_REQUIRED = ("name", "core", "memory", "stack_reserve")
_OPTIONAL = ("description", "memories", "qemu", "counter", "uart", "flash_tool")
_LEAST_RAM = 128  # bytes, of RAM and of the stack reserve: less holds no frame of any function
_ALIGN = 8  # bytes, of memories: the stack's


@dataclass(frozen=True, slots=True)
class CounterRegister:
    """A counting register; `sample`, if any, is an (address, value) store that latches it before each read."""

    address: int
    bits: int
    down: bool = False
    low_ticks: int = 1  # ticks of the low register per tick of this one
    sample: tuple[int, int] | None = None
    csr: str = ""  # a RISC-V control and status register instead of an address


@dataclass(frozen=True, slots=True)
class Counter:
    """How executed instructions are counted in the emulator."""

    low: CounterRegister
    ticks_per_instruction: float
    coarse: CounterRegister | None = None
    setup: tuple[tuple[int, int], ...] = ()  # (address, value) stores

    def ticks(self, low: tuple[int, int], coarse: tuple[int, int]) -> int:
        """Ticks of `low` between two readings (before, after), wraps included.

        The coarse difference errs by at most one of its own ticks, far less than half a wrap of `low`, so rounding to
        the nearest number of wraps is exact.
        """
        span = 1 << self.low.bits
        elapsed = (low[0] - low[1] if self.low.down else low[1] - low[0]) % span
        if self.coarse is None:
            return elapsed
        slow = (coarse[1] - coarse[0]) % (1 << self.coarse.bits)
        wraps = max(0, round((slow * self.coarse.low_ticks - elapsed) / span))
        return elapsed + wraps * span


@dataclass(frozen=True, slots=True)
class UartSide:
    """One direction of a polled port: when a byte may pass, and through which register."""

    status: int  # address
    mask: int
    data: int  # address
    ready_when_set: bool = True
    bits: int = 32  # of an access to either register


@dataclass(frozen=True, slots=True)
class Uart:
    """The serial port of the board-side protocol; `kind` names a register layout in `UART_KINDS`."""

    kind: str
    address: int  # 0 where it is polled
    setup: tuple[tuple[int, int], ...] = ()  # (address, value) stores
    baud: int = 115200
    receive: UartSide | None = None  # of a polled port, and of no other
    transmit: UartSide | None = None


@dataclass(frozen=True, slots=True)
class FlashTool:
    """How each flash programmer identifies the board; empty or False for a programmer that does not support it."""

    pyocd: str = ""  # --target
    openocd: tuple[str, ...] = ()  # -f, in order
    stflash: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """A board, read from its JSON file."""

    name: str
    core: str
    flash: Region
    ram: Region
    stack_reserve: int  # bytes
    vectors: Region | None = None  # boot vectors, where they are not at the start of flash
    stack: Region | None = None  # RAM of the stack alone, where it is not at the end of `ram`
    qemu_machine: str | None = None
    counter: Counter | None = None
    uart: Uart | None = None
    flash_tool: FlashTool | None = None
    description: str = ""
    memories: Mapping[str, Region] = field(default_factory=dict)  # RAMs that `--memory` may name
    source: str = field(default="", compare=False, repr=False)  # text of the file

    @property
    def reserved_ram(self) -> int:
        """Bytes of `ram` that are kept for the stack."""
        return 0 if self.stack else self.stack_reserve

    @property
    def family(self) -> Family:
        return family_of_core(self.core)

    def require_target(self, target: Core) -> None:
        """Raise `UsageError` if the board's core cannot execute the target's instructions."""
        if self.core not in target.runs_on:
            raise UsageError(
                f"board {self.name} has a {self.core}, which cannot run code for {target.name}; "
                f"{target.name} runs on {', '.join(target.runs_on)}"
            )


def available_ram(board: Board, other_ram_bytes: int = 0) -> int:
    """Bytes that an arena may take on `board`: its RAM less the stack reserve and everything else linked into RAM."""
    return max(0, board.ram.bytes - board.reserved_ram - other_ram_bytes)


def list_boards() -> tuple[str, ...]:
    """Names of the boards that ship with the project, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def load_board(name_or_path: str | Path) -> Board:
    """The board of that name, or the one described by a user's own JSON file.

    Raises `UsageError` for unknown names and for files that break the format, naming the key.
    """
    text = str(name_or_path)
    if text.endswith(".json") or "/" in text:
        path = Path(text)
    else:
        path = _FOLDER / f"{text}.json"
        if not path.is_file():
            raise UsageError(
                f"unknown board {text!r}; known: {', '.join(list_boards())}, or the path of a board's .json file"
            )
    try:
        return read_board(path.read_text(encoding="utf-8"), path)
    except OSError as error:
        raise UsageError(f"board file {path}: {error.strerror}") from None


def read_board(source: str, path: Path) -> Board:
    """The board that the text of a board file describes; `path` is for messages. Raises `UsageError` as `load_board`."""
    reader = _Reader(str(path))
    try:
        data = json.loads(source, object_pairs_hook=reader.distinct)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"board file {path} is no JSON: {error}") from None
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
        """Hook for `json.loads`: an object as a dict. Duplicate keys are refused, of which `json` would keep the last."""
        made = dict(pairs)
        for name, _ in pairs if len(made) < len(pairs) else ():
            if sum(name == other for other, _ in pairs) > 1:
                raise UsageError(f"board file {self.path}: the key {name!r} comes twice in one object")
        return made

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

    def region(self, value: object, key: str, least: int = 1) -> Region:
        table = self.table(value, key, ("origin", "bytes"))
        origin = self.address(table["origin"], f"{key}.origin")
        if origin % _ALIGN:
            raise self.fail(f"{key}.origin", f"a multiple of {_ALIGN}")
        return Region(origin, self.number(table["bytes"], f"{key}.bytes", least, (1 << 32) - origin))

    def memory(self, value: object) -> dict[str, Region]:
        table = self.table(value, "memory", ("flash", "ram"), ("vectors", "stack"))
        made = {
            name: self.region(one, f"memory.{name}", _LEAST_RAM if name in ("ram", "stack") else 1)
            for name, one in table.items()
        }
        low_to_high = sorted(made.items(), key=lambda item: item[1].origin)
        for (below, first), (above, second) in pairwise(low_to_high):
            if second.origin < first.end:
                raise UsageError(
                    f"board file {self.path}: memory.{below} (0x{first.origin:08x} to 0x{first.end:08x}) and "
                    f"memory.{above} (from 0x{second.origin:08x}) overlap"
                )
        return made

    def memories(self, value: object, memory: Mapping[str, Region]) -> dict[str, Region]:
        """RAMs by name."""
        named = self.table(value, "memories", (), tuple(value) if isinstance(value, dict) else ())
        made = {self.text(name, "memories"): self.region(one, f"memories.{name}") for name, one in named.items()}
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
        setup = self.stores(table.get("setup", []), "uart.setup")
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
        table = self.table(value, "flash_tool", (), ("pyocd", "openocd", "stflash"))
        files = table.get("openocd", [])
        if not isinstance(files, list) or not all(isinstance(one, str) and one.endswith(".cfg") for one in files):
            raise self.fail("flash_tool.openocd", "a list of .cfg files")
        if not isinstance(table.get("stflash", False), bool):
            raise self.fail("flash_tool.stflash", "true or false")
        pyocd = self.text(table["pyocd"], "flash_tool.pyocd") if "pyocd" in table else ""
        return FlashTool(pyocd, tuple(files), table.get("stflash", False))

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
            qemu_machine=None if machine is None else self.text(machine, "qemu.machine"),
            counter=None if table.get("counter") is None else self.counter(table["counter"]),
            uart=None if table.get("uart") is None else self.uart(table["uart"]),
            flash_tool=None if table.get("flash_tool") is None else self.flash_tool(table["flash_tool"]),
            description=str(table.get("description", "")),
            memories=self.memories(table.get("memories", {}), memory),
        )
