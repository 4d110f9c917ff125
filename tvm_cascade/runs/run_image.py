"""Run a compiled folder on an emulated board, a real board or in this process; measure, and compare outputs.

With `RunRequest.frames` run a sequence of calls from a clear state, otherwise one call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tvm_cascade import extras
from tvm_cascade.boards.board import Board
from tvm_cascade.checking.check import DRAWS, MOVED_FACTOR, Check
from tvm_cascade.checking.compare_outputs import (
    Reach,
    compare,
    largest_gaps,
)
from tvm_cascade.checking.sensitivity import moved_inputs
from tvm_cascade.emit.board_files import find_board
from tvm_cascade.emit.host import HostProgram, run_host
from tvm_cascade.emit.image import METADATA, Image, host_records, read_image, read_metadata
from tvm_cascade.emit.network import Network
from tvm_cascade.emit.toolchain import build_image, find_tool, require_uart
from tvm_cascade.emit.weights_file import read_weights_file
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.plain_files import readable
from tvm_cascade.report.cost import total
from tvm_cascade.request import RunRequest
from tvm_cascade.runs import emulator
from tvm_cascade.runs.arrays import read_frames, read_inputs, save_arrays
from tvm_cascade.runs.desk import resolve_port
from tvm_cascade.runs.run_report import RunReport
from tvm_cascade.runs.serial_run import SerialOptions, run_serial

_EMULATOR_S = 600.0  # default timeout of an emulation
PORT_S = 60.0  # default timeout of one request to a real board
_REFERENCES = {".tflite": "ai-edge-litert", ".onnx": "onnx", ".pt2": "torch"}  # suffix -> package of the reference

Arrays = Mapping[str, np.ndarray]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Measured:
    """Outputs by label, and measurements of all networks together; bytes."""

    outputs: Sequence[Arrays]  # by call
    high_water: tuple[int, ...]  # by memory, the most of all calls
    stack: int | None = None
    instructions: int | None = None


def run_image(folder: Path, asked: RunRequest, given: str | Path | Arrays | None, progress: Progress) -> RunReport:
    """Run one inference of every network in `folder` on the inputs `given`, or a sequence; see `tvm_cascade.run`."""
    image = read_image(folder)
    _refuse(image, asked)
    if asked.frames is not None and given is not None:
        raise UsageError("--frames holds the inputs of every call: leave --inputs out")
    if asked.port is not None:
        asked = replace(asked, port=resolve_port(asked.port))
    feeds = [read_inputs(image, given)] if asked.frames is None else read_frames(image, asked.frames)
    board = _board(image, asked, progress)
    where = asked.port or (board.name if board is not None and not asked.board else asked.board or "host")
    what = f"{len(image.networks)} networks " if image.several else ""
    progress(f"{image.name}: running {what}in this process, counting work")
    host, work, planned_macs = _on_host(image, feeds)
    other = _other_weights(image)
    if other and board is None:
        raise UsageError(
            f"{folder}: weights.bin was exchanged, and the program for this process has kernels that read weights in another "
            "layout: run it in the emulator"
        )
    check = None
    if asked.check is not None:
        progress(f"{image.name}: running the reference on {asked.check.name}")
        check = Check(image, asked.check, feeds)
    if board is None:
        done = host
    elif asked.port is not None:
        done = _over_port(image, board, feeds, asked.port, asked.timeout or PORT_S, progress)
    else:
        done = _emulate(image, board, feeds, asked.timeout or _EMULATOR_S, progress)
    checked = None if check is None else check.compare(done.outputs)
    outputs = done.outputs[0] if asked.frames is None else _stacked(done.outputs)
    if asked.outputs is not None:
        save_arrays(asked.outputs, outputs)
    return RunReport(
        board=where,
        outputs=outputs,
        arena_bytes=image.arena_bytes,
        arena_high_water_bytes=sum(done.high_water),
        memories=_by_name(image, done.high_water),
        stack_bytes=done.stack,
        executed_macs=sum(work),
        planned_macs=planned_macs * len(feeds),
        instructions=done.instructions,
        equals_host=None if other else done is host or _equals_host(image, feeds, host.outputs, done.outputs),
        checked=checked,
        frames=None if asked.frames is None else len(feeds),
        frame_macs=max(work),
        cost=total([record.cost for record in host_records(image).values()]),
    )


def _refuse(image: Image, asked: RunRequest) -> None:
    """Raise for impossible requests, before anything runs."""
    if asked.check is not None and image.several:
        raise UsageError("a bundle is checked network by network: run each project with --check before bundling")
    if asked.check is not None and not asked.check.is_file():
        if asked.check.is_dir():
            raise LoadError(asked.check, "is a folder; --check takes the model's file")
        raise LoadError(asked.check, "is no plain file" if asked.check.exists() else "no such file to check against")
    if asked.check is not None and asked.check.suffix in _REFERENCES:
        extras.need(_REFERENCES[asked.check.suffix])
    if asked.port is not None:
        extras.need("pyserial")
    if asked.port is not None and (asked.board or image.run_on) == "host":
        raise UsageError(
            f"{image.folder} is a project for {image.board}, which no program behind a port is linked for: compile it for "
            "another target"
        )


def _board(image: Image, asked: RunRequest, progress: Progress) -> Board | None:
    """Choose the board to run on; None for this process.

    If no emulator knows the image's own board, use the default board of the core. Raises `UsageError` if the board
    cannot serve.
    """
    name = asked.board or image.run_on
    if name == "host":
        return None
    board = find_board(image.folder, name)
    if asked.port is not None:
        require_uart(board)
    elif board.qemu_machine is None and asked.board is None:
        own, board = board, find_board(image.folder, image.target.default_board)
        if lacking := [memory for memory in image.memory_names if memory not in board.memories]:
            raise UsageError(
                f"{own.name} has no emulator, and {board.name} no memory {lacking[0]}: run it with --board host"
            )
        progress(
            f"{image.name}: {own.name} has no emulator: running on {board.name}, the emulated board of {image.target.name}"
        )
    if asked.port is None:
        emulator.find_qemu(board)
        built = image.folder / "build" / board.name / f"{image.name}.elf"
        if image.target.family.links and not built.is_file():  # linked after the host run, if at all
            find_tool(image.target.family.gcc, image.target.family.compiler_remedy)
    return board


def _stacked(calls: Sequence[Arrays]) -> dict[str, np.ndarray]:
    """Collect the outputs of all calls by name, with the calls along a new first axis."""
    return {name: np.stack([call[name] for call in calls]) for name in calls[0]}


def _on_host(image: Image, feeds: Sequence[Arrays]) -> tuple[_Measured, list[int], int]:
    """Run all networks in this process; return the measurements, the multiply-accumulates of every call, and the planned
    multiply-accumulates of a call.
    """
    records = host_records(image)
    outputs: list[dict[str, np.ndarray]] = [{} for _ in feeds]
    executed, planned = [0] * len(feeds), 0
    high = {memory.name: 0 for memory in image.arrays}
    for network in image.networks:
        if network.name not in records:
            raise LoadError(image.folder / METADATA, f"has no host program of {network.name}; compile again")
        record = records[network.name]
        calls = [{s.name: feed[image.label(network, s.name)] for s in network.inputs} for feed in feeds]
        done = run_host(HostProgram.load(record.folder, record.data, _weights(image, network)), calls)
        for made, found in zip(outputs, done.outputs, strict=True):
            made |= {image.label(network, name): array for name, array in found.items()}
        executed = [a + b for a, b in zip(executed, done.macs, strict=True)]
        planned += record.macs
        for memory, touched in zip(network.interface.arrays, done.memory_high_water, strict=True):
            own = memory.kept_bytes if image.several else 0  # states, which lie in the arena here
            high[memory.name] = max(high[memory.name], touched - own)
    return _Measured(outputs, tuple(high.values())), executed, planned


def _weights(image: Image, network: Network) -> bytes | None:
    """Read the flash image in a network's weights file; None if they are linked.

    Raises `LoadError` for a file that the network cannot take.
    """
    stored = network.interface.weights
    if stored is None or not stored.in_file:
        return None
    return read_weights_file(image.folder / stored.file, stored.identity)


def _other_weights(image: Image) -> bool:
    """Return True if the weights file is another than was compiled, and the program of this process does not read it."""
    stored = image.networks[0].interface.weights
    if stored is None or not stored.in_file:
        return False
    (host,), compiled = host_records(image).values(), read_metadata(image.folder).get("weights", {}).get("sha256")
    own = hashlib.sha256(readable(image.folder / stored.file).read_bytes()).hexdigest()
    return "reads_weights_file" not in host.data and own != compiled


def _equals_host(image: Image, feeds: Sequence[Arrays], host: Sequence[Arrays], made: Sequence[Arrays]) -> bool:
    """Test whether outputs equal this process's, call by call, or differ by no more than float rounding explains."""
    if all(compare(*pair).match for pair in zip(host, made, strict=True)):
        return True
    moved = [
        _on_host(image, [moved_inputs(feed, np.random.default_rng(seed)) for feed in feeds])[0].outputs
        for seed in range(DRAWS)
    ]
    for k, (want, have) in enumerate(zip(host, made, strict=True)):
        gaps = [largest_gaps(want, calls[k]) for calls in moved]
        allowed = {n: Reach(MOVED_FACTOR * max(gap[n] for gap in gaps)) for n in want if want[n].dtype.kind == "f"}
        if compare(want, have, allowed).match is False:
            return False
    return True


def _emulate(image: Image, board: Board, feeds: Sequence[Arrays], timeout_s: float, progress: Progress) -> _Measured:
    elf = build_image(image, board, unless_current=progress).elf
    progress(f"{image.name}: emulating {board.name}")
    arrays = [[feed[label] for label, _ in image.named_inputs()] for feed in feeds]
    stored = image.networks[0].interface.weights
    weights = image.folder / stored.file if stored is not None and stored.in_file else None
    done = emulator.run(elf, board, image, arrays, timeout_s, weights)
    labels = [label for label, _ in image.named_outputs()]
    outputs = [dict(zip(labels, made, strict=True)) for made in done.outputs]
    return _Measured(outputs, done.memory_high_water_bytes, done.stack_bytes, done.instructions)


def serial_options(image: Image, board: Board, timeout_s: float, number: int = 0) -> SerialOptions:
    """Return the options for running network `number` of an image over `board`'s serial port."""
    assert board.uart is not None
    return SerialOptions(
        baud=board.uart.baud,
        timeout_s=timeout_s,
        elf=image.folder / "build" / f"{board.name}-serial" / f"{image.name}.elf",
        tool_prefix=board.family.prefix,
        network_number=number if image.several else None,
    )


def _over_port(
    image: Image, board: Board, feeds: Sequence[Arrays], port: str, timeout_s: float, progress: Progress
) -> _Measured:
    """Run one network after another on the board at `port`."""
    require_uart(board)
    outputs: list[dict[str, np.ndarray]] = [{} for _ in feeds]
    high = stack = 0
    for k, network in enumerate(image.networks):
        what = f" {network.name}" if image.several else ""
        progress(f"{image.name}: running{what} on the board at {port}")
        serial = serial_options(image, board, timeout_s, k)
        arrays = [[feed[image.label(network, spec.name)] for spec in network.inputs] for feed in feeds]
        done = run_serial(port, network.interface, arrays, serial)
        labels = [image.label(network, spec.name) for spec in network.outputs]
        for made, found in zip(outputs, done.outputs, strict=True):
            made |= dict(zip(labels, found, strict=True))
        high, stack = max(high, done.arena_high_water_bytes), max(stack, done.stack_bytes)
    return _Measured(outputs, (high,), stack)


def _by_name(image: Image, high_water: Sequence[int]) -> tuple[tuple[str, int], ...]:
    """Return the bytes touched per named memory, copied weights included.

    Return () if everything lies in a single arena, or if a port reports only the sum.
    """
    if len(high_water) != len(image.arrays):
        return ()
    rows = zip(image.arrays, high_water, strict=True)
    return tuple((m.name, touched + m.all_bytes - m.bytes) for m, touched in rows if m.name)
