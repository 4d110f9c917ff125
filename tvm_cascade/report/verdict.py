"""Verdict of a plan on a board: whether RAM and flash hold the network, in a single line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from tvm_cascade.machine import Room
from tvm_cascade.sizes import human, megahertz

_NAMED = 3  # boards that a line names
_KIB, _MIB = 1024, 1024**2


@dataclass(frozen=True, slots=True)
class Need:
    """A network's bytes on a board."""

    ram: int  # arena, weights that are copied there, data and bss; the stack is the board's to reserve
    constants: int  # weights and tables in flash
    code: int  # in flash
    linked: bool = False  # False: the code is estimated

    @property
    def flash(self) -> int:
        """Return all bytes of flash."""
        return self.constants + self.code

    def fits(self, room: Room) -> bool | None:
        """Test whether a board holds the network; None if only the estimate of code exceeds the flash."""
        if self.ram + room.stack > room.ram or self.constants > room.flash:
            return False
        if self.flash > room.flash:
            return False if self.linked else None
        return True


def holding(need: Need, rooms: Sequence[Room]) -> tuple[Room, ...]:
    """Return the boards large enough for a network, by ascending RAM, then flash."""
    fitting = [room for room in rooms if need.fits(room)]
    return tuple(sorted(fitting, key=lambda room: (room.ram, room.flash, room.board)))


def verdict(need: Need, room: Room, time: str) -> str:
    """Return the line that says whether a board holds a network: RAM and flash of both, and the time."""
    ram, flash = part_of(need.ram + room.stack, room.ram), part_of(need.flash, room.flash)
    fits = need.fits(room)
    if fits is None:
        return f"fits the RAM of {room.board}, {ram}; flash: probably not, {flash}"
    return f"{'fits' if fits else 'does not fit'} {room.board}: RAM {ram}, flash {flash}, {time}"


def verdict_of_boards(need: Need, core: str, same: Sequence[Room], others: Sequence[Room]) -> str:
    """Return the line that names the smallest boards for a network: with the same core (`same`), else with another
    core.
    """
    held = holding(need, same)
    if held:
        return f"fits {_named(held)}"
    held = holding(need, others)
    if held:
        return f"fits no known board with a {core}; with another core: {_named(held)}"
    return f"fits no known board with a {core}, nor with another core"


def _named(rooms: Sequence[Room]) -> str:
    names = ", ".join(room.board for room in rooms[:_NAMED])
    return names + (f" and {len(rooms) - _NAMED} more" if len(rooms) > _NAMED else "")


def need_line(need: Need, time: str) -> str:
    """Return the line on a network's needs if no board is given."""
    return f"needs RAM {human(need.ram)} and a stack, flash about {human(need.flash)}, {time}"


def part_of(part: int, whole: int) -> str:
    """Return a memory's bytes, rounded up: `11.5 of 128 KiB`, `40.8 KiB of 2 MiB`."""
    unit, name = (_MIB, "MiB") if whole >= _MIB else (_KIB, "KiB")
    own, own_name = (unit, "") if part >= unit or unit == _KIB else (_KIB, " KiB")
    return f"{ceil(10 * part / own) / 10:g}{own_name} of {whole / unit:.4g} {name}"


def time_of(cycles: int, milliseconds: float | None) -> str:
    """Return the estimated time of an inference in three digits; cycles without a clock."""
    if milliseconds is not None and milliseconds >= 10_000:
        return f"{short_number(milliseconds / 1000)} s"
    if milliseconds is not None:
        return f"{short_number(milliseconds)} ms"
    for unit, name in ((10**9, "G"), (10**6, "M")):
        if cycles >= unit:
            return f"{cycles / unit:.3g} {name} cycles"
    return f"{cycles} cycles"


def short_number(value: float) -> str:
    """Return a number in three digits, or in as many as its whole part has."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def clock_of(clock: int | None) -> str:
    """Return the clock as the end of a phrase; empty without one."""
    return "" if clock is None else f" at {megahertz(clock)}"
