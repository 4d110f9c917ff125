"""The cache: values are computed once, whatever is found in its folder, and never more is kept than is allowed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tvm_cascade import cache
from tvm_cascade.cache import NO_CACHE, Cache, cache_folder


class Maker:
    """Computes a value and counts how often."""

    def __init__(self, value: bytes = b"value") -> None:
        self.made, self.result = 0, value

    def __call__(self) -> bytes:
        self.made += 1
        return self.result


def _entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_value_is_computed_once_for_the_same_inputs(tmp_path: Path) -> None:
    make = Maker(bytes(1000))
    for _ in range(2):  # a second object is as a second process
        assert Cache(tmp_path).value("kind", lambda: ["ab", b"c"], make) == make.result
    assert make.made == 1
    for kind, inputs in (("kind", ["a", "bc"]), ("kind", ["abc"]), ("kind", ["ab", "c", ""]), ("other", ["ab", "c"])):
        before = make.made
        Cache(tmp_path).value(kind, lambda inputs=inputs: inputs, make)
        assert make.made == before + 1, inputs
    assert len(_entries(tmp_path)) == 5


def test_texts_keep_every_letter(tmp_path: Path) -> None:
    text = "line\r\n\tµ\0"
    assert [Cache(tmp_path).text("t", list, lambda: text) for _ in range(2)] == [text, text]


def test_values_of_other_versions_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Maker()
    for version in (b"1", b"2", b"1"):
        monkeypatch.setattr(cache, "_versions", lambda version=version: version)
        Cache(tmp_path).value("kind", list, make)
    assert make.made == 2


def test_no_cache_asks_for_no_inputs() -> None:
    make = Maker()
    for _ in range(2):
        NO_CACHE.value("kind", lambda: pytest.fail("not needed"), make)
    assert make.made == 2 and NO_CACHE.get("00") is None


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "appended", "text", "of another key", "folder"])
def test_a_damaged_file_is_computed_and_written_again(damage: str, tmp_path: Path) -> None:
    make = Maker(b"right")
    kept = Cache(tmp_path)
    kept.value("kind", lambda: ["a"], make)
    (path,) = _entries(tmp_path)
    good = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    elif damage == "of another key":
        Cache(tmp_path).value("kind", lambda: ["b"], Maker(b"wrong"))
        (other,) = set(_entries(tmp_path)) - {path}
        path.write_bytes(other.read_bytes())
    else:
        bad = {"cut": good[:-1], "empty": b"", "appended": good + b"x", "text": b"not a value\n"}
        path.write_bytes(bad.get(damage, good[:40] + bytes([good[40] ^ 1]) + good[41:]))
    assert kept.value("kind", lambda: ["a"], make) == b"right" and make.made == 2
    if damage != "folder":
        assert path.read_bytes() == good
        assert kept.value("kind", lambda: ["a"], make) == b"right" and make.made == 2


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    make = Maker()
    kept = Cache(tmp_path / "file" / "cache")
    for _ in range(2):
        assert kept.value("kind", list, make) == make.result
    kept.trim(0)
    assert make.made == 2 and kept.written == 0


def test_what_was_not_used_for_longest_is_removed(tmp_path: Path) -> None:
    kept = Cache(tmp_path)
    for k in range(4):
        kept.value("kind", lambda k=k: [str(k)], Maker(os.urandom(1000)))
    paths = {k: tmp_path / (key := Cache.key("kind", [str(k)]))[:2] / key[2:] for k in range(4)}
    for k, path in paths.items():
        os.utime(path, (k, k))
    kept.value("kind", lambda: ["0"], Maker())  # used again: now 1 is the oldest
    others = [tmp_path / "ab" / "cab.txt", tmp_path / "notes.txt"]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_text("somebody's")
    size = sum(path.stat().st_size for path in paths.values())
    Cache(tmp_path).trim(0)  # it has written nothing: the folder is as large as before
    assert all(path.exists() for path in paths.values())
    kept.trim(size)
    assert all(path.exists() for path in paths.values())
    kept.trim(size - 1)
    assert [k for k, path in paths.items() if path.exists()] == [0, 2, 3]
    kept.trim(0)
    assert _entries(tmp_path) == others


_WRITER = """
import sys
from pathlib import Path
from tvm_cascade.cache import Cache
for again in range(20):
    for k in range(20):
        wanted = bytes([k]) * 50000
        kept = Cache(Path(sys.argv[1]))
        assert kept.value("kind", lambda: [str(k)], lambda: wanted) == wanted
        if again % 4 == int(sys.argv[2]):
            kept.put(Cache.key("kind", [str(k)]), wanted)
            kept.trim(100)
"""


def test_processes_share_a_folder(tmp_path: Path) -> None:
    """All write, read and remove the same values at once."""
    running = [subprocess.Popen([sys.executable, "-c", _WRITER, tmp_path, str(k)]) for k in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert not [path for path in _entries(tmp_path) if path.name.startswith(".")]


def test_the_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TVM_CASCADE_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.setenv("TVM_CASCADE_CACHE_DIR", "")
    assert cache_folder() == tmp_path / "xdg" / "tvm-cascade"
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == tmp_path / ".cache" / "tvm-cascade"
