"""`order` of plain graphs: what the file means, operators by number, one sentence for what is no graph."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tvm_cascade
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.ordering import peak_of
from tvm_cascade.ordering.graph_file import read_graph
from tvm_cascade.testing.brute_force import least_peak_by_sets

FORK = {  # 0 -> (1, 2) -> 3: the large branch first is dearer
    "tensors": [10, 1, 40, 2, 30, 5],
    "ops": [
        {"inputs": [0], "outputs": [2]},
        {"inputs": [2], "outputs": [1]},
        {"inputs": [0], "outputs": [4]},
        {"inputs": [4], "outputs": [3]},
        {"inputs": [1, 3], "outputs": [5]},
    ],
}


def written(folder: Path, data: object, name: str = "graph.json") -> str:
    path = folder / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


def ordered(path: str, *options: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["order", path, "--json", *options])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def drawn(seed: int, ops: int) -> dict[str, Any]:
    """A random graph whose tensors are numbered at random; some inputs and outputs nobody uses."""
    r = random.Random(seed)
    sizes = [r.randrange(0, 40) for _ in range(r.choice((1, 2, 3)))]
    made: list[dict[str, list[int]]] = []
    for _ in range(ops):
        reads = [r.randrange(len(sizes)) for _ in range(r.choice((0, 1, 1, 2, 3)))]
        outputs = list(range(len(sizes), len(sizes) + r.choice((0, 1, 1, 1, 2))))
        sizes += [r.randrange(0, 40) for _ in outputs]
        made.append({"inputs": reads, "outputs": outputs})
    at = r.sample(range(len(sizes)), len(sizes))
    placed = [0] * len(sizes)
    for t, size in enumerate(sizes):
        placed[at[t]] = size
    return {"tensors": placed, "ops": [{k: [at[t] for t in v] for k, v in op.items()} for op in made]}


def test_operators_are_told_by_number(tmp_path: Path) -> None:
    data = ordered(written(tmp_path, FORK))
    assert data["order"] == [0, 1, 2, 3, 4] and data["nodes"] == 5
    assert (data["peak_bytes"], data["bound_bytes"], data["optimal"]) == (51, 51, True)
    assert data["step_bytes"] == [50, 51, 41, 33, 8]
    text = CliRunner().invoke(main, ["order", written(tmp_path, FORK)]).output
    assert "operators       0 1 2 3 4" in text


def test_a_tensor_that_nobody_writes_is_there_from_the_start_and_one_that_nobody_reads_to_the_end(
    tmp_path: Path,
) -> None:
    graph = read_graph(
        written(
            tmp_path, {"tensors": [3, 5, 7], "ops": [{"inputs": [], "outputs": [1]}, {"inputs": [1], "outputs": []}]}
        )
    )
    assert (graph.inputs, graph.outputs) == ((0, 2), (0, 2))
    assert peak_of(graph, (0, 1)) == 15


@pytest.mark.parametrize("seed", range(12))
def test_small_graphs_are_ordered_as_brute_force_does(tmp_path: Path, seed: int) -> None:
    path = written(tmp_path, drawn(seed, 8))
    data, graph = ordered(path), read_graph(path)
    assert data["optimal"] and data["peak_bytes"] == data["bound_bytes"] == least_peak_by_sets(graph)
    assert data["peak_bytes"] == peak_of(graph, data["order"]) == max(data["step_bytes"])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ('{"tensors": [1, 2', "not readable as JSON"),
        ("[" * 100_000, "not readable as JSON"),
        ("[]", "not a graph with the lists tensors and ops"),
        ({"tensors": [1], "ops": {}}, "not a graph with the lists tensors and ops"),
        ({"tensors": [1, -1], "ops": []}, "tensor 1 has -1 bytes"),
        ({"tensors": [1, True], "ops": []}, "tensor 1 has true bytes"),
        ({"tensors": ["x" * 99], "ops": []}, 'tensor 0 has "xxxx'),
        ({"tensors": [1 << 52, 1 << 53], "ops": []}, "bytes of tensors: divide all sizes"),
        ({"tensors": [1], "ops": [7]}, "operator 0 is 7"),
        ({"tensors": [1], "ops": [{"inputs": [0]}]}, "operator 0 has no list of outputs"),
        ({"tensors": [1], "ops": [{"inputs": [1], "outputs": []}]}, "operator 0 has 1 among its inputs"),
        ({"tensors": [1], "ops": [{"inputs": [-1], "outputs": []}]}, "operator 0 has -1 among its inputs"),
        (
            {"tensors": [1, 1], "ops": [{"inputs": [0], "outputs": [1]}] * 2},
            "writes tensor 1, which is written already",
        ),
        (
            {"tensors": [1, 1, 1], "ops": [{"inputs": [1], "outputs": [2]}, {"inputs": [0], "outputs": [1]}]},
            "operator 0 reads tensor 1 before anything writes it: list operators in an order in which they can run",
        ),
    ],
)
def test_what_is_no_graph_is_refused_in_one_sentence(tmp_path: Path, data: object, reason: str) -> None:
    path = written(tmp_path, data)
    result = CliRunner().invoke(main, ["order", path])
    assert result.exit_code == 2 and result.stdout == ""
    assert reason in result.stderr and len(result.stderr.splitlines()) == 1
    with pytest.raises(LoadError, match=r"graph\.json: "):
        tvm_cascade.order(path)


def test_a_missing_graph_is_said_to_be_missing(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["order", str(tmp_path / "g.json")])
    assert result.exit_code == 2 and "g.json: no such file" in result.stderr and "JSON" not in result.stderr


def test_options_for_networks_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, FORK)
    result = CliRunner().invoke(main, ["order", path, "--until", "x"])
    assert result.exit_code == 2 and "is a plain graph" in result.stderr
    with pytest.raises(UsageError, match="is a plain graph"):
        tvm_cascade.order(path, input_shapes={"x": (1,)})


def test_the_functions_and_the_command_agree(tmp_path: Path) -> None:
    path = written(tmp_path, drawn(3, 14))
    ours, theirs = tvm_cascade.order(path, on_chip=64), ordered(path, "--on-chip", "64")
    assert ours | {"seconds": 0} == theirs | {"seconds": 0}


def test_no_tvm_is_imported(tmp_path: Path) -> None:
    path = written(tmp_path, FORK)
    code = f"""
import sys
from tvm_cascade.cli.group import tvm_cascade as main
main(["order", {path!r}, "--json"], standalone_mode=False)
assert "tvm" not in sys.modules and "tvm_ffi" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=60)
