"""Colours on terminals: where they are, and that they change no letter."""

from __future__ import annotations

import io

import click
import pytest

from tvm_cascade.cli.colours import coloured

TEXT = """\
arena           7088 bytes (6.9 KiB), everything counted
bounds at 1.00x rows 7440 bytes
host run        equal
reference       DIFFERENT, by up to 3
ok      numpy 2.4.6
absent  torch: not installed (reading .pt2 files)
MISSING tflite: missing

   offset     bytes  life over 2 segments  block
        0      4096  ████████····▒▒▒▒▒▒▒▒  conv2d int8[1, 16, 16, 16]

less RAM:
  --stream-input: the 4096 bytes of image; not a-b--c
tvm-cascade: x.tflite: no such file"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_what_is_coloured() -> None:
    made = coloured(TEXT, Terminal())
    assert click.unstyle(made) == TEXT
    bold, head = {"bold": True}, {"bold": True, "underline": True}
    for words, style in (
        ("arena", bold),
        ("bounds at 1.00x", bold),
        ("equal", {"fg": "green"}),
        ("DIFFERENT, by up to 3", {"fg": "red", "bold": True}),
        ("ok", {"fg": "green"}),
        ("absent", {"fg": "yellow"}),
        ("MISSING", {"fg": "red", "bold": True}),
        ("   offset     bytes  life over 2 segments  block", head),
        ("████████", {"fg": "blue"}),
        ("····", {"dim": True}),
        ("▒▒▒▒▒▒▒▒", {"fg": "cyan"}),
        ("less RAM:", bold),
        ("--stream-input", {"fg": "cyan"}),
        ("tvm-cascade: x.tflite: no such file", {"fg": "red"}),
    ):
        assert click.style(words, **style) in made, words  # type: ignore[arg-type]
    assert made.count("\x1b[0m") == 16  # these, and the labels `host run` and `reference`


@pytest.mark.parametrize("how", ["no terminal", "NO_COLOR", "dumb"])
def test_where_nothing_is(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    if how == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    assert coloured(TEXT, io.StringIO() if how == "no terminal" else Terminal()) == TEXT
