"""What every command prints under --json is what its schema says."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.runs.flash import FlashResult
from tvm_cascade.testing.onnx_layers import Layers

MODEL = str(files("tvm_cascade.testing") / "data" / "shapes.tflite")
WITH_JSON = sorted(n for n, c in main.commands.items() if any("--json" in one.opts for one in c.params))
CALLS = {  # of every command with --json, its arguments: {project} and {second} are compiled folders, {new} there is none
    "allocate": ["{new}.csv"],
    "benchmark": ["{project}", "{project} --check {model} --csv {new}.csv"],
    "bundle": ["{project} {second} -o {new}"],
    "compare": ["{project} {second}"],
    "compile": ["{model} --target cortex-m4 -o {new}", "{model} --target host -o {new}"],
    "doctor": ["", "--model {model}"],
    "export": ["{project} --as zephyr -o {new}"],
    "flash": ["{project}"],
    "front-end": ["-o {new}", "--channels 20 --no-gain -o {new}"],
    "optimize": ["{model} --target cuda --budget 5", "{floats} --target llvm --budget 5 --emit {new}"],
    "order": ["{model}", "{model} --on-chip 16KiB --rewrite", "{graph}"],
    "plan": [
        "{model}",
        "{model} --layerwise --hop 2 --axis time",
        "{model} --sram 7000 --max-macs 2",
        "{model} --stream-input --rewrite",
        "{model} --memory fast=3KiB:0.5 --memory slow=1MiB:4 --clock 168MHz",
    ],
    "quantize": ["{floats} --data {samples} -o {new}.onnx"],
    "run": ["{project}", "{project} --board host --check {model}", "{project} --board host --frames {frames}"],
    "targets": [""],
    "stages": ["{model} --target cuda", "{model} --target llvm --emit {new}"],
    "validate": ["{model} --data {data}"],
}


def schema(command: str) -> dict[str, Any]:
    return json.loads(CliRunner().invoke(main, ["schema", command]).stdout)


def printed(command: str, *args: str | Path) -> dict[str, Any]:
    return json.loads(CliRunner().invoke(main, [command, *map(str, args), "--json"]).stdout)


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory, emulator: None, quick_host: None) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp("schema") / name for name in ("project", "second")}
    for name, folder in made.items():
        printed("compile", MODEL, "--target", "cortex-m4", "--name", name, "-o", folder)
    return made


@pytest.mark.parametrize("command", WITH_JSON)
def test_what_is_printed(
    command: str, projects: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvm_cascade.runs.flash.flash_folder", Mock(return_value=FlashResult(tmp_path, "pyocd", ())))
    np.savez(tmp_path / "d.npz", image=np.zeros((2, 64, 64, 1), np.int8), labels=np.array([0, 5]))
    np.savez(tmp_path / "d_frames.npz", image=np.zeros((2, 64, 64, 1), np.int8))
    np.savez(tmp_path / "s.npz", x=np.linspace(-1, 1, 4 * 48, dtype="float32").reshape(4, 3, 4, 4))
    layers = Layers()
    convolution = layers.node("Conv", "x", layers.constant(layers.rng.normal(0, 1, (4, 3, 3, 3)).astype("float32")))
    layers.save(tmp_path / "f.onnx", convolution, (1, 3, 4, 4), 4)
    graph = {"tensors": [4, 4], "ops": [{"inputs": [0], "outputs": [1]}]}
    (tmp_path / "g.json").write_text(json.dumps(graph))
    (tmp_path / "0.csv").write_text("id,lower,upper,size\na,0,2,100\nb,1,3,50\n")
    allowed = Draft202012Validator(schema(command))
    for count, arguments in enumerate(CALLS[command]):
        words = arguments.format(
            model=MODEL,
            floats=tmp_path / "f.onnx",
            data=tmp_path / "d.npz",
            samples=tmp_path / "s.npz",
            frames=tmp_path / "d_frames.npz",
            graph=tmp_path / "g.json",
            new=tmp_path / str(count),
            **projects,
        ).split()
        found = printed(command, *words)
        allowed.validate(found)
        assert not allowed.is_valid(found | {"nobodys_key": 1})
        for key in allowed.schema["required"]:
            assert not allowed.is_valid({k: v for k, v in found.items() if k != key})


def test_wrong_values_are_refused() -> None:
    found, allowed = printed("plan", MODEL), Draft202012Validator(schema("plan"))
    for key, wrong in (("peak_bytes", "many"), ("peak_bytes", -1), ("macs", None), ("buffers", {}), ("segments", 3)):
        assert allowed.is_valid(found) and not allowed.is_valid(found | {key: wrong})


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("plan", MODEL, "--sram", "1000"), "infeasible"),
        (("plan", "none.tflite"), "load"),
        (("order", MODEL, "--nonsense"), "usage"),
    ],
)
def test_refusals(arguments: tuple[str, ...], kind: str) -> None:
    found, definitions = printed(*arguments), schema(arguments[0])["$defs"]
    Draft202012Validator({"$ref": "#/$defs/Refusal", "$defs": definitions}).validate(found)
    assert found["error"]["kind"] == kind
