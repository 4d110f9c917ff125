"""Several networks in one function: one schedule for all of them, the results of each alone."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from tvm_cascade import api, frontend, pipeline
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.errors import UsageError
from tvm_cascade.importers.interface import attach
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.passes.join_networks import interleaved, join_networks
from tvm_cascade.passes.substitution_read import read_function
from tvm_cascade.passes.substitution_write import fold
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.substitution.export_onnx import export_onnx
from tvm_cascade.tensor_spec import IoSpec, State, TensorSpec
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.quick_build import quick_run

CPU = AnalyticCost(find_device("cpu2"))


def chain(seed: int, layers: int, two: bool = False):
    net = Net("float32", "NCHW", seed=seed)
    x = net.input((1, 8, 10, 10), "x")
    y = x
    for _ in range(layers):
        y = net.conv(y, 16, 3, padding=1, activation="relu")
    return net.finish([y, net.global_pool(y)] if two else y)


def saved(mod, path):
    graph = read_function(mod["main"])
    export_onnx(graph.dag, fold(graph.dag, graph.constants), path)
    return path


def test_items_by_their_share():
    assert interleaved([["a", "b", "c", "d"], ["x", "y"]]) == ["a", "b", "x", "c", "d", "y"]
    assert interleaved([["a"], [], ["x"]]) == ["a", "x"]


@pytest.mark.parametrize("variant", ["sequential", "greedy", "both"])
def test_each_computes_what_it_computes_alone(variant):
    mods = {"a": chain(1, 3), "b": chain(2, 5, two=True), "c": chain(1, 3)}
    net = stage_graph(join_networks(mods))
    found = schedule(net.graph, CPU, Options(variant=variant)).schedule
    if variant == "greedy":
        assert max(len(stage.groups) for stage in found.stages) > 1
    rng = np.random.default_rng(0)
    data = [rng.standard_normal((1, 8, 10, 10)).astype("float32") for _ in mods]
    session = Session(compile_stages(lower_stages(net, unit_graph(net.graph, "fused"), found, LowerOptions())))
    expected = [r for mod, x in zip(mods.values(), data, strict=True) for r in quick_run(mod, x)]
    for a, b in zip(session.run(*data), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_command_line_schedules_and_emits_several(tmp_path):
    first, second = saved(chain(1, 2), tmp_path / "first.onnx"), saved(chain(2, 3), tmp_path / "second.onnx")
    folder = tmp_path / "both"
    args = ["stages", str(first), "--beside", str(second), "--beside", str(first), "--target", "llvm", "--json"]
    done = CliRunner().invoke(main, [*args, "--emit", str(folder)])
    assert done.exit_code == 0, done.output
    alone = [api.stages(path, target="llvm")[0]["sequential_ms"] for path in (first, second)]
    assert json.loads(done.stdout)["sequential_ms"] == pytest.approx(2 * alone[0] + alone[1])
    inputs = [t["name"].split("/")[0] for t in json.loads((folder / "metadata.json").read_text())["inputs"]]
    assert inputs == ["first", "second", "first_1"]


def test_the_shape_of_any_networks_input_may_be_given(tmp_path):
    """By its name in the whole; a name without a network's is of the first."""
    paths = [saved(chain(seed, 1), tmp_path / f"{name}.onnx") for seed, name in ((1, "first"), (2, "second"))]
    for path in paths:
        model = onnx.load(path)
        for axis in (2, 3):
            model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"size_{axis}"
        onnx.save(model, path)
    shapes = {"x": (1, 8, 6, 6), "second/x": (1, 8, 12, 12)}
    assert pipeline.shapes_by_network(paths, shapes) == [{"x": (1, 8, 6, 6)}, {"x": (1, 8, 12, 12)}]
    args = [
        "stages",
        str(paths[0]),
        "--beside",
        str(paths[1]),
        "--target",
        "llvm",
        "--json",
        "--emit",
        str(tmp_path / "e"),
    ]
    for name, shape in shapes.items():
        args += ["--input-shape", f"{name}={','.join(map(str, shape))}"]
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 0, done.output
    told = json.loads((tmp_path / "e" / "metadata.json").read_text())["inputs"]
    assert [tuple(t["shape"]) for t in told] == list(shapes.values())


def test_networks_with_states_are_refused(tmp_path):
    mod = frontend.load(saved(chain(1, 1), tmp_path / "a.onnx"))
    spec = TensorSpec("x", (1, 8, 10, 10), "float32")
    kept = attach(mod, IoSpec((spec,), (spec,), states=(State("x"),)))
    with pytest.raises(UsageError, match="network keeps states between calls: it cannot be scheduled with others"):
        pipeline.together([pipeline.load(kept), pipeline.load(mod)])
