"""`--flash`, a cap on code, weights and tables of the linked image."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tvm_cascade import api
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.emit.flash_cap import FlashExceededError
from tvm_cascade.errors import UsageError
from tvm_cascade.testing.tflite import ModelWriter

TARGET = "cortex-m4"


MODEL = Path(str(files("tvm_cascade.testing") / "data" / "shapes.tflite"))


def _weights() -> int:
    need = api.plan(MODEL, target=TARGET).need
    assert need is not None
    return need.constants


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Flash of the image without a cap."""
    made = api.compile(MODEL, target=TARGET, output=tmp_path_factory.mktemp("usual") / "p")
    assert made.flash_bytes is not None
    return made.flash_bytes


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Weights and tables of the image with code of few bytes, which has fewer tables."""
    folder = tmp_path_factory.mktemp("small") / "p"
    made: Any = api.compile(MODEL, target=TARGET, output=folder, optimise="size").to_dict()
    assert made["weight_bytes"] < _weights()
    return made["weight_bytes"]


def test_an_image_within_the_cap_is_the_usual_one(usual: int, tmp_path: Path) -> None:
    assert api.compile(MODEL, target=TARGET, output=tmp_path / "p", flash=usual).flash_bytes == usual


def test_code_is_made_small_where_the_usual_code_exceeds_the_cap(usual: int, tmp_path: Path) -> None:
    lines: list[str] = []
    made = api.compile(MODEL, target=TARGET, output=tmp_path / "p", flash=usual - 1, progress=lines.append)
    assert made.flash_bytes is not None and made.flash_bytes < usual
    assert f"the image needs {usual} bytes of flash, {usual - 1} available; making its code small" in lines
    assert json.loads((tmp_path / "p/metadata.json").read_text())["options"]["optimise"] == "size"


def test_what_exceeds_the_cap_is_refused_with_its_largest_layers(usual: int, small: int, tmp_path: Path) -> None:
    cap = _weights() + 100
    with pytest.raises(FlashExceededError, match=f"with --optimise size, {usual} with balanced") as refused:
        api.compile(MODEL, target=TARGET, output=tmp_path / "p", flash=cap)
    assert refused.value.needed > cap == refused.value.available
    assert refused.value.constants == small and refused.value.culprits
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("command", (["plan"], ["compile", "-o", "p"], ["compile", "-o", "p", "--no-link"]))
def test_weights_alone_exceed_the_cap(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = [command[0], str(MODEL), *command[1:], "--target", TARGET, "--flash", "512", "--json"]
    done = CliRunner().invoke(main, asked)
    error = json.loads(done.stdout)["error"]
    assert done.exit_code == 1 and error["kind"] == "infeasible" and error["available_bytes"] == 512
    assert "weights and tables alone exceed it" in error["message"] and not (tmp_path / "p").exists()


def test_the_estimate_of_code_is_told() -> None:
    cap = _weights() + 1
    assert any("probably not within --flash" in line for line in api.plan(MODEL, target=TARGET, flash=cap).suggestions)


def test_flash_that_nothing_is_linked_into_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--flash caps the flash of an image"):
        api.compile(MODEL, target="host", output=tmp_path / "p", flash=1 << 20)
    with pytest.raises(UsageError, match="--flash caps the flash of an image"):
        api.plan(MODEL, target="host", flash=1 << 20)


def _ram_of_streams(streamed: Any) -> int:
    """Return the bytes of RAM that a plan with streamed weights takes more than the usual plan."""
    told = streamed.to_dict()
    return told["peak_bytes"] + told["ram_weight_bytes"] - api.plan(MODEL, target=TARGET).peak_bytes


def test_what_saves_flash_is_told_with_its_price(small: int, tmp_path: Path) -> None:
    """Figures of the refusal are those of the plans themselves."""
    cap = small - 1
    usual = {"weights": _weights(), "ram": _ram_of_streams(api.plan(MODEL, target=TARGET, weights="stream"))}
    folder = tmp_path / "stream"
    made = api.compile(MODEL, target=TARGET, output=folder, weights="stream", optimise="size")
    fewest = {"weights": small, "ram": _ram_of_streams(made)}
    for refused, own in (
        (lambda: api.plan(MODEL, target=TARGET, flash=cap), usual),
        (lambda: api.compile(MODEL, target=TARGET, output=tmp_path / "p", flash=cap), fewest),
    ):
        with pytest.raises(FlashExceededError, match="--weights file saves") as error:
            refused()
        told = {one["option"]: one for one in error.value.to_dict().get("remedies", [])}
        assert told["--weights file"]["saved_bytes"] == own["weights"]
        assert told["--weights stream"]["ram_bytes"] == own["ram"] > 0
    assert api.plan(MODEL, target=TARGET, flash=cap, weights="file").need is not None


def test_the_frontier_of_flash_has_what_no_other_beats(tmp_path: Path) -> None:
    told = api.plan(MODEL, target=TARGET)
    assert "flash_frontier" not in told.to_dict()  # which takes a plan for every --optimise
    points = told.to_dict(details=True).get("flash_frontier", [])
    flash, cycles = [p["flash_bytes"] for p in points], [p["cycles"] for p in points]
    assert points and flash == sorted(set(flash)) and cycles == sorted(set(cycles), reverse=True)
    own = next(p for p in points if p["optimise"] == "balanced")
    assert told.flash == (own["weight_bytes"], own["estimated_code_bytes"]) and own["cycles"] == told.cycles
    assert f"--optimise balanced {own['flash_bytes']:>9} bytes" in told.to_text(details=True)
    told.write_report(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert "Flash against time" in page and all(f"{p['flash_bytes']:,}" in page for p in points)
    assert "Flash against time" not in (told._repr_html_() or "")  # a notebook's page takes no further plans
    assert "flash_frontier" not in api.plan(MODEL, target="host").to_dict(details=True)


def test_weights_of_four_bits_fit_where_the_usual_ones_exceed_the_cap(tmp_path: Path, quick_host: None) -> None:
    """Small code keeps weights that fit four bits so: `plan` refuses no cap that `compile` obeys."""
    w, rng = ModelWriter(), np.random.default_rng(6)
    weights = w.constant(rng.integers(-8, 8, (256, 160)).astype("int8"), 0.01)
    bias = w.constant(np.zeros(256, "int32"), 0.001)
    x, out = w.activation((1, 160), "int8", 0.1), w.tensor((1, 256), "int8", 0.2)
    w.operator("FULLY_CONNECTED", [x, weights, bias], [out], "FullyConnectedOptions")
    path, cap = tmp_path / "n.tflite", 160 * 256 - 1
    path.write_bytes(w.finish())
    assert any("probably not within --flash" in line for line in api.plan(path, target=TARGET, flash=cap).suggestions)
    made = api.compile(path, target=TARGET, output=tmp_path / "p", flash=cap)
    assert made.flash_bytes is not None and made.flash_bytes <= cap
