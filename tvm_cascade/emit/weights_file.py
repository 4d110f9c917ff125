"""Weights in a file beside the image, `weights.bin`: the format, and the C that binds and checks such files.

A file is a header of 64 bytes and the network's flash image, tables included. All numbers are little-endian:

    0   magic            "TVMW"
    4   version          1, 16 bits; then the header's bytes, 16 bits
    8   alignment        of the file in memory, in bytes
    12  size             bytes behind the header
    16  network          16 bytes of a SHA-256 over the code, the tables and the layout of the constants (`identity`)
    32  checksum         CRC-32 of the bytes behind the header
    36  zeros

The identity does not depend on the weights' values: a network trained again has the same one as long as its code stays
the same, and its weights are taken by images that were linked before. A checksum finds damage; it is no signature.

- `file`: `<name>_bind_weights(pointer, bytes)` checks a file that the processor can address, which kernels then read.
- `stream`: `<name>_bind_weights()` checks a file behind `port_read_weights(offset, size, to)`; kernels read two buffers
  (`emit.hot_weights`).
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_cascade.emit.hot_weights import HEADER_BYTES
from tvm_cascade.emit.template import fill_template, template
from tvm_cascade.errors import LoadError
from tvm_cascade.schedules.driver.lower_plan import FlashItem

if TYPE_CHECKING:
    from tvm_cascade.emit.c_interface import CInterface

FILE = "weights.bin"
ALIGN = 8  # bytes
_MAGIC, _VERSION = b"TVMW", 1
_HEADER = struct.Struct("<4sHHII16sI28x")
ERRORS = (
    ("UNBOUND", -5, "no weights are bound"),
    ("NOT_WEIGHTS", -6, "what was given is no file of weights"),
    ("WEIGHTS_VERSION", -7, "the file of weights is of another version of the format"),
    ("WEIGHTS_FOREIGN", -8, "the weights are those of another network"),
    ("WEIGHTS_TRUNCATED", -9, "the file of weights ends too early"),
    ("WEIGHTS_DAMAGED", -10, "the checksum of the weights is wrong"),
    ("WEIGHTS_UNREAD", -11, "port_read_weights failed"),
)


def identity(code: str, tables: bytes, items: Sequence[FlashItem]) -> str:
    """Hash what weights must agree with: the code, the driver's tables, and the layout of the constants."""
    layout = [(item.dtype, item.shape, item.offset, item.size) for item in items]
    digest = hashlib.sha256(repr((_VERSION, code, layout)).encode() + tables)
    return digest.hexdigest()[:32]


def weights_file(data: bytes, network: str) -> bytes:
    """Return a weights file's content for the network with an `identity`."""
    head = (_MAGIC, _VERSION, HEADER_BYTES, ALIGN, len(data), bytes.fromhex(network), zlib.crc32(data))
    return _HEADER.pack(*head) + data


def read_weights_file(path: Path, network: str) -> bytes:
    """Read a weights file and return the flash image; raise `LoadError` for what the firmware would refuse, too."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LoadError(path, error.strerror or "cannot be read") from None
    if content[:4] != _MAGIC:
        raise LoadError(path, "is no file of weights, as `compile --weights file` writes it")
    if len(content) < HEADER_BYTES:
        raise LoadError(path, f"is a file of weights that ends within its header of {HEADER_BYTES} bytes")
    _, version, header, _, size, owner, checksum = _HEADER.unpack(content[:HEADER_BYTES])
    if (version, header) != (_VERSION, HEADER_BYTES):
        raise LoadError(path, f"is a file of weights of version {version}, and this is for version {_VERSION}")
    if owner.hex() != network:
        raise LoadError(path, "has the weights of another network; compile that with the options of this one")
    data = content[HEADER_BYTES : HEADER_BYTES + size]
    if len(data) < size:
        raise LoadError(path, f"ends too early: {len(data)} of {size} bytes of weights")
    if zlib.crc32(data) != checksum:
        raise LoadError(path, "is damaged: the checksum of its weights is wrong")
    return data


def error_name(status: int) -> str:
    """Return name and meaning of an error that a network has on its weights; "" for any other status."""
    return next((f"{name}: {meaning}" for name, code, meaning in ERRORS if code == status), "")


def storage_of(c: CInterface) -> str:
    """Return where the network's weights are stored, as `--weights` names it."""
    return "linked" if c.interface.weights is None else c.interface.weights.storage


def codes(c: CInterface) -> list[str]:
    """Define the errors on weights in the header."""
    if storage_of(c) not in ("file", "stream"):
        return []
    lines = [f"#define {c.upper}_{name} ({code})" for name, code, _ in ERRORS]
    width = max(map(len, lines))
    return [f"{line:{width}} /* {meaning} */" for line, (_, _, meaning) in zip(lines, ERRORS, strict=True)]


def declarations(c: CInterface) -> list[str]:
    """Write the header's declaration of the function that binds the weights file; none for linked weights."""
    weights = c.interface.weights
    if weights is None or not weights.in_file:
        return []
    values = {"name": c.name, "NAME": c.upper, "bytes": str(HEADER_BYTES + weights.bytes), "align": str(ALIGN)}
    values["buffers"] = " and ".join(map(str, c.copies.halves))
    return _lines(f"weights_{weights.storage}.h.in", values)


def definitions(c: CInterface) -> list[str]:
    """Write the functions that check and bind the weights file, for the network's source; none for linked weights."""
    weights = c.interface.weights
    if weights is None or not weights.in_file:
        return []
    network = bytes.fromhex(weights.identity)
    values = {
        "name": c.name,
        "NAME": c.upper,
        "magic": f"0x{int.from_bytes(_MAGIC, 'little'):08x}u",
        "version": f"0x{_VERSION | HEADER_BYTES << 16:08x}u",
        "identity": ", ".join(f"0x{byte:02x}u" for byte in network),
        "size": f"{weights.bytes}u",
        "header": f"{HEADER_BYTES}u",
        "refuse_if_it_runs": f"    if ({c.name}_busy != 0u) {{\n        return {c.upper}_BUSY;\n    }}\n"
        * c.calls_back,
        "forget_copies": f"    {c.name}_hot_ready = 0;\n" * bool(c.copies.hot),
        "buffer": f"(uint8_t *){c.name}_prefetched",
        "buffer_bytes": f"(uint32_t)sizeof {c.name}_prefetched",
    }
    return [*_lines("weights_check.c.in", values), *_lines(f"weights_{weights.storage}.c.in", values), ""]


def before_run(c: CInterface) -> list[str]:
    """Write the first C statements of a run, which return an error while no weights file is bound."""
    unbound = {"file": f"{c.name}_flash == NULL", "stream": f"{c.name}_bound == 0u"}.get(storage_of(c))
    return [f"    if ({unbound}) {{", f"        return {c.upper}_UNBOUND;", "    }"] if unbound else []


def after_run(c: CInterface) -> list[str]:
    """Write C statements for the end of a run, which fails where weights could not be read."""
    if storage_of(c) != "stream":
        return []
    return [
        f"    if (status == {c.upper}_OK && {c.name}_unread != 0u) {{",
        f"        status = {c.upper}_WEIGHTS_UNREAD;",
        "    }",
    ]


def marks(c: CInterface) -> list[str]:
    """Define the variables of the weights: the pointer to them, or whether they are bound and could be read."""
    if storage_of(c) == "file":
        return [f"static const uint8_t *{c.name}_flash; /* behind the header; NULL until weights are bound */", ""]
    if storage_of(c) != "stream":
        return []
    bound = f"static uint8_t {c.name}_bound; /* whether the file of weights was checked */"
    return [bound, f"static uint8_t {c.name}_unread; /* whether a part of it could not be read in this run */", ""]


def _lines(name: str, values: dict[str, str]) -> list[str]:
    return fill_template(template(name), values).removesuffix("\n").split("\n")
