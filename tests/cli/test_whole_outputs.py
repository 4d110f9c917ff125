"""Every output of every command is the old or the new one at every moment, so that a kill leaves nothing half-written.

What a process killed at some moment leaves is what others see at that moment: an audit hook looks at the outputs whenever
Python opens, renames, makes or removes something, and collects what it sees.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.testing.tflite import ModelWriter

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree", "subprocess.Popen")


class _Watch:
    """States of a folder, what is hidden in it left out, at every event while it is `on`."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._look)

    def _look(self, event: str, arguments: tuple) -> None:
        if self.folder is None or event not in EVENTS:
            return
        folder, self.folder = self.folder, None  # looking makes events too
        try:
            if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR) and isinstance(arguments[0], str):
                name = os.path.relpath(arguments[0], folder)
                assert name.startswith(".") or "/." in name, f"{name} is written where it is"
            state = _state(folder)
            if state not in self.seen:
                self.seen.append(state)
        finally:
            self.folder = folder


def _state(folder: Path) -> str:
    """A digest of what lies in `folder`, hidden names left out."""
    found = hashlib.sha256()
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(n for n in names if not n.startswith(".")):
            path = os.path.join(base, name)
            try:
                with open(path, "rb") as file:
                    found.update(path.encode() + file.read())
            except FileNotFoundError:
                found.update(b"gone")
    return found.hexdigest()


@pytest.fixture(scope="module")
def watch() -> Iterator[_Watch]:
    made = _Watch()
    yield made
    made.folder = None


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`one.tflite`, `two.tflite`, `float.tflite`, buffers, and compiled projects of the first two."""
    folder = tmp_path_factory.mktemp("models")
    for name, dtype in (("one", "int8"), ("two", "int8"), ("float", "float32")):
        writer = ModelWriter()
        x = writer.activation((1, 4, 6), dtype, 0.1, 3, name="x")
        writer.operator("TANH" if name == "one" else "LOGISTIC", [x], [writer.tensor((1, 4, 6), dtype, 1 / 128, 0)])
        (folder / f"{name}.tflite").write_bytes(writer.finish())
    (folder / "b.csv").write_text("id,lower,upper,size\na,0,2,5\nb,1,3,4\n")
    return folder


def _commands(models: Path, out: Path) -> dict[str, list[str]]:
    one, two = str(models / "one.tflite"), str(models / "float.tflite")
    return {
        "report folder": ["plan", one, "--report", f"{out}/r"],
        "host": ["compile", one, "--target", "host", "-o", f"{out}/p", "--report", f"{out}/c.html"],
        "board": ["compile", one, "--target", "cortex-m4", "--emit", "c", "-o", f"{out}/p"],
        "allocate": ["allocate", f"{models}/b.csv", "-o", f"{out}/b.csv"],
        "optimize": ["optimize", two, "--target", "llvm", "-o", f"{out}/g.onnx", "--picture", f"{out}/g.svg"],
        "optimize to relax": ["optimize", two, "--target", "llvm", "-o", f"{out}/g.zip"],
        "stages": ["stages", two, "--target", "cuda", "-o", f"{out}/s.json", "--picture", f"{out}/s.png"],
        "run": ["run", f"{models}/p1", "--board", "host", "--outputs", f"{out}/o.npz"],
        "export": ["export", f"{models}/p1", "--as", "zephyr", "-o", f"{out}/z"],
        "bundle": ["bundle", f"{models}/p1", f"{models}/p2", "-o", f"{out}/b"],
    }


NEW_ONLY = ("export", "bundle")
NEED_GCC = ("board", *NEW_ONLY)


@pytest.mark.parametrize("name", list(_commands(Path(), Path())))
def test_old_or_new_at_every_moment(name: str, models: Path, watch: _Watch, tmp_path: Path, emulator: None) -> None:
    pytest.importorskip("matplotlib")
    for k, model in ((1, "one"), (2, "two")):
        if name in (*NEW_ONLY, "run") and not (models / f"p{k}").exists():
            _call("compile", str(models / f"{model}.tflite"), "--target", "cortex-m4", "-o", str(models / f"p{k}"))
    command = _commands(models, tmp_path)[name]
    files_at_once = len({word for word in command if word.startswith(str(tmp_path))})
    for again in (False,) if name in NEW_ONLY else (False, True):
        watch.seen, watch.folder = [_state(tmp_path)], tmp_path
        try:
            _call(*command)
        finally:
            watch.folder = None
        after = _state(tmp_path)
        assert watch.seen[0] != after or again
        # one more state for every output: nothing in between, nothing at the end that was not seen whole
        assert len({*watch.seen, after}) <= 1 + files_at_once, (name, again)
        assert not [p for p in tmp_path.rglob("*") if p.name.startswith(".")]


def _call(*args: str) -> None:
    done = CliRunner().invoke(main, list(args))
    assert done.exit_code == 0, done.stderr


_FOREVER = """
import sys
from tvm_cascade.cli.group import tvm_cascade as main
import tvm_cascade.api
print("ready", flush=True)
while True:
    main(sys.argv[1:], standalone_mode=False)
"""


def test_what_is_asked_to_stop_cleans_up(models: Path, tmp_path: Path) -> None:
    command = ["compile", str(models / "one.tflite"), "--target", "host", "-o", str(tmp_path / "p")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        (sys.executable, "-c", _FOREVER, *command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    time.sleep(0.3)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143 and b"Traceback" not in said
    assert {p.name for p in tmp_path.iterdir()} <= {"p"}


def test_a_full_disk_is_one_message(models: Path, tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000));"
    code = limit + "import sys; from tvm_cascade.cli import main; main(sys.argv[1:])"
    command = ("compile", str(models / "one.tflite"), "--target", "host", "-o", str(tmp_path / "p"))
    done = subprocess.run((sys.executable, "-c", code, *command), capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("tvm-cascade: cannot write") and "File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("swallow", ["pass", "raise RuntimeError('of a library') from None"])
def test_a_library_that_swallows_the_signal_changes_nothing(tmp_path: Path, swallow: str) -> None:
    code = f"""
import os, signal, sys
import tvm_cascade.api
from tvm_cascade.cli import main
def plan(*args, **kwargs):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException:
        {swallow}
tvm_cascade.api.plan = plan
main(["plan", sys.argv[1]])
"""
    model = tmp_path / "m.tflite"
    model.write_bytes(b"")
    done = subprocess.run((sys.executable, "-c", code, str(model)), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (143, b"tvm-cascade: terminated\n")
