"""The commands of `tvm-cascade`.

The module of a command is imported when the command is asked for, and imports nothing slow itself: TVM is imported when a
command runs, not for its `--help` or completion.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

import click

from tvm_cascade.cli.guard import JsonGroup
from tvm_cascade.lazy import exports

# in the order of use: the module of each, and what the list of commands says in a terminal of 80 columns
_COMMANDS = {
    "plan": ("networks", "Show how little memory MODEL needs, and where the bytes are."),
    "compile": ("networks", "Write a board project for MODEL."),
    "run": ("projects", "Run a project on its emulated board, a real one or in here."),
    "benchmark": ("projects", "Measure runs of a program: milliseconds or instructions."),
    "validate": ("datasets", "Measure accuracy on a data set, beside the reference."),
    "quantize": ("datasets", "Make an int8 network of a float one."),
    "export": ("projects", "Write a project as a package for another build system."),
    "bundle": ("projects", "Write one image of several projects, with one arena."),
    "doctor": ("projects", "Say what is installed, what is missing, and how to get it."),
    "targets": ("machines", "List cores, microcontrollers and boards for --target."),
    "allocate": ("searches", "Give buffers with lifetimes offsets in the smallest arena."),
    "order": ("searches", "Find the order of operators with the least peak memory."),
    "stages": ("searches", "Find which operators run at the same time, or merged."),
    "optimize": ("searches", "Find an equivalent graph that costs less."),
    "front-end": ("sound", "Write an audio front end, from sound to features, as C."),
    "flash": ("boards", "Write a project to the board that is plugged in."),
    "monitor": ("boards", "Print what a board sends over its serial port."),
    "compare": ("projects", "Say how two plans, projects or runs differ."),
    "schema": ("schemas", "Print the JSON schema of what a command prints."),
}
_command, _ = exports("tvm_cascade.cli", {name.replace("-", "_"): module for name, (module, _) in _COMMANDS.items()})


class _Commands(MutableMapping[str, click.Command]):
    """The commands by name; asking for a command imports the module, going through the names does not."""

    def __init__(self) -> None:
        self._commands: dict[str, click.Command | None] = dict.fromkeys(_COMMANDS)

    def __getitem__(self, name: str) -> click.Command:
        command = self._commands[name]
        if command is None:
            command = _command(name.replace("-", "_"))
            assert isinstance(command, click.Command)
            command.short_help = _COMMANDS[name][1]
            self._commands[name] = command
        return command

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)


class _Group(JsonGroup):
    """The commands, listed without imports."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, says) for name, (_, says) in sorted(_COMMANDS.items())])


@click.group(
    cls=_Group, commands=_Commands(), context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="tvm-cascade")
def tvm_cascade() -> None:
    """Networks that fit their board, programs that run faster: memory and latency scheduling on Apache TVM.

    \b
    tvm-cascade plan model.tflite                                     what would it need?
    tvm-cascade compile model.tflite --target cortex-m4 -o firmware   write a board project
    tvm-cascade run firmware --check model.tflite                     run it in the emulator
    tvm-cascade doctor                                                what is missing on this machine?
    """
