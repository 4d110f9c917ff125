"""The output of `targets` under `--json`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from tvm_cascade.schema.units import Bytes, Count, Ratio


class MemoryOfTarget(TypedDict):
    """A possible memory for `--memory`."""

    name: Annotated[str, "Its name"]
    bytes: Annotated[Bytes, "Its size"]
    cycles_per_byte: Annotated[Ratio | None, "What a byte costs beside the arithmetic; null where no source says"]
    cacheable: Annotated[bool | None, "Whether the core has a cache before it; null where no source says"]
    dma: Annotated[bool | None, "Whether the controllers for general use reach it; null where no source says"]


class Target(TypedDict):
    """A named target for `--target`."""

    name: Annotated[str, "Its name"]
    core: Annotated[str, "The core that networks are compiled for; its own name for a core"]
    description: Annotated[str, "What it is; empty for a core"]
    aliases: Annotated[list[str], "Other names that `--target` takes for it: boards that have this microcontroller"]
    clock_hz: Annotated[Count | None, "Highest clock; null for a core, and where no source says"]
    flash_bytes: Annotated[Bytes | None, "Flash; null for a core"]
    ram_bytes: Annotated[Bytes | None, "RAM of the arena and the stack where no memory is named; null for a core"]
    memories: Annotated[list[MemoryOfTarget], "Memories by name, the fastest first"]
    emulated: Annotated[bool, "Whether `run` has an emulator of it; for a core, of the board that it takes by default"]
    flashed_by: Annotated[list[str], "Programs that `flash` writes it with"]
    sources: Annotated[dict[str, str], "Documents that the figures come from, by key of the board's file"]


class Targets(TypedDict):
    """All named targets for `--target`."""

    targets: Annotated[list[Target], "Cores, then microcontrollers and boards"]
