"""Messages for users are printable, whatever they quote."""

from __future__ import annotations

from tvm_cascade.errors import InfeasibleError, LoadError, ToolError, UnsupportedOperatorError, UsageError

HOSTILE = "a\x1b[31m\nb\u202e"


def test_errors_are_one_printable_line() -> None:
    errors = [
        UsageError(HOSTILE),
        LoadError(HOSTILE, HOSTILE),
        UnsupportedOperatorError(HOSTILE, [HOSTILE]),
        InfeasibleError(2, 1, [HOSTILE], HOSTILE),
    ]
    assert all(str(error).isprintable() and "a?[31m?b?" in str(error) for error in errors)
    assert errors[1].path == HOSTILE  # the data is as it was


def test_tools_may_say_several_lines() -> None:
    assert str(ToolError(HOSTILE)) == "a?[31m\nb?"
