"""Files and folders appear whole or not at all: killed at any time, side by side, on a full disk."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tvm_cascade import publish as module
from tvm_cascade.cost.records import RecordStore
from tvm_cascade.emit.image import read_metadata
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.plain_files import readable
from tvm_cascade.publish import publish, require_empty, whole_file
from tvm_cascade.runs.arrays import load_arrays
from tvm_cascade.runs.staged import is_staged
from tvm_cascade.samples.columns import columns

resource = pytest.importorskip("resource", reason="processes are forked, killed and limited as POSIX has it")

FILES = ("a", "b/c", "d")


def _fill(folder: Path, text: str) -> None:
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def _generation(folder: Path) -> str:
    """The one text that all files of a folder hold."""
    (text,) = {(folder / name).read_text() for name in FILES}
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == sorted(FILES)
    return text


@contextmanager
def _process(work: Callable[[], object]) -> Iterator[int]:
    """A process that does `work`; its exit status is 0 where that ended well. It is waited for at the end."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_what_is_written_takes_the_place_of_what_was_there(tmp_path: Path):
    folder = tmp_path / "project"
    for text in ("first", "second"):
        with publish(folder) as staging:
            assert list(staging.iterdir()) == []
            (staging / "file").write_text(text)
    assert [p.name for p in tmp_path.iterdir()] == ["project"]
    assert [p.name for p in folder.iterdir()] == ["file"] and (folder / "file").read_text() == "second"


def test_also_where_folders_cannot_be_swapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_swap", lambda *_: False)
    test_what_is_written_takes_the_place_of_what_was_there(tmp_path)


def test_through_a_link(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "l.txt").symlink_to("real.txt")
    with publish(tmp_path / "link") as staging:
        (staging / "file").write_text("x")
    with whole_file(tmp_path / "l.txt") as path:
        path.write_text("y")
    assert (tmp_path / "real" / "file").read_text() == "x" and (tmp_path / "real.txt").read_text() == "y"
    assert (tmp_path / "link").is_symlink() and (tmp_path / "l.txt").is_symlink()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_no_file_and_no_folder(tmp_path: Path, error: type[BaseException]):
    with pytest.raises(error), publish(tmp_path / "new" / "deep" / "project") as staging:
        (staging / "file").write_text("half")
        raise error
    with pytest.raises(error), whole_file(tmp_path / "file") as path:
        path.write_text("half")
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
    with pytest.raises(UsageError, match="exists and is not empty"), publish(tmp_path / "new", require_empty):
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "theirs").touch()  # while the block was running
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["theirs"]


def test_killed_at_random_the_folder_and_the_file_are_whole(tmp_path: Path):
    folder, file = tmp_path / "project", tmp_path / "f.txt"

    def write_forever() -> None:
        n = 0
        while True:
            n += 1
            with publish(folder) as staging:
                _fill(staging, str(n) * 999)
            with whole_file(file) as path:
                path.write_text(str(n) * 9999)

    draw, left = random.Random(1), 0
    _fill_once(folder, file)
    for k, kind in enumerate([signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM] * 100):
        with _process(write_forever) as pid:
            stop = time.monotonic() + draw.uniform(0.0, 0.015 * (1 + k / 20))  # longer where a busy machine starts late
            while time.monotonic() < stop:
                assert folder.is_dir() and file.is_file()  # one of the two at every moment
            os.kill(pid, kind)
        _generation(folder)
        text = file.read_text()
        assert text == text[: len(text) // 9999] * 9999
        left += len(list(tmp_path.iterdir())) > 2
        if left > 5:
            break
    assert left > 5  # hit in the middle
    _fill_once(folder, file)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.txt", "project"]


def _fill_once(folder: Path, file: Path) -> None:
    with publish(folder) as staging:
        _fill(staging, "0")
    with whole_file(file) as path:
        path.write_text("0" * 9999)


def test_two_processes_that_write_one_folder(tmp_path: Path):
    folder = tmp_path / "project"

    def write(letter: str) -> None:
        for n in range(30):
            with publish(folder, lambda old, new: _generation(old)) as staging:
                _fill(staging, f"{letter}{n}")
            with whole_file(tmp_path / "f.txt") as path:
                path.write_text(letter * 999)

    pids = []
    for letter in "xyz":
        pids.append(os.fork())
        if pids[-1] == 0:
            status = 1
            try:
                write(letter)
                status = 0
            finally:
                os._exit(status)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]
    assert _generation(folder) in ("x29", "y29", "z29")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.txt", "project"]


def test_what_is_being_written_is_no_leftover(tmp_path: Path):
    with publish(tmp_path / "one") as mine, whole_file(tmp_path / "two") as file:
        with publish(tmp_path / "three"):
            pass
        assert mine.is_dir() and file.is_file()


def test_a_full_disk_keeps_what_was_there(tmp_path: Path):
    _fill_once(tmp_path / "project", tmp_path / "f.txt")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, limits[1]))
    try:
        message = r"cannot write .*(project|f.txt): File too large"
        with pytest.raises(UsageError, match=message), publish(tmp_path / "project") as staging:
            _fill(staging, "1" * 30000)
        with pytest.raises(UsageError, match=message), whole_file(tmp_path / "f.txt") as path:
            path.write_text("1" * 30000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert _generation(tmp_path / "project") == "0" and (tmp_path / "f.txt").read_text() == "0" * 9999
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.txt", "project"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of POSIX systems")
def test_of_devices_the_null_device_alone_is_written(tmp_path: Path):
    with whole_file("/dev/null") as path:
        path.write_text("x")
    (tmp_path / "link").symlink_to("/dev/zero")
    for device in ("/dev/full", "/dev/zero", tmp_path / "link"):
        with pytest.raises(UsageError, match=r"cannot write .*, which is a device: name a file"), whole_file(device):
            pass
    assert Path("/dev/null").is_char_device() and Path("/dev/full").is_char_device()


def test_a_place_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(self: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    (tmp_path / "file").touch()
    with (
        pytest.raises(UsageError, match=r"cannot write .*: (Not a directory|File exists)"),
        publish(tmp_path / "file" / "p"),
    ):
        pass
    monkeypatch.setattr(Path, "mkdir", lambda self, **kw: None if kw else refuse(self))
    with pytest.raises(UsageError, match=r"Permission denied; .* needs leave to write to"), publish(tmp_path / "p"):
        pass
    monkeypatch.undo()
    with pytest.raises(PermissionError), publish(tmp_path / "q"):  # of something else, done meanwhile
        raise PermissionError(errno.EACCES, "no", "/elsewhere")


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="names of open files are those of POSIX systems")
def test_pipes_and_open_files_are_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.html")
    for path in (tmp_path / "pipe.html", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/fd/77"):
        with pytest.raises(UsageError, match=r"cannot write .*, which is .*: name a file"), whole_file(path):
            pass
        with pytest.raises(UsageError, match=r"cannot write a folder at .*: name a new folder"), publish(Path(path)):
            pass
    with pytest.raises(UsageError, match="which is a device"), publish(Path("/dev/null")):
        pass
    assert Path("/dev/null").is_char_device()


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="a device of POSIX systems")
def test_devices_and_named_pipes_are_not_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="is a device, no plain file"):
        readable("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a named pipe, no plain file"):
        readable(tmp_path / "pipe")
    for read in (load_arrays, columns, lambda path: RecordStore(path, "host")):
        with pytest.raises(LoadError, match="is a named pipe, no plain file"):
            read(tmp_path / "pipe")
    os.mkfifo(tmp_path / "metadata.json")
    with pytest.raises(LoadError, match="is a named pipe, no plain file"):
        read_metadata(tmp_path)
    assert not is_staged(tmp_path)
    ends = os.pipe()
    assert readable(f"/dev/fd/{ends[0]}") == Path(f"/dev/fd/{ends[0]}")
    for end in ends:
        os.close(end)
    assert readable(__file__) == Path(__file__)
