"""Time emitted programs: folders of `stages --emit` by TVM, projects for this machine by gcc, others in an emulator or on
a board behind a serial port.
"""

from __future__ import annotations

import csv
import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from tvm_cascade.emit.board_files import find_board
from tvm_cascade.emit.image import Image, read_image
from tvm_cascade.emit.network import Network
from tvm_cascade.emit.template import fill_template, template
from tvm_cascade.emit.toolchain import find_tool, run_tool
from tvm_cascade.errors import LoadError, ToolError, UsageError
from tvm_cascade.plain_files import readable
from tvm_cascade.publish import whole_file
from tvm_cascade.request import RunRequest
from tvm_cascade.runs import staged
from tvm_cascade.runs.arrays import read_inputs
from tvm_cascade.runs.layer_times import LayerTime, layer_lines, time_layers
from tvm_cascade.runs.run_image import PORT_S, run_image, serial_options
from tvm_cascade.runs.serial_run import time_serial
from tvm_cascade.schema.benchmark import Benchmark
from tvm_cascade.schema.filled import filled

Progress = Callable[[str], None]
_WARM = 3  # runs before those that are timed
_LIMIT_S = 600.0
_FLAGS = ("-O2", "-std=gnu99", "-fno-strict-aliasing", "-DNDEBUG")


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """What runs of an emitted program took, and how its outputs compare with the reference."""

    folder: str
    where: str  # a board, "host", a board at a port, or TVM's target
    unit: str  # "ms" or "instructions"
    values: tuple[float, ...]  # of every run
    match: bool | None = None  # None without a reference
    verdict: str = ""
    against: Mapping[str, object] | None = None  # `schema.benchmark.Against`
    layers: tuple[LayerTime, ...] = ()  # with `by_layer`, in execution order
    line_ms: float | None = None  # with a port: milliseconds of a request without an inference, which `values` lack
    layers_before: Mapping[str, float] = field(default_factory=dict)  # with `against`: its layers' values, by name

    @property
    def runs(self) -> int:
        """Count the runs."""
        return len(self.values)

    @property
    def median(self) -> float:
        """Return the median."""
        return float(np.percentile(self.values, 50))

    @property
    def low(self) -> float:
        """Return the first quartile."""
        return float(np.percentile(self.values, 25))

    @property
    def high(self) -> float:
        """Return the third quartile."""
        return float(np.percentile(self.values, 75))

    @property
    def ok(self) -> bool:
        """Return True unless the outputs differ from the reference's."""
        return self.match is not False

    def to_dict(self) -> Benchmark:
        """Return the JSON object of `tvm-cascade benchmark --json`."""
        rare = {"layers": [asdict(one) for one in self.layers]} if self.layers else {}
        return filled(Benchmark, self, **rare, **({} if self.line_ms is None else {"line_ms": self.line_ms}))

    def to_text(self) -> str:
        """Format the result: the median first."""
        if self.unit == "instructions":
            lines = [f"{self.median:.0f} instructions on {self.where}, the same in every run"]
        else:
            lines = [
                f"{self.median:.4g} ms on {self.where}: median of {self.runs} runs, "
                f"quartiles {self.low:.4g} and {self.high:.4g}"
            ]
        if self.against is not None:
            other = self.against
            lines.append(f"{other['ratio']:.3f} times the {other['median']:.6g} {self.unit} of {other['folder']}")
        if self.line_ms is not None:
            lines.append(
                f"timed by this machine: a request takes {self.line_ms:.3g} ms without an inference, taken off"
            )
        lines += [f"reference       {self.verdict}"] if self.verdict else []
        return "\n".join([*lines, *layer_lines(self.layers, self.unit, self.layers_before)])


def benchmark(
    folder: Path,
    asked: RunRequest,
    given: str | Path | Mapping[str, np.ndarray] | None,
    repeat: int,
    against: Path | None,
    progress: Progress,
    by_layer: bool = False,
) -> BenchmarkResult:
    """Run an emitted program `repeat` times; see `tvm_cascade.benchmark`."""
    other = None if against is None else _read(against)
    if staged.is_staged(folder):
        if asked.board is not None or asked.port is not None:
            raise UsageError(f"{folder} is a program of stages, which runs here: leave --board and --port out")
        done = staged.run_staged(folder, given, asked.check, asked.outputs, repeat, progress, by_layer)
        result = BenchmarkResult(
            str(folder), done.where, "ms", done.milliseconds, done.match, done.verdict, layers=done.layers
        )
    else:
        if by_layer and asked.port is not None:
            raise UsageError(
                "--by-layer needs a program of its own, which is not on the board at --port: count layers in the emulator"
            )
        result = _of_project(folder, asked, given, repeat, progress)
        if by_layer:
            result = replace(result, layers=_layers(folder, result.where, given, progress))
    if other is None:
        return result
    before = {layer["name"]: layer["value"] for layer in other.get("layers", ())}
    return replace(result, against=_compared(result, other), layers_before=before)


def _layers(
    folder: Path, where: str, given: str | Path | Mapping[str, np.ndarray] | None, progress: Progress
) -> tuple[LayerTime, ...]:
    """Time the layers of a project here, or on the emulated board `where`."""
    image = read_image(folder)
    progress(f"{image.name}: measuring layer by layer")
    board = None if where == "host" else find_board(folder, where)
    return time_layers(image, read_inputs(image, given), board)


def write_csv(result: BenchmarkResult, path: Path) -> None:
    """Write every run's value: columns run, unit, value; with layers one row each: layer, kind, unit, value, share."""
    with whole_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        if result.layers:
            rows.writerow(("layer", "kind", "unit", "value", "share"))
            rows.writerows((x.name, x.kind, result.unit, x.value, x.share) for x in result.layers)
            return
        rows.writerow(("run", "unit", "value"))
        rows.writerows((k, result.unit, value) for k, value in enumerate(result.values))


def _of_project(
    folder: Path,
    asked: RunRequest,
    given: str | Path | Mapping[str, np.ndarray] | None,
    repeat: int,
    progress: Progress,
) -> BenchmarkResult:
    image = read_image(folder)
    if asked.port is not None:
        return _over_port(image, asked, given, repeat, progress)
    report = run_image(folder, asked, given, progress)
    match, verdict = report.match, report.verdict
    if report.board != "host":
        if report.instructions is None:
            raise UsageError(f"board {report.board} counts no instructions: choose another --board")
        return BenchmarkResult(str(folder), report.board, "instructions", (float(report.instructions),), match, verdict)
    if image.several or image.target.name != "host":
        raise UsageError(
            f"{folder} is compiled for {image.target.name}: this machine times projects of --target host alone"
        )
    progress(f"{image.name}: timing {repeat} runs of its C, built by gcc -O2")
    return BenchmarkResult(str(folder), "host", "ms", _timed(image, read_inputs(image, given), repeat), match, verdict)


def _over_port(
    image: Image,
    asked: RunRequest,
    given: str | Path | Mapping[str, np.ndarray] | None,
    repeat: int,
    progress: Progress,
) -> BenchmarkResult:
    """Compare a run on the board at `asked.port` with the reference, then time the board from here."""
    if image.several:
        raise UsageError("--port is for one network here: benchmark each project of the bundle")
    (network,) = image.networks
    _require_whole(network)
    report = run_image(image.folder, asked, given, progress)
    board, port = find_board(image.folder, asked.board or image.board), report.board
    progress(f"{image.name}: timing {repeat} runs on {board.name} at {port}")
    feed = read_inputs(image, given)
    options = serial_options(image, board, asked.timeout or PORT_S)
    arrays = [feed[spec.name] for spec in network.inputs]
    values, line_ms = time_serial(port, network.interface, arrays, repeat, options)
    where = f"{board.name} at {port}"
    return BenchmarkResult(str(image.folder), where, "ms", values, report.match, report.verdict, line_ms=line_ms)


def _require_whole(network: Network) -> None:
    for spec in network.inputs:
        if spec.streamed:
            raise UsageError(f"{network.name} asks for {spec.name} row by row: its time is that of your rows too")


def _timed(image: Image, feed: Mapping[str, np.ndarray], repeat: int) -> tuple[float, ...]:
    """Build the network's C with a loop around it; return the milliseconds of every run."""
    (network,) = image.networks
    gcc = find_tool("gcc", "apt-get install gcc")
    _require_whole(network)
    fill, data = "", b""
    for spec in network.inputs:
        data += np.ascontiguousarray(feed[spec.name]).tobytes()
        place = f"((uint8_t *)(uintptr_t)inputs.{spec.c_name})[i]"
        fill += f"        for (uint32_t i = 0; i < {spec.bytes}u; ++i) {place} = *data++;\n"
    with tempfile.TemporaryDirectory(prefix="tvm-cascade-") as place:
        main, program = Path(place) / "main.c", Path(place) / "bench"
        values = {"name": network.name, "size": str(max(len(data), 1)), "runs": str(repeat + _WARM), "fill": fill}
        text = fill_template(template("benchmark.c.in"), values)
        main.write_text(text, encoding="utf-8")
        parts = [str(image.folder / name) for name in (*network.sources, *network.objects)]
        flags = (*_FLAGS, *network.c_flags, f"-I{image.folder}")
        run_tool((gcc, *flags, str(main), *parts, "-lm", "-o", str(program)))
        done = subprocess.run([str(program)], input=data or b"\0", capture_output=True, timeout=_LIMIT_S, check=False)
    if done.returncode != 0:
        raise ToolError(f"{network.name} ended with status {done.returncode} while it was timed")
    return tuple(int(line) / 1e6 for line in done.stdout.split())[_WARM:]


def _read(path: Path) -> Benchmark:
    """Read what `benchmark --json` printed. Raises `LoadError`."""
    try:
        data = json.loads(readable(path).read_text(encoding="utf-8"))
        assert {"folder", "where", "unit", "median"} <= data.keys() and float(data["median"]) > 0
    except OSError as error:
        raise LoadError(path, error.strerror or "cannot be read") from None
    except (ValueError, AttributeError, AssertionError, TypeError):
        raise LoadError(path, "is not what `benchmark --json` prints") from None
    return data


def _compared(result: BenchmarkResult, other: Benchmark) -> dict[str, object]:
    if other["unit"] != result.unit:
        raise UsageError(f"--against is in {other['unit']}, this is in {result.unit}: they do not compare")
    ratio = result.median / other["median"]
    return {"folder": other["folder"], "where": other["where"], "median": other["median"], "ratio": ratio}
