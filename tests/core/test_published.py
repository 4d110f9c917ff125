"""What is published with the code names what is there: targets of the Makefile, paths of tests, the version."""

from __future__ import annotations

import re
from pathlib import Path

import tvm_cascade

ROOT = Path(__file__).parents[2]
RUNS = (ROOT / "Makefile", ROOT / ".ci" / "run", *sorted((ROOT / ".github").rglob("*.*")))  # what runs commands of ours
SAYS = (*RUNS, ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))


def test_every_target_of_make_is_one() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))
    command = re.compile(r"(?:`|^ {4}|run: |^if |^)make ([a-z][a-z-]+)\b(?=[`\s;])", re.M)
    named = {(path.name, name) for path in SAYS for name in command.findall(path.read_text())}
    assert {name for _, name in named} >= {"demo", "test", "docs", "lint", "bench", "test-browser"}
    assert [one for one in sorted(named) if one[1] not in targets] == []


def test_every_path_of_a_test_is_one() -> None:
    named = {name for path in RUNS for name in re.findall(r"\btests/[\w/]+(?:\.py)?", path.read_text())}
    assert len(named) > 10 and [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_changelog_begins_with_the_version() -> None:
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert first is not None and first[1] == tvm_cascade.__version__


def test_every_file_of_the_index_is_one() -> None:
    named = set(re.findall(r"`([\w/]+/[\w/]+\.(?:py|c|json))`", (ROOT / "docs" / "where.md").read_text()))
    assert len(named) > 60
    assert [
        name for name in sorted(named) if not any((base / name).exists() for base in (ROOT, ROOT / "tvm_cascade"))
    ] == []
