"""Inputs that are fixed to values (`--input-value`): folded, with the branches that hang on them, and out of the signature."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tvm_cascade
from tvm_cascade.cli.group import tvm_cascade as commands
from tvm_cascade.errors import UsageError
from tvm_cascade.fixed_inputs import FixedInput, fixed_inputs, split
from tvm_cascade.importers.interface import io_spec
from tvm_cascade.testing.tflite import ModelWriter

onnx = pytest.importorskip("onnx")
helper, kinds, numpy_helper = onnx.helper, onnx.TensorProto, onnx.numpy_helper
WEIGHTS = np.random.default_rng(0).standard_normal((2, 4, 3, 3)).astype("float32")


def by_rate(folder: Path) -> Path:
    """A network with a branch for a sample rate, whose outputs have other sizes in each, and a sum with the rate."""
    branches = [
        helper.make_graph(
            [helper.make_node("Conv", ["x", f"w{k}"], [f"z{k}"], strides=[1 + k])],
            f"way{k}", [], [helper.make_tensor_value_info(f"z{k}", kinds.FLOAT, None)],
            [numpy_helper.from_array(WEIGHTS[k], f"w{k}")],
        )
        for k in range(2)
    ]  # fmt: skip
    nodes = [
        helper.make_node("Equal", ["rate", "k"], ["c"]),
        helper.make_node("If", ["c"], ["z"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Cast", ["rate"], ["r"], to=kinds.FLOAT),
        helper.make_node("Div", ["r", "d"], ["q"]),
        helper.make_node("Add", ["z", "q"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "by_rate",
        [helper.make_tensor_value_info("x", kinds.FLOAT, [1, 3, 20]), helper.make_tensor_value_info("rate", kinds.INT64, [])],
        [helper.make_tensor_value_info("y", kinds.FLOAT, None)],
        [numpy_helper.from_array(np.int64(16000), "k"), numpy_helper.from_array(np.float32(8000), "d")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "by_rate.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.usefixtures("quick_host")
@pytest.mark.parametrize(("rate", "size"), [(16000, 18), (8000, 9)])
def test_a_branch_is_taken_and_the_reference_gets_the_value(tmp_path: Path, rate: int, size: int) -> None:
    model = by_rate(tmp_path)
    made = tvm_cascade.compile(model, target="host", output=tmp_path / "p", input_value={"rate": rate})
    assert made.plan.graph.macs == size * 4 * 9
    interface = json.loads((tmp_path / "p" / "metadata.json").read_text())["project"]["interface"]
    assert [i["name"] for i in interface["inputs"]] == ["x"]
    (fixed,) = interface["fixed"]
    assert (fixed["name"], fixed["dtype"]) == ("rate", "int64") and int(FixedInput.from_dict(fixed).array) == rate
    done = tvm_cascade.run(tmp_path / "p", check=model)
    assert done.match and done.outputs["y"].shape == (1, 4, size)


def sums(dtype: str) -> bytes:
    """A file with inputs x and w, and the output x + 2 w."""
    writer, scale = ModelWriter(), None if dtype == "float32" else 0.5
    x, w = (writer.activation((1, 2, 2, 3), dtype, scale, 0, name=n) for n in ("x", "w"))
    twice, y = (writer.tensor((1, 2, 2, 3), dtype, scale, 0, name=n) for n in ("twice", "y"))
    writer.operator("ADD", [w, w], [twice], "AddOptions", inner=True, fusedActivationFunction=0)
    writer.operator("ADD", [x, twice], [y], "AddOptions", fusedActivationFunction=0)
    return writer.finish()


@pytest.mark.usefixtures("quick_host")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_values_of_tflite_files_are_folded(tmp_path: Path, dtype: str) -> None:
    pytest.importorskip("ai_edge_litert")
    (tmp_path / "m.tflite").write_bytes(sums(dtype))
    np.save(tmp_path / "w.npy", np.arange(12, dtype=dtype).reshape(1, 2, 2, 3))
    value = {"w": tmp_path / "w.npy"}
    made = tvm_cascade.compile(tmp_path / "m.tflite", target="host", output=tmp_path / "p", input_value=value)
    assert [op.kind for op in made.plan.graph.ops if not op.view] == ["add"]
    done = tvm_cascade.run(tmp_path / "p", check=tmp_path / "m.tflite")
    assert done.match and done.max_abs_diff == 0


@pytest.mark.torch
@pytest.mark.usefixtures("quick_host")
def test_values_of_programs_are_folded(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Gated(torch.nn.Module):
        def forward(self, x, gate):
            return torch.relu(x) * torch.sigmoid(gate * 2)

    torch.export.save(torch.export.export(Gated(), (torch.zeros(1, 4, 20), torch.zeros(1, 4, 1))), tmp_path / "m.pt2")
    tvm_cascade.compile(tmp_path / "m.pt2", target="host", output=tmp_path / "p", input_value={"gate": 0.25})
    done = tvm_cascade.run(tmp_path / "p", check=tmp_path / "m.pt2")
    assert done.match and done.executed_macs == 0


def test_the_file_beside_a_model_fixes_inputs(tmp_path: Path) -> None:
    model = by_rate(tmp_path)
    np.save(tmp_path / "rate.npy", np.int64(8000))
    (tmp_path / "tvm-cascade.toml").write_text('input-value = ["rate=rate.npy"]\n')
    done = CliRunner().invoke(commands, ["plan", str(model), "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["macs"] == 9 * 4 * 9
    done = CliRunner().invoke(commands, ["plan", str(model), "--input-value", "rate=16000", "--json"])
    assert json.loads(done.stdout)["macs"] == 18 * 4 * 9


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"rate": 1.5}, r"rate: the input is int64\[\]: int64 does not hold the value"),
        ({"rate": np.zeros(3, "int64")}, r"the value has the shape \[3\]"),
        ({"q": 1}, "the model has no input q; its inputs: x, rate"),
        ({"rate": "fast"}, "write a number, or the name of a .npy file"),
        ({"rate": "no.npy"}, "no.npy: No such file"),
        ({"x": 0, "rate": 1}, "no input of the network is left"),
    ],
)
def test_values_that_do_not_fit_are_refused(tmp_path: Path, value: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tvm_cascade.load(by_rate(tmp_path), input_value=value)


def test_texts_are_numbers_and_files() -> None:
    assert split(["a=b=1", "c=2.5"]) == {"a=b": "1", "c": "2.5"}
    made = fixed_inputs({"a": "1", "b": "2.5", "c": "true"})
    assert [(m.dtype, m.array.item()) for m in made] == [("int64", 1), ("float64", 2.5), ("bool", True)]
    for wrong in ("a", "a=", "=1"):
        with pytest.raises(UsageError, match="write NAME=NUMBER"):
            split([wrong])
    with pytest.raises(UsageError, match="given twice"):
        split(["a=1", "a=2"])


def test_a_module_keeps_its_values(tmp_path: Path) -> None:
    mod = tvm_cascade.load(by_rate(tmp_path), input_value={"rate": 8000})
    assert [f.name for f in io_spec(mod).fixed] == ["rate"] and len(mod["main"].params) == 1
