"""Wrapper of every command: errors and signals become one line and an exit status, results go to standard output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from textwrap import wrap
from typing import Any, NoReturn

import click

from tvm_cascade.cli.colours import coloured
from tvm_cascade.cli.progress_bar import lifted, progress_bar
from tvm_cascade.cli.signals import Terminated, stoppable
from tvm_cascade.errors import CascadeError, MissingToolError, UsageError
from tvm_cascade.messages import printable, printable_lines
from tvm_cascade.schema.refusal import Error
from tvm_cascade.search_monitor import SearchMonitor

_COLUMNS = 80  # of a terminal


def say(text: str) -> None:
    """Print a line of progress, or a message, on standard error."""
    with lifted():
        click.echo(coloured(printable_lines(text), sys.stderr), err=True)


def show(as_json: bool, data: Mapping[str, object], text: str) -> None:
    """Print a result on standard output: one JSON object, or `text` with a last line if a limit ended the search."""
    with lifted():
        ended = wrap(ended_early(data).strip(), _COLUMNS, subsequent_indent=16 * " ", break_long_words=False)
        plain = printable_lines("\n".join([text, *ended]))
        click.echo(json.dumps(data, indent=2) if as_json else coloured(plain, sys.stdout))


def ended_early(data: Mapping[str, object]) -> str:
    """Return the line for a `limited` result: the reason, and the bound that more time may come down to."""
    if not data.get("limited"):
        return ""
    pairs = (("peak_bytes", "search_bound_bytes"), ("peak_bytes", "bound_bytes"), ("cost_ms", "bound_ms"))
    best, bound = next(((data[a], data[b]) for a, b in pairs if a in data and b in data), (None, None))
    gap = ""
    if isinstance(best, (int, float)) and isinstance(bound, (int, float)) and bound < best:
        gap = f"; more time may find less, down to the lower bound of {bound}"
    why = data.get("not_searched") or "the search was ended early: this is the best result so far"
    return f"\nlimited         {why}{gap}"


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Turn the project's errors into a line on standard error, with `--json` also into a JSON object on standard
    output, and an exit status.
    """

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        as_json = bool(kwargs.get("as_json"))
        terminated = told("terminated", "terminated")
        more: dict[str, object] = {}  # beside the record of an error
        try:
            with progress_bar() as bar, SearchMonitor(show=bar) as limit:
                try:
                    stoppable(lambda: command(*args, **kwargs), json.dumps({"error": terminated}) if as_json else "")
                finally:
                    more = {"limited": limit.limited} if "time_limit" in kwargs else {}
        except Terminated:
            _end(as_json, terminated, 143, more)
        except KeyboardInterrupt:
            _end(as_json, told("interrupted", "interrupted"), 130, more)
        except Exception as error:
            if os.environ.get("TVM_CASCADE_DEBUG"):
                raise
            _end(as_json, *_described(error), more)

    return run


def told(kind: str, message: str) -> Error:
    """Build the record of an error not raised by this project; see `CascadeError.to_dict`."""
    return {"kind": kind, "message": message, "remedy": "", "operators": []}


def _end(as_json: bool, error: Error, status: int, more: Mapping[str, object]) -> NoReturn:
    say(f"tvm-cascade: {error['message']}")
    if as_json:
        show(True, {"error": error, **more}, "")
    sys.exit(status)


def _described(error: Exception) -> tuple[Error, int]:
    """Return the record (`CascadeError.to_dict`) and the exit status of an error."""
    if isinstance(error, CascadeError):
        return error.to_dict(), error.exit_status
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or str(error)).split(".")[0]
        text = f"the Python package {package} is not installed; `tvm-cascade doctor` says what to install"
        return told(MissingToolError.kind, text), 2
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return told("system", f"{error.filename}: {error.strerror}"), 2
    if isinstance(error, (OSError, MemoryError, RecursionError)):
        return told("system", str(error) or type(error).__name__), 2
    lines = str(error).strip().splitlines() or [""]
    text = f"internal error, {type(error).__name__}: {lines[-1][:300]} (TVM_CASCADE_DEBUG=1 shows where)"
    return told("internal", text), 1


_MEANT = {  # commands by names that other tools give to what they do
    "analyze": "plan",
    "boards": "targets",
    "build": "compile",
    "devices": "targets",
    "generate": "compile",
    "help": "--help",
    "package": "export",
    "version": "--version",
}


class JsonGroup(click.Group):
    """A group of commands: refuses wrong arguments by a JSON object too if `--json` is among them, and knows the
    commands' names in similar tools.
    """

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in _MEANT:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{_MEANT[args[0]]}'?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        as_json = "--json" in ctx.args
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if as_json:
                show(True, {"error": told(UsageError.kind, printable(error.format_message()))}, "")
            raise
