"""The gate of docstrings counts functions that begin with a verb, and words where they stand."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

_TOOL = Path(__file__).resolve().parents[2] / "tools" / "prose.py"

_MODULE = '''"""A module of numbers."""


def first():
    """Return the first of the numbers."""


def tries():
    """Tries the numbers, one of them after the other."""


class Numbers:
    """What is counted."""

    def sum(self):
        """The sum of what is counted."""
'''


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    if not _TOOL.is_file():
        pytest.skip("tools/ is no part of what is installed")
    spec = importlib.util.spec_from_file_location("prose", _TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["prose"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_verbs_and_words_are_counted(prose: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "numbers.py"
    path.write_text(_MODULE, encoding="utf-8")
    found = list(prose.docstrings(path))
    assert [(one.line, one.begins_with_verb) for one in found if one.of_function] == [(5, True), (9, True), (16, False)]
    assert prose.share(found) == pytest.approx(2 / 3)
    counts = {name: count for name, count, _ in prose.per_thousand(found)}
    total = 4 + 6 + 9 + 3 + 6
    assert counts["of"] == pytest.approx(1000 * 4 / total)
    assert counts["what/where/whose"] == pytest.approx(1000 * 2 / total)
    assert counts["it/its/them/their/they"] == pytest.approx(1000 / total)


def test_the_gate_says_what_misses_its_limit(prose: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "numbers.py"
    path.write_text(_MODULE, encoding="utf-8")
    verbs, of, *others = prose.shortfalls(list(prose.docstrings(path)))
    assert verbs == "66.7% of function docstrings begin with a verb, 95% have to"
    assert of == "142.9 of 1,000 words are of, at most 32 may"
    assert [text.split(" ")[5].rstrip(",") for text in others] == [
        "what/where/whose", "it/its/them/their/they", "those/one/ones/other/others",
    ]  # fmt: skip


def test_the_product_keeps_its_limits(prose: ModuleType) -> None:
    assert prose.shortfalls([one for path in prose.product() for one in prose.docstrings(path)]) == []
