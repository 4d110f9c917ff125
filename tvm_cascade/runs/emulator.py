"""Run an image in QEMU and read its outputs and measurements: arena and stack bytes used, instructions.

The image (see `templates/main.c.in`) reads inputs.bin and writes results.bin through semihosting. Before every
inference the image paints the arena with a byte, and afterwards reports the highest changed byte. A written byte may
equal the paint by chance, so a second run paints the complement: bytes unchanged in both runs were never written with
anything else. The second run repeats the first inference only, at the same time as the first run, and must give the
same outputs: an inference that depends on the arena's former content is an error here.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from tvm_cascade.boards.board import Board, Counter
from tvm_cascade.emit.elf import symbol_address
from tvm_cascade.emit.network import NetworkMemory
from tvm_cascade.emit.weights_file import error_name
from tvm_cascade.errors import MissingToolError, ToolError, UsageError
from tvm_cascade.tensor_spec import TensorSpec

PATTERNS = (0xA5, 0x5A)
_MAGIC = 0x31435654
_START = struct.pack("<I", 1)  # before the inputs of every inference
_AFTER = 5  # words of a record after the memories': stack, low before and after, coarse before and after
_FAULT_BITS = {
    0: "instruction access", 1: "data access", 8: "instruction bus error", 9: "precise bus error",
    10: "imprecise bus error", 16: "undefined instruction", 17: "invalid state", 19: "no coprocessor",
    20: "stack overflow", 24: "unaligned access", 25: "division by zero",
}  # fmt: skip


class Runnable(Protocol):
    """The interface of an image to a run: inputs to bytes and bytes to outputs."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]: ...
    @property
    def arrays(self) -> tuple[NetworkMemory, ...]: ...
    def pack_inputs(self, arrays: Sequence[np.ndarray]) -> bytes: ...
    def unpack_outputs(self, data: bytes) -> tuple[np.ndarray, ...]: ...


class FirmwareError(ToolError):
    """Firmware that faulted, returned an error, overflowed the stack or depends on stale memory."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Outputs and measurements of a run, in the emulator or on a board (`serial_run`)."""

    outputs: tuple[tuple[np.ndarray, ...], ...]  # per inference, in the order of the interface
    memory_high_water_bytes: tuple[int, ...]  # by memory, maximum over inferences and paint patterns
    stack_bytes: int  # maximum, from the top of the stack; everything the firmware uses, not the network alone
    instructions: int | None  # of one inference, the maximum; None where the board has no counter
    seconds: float  # wall time of the emulation

    @property
    def arena_high_water_bytes(self) -> int:
        """Return the bytes touched, summed over all memories."""
        return sum(self.memory_high_water_bytes)


@dataclass(frozen=True, slots=True)
class Inference:
    """Raw results of an inference: bytes used in memories and stack, all output bytes, counter ticks."""

    memories: tuple[int, ...]  # bytes touched of each
    stack: int
    outputs: bytes
    ticks: int = 0


def run(
    elf: Path,
    board: Board,
    interface: Runnable,
    inputs: Sequence[Sequence[np.ndarray]],
    timeout_s: float = 600.0,
    weights: Path | None = None,
) -> RunResult:
    """Execute `elf` on the emulated `board`, once per element of `inputs` (arrays in interface order).

    `weights` is a network's weights file, which is loaded into the flash behind the image.

    Raises `MissingToolError` without QEMU, `UsageError` for inputs of wrong type or size and weights that do not fit,
    `FirmwareError` if the firmware faults or fails, `ToolError` on a timeout.
    """
    qemu = find_qemu(board)
    if not inputs:
        raise UsageError("no inputs to run")
    packed = [interface.pack_inputs(arrays) for arrays in inputs]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tvm-cascade-") as folder:
        jobs = []
        try:
            for pattern, data in zip(PATTERNS, (packed, packed[:1]), strict=True):
                jobs.append(_Job(qemu, elf, board, Path(folder) / f"{pattern:02x}", pattern, data, weights))
            main, again = (job.finish(interface, started + timeout_s) for job in jobs)
        finally:
            for job in jobs:
                job.stop()
    return run_result(elf.name, interface, main, again[0], board.counter, started)


def run_result(
    what: str, interface: Runnable, main: Sequence[Inference], again: Inference, counter: Counter | None, started: float
) -> RunResult:
    """Build the result of a run begun at `started` (monotonic seconds); `again` repeats the first inference.

    Raises `FirmwareError`, with a message that begins with `what`, if the repetition has different outputs.
    """
    if main[0].outputs != again.outputs:
        raise FirmwareError(f"{what}: outputs depend on what the arena held before the inference")
    return RunResult(
        outputs=tuple(interface.unpack_outputs(one.outputs) for one in main),
        memory_high_water_bytes=tuple(map(max, *(one.memories for one in (*main, again)))),
        stack_bytes=max(one.stack for one in (*main, again)),
        instructions=round(max(one.ticks for one in main) / counter.ticks_per_instruction) if counter else None,
        seconds=time.monotonic() - started,
    )


def run_without_inputs(elf: Path, board: Board, timeout_s: float) -> tuple[int, bytes]:
    """Execute an image that reads no inputs; return the exit status and the bytes written through the port.

    Raises `UsageError` for a board without an emulator, `MissingToolError` without QEMU, `ToolError` on a timeout.
    """
    command = emulator_command(board, elf)
    (elf.parent / "inputs.bin").write_bytes(b"")
    try:
        done = subprocess.run(
            command, cwd=elf.parent, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"{elf.name} on {board.name} took longer than {timeout_s:g} s") from None
    results = elf.parent / "results.bin"
    return done.returncode, results.read_bytes() if results.exists() else b""


def find_qemu(board: Board) -> str:
    """Find the path of a board's emulator. Raises `UsageError` if the board has none, `MissingToolError` if it is not
    installed.
    """
    if board.qemu_machine is None:
        port = "flash it and use --port, or " if board.uart is not None else ""
        raise UsageError(f"board {board.name} has no emulator: {port}choose another --board")
    qemu = shutil.which(board.family.qemu)
    if qemu is None:
        raise MissingToolError(board.family.qemu, board.family.qemu_remedy)
    return qemu


def emulator_command(board: Board, elf: Path) -> list[str]:
    """Build QEMU's command line: 128 ns of virtual time per instruction, files through semihosting.

    Raises the errors of `find_qemu`.
    """
    return [
        find_qemu(board), "-M", str(board.qemu_machine), *board.family.qemu_arguments,
        "-kernel", str(elf.resolve()), "-icount", "shift=7",
        "-display", "none", "-monitor", "none", "-serial", "none",
        "-semihosting-config", "enable=on,target=native",
    ]  # fmt: skip


def _loader(elf: Path, board: Board, weights: Path) -> list[str]:
    """Build QEMU's options that load a weights file into the flash behind the image.

    Raises `UsageError` if the rest of the flash is too small.
    """
    start, end = (symbol_address(elf, name) for name in ("__weights_start", "__weights_end"))
    size = weights.stat().st_size
    if size > end - start:
        raise UsageError(
            f"{weights} has {size} bytes, and behind the image {max(end - start, 0)} bytes of the flash of {board.name} are "
            "free: run it on a --board with more flash, or in this process (--board host)"
        )
    name = str(weights.resolve()).replace(",", ",,")
    return ["-device", f"loader,file={name},addr=0x{start:x},force-raw=on"] if size else []


class _Job:
    """A QEMU process in a separate folder."""

    def __init__(
        self,
        qemu: str,
        elf: Path,
        board: Board,
        folder: Path,
        pattern: int,
        packed: Sequence[bytes],
        weights: Path | None = None,
    ) -> None:
        folder.mkdir()
        self.folder, self.elf, self.board, self.count = folder, elf, board, len(packed)
        head, loaded = struct.pack("<I", pattern), list[str]()
        if weights is not None:
            head += struct.pack("<I", weights.stat().st_size)
            loaded = _loader(elf, board, weights)
        (folder / "inputs.bin").write_bytes(head + b"".join(_START + data for data in packed))
        with (folder / "console.txt").open("wb") as console:
            self.process = subprocess.Popen(
                [*emulator_command(board, elf), *loaded],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def finish(self, interface: Runnable, deadline: float) -> list[Inference]:
        try:
            status = self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            done = max(0, len(self._results()) - 8) // _record_bytes(interface)
            raise ToolError(
                f"{self.elf.name} on {self.board.name}: the emulator ran out of time after {done} of {self.count} "
                "inferences; give it more (--timeout) or run fewer inputs"
            ) from None
        console = (self.folder / "console.txt").read_text(encoding="utf-8", errors="replace").strip()
        if status != 0:
            prefix = self.board.family.prefix
            raise FirmwareError(
                f"{self.elf.name} on {self.board.name}: {explain_failure(console, status, self.elf, prefix)}"
            )
        return self._read(interface, console)

    def _results(self) -> bytes:
        results = self.folder / "results.bin"
        return results.read_bytes() if results.exists() else b""

    def _read(self, interface: Runnable, console: str) -> list[Inference]:
        data, record, count = self._results(), _record_bytes(interface), len(interface.arrays)
        if len(data) != 8 + self.count * record or struct.unpack_from("<I", data)[0] != _MAGIC:
            raise FirmwareError(f"{self.elf.name} on {self.board.name}: incomplete results; {console or 'no message'}")
        overhead = struct.unpack_from("<I", data, 4)[0]
        return [self._inference(data[8 + k * record :][:record], count, overhead) for k in range(self.count)]

    def _inference(self, data: bytes, memories: int, overhead: int) -> Inference:
        measured = _record(memories)
        outputs = data[: -measured.size]
        status, *touched, stack, low, low_after, coarse, coarse_after = measured.unpack(data[-measured.size :])
        name, counter = self.elf.name, self.board.counter
        if status != 0:
            meaning = error_name(status)
            told = f"{status}, {meaning}" if meaning else str(status)
            raise FirmwareError(f"{name} on {self.board.name}: the network returned {told}")
        ticks = counter.ticks((low, low_after), (coarse, coarse_after)) if counter else 0
        if counter:
            ticks -= counter.ticks((0, overhead), (0, 0))
        return Inference(tuple(touched), stack, outputs, max(0, ticks))


def _record(memories: int) -> struct.Struct:
    """Return the layout of an inference's report with `memories` memories: status, bytes per memory, `_AFTER` words."""
    return struct.Struct(f"<i{memories + _AFTER}I")


def _record_bytes(interface: Runnable) -> int:
    """Return the bytes an inference writes into results.bin."""
    return _record(len(interface.arrays)).size + sum(spec.bytes for spec in interface.outputs)


def explain_failure(console: str, status: int, elf: Path, prefix: str) -> str:
    """Explain a failed run from the fault handler's text; `prefix` is the GNU tools'."""
    fault = re.search(r"fault:((?: \w+=[0-9a-f]{8})+)", console)
    if fault is None:
        lines = [line for line in console.splitlines() if line.strip()]
        return f"stopped with status {status}: {lines[0] if lines else 'no message'}"
    values = {key: int(value, 16) for key, value in re.findall(r"(\w+)=([0-9a-f]{8})", fault[1])}
    causes = [text for bit, text in _FAULT_BITS.items() if values.get("cfsr", 0) >> bit & 1]
    if values["sp"] < values["limit"]:
        causes.append("stack overflow")
    where = f" in {_function_at(elf, values['pc'], prefix)}" if "pc" in values else ""
    detail = " ".join(f"{key}=0x{value:08x}" for key, value in values.items())
    return f"the firmware faulted{where}: {', '.join(dict.fromkeys(causes)) or 'hard fault'} ({detail})"


def _function_at(elf: Path, address: int, prefix: str) -> str:
    tool = shutil.which(f"{prefix}addr2line")
    if tool is None:
        return f"0x{address:08x}"
    done = subprocess.run(
        (tool, "-f", "-e", str(elf), hex(address)), capture_output=True, text=True, timeout=30, check=False
    )
    name = done.stdout.splitlines()[0] if done.stdout else "??"
    return name if name != "??" else f"0x{address:08x}"
