"""Options that several commands share, and checks of what users type: a wrong value is refused before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tvm_cascade.cores import CORES
from tvm_cascade.errors import UsageError
from tvm_cascade.sizes import parse_input_shape, parse_size

TARGETS = ", ".join(CORES)


def parse_cap(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    return None if value == "min" else parse_bytes(context, option, value)


def parse_bytes(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_size(value)
    except UsageError as error:
        raise click.BadParameter(str(error)) from None


def parse_shapes(
    _context: click.Context, _option: click.Parameter, values: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    try:
        return dict(parse_input_shape(v) for v in values)
    except UsageError as error:
        raise click.BadParameter(str(error)) from None


def require_tvm_target(_context: click.Context, _option: click.Parameter, value: str) -> str:
    if value.split()[0:1] not in (["cuda"], ["llvm"]):
        raise click.BadParameter(f"'{value}' is neither cuda nor llvm (with or without options of TVM's behind)")
    return value


def require_new_file(_context: click.Context, _option: click.Parameter, value: Path | None) -> Path | None:
    """A file that can be written, as far as can be told before minutes of work."""
    if value is not None and value.is_dir():
        raise click.BadParameter(f"{value} is a folder; name a file")
    if value is not None and not value.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {value.absolute().parent}")
    return value


def require_picture(context: click.Context, option: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and value.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise click.BadParameter(f"{value}: pictures are .png, .svg or .pdf")
    return require_new_file(context, option, value)


def require_factor(_context: click.Context, _option: click.Parameter, value: float) -> float:
    if not value < float("inf"):  # written so that nan is refused too
        raise click.BadParameter(f"{value} is no factor")
    return value


def require_seconds(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not value < float("inf"):  # written so that nan is refused too
        raise click.BadParameter(f"{value} is no number of seconds")
    return value


INPUT_SHAPE = click.option(
    "--input-shape",
    "input_shapes",
    multiple=True,
    metavar="NAME=1,3,224,224",
    callback=parse_shapes,
    help="Fix the sizes of an input that the file leaves open.",
)
_PLANNING: tuple[Callable[[Any], Any], ...] = (
    click.option("--sram", metavar="SIZE|min", callback=parse_cap, help="Cap on the arena; the cheapest plan within it. "
                 "[default: min, the smallest arena at no extra multiply-accumulates, within --max-time]"),
    click.option("--max-macs", type=click.FloatRange(min=1.0), metavar="F", default=1.0, show_default=True,
                 help="Allow recomputation up to F times the network's multiply-accumulates: stripes, channels in groups."),
    click.option("--max-time", type=click.FloatRange(min=1.0), metavar="F", default=1.2, show_default=True,
                 help="Without a cap: instructions that smaller steps may be estimated to cost, as a factor of whole rows."),
    click.option("--stream-input", is_flag=True, help="Ask for the input row by row: it never lies in RAM whole."),
    click.option("--layerwise", is_flag=True, help="Plan the plain network, one operator after the other."),
    click.option("--no-overlap", is_flag=True, help="Never write an output into the space of a dying input."),
    click.option("--granularity", type=click.Choice(["row", "pixel", "auto"]), default="auto", show_default=True,
                 help="What rolling buffers count: whole rows (fast), or pixels (small)."),
    INPUT_SHAPE,
    click.option("--stored-io", is_flag=True, help="Take inputs and give outputs in the integers that a quantized network "
                 "stores, where its file has floats: a quarter of their bytes. The header gives scale and zero point."),
    click.option("--rewrite/--no-rewrite", default=None, help="Take an equivalent network (substitutions for memory) where "
                 "its arena is smaller. [default: quantized networks, bit for bit; --rewrite: floats too]"),
)  # fmt: skip
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on standard output, nothing else there."
)
REPORT = click.option(
    "--report",
    type=click.Path(path_type=Path),
    help="Write a self-contained HTML report to this .html file, or it, its pictures and data into this folder.",
)
MODEL = click.argument("model", type=click.Path(path_type=Path))
DATABASE = click.option(
    "--database",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Counts of kernels: read, and written by `compile --tune`. [default: only those of the package]",
)
MEASUREMENTS = click.option(
    "--database", type=click.Path(path_type=Path), help="Keep measurements here, and use those that are."
)

TRIALS = click.option(
    "--trials",
    type=click.IntRange(min=0),
    default=32,
    show_default=True,
    metavar="N",
    help="Candidates that MetaSchedule measures for a kernel without records.",
)


def refuse_idle_trials(metaschedule: Path | None) -> None:
    """`--trials` says nothing without a folder for records."""
    given = click.get_current_context().get_parameter_source("trials")
    if metaschedule is None and given is ParameterSource.COMMANDLINE:
        raise UsageError("--trials is of --metaschedule DIR: give that too")


def planning(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every planning option."""
    for option in reversed(_PLANNING):
        command = option(command)
    return command


def planning_values(values: dict[str, Any]) -> dict[str, Any]:
    """The planning options among a command's values, under the names that `tvm_cascade.plan` gives them."""
    names = (
        "sram", "max_macs", "max_time", "stream_input", "layerwise", "granularity", "input_shapes", "stored_io",
        "rewrite",
    )  # fmt: skip
    return {n: values.pop(n) for n in names} | {"overlap": not values.pop("no_overlap")}
