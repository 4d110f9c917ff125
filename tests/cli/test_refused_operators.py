"""Refusals under `--json` name the operators that they are about, as the model's file calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.errors import LoadError, UsageError, about
from tvm_cascade.frontend import load
from tvm_cascade.testing.tflite import ModelWriter

ITSELF = {"plan": ["plan"], "order": ["order"], "compile": ["compile", "--target", "cortex-m4", "-o", "fw"]}


def refused(path: Path, *options: str, command: str = "plan") -> list[str]:
    """The operators of a refusal, whose message is the line on standard error."""
    result = CliRunner().invoke(main, [ITSELF[command][0], str(path), *ITSELF[command][1:], *options, "--json"])
    assert result.exit_code in (1, 2) and "Traceback" not in result.stderr
    error = json.loads(result.stdout)["error"]
    assert error["kind"] != "internal" and result.stderr.splitlines()[-1].endswith(error["message"])
    assert all(name in error["message"] for name in error["operators"] if error["kind"] in ("infeasible", "usage"))
    return error["operators"]


def test_what_is_raised_from_an_error_is_about_the_same_operators() -> None:
    def fail(error: Exception, cause: Exception | None) -> None:
        raise error from cause

    with pytest.raises(LoadError) as raised:
        try:
            with about("ADD"), about("MUL"):
                fail(ValueError("shapes differ"), None)
        except ValueError as error:
            fail(LoadError("m", "the importer cannot read it"), error)
    assert raised.value.operators == ("MUL",), "the innermost"
    with pytest.raises(UsageError) as raised, about("ADD"):
        fail(UsageError("wrong", ["SUB"]), None)
    assert raised.value.operators == ("SUB",), "an error's own names come first"


def _one(
    kind: str, dtype: str = "float32", options: str | None = None, **more: object
) -> Callable[[ModelWriter], None]:
    def build(net: ModelWriter) -> None:
        x = net.activation((1, 4), dtype, None if dtype == "float32" else 0.1)
        scale = None if dtype == "float32" else 0.1
        net.operator(kind, [x], [net.tensor((1, 4), dtype, scale)], options, custom=more.get("custom"))  # type: ignore[arg-type]

    return build


def _behind_a_sound_one(net: ModelWriter) -> None:
    x, y = net.activation((1, 4), "float32"), net.tensor((1, 4), "float32")
    net.operator("NEG", [x], [y], inner=True)
    net.operator("TRANSPOSE", [y], [net.tensor((4, 1), "float32")], "TransposeOptions")


def _tensor_that_is_none(net: ModelWriter) -> None:
    net.operator("NEG", [net.activation((1, 4), "float32") + 900], [net.tensor((1, 4), "float32")])


def _contradiction(net: ModelWriter) -> None:
    chosen, x = net.activation((3, 2), "bool"), net.activation((3, 2), "int8", 0.1)
    net.operator("SELECT_V2", [chosen, chosen, x], [net.tensor((3, 2), "int8", 0.1)])


def _hybrid(net: ModelWriter) -> None:
    x, w = net.activation((1, 4), "float32"), net.constant(np.ones((1, 4), "int8"), 0.1)
    net.operator("MAXIMUM", [x, w], [net.tensor((1, 4), "float32")])


def _zero_points_by_channel(net: ModelWriter) -> None:
    x, scales = net.activation((1, 4), "int8", 0.1), np.array([0.1, 0.2])
    weights = net.tensor((2, 4), "int8", scales, 3, data=np.ones((2, 4), "int8"))
    net.operator("FULLY_CONNECTED", [x, weights, -1], [net.tensor((1, 2), "int8", 0.1)], "FullyConnectedOptions")


def test_inputs_that_are_left_out_are_named(tmp_path: Path) -> None:
    """The converter, which finds none, says something about the objects that it works with."""
    net = ModelWriter()
    given = [net.activation((3, 2), "bool"), -1, net.activation((3, 2), "float32")]
    net.operator("SELECT_V2", given, [net.tensor((3, 2), "float32")])
    (tmp_path / "m.tflite").write_bytes(net.finish())
    with pytest.raises(LoadError, match="SELECT_V2, is not supported in this form: its input 1 is left out") as raised:
        load(tmp_path / "m.tflite")
    assert raised.value.operators == ("SELECT_V2",)


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (_one("LSH_PROJECTION"), ["LSH_PROJECTION"]),
        (_one("CUSTOM", custom="Mine"), ["Mine (custom)"]),
        (_one("ATAN2", "int8"), ["ATAN2"]),
        (_behind_a_sound_one, ["TRANSPOSE"]),
        (_tensor_that_is_none, ["NEG"]),
        (_contradiction, ["SELECT_V2"]),
        (_hybrid, ["MAXIMUM"]),
        (_zero_points_by_channel, ["FULLY_CONNECTED"]),
    ],
)
@pytest.mark.parametrize("command", ["plan", "order"])
def test_operators_of_tflite_files(
    tmp_path: Path, build: Callable[[ModelWriter], None], names: list[str], command: str
) -> None:
    net = ModelWriter()
    build(net)
    (tmp_path / "m.tflite").write_bytes(net.finish())
    assert refused(tmp_path / "m.tflite", command=command) == names


def test_operators_of_onnx_files(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    make, kinds = onnx.helper.make_node, onnx.TensorProto
    value = onnx.helper.make_tensor_value_info
    cases = [
        ([make("Unique", ["x"], ["y"])], ["Unique"]),
        ([make("Nonsense", ["x"], ["y"])], ["Nonsense"]),
        ([make("Neg", ["none"], ["y"])], ["Neg"]),
        (
            [make("Add", ["x", "b"], ["a"]), make("Mul", ["a", "a"], ["b"]), make("Neg", ["b"], ["y"])],
            ["Add", "Mul", "Neg"],
        ),
        ([make("Constant", [], ["c"]), make("Add", ["x", "c"], ["y"])], ["Constant"]),
        ([make("Softmax", ["x"], ["y"], axis=1 << 20)], ["Softmax"]),
        ([make("Concat", ["x", ""], ["y"], axis=1)], ["Concat"]),
        ([make("Cast", ["x"], ["i"], to=7), make("Slice", ["x", "i", "i"], ["y"])], ["Slice"]),
        ([make("Gemm", ["x", "x"], ["y"])], ["Gemm"]),
    ]
    for k, (nodes, names) in enumerate(cases):
        graph = onnx.helper.make_graph(nodes, "g", [value("x", kinds.FLOAT, [2, 4])], [value("y", kinds.FLOAT, None)])
        path = tmp_path / f"{k}.onnx"
        onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
        assert refused(path) == names, names


def test_operators_of_torch_programs(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):
        def __init__(self, of: Callable[..., object]) -> None:
            super().__init__()
            self.of = of

        def forward(self, x: object) -> object:
            return self.of(x)

    eigenvalues = (lambda x: torch.linalg.eigvals(x).real, ["linalg_eigvals.default"])
    for of, names in ((torch.special.i1, ["special_i1.default"]), eigenvalues):
        program = torch.export.export(Network(of), (torch.rand(4, 4),))
        torch.export.save(program, tmp_path / "n.pt2")
        assert refused(tmp_path / "n.pt2") == names, "those of the file, not what torch makes of them"


def test_operators_at_the_peak_and_at_the_end_of_a_window(tmp_path: Path) -> None:
    """These are named as plans name them."""
    net, rng = ModelWriter(), np.random.default_rng(0)
    x, weights = net.activation((1, 8, 4), "int8", 0.1), net.constant(rng.integers(-9, 9, (2, 32)).astype("int8"), 0.01)
    net.operator("FULLY_CONNECTED", [x, weights, -1], [net.tensor((1, 2), "int8", 0.1)], "FullyConnectedOptions")
    (tmp_path / "m.tflite").write_bytes(net.finish())
    for options, command in ((("--sram", "8"), "compile"), (("--hop", "1"), "plan")):
        assert len(refused(tmp_path / "m.tflite", *options, command=command)) == 1
