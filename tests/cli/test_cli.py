"""The command line from outside: keys of JSON objects, exit statuses, one line for every error, nothing half-written.

Commands run in this process through click's runner; the kill tests run in processes of their own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import reduce
from importlib.resources import files
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.emit.image import read_image
from tvm_cascade.errors import UnsupportedOperatorError

MODEL = str(files("tvm_cascade.testing") / "data" / "shapes.tflite")
PLAN_KEYS = {
    "baseline_peak_bytes",
    "peak_bytes",
    "macs",
    "baseline_macs",
    "bound_bytes",
    "frontier",
    "buffers",
    "seconds",
}


def call(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


def data(result: Result) -> dict:
    """The one JSON object on standard output."""
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def refused(result: Result, status: int, text: str) -> None:
    """One line of error after any progress, no traceback, nothing on standard output."""
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == status
    assert result.stdout == "" and "Traceback" not in result.stderr
    assert text in result.stderr
    said = [line for line in result.stderr.splitlines() if line.startswith(("tvm-cascade: ", "Error: "))]
    assert len(said) == 1 and result.stderr.splitlines()[-1] == said[0]


def refused_in_json(result: Result, status: int, kind: str, text: str) -> dict:
    """The error on standard output, which says what the one line on standard error says."""
    assert result.exit_code == status and "Traceback" not in result.stderr
    error = json.loads(result.stdout)["error"]
    assert {"kind", "message", "remedy", "operators"} <= error.keys() and error["kind"] == kind
    assert text in error["message"] and result.stderr.splitlines()[-1].endswith(error["message"])
    return error


def test_refusals_are_json_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = tmp_path / "half.tflite"
    half.write_bytes(Path(MODEL).read_bytes()[:3000])
    refused_in_json(call("plan", half, "--json"), 2, "load", "truncated")
    refused_in_json(call("plan", tmp_path / "none.tflite", "--json"), 2, "load", "none.tflite")
    refused_in_json(call("plan", MODEL, "--target", "z80", "--json"), 2, "usage", "z80")
    refused_in_json(call("plan", MODEL, "--json", "--nonsense"), 2, "usage", "--nonsense")
    refused_in_json(call("plan", "--json"), 2, "usage", "MODEL")
    refused_in_json(call("export", tmp_path, "--json", "--as", "nix", "-o", "x"), 2, "usage", "nix")

    unsupported = UnsupportedOperatorError("m.onnx", ["Loop", "If"], remedy="unroll it")
    for failure, status, kind in (
        (ValueError("lost"), 1, "internal"),
        (MemoryError(), 2, "system"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (unsupported, 2, "unsupported_operator"),
    ):
        monkeypatch.setattr("tvm_cascade.api.plan", Mock(side_effect=failure))
        error = refused_in_json(call("plan", MODEL, "--json"), status, kind, "")
    assert error["operators"] == ["Loop", "If"] and error["remedy"] == "unroll it"
    assert call("plan", MODEL).stdout == ""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A project for the default board of a Cortex-M4, and what compile printed."""
    if shutil.which("arm-none-eabi-gcc") is None:
        pytest.skip("arm-none-eabi-gcc is not installed")
    folder = tmp_path_factory.mktemp("cli") / "p"
    return folder, data(call("compile", MODEL, "--target", "cortex-m4", "--hook", "-o", folder, "--json"))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host") / "h"
    data(call("compile", MODEL, "--target", "host", "-o", folder, "--json"))
    return folder


def test_plan(tmp_path: Path) -> None:
    result = call("plan", MODEL, "--json", "--report", tmp_path / "r")
    found = data(result)
    assert found.keys() >= PLAN_KEYS
    assert found["bound_bytes"] <= found["peak_bytes"] < found["baseline_peak_bytes"]
    assert found["macs"] == found["baseline_macs"]
    points = [(p["peak_bytes"], p["mac_factor"]) for p in found["frontier"]]
    assert points == sorted(points) and [f for _, f in points] == sorted((f for _, f in points), reverse=True)
    assert "planning" in result.stderr
    assert (tmp_path / "r").is_dir()
    assert "arena" in call("plan", MODEL, "--layerwise").stdout


def test_compile_and_run(project: tuple[Path, dict], tmp_path: Path) -> None:
    if shutil.which("qemu-system-arm") is None:
        pytest.skip("qemu-system-arm is not installed")
    folder, made = project
    assert made.keys() >= PLAN_KEYS | {"arena_bytes", "ram_bytes", "flash_bytes", "elf", "files"}
    assert made["arena_bytes"] == made["peak_bytes"] <= made["ram_bytes"]
    assert (folder / made["elf"]).is_file()
    assert sorted(made["files"]) == sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    found = data(call("run", folder, "--check", MODEL, "--outputs", tmp_path / "o.npz", "--json"))
    keys = {"arena_bytes", "arena_high_water_bytes", "stack_bytes", "executed_macs", "instructions", "match"}
    assert found.keys() >= keys | {"max_abs_diff"}
    assert (found["match"], found["max_abs_diff"]) == (True, 0)
    assert found["arena_bytes"] == found["arena_high_water_bytes"] == made["arena_bytes"]
    assert found["executed_macs"] == made["macs"]
    with np.load(tmp_path / "o.npz") as outputs:
        assert outputs["scores"].shape == (1, 6)


def test_run_takes_inputs_by_name(host: Path, tmp_path: Path) -> None:
    image = np.random.default_rng(5).integers(-128, 128, (1, 64, 64, 1), dtype=np.int8)
    np.savez(tmp_path / "in.npz", image=image)
    found = data(call("run", host, "--inputs", tmp_path / "in.npz", "--check", MODEL, "--json"))
    assert found["match"] is True
    np.savez(tmp_path / "bad.npz", picture=image)
    refused(call("run", host, "--inputs", tmp_path / "bad.npz"), 2, "image")
    np.savez(tmp_path / "type.npz", image=image.astype(np.float32))
    refused(call("run", host, "--inputs", tmp_path / "type.npz"), 2, "float32")
    (tmp_path / "no.npz").write_bytes(b"PK\x03\x04nothing")
    refused(call("run", host, "--inputs", tmp_path / "no.npz"), 2, "no.npz")


def test_other_commands(tmp_path: Path) -> None:
    order = data(call("order", MODEL, "--on-chip", "16KiB", "--json"))
    keys = {
        "nodes",
        "partitions",
        "file_order_peak_bytes",
        "peak_bytes",
        "optimal",
        "order",
        "traffic_bytes",
        "seconds",
    }
    assert order.keys() >= keys and sorted(order["order"]) == sorted(set(order["order"]))
    stages = data(call("stages", MODEL, "--target", "cuda", "--json"))
    assert stages.keys() >= {"stages", "cost_ms", "sequential_ms", "greedy_ms", "transitions", "seconds"}
    assert stages["cost_ms"] <= stages["sequential_ms"]
    found = data(call("optimize", MODEL, "--target", "cuda", "--budget", "5", "--json"))
    assert found.keys() >= {"cost_before", "cost_after", "steps", "graphs_explored", "seconds"}
    buffers = tmp_path / "b.csv"
    buffers.write_text("id,lower,upper,size\na,0,2,100\nb,1,3,50\nc,2,4,100\n")
    found = data(call("allocate", buffers, "-o", tmp_path / "out.csv", "--json"))
    assert found.keys() >= {"peak_bytes", "bound_bytes", "optimal", "seconds"} and found["peak_bytes"] == 150
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == "id,lower,upper,size,offset"
    assert "ok" in json.loads(call("doctor", "--model", MODEL, "--json").stdout)


def test_export_and_bundle(project: tuple[Path, dict], tmp_path: Path) -> None:
    folder, made = project
    for kind, file in (("zephyr", "zephyr/module.yml"), ("arduino", "library.properties")):
        found = data(call("export", folder, "--as", kind, "-o", tmp_path / kind, "--json"))
        assert file in found["files"] and (tmp_path / kind / file).is_file()
    refused(call("export", folder, "--as", "zephyr", "-o", tmp_path / "zephyr"), 2, "not empty")
    refused(call("bundle", folder, "-o", tmp_path / "b"), 2, "at least two networks")
    refused(call("bundle", folder, folder, "-o", tmp_path / "b"), 2, "different names")
    assert not (tmp_path / "b").exists()
    other = tmp_path / "second.tflite"
    other.write_bytes(Path(MODEL).read_bytes())
    second = data(call("compile", other, "--target", "cortex-m4", "--layerwise", "-o", tmp_path / "2", "--json"))
    found = data(call("bundle", folder, tmp_path / "2", "-o", tmp_path / "b", "--json"))
    assert found["networks"] == ["shapes", "second"]
    assert found["arena_bytes"] == second["arena_bytes"]
    assert found["separate_bytes"] == made["arena_bytes"] + second["arena_bytes"]
    assert (tmp_path / "b" / found["elf"]).is_file()
    refused(call("bundle", folder, tmp_path / "2", "-o", tmp_path / "b"), 2, "not empty")


def test_what_a_run_on_this_machine_cannot_do(host: Path, tmp_path: Path) -> None:
    refused(call("run", host, "--port", "/dev/null"), 2, "which no program behind a port is linked for")
    refused(call("run", host, "--timeout", "nan"), 2, "--timeout nan: give a number of seconds above 0")
    refused(call("run", host, "--check", host), 2, "is a folder; --check takes the model's file")
    for name, content in (
        ("empty.tflite", b""),
        ("half.tflite", Path(MODEL).read_bytes()[:3000]),
        ("text.onnx", b"text"),
    ):
        (tmp_path / name).write_bytes(content)
        refused(call("run", host, "--check", tmp_path / name), 2, name)


def test_caps_name_what_is_needed_and_available(tmp_path: Path) -> None:
    out = tmp_path / "p"
    result = call("compile", MODEL, "--target", "cortex-m4", "--sram", "1000", "-o", out)
    refused(result, 1, "1000 available")
    assert "needs " in result.stderr and "--stream-input" in result.stderr
    error = refused_in_json(call("plan", MODEL, "--sram", "1000", "--json"), 1, "infeasible", "1000 available")
    assert error["available_bytes"] == 1000 < error["needed_bytes"] and error["operators"]
    assert list(tmp_path.iterdir()) == []


def test_a_board_of_too_little_memory_is_named(emulator: None, tmp_path: Path) -> None:
    result = call("compile", MODEL, "--target", "cortex-m0plus", "--layerwise", "-o", tmp_path / "p")
    refused(result, 1, "microbit has 16384")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--target", "z80"), "unknown target 'z80'"),
        (("--target", "cortex-m4", "--board", "nix"), "unknown board 'nix'"),
        (("--target", "cortex-m4", "--board", "microbit"), "microbit"),
        (("--target", "host", "--board", "mps2-an386"), "target host runs on board host"),
        (("--target", "cortex-m4", "--sram", "12x"), "is no size"),
        (("--target", "cortex-m4", "--input-shape", "a"), "is no input shape"),
        (("--target", "cortex-m4", "--max-macs", "0.5"), "--max-macs"),
        (("--target", "cortex-m4", "--clock", "168"), "write hertz (168000000) or a unit (168MHz)"),
        (("--target", "cortex-m4", "--axis", "2"), "give --hop too"),
        (("--target", "cortex-m4", "--objective", "bytes"), "give --memory too"),
        (("--target", "cortex-m4", "--memory", "a=4KiB,b=64KiB:3"), "give --memory once for every memory"),
        (("--target", "cortex-m4", "--report", "plan.pdf"), "give a name that ends in .html, or a folder"),
        (("--target", "cortex-m4", "--emit", "asm"), "--emit"),
        (("--target", "host", "--name", ""), "--name"),
        ((), "Missing option '--target'. For example: tvm-cascade compile model.tflite --target"),
    ],
)
def test_bad_options(args: tuple[str, ...], text: str, tmp_path: Path) -> None:
    result = call("compile", MODEL, *args, "-o", tmp_path / "p")
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert text in result.stderr and "Traceback" not in result.stderr and result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_words_of_other_tools_name_the_command() -> None:
    refused(call("boards"), 2, "No such command 'boards'. Did you mean 'targets'?")


def test_files_that_are_no_models(tmp_path: Path) -> None:
    for args in (("allocate", tmp_path / "no"), ("stages", tmp_path / "no.json", "--target", "cuda")):
        refused(call(*args), 2, f"{args[1]}: No such file or directory")
    whole = Path(MODEL).read_bytes()
    for name, content in (
        ("truncated.tflite", whole[: len(whole) // 2]),
        ("empty.tflite", b""),
        ("text.tflite", b"hello world, this is no flatbuffer at all"),
        ("half.onnx", whole[:5000]),
        ("empty.onnx", b""),
        ("x.txt", whole[4:]),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        refused(call("plan", path), 2, name)
        refused(call("compile", path, "--target", "cortex-m4", "-o", tmp_path / "out" / name), 2, name)
    refused(call("plan", tmp_path / "none.tflite"), 2, "none.tflite")
    refused(call("plan", tmp_path), 2, tmp_path.name)
    assert not list(tmp_path.glob("out/*"))


def test_missing_tools(project: tuple[Path, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = project
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    compile_it = ("compile", MODEL, "--target", "cortex-m4", "-o", tmp_path / "p")
    refused(call(*compile_it, "--ram", "64KiB"), 2, "arm-none-eabi-gcc")  # a cap that only linking can check
    refused(call("run", folder), 2, "qemu-system-arm")
    assert "qemu-system-arm" in call("doctor").stdout
    assert [p.name for p in tmp_path.iterdir()] == ["bin"]
    written = call(*compile_it)  # an IDE has its own compiler: the project is written, and nothing linked
    assert written.exit_code == 0 and "arm-none-eabi-gcc" in written.stdout + written.stderr


def test_a_folder_that_is_not_ours_stays(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "thesis.txt").write_text("precious")
    refused(call("compile", MODEL, "--target", "host", "-o", tmp_path / "p"), 2, "other than a compiled project")
    refused(call("run", tmp_path / "p"), 2, "tvm-cascade compile")
    refused(call("export", tmp_path / "p", "--as", "zephyr", "-o", tmp_path / "z"), 2, "tvm-cascade compile")
    assert [p.name for p in (tmp_path / "p").iterdir()] == ["thesis.txt"] and not (tmp_path / "z").exists()


def test_metadata_that_was_damaged(host: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(host, broken)
    for text in ("", "{", "[]", '{"project": 3}', '{"project": {"interface": {}}}'):
        (broken / "metadata.json").write_text(text)
        refused(call("run", broken), 2, "metadata.json")


@pytest.mark.parametrize(
    ("at", "value"),
    [
        ("host outputs 0 name", "other"),
        ("host outputs 0 dtype", "../x"),
        ("host outputs 0 offset", -1),
        ("host inputs 0 shape", [1, None]),
        ("host arena_bytes", 10**6),
        ("host spare_bytes", []),
        ("plan cost cycles", "x"),
        ("project interface outputs 0 name", "other"),
        ("project interface arena_bytes", "x"),
        ("project interface inputs 0 stream_axis", []),
        ("project sources", ["missing.c"]),
    ],
)
def test_metadata_edited_by_hand(project: tuple[Path, dict], tmp_path: Path, at: str, value: object) -> None:
    shutil.copytree(project[0], tmp_path / "p")
    metadata = json.loads((tmp_path / "p" / "metadata.json").read_text())
    *path, last = (int(key) if key.isdigit() else key for key in at.split())
    reduce(lambda record, key: record[key], path, metadata)[last] = value
    (tmp_path / "p" / "metadata.json").write_text(json.dumps(metadata))
    refused(
        call("export", tmp_path / "p", "--as", "zephyr", "-o", tmp_path / "z"),
        1 if value == 10**6 else 2,
        "compile again",
    )
    assert not (tmp_path / "z").exists()


def test_compiling_twice_gives_the_same_bytes(project: tuple[Path, dict], tmp_path: Path) -> None:
    folder, made = project
    code = "import sys; from tvm_cascade.cli import main; main(sys.argv[1:])"
    command = (sys.executable, "-c", code, "compile", MODEL, "--target", "cortex-m4", "--hook", "-o", tmp_path / "q")
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    for name in made["files"]:
        assert (tmp_path / "q" / name).read_bytes() == (folder / name).read_bytes(), name


_COMPILE_FOREVER = """
import sys
from tvm_cascade import compile
from pathlib import Path
print("ready", flush=True)
while True:
    compile(sys.argv[1], target="host", output=sys.argv[2])
"""


def test_killed_at_any_time_the_folder_is_absent_or_complete(host: Path, tmp_path: Path) -> None:
    draw = random.Random(3)
    out, whole = tmp_path / "p", {p.relative_to(host) for p in host.rglob("*") if p.is_file()}
    for _ in range(3):
        command = (sys.executable, "-c", _COMPILE_FOREVER, MODEL, str(out))
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            time.sleep(draw.uniform(0.0, 2.0))
            process.send_signal(signal.SIGKILL)
        if out.exists():
            assert {p.relative_to(out) for p in out.rglob("*") if p.is_file()} == whole
            read_image(out)
    data(call("compile", MODEL, "--target", "host", "-o", out, "--json"))
    assert data(call("run", out, "--check", MODEL, "--json"))["match"] is True


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("stages", "--target", "rocm"), "neither cuda nor llvm"),
        (("optimize", "--target", "nosuch"), "neither cuda nor llvm"),
        (("optimize", "--target", "cuda", "--alpha", "nan"), "--alpha nan: give a factor"),
        (("stages", "--target", "cuda", "--batch", "99999999"), "--batch"),
        (("stages", "--target", "cuda", "-o", "{}/s.json", "--picture", "{}/s.bad"), "pictures are"),
        (("optimize", "--target", "cuda", "-o", "{}/absent/g.onnx"), "there is no folder"),
        (("optimize", "--target", "cuda", "-o", "{}"), "is a folder"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(args: tuple[str, ...], text: str, tmp_path: Path) -> None:
    command, *options = args
    result = call(command, MODEL, *(o.format(tmp_path) for o in options))
    refused(result, 2, text)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "lacks the column"),
        ("id,lower,upper,size\na,0,2,5\na,1,2,5\n", "id a is that of line 2 too"),
        ("id,lower,upper,size\na,0,2,5,6\n", "more fields than columns"),
        ("id,lower,upper,size\na,0,2,-5\n", "a size of -5"),
        ("id,lower,upper,size\na,2,2,5\n", "a life from 2 to 2"),
    ],
)
def test_buffers_that_make_no_sense(content: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_text(content)
    refused(call("allocate", path), 2, text)


def test_buffers_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_text("id,lower,upper,size\na,0,2,5\n", encoding="utf-8-sig")
    assert data(call("allocate", path, "--json"))["peak_bytes"] == 5


def test_an_interrupt_inside_a_callback_is_not_lost() -> None:
    code = (
        "import _thread, time, weakref\n"
        "from tvm_cascade.cli import main, group\n"
        "class Thing: pass\n"
        "def command(*_, **__):\n"
        "    thing = Thing()\n"
        "    kept = weakref.ref(thing, lambda _: _thread.interrupt_main() or [None for _ in range(9)])\n"
        "    del thing\n"
        "    for _ in range(2000): time.sleep(0.01)\n"  # one long sleep is not cut short by interrupt_main
        "    print('went on')\n"
        "group.tvm_cascade = command\n"
        "main([])\n"
    )
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "tvm-cascade: interrupted\n")


def test_the_list_of_commands_is_whole_in_80_columns() -> None:
    listed = CliRunner().invoke(main, ["--help"], terminal_width=80).output.partition("Commands:\n")[2].splitlines()
    assert len(listed) == len(main.commands) and all(line.endswith(".") and "..." not in line for line in listed)


def test_answers_come_first(host: Path, tmp_path: Path) -> None:
    assert call("run", host, "--check", MODEL).stdout.startswith("ok: the outputs are the reference's, on host")
    assert call("run", host).stdout.startswith("ok: ran as planned, not checked, on host")
    assert call("doctor").stdout.startswith("tvm-cascade ")
    made = call("optimize", MODEL, "--target", "cuda").stdout.splitlines()
    assert " ms" in made[0] and made[-1].startswith("saved           nothing: -o FILE.onnx keeps the graph")
    kept = call("optimize", MODEL, "--target", "cuda", "-o", tmp_path / "better.json").stdout.splitlines()
    assert kept[-1] == f"saved           {tmp_path / 'better.json'}"
    assert (
        "x as fast as one operator after the other: "
        in call("stages", MODEL, "--target", "cuda").stdout.splitlines()[0]
    )
