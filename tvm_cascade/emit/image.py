"""Compiled folders: `Image`, the record for one network or several linked into one image, read from `metadata.json`.

An image with one network is a project. Several networks (a bundle) run one after another and share one arena, as large
as the largest needs: the maximum, not the sum. They are compiled with TVM_CASCADE_SHARED_ARENA, so each uses
`tvm_cascade_arena` in place of a separate array; the same holds for every named memory. State kept between runs lies
beside the arena (TVM_CASCADE_KEEP_STATES).

Layout of a folder: the networks' own files, `main.c`, `startup.c`, the I/O port for measuring, `CMakeLists.txt`,
`README.md`, `metadata.json`, `boards/<board>/`, `host/` with the programs for this machine, and `build/` with the
images. Several networks add `arena.c`, one `serial_<network>.c` for each, and `constants.c` with common weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.cores import Core, get_core
from tvm_cascade.emit.network import EmittedNetwork, Interface, Network, NetworkMemory, split_outputs
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.messages import printable
from tvm_cascade.plain_files import readable
from tvm_cascade.report.cost import Cost, read_cost
from tvm_cascade.tensor_spec import TensorSpec

METADATA = "metadata.json"
SHARED_ARENA, KEEP_STATES = "TVM_CASCADE_SHARED_ARENA", "TVM_CASCADE_KEEP_STATES"
HOST_FOLDER = "host"
_SEVERAL = "networks"  # name of an image of several networks
_ONE_KEY, _SEVERAL_KEY = "project", "bundle"  # of metadata.json


@dataclass(frozen=True, slots=True)
class Image:
    """A compiled folder, enough to build, run, flash and export it. A run executes all networks once, in order."""

    folder: Path
    networks: tuple[Network, ...]
    target: Core
    board: str  # name of the board that it was compiled for, or "host"
    optimise: str
    shared_weight_bytes: int = 0  # of weights that several networks have in common, stored once
    saved_flash_bytes: int = 0  # by sharing them

    @property
    def several(self) -> bool:
        """Return True if several networks share an arena."""
        return len(self.networks) > 1

    @property
    def run_on(self) -> str:
        """Return the default board for `run`: the image's own, or "host", this process, if nothing is linked."""
        return self.board if self.target.family.links else "host"

    @property
    def defines(self) -> tuple[str, ...]:
        """Return the macros for every file that includes a header of the networks."""
        kept = (KEEP_STATES,) if any(n.interface.states for n in self.networks) else ()
        return (SHARED_ARENA, *kept) if self.several else ()

    @property
    def name(self) -> str:
        """Return the name of the image: the network's, or `networks` if there are several."""
        return _SEVERAL if self.several else self.networks[0].name

    @property
    def arena_bytes(self) -> int:
        """Return the bytes of all memories."""
        return sum(memory.bytes for memory in self.arrays)

    @property
    def arrays(self) -> tuple[NetworkMemory, ...]:
        """Return the networks' memories; in a bundle each is as large as the largest network needs without states.

        Copies of weights and, in a bundle, states belong to each network separately.
        """
        if not self.several:
            return self.networks[0].interface.arrays
        found: dict[str, NetworkMemory] = {}
        for own in (m for network in self.networks for m in network.interface.arrays):
            other = found.get(own.name, NetworkMemory(own.name, own.start, 0, own.address))
            most = max(own.shared_bytes, other.bytes)
            found[own.name] = replace(other, bytes=most, weights=own.weights + other.weights)
        return tuple(found.values())

    @property
    def memory_names(self) -> tuple[str, ...]:
        """Return the names of the board's memories that have a section."""
        return tuple(one.name for one in self.arrays if one.name and one.all_bytes)

    @property
    def arena_align(self) -> int:
        return max(network.interface.arena_align for network in self.networks)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Return the outputs of all networks, one network after another."""
        return tuple(spec for network in self.networks for spec in network.outputs)

    def label(self, network: Network, name: str) -> str:
        """Return the name of a tensor in files of inputs and outputs: `x`, or `network/x` if there are several
        networks.
        """
        return f"{network.name}/{name}" if self.several else name

    def named_inputs(self) -> Iterator[tuple[str, TensorSpec]]:
        """Return every input of every network with its label."""
        return ((self.label(n, spec.name), spec) for n in self.networks for spec in n.inputs)

    def named_outputs(self) -> Iterator[tuple[str, TensorSpec]]:
        """Return every output of every network with its label."""
        return ((self.label(n, spec.name), spec) for n in self.networks for spec in n.outputs)

    def pack_inputs(self, arrays: Sequence[np.ndarray]) -> bytes:
        """Convert the inputs of all networks, one network after another, to the bytes read by the firmware.

        Raises `UsageError` if number, element type or shape differ from the models'.
        """
        parts, start = [], 0
        for network in self.networks:
            end = start + len(network.inputs)
            parts.append(network.interface.pack_inputs(arrays[start:end]))
            start = end
        if start != len(arrays):
            raise UsageError(f"{len(arrays)} input arrays given, the networks have {start}")
        return b"".join(parts)

    def unpack_outputs(self, data: bytes) -> tuple[np.ndarray, ...]:
        """Convert bytes to the arrays of `outputs`."""
        return split_outputs(self.outputs, data)


@dataclass(frozen=True, slots=True)
class HostRecord:
    """Metadata of a network's host program (`emit.host`) in a compiled folder."""

    folder: Path
    data: Mapping[str, Any]  # for `HostProgram.load`
    macs: int  # multiply-accumulates by the plan
    cost: Cost | None = None  # estimated of an inference; None in folders of older versions


def read_image(folder: Path) -> Image:
    """Read the image in `folder`; raise `LoadError` if there is none, or for damaged metadata."""
    path = folder / METADATA
    data = read_metadata(folder)
    try:
        own = data[_SEVERAL_KEY] if _SEVERAL_KEY in data else data[_ONE_KEY]
        records = own["projects"] if _SEVERAL_KEY in data else [own]
        return Image(
            folder=folder,
            networks=tuple(_inside(folder, _network(record)) for record in records),
            target=get_core(records[0]["target"]),
            board=str(own["board"]),
            optimise=str(records[0]["optimise"]),
            shared_weight_bytes=int(own.get("shared_weight_bytes", 0)),
            saved_flash_bytes=int(own.get("saved_flash_bytes", 0)),
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise LoadError(path, f"is not the metadata of a compiled network ({error}); compile again") from None


def _inside(folder: Path, network: Network) -> Network:
    """Return the network. Raise `ValueError` if a file name leads out of the folder."""
    for name in network.files:
        if Path(name).name != name or "\\" in name or not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"the file {printable(repr(name))} lies outside of the folder")
    return network


def read_metadata(folder: Path) -> dict[str, Any]:
    """Read the JSON object in a folder's `metadata.json`; raise `LoadError` if there is none."""
    path = folder / METADATA
    try:
        data = json.loads(readable(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(path, f"{error.strerror}; is {folder} a folder made by `tvm-cascade compile`?") from None
    except ValueError as error:
        raise LoadError(path, f"is not the metadata of a compiled network ({error})") from None
    if not isinstance(data, dict):
        raise LoadError(path, "is not the metadata of a compiled network; compile again")
    return data


def write_metadata(image: Image, more: Mapping[str, object] | None = None) -> None:
    """Write the folder's `metadata.json`: the fields that `read_image` reads, and the entries of `more`."""
    networks = [
        {
            "interface": network.interface.to_dict(),
            "sources": network.sources,
            "objects": network.objects,
            "network_flags": network.c_flags,
            "target": image.target.name,
            "board": image.board,
            "optimise": image.optimise,
        }
        for network in image.networks
    ]
    data: dict[str, object] = {_ONE_KEY: networks[0], **(more or {})}
    if image.several:
        own = {"networks": [n.name for n in image.networks], "target": image.target.name, "board": image.board}
        own |= {"arena_bytes": image.arena_bytes, "shared_weight_bytes": image.shared_weight_bytes}
        own |= {"saved_flash_bytes": image.saved_flash_bytes, "projects": networks}
        data = {_SEVERAL_KEY: {**own, **(more or {})}}
    (image.folder / METADATA).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def read_network(image: Image, network: Network) -> EmittedNetwork:
    """Read an emitted network of `image`, with the files from the folder."""
    interface = network.interface
    return EmittedNetwork(
        name=network.name,
        files={name: readable(image.folder / name).read_bytes() for name in network.files},
        sources=network.sources,
        objects=network.objects,
        inputs=interface.inputs,
        outputs=interface.outputs,
        arena_bytes=interface.arena_bytes,
        arena_align=interface.arena_align,
        c_flags=network.c_flags,
        requests=interface.requests,
        cut=interface.cut,
        memories=interface.memories,
        states=interface.states,
        kept=interface.kept,
        fixed=interface.fixed,
        weights=interface.weights,
        like=interface.like,
    )


def host_records(image: Image) -> dict[str, HostRecord]:
    """Return records of the host programs by network name; skip networks written without a host program.

    Raises `LoadError` for damaged metadata.
    """
    data, place = read_metadata(image.folder), image.folder / HOST_FOLDER
    try:
        if image.several:
            found = data[_SEVERAL_KEY].get("hosts", {})
            networks = {network.name: network for network in image.networks}
            return {name: _host_record(networks[name], place / name, one["host"], one) for name, one in found.items()}
        if not {"host", "plan"} <= data.keys() or not place.is_dir():
            return {}
        return {image.name: _host_record(image.networks[0], place, data["host"], data["plan"])}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        path = image.folder / METADATA
        raise LoadError(path, f"is not the metadata of a compiled network ({error}); compile again") from None


def _host_record(network: Network, folder: Path, host: Mapping[str, Any], plan: Mapping[str, Any]) -> HostRecord:
    """Read a host program's record; raise `ValueError` unless the program's inputs and outputs are the network's."""
    for side, specs in (("inputs", network.inputs), ("outputs", network.outputs)):
        if [_face(one) for one in host[side]] != [(spec.name, spec.dtype, spec.shape) for spec in specs]:
            raise ValueError(f"the host program of {network.name} has other {side} than the network")
    return HostRecord(folder, host, int(plan["macs"]), read_cost(plan.get("cost")))


def _face(tensor: Mapping[str, Any]) -> tuple[str, str, tuple[int, ...]]:
    return tensor["name"], tensor["dtype"], tuple(tensor["shape"])


def _network(record: Mapping[str, Any]) -> Network:
    return Network(
        interface=Interface.from_dict(record["interface"]),
        sources=tuple(record["sources"]),
        objects=tuple(record["objects"]),
        c_flags=tuple(record["network_flags"]),
    )
