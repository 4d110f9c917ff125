"""The commands for boards on the desk, `flash` and `monitor`, and the option `--list`, which shows the plugged-in
boards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tvm_cascade.cli.guard import guarded, show
from tvm_cascade.cli.json_option import prints
from tvm_cascade.cli.options import FOLDER
from tvm_cascade.cli.progress_bar import lifted
from tvm_cascade.cli.teaching import command
from tvm_cascade.messages import printable, printable_lines
from tvm_cascade.schema.projects import Flashed


def _list(context: click.Context, _option: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        _show_ports()
        context.exit()


@guarded
def _show_ports() -> None:
    from tvm_cascade.runs.desk import serial_ports

    ports = serial_ports()
    show(False, {}, "\n".join(map(str, ports)) or "no serial port over USB: is the board plugged in?")


LIST = click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list,
                    help="List the boards that are plugged in, and do nothing else.")  # fmt: skip


@command()
@FOLDER
@click.option("--board", metavar="B", help="Board by name or .json. [default: the board it was compiled for]")
@click.option("--image", "kind", type=click.Choice(["serial", "application"]), default="serial", show_default=True,
              help="serial: answers `run --port`; application: main.c as you have written it.")  # fmt: skip
@click.option(
    "--tool",
    metavar="T",
    help="Program that writes it: pyocd, openocd, st-flash or esptool; uf2 copies a file to the board's drive. "
    "[default: uf2 if the drive is mounted, else the first that knows the board and is installed]",
)
@click.option("--probe", metavar="SERIAL", help="Serial number of the debug probe, where several are plugged in.")
@LIST
@prints(Flashed)
@guarded
def flash(directory: Path, as_json: bool, **options: Any) -> None:
    """Write the project in DIR to the board that is plugged in."""
    from tvm_cascade.runs.flash import flash_folder

    done = flash_folder(directory, **options)
    show(as_json, {"elf": str(done.elf), "tool": done.tool}, f"{done.elf} written with {done.tool}")


@command()
@click.argument("device", required=False, default="auto")
@click.option(
    "--baud",
    type=click.IntRange(1),
    default=115200,
    show_default=True,
    metavar="N",
    help="Speed of the port in bits a second.",
)
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), metavar="S", help="End after S seconds. [default: at Ctrl-C]"
)
@LIST
@guarded
def monitor(device: str, baud: int, seconds: float | None) -> None:
    """Print the output of a board on serial port DEVICE; without DEVICE, on the port of the plugged-in board.

    A board with a project's serial image says nothing by itself, except after a fault or at the end.
    """
    from tvm_cascade.runs.desk import resolve_port
    from tvm_cascade.runs.serial_link import SerialLink

    with SerialLink(resolve_port(device), baud) as link, lifted():
        click.echo(printable(f"{link.port} at {baud} baud"), err=True)
        for text in link.listen(seconds):
            click.echo(printable_lines(text.replace("\r", "").expandtabs(4)), nl=False)
