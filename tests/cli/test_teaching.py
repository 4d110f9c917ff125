"""Help: examples that parse, groups of options that exist, every option behind --help-all."""

from __future__ import annotations

import shlex

import click
import pytest
from click.testing import CliRunner

from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.cli.teaching import _LINES, _OWN_LINES, EXAMPLES, GROUPS, _key


def helped(*args: str) -> str:
    return CliRunner().invoke(main, list(args), terminal_width=80).output


@pytest.mark.parametrize("name", list(main.commands))
def test_every_command_has_two_examples_that_parse(name: str) -> None:
    command = main.commands[name]
    for example in EXAMPLES[name]:
        words = shlex.split(example)
        assert words[0] == name and f"  tvm-cascade {example}\n" in helped(name, "--help")
        parser = command.make_parser(click.Context(command, info_name=name))
        parser.parse_args(words[1:])  # raises for an option that the command does not have


@pytest.mark.parametrize("name", GROUPS)
def test_help_is_short_and_help_all_has_every_option(name: str) -> None:
    command = main.commands[name]
    short, whole = helped(name, "--help"), helped(name, "--help-all")
    groups = short.partition("Examples:\n")[2].splitlines()
    assert len(short.splitlines()) <= 60 and max(map(len, groups)) <= 80
    options = {_key(p): p for p in command.params if isinstance(p, click.Option)}
    grouped = [one for names in GROUPS[name].values() for one in names]
    assert set(grouped) <= options.keys() and len(set(grouped)) == len(grouped)
    assert all(f"--{one}" in short for one in grouped) and all(f"--{one}" in whole for one in options)
    assert "--help-all" in short and f"and {len(options) - len(grouped)} more options" in short


def test_every_line_is_used() -> None:
    grouped = {(name, one) for name, groups in GROUPS.items() for names in groups.values() for one in names}
    assert {one for _, one in grouped} == set(_LINES) and set(_OWN_LINES) <= grouped
