"""`Board`: the facts about a board or a microcontroller in its file (`boards.board` reads the file)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tvm_cascade.boards.region import Memory, Region
from tvm_cascade.cores import Core
from tvm_cascade.cores.families import Family, family_of_core
from tvm_cascade.errors import UsageError

_DATA = 1024  # bytes that are kept for data and bss beside what a network takes


@dataclass(frozen=True, slots=True)
class CounterRegister:
    """A counting register; `sample`, if any, is an (address, value) store that latches the counter before each read."""

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
        """Count the ticks of `low` between two readings (before, after), wraps included.

        The coarse difference errs by at most one coarse tick, far less than half a wrap (`low`), so rounding to the
        nearest number of wraps is exact.
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
    setup: tuple[tuple[int, ...], ...] = ()  # (address, value) stores, (address, mask, value) waits
    baud: int = 115200
    receive: UartSide | None = None  # of a polled port, and of no other
    transmit: UartSide | None = None


@dataclass(frozen=True, slots=True)
class FlashTool:
    """How each flash programmer identifies the board; empty or False for an unsupported programmer."""

    pyocd: str = ""  # --target
    openocd: tuple[str, ...] = ()  # -f, in order
    stflash: bool = False
    uf2: int | None = None  # family of the files that the boot ROM takes
    esptool: str = ""  # --chip


@dataclass(frozen=True, slots=True)
class Boot:
    """Words in flash that the boot ROM executes or looks for before it starts the program."""

    origin: int  # address
    words: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Supply:
    """The supply of a core while it computes, at the clock in the file."""

    amperes: float
    volts: float

    @property
    def watts(self) -> float:
        return self.amperes * self.volts


@dataclass(frozen=True, slots=True)
class Board:
    """A board or a microcontroller, read from a JSON file."""

    name: str
    core: str
    flash: Memory
    ram: Region
    stack_reserve: int  # bytes
    vectors: Region | None = None  # boot vectors, where they are not at the start of flash
    stack: Region | None = None  # RAM of the stack alone, where it is not at the end of `ram`
    flash_data: int | None = None  # address of the first byte of flash for loads, where it is not that for code
    boot: Boot | None = None
    qemu_machine: str | None = None
    counter: Counter | None = None
    uart: Uart | None = None
    flash_tool: FlashTool | None = None
    description: str = ""
    aliases: tuple[str, ...] = ()  # names of boards that have this microcontroller
    memories: Mapping[str, Memory] = field(default_factory=dict)  # RAMs that `--memory` may name, the fastest first
    clock: int | None = None  # highest of the core, in Hz
    supply: Supply | None = None
    # where figures come from, by the key that they stand under
    sources: Mapping[str, str] = field(default_factory=dict)
    source: str = field(default="", compare=False, repr=False)  # text of the file
    # name that was asked for, of a board with this microcontroller; empty for the file's own
    called: str = field(default="", compare=False)
    derived: bool = field(default=False, compare=False)  # its file names another one for the microcontroller

    @property
    def reserved_ram(self) -> int:
        """Return the bytes of `ram` reserved for the stack."""
        return 0 if self.stack else self.stack_reserve

    @property
    def arena_room(self) -> int:
        """Return the bytes of `ram` left for an arena beside data, bss and the stack."""
        return max(self.ram.bytes - _DATA - self.reserved_ram, 0) // 8 * 8

    @property
    def family(self) -> Family:
        return family_of_core(self.core)

    def usable(self, name: str) -> int:
        """Return the bytes of a board's memory that a network may take by default.

        Data and bss lie at the start of `ram`, the stack at the end.
        """
        memory = self.memories[name]
        first = _DATA if memory.origin <= self.ram.origin < memory.end else 0
        last = self.reserved_ram if memory.origin < self.ram.end <= memory.end else 0
        return max(memory.bytes - first - last, 0) // 8 * 8

    def require_target(self, target: Core) -> None:
        """Raise `UsageError` if the board's core cannot execute the target's instructions."""
        if self.core not in target.runs_on:
            raise UsageError(
                f"board {self.name} has a {self.core}, which cannot run code for {target.name}; "
                f"{target.name} runs on {', '.join(target.runs_on)}"
            )


def available_ram(board: Board, other_ram_bytes: int = 0) -> int:
    """Return the bytes available to an arena on `board`: the RAM less the stack reserve and everything else linked into
    RAM.
    """
    return max(0, board.ram.bytes - board.reserved_ram - other_ram_bytes)
