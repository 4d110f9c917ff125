"""The command `schema`: prints the JSON schema of a command."""

from __future__ import annotations

import json

import click

from tvm_cascade.cli.guard import guarded
from tvm_cascade.cli.json_option import printed_by
from tvm_cascade.cli.teaching import command
from tvm_cascade.errors import UsageError
from tvm_cascade.schema import schema_of


@command()
@click.argument("command", metavar="COMMAND")
@guarded
def schema(command: str) -> None:
    """Print the JSON schema (draft 2020-12) of the object that COMMAND prints as JSON.

    
      tvm-cascade schema plan > plan.schema.json

    `$id` ends with the version, raised when a key goes or changes meaning. The definition `Refusal` describes every
    command's output on refusal.
    """
    group = click.get_current_context().find_root().command
    assert isinstance(group, click.Group)
    records = {name: record for name, one in group.commands.items() if (record := printed_by(one)) is not None}
    if command not in records:
        raise UsageError(f"no command '{command}' has --json: give one of {', '.join(sorted(records))}")
    click.echo(json.dumps(schema_of(command, records[command]), indent=2))
