"""Folders appear whole or not at all, and a failure leaves nothing behind, parents included."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvm_cascade.micro.publish import publish


def test_what_is_written_takes_the_place_of_what_was_there(tmp_path: Path):
    folder = tmp_path / "project"
    for text in ("first", "second"):
        with publish(folder) as staging:
            assert list(staging.iterdir()) == []
            (staging / "file").write_text(text)
    assert [p.name for p in tmp_path.iterdir()] == ["project"]
    assert [p.name for p in folder.iterdir()] == ["file"] and (folder / "file").read_text() == "second"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_no_file_and_no_folder(tmp_path: Path, error: type[BaseException]):
    with pytest.raises(error), publish(tmp_path / "new" / "deep" / "project") as staging:
        (staging / "file").write_text("half")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_what_was_there_and_parents_that_others_use(tmp_path: Path):
    with publish(tmp_path / "project") as staging:
        (staging / "file").write_text("old")
    with pytest.raises(ValueError), publish(tmp_path / "project") as staging:
        raise ValueError
    assert (tmp_path / "project" / "file").read_text() == "old"
    with pytest.raises(ValueError), publish(tmp_path / "shared" / "project") as staging:
        (tmp_path / "shared" / "theirs").write_text("theirs")
        raise ValueError
    assert [p.name for p in (tmp_path / "shared").iterdir()] == ["theirs"]
