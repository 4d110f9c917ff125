"""What the code generator hands to the rest of `micro`: the text of an emitted network and the shape of its interface.

The interface outlives the text: it is stored in the project folder's `metadata.json`, so a run needs no model file.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from types import MappingProxyType

import numpy as np

from tvm_cascade.errors import UsageError

C_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "bool": "uint8_t",
        "float32": "float",
        "float64": "double",
        **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    }
)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")


def _require_identifier(text: str, what: str) -> None:
    if not _IDENTIFIER.match(text):
        raise UsageError(f"{what} {text!r} is no C identifier; letters, digits and underscores only")


@dataclass(frozen=True, slots=True)
class IoSpec:
    """One input or output tensor of an emitted network.

    `scale` and `zero_point` are None for tensors that are not quantized.
    """

    name: str  # the model's tensor name, any text
    c_name: str  # member of `struct <network>_inputs` or `_outputs`, a C identifier
    dtype: str  # numpy name of the element type
    shape: tuple[int, ...]
    bytes: int
    scale: float | None = None
    zero_point: int | None = None
    stream_axis: int | None = None  # of an input that is asked for row by row: the axis of its rows
    passes: int = 1  # of a streamed input: how often it is asked for from its first row to its last

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of a streamed input, all planes together."""
        return self.bytes if self.stream_axis is None else self.bytes // self.shape[self.stream_axis]

    def __post_init__(self) -> None:
        _require_identifier(self.c_name, "tensor name")
        if self.bytes != prod(self.shape) * np.dtype(self.dtype).itemsize:
            raise UsageError(f"tensor {self.name!r}: {self.bytes} bytes do not match {self.dtype}{list(self.shape)}")

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> IoSpec:
        """Read what `dataclasses.asdict` wrote."""
        fields = dict(data)
        fields["shape"] = tuple(int(extent) for extent in fields["shape"])  # type: ignore[attr-defined]
        return cls(**fields)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Interface:
    """The callable side of an emitted network: what a run must feed and may read."""

    name: str  # C identifier, the prefix of every symbol
    inputs: tuple[IoSpec, ...]
    outputs: tuple[IoSpec, ...]
    arena_bytes: int
    arena_align: int  # bytes
    requests: tuple[int, ...] = ()  # for every row that the network asks for, in order, the input it belongs to
    digest: int = 0  # CRC-32 of the network's files: tells networks of one shape and other weights apart

    def __post_init__(self) -> None:
        _require_identifier(self.name, "network name")

    def to_dict(self) -> dict[str, object]:
        """A JSON-ready copy."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Interface:
        """Read what `to_dict` wrote, also after a round trip through JSON."""
        fields = dict(data)
        for side in ("inputs", "outputs"):
            fields[side] = tuple(IoSpec.from_dict(spec) for spec in fields[side])  # type: ignore[attr-defined]
        fields["requests"] = tuple(fields.get("requests", ()))  # type: ignore[arg-type]
        return cls(**fields)  # type: ignore[arg-type]

    def pack_inputs(self, arrays: Sequence[np.ndarray]) -> bytes:
        """The inputs of one inference as the firmware reads them: whole ones in order, then streamed rows as asked for.

        Raises `UsageError` where number, element type or size differ from the model's.
        """
        if len(arrays) != len(self.inputs):
            raise UsageError(f"{len(arrays)} input arrays given, the network has {len(self.inputs)}")
        parts: list[bytes] = []
        rows: dict[int, np.ndarray] = {}
        for k, (spec, array) in enumerate(zip(self.inputs, arrays, strict=True)):
            if array.dtype != np.dtype(spec.dtype) or array.nbytes != spec.bytes:
                want = f"{spec.dtype}{list(spec.shape)}"
                raise UsageError(f"input {spec.name!r}: {array.dtype}{list(array.shape)} given, {want} wanted")
            if spec.stream_axis is None:
                parts.append(np.ascontiguousarray(array).tobytes())
            else:
                rows[k] = np.moveaxis(array.reshape(spec.shape), spec.stream_axis, 0)
        taken = dict.fromkeys(rows, 0)
        for k in self.requests:
            parts.append(np.ascontiguousarray(rows[k][taken[k] % len(rows[k])]).tobytes())
            taken[k] += 1
        return b"".join(parts)

    def unpack_outputs(self, data: bytes) -> tuple[np.ndarray, ...]:
        """Split the output bytes of one inference into arrays of the model's types and shapes."""
        arrays, start = [], 0
        for spec in self.outputs:
            flat = np.frombuffer(data, dtype=spec.dtype, count=prod(spec.shape), offset=start)
            arrays.append(flat.reshape(spec.shape).copy())
            start += spec.bytes
        return tuple(arrays)


@dataclass(frozen=True, slots=True)
class EmittedNetwork:
    """Files of one compiled network, as the code generator made them."""

    name: str  # C identifier, the prefix of every symbol and file
    files: Mapping[str, bytes]  # file name -> content; headers, sources, objects
    sources: tuple[str, ...]  # names in `files` that must be compiled
    objects: tuple[str, ...]  # names in `files` that must be linked as they are
    inputs: tuple[IoSpec, ...]
    outputs: tuple[IoSpec, ...]
    arena_bytes: int
    arena_align: int  # bytes
    c_flags: tuple[str, ...] = ()  # compiler options that only these sources need
    requests: tuple[int, ...] = ()  # see `Interface`
    ram_weight_bytes: int = 0  # of weights that are copied into RAM, beside the arena

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
        """The part that a run needs once the firmware is built."""
        digest = 0
        for file in sorted(self.files):
            digest = zlib.crc32(self.files[file], zlib.crc32(file.encode(), digest))
        place = (self.arena_bytes, self.arena_align)
        return Interface(self.name, self.inputs, self.outputs, *place, self.requests, digest)
