"""`benchmark`: values of runs by place, compared and written; numbers themselves depend on the machine and are not asserted."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import tvm_cascade
from tvm_cascade.boards.board import load_board
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.emit.image import read_image
from tvm_cascade.emit.toolchain import build_image
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.runs.benchmark import BenchmarkResult
from tvm_cascade.testing.onnx_layers import Layers
from tvm_cascade.testing.serial_lines import EmulatedBoard

SHAPES = Path(str(files("tvm_cascade.testing") / "data" / "shapes.tflite"))


def call(*args: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layers = Layers()
    first = layers.node("Conv", "x", layers.constant(layers.rng.normal(0, 0.3, (4, 3, 3, 3)).astype("float32")))
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    layers.save(path, layers.node("Relu", first), (1, 3, 8, 8), 4)
    return path


@pytest.fixture(scope="module")
def program(network: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stages") / "program"
    tvm_cascade.stages(network, target="llvm", variant="sequential", emit=folder)
    return folder


def test_a_program_of_stages_is_run_timed_and_checked(program: Path, network: Path, tmp_path: Path) -> None:
    done = call("run", program, "--check", network, "--outputs", tmp_path / "out.npz")
    assert done.exit_code == 0 and "median of 20 runs" in done.stdout and "reference       equal" in done.stdout
    assert len(np.load(tmp_path / "out.npz").files) == 1
    told = json.loads(call("benchmark", program, "--repeat", 4, "--csv", tmp_path / "t.csv", "--json").stdout)
    assert (told["unit"], told["where"], told["runs"], told["match"]) == ("ms", "llvm", 4, None)
    assert told["low"] <= told["median"] <= told["high"]
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 5
    (tmp_path / "a.json").write_text(json.dumps(told))
    other = tvm_cascade.benchmark(program, repeat=4, against=tmp_path / "a.json")
    assert other.against is not None and other.against["ratio"] == other.median / told["median"]
    assert str(program) in other.to_text().splitlines()[1]


def test_a_wrong_output_ends_with_status_1(program: Path, tmp_path: Path) -> None:
    layers = Layers()
    layers.rng = np.random.default_rng(99)
    first = layers.node("Conv", "x", layers.constant(layers.rng.normal(0, 0.3, (4, 3, 3, 3)).astype("float32")))
    layers.save(tmp_path / "other.onnx", layers.node("Relu", first), (1, 3, 8, 8), 4)
    done = call("run", program, "--check", tmp_path / "other.onnx")
    assert done.exit_code == 1 and "different: at most" in done.stdout


def test_a_nan_is_never_equal_to_a_number(program: Path) -> None:
    from tvm_cascade.runs import staged

    example = staged._example(program)
    one, nan = np.array([1.0, 2.0]), np.array([1.0, np.nan])
    assert example.difference({"y": nan}, [one]) == example.difference({"y": one}, [nan]) == np.inf
    assert example.difference({"y": nan}, [nan]) == 0.0 and example.difference({"y": one}, [one * 1.5]) == 1 / 3
    with pytest.raises(ValueError, match="1 outputs, 2 are given"):
        example.difference({"y": one}, [one, one])


def test_projects_are_timed_here_and_counted_in_an_emulator(tmp_path: Path, emulator: None) -> None:
    tvm_cascade.compile(SHAPES, target="host", output=tmp_path / "host")
    here = tvm_cascade.benchmark(tmp_path / "host", repeat=5, check=SHAPES)
    assert (here.unit, here.runs, here.match) == ("ms", 5, True)
    tvm_cascade.compile(SHAPES, target="cortex-m4", output=tmp_path / "m4")
    counted = tvm_cascade.benchmark(tmp_path / "m4", repeat=5)
    assert counted.values == (float(tvm_cascade.run(tmp_path / "m4").instructions or 0),)
    assert counted.to_text() == f"{counted.median:.0f} instructions on mps2-an386, the same in every run"
    (tmp_path / "a.json").write_text(json.dumps(here.to_dict()))
    with pytest.raises(UsageError, match="--against is in ms, this is in instructions"):
        tvm_cascade.benchmark(tmp_path / "m4", against=tmp_path / "a.json")
    with pytest.raises(UsageError, match="this machine times projects of --target host alone"):
        tvm_cascade.benchmark(tmp_path / "m4", board="host")


def test_what_is_no_measurement_is_refused(program: Path, tmp_path: Path) -> None:
    for text in ("{}", "[]", "no"):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(LoadError, match="is not what `benchmark --json` prints"):
            tvm_cascade.benchmark(program, against=tmp_path / "a.json")
    with pytest.raises(UsageError, match="leave --board and --port out"):
        tvm_cascade.benchmark(program, board="mps2-an386")
    assert call("run", program, "--frames", "f.npz").exit_code == 2


def test_quartiles() -> None:
    done = BenchmarkResult("f", "host", "ms", (4.0, 1.0, 3.0, 2.0, 5.0))
    assert (done.low, done.median, done.high) == (2.0, 3.0, 4.0)


@pytest.mark.parametrize("emit", ["c", "obj"])
def test_layers_in_an_emulator_add_up_to_the_program(emit: str, tmp_path: Path, emulator: None) -> None:
    """What is missing is the driver's own work, a few instructions a step."""
    made = tvm_cascade.compile(SHAPES, target="cortex-m4", emit=emit, output=tmp_path / "p")
    done = tvm_cascade.benchmark(tmp_path / "p", by_layer=True, trace=tmp_path / "t.json", csv=tmp_path / "l.csv")
    names = [op.name for op in made.plan.graph.ops if not op.view]
    assert sorted(layer.name for layer in done.layers) == sorted(names)
    assert 0.95 * done.median < sum(layer.value for layer in done.layers) <= done.median
    assert sum(layer.share for layer in done.layers) == pytest.approx(1)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [event["name"] for event in events] == [layer.name for layer in done.layers]
    ends = [event["ts"] + event["dur"] for event in events]
    assert [event["ts"] for event in events[1:]] == pytest.approx(ends[:-1])
    assert len((tmp_path / "l.csv").read_text().splitlines()) == len(done.layers) + 1
    (tmp_path / "a.json").write_text(json.dumps(done.to_dict()))
    again = tvm_cascade.benchmark(tmp_path / "p", by_layer=True, against=tmp_path / "a.json")
    factors = [float(text) for text in re.findall(r"([\d.]+) times", again.to_text())]
    assert len(factors) > len(done.layers) and factors == pytest.approx(
        [1] * len(factors), abs=0.01
    )  # of few instructions


def test_layers_on_this_machine(tmp_path: Path) -> None:
    tvm_cascade.compile(SHAPES, target="host", output=tmp_path / "p")
    done = tvm_cascade.benchmark(tmp_path / "p", by_layer=True)
    assert len(done.to_dict().get("layers", ())) == len(done.layers) > 5 and all(
        layer.value > 0 for layer in done.layers
    )
    source = tmp_path / "p" / "shapes.c"
    text = source.read_text()
    line = next(s for s in text[text.rindex("shapes_invoke(int8_t") :].splitlines() if s.strip().endswith(", 0);"))
    source.write_text(text.replace(line, f"{line}\n{line}", 1))
    with pytest.raises(UsageError, match=r"shapes.c was edited since it was compiled"):
        tvm_cascade.benchmark(tmp_path / "p", by_layer=True)


def test_kernels_of_stages(program: Path, tmp_path: Path) -> None:
    """Every kernel call of the virtual machine is a row, named by the tensor of its last operator."""
    done = tvm_cascade.benchmark(program, by_layer=True, repeat=3, trace=tmp_path / "t.json", csv=tmp_path / "k.csv")
    calls = json.loads((program / "metadata.json").read_text())["calls"]
    assert [(layer.name, layer.kind) for layer in done.layers] == [(call["name"], call["kind"]) for call in calls]
    assert any("conv2d" in layer.kind for layer in done.layers)
    assert sum(layer.share for layer in done.layers) == pytest.approx(1)
    assert len(json.loads((tmp_path / "t.json").read_text())["traceEvents"]) == len(calls)
    assert len((tmp_path / "k.csv").read_text().splitlines()) == len(calls) + 1


def test_run_leads_to_the_benchmark_of_a_program(program: Path, network: Path) -> None:
    refused = call("run", program, "--check", network, "--by-layer")
    assert refused.exit_code == 2 and "leave --by-layer out; `benchmark --by-layer`" in refused.stderr


def test_groups_of_a_stage_are_one_row(tmp_path: Path) -> None:
    layers = Layers()
    left, right = (
        layers.node("Conv", "x", layers.constant(layers.rng.normal(0, 0.3, (4, 3, 3, 3)).astype("float32")))
        for _ in range(2)
    )
    layers.save(tmp_path / "two.onnx", layers.node("Concat", left, right, axis=1), (1, 3, 16, 16), 4)
    tvm_cascade.stages(tmp_path / "two.onnx", target="llvm", variant="greedy", threads=2, emit=tmp_path / "p")
    done = tvm_cascade.benchmark(tmp_path / "p", by_layer=True, repeat=2)
    calls = json.loads((tmp_path / "p" / "metadata.json").read_text())["calls"]
    assert [layer.name for layer in done.layers] == [call["name"] for call in calls]
    data = json.loads((tmp_path / "p" / "metadata.json").read_text())
    del data["calls"]
    (tmp_path / "p" / "metadata.json").write_text(json.dumps(data))
    with pytest.raises(UsageError, match="from an older version: emit it again"):
        tvm_cascade.benchmark(tmp_path / "p", by_layer=True)


def test_a_board_behind_a_port_is_timed_from_here(tmp_path: Path, emulator: None) -> None:
    pytest.importorskip("serial")
    made = tvm_cascade.compile(SHAPES, target="cortex-m4", board="mps2-an386", output=tmp_path / "p")
    board = load_board("mps2-an386")
    running = EmulatedBoard(board, build_image(read_image(made.folder), board, kind="serial").elf)
    try:
        done = tvm_cascade.benchmark(tmp_path / "p", port=running.port, repeat=3, check=SHAPES)
        told = json.loads(call("benchmark", tmp_path / "p", "--port", running.port, "--repeat", 2, "--json").stdout)
        with pytest.raises(UsageError, match="count layers in the emulator"):
            tvm_cascade.benchmark(tmp_path / "p", port=running.port, by_layer=True)
    finally:
        running.stop()
    assert (done.unit, done.runs, done.match, done.where) == ("ms", 3, True, f"mps2-an386 at {running.port}")
    assert done.line_ms is not None and done.line_ms > 0 and all(value >= 0 for value in done.values)
    assert "without an inference, taken off" in done.to_text()
    assert told["runs"] == 2 and told["line_ms"] > 0
