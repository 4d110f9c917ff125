"""Equal C++ files are compiled once, whatever folder they lie in; what differs in a header or an option is compiled."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tvm_cascade.testing import compiled_once

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="c++ is not installed: apt-get install g++")


def test_an_object_is_kept_by_what_it_is_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled_once.FOLDER, str(tmp_path / "kept"))

    def compiled(folder: str, header: str, *options: str) -> tuple[bytes, int]:
        place = tmp_path / folder
        place.mkdir()
        (place / "value.h").write_text(header)
        (place / "a.cc").write_text('#include "value.h"\nint value() { return VALUE; }\n')
        made = place / "a.o"
        rules = ["-MD", "-MT", "a.o", "-MF", str(place / "a.d")]
        command = ["c++", *options, *rules, "-o", str(made), "-c", str(place / "a.cc")]
        assert compiled_once.main(command) == 0
        assert str(place / "value.h") in (place / "a.d").read_text()
        return made.read_bytes(), len(list((tmp_path / "kept").iterdir()))

    first, count = compiled("first", "#define VALUE 1\n")
    assert compiled("second", "#define VALUE 1\n") == (first, count) and count == 1
    other, count = compiled("third", "#define VALUE 2\n")
    assert other != first and count == 2
    assert compiled("fourth", "#define VALUE 1\n", "-O2")[1] == 3


def test_what_does_not_compile_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.setenv(compiled_once.FOLDER, str(tmp_path / "kept"))
    for text, said in (('#include "none.h"\n', "none.h"), ("int value( {\n", "expected")):
        (tmp_path / "a.cc").write_text(text)
        assert compiled_once.main(["c++", "-o", str(tmp_path / "a.o"), "-c", str(tmp_path / "a.cc")]) != 0
        assert said in capfd.readouterr().err
    assert not (tmp_path / "kept").exists()


def test_other_commands_are_run_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    assert compiled_once.main(["c++", "--version"]) == 0
    assert capfd.readouterr().out.strip()
