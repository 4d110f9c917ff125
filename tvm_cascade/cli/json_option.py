"""The option --json of the commands, and the type of what each prints then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


class JsonOption(click.Option):
    """The option --json of a command, with the type of what it prints then."""

    def __init__(self, *args: Any, record: type, **more: Any) -> None:
        super().__init__(*args, **more)
        self.record = record


def prints(record: type) -> Callable[[Any], Any]:
    """Give a command --json; `record` is the `TypedDict` (`tvm_cascade.schema`) of the object that it prints."""
    return click.option(
        "--json",
        "as_json",
        cls=JsonOption,
        record=record,
        is_flag=True,
        help="Print one JSON object on standard output, nothing else there; `schema` says which keys it has.",
    )


def printed_by(command: click.Command) -> type | None:
    """The type of what a command prints under --json; None where it has no such option."""
    return next((one.record for one in command.params if isinstance(one, JsonOption)), None)
