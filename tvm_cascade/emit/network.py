"""Records for a compiled network: the emitted files (`EmittedNetwork`), the needs of a build (`Network`) and of a run
(`Interface`).

The last two are stored in the `metadata.json` of a compiled folder, so neither build nor run needs the model's file.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import inf, isfinite, prod
from types import MappingProxyType
from typing import Any

import numpy as np

from tvm_cascade.errors import UsageError
from tvm_cascade.fixed_inputs import FixedInput
from tvm_cascade.machine import Ram
from tvm_cascade.records import checked
from tvm_cascade.tensor_spec import WHOLE, Cut, Domain, TensorSpec

C_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "bool": "uint8_t",
        "float32": "float",
        "float64": "double",
        **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    }
)
INTERFACE_VERSION = 1  # of the emitted headers and of metadata.json: a change that breaks their readers counts it up
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")


def _require_identifier(text: str, what: str) -> None:
    if not _IDENTIFIER.match(text):
        raise UsageError(f"{what} {text!r} is no C identifier; letters, digits and underscores only")


@dataclass(frozen=True, slots=True)
class NetworkMemory:
    """A memory used by a network, as a separate array."""

    name: str  # its section is .NAME; "" for the arena, whose section the application's build may choose
    start: int  # of its bytes in the offsets of tensors (`TensorSpec.offset`)
    bytes: int
    address: int | None = None  # of the board's memory
    weights: int = 0  # bytes of weights that are copied there, in arrays of their own behind this one
    kept_start: int = 0  # in offsets of tensors, of the states, which other networks may not overwrite
    kept_bytes: int = 0  # of the states; they are the begin or the end of its bytes, or all of them

    @property
    def all_bytes(self) -> int:
        """Return the section's bytes: the array, and copies of weights, which begin at multiples of 8."""
        return -(-self.bytes // 8) * 8 + self.weights if self.weights else self.bytes

    @property
    def shared_bytes(self) -> int:
        """Return the bytes without states, common to all networks that share the memory."""
        return self.bytes - self.kept_bytes

    @property
    def label(self) -> str:
        """Return the array's name, without the network's prefix."""
        return Ram(self.name).label


@dataclass(frozen=True, slots=True)
class PlacedState:
    """A state of a network: the tensor, with an offset in the arena, and the value before the first run."""

    spec: TensorSpec
    initial: bytes  # of all elements; empty: zeros
    returned: str = ""  # `State.returned`
    form: tuple[int, ...] = ()  # `State.form`

    @property
    def array(self) -> np.ndarray:
        """Return the value before the first run, in the file's shape."""
        data = np.frombuffer(self.initial or bytes(self.spec.bytes), self.spec.dtype)
        form = self.form or self.spec.shape
        return data[data.size - prod(form) :].reshape(form)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready copy."""
        own = {"offset": self.spec.offset, "initial": self.initial.hex(), "returned": self.returned}
        own |= {"form": list(self.form)} if self.form else {}
        return _tensor_to_dict(self.spec) | own

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PlacedState:
        """Read the output of `to_dict`."""
        rest = dict(data)
        initial, returned = bytes.fromhex(rest.pop("initial")), rest.pop("returned")
        form = tuple(rest.pop("form", ()))
        return cls(_tensor_from_dict(rest), initial, returned, form)


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """Where a network's weights are stored, other than linked with the rest of its constants."""

    storage: str  # section, file or stream
    file: str = ""  # its name; "" for a section
    identity: str = ""  # of the network that the file is for (`emit.weights_file`), in hexadecimal
    bytes: int = 0  # of the flash image in the file

    @property
    def in_file(self) -> bool:
        """Return True if the weights are in a file, and not in the image."""
        return bool(self.file)


@dataclass(frozen=True, slots=True)
class Interface:
    """The interface of a compiled network: names, inputs, outputs and arena, as a run needs them."""

    name: str  # C identifier, the prefix of every symbol
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    arena_bytes: int
    arena_align: int  # bytes
    requests: tuple[int, ...] = ()  # for every streamed row, in the order of requests, the index of its input
    digest: int = 0  # CRC-32 of the network's files: it differs for other weights of the same shapes
    cut: Cut = WHOLE  # out of the model's file
    memories: tuple[NetworkMemory, ...] = ()  # that were named; none: all lies in the arena
    states: tuple[PlacedState, ...] = ()  # kept from one run to the next
    kept: tuple[int, int] = (0, 0)  # begin and bytes of the states in the arena, where no memories were named
    fixed: tuple[FixedInput, ...] = ()  # inputs of the model's file that are folded in
    weights: StoredWeights | None = None  # None: linked with the network's constants
    like: str = ""  # see `IoSpec`

    @property
    def arrays(self) -> tuple[NetworkMemory, ...]:
        """Return the network's memories: the named memories, or the arena."""
        start, size = self.kept
        return self.memories or (NetworkMemory("", 0, self.arena_bytes, kept_start=start, kept_bytes=size),)

    @property
    def fixed_arrays(self) -> dict[str, np.ndarray]:
        """Return the values of the fixed inputs by name."""
        return {one.name: one.array for one in self.fixed}

    def __post_init__(self) -> None:
        _require_identifier(self.name, "network name")
        for spec in (*self.inputs, *self.outputs):
            _require_identifier(spec.c_name, "tensor name")

    def to_dict(self) -> dict[str, object]:
        """Return a JSON-ready copy, without the tensors' arena offsets: the network's own sources have them."""
        made: dict[str, object] = {f.name: getattr(self, f.name) for f in fields(self)}
        sides = {"inputs": self.inputs, "outputs": self.outputs}
        made |= {name: [_tensor_to_dict(spec) for spec in side] for name, side in sides.items()}
        made |= {"cut": asdict(self.cut), "memories": [asdict(one) for one in self.memories]}
        made |= {"states": [state.to_dict() for state in self.states]}
        made |= {"fixed": [one.to_dict() for one in self.fixed]}
        made |= {"weights": None if self.weights is None else asdict(self.weights)}
        absent = {key for key in ("memories", "states", "fixed", "weights", "like") if not made[key]}
        absent |= {"kept"} if not self.kept[1] else set()
        return {key: value for key, value in made.items() if key not in absent}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Interface:
        """Read the output of `to_dict`, also after a round trip through JSON.

        Raises `KeyError`, `TypeError` or `ValueError` for malformed records.
        """
        sides = {side: tuple(_tensor_from_dict(spec) for spec in data[side]) for side in ("inputs", "outputs")}
        cut = Cut(**{side: tuple(names) for side, names in data.get("cut", {}).items()})
        memories = tuple(NetworkMemory(**one) for one in data.get("memories", ()))
        states = tuple(PlacedState.from_dict(one) for one in data.get("states", ()))
        given = {"requests": tuple(data.get("requests", ())), "cut": cut, "memories": memories, "states": states}
        given["kept"] = tuple(data.get("kept", (0, 0)))
        given["fixed"] = tuple(FixedInput.from_dict(one) for one in data.get("fixed", ()))
        given["weights"] = StoredWeights(**data["weights"]) if data.get("weights") else None
        return checked(cls(**{**data, **sides, **given}))

    def pack_inputs(self, arrays: Sequence[np.ndarray]) -> bytes:
        """Convert the inputs for an inference to the bytes read by the firmware: whole inputs in order, then rows in
        the order of `requests`.

        Raises `UsageError` if number, element type or shape differ from the model's.
        """
        if len(arrays) != len(self.inputs):
            raise UsageError(f"{len(arrays)} input arrays given, the network has {len(self.inputs)}")
        parts: list[bytes] = []
        rows: dict[int, np.ndarray] = {}
        for k, (spec, array) in enumerate(zip(self.inputs, arrays, strict=True)):
            spec.check(array)
            if spec.stream_axis is None:
                parts.append(np.ascontiguousarray(array).tobytes())
            else:
                rows[k] = np.moveaxis(array.reshape(spec.row_shape), spec.stream_axis, 0)
        taken = dict.fromkeys(rows, 0)
        for k in self.requests:
            parts.append(np.ascontiguousarray(rows[k][taken[k] % len(rows[k])]).tobytes())
            taken[k] += 1
        return b"".join(parts)

    def unpack_outputs(self, data: bytes) -> tuple[np.ndarray, ...]:
        """Convert the bytes written by the firmware in a single inference to the arrays of `outputs`."""
        return split_outputs(self.outputs, data)


def split_outputs(outputs: Sequence[TensorSpec], data: bytes) -> tuple[np.ndarray, ...]:
    """Split the bytes of concatenated tensors into arrays, by type and shape."""
    arrays, start = [], 0
    for spec in outputs:
        flat = np.frombuffer(data, dtype=spec.dtype, count=prod(spec.shape), offset=start)
        arrays.append(flat.reshape(spec.shape).copy())
        start += spec.bytes
    return tuple(arrays)


def _tensor_to_dict(spec: TensorSpec) -> dict[str, Any]:
    keys = ("name", "c_name", "dtype", "shape", "bytes", "scale", "zero_point", "stream_axis", "stream_shape", "passes")
    indices: dict[str, Any] = {} if spec.extent is None else {"extent": spec.extent}
    if spec.domain is not None:
        ends = [end if isfinite(end) else None for end in (spec.domain.low, spec.domain.high)]
        indices["domain"] = [*ends, spec.domain.nonzero]
    rows = {"window": spec.window, "window_axis": spec.window_axis} if spec.window else {}
    return {key: getattr(spec, key) for key in keys} | indices | rows


def _tensor_from_dict(data: Mapping[str, Any]) -> TensorSpec:
    fields: dict[str, Any] = dict(data) | {k: tuple(int(n) for n in data.get(k, ())) for k in ("shape", "stream_shape")}
    size = fields.pop("bytes")
    if "domain" in fields:
        low, high, nonzero = fields["domain"]
        fields["domain"] = Domain(-inf if low is None else low, inf if high is None else high, nonzero)
    spec = TensorSpec(**fields)
    if size != spec.bytes:
        raise ValueError(f"tensor {spec.name!r}: {size} bytes do not match {spec.type_text}")
    return spec


@dataclass(frozen=True, slots=True)
class Network:
    """A compiled network in a folder: the files that a build compiles and links, and the interface for a run."""

    interface: Interface
    sources: tuple[str, ...]  # names of files that must be compiled
    objects: tuple[str, ...]  # names of files that must be linked as they are
    c_flags: tuple[str, ...] = ()  # compiler options that only these sources need

    @property
    def name(self) -> str:
        return self.interface.name

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.interface.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.interface.outputs

    @property
    def functions(self) -> tuple[str, ...]:
        """Return the functions called by an application, without the network's prefix."""
        states = ("reset", "state_save", "state_load") if self.interface.states else ()
        return ("run", "map_inputs", "map_outputs", *states)

    @property
    def files(self) -> tuple[str, ...]:
        """Return the names of all files, the header first."""
        weights = self.interface.weights
        return (f"{self.name}.h", *self.sources, *self.objects, *([weights.file] if weights and weights.file else []))


@dataclass(frozen=True, slots=True)
class EmittedNetwork:
    """A network from the code generator: file contents, and the interface's fields."""

    name: str  # C identifier, the prefix of every symbol and file
    files: Mapping[str, bytes]  # file name -> content; headers, sources, objects
    sources: tuple[str, ...]  # names in `files` that must be compiled
    objects: tuple[str, ...]  # names in `files` that must be linked as they are
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    arena_bytes: int
    arena_align: int  # bytes
    c_flags: tuple[str, ...] = ()  # compiler options that only these sources need
    requests: tuple[int, ...] = ()  # see `Interface`
    ram_weight_bytes: int = 0  # of weights that are copied to RAM, in addition to the arena
    cut: Cut = WHOLE  # out of the model's file
    memories: tuple[NetworkMemory, ...] = ()  # see `Interface`
    states: tuple[PlacedState, ...] = ()  # see `Interface`
    kept: tuple[int, int] = (0, 0)  # see `Interface`
    fixed: tuple[FixedInput, ...] = ()  # see `Interface`
    weights: StoredWeights | None = None  # see `Interface`
    like: str = ""  # see `IoSpec`
    calls: tuple[int, ...] = ()  # operators of the driver's kernel calls, in the order of its C text

    def __post_init__(self) -> None:
        _require_identifier(self.name, "network name")
        for file_name in self.files:
            if not _FILE_NAME.match(file_name):
                raise UsageError(f"emitted file name {file_name!r} must be a plain name without folders")
        missing = [name for name in (*self.sources, *self.objects) if name not in self.files]
        if missing:
            raise UsageError(f"emitted network {self.name} lacks {', '.join(missing)}")
        object.__setattr__(self, "files", MappingProxyType(dict(self.files)))

    @property
    def interface(self) -> Interface:
        """Return the part needed by a run once the firmware is built."""
        digest = 0
        for file in sorted(self.files):
            digest = zlib.crc32(self.files[file], zlib.crc32(file.encode(), digest))
        place = (self.arena_bytes, self.arena_align)
        more = (self.requests, digest, self.cut, self.memories, self.states, self.kept, self.fixed)
        return Interface(self.name, self.inputs, self.outputs, *place, *more, self.weights, self.like)

    @property
    def record(self) -> Network:
        """Return the record needed by builds and runs once the files are written."""
        return Network(self.interface, self.sources, self.objects, self.c_flags)
