"""The command line. Results go to standard output, progress and messages to standard error.

Exit status: 0 done; 1 infeasible or mismatch; 2 bad usage or unreadable input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from textwrap import fill
from typing import Any, cast

import click

from tvm_cascade.errors import CascadeError
from tvm_cascade.messages import printable_lines
from tvm_cascade.options import (
    DATABASE,
    INPUT_SHAPE,
    JSON,
    MEASUREMENTS,
    MODEL,
    REPORT,
    TARGETS,
    TRIALS,
    parse_bytes,
    planning,
    planning_values,
    refuse_idle_trials,
    require_factor,
    require_new_file,
    require_picture,
    require_seconds,
    require_tvm_target,
)


def _say(text: str) -> None:
    click.echo(printable_lines(text), err=True)


def _print(as_json: bool, data: Mapping[str, object], text: str) -> None:
    click.echo(json.dumps(data, indent=2) if as_json else printable_lines(text))


class _Terminated(BaseException):
    """SIGTERM, as an exception: what is unfinished is removed, the emulator ended."""


_stopping = threading.Event()  # TVM makes errors of its own of what is raised while it calls back


def _terminate(_signal: int, _frame: object) -> None:
    _stopping.set()
    raise _Terminated


def _stoppable(command: Callable[[], None]) -> None:
    try:
        command()
    except BaseException:
        if not _stopping.is_set():
            raise
    if _stopping.is_set():
        raise _Terminated


def _guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Turn the project's errors into one line on standard error and an exit status."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, _terminate)
            _stoppable(lambda: command(*args, **kwargs))
        except CascadeError as error:
            if os.environ.get("TVM_CASCADE_DEBUG"):
                raise
            _say(f"tvm-cascade: {error}")
            sys.exit(error.exit_status)
        except _Terminated:
            _say("tvm-cascade: terminated")
            sys.exit(143)
        except KeyboardInterrupt:
            _say("tvm-cascade: interrupted")
            sys.exit(130)
        except ModuleNotFoundError as error:
            if os.environ.get("TVM_CASCADE_DEBUG"):
                raise
            package = (error.name or str(error)).split(".")[0]
            _say(
                f"tvm-cascade: the Python package {package} is not installed; `tvm-cascade doctor` says what to install"
            )
            sys.exit(2)
        except (OSError, MemoryError, RecursionError) as error:
            if os.environ.get("TVM_CASCADE_DEBUG"):
                raise
            named = isinstance(error, OSError) and error.filename is not None and error.strerror is not None
            text = f"{error.filename}: {error.strerror}" if named else str(error)  # type: ignore[union-attr]
            _say(f"tvm-cascade: {text or type(error).__name__}")
            sys.exit(2)
        except Exception as error:
            if os.environ.get("TVM_CASCADE_DEBUG"):
                raise
            lines = str(error).strip().splitlines() or [""]
            _say(
                f"tvm-cascade: internal error, {type(error).__name__}: {lines[-1][:300]} (TVM_CASCADE_DEBUG=1 shows where)"
            )
            sys.exit(1)

    return run


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="tvm-cascade")
def main() -> None:
    """Networks that fit their board, programs that run faster: memory and latency scheduling on Apache TVM.

    \b
    tvm-cascade plan model.tflite                                     what would it need?
    tvm-cascade compile model.tflite --target cortex-m4 -o firmware   write a board project
    tvm-cascade run firmware --check model.tflite                     run it in the emulator
    tvm-cascade doctor                                                what is missing on this machine?
    """


@main.command()
@MODEL
@click.option("--target", default="cortex-m4", show_default=True, metavar="T", help=f"One of {TARGETS}.")
@DATABASE
@planning
@REPORT
@click.option("--verbose", "-v", is_flag=True, help="Say why operators are left out of cascades.")
@JSON
@_guarded
def plan(
    model: Path, target: str, database: Path | None, report: Path | None, verbose: bool, as_json: bool, **values: Any
) -> None:
    """Show how little memory MODEL (.tflite, .onnx, .pt2) needs, and where the bytes are.

    Nothing is written unless --report asks for it. All memory is counted: input, output, intermediates, rolling
    buffers, row counters and scratch.
    """
    from tvm_cascade import api

    result = api.plan(model, target=target, database=database, progress=_say, **planning_values(values))
    if report is not None:
        result.write_report(report)
        _say(f"report in {report}")
    _print(as_json, result.to_dict(), result.to_text(verbose=verbose))


@main.command()
@MODEL
@click.option("--target", required=True, metavar="T", help=f"One of {TARGETS}.")
@click.option("--board", metavar="B", help="Board by name, or the path of a board's .json. [default: the target's own]")
@click.option(
    "--emit",
    type=click.Choice(["c", "obj"]),
    help="Kernels as C99 or as an LLVM object. [default: the better for the target]",
)
@click.option("--optimise", type=click.Choice(["size", "speed", "balanced"]), default="balanced", show_default=True)
@click.option(
    "--tune", is_flag=True, help="Count variants of kernels in the board's emulator and take the best (minutes)."
)
@DATABASE
@click.option("--metaschedule", metavar="DIR", type=click.Path(path_type=Path), help="With --target host: let MetaSchedule "
              "tune row kernels on this machine; records are kept in this folder and used again.")  # fmt: skip
@TRIALS
@click.option(
    "--name", metavar="NAME", help="Of the network, in files and functions. [default: that of the model's file]"
)
@click.option(
    "--hook", is_flag=True, help="Call a function of yours after every step: watchdogs, progress, cancelling."
)
@click.option("--ram-weights", metavar="SIZE", callback=parse_bytes, help="Read up to SIZE of weights, those that are read most, "
              "from RAM beside the arena, for cores that wait for their flash.")  # fmt: skip
@planning
@REPORT
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the project."
)
@JSON
@_guarded
def compile(
    model: Path,
    target: str,
    board: str | None,
    emit: str | None,
    optimise: str,
    tune: bool,
    database: Path | None,
    metaschedule: Path | None,
    trials: int,
    name: str | None,
    hook: bool,
    ram_weights: int | None,
    report: Path | None,
    output: Path,
    as_json: bool,
    **values: Any,
) -> None:
    """Write a board project for MODEL: sources, weights for flash, linker script, main.c, and the linked image.

    If the network cannot fit, nothing is written and the exit status is 1.
    """
    from tvm_cascade import api

    refuse_idle_trials(metaschedule)
    result = api.compile(
        model,
        target=target,
        board=board,
        emit=emit,
        optimise=optimise,
        tune=tune,
        database=database,
        metaschedule=metaschedule,
        trials=trials,
        name=name,
        hook=hook,
        ram_weights=ram_weights or 0,
        report=report,
        output=output,
        progress=_say,
        **planning_values(values),
    )
    _print(as_json, result.to_dict(), result.to_text())


@main.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--board", metavar="B", help="Board to emulate, or 'host'. [default: the board it was compiled for]")
@click.option(
    "--inputs", type=click.Path(path_type=Path), help="An .npz with one array per input. [default: seeded random]"
)
@click.option(
    "--outputs", type=click.Path(path_type=Path), callback=require_new_file, help="Write the outputs to this .npz."
)
@click.option(
    "--check", type=click.Path(path_type=Path), metavar="MODEL", help="Compare with the reference kernels on this file."
)
@click.option("--port", metavar="DEVICE", help="Run on a real board, over a serial port (after `flash`).")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    callback=require_seconds,
    metavar="SECONDS",
    help="For the emulation [600], or for one answer of the board at --port, an inference included [60].",
)
@JSON
@_guarded
def run(
    directory: Path,
    board: str | None,
    inputs: Path | None,
    outputs: Path | None,
    check: Path | None,
    port: str | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Run the project in DIR on its emulated board, or in this process, and measure what it really takes."""
    from tvm_cascade import api

    result = api.run(
        directory,
        board=board,
        inputs=inputs,
        outputs=outputs,
        check=check,
        port=port,
        timeout=timeout,
        progress=_say,
    )
    _print(as_json, result.to_dict(), result.to_text())
    if not result.ok:
        sys.exit(1)


@main.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--as", "kind", type=click.Choice(["zephyr", "arduino"]), required=True, help="Kind of package.")
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="A new folder.")
@JSON
@_guarded
def export(directory: Path, kind: str, output: Path, as_json: bool) -> None:
    """Write the network of the project in DIR, or the networks of a bundle, as a Zephyr module or an Arduino library."""
    from tvm_cascade import api

    files = api.export(directory, kind=kind, output=output)
    data = {"kind": kind, "output": str(output), "files": list(files)}
    _print(as_json, data, f"{output}: {len(files)} files for {kind}")


@main.command()
@click.argument("directories", metavar="DIR DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--board", metavar="B", help="Board by name or .json. [default: that of the first network]")
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="A new folder.")
@JSON
@_guarded
def bundle(directories: tuple[Path, ...], board: str | None, output: Path, as_json: bool) -> None:
    """Write one image of several compiled networks that share one arena: the largest one's, not the sum."""
    from tvm_cascade import api

    result = api.bundle(directories, output=output, board=board)
    _print(as_json, result.to_dict(), result.to_text())


@main.command()
@click.option("--model", type=click.Path(path_type=Path), help="Also name every operator of this file that is missing.")
@JSON
@_guarded
def doctor(model: Path | None, as_json: bool) -> None:
    """Say what is installed, what is missing, and how to get it."""
    from tvm_cascade.micro.doctor import diagnose

    result = diagnose(model)
    _print(as_json, result.to_dict(), result.to_text())
    if not result.ok:
        sys.exit(1)


@main.command()
@click.argument("buffers", metavar="BUFFERS.csv", type=click.Path(path_type=Path))
@click.option(
    "--capacity",
    metavar="N",
    callback=parse_bytes,
    help="Stop at the first layout within N bytes; exit 1 if there is none.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    callback=require_new_file,
    help="Write id,lower,upper,size,offset here.",
)
@JSON
@_guarded
def allocate(buffers: Path, capacity: int | None, output: Path | None, as_json: bool) -> None:
    """Give buffers with lifetimes offsets in the smallest arena (columns id,lower,upper,size; half-open lifetimes)."""
    from tvm_cascade.memory.minimalloc_csv import run as allocate_csv

    data = allocate_csv(buffers, capacity, output)
    text = f"peak {data['peak_bytes']} bytes, bound {data['bound_bytes']}, optimal {data['optimal']}, {data['seconds']:.2f} s"
    _print(as_json, data, text)


@main.command()
@MODEL
@click.option(
    "--rewrite",
    is_flag=True,
    help="Let convolutions read the parts of concats where they lie, if that lowers the peak.",
)
@click.option(
    "--on-chip",
    metavar="SIZE",
    callback=parse_bytes,
    help="Also count the bytes moved for SIZE bytes of on-chip memory.",
)
@INPUT_SHAPE
@JSON
@_guarded
def order(
    model: Path, rewrite: bool, on_chip: int | None, input_shapes: dict[str, tuple[int, ...]], as_json: bool
) -> None:
    """Find the order of MODEL's operators with the smallest peak memory, whole tensors, proven optimal where it ends."""
    from tvm_cascade import api

    data = api.order(model, rewrite=rewrite, on_chip=on_chip, input_shapes=input_shapes, progress=_say)
    proof = "proven optimal" if data["optimal"] else f"best known; bound {data['bound_bytes']}"
    lines = [
        f"file order      {data['file_order_peak_bytes']} bytes",
        f"best order      {data['peak_bytes']} bytes, {proof}",
        f"search          {data['nodes']} operators in {data['partitions']} partitions, {data['seconds']} s",
    ]
    if on_chip is not None:
        lines.append(f"traffic         {data['traffic_bytes']} bytes with {on_chip} on chip")
    lines.append(
        fill(
            "operators       " + " ".join(str(o) for o in cast("list[int]", data["order"])),
            110,
            subsequent_indent=" " * 16,
        )
    )
    _print(as_json, data, "\n".join(lines))


@main.command()
@MODEL
@click.option("--target", required=True, metavar="T", callback=require_tvm_target, help="cuda or llvm.")
@click.option("--device", metavar="D", help="Device description. [default: the target's generic one]")
@click.option("--batch", type=click.IntRange(min=1, max=1 << 16), metavar="N", help="Batch size.")
@click.option(
    "--unit", type=click.Choice(["op", "fused"]), default="fused", show_default=True, help="What is scheduled as one."
)
@click.option(
    "--variant",
    type=click.Choice(["sequential", "greedy", "merge", "parallel", "both"]),
    default="both",
    show_default=True,
)
@click.option(
    "--r",
    "r",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Operators in a group, at most; 0: any number.",
)
@click.option(
    "--s",
    "s",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    help="Groups in a stage, at most; 0: any number.",
)
@click.option("--cost", type=click.Choice(["analytic", "measured", "learned"]), default="analytic", show_default=True)
@MEASUREMENTS
@click.option("--metaschedule", metavar="DIR", type=click.Path(path_type=Path), help="With --cost measured or learned: kernels "
              "that MetaSchedule tunes on this machine; records are kept in this folder and used again.")  # fmt: skip
@TRIALS
@click.option("--load", type=click.Path(path_type=Path), help="Price a saved schedule instead of searching.")
@click.option("--output", "-o", type=click.Path(path_type=Path), callback=require_new_file, help="Save the schedule.")
@click.option(
    "--picture", type=click.Path(path_type=Path), callback=require_picture, help="Draw the timeline (.png, .svg)."
)
@INPUT_SHAPE
@JSON
@_guarded
def stages(model: Path, input_shapes: dict[str, tuple[int, ...]], as_json: bool, **values: Any) -> None:
    """Find which operators of MODEL run at the same time, or merged into one, for the lowest latency (IOS)."""
    from tvm_cascade import api

    refuse_idle_trials(values["metaschedule"])
    data, text = api.stages(model, input_shapes=input_shapes, progress=_say, **values)
    _print(as_json, data, text)


@main.command()
@MODEL
@click.option("--target", required=True, metavar="T", callback=require_tvm_target, help="cuda or llvm.")
@click.option(
    "--cost",
    metavar="C",
    default="latency",
    show_default=True,
    help="latency, ios (that of the schedule of stages), measured or learned (on this machine's CPU), flops, traffic, "
    "launches, peak, a weighted sum, or with a limit: 'latency,peak<=256KiB'.",
)
@MEASUREMENTS
@click.option("--device", metavar="D", help="Device description. [default: the target's generic one]")
@click.option(
    "--alpha",
    type=click.FloatRange(min=1.0),
    default=1.05,
    show_default=True,
    callback=require_factor,
    help="How much worse a graph may get on the way.",
)
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    default=2000,
    show_default=True,
    metavar="N",
    help="Graphs to price, at most, per part.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    callback=require_new_file,
    help="Save the graph: .onnx, else a Relax module.",
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    callback=require_picture,
    help="Draw the graph before and after (.png, .svg).",
)
@INPUT_SHAPE
@JSON
@_guarded
def optimize(model: Path, input_shapes: dict[str, tuple[int, ...]], as_json: bool, **values: Any) -> None:
    """Find an equivalent graph for MODEL that costs less, by relaxed substitutions (MetaFlow)."""
    from tvm_cascade import api

    data, text = api.optimize(model, input_shapes=input_shapes, progress=_say, **values)
    _print(as_json, data, text)


@main.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--board", metavar="B", help="Board by name or .json. [default: the board it was compiled for]")
@click.option(
    "--image",
    type=click.Choice(["serial", "application"]),
    default="serial",
    show_default=True,
    help="serial: answers `run --port`; application: main.c as you have written it.",
)
@click.option("--tool", metavar="T", help="pyocd, openocd or st-flash. [default: the first that is installed]")
@click.option("--probe", metavar="SERIAL", help="Serial number of the debug probe, where several are plugged in.")
@JSON
@_guarded
def flash(directory: Path, board: str | None, image: str, tool: str | None, probe: str | None, as_json: bool) -> None:
    """Write the project in DIR to the board that is plugged in."""
    from tvm_cascade.micro.flash import flash_folder

    done = flash_folder(directory, board, image, tool, probe)
    _print(as_json, {"elf": str(done.elf), "tool": done.tool}, f"{done.elf} written with {done.tool}")


if __name__ == "__main__":
    main()
