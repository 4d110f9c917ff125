"""The commands on compiled projects, `run`, `export`, `bundle` and `compare`, and `doctor`, which checks this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from tvm_cascade.cli.boards import LIST
from tvm_cascade.cli.guard import guarded, say, show
from tvm_cascade.cli.json_option import prints
from tvm_cascade.cli.options import FOLDER, NEW_FOLDER, PATH, board, option, require_new_file
from tvm_cascade.cli.teaching import command
from tvm_cascade.emit.packages import KINDS
from tvm_cascade.errors import UsageError
from tvm_cascade.request import RunRequest
from tvm_cascade.schema.benchmark import Benchmark
from tvm_cascade.schema.comparison import Comparison
from tvm_cascade.schema.projects import Bundle, Diagnosis, Export, Run


@command()
@FOLDER
@board(RunRequest, "Board to emulate, or 'host'. [default: the board it was compiled for]")
@click.option("--inputs", type=PATH, help="An .npz with one array per input. [default: random ones, always the same]")
@option(
    RunRequest,
    "frames",
    "An .npz with one array per input, call by call: a sequence, from a clear state.",
    metavar="F.NPZ",
)
@option(RunRequest, "outputs", "Write the outputs to this .npz.", callback=require_new_file)
@option(RunRequest, "check", "Compare with the reference kernels on this file.", metavar="MODEL")
@option(RunRequest, "by_layer", "With --check: compare every tensor of the network and name the first that differs, in a "
        "program that keeps all tensors.")  # fmt: skip
@option(RunRequest, "port", "Run on a real board, over a serial port (after `flash`); without DEVICE the one that is plugged in.",
        metavar="[DEVICE]", is_flag=False, flag_value="auto")  # fmt: skip
@LIST
@option(RunRequest, "timeout", "Limit on the whole emulation, or on one answer of the board at --port, an inference included. "
        "[default: 600; with --port 60]",
        metavar="SECONDS")  # fmt: skip
@prints(Run)
@guarded
def run(directory: Path, as_json: bool, **options: Any) -> None:
    """Run the project in DIR on an emulated board, or in this process, and measure the run.

    A folder of `stages --emit` runs here and is timed, as by `benchmark`, whose JSON is then printed.
    """
    from tvm_cascade import api
    from tvm_cascade.runs.staged import is_staged

    if is_staged(directory):
        taken = ("inputs", "board", "check", "outputs")
        for name in options.keys() - {*taken}:
            if options[name] not in (None, False):
                shown = name.replace("_", "-")
                raise UsageError(
                    f"{directory} is a program of stages: leave --{shown} out; `benchmark --by-layer` times its kernels"
                )
        done = api.benchmark(directory, progress=say, **{name: options[name] for name in taken})
        show(as_json, done.to_dict(), done.to_text())
        sys.exit(0 if done.ok else 1)
    result = api.run(directory, progress=say, **options)
    show(as_json, result.to_dict(), result.to_text())
    if not result.ok:
        sys.exit(1)


@command()
@FOLDER
@click.option("--inputs", type=PATH, help="An .npz with one array per input. [default: random ones, always the same]")
@click.option(
    "--repeat",
    type=click.IntRange(1, 1_000_000),
    default=20,
    show_default=True,
    metavar="N",
    help="Runs that are timed.",
)
@click.option(
    "--board", metavar="B", help="Emulated board of a compiled project. [default: the board it was compiled for]"
)
@click.option(
    "--check", type=PATH, metavar="MODEL", help="Compare with the reference on this file; exit 1 where it differs."
)
@click.option("--outputs", type=PATH, callback=require_new_file, help="Write the outputs to this .npz.")
@click.option(
    "--csv", type=PATH, callback=require_new_file, help="Write the value of every run, or layer, to this file."
)
@click.option(
    "--port",
    metavar="[DEVICE]",
    is_flag=False,
    flag_value="auto",
    help="Time a real board, over a serial port (after `flash`); without DEVICE the one that is plugged in.",
)
@click.option("--by-layer", is_flag=True, help="Measure every layer, too; of a folder of stages every kernel.")
@click.option(
    "--trace",
    type=PATH,
    callback=require_new_file,
    help="Write the layers as a trace for chrome://tracing or Perfetto.",
)
@click.option("--against", type=PATH, metavar="B.json", help="Compare with what --json printed of another program.")
@prints(Benchmark)
@guarded
def benchmark(directory: Path, as_json: bool, **options: Any) -> None:
    """Measure runs of an emitted program: milliseconds here or on a real board, instructions on an emulated board.

    DIR is a folder of `stages --emit` (run by TVM), of `compile --target host` (its C is built by gcc -O2), or of `compile`
    for an emulated board, or with --port for a real one.

    """
    from tvm_cascade import api

    result = api.benchmark(directory, progress=say, **options)
    show(as_json, result.to_dict(), result.to_text())
    if not result.ok:
        sys.exit(1)


@command()
@FOLDER
@click.option("--as", "kind", type=click.Choice(KINDS), required=True, help="The build system that the package is for.")
@click.option(
    "--front-end",
    type=PATH,
    help="A folder that `front-end` wrote: its C goes into the package, and the example takes sound. Not for rust.",
)
@click.option(
    "--labels", type=PATH, help="Names of the classes, one a line: the example prints the one with the largest score."
)
@click.option("--self-test/--no-self-test", default=True, show_default=True,
              help="Let the example run one input on the device and compare the outputs. Not for rust.")  # fmt: skip
@click.option(
    "--inputs", type=PATH, help="An .npz with the input of the self-test. [default: a random one, 4 KiB at most]"
)
@click.option(
    "--check", type=PATH, metavar="MODEL", help="Compare the outputs of the self-test with the reference kernels first."
)
@NEW_FOLDER
@prints(Export)
@guarded
def export(directory: Path, kind: str, output: Path, as_json: bool, **options: Any) -> None:
    """Write the network of the project in DIR, or the networks of a bundle, as a package for another build system.

    An Arduino or PlatformIO library, a CMSIS-Pack, an ESP-IDF component, Rust crates without std, a folder for
    STM32CubeIDE, or a Zephyr module; each with an example that tests the network on the device, calls it and prints
    status, time and class.
    """
    from tvm_cascade import api

    files = api.export(directory, kind=kind, output=output, progress=say, **options)
    data = {"kind": kind, "output": str(output), "files": list(files)}
    show(as_json, data, f"{output}: {len(files)} files for {kind}; {output / 'README.md'} says how to use them")


@command()
@click.argument("directories", metavar="DIR DIR...", nargs=-1, required=True, type=PATH)
@click.option("--board", metavar="B", help="Board by name or .json. [default: that of the first network]")
@click.option(
    "--keep-states",
    is_flag=True,
    help="Keep the states of networks beside the arena, where they survive the runs of the others.",
)
@NEW_FOLDER
@prints(Bundle)
@guarded
def bundle(directories: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Write an image of several compiled networks that share a single arena: as large as the largest, not the sum."""
    from tvm_cascade import api

    result = api.bundle(directories, **options)
    show(as_json, result.to_dict(), result.to_text())


@command()
@click.option(
    "--model", type=PATH, help="Also name every operator of this model that cannot be compiled, or that stays float."
)
@click.option(
    "--measure",
    is_flag=True,
    help="Measure this machine's CPU, in about 20 seconds, and keep its description: stages, optimize and the pipeline "
    "price by it from then on.",
)
@prints(Diagnosis)
@guarded
def doctor(model: Path | None, measure: bool, as_json: bool) -> None:
    """Say what is installed, what is missing, and how to get it."""
    from tvm_cascade.checking.doctor import diagnose

    if measure:
        from tvm_cascade.measured.measure_processor import measure as measure_cpu

        measure_cpu(say)
    result = diagnose(model)
    show(as_json, result.to_dict(), result.to_text())
    if not result.ok:
        sys.exit(1)


@command()
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@prints(Comparison)
@guarded
def compare(a: Path, b: Path, as_json: bool) -> None:
    """Say how two plans, projects or runs differ.

    A and B are files printed by `plan --json`, `compile --json` or `run --json`, or folders written by `compile`.
    """
    from tvm_cascade.comparison import compare as compared
    from tvm_cascade.comparison import comparison_text

    found = compared(a, b)
    show(as_json, found, comparison_text(found))
