"""Options of the commands. Defaults, choices and ranges are defined only in `request`'s records.

Values are parsed here and checked when the record is made, before any work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from math import inf
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tvm_cascade import checks
from tvm_cascade.boards.board import list_boards
from tvm_cascade.boards.machines import target_names
from tvm_cascade.cli import option_file
from tvm_cascade.cores import CORES
from tvm_cascade.errors import UsageError
from tvm_cascade.request import Asked, EmitRequest, KernelRequest, LoadRequest, PlanRequest, TimeRequest, checks_of
from tvm_cascade.sizes import parse_frequency, parse_input_shape, parse_size

Option = Callable[[Any], Any]  # a decorator of a command

TARGETS = ", ".join(CORES)
MACHINES = ", ".join(list_boards())
PATH = click.Path(path_type=Path)


def option(record: type[Asked], name: str, help: str, *flags: str, **more: Any) -> Option:
    """Make a click option for the field `name` of `record`; `flags` replace --NAME, `more` is passed to click
    unchanged.
    """
    check = checks_of(record)[name]
    if isinstance(check, checks.optional):
        check = check.check
    default = next(f.default for f in fields(record) if f.name == name)
    told: dict[str, Any] = {
        "help": help,
        "default": default,
        "show_default": default is not None and default is not False,
    }
    if check is checks.flag:
        told["is_flag"] = True
    elif check in (checks.path, checks.page_or_folder, checks.picture):
        told["type"] = PATH
    elif check is checks.size:
        told |= {"type": str, "callback": parse_bytes, "metavar": "SIZE"}
    elif check is checks.frequency:
        told |= {"type": str, "callback": parse_hertz, "metavar": "HZ"}
    elif isinstance(check, checks.choice):
        told["type"] = click.Choice(check.known)
    elif isinstance(check, checks.several):
        told |= {"type": click.Choice(check.known), "multiple": True, "show_default": False}
    elif check is checks.time_axis:
        told |= {"type": str, "show_default": "time"}  # click would take the default's, which is a number
    elif isinstance(check, checks.number):
        numbers: Any = click.IntRange if check.kind is int else click.FloatRange
        told |= {"type": numbers(check.least, check.most if check.most < inf else None, check.above), "metavar": "N"}
    if more.get("required"):
        del told["default"]  # click does not require an option that has a default, even None
    return click.option(*(flags or [f"--{name.replace('_', '-')}"]), name, **told | more)


def parse_cap(context: click.Context, option: click.Parameter, value: str | None) -> int | str | None:
    return value if value == "min" else parse_bytes(context, option, value)


def parse_bytes(_context: click.Context, _option: click.Parameter, value: str | int | None) -> int | None:
    try:
        return parse_size(value) if isinstance(value, str) else value
    except UsageError as error:
        raise click.BadParameter(str(error)) from None


def parse_hertz(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_frequency(value)
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
    """Check before minutes of work that a file can be written: no folder has this name, and the parent exists."""
    if value is not None and value.is_dir():
        raise click.BadParameter(f"{value} is a folder; name a file")
    if value is not None and not value.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {value.absolute().parent}")
    return value


def require_picture(context: click.Context, option: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and value.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise click.BadParameter(f"{value}: pictures are .png, .svg or .pdf")
    return require_new_file(context, option, value)


INPUT_SHAPE = option(
    LoadRequest, "input_shapes", "Fix the sizes of an input that the file leaves open.", "--input-shape",
    multiple=True, metavar="NAME=1,3,224,224", callback=parse_shapes,
)  # fmt: skip
_UNTIL = option(
    LoadRequest, "until", "End the network at these tensors of the file and leave the operators behind them, such as a "
    "detection decoder, to your program: they are not looked at. A quantized tensor is an output of stored integers, whose "
    "scale and zero point the header gives. Tensors have the names of the file (.pt2: of its nodes).",
    multiple=True, metavar="TENSOR[,TENSOR]",
)  # fmt: skip
_FROM = option(
    LoadRequest, "from_", "Begin the network at these tensors of the file: your program computes them, and they are inputs.",
    "--from", multiple=True, metavar="TENSOR[,TENSOR]",
)  # fmt: skip

_STATE = option(
    LoadRequest, "state", "A state: the input IN takes in every call what the output OUT returned in the one before, zeros "
    "at first. Once for every state.", "--state", multiple=True, metavar="IN=OUT", default=(),
)  # fmt: skip

_STATELESS = option(
    LoadRequest, "stateless", "Recurrent layers (LSTM, RNN, SVDF) of a .tflite file begin every call anew. [default: their "
    "states are kept from call to call, as its interpreter does, until `<name>_reset()`]",
)  # fmt: skip

_INPUT_VALUE = option(
    LoadRequest, "input_value", "An input that has one value in every call, such as a sample rate: it is folded into the "
    "network, with the branches that hang on it, and is no input any more. A number, or a .npy file. Once for every input.",
    multiple=True, metavar="NAME=V", default=(),
)  # fmt: skip

_SHRINK = option(
    LoadRequest, "shrink", "Leave out channels of quantized layers that are constant or that nobody reads. Every output keeps "
    "every bit.", "--shrink/--no-shrink",
)  # fmt: skip


def _completing(names: Callable[[], tuple[str, ...]]) -> Callable[..., list[str]]:
    return lambda _context, _option, begun: [name for name in names() if name.startswith(begun)]


def target(record: type[Asked], default: str = "", **more: Any) -> Option:
    """Make the option --target for cores and machines; `default` describes the default, in brackets."""
    text = (
        f"One of {TARGETS}; or a microcontroller or board, with its core, memories and clock (`targets` lists them): "
    )
    text += f"{MACHINES}; or the path of a board's .json."
    return option(record, "target", text + default, metavar="T", shell_complete=_completing(target_names), **more)


def board(record: type[Asked], text: str) -> Option:
    """Make the option --board, by name or by path."""
    return option(record, "board", text, metavar="B", shell_complete=_completing(list_boards))


TIME_LIMIT = option(PlanRequest, "time_limit", "End searches after S seconds, with the best found so far.", metavar="S")
_PLANNING = (
    option(PlanRequest, "sram", "Cap on the arena, or on all of --memory together: the smallest arena of at most 1.03 times the "
           "instructions of the fastest plan within it. [default: a named board's RAM; else min, the smallest arena without "
           "recomputation, within --max-time]", metavar="SIZE|min",
           callback=parse_cap),
    option(PlanRequest, "ram", "Cap on all RAM of the linked image: arena, stack (the bound of its calls), data and bss. `plan`, "
           "which links nothing, takes 256 bytes of it for what is not the arena."),
    option(PlanRequest, "flash", "Cap on the flash of the linked image: code, weights and tables; kernels are made small where "
           "the usual code exceeds it. `plan`, which links nothing, refuses weights and tables that exceed it alone."),
    option(PlanRequest, "max_macs", "Allow recomputation up to F times the network's multiply-accumulates: stripes, channels "
           "in groups.", metavar="F"),
    option(PlanRequest, "max_time", "Without a cap: estimated instructions at most, as a factor of those of the fastest "
           "plan (with --max-macs G, G times that). [default: 1.2; on a named board its RAM is the cap, as --sram would be]",
           metavar="F"),
    option(PlanRequest, "stream_input", "Ask for the input row by row: it never lies in RAM whole."),
    option(PlanRequest, "layerwise", "Plan the plain network, one whole operator after the other, with no rolling buffers."),
    option(PlanRequest, "overlap", "Write an output into the space of a dying input, or never.", "--overlap/--no-overlap"),
    option(PlanRequest, "granularity", "What rolling buffers count: whole rows (fast), pixels (small), or what is the better for "
           "each."),
    INPUT_SHAPE,
    _UNTIL,
    _FROM,
    _STATE,
    _INPUT_VALUE,
    _STATELESS,
    option(LoadRequest, "like", "Give a .tflite file the rounding of this library: tflm rounds fully connected layers twice, as "
           "TensorFlow Lite Micro and CMSIS-NN do, where LiteRT rounds once. `run --check` then does so, too."),
    _SHRINK,
    option(LoadRequest, "hop", "The network's window slides: every call takes N new rows alone, and what it needs of earlier "
           "ones is kept from call to call. Outputs are those of the whole window, bit for bit on integers."),
    option(LoadRequest, "axis", "With --hop: the axis that the window slides along: time, which is the first behind the "
           "batch, or its number, such as 2 of [1, channels, time].", metavar="AXIS"),
    option(LoadRequest, "hop_state", "With --hop: keep at most so many bytes from frame to frame, and compute again what that "
           "leaves out: the point of `plan`'s \"state or work\" that fits. By default the fewest bytes for a tenth more than "
           "the least work."),
    option(LoadRequest, "stored_io", "Take inputs and give outputs in the integers that a quantized network stores, where its "
           "file has floats: a quarter of their bytes. The header gives scale and zero point."),
    option(PlanRequest, "rewrite", "Take an equivalent network (substitutions for memory) where its arena is smaller. "
           "[default: quantized networks, bit for bit; --rewrite: floats too]", "--rewrite/--no-rewrite"),
    option(PlanRequest, "memory", "A memory that blocks may lie in, the fastest first: how much of it the network may take, and "
           "what a byte costs that a kernel reads or writes (default: 1 cycle). Once for every memory. NAME alone is all that "
           "the machine of --target or --board has of it, at its cost.", multiple=True,
           metavar="NAME[=SIZE[:CYCLES_PER_BYTE]]", default=()),
    option(PlanRequest, "objective", "With --memory: few bytes, hardly slower than the fastest plan, or fewest bytes of all."),
    option(PlanRequest, "ram_weights", "Read up to SIZE of weights, those that are read most, from RAM beside the arena, for "
           "cores that wait for their flash."),
    option(PlanRequest, "prefetch", "Copy weights layer by layer into two buffers in RAM of SIZE together, each while the layer "
           "before it computes: by memcpy, or by your DMA controller behind port_copy_start and port_copy_wait."),
    option(PlanRequest, "flash_wait", "What a byte costs that is read from flash, beside the arithmetic. [default: the "
           "machine's, or nothing]", metavar="CYCLES"),
    option(PlanRequest, "weights", "Where weights are stored: linked into the image; in a section of their own, .tvm_weights, "
           "that your linker script places; in a file, weights.bin, that your program binds by pointer; or in that file, read "
           "layer by layer by port_read_weights into two buffers in RAM (stream)."),
    option(KernelRequest, "code_weights", "Code the weights of layers in which a byte of flash that this saves costs at most N "
           "instructions, as their kernels decode them: lossless. 0 codes none; --flash finds N."),
    TIME_LIMIT,
    option(KernelRequest, "database", "A file with instruction counts of kernels, which `compile --tune` writes. [default: "
           "those of the package alone]", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False)),
)  # fmt: skip
_CLOCK = option(
    TimeRequest,
    "clock",
    "Clock of the core, such as 168MHz: cycles are told in milliseconds too. [default: the machine's]",
)
_WATTS = option(TimeRequest, "watts", "Power that the core draws at this clock, in watts: energy is told too. [default: the "
                "machine's]",
                metavar="W")  # fmt: skip
_REPORT = option(EmitRequest, "report", "Write a self-contained HTML report to this .html file, or it, its pictures and data "
                 "into this folder.")  # fmt: skip


def model(taken: tuple[str, ...]) -> Option:
    """Make the argument MODEL for a command that also reads options in `taken` from the file beside the model."""
    return click.argument("model", type=PATH, is_eager=True, callback=option_file.beside(taken))


MODEL = model(option_file.LOADING)
FOLDER = click.argument("directory", metavar="DIR", type=PATH)
NEW_FOLDER = click.option("--output", "-o", type=PATH, required=True, help="A new folder.")
TRIALS = option(KernelRequest, "trials", "Candidates that MetaSchedule measures for a kernel without records.")


def refuse_idle_trials(metaschedule: Path | None) -> None:
    """Raise `UsageError` for `--trials` without `--metaschedule`, which would have no effect."""
    given = click.get_current_context().get_parameter_source("trials")
    if metaschedule is None and given is ParameterSource.COMMANDLINE:
        raise UsageError("--trials is of --metaschedule DIR: give that too")


def keeping(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options for states."""
    return _STATE(_STATELESS(command))


def cutting(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options for cutting a network and leaving out dead channels."""
    return _UNTIL(_FROM(_SHRINK(command)))


def planning(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every planning option, the clock that times are told by, and the report of a plan."""
    return planning_alone(_CLOCK(_WATTS(_REPORT(command))))


def planning_alone(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every planning option."""
    for one in reversed(_PLANNING):
        command = one(command)
    return command
