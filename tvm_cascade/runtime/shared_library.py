"""Shared libraries with embedded GPU machine code; no GPU or driver is needed.

Without its CUDA runtime TVM stores the CUDA source text, and compiles it at the first run, on the running machine. So
the library's embedded modules are packed here, with machine code in place of source. The layout follows
`ProcessLibraryBin` (tvm_ffi, `library_module.cc`) and TVM's `CUDAModuleNode::SaveToBytes`.
"""

# TVM has no stubs: pyright infers its functions' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tvm
from tvm.support.cc import cross_compiler

from tvm_cascade.errors import MissingToolError, ToolError
from tvm_cascade.runtime.cuda_code import CudaCode, compile_cuda

_BLOB = "runtime.ModulePackImportsToTensor"


def write_library(built: Any, path: Path, code: CudaCode | None = None, compiler: str = "") -> None:
    """Link TVM's compiled module to the shared library `path`; `code`: for CUDA, the machine code to embed.

    `compiler`: the cross compiler that links for another system.

    Raises `ToolError` if the linker or the compiler of CUDA sources fails, `MissingToolError` without a C++ compiler.
    """
    more: dict[str, Any] = {}
    if code is not None:
        more["fpack_imports"] = _packer(lambda source: compile_cuda(source, code))
    if compiler:
        more["fcompile"] = cross_compiler(compiler)
    try:
        built.export_library(str(path), **more)
    except RuntimeError as error:
        lines = [line for line in str(error).splitlines() if "error" in line.lower()] or str(error).splitlines() or [""]
        raise ToolError(f"the library cannot be linked: {lines[0][:300]}") from None
    except FileNotFoundError:
        raise MissingToolError(
            "a C++ compiler", "libraries are linked here: apt-get install g++ (Debian, Ubuntu)"
        ) from None


def _packer(compiled: Callable[[str], bytes]) -> Callable[..., str]:
    """Make a packer for `export_library` that writes the embedded modules as an assembler file, CUDA sources compiled."""

    def pack(module: Any, _system: bool, prefix: str, workspace: str) -> str:
        blob = tvm.get_global_func(_BLOB)(module).numpy().tobytes()
        data, text = Path(workspace) / "imports.bin", Path(workspace) / "imports.s"
        data.write_bytes(with_machine_code(blob, compiled))
        symbol = f"{prefix}{tvm.get_global_func('runtime.ModuleImportsBlobName')()}"
        text.write_text(
            f'.section .rodata\n.globl {symbol}\n.balign 16\n{symbol}:\n.incbin "{data}"\n'
            '.section .note.GNU-stack,"",@progbits\n'
        )
        return str(text)

    return pack


def with_machine_code(blob: bytes, compiled: Callable[[str], bytes]) -> bytes:
    """Replace CUDA sources in a library's embedded modules by the output of `compiled`."""
    stream = _Reader(blob)
    stream.number()  # bytes that follow
    parts = []
    children = stream.numbers()
    parts += [_numbers(children), _numbers(stream.numbers())]
    for _ in range(len(children) - 1):
        kind = stream.text()
        parts.append(_text(kind))
        if kind == b"_lib":
            continue
        content = stream.text()
        parts.append(_text(_compiled(content, compiled) if kind == b"cuda" else content))
    body = b"".join(parts)
    return struct.pack("<Q", len(body)) + body


def _compiled(content: bytes, compiled: Callable[[str], bytes]) -> bytes:
    """Convert a module of kind "cuda", [format][table of functions][code], to machine code if its format is source."""
    if _Reader(content).text() != b"cuda":
        return content
    head = len(_text(b"cuda"))
    start = next(_sources(content, head))
    return _text(b"cubin") + content[head : start - 8] + _text(compiled(content[start:].decode()))


def _sources(content: bytes, head: int) -> Iterator[int]:
    """Find possible starts of the last text in `content`: the text has its length in front, and ends with the content."""
    for start in range(head + 8, len(content) + 1):
        if (
            content[start - 2 : start] == b"\0\0"
            and struct.unpack_from("<Q", content, start - 8)[0] == len(content) - start
        ):
            yield start


class _Reader:
    """Reads numbers and texts with preceding lengths, all of 8 bytes, little endian."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self) -> int:
        (value,) = struct.unpack_from("<Q", self._data, self._at)
        self._at += 8
        return value

    def numbers(self) -> list[int]:
        return [self.number() for _ in range(self.number())]

    def text(self) -> bytes:
        size = self.number()
        self._at += size
        return self._data[self._at - size : self._at]


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _numbers(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values) + 1}Q", len(values), *values)
