"""The command `targets`, which lists the targets of compilation."""

from __future__ import annotations

from tvm_cascade.cli.guard import guarded, show
from tvm_cascade.cli.json_option import prints
from tvm_cascade.cli.teaching import command
from tvm_cascade.schema.targets import Targets


@command()
@prints(Targets)
@guarded
def targets(as_json: bool) -> None:
    """List everything that --target takes by name: cores, microcontrollers and boards.

    A microcontroller or board stands for core, memories, clock and flash programs. --json also names the documents
    behind the figures.
    """
    from tvm_cascade.boards.target_table import target_table
    from tvm_cascade.boards.target_table import targets as known

    show(as_json, {"targets": known()} if as_json else {}, "" if as_json else target_table())
