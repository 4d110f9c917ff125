"""Running a compiled project: on its emulated board or in this process, measured, compared with host and reference."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.micro import emulator
from tvm_cascade.micro.bundle import is_bundle
from tvm_cascade.micro.firmware import HOST_FOLDER
from tvm_cascade.micro.host import HostProgram, run_host
from tvm_cascade.micro.project import METADATA, Project, find_board, read_project
from tvm_cascade.micro.reference import Expected, real, reference_outputs
from tvm_cascade.micro.serial_run import run_serial
from tvm_cascade.micro.toolchain import build_project, require_uart
from tvm_cascade.publish import whole_file

EMULATOR_S = 600.0  # default of the time that an emulation may take
PORT_S = 60.0  # default of the time that a real board may stay without an answer
_FLOAT_TOLERANCE = 1e-4  # of float outputs, relative to the largest: sums are reassociated
_REACHES = (
    2  # of turned roundings, within which a quantized network may differ from a reference that computes in floats
)


@dataclass(frozen=True)
class RunReport:
    """Measurements of one inference. Bytes; None where the board cannot tell or nothing was compared."""

    board: str
    outputs: Mapping[str, np.ndarray]
    arena_bytes: int
    arena_high_water_bytes: int
    stack_bytes: int | None
    executed_macs: int
    planned_macs: int
    instructions: int | None
    equals_host: bool
    match: bool | None  # with the reference
    max_abs_diff: float | None
    output_step: float | None = None  # of a network that was quantized, and whose reference computes in floats
    tolerance: float | None = None  # of its outputs; None where they must be equal
    reference_note: str = ""  # which kernels made the reference, where they are not LiteRT's reference ones

    @property
    def ok(self) -> bool:
        """Whether everything that was promised held: memory, work, and outputs equal to host and reference."""
        within = self.arena_high_water_bytes <= self.arena_bytes and self.executed_macs == self.planned_macs
        return within and self.equals_host and self.match is not False

    def to_dict(self) -> dict[str, object]:
        """The JSON object of `tvm-cascade run --json`."""
        return {
            "board": self.board,
            "arena_bytes": self.arena_bytes,
            "arena_high_water_bytes": self.arena_high_water_bytes,
            "stack_bytes": self.stack_bytes,
            "executed_macs": self.executed_macs,
            "planned_macs": self.planned_macs,
            "instructions": self.instructions,
            "equals_host": self.equals_host,
            "match": self.match,
            "max_abs_diff": self.max_abs_diff,
            "tolerance": self.tolerance,
            "reference_note": self.reference_note,
        }

    def to_text(self) -> str:
        """The same for reading."""
        exact = "equal, every element"
        if any(a.dtype.kind == "f" for a in self.outputs.values()):
            exact = f"equal within {_FLOAT_TOLERANCE} of the largest output (by up to {self.max_abs_diff})"
        if self.tolerance is not None and self.max_abs_diff is not None:
            unit = self.output_step or 1.0
            gap, most = (f"{v / unit:.3g}" for v in (self.max_abs_diff, self.tolerance))
            steps = f"{most} steps of {unit:g}" if self.output_step else most
            exact = (
                f"equal within {steps} (by up to {gap}): it computes in floats, and such is the reach of its roundings"
            )
        verdict = {None: "not checked (--check MODEL)", True: exact, False: "DIFFERENT"}[self.match]
        if self.match is False:
            verdict += f", by up to {self.max_abs_diff}"
        if self.reference_note:
            verdict += f" ({self.reference_note})"
        stack = "not measured on the host" if self.stack_bytes is None else f"{self.stack_bytes} bytes"
        counted = "no counter here" if self.instructions is None else f"{self.instructions}"
        return "\n".join(
            [
                f"ran on          {self.board}",
                f"arena           {self.arena_bytes} bytes planned and allocated, "
                f"{self.arena_high_water_bytes} touched",
                f"stack           {stack}",
                f"work            {self.executed_macs} multiply-accumulates executed, {self.planned_macs} planned",
                f"instructions    {counted}",
                f"host run        {'equal' if self.equals_host else 'DIFFERENT'}",
                f"reference       {verdict}",
            ]
        )


def _metadata(folder: Path) -> dict:
    path = folder / METADATA
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(path, f"{error.strerror}; is {folder} a folder made by `tvm-cascade compile`?") from None
    except ValueError as error:
        raise LoadError(path, f"is no JSON: {error}") from None
    parts = ("plan", "host", "image")
    if not isinstance(data, dict) or not all(isinstance(data.get(p), dict) for p in parts):
        raise LoadError(path, "is not the metadata of a compiled network; compile again")
    return data


def _read_inputs(project: Project, inputs: str | Path | Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
    specs = project.interface.inputs
    if inputs is None:
        return random_inputs(project)
    if isinstance(inputs, Mapping):
        given = dict(inputs)
    else:
        given = load_arrays(inputs)
    feed: dict[str, np.ndarray] = {}
    for spec in specs:
        if spec.name not in given:
            raise UsageError(f"no input '{spec.name}' among {', '.join(given) or 'none'}")
        value = np.asarray(given[spec.name])
        if str(value.dtype) != spec.dtype or value.shape != tuple(spec.shape):
            want = f"{spec.dtype}{list(spec.shape)}"
            raise UsageError(f"input '{spec.name}' is {value.dtype}{list(value.shape)}, the network wants {want}")
        feed[spec.name] = value
    return feed


def load_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz by name."""
    try:
        archive = np.load(path)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise LoadError(path, "holds a single array; save an .npz with one array per input")
        with archive:
            return {k: archive[k] for k in archive.files}
    except OSError as error:
        raise LoadError(path, error.strerror or "cannot be read") from None
    except (ValueError, zipfile.BadZipFile, EOFError):
        raise LoadError(path, "is no .npz of plain arrays (numpy.savez writes one)") from None


def random_inputs(project: Project, seed: int = 0) -> dict[str, np.ndarray]:
    """One input a tensor: uniform over an integer type, standard normal for floats."""
    rng = np.random.default_rng(seed)
    feed = {}
    for spec in project.interface.inputs:
        dtype = np.dtype(spec.dtype)
        if dtype.kind in "iu":
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            feed[spec.name] = rng.integers(low, high, spec.shape, dtype=dtype, endpoint=True)
        else:
            feed[spec.name] = rng.standard_normal(spec.shape).astype(dtype)
    return feed


def _difference(want: Mapping[str, np.ndarray], have: Mapping[str, np.ndarray]) -> float:
    """Largest absolute difference over all outputs; infinite where names or sizes differ."""
    pairs = (
        [(want[k], have.get(k)) for k in want]
        if set(want) == set(have)
        else list(zip(want.values(), have.values(), strict=False))
    )
    if len(want) != len(have):
        return float("inf")
    worst = 0.0
    for a, b in pairs:
        if b is None or a.size != b.size:
            return float("inf")
        if a.size:
            gap = np.abs(a.reshape(-1).astype(np.float64) - b.reshape(-1).astype(np.float64)).max()
            worst = max(worst, float("inf") if np.isnan(gap) else float(gap))
    return worst


def _matches(
    want: Mapping[str, np.ndarray], have: Mapping[str, np.ndarray], tolerance: float = 0.0
) -> tuple[bool, float]:
    """Integers are equal or within `tolerance`, floats to within reassociation or a larger `tolerance`."""
    gap = _difference(want, have)
    if all(a.dtype.kind in "iub" for a in want.values()):
        return gap <= tolerance, gap
    scale = max((float(np.abs(a).max()) for a in want.values() if a.size), default=1.0)
    return gap <= max(_FLOAT_TOLERANCE * max(scale, 1.0), tolerance), gap


def _tolerance(expected: Expected) -> float | None:
    """Of a quantized network that was computed in floats: one step, or twice what a few turned roundings make of it."""
    if expected.reach is None:
        return None
    return max(expected.step or 0.0, _REACHES * expected.reach) * (1 + _FLOAT_TOLERANCE)


def run_project(
    folder: Path,
    board: str | None,
    inputs: str | Path | Mapping[str, np.ndarray] | None,
    outputs: str | Path | None,
    check: str | Path | None,
    port: str | None,
    timeout_s: float | None,
    progress: Callable[[str], None],
) -> RunReport:
    """One inference of the project in `folder`; see `tvm_cascade.run`."""
    if is_bundle(folder):
        from tvm_cascade.micro.bundle_run import run_bundle  # which reports as this module does

        return run_bundle(folder, board, inputs, outputs, check, port, timeout_s, progress)
    if check is not None and not Path(check).is_file():
        raise LoadError(check, "no such file to check against")
    metadata, project = _metadata(folder), read_project(folder)
    feed = _read_inputs(project, inputs)
    if port is not None and (board or project.board) == "host":
        raise UsageError(
            f"{folder} is a project for this machine, not for a board behind a port: compile it for a target"
        )
    where = port or board or project.board
    if where != "host":
        find_board(folder, board or project.board)  # its mistakes before minutes of work
    progress(f"{project.name}: running in this process, counting work")
    host = run_host(HostProgram.load(folder / HOST_FOLDER, metadata["host"]), [feed])
    expected = None
    if check is not None:
        progress(f"{project.name}: running the reference kernels on {Path(check).name}")
        specs = project.interface.inputs
        expected = reference_outputs(Path(check), feed, {s.name: (s.scale, s.zero_point) for s in specs})
    if port is not None:
        progress(f"{project.name}: running on the board at {port}")
        made, high, stack, instructions = _over_port(port, board, project, feed, timeout_s)
    elif where == "host":
        made, high, stack, instructions = dict(host.outputs[0]), host.arena_high_water, None, None
    else:
        made, high, stack, instructions = _emulate(folder, project, where, feed, timeout_s, progress)
    match, gap = (None, None) if expected is None else _compared(expected, made, project)
    report = RunReport(
        board=where,
        outputs=made,
        arena_bytes=project.interface.arena_bytes,
        arena_high_water_bytes=high,
        stack_bytes=stack,
        executed_macs=host.executed_macs,
        planned_macs=int(metadata["plan"]["macs"]),
        instructions=instructions,
        equals_host=same_outputs(host.outputs[0], made),
        match=match,
        max_abs_diff=gap,
        output_step=expected.step if expected else None,
        tolerance=_tolerance(expected) if expected else None,
        reference_note=expected.note if expected else "",
    )
    if outputs is not None:
        save_arrays(Path(outputs), made)
    return report


def _compared(expected: Expected, made: Mapping[str, np.ndarray], project: Project) -> tuple[bool, float | None]:
    """Whether outputs match, and by how much they differ; stored integers are dequantized where the model's are floats."""
    floats = {name for name, value in expected.outputs.items() if value.dtype.kind == "f"}
    scales = {s.name: (s.scale, s.zero_point) for s in project.interface.outputs}
    have = {n: real(a, *scales[n]) if n in floats and n in scales else a for n, a in made.items()}
    return _matches(expected.outputs, have, _tolerance(expected) or 0.0)


def same_outputs(want: Mapping[str, np.ndarray], have: Mapping[str, np.ndarray]) -> bool:
    """Whether outputs are equal: integers exactly, floats to within reassociation."""
    return _matches(want, have)[0]


def _emulate(
    folder: Path,
    project: Project,
    where: str,
    feed: Mapping[str, np.ndarray],
    timeout_s: float | None,
    progress,
):
    board = find_board(folder, where)
    elf = build_project(project, board, unless_current=progress).elf
    progress(f"{project.name}: emulating {board.name}")
    arrays = [feed[s.name] for s in project.interface.inputs]
    return _named(project, emulator.run(elf, board, project.interface, [arrays], timeout_s or EMULATOR_S))


def _over_port(
    port: str, board_name: str | None, project: Project, feed: Mapping[str, np.ndarray], timeout_s: float | None
):
    board = find_board(project.folder, board_name or project.board)
    require_uart(board)
    elf = project.folder / "build" / f"{board.name}-serial" / f"{project.name}.elf"
    arrays = [feed[s.name] for s in project.interface.inputs]
    baud = board.uart.baud if board.uart else 0
    result = run_serial(
        port, project.interface, [arrays], baud, timeout_s or PORT_S, elf=elf, prefix=board.family.prefix
    )
    return _named(project, result)


def _named(project: Project, result: emulator.RunResult) -> tuple[dict[str, np.ndarray], int, int, int | None]:
    made = {s.name: a for s, a in zip(project.interface.outputs, result.outputs[0], strict=True)}
    return made, result.arena_high_water_bytes, result.stack_bytes, result.instructions


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz whole or not at all."""
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
