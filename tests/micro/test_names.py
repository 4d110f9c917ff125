from __future__ import annotations

import re

import pytest

from tvm_cascade.micro.names import c_comment, c_identifier, unique_identifiers

NASTY = ["", "int", "3d", "a b/c", "../../etc", "*/ int x; /*", "é€", "x" * 300, "main", "%s%n", "A", "_", "<script>"]


@pytest.mark.parametrize("text", NASTY)
def test_every_name_becomes_an_identifier(text: str) -> None:
    assert re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", c_identifier(text))


def test_identifiers_are_told_apart() -> None:
    names = unique_identifiers(["a", "A", "a!", "b", ""], "input")
    assert len(set(names)) == 5
    assert names[0] == "a"


def test_a_comment_cannot_be_left() -> None:
    text = c_comment("a */ int x; /* ??/ \n é")
    assert "*/" not in text and "/*" not in text and "\n" not in text and "??" not in text
