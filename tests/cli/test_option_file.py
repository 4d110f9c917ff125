"""`tvm-cascade.toml` beside a model: its options hold where the command line gives none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tvm_cascade.cli.group import tvm_cascade
from tvm_cascade.cli.option_file import ALL, KEYS, WRITING, key_of
from tvm_cascade.testing import shapes

pytestmark = pytest.mark.usefixtures("quick_host")

MODEL = Path(shapes.__file__).parent / "data" / "shapes.tflite"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copy(MODEL, tmp_path))


def run(*args: object) -> Result:
    return CliRunner().invoke(tvm_cascade, [*map(str, args)])


def write(model: Path, text: str) -> None:
    (model.parent / "tvm-cascade.toml").write_text(text, encoding="utf-8")


def peak(*args: object) -> int:
    done = run(*args, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)["peak_bytes"]


def test_an_option_of_the_file_holds_where_the_command_line_has_none(model: Path) -> None:
    plain, streamed = peak("plan", model), peak("plan", model, "--stream-input")
    write(model, "stream-input = true\n")
    assert peak("plan", model) == streamed < plain
    assert "options of" in run("plan", model).stderr


def test_the_command_line_wins(model: Path) -> None:
    write(model, 'sram = "1KiB"\n')
    assert run("plan", model).exit_code == 1
    assert peak("plan", model, "--sram", "min") > 1024
    write(model, "overlap = false\n")
    assert peak("plan", model, "--sram", "min", "--overlap") < peak("plan", model, "--sram", "min")


def test_a_table_is_for_the_model_of_that_name(model: Path) -> None:
    write(model, 'layerwise = true\n["shapes.tflite"]\nlayerwise = false\n["other.tflite"]\nsram = 1\n')
    assert peak("plan", model) < 40960


def test_a_required_option_may_come_from_the_file(model: Path) -> None:
    write(model, 'target = "host"\nname = "named"\n')
    done = run("compile", model, "-o", model.parent / "out")
    assert done.exit_code == 0, done.stderr
    assert (model.parent / "out" / "named.h").is_file()


def test_commands_with_another_meaning_of_an_option_leave_it_alone(model: Path) -> None:
    write(model, 'target = "host"\nmax-macs = 1.5\ntime-limit = 1\n')
    done = run("stages", model)
    assert done.exit_code == 2 and "--target" in done.stderr
    assert run("stages", model, "--target", "llvm").exit_code == 0


def test_where_a_network_ends_holds_for_every_command(model: Path) -> None:
    write(model, 'until = "no such tensor"\n')
    for command in (("plan", model), ("order", model), ("optimize", model, "--target", "cuda")):
        done = run(*command)
        assert done.exit_code == 2 and "no such tensor" in done.stderr


def test_the_path_of_a_board_is_relative_to_the_file(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(model, 'target = "cortex-m4"\nboard = "mine.json"\n')
    (model.parent / "mine.json").write_text("{}")
    monkeypatch.chdir("/")
    done = run("compile", model, "-o", model.parent / "out")
    assert done.exit_code == 2 and f"board file {model.parent / 'mine.json'}" in done.stderr


@pytest.mark.parametrize("key", ["report", "database", "tune", "metaschedule", "trials", "cache"])
def test_what_writes_or_runs_stands_on_the_command_line(model: Path, key: str) -> None:
    write(model, f'{key} = "page.html"\n')
    before = sorted(model.parent.iterdir())
    done = run("compile", model, "--target", "host", "-o", model.parent / "out")
    assert done.exit_code == 2 and f"{key} is for the command line alone" in done.stderr
    assert sorted(model.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("srma = 5\n", "unknown key 'srma'; did you mean sram? known: target, "),
        ("output = 'x'\n", "unknown key 'output'; known: target, "),
        ("[plan]\nsram = 5\n", "unknown key 'plan'"),
        ('["a.tflite"]\nsrma = 5\n', "unknown key 'srma'"),
        ("sram = \n", "tvm-cascade.toml: Invalid value"),
        ('sram = "much"\n', "tvm-cascade.toml: sram: "),
        ('granularity = "atom"\n', "tvm-cascade.toml: granularity: "),
        ("max-macs = 0.5\n", "tvm-cascade.toml: max-macs: "),
        ("state = 3.5\n", "tvm-cascade.toml: state: "),
        ("layerwise = 3\n", "tvm-cascade.toml: layerwise: write true or false"),
        ('until = [["a"]]\n', "tvm-cascade.toml: until: write a text or a number"),
        ("sram = { a = 1 }\n", "tvm-cascade.toml: sram: write a text or a number"),
        ("hop = true\n", "tvm-cascade.toml: hop: write a text or a number"),
        (f"sram = {'[' * 3000}{']' * 3000}\n", "tvm-cascade.toml: its brackets are nested too deep"),
    ],
)
def test_mistakes_are_refused_with_a_sentence(model: Path, text: str, said: str) -> None:
    write(model, text)
    done = run("plan", model, "--json")
    assert done.exit_code == 2
    assert said in done.stderr
    assert said in json.loads(done.stdout)["error"]["message"]


def test_every_planning_option_is_a_key() -> None:
    for command in ("plan", "compile"):
        options = [p for p in tvm_cascade.commands[command].params if isinstance(p, click.Option)]
        spelled = {o.name: o.opts[0].lstrip("-") for o in options}
        assert {key_of(name) for name in ALL if name in spelled} == {spelled[name] for name in ALL if name in spelled}
        others = {"output", "as_json", "verbose", "details", *WRITING}
        assert set(spelled) - set(KEYS.values()) <= others
        assert "tvm-cascade.toml" in run(command, "--help").stdout
