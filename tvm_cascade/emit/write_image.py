"""Write a compiled folder: the networks' files and everything else needed to build an image for a board.

A folder without linking (`BuildOptions.linked`: for this machine, or a core without a compiler here) holds one network
as a library for any C99 compiler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_cascade.boards.board import Board
from tvm_cascade.cache import NO_CACHE, Cache
from tvm_cascade.cores import Core
from tvm_cascade.emit import image_text
from tvm_cascade.emit.board_files import add_board
from tvm_cascade.emit.cmake import compile_flags
from tvm_cascade.emit.image import Image, read_image, write_metadata
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.shared_weights import SharedWeights, share
from tvm_cascade.emit.template import startup_source, template
from tvm_cascade.errors import UsageError

_VERBATIM = ("port.h", "port_semihosting.c", "measure.h")


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Target, board, optimisation and back end of a compiled folder."""

    target: Core
    board: Board | None  # None for this machine
    optimise: str = "balanced"  # size, speed or balanced
    backend: str = "c"  # "c" or "obj": kernels as C99 or as an object
    cache: Cache = NO_CACHE  # of what is compiled
    ram: int | None = None  # cap in bytes on all RAM of the image; None: that of the board
    flash: int | None = None  # cap in bytes on flash of the image; None: that of the board
    unlinked: str = ""  # why the image of the project is not linked here; empty where it is
    code_weights: float = 0.0  # instructions that a byte of weights may cost which a code saves

    @property
    def linked(self) -> bool:
        """Return True if the folder is an image's project; otherwise the network is a library for any C99 compiler."""
        return self.board is not None and self.target.family.links


def write_image(folder: Path, networks: Sequence[EmittedNetwork], options: BuildOptions) -> Image:
    """Write the folder of an image; overwrite existing files.

    Raises `UsageError` for a board that cannot run the target's code, an unknown optimisation, and several networks for
    this machine.
    """
    if not options.linked and len(networks) > 1:
        raise UsageError(
            "several networks share the arena of an image that is linked here: compile them for such a target, "
            f"not for {options.target.name}"
        )
    if options.board is not None:
        options.board.require_target(options.target)
    compile_flags(options.optimise)
    folder.mkdir(parents=True, exist_ok=True)
    shared = _shared_weights(networks) if len(networks) > 1 else SharedWeights({}, 0, 0)
    image = Image(
        folder=folder,
        networks=tuple(network.record for network in networks),
        target=options.target,
        board=options.board.name if options.board else "host",
        optimise=options.optimise,
        shared_weight_bytes=shared.stored,
        saved_flash_bytes=shared.saved,
    )
    for network in networks:
        write_files(folder, network.files)
    write_files(folder, shared.files)
    if options.board is None or not options.linked:
        write_files(folder, image_text.library_files(image, options.board))
    else:
        copy_runtime(folder, options.target)
        if options.board.uart is not None:
            write_files(folder, {"uart.h": template("uart.h")})
        write_files(folder, image_text.files(image, options.board))
        add_board(folder, options.board, image.memory_names)
    write_metadata(image)
    return read_image(folder)


def copy_runtime(folder: Path, target: Core) -> None:
    """Write the files that are the same for every network: start-up code, ports, measuring."""
    write_files(folder, {name: template(name) for name in _VERBATIM} | {"startup.c": startup_source(target.family)})


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write texts and bytes under the given names."""
    for name, content in files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def _shared_weights(networks: Sequence[EmittedNetwork]) -> SharedWeights:
    """Merge equal weights of several networks (`emit.shared_weights`); skip networks without the two generated sources."""
    sources = {n.name: (f"{n.name}.c", f"{n.name}_weights.c") for n in networks}
    texts = {
        n.name: (n.files[code].decode(), n.files[weights].decode())
        for n, (code, weights) in zip(networks, sources.values(), strict=True)
        if {code, weights} <= set(n.sources) and n.weights is None
    }
    return share(texts)
