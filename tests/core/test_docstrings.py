"""Public functions say what goes in, what comes out and what is raised."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import tvm_cascade
from tvm_cascade import api, passes, schedules

PUBLIC = [
    *(getattr(api, name) for name in tvm_cascade.__all__ if name != "CascadeError"),
    *(f for module in (passes, schedules) for name in module.__all__ if inspect.isfunction(f := getattr(module, name))),
]
NOTHING_CAN_GO_WRONG = {"targets"}


def sections(function: Callable[..., Any]) -> dict[str, str]:
    """The numpydoc sections of a docstring by their titles."""
    parts = re.split(r"^(\w+)\n-+\n", inspect.getdoc(function) or "", flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def described(function: Callable[..., Any]) -> set[str]:
    """Parameters that the docstring describes; `options` are those that `plan` describes."""
    titles = re.findall(r"^(\w[\w, ]*?)(?: :.*)?$", sections(function).get("Parameters", ""), flags=re.MULTILINE)
    names = {name for title in titles for name in re.split(", ", title)}
    return names | described(api.plan) if "options" in names else names


@pytest.mark.parametrize("function", PUBLIC, ids=lambda f: f"{f.__module__}.{f.__name__}")
def test_a_public_function_says_what_goes_in_and_out(function: Callable[..., Any]) -> None:
    signature = inspect.signature(function)
    assert set(signature.parameters) <= described(function)
    expected = {"Raises"} - ({"Raises"} if function.__name__ in NOTHING_CAN_GO_WRONG else set())
    if signature.return_annotation not in (None, "None"):
        expected.add("Returns")
    assert expected <= set(sections(function))


def test_nothing_is_described_that_a_function_does_not_take() -> None:
    for function in PUBLIC:
        if "options" not in described(function) - set(inspect.signature(function).parameters):
            assert described(function) == set(inspect.signature(function).parameters), function.__name__
