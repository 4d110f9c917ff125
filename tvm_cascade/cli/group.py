"""The commands of `tvm-cascade`.

Their modules import nothing slow: TVM is imported when a command runs, not for `--help` or completion.
"""

from __future__ import annotations

import click

from tvm_cascade.cli import boards, datasets, machines, networks, projects, schemas, searches, sound
from tvm_cascade.cli.guard import JsonGroup


@click.group(cls=JsonGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="tvm-cascade")
def tvm_cascade() -> None:
    """Networks that fit their board, programs that run faster: memory and latency scheduling on Apache TVM.

    \b
    tvm-cascade plan model.tflite                                     what would it need?
    tvm-cascade compile model.tflite --target cortex-m4 -o firmware   write a board project
    tvm-cascade run firmware --check model.tflite                     run it in the emulator
    tvm-cascade doctor                                                what is missing on this machine?
    """


# in the order of use, each with what the list of commands says in a terminal of 80 columns
_COMMANDS = {
    networks.plan: "Show how little memory MODEL needs, and where the bytes are.",
    networks.compile: "Write a board project for MODEL.",
    projects.run: "Run a project on its emulated board, a real one or in here.",
    datasets.validate: "Measure accuracy on a data set, beside the reference.",
    datasets.quantize: "Make an int8 network of a float one.",
    projects.export: "Write a project as a package for another build system.",
    projects.bundle: "Write one image of several projects, with one arena.",
    projects.doctor: "Say what is installed, what is missing, and how to get it.",
    machines.targets: "List cores, microcontrollers and boards for --target.",
    searches.allocate: "Give buffers with lifetimes offsets in the smallest arena.",
    searches.order: "Find the order of operators with the least peak memory.",
    searches.stages: "Find which operators run at the same time, or merged.",
    searches.optimize: "Find an equivalent graph that costs less.",
    sound.front_end: "Write an audio front end, from sound to features, as C.",
    boards.flash: "Write a project to the board that is plugged in.",
    boards.monitor: "Print what a board sends over its serial port.",
    projects.compare: "Say how two plans, projects or runs differ.",
    schemas.schema: "Print the JSON schema of what a command prints.",
}

for _command, _says in _COMMANDS.items():
    _command.short_help = _says
    tvm_cascade.add_command(_command)
