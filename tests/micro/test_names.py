from __future__ import annotations

import re

import pytest

from tvm_cascade.emit.names import c_comment, c_identifier, network_identifier, unique_identifier

NASTY = ["", "int", "3d", "a b/c", "../../etc", "*/ int x; /*", "é€", "x" * 300, "main", "%s%n", "A", "_", "<script>"]


@pytest.mark.parametrize("text", NASTY)
def test_every_name_becomes_an_identifier(text: str) -> None:
    assert re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", c_identifier(text))


def test_identifiers_are_told_apart() -> None:
    names: list[str] = []
    for text in ("a", "A", "a!", "b", ""):
        names.append(unique_identifier(text, "input", names.__contains__))
    assert len(set(names)) == 5
    assert names[0] == "a"


@pytest.mark.parametrize(
    "word", ["nullptr", "and", "xor_eq", "co_yield", "typeof", "errno", "linux", "restrict", "int"]
)
def test_no_word_of_c_or_cpp_is_a_name(word: str) -> None:
    assert c_identifier(word) == f"{word}_"


@pytest.mark.parametrize("name", ["math", "string", "startup", "port", "board", "m", "all", "serial_main", "time"])
def test_no_network_hides_a_header_or_a_target(name: str) -> None:
    assert network_identifier(name) == f"{name}_" == network_identifier(f"{name}_")
    assert network_identifier(f"my_{name}") == f"my_{name}"


def test_a_long_name_is_cut_in_comments() -> None:
    assert len(c_comment("x" * 500)) == 80


def test_a_comment_cannot_be_left() -> None:
    text = c_comment("a */ int x; /* ??/ \n é")
    assert "*/" not in text and "/*" not in text and "\n" not in text and "??" not in text
