"""Bundles: networks from several compiled folders in a single image with a single shared arena (see `emit.image`)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tvm_cascade.boards.board import Board
from tvm_cascade.emit.board_files import find_board
from tvm_cascade.emit.image import (
    HOST_FOLDER,
    SHARED_ARENA,
    Image,
    host_records,
    read_image,
    read_network,
    write_metadata,
)
from tvm_cascade.emit.states import kept_bytes
from tvm_cascade.emit.toolchain import build_image
from tvm_cascade.emit.write_image import BuildOptions, write_image
from tvm_cascade.errors import UsageError
from tvm_cascade.publish import publish, require_empty
from tvm_cascade.schema.filled import filled
from tvm_cascade.schema.projects import Bundle
from tvm_cascade.sizes import bytes_and_unit

_DEFINES = re.compile(r"^#define (?!tvm_cascade)(\w+)", re.M)


@dataclass(frozen=True, slots=True)
class BundleResult:
    """A finished bundle and the image; sizes in bytes."""

    folder: Path
    networks: tuple[str, ...]
    board: str
    arena_bytes: int  # of the shared arena
    separate_bytes: int  # sum of the arenas, if each network had its own
    ram_bytes: int
    flash_bytes: int
    elf: str  # relative to `folder`
    shared_weight_bytes: int = 0  # of `flash_bytes`: weights that several networks have in common, stored once
    saved_flash_bytes: int = 0  # by sharing them
    kept_bytes: int = 0  # of `ram_bytes`, beside the arena: states, and rows that were pushed

    def to_dict(self) -> Bundle:
        """Return the JSON object of `tvm-cascade bundle --json`."""
        return filled(Bundle, self)

    def to_text(self) -> str:
        """Format a summary for the terminal: networks, memory sizes, and the image's path."""
        kept = f"{self.kept_bytes} bytes beside it, which other networks do not touch"
        return "\n".join(
            [
                f"networks        {', '.join(self.networks)}",
                f"arena           {self.arena_bytes} bytes, shared; {self.separate_bytes} bytes if each had its own",
                *([f"states          {kept}"] if self.kept_bytes else []),
                f"RAM             {bytes_and_unit(self.ram_bytes)} of arena, data and bss, without the stack",
                f"flash           {bytes_and_unit(self.flash_bytes)} of code, weights and tables",
                f"shared weights  {self.shared_weight_bytes} bytes, kept once: {self.saved_flash_bytes} bytes of flash saved",
                f"image           {self.folder / self.elf}",
            ]
        )


def make_bundle(
    folders: Sequence[Path], out: Path, board: str | None = None, keep_states: bool = False
) -> BundleResult:
    """Write and build a bundle of compiled folders, each with a single network; `out` appears only when complete.

    `keep_states` gives the networks' states memory beside the arena. `board` None is the first network's board. Raises
    as `write_bundle` and `build_image`, and `UsageError` for states without `keep_states`.
    """
    images = [read_image(Path(folder)) for folder in folders]
    _check(out, images)
    _check_weights(images)
    if not keep_states:
        _check_states(images)
    on = find_board(images[0].folder, board or images[0].board)
    with publish(out, require_empty) as staging:
        bundle = write_bundle(staging, images, on)
        built = build_image(bundle, on)
        elf = str(built.elf.relative_to(staging))
    return BundleResult(
        folder=out,
        networks=tuple(network.name for network in bundle.networks),
        board=on.name,
        arena_bytes=bundle.arena_bytes,
        separate_bytes=sum(image.arena_bytes for image in images),
        ram_bytes=built.ram_bytes,
        flash_bytes=built.flash_bytes,
        elf=elf,
        shared_weight_bytes=bundle.shared_weight_bytes,
        saved_flash_bytes=bundle.saved_flash_bytes,
        kept_bytes=sum(kept_bytes(n.interface) for n in bundle.networks),
    )


def write_bundle(folder: Path, images: Sequence[Image], board: Board) -> Image:
    """Write the networks of several compiled folders as a single image into the new folder `folder`.

    Raises `UsageError` for fewer than two networks, a folder that is itself a bundle, equal names, different targets, a
    board unable to run the networks, networks compiled without a sharable arena, and a folder that is not empty.
    """
    _check(folder, images)
    _check_memories(images, board)
    networks = [read_network(image, image.networks[0]) for image in images]
    bundle = write_image(folder, networks, BuildOptions(images[0].target, board, images[0].optimise))
    write_metadata(bundle, {"hosts": _copy_host_programs(folder, images)})
    return bundle


def _copy_host_programs(folder: Path, images: Sequence[Image]) -> dict[str, object]:
    """Copy the networks' host programs into the bundle; returns their metadata by network (see `image.host_records`)."""
    found: dict[str, object] = {}
    for image in images:
        for name, host in host_records(image).items():
            shutil.copytree(host.folder, folder / HOST_FOLDER / name)
            cost = {} if host.cost is None else {"cost": asdict(host.cost)}
            found[name] = {"host": host.data, "macs": host.macs, **cost}
    return found


def _check_memories(images: Sequence[Image], board: Board) -> None:
    """Raise `UsageError` for a network in memories missing on the board."""
    for image in images:
        lacking = [name for name in image.memory_names if name not in board.memories]
        if lacking:
            raise UsageError(f"{image.name} lies in {lacking[0]}: board {board.name} has no memory of that name")


def _check_weights(images: Sequence[Image]) -> None:
    """Raise `UsageError` for a network with weights in a file."""
    for image in images:
        stored = image.networks[0].interface.weights
        if stored is not None and stored.in_file:
            raise UsageError(
                f"{image.name} has its weights in {stored.file}, and a bundle is one image that shares weights: compile it with "
                "--weights linked or section"
            )


def _check_states(images: Sequence[Image]) -> None:
    """Raise `UsageError` for a network with states that would be overwritten in the shared arena."""
    kept = [n for image in images for n in image.networks if n.interface.states]
    if kept:
        size = sum(kept_bytes(n.interface) for n in kept)
        raise UsageError(
            f"{kept[0].name} keeps states in its arena from one run to the next, and the networks of a bundle share one: "
            f"--keep-states gives states {size} bytes of their own"
        )


def _check(folder: Path, images: Sequence[Image]) -> None:
    names = [image.name for image in images]
    if len(names) < 2:
        raise UsageError("a bundle takes at least two networks")
    if bundles := [str(image.folder) for image in images if image.several]:
        raise UsageError(f"{bundles[0]} is a bundle already: bundle the folders of its networks")
    if len(set(names)) < len(names):
        raise UsageError(f"networks of a bundle need different names, not {', '.join(names)}: compile with --name NAME")
    targets = dict.fromkeys(image.target.name for image in images)
    if len(targets) > 1:
        raise UsageError(f"networks of a bundle need one target, not {', '.join(targets)}")
    taken: dict[str, str] = {}  # file or macro name -> the network that has it
    for image in images:
        (network,) = image.networks
        header = (image.folder / f"{network.name}.h").read_text(encoding="utf-8")
        if SHARED_ARENA not in header:
            raise UsageError(f"{image.folder} was compiled without a sharable arena: compile it again")
        own = {*network.sources, *network.objects, *_DEFINES.findall(header)}
        if same := sorted(own & taken.keys()):
            raise UsageError(
                f"networks {taken[same[0]]} and {network.name} both have a {same[0]}: compile one with another --name"
            )
        taken |= dict.fromkeys(own, network.name)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} exists and is not empty; name a new folder")
