"""Networks cut at tensors of their files: what is left computes what the whole file has there, and refusals name the cut."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

import tvm_cascade
from tvm_cascade.errors import LoadError, UnsupportedOperatorError, UsageError
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.importers.cut import FileGraph, Node, cut_out, until_in_front
from tvm_cascade.importers.cut_file import cut_data
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.tensor_spec import Cut
from tvm_cascade.testing.reference import Compiled, Reference
from tvm_cascade.testing.tflite import ModelWriter

_LOWER: Any = LowerQuantized()


def _network(custom: bool) -> bytes:
    """A stem and two heads of int8; a custom operator behind the heads, or none."""
    rng, w = np.random.default_rng(3), ModelWriter()
    x = w.activation((1, 8, 8, 3), "int8", 0.1, 3, name="image")
    stem = w.convolution(x, 4, 3, 1, rng, name="stem")
    heads = [w.convolution(stem, n, 3, 2, rng, name=name) for n, name in ((4, "boxes;of all"), (2, "scores"))]
    if custom:
        w.outputs = []
        w.operator("CUSTOM", heads, [w.tensor((1, 9), "float32", name="found")], custom="Decode")
    else:
        w.outputs = heads
    return w.finish()


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "net.tflite"
    path.write_bytes(_network(custom=False))
    return path


@pytest.fixture
def detector(tmp_path: Path) -> Path:
    path = tmp_path / "detector.tflite"
    path.write_bytes(_network(custom=True))
    return path


def _image() -> np.ndarray:
    return np.random.default_rng(5).integers(-128, 128, (1, 8, 8, 3)).astype("int8")


def test_a_refusal_names_the_cut_and_the_cut_compiles(detector: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperatorError, match="custom") as refused:
        tvm_cascade.plan(detector)
    option, name, *_ = shlex.split(refused.value.remedy)
    assert (option, name) == ("--until", "boxes;of all,scores") and refused.value.remedy in str(refused.value)
    made = tvm_cascade.compile(detector, target="host", output=tmp_path / "fw", until=name)
    record = json.loads((made.folder / "metadata.json").read_text())["project"]["interface"]
    assert [o["name"] for o in record["outputs"]] == ["boxes;of all", "scores"]
    assert [(o["dtype"], o["scale"], o["zero_point"]) for o in record["outputs"]] == [("int8", np.float32(0.1), 0)] * 2
    run = tvm_cascade.run(made.folder, check=detector, inputs={"image": _image()})
    assert run.match and run.max_abs_diff == 0
    whole = Reference(_network(custom=False)).run([_image()])
    for have, want in zip(run.outputs.values(), whole, strict=True):
        np.testing.assert_array_equal(have, want)


def test_doctor_names_the_cut(detector: Path) -> None:
    found = tvm_cascade.doctor(detector)
    assert found.remedy.startswith("--until 'boxes;of all,scores'") and found.remedy in found.to_text()
    assert found.to_dict()["remedy"] == found.remedy


def test_a_network_that_begins_behind_its_input(detector: Path, whole: Path, tmp_path: Path) -> None:
    made = tvm_cascade.compile(detector, target="host", output=tmp_path / "fw", until=["scores"], from_="stem")
    reference = Reference(whole.read_bytes())
    reference.run([_image()])
    stem, scores = (reference.tensor(reference.tensors[name]) for name in ("stem", "scores"))
    run = tvm_cascade.run(made.folder, check=detector, inputs={"stem": stem})
    assert run.match
    np.testing.assert_array_equal(run.outputs["scores"], scores)
    spec = io_spec(load(detector, until="scores", from_="stem"))
    assert [(s.name, s.dtype, s.zero_point) for s in spec.inputs] == [("stem", "int8", 0)]
    assert spec.cut == Cut(("scores",), ("stem",))


@pytest.mark.parametrize("until", [["stem"], ["stem", "scores"], ["scores,stem"]])
def test_every_tensor_is_the_reference_s(whole: Path, until: list[str]) -> None:
    reference = Reference(whole.read_bytes())
    reference.run([_image()])
    names = [name for text in until for name in text.split(",")]
    for name, have in zip(names, Compiled(_LOWER(load(whole, until=until)))(_image()), strict=True):
        np.testing.assert_array_equal(have, reference.tensor(reference.tensors[name]))


def test_inputs_that_nothing_reads_any_more_are_left_out(tmp_path: Path) -> None:
    w = ModelWriter()
    a, b = (w.activation((1, 4), "float32", name=name) for name in "ab")
    half = w.tensor((1, 4), "float32", name="half")
    w.operator("ABS", [a], [half], inner=True)
    w.operator("ADD", [half, b], [w.tensor((1, 4), "float32", name="sum")], "AddOptions")
    path = tmp_path / "two.tflite"
    path.write_bytes(w.finish())
    assert [s.name for s in io_spec(load(path, until="half")).inputs] == ["a"]
    assert [s.name for s in io_spec(load(path, from_="half")).inputs] == ["b", "half"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"until": "score"}, "--until score: no operator computes a tensor of that name; similar: scores"),
        ({"until": "stem,q"}, "--until q: .*; the last ones: stem, boxes;of all, scores"),
        ({"from_": "sten"}, "--from sten: .*similar: stem"),
        ({"until": "image"}, "--until image: it is an input of the network"),
        ({"until": "stem", "from_": "scores"}, "--from scores: no output of the network depends on it"),
        ({"until": "stem", "from_": "stem"}, "both name stem: no operator is left"),
        ({"from_": "scores,boxes;of all"}, "no operator is left"),
        ({"until": 3}, "--until 3: give a name"),
        ({"from_": [""]}, r"--from \[''\]: give a name"),
    ],
)
def test_names_that_cut_nothing_out(whole: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load(whole, **options)


def test_a_network_keeps_an_input() -> None:
    """Tensors that follow from weights alone are no network, in whatever format; beside others they may be outputs."""
    graph = FileGraph((Node((), ("w",)), Node((), ("v",)), Node(("x", "w"), ("y",))), ("x",), ("y",))
    for until, said in ((("w",), "w: depends on no input"), (("w", "v"), "w, v: depend on no input")):
        with pytest.raises(UsageError, match=f"--until {said} of the network; name a tensor behind an input"):
            cut_out(graph, Cut(until))
    assert cut_out(graph, Cut(("w", "y"))).inputs == ("x",)


def test_printed_names_of_layers_stand_for_their_operators() -> None:
    graph = FileGraph((Node(("x",), ("a",)), Node(("a",), ("b, c",)), Node(("a",), ("d",))), ("x",), ("b, c", "d"))
    for asked in ("d, part 1 of 2", "d (x transposed)", "d, view", "d, view_1", "d"):
        assert cut_out(graph, Cut((asked,))).outputs == ("d",)
    assert cut_out(graph, Cut(("a, part 2 of 3,d",))).outputs == ("a", "d")
    assert cut_out(graph, Cut(("b, c",))).outputs == ("b, c",)


def test_weights_alone_are_no_network(tmp_path: Path) -> None:
    layers = pytest.importorskip("tvm_cascade.testing.onnx_layers")
    net = layers.Layers()
    weights = net.node("Neg", net.constant(np.ones((4, 4), "float32")))
    net.save(tmp_path / "n.onnx", net.node("MatMul", "x", weights), (1, 4), 2)
    w = ModelWriter()
    x, size, fill = (
        w.activation((1, 4), "float32", name="x"),
        w.constant(np.array([1, 4], "int32")),
        w.constant(np.array(1, "float32")),
    )
    made = w.tensor((1, 4), "float32", name=weights)
    w.operator("FILL", [size, fill], [made], "FillOptions", inner=True)
    w.operator("ADD", [x, made], [w.tensor((1, 4), "float32")], "AddOptions")
    (tmp_path / "n.tflite").write_bytes(w.finish())
    for name in ("n.onnx", "n.tflite"):
        with pytest.raises(UsageError, match=f"--until {weights}: depends on no input"):
            load(tmp_path / name, until=weights)


@pytest.mark.parametrize("name", [" a ", "a\n", "a,b", "é"])
def test_names_that_look_like_lists(tmp_path: Path, name: str) -> None:
    writer = ModelWriter()
    x, y, z = writer.activation((4,), "float32"), *(writer.tensor((4,), "float32", name=n) for n in (name, "end"))
    writer.operator("NEG", [x], [y], "NegOptions", inner=True)
    writer.operator("ABS", [y], [z], "AbsOptions")
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    given = np.linspace(0, 3, 4, dtype="float32")
    for until, sign in ((name, -1), ([name, "end"], -1), ("end", 1)):
        np.testing.assert_array_equal(Compiled(load(tmp_path / "m.tflite", until=until))(given)[0], sign * given)


def test_parts_of_an_operator_s_results_cannot_be_given(tmp_path: Path) -> None:
    w = ModelWriter()
    x = w.activation((1, 4), "float32", name="x")
    parts = [w.tensor((1, 2), "float32", name=name) for name in ("left", "right")]
    w.operator("SPLIT", [w.constant(np.array(1, "int32")), x], parts, "SplitOptions", inner=True, numSplits=2)
    w.operator("ADD", parts, [w.tensor((1, 2), "float32")], "AddOptions")
    path = tmp_path / "split.tflite"
    path.write_bytes(w.finish())
    with pytest.raises(UsageError, match="--from left: the operator that computes it also computes right: name both"):
        load(path, from_="left")
    assert [s.name for s in io_spec(load(path, from_="left,right")).inputs] == ["left", "right"]


def test_a_module_is_cut_as_it_is_loaded(whole: Path) -> None:
    with pytest.raises(UsageError, match="load"):
        tvm_cascade.plan(load(whole), until="stem")
    assert tvm_cascade.plan(load(whole, until="stem")).macs == tvm_cascade.plan(whole, until="stem").macs


def test_order_and_stages_and_optimize_take_the_cut(whole: Path) -> None:
    assert len(tvm_cascade.order(whole)["order"]) > len(tvm_cascade.order(whole, until="stem")["order"])  # type: ignore[arg-type]
    for search in (tvm_cascade.stages, tvm_cascade.optimize):
        with pytest.raises(UsageError, match="--until no such"):
            search(whole, target="llvm", until="no such")


def test_a_damaged_file_is_refused_as_ever(tmp_path: Path) -> None:
    for name in ("a.tflite", "a.onnx"):
        with pytest.raises(LoadError, match=name):
            cut_data(tmp_path / name, b"\x10\x00\x00\x00TFL3\xff\xff", Cut(("x",)))


def _onnx(path: Path, quantized: bool = False) -> Any:
    """A convolution, its rectified and its gated form, and an operator of another domain that reads both."""
    onnx = pytest.importorskip("onnx")
    helper, kind, array = onnx.helper, onnx.TensorProto, onnx.numpy_helper.from_array
    rng = np.random.default_rng(1)
    weights = [array(rng.standard_normal((4, 3, 3, 3)).astype("float32"), "w"), array(np.ones(9, "float32"), "unread")]
    weights += [array(np.float32(0.25), "scale"), array(np.int8(-7), "zero")]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["boxes"]),
        helper.make_node("QuantizeLinear", ["c", "scale", "zero"], ["stored"]),
        helper.make_node("DequantizeLinear", ["stored", "scale", "zero"], ["real"]),
        helper.make_node("Sigmoid", ["real"], ["scores"]),
        helper.make_node("Decode", ["boxes", "scores", "unread"], ["found"], domain="own"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind.FLOAT, ["batch", 3, 6, 6])],
        [helper.make_tensor_value_info("found", kind.FLOAT, None)],
        weights,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    path.write_bytes(model.SerializeToString())
    return model


def test_onnx(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    _onnx(path)
    with pytest.raises(UnsupportedOperatorError, match="Decode: --until boxes,scores ends the network") as refused:
        load(path)
    assert refused.value.to_dict()["remedy"] == refused.value.remedy != ""
    made = tvm_cascade.compile(path, target="host", output=tmp_path / "fw", until="boxes,scores")
    run = tvm_cascade.run(made.folder, check=path)
    assert run.match and {n: a.shape for n, a in run.outputs.items()} == dict.fromkeys(
        ("boxes", "scores"), (1, 4, 6, 6)
    )


def test_onnx_integers_keep_their_scale_at_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    _onnx(path)
    (stored,) = io_spec(load(path, until="stored")).outputs
    assert (stored.dtype, stored.scale, stored.zero_point) == ("int8", 0.25, -7)
    made = tvm_cascade.compile(path, target="host", output=tmp_path / "fw", until="scores", from_="stored")
    run = tvm_cascade.run(made.folder, check=path)
    assert run.match
    (given,) = io_spec(load(path, until="scores", from_="stored")).inputs
    assert (given.dtype, given.scale, given.zero_point) == ("int8", 0.25, -7)


def test_an_onnx_value_behind_an_unknown_operator_has_no_type(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "net.onnx"
    model = _onnx(path)
    model.graph.node.append(onnx.helper.make_node("Relu", ["found"], ["y"]))
    model.graph.output[0].name = "y"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UsageError, match="--from found: neither the file nor ONNX knows its type"):
        load(path, from_="found")


def test_an_onnx_output_of_a_shape_that_depends_on_values_can_be_cut_off(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "net.onnx"
    model = _onnx(path)
    model.graph.node[-1].CopyFrom(onnx.helper.make_node("NonZero", ["boxes"], ["found"]))
    path.write_bytes(model.SerializeToString())
    with pytest.raises(LoadError, match=r"NonZero has an output whose shape .*--until boxes ends"):
        load(path)
    load(path, until="boxes")


@pytest.mark.torch
def test_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Detector(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Linear(6, 2)

        def forward(self, x: Any, shift: Any) -> Any:
            boxes = self.last(torch.relu(self.layer(x)))
            return torch.linalg.inv_ex(boxes @ boxes.mT)[0] + shift

    path = tmp_path / "net.pt2"
    example = (torch.zeros(2, 3, 6, 6), torch.zeros(6))
    shapes = ({0: torch.export.Dim("batch")}, None)
    torch.export.save(torch.export.export(Detector().eval(), example, dynamic_shapes=shapes), path)
    with pytest.raises(UnsupportedOperatorError, match=r"linalg_inv_ex.*: --until matmul ends the network"):
        load(path)
    (x,), (boxes,) = (getattr(io_spec(load(path, until="linear")), side) for side in ("inputs", "outputs"))
    assert (x.name, x.shape, boxes.name, boxes.shape) == ("x", (1, 3, 6, 6), "linear", (1, 4, 6, 2))
    for name, start in (("head", ()), ("tail", ("relu",))):
        made = tvm_cascade.compile(path, target="host", output=tmp_path / name, until="linear", from_=start)
        assert tvm_cascade.run(made.folder, check=path).match
    with pytest.raises(UsageError, match="linalg_inv_ex is no tensor but a list of them"):
        load(path, until="linalg_inv_ex")


@pytest.mark.torch
def test_torch_s_operators_that_change_what_they_read(tmp_path: Path) -> None:
    """A tensor in front of such an operator is as it was, and what reads it, or a view of it, behind depends on the operator."""
    torch = pytest.importorskip("torch")

    class Changing(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            y = x * 2
            part = y.reshape(8)
            torch.relu_(y)
            return part * 3 + 1, y - 1

    path, x = tmp_path / "net.pt2", np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)
    torch.export.save(torch.export.export(Changing(), (torch.tensor(x),)), path)

    def made(given: np.ndarray, **cut: Any) -> list[np.ndarray]:
        return list(Compiled(load(path, **cut))(given))

    np.testing.assert_allclose(made(x, until="mul")[0], 2 * x)
    np.testing.assert_allclose(made(x, until="mul_1")[0], 6 * np.maximum(x, 0).reshape(8), 1e-6)
    for one, other in zip(made(x, until="mul,sub"), (2 * x, 2 * np.maximum(x, 0) - 1), strict=True):
        np.testing.assert_allclose(one, other, 1e-6)
    for one, other in zip(
        made(x, from_="mul"), (3 * np.maximum(x, 0).reshape(8) + 1, np.maximum(x, 0) - 1), strict=True
    ):
        np.testing.assert_allclose(one, other, 1e-6)


def test_no_remedy_names_a_tensor_without_a_name() -> None:
    graph = FileGraph((Node(("x",), ("",)), Node(("",), ("y",))), ("x",), ("y",))
    assert until_in_front(graph, {"", "y"}, (0,)).text == ""
    graph = FileGraph((Node(("x",), ("a", "")), Node(("a", ""), ("y",))), ("x",), ("y",))
    assert until_in_front(graph, {"y"}).text.startswith("--until a ends")


def test_no_remedy_is_proposed_where_nothing_is_known_to_begin_behind() -> None:
    graph = FileGraph((Node(("x",), ("y",), "Resize"),), ("x",), ("y",))
    assert until_in_front(graph, {"y"}) == ("", ("Resize",))
    assert until_in_front(graph, {"y"}, {0}).text == ""
