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


for _command in (
    networks.plan,
    networks.compile,
    projects.run,
    datasets.validate,
    datasets.quantize,
    projects.export,
    projects.bundle,
    projects.doctor,
    machines.targets,
    searches.allocate,
    searches.order,
    searches.stages,
    searches.optimize,
    sound.front_end,
    boards.flash,
    boards.monitor,
    projects.compare,
    schemas.schema,
):
    tvm_cascade.add_command(_command)
