"""`run`, `export`, `bundle` and `flash`: what is done with compiled projects."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tvm_cascade.cli.guard import guarded, say, show
from tvm_cascade.cli.options import (
    JSON,
    require_new_file,
    require_seconds,
)


@click.command()
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
@guarded
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
        progress=say,
    )
    show(as_json, result.to_dict(), result.to_text())
    if not result.ok:
        sys.exit(1)


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--as", "kind", type=click.Choice(["zephyr", "arduino"]), required=True, help="Kind of package.")
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="A new folder.")
@JSON
@guarded
def export(directory: Path, kind: str, output: Path, as_json: bool) -> None:
    """Write the network of the project in DIR, or the networks of a bundle, as a Zephyr module or an Arduino library."""
    from tvm_cascade import api

    files = api.export(directory, kind=kind, output=output)
    data = {"kind": kind, "output": str(output), "files": list(files)}
    show(as_json, data, f"{output}: {len(files)} files for {kind}")


@click.command()
@click.argument("directories", metavar="DIR DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--board", metavar="B", help="Board by name or .json. [default: that of the first network]")
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="A new folder.")
@JSON
@guarded
def bundle(directories: tuple[Path, ...], board: str | None, output: Path, as_json: bool) -> None:
    """Write one image of several compiled networks that share one arena: the largest one's, not the sum."""
    from tvm_cascade import api

    result = api.bundle(directories, output=output, board=board)
    show(as_json, result.to_dict(), result.to_text())


@click.command()
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
@guarded
def flash(directory: Path, board: str | None, image: str, tool: str | None, probe: str | None, as_json: bool) -> None:
    """Write the project in DIR to the board that is plugged in."""
    from tvm_cascade.micro.flash import flash_folder

    done = flash_folder(directory, board, image, tool, probe)
    show(as_json, {"elf": str(done.elf), "tool": done.tool}, f"{done.elf} written with {done.tool}")
