"""The option --json, and the type each command prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


class JsonOption(click.Option):
    """The option --json of a command, with the printed type."""

    def __init__(self, *args: Any, record: type, **more: Any) -> None:
        super().__init__(*args, **more)
        self.record = record


def prints(record: type) -> Callable[[Any], Any]:
    """Give a command --json; `record` is the `TypedDict` (`tvm_cascade.schema`) of the printed object."""
    return click.option(
        "--json",
        "as_json",
        cls=JsonOption,
        record=record,
        is_flag=True,
        help="Print one JSON object on standard output, nothing else there; `schema` says which keys it has.",
    )


def printed_by(command: click.Command) -> type | None:
    """Return the type a command prints under --json; None without this option."""
    return next((one.record for one in command.params if isinstance(one, JsonOption)), None)
