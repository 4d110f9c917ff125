"""Messages for users are printable, whatever they quote."""

from __future__ import annotations

import pickle

from tvm_cascade.errors import (
    InfeasibleError,
    LoadError,
    MissingToolError,
    ToolError,
    UnsupportedOperatorError,
    UsageError,
)

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


def test_errors_leave_worker_processes_as_they_are() -> None:
    errors = [
        UsageError("no such option", ["conv"]),
        LoadError("net.onnx", "truncated", "copy the file again"),
        MissingToolError("nvcc", "install CUDA"),
        UnsupportedOperatorError("no such operator", "leave out", ["conv"]),
        InfeasibleError(2, 1, ["conv"], "a larger board"),
    ]
    for error in errors:
        restored = pickle.loads(pickle.dumps(error))
        assert type(restored) is type(error)
        assert (str(restored), restored.to_dict(), vars(restored)) == (str(error), error.to_dict(), vars(error))
