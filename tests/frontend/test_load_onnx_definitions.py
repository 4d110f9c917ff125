"""Operators whose attributes, outputs or operands have several forms, against ONNX's definition; and graphs in other orders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvm_cascade
from tvm_cascade.checking.reference import reference_outputs
from tvm_cascade.errors import GraphError, LoadError
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.reference import Compiled

_KINDS = {"f": onnx.TensorProto.FLOAT, "i": onnx.TensorProto.INT64, "b": onnx.TensorProto.BOOL}
RNG = np.random.default_rng(0)


def _x(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def _save(path: Path, nodes: list[Any], inputs: list[np.ndarray], weights: dict[str, Any], **how: Any) -> Any:
    """A model of inputs x0, x1, ... and outputs y0, y1, ... of any shape; `how`: opset, functions."""
    made = sorted({o for n in nodes for o in n.output if o.startswith("y")})
    given = [helper.make_tensor_value_info(f"x{k}", _KINDS[a.dtype.kind], a.shape) for k, a in enumerate(inputs)]
    results = [helper.make_value_info(name, onnx.TypeProto()) for name in made]
    held = [numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items()]
    opset, functions = how.get("opset", 18), how.get("functions", [])
    domains = [helper.make_opsetid("", opset), *(helper.make_opsetid(f.domain, 1) for f in functions)]
    graph = helper.make_graph(nodes, "g", given, results, held)
    model = helper.make_model(graph, opset_imports=domains, ir_version=9, functions=functions)
    onnx.save(model, path)
    return model


def _check(
    folder: Path, nodes: list[Any], inputs: list[np.ndarray], weights: dict[str, Any], want: Any = None, **how: Any
) -> None:
    """What is loaded computes what ONNX's evaluator does, or `want`."""
    model = _save(folder / "n.onnx", nodes, inputs, weights, **how)
    if want is None:
        evaluator: Any = ReferenceEvaluator(model)
        want = evaluator.run(None, {f"x{k}": a for k, a in enumerate(inputs)})
    mod = load(folder / "n.onnx")
    made = Compiled(mod)(*(a.astype(s.dtype) for a, s in zip(inputs, io_spec(mod).inputs, strict=True)))
    for ours, theirs in zip(made, want, strict=True):
        assert (ours.shape, ours.dtype) == (np.shape(theirs), np.asarray(theirs).dtype)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("opset", "outputs"), [(18, 3), (18, 1), (9, 3)])
def test_batch_normalization_in_training_mode(tmp_path: Path, opset: int, outputs: int) -> None:
    x, held = _x(2, 3, 4, 5) * 3 + 1, {name: RNG.uniform(0.5, 1.5, 3).astype("float32") for name in "sbmv"}
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
    s, b, m, v, mu, sigma = (a.reshape(1, 3, 1, 1) for a in (*held.values(), mean, np.sqrt(variance + 1e-5)))
    want = [(x - mu) / sigma * s + b, m.ravel() * 0.8 + mean * 0.2, v.ravel() * 0.8 + variance * 0.2]
    mode: dict[str, Any] = {"training_mode": 1} if opset > 13 else {}
    names = ["y0", "y1", "y2"][:outputs]
    node = helper.make_node("BatchNormalization", ["x0", *held], names, momentum=0.8, **mode)
    _check(tmp_path, [node], [x], held, [w.astype("float32") for w in want[:outputs]], opset=opset)


@pytest.mark.parametrize("signs", [{}, {"detect_negative": 0}, {"detect_positive": 0}])
def test_infinities_of_either_sign(tmp_path: Path, signs: dict[str, Any]) -> None:
    x = _x(3, 4)
    x[0, 1], x[1, 2], x[2, 3] = np.inf, -np.inf, np.nan
    _check(tmp_path, [helper.make_node("IsInf", ["x0"], ["y0"], **signs)], [x], {})


@pytest.mark.parametrize("place", [None, 0, 1, 2, -1, -2])
def test_insertion_into_a_sequence(tmp_path: Path, place: int | None) -> None:
    given = ["s", "x2"] if place is None else ["s", "x2", "p"]
    nodes = [
        helper.make_node("SequenceConstruct", ["x0", "x1"], ["s"]),
        helper.make_node("SequenceInsert", given, ["t"]),
        helper.make_node("ConcatFromSequence", ["t"], ["y0"], axis=0),
    ]
    a, b, c = (_x(2, 3) for _ in range(3))
    parts = [a, b]
    parts.insert(2 if place is None else place, c)  # ONNX's evaluator inserts at 0 where 2 is asked for
    _check(tmp_path, nodes, [a, b, c], {} if place is None else {"p": np.int64(place)}, [np.concatenate(parts)])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_layer_normalization_and_its_statistics(tmp_path: Path, axis: int, outputs: int) -> None:
    shape = (3, 4, 5)[axis:]
    node = helper.make_node("LayerNormalization", ["x0", "s", "b"], ["y0", "y1", "y2"][:outputs], axis=axis)
    _check(tmp_path, [node], [_x(3, 4, 5)], {"s": _x(*shape), "b": _x(*shape)})


def test_normalizations_of_scales_that_are_broadcast(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("LayerNormalization", ["x0", "s", "b"], ["y0"], axis=1),
        helper.make_node("RMSNormalization", ["x0", "s"], ["y1"], axis=1),
        helper.make_node("RMSNormalization", ["x0", "whole"], ["y2"], axis=0),
        helper.make_node("LayerNormalization", ["x0", "row"], ["y3"], axis=1),
        helper.make_node("RMSNormalization", ["x0", "row"], ["y4"], axis=1),
    ]
    held = {"s": _x(5), "b": _x(4, 5), "whole": _x(3, 4, 5), "row": _x(1, 5)}
    _check(tmp_path, nodes, [_x(3, 4, 5)], held, opset=23)


def test_outputs_of_64_bits_keep_their_type(tmp_path: Path) -> None:
    """Constants that operators become, as outputs: of the type that ONNX gives them, not of the half of it."""
    nodes = [
        helper.make_node("Shape", ["x0"], ["y0"]),
        helper.make_node("EyeLike", ["x0"], ["y1"], dtype=onnx.TensorProto.INT64),
        helper.make_node("Pow", ["power", "power"], ["y2"]),
        helper.make_node("OneHot", ["places", "depth", "values"], ["y3"]),
        helper.make_node("EyeLike", ["x0"], ["y4"], dtype=onnx.TensorProto.DOUBLE),
        helper.make_node("Relu", ["x0"], ["y5"]),
    ]
    places, values = np.array([1, 0]), np.array([-1, 3])
    held = {"power": np.array([2, 3, 20]), "places": places, "depth": np.int64(3), "values": values}
    _check(tmp_path, nodes, [_x(2, 3)], held)
    kinds = [s.dtype for s in io_spec(load(tmp_path / "n.onnx")).outputs]
    assert kinds == ["int64", "int64", "int64", "int64", "float64", "float32"]


@pytest.mark.parametrize(("axis", "order"), [(1, 2), (-1, 1), (0, 1)])
def test_lp_normalization(tmp_path: Path, axis: int, order: int) -> None:
    x = _x(3, 4, 5)
    x[0, :, 0], x[0, 0, :] = 0, 0
    x[:, 1, 1] = 0
    norm = np.linalg.norm(x, order, axis, keepdims=True) if order == 2 else np.abs(x).sum(axis, keepdims=True)
    want = x / np.where(norm == 0, 1, norm)
    _check(tmp_path, [helper.make_node("LpNormalization", ["x0"], ["y0"], axis=axis, p=order)], [x], {}, [want])


@pytest.mark.parametrize("axes", [None, [0], [1, 3], [-1]])
def test_mean_variance_normalization(tmp_path: Path, axes: list[int] | None) -> None:
    """The variance of elements that are hardly apart is no difference of squares; elements that are all alike give 0."""
    x = _x(2, 3, 4, 5)
    x[1, :, 0] = x[0, :, 0] * np.float32(1.05)
    x[:, 1] = 2
    exact, over = x.astype("float64"), tuple(axes or (0, 2, 3))
    off, deviation = exact - exact.mean(over, keepdims=True), exact.std(over, keepdims=True)
    how = {} if axes is None else {"axes": axes}
    node = helper.make_node("MeanVarianceNormalization", ["x0"], ["y0"], **how)
    _check(tmp_path, [node], [x], {}, [(off / np.where(deviation < 1e-12, 1, deviation)).astype("float32")])


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot_by_a_depth_of_one_dimension(tmp_path: Path, axis: int) -> None:
    """Negative indices count from the end; those beyond it give no hot element."""
    x = np.array([[0, 1, 4], [-1, -5, 7]])
    want = np.moveaxis(np.where((np.arange(5) == x[..., None]) | (np.arange(5) - 5 == x[..., None]), 2, -1), -1, axis)
    node = helper.make_node("OneHot", ["x0", "depth", "values"], ["y0"], axis=axis)
    _check(
        tmp_path,
        [node],
        [x],
        {"depth": np.array([5]), "values": np.array([-1, 2], "float32")},
        [want.astype("float32")],
    )


def test_operators_of_a_functions_body(tmp_path: Path) -> None:
    """Of ONNX's own definition, nested ones too, and of the file."""
    own = helper.make_function(
        "own", "Bend", ["a"], ["z"], [helper.make_node("Celu", ["a"], ["z"], alpha=0.5)], [helper.make_opsetid("", 18)]
    )
    nodes = [
        helper.make_node("Celu", ["x0"], ["y0"], alpha=1.7),
        helper.make_node("Celu", ["y0"], ["y1"]),
        helper.make_node("Bend", ["y1"], ["y2"], domain="own"),
    ]
    _check(tmp_path, nodes, [_x(3, 4)], {}, functions=[own])


@pytest.mark.parametrize("kind", ["BlackmanWindow", "HammingWindow", "HannWindow"])
def test_windows_whose_bodies_refer_to_attributes(tmp_path: Path, kind: str) -> None:
    """Given ones, and those that have the schema's defaults."""
    nodes = [
        helper.make_node(kind, ["size"], ["w"]),
        helper.make_node(kind, ["size"], ["v"], periodic=0, output_datatype=onnx.TensorProto.DOUBLE),
        helper.make_node("Cast", ["v"], ["u"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["w", "u"], ["s"]),
        helper.make_node("Mul", ["x0", "s"], ["y0"]),
    ]
    _check(tmp_path, nodes, [_x(2, 10)], {"size": np.array(10)})


def test_attributes_of_the_files_functions_have_defaults(tmp_path: Path) -> None:
    """Also where a function calls another, and inside of a branch."""

    def scaled(name: str, kind: str, domain: str = "") -> Any:
        node = helper.make_node(kind, ["a"], ["z"], domain=domain)
        reference = onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
        node.attribute.append(reference if not domain else helper.make_attribute("unused", 1.0))
        domains = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
        defaults = [helper.make_attribute("slope", 0.25)]
        return helper.make_function("own", name, ["a"], ["z"], [node], domains, attribute_protos=defaults)

    def branch(**given: Any) -> Any:
        result = [helper.make_value_info("b", onnx.TypeProto())]
        return helper.make_graph([helper.make_node("Leak", ["x0"], ["b"], domain="own", **given)], "b", [], result)

    nodes = [
        helper.make_node("Outer", ["x0"], ["y0"], domain="own"),
        helper.make_node("Leak", ["x0"], ["y1"], domain="own", slope=0.5),
        helper.make_node("If", ["yes"], ["y2"], then_branch=branch(), else_branch=branch(slope=0.5)),
    ]
    x = _x(3, 4)
    quarter, half = (np.where(x > 0, x, x * np.float32(slope)) for slope in (0.25, 0.5))
    functions = [scaled("Leak", "LeakyRelu"), scaled("Outer", "Leak", "own")]
    _check(tmp_path, nodes, [x], {"yes": np.array(True)}, [quarter, half, quarter], functions=functions)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_onnx_itself(tmp_path: Path, causal: int) -> None:
    """Beside that of com.microsoft, which has the same name and other operands."""
    node = helper.make_node("Attention", ["x0", "x1", "x2"], ["y0"], q_num_heads=2, kv_num_heads=2, is_causal=causal)
    _check(tmp_path, [node], [_x(1, 4, 8), _x(1, 6, 8), _x(1, 6, 8)], {}, opset=23)


def test_nodes_out_of_order_and_constants_of_numbers(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["b"], ["y0"]),
        helper.make_node("Mul", ["a", "two"], ["b"]),
        helper.make_node("Reshape", ["x0", "shape"], ["a"]),
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Constant", [], ["shape"], value_ints=[6, 2]),
    ]
    x = _x(3, 4)
    _check(tmp_path, nodes, [x], {}, [np.maximum(x.reshape(6, 2) * 2, 0)])
    assert io_spec(load(tmp_path / "n.onnx")).outputs[0].shape == (6, 2)


def _boxes(names: list[str]) -> tuple[list[Any], list[np.ndarray], dict[str, Any]]:
    inputs = [RNG.uniform(0, 1, (1, 4, 4)).astype("float32"), RNG.uniform(0, 1, (1, 1, 4)).astype("float32")]
    return [helper.make_node("NonMaxSuppression", ["x0", "x1", *names], ["y0"])], inputs, {"n": np.array([2])}


_REFUSED = {
    "cycle": ([("Add", ["x0", "q"], "p", "a"), ("Relu", ["p"], "q")], "form a cycle"),
    "nowhere": ([("Relu", ["nowhere"], "y0")], "operator Relu reads nowhere, which nothing computes"),
    "Constant": ([("Constant", [], "y0", "k")], "operator Constant k with no value is not supported"),
    "Slice": ([("Slice", ["x0", "x1", "x1"], "y0")], "operator Slice with starts .* is not supported"),
    "Concat": ([("Concat", ["x0", "", "x0"], "y0")], "operator Concat leaves out one of the inputs"),
    "Pad": ([("Pad", ["x0", "x1"], "y0")], "operator Pad with pads .* is not supported"),
}


@pytest.mark.parametrize("what", _REFUSED)
def test_what_is_refused_is_said_in_a_sentence(tmp_path: Path, what: str) -> None:
    nodes, said = _REFUSED[what]
    made = [helper.make_node(kind, given, [result], *name) for kind, given, result, *name in nodes]
    made.append(helper.make_node("Relu", [made[-1].output[0]], ["y9"]))
    _save(tmp_path / "n.onnx", made, [_x(3, 4), np.zeros(4, "int64")], {})
    with pytest.raises(LoadError, match=said) as error:
        load(tmp_path / "n.onnx")
    assert "malformed" not in str(error.value)


@pytest.mark.parametrize(("kind", "name"), [("Attention", "q_num_heads"), ("RotaryEmbedding", "num_heads")])
def test_heads_of_unknown_number_are_refused_by_name(tmp_path: Path, kind: str, name: str) -> None:
    _save(tmp_path / "n.onnx", [helper.make_node(kind, ["x0"] * 3, ["y0"])], [_x(1, 4, 8)], {}, opset=23)
    with pytest.raises(
        LoadError, match=f"operator {kind} of an input of rank 3 without {name} is not supported: set {name}"
    ):
        load(tmp_path / "n.onnx")


@pytest.mark.parametrize(("names", "said"), [(["x2"], "max_output_boxes_per_class"), (["n", "x2"], "iou_threshold")])
def test_suppression_by_limits_that_are_given_at_run_time(tmp_path: Path, names: list[str], said: str) -> None:
    nodes, inputs, weights = _boxes(names)
    kind = "int64" if names == ["x2"] else "float32"
    _save(tmp_path / "n.onnx", nodes, [*inputs, np.ones(1, kind)], weights)
    with pytest.raises(LoadError, match=f"NonMaxSuppression has a form that is not supported: {said}"):
        load(tmp_path / "n.onnx")


def test_suppression_of_more_boxes_than_there_are(tmp_path: Path) -> None:
    """Whose number may take 64 bits: all boxes are as many as can be selected."""
    nodes, inputs, _ = _boxes(["n"])
    _save(tmp_path / "n.onnx", nodes, inputs, {"n": np.array([1 << 40])})
    lower: Any = LowerQuantized()
    with pytest.raises(GraphError):  # it has no kernel; the importer has narrowed its limits before
        extract_graph(lower(load(tmp_path / "n.onnx")))


def test_suppression_of_boxes_that_have_no_scores(tmp_path: Path) -> None:
    nodes, (boxes, scores), weights = _boxes(["n"])
    _save(tmp_path / "n.onnx", nodes, [np.repeat(boxes, 3, 0), scores], weights)
    with pytest.raises(LoadError, match=r"boxes of shape \[3, 4, 4\] with scores of shape \[1, 1, 4\]"):
        load(tmp_path / "n.onnx")


def test_transforms_of_more_than_memory_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("STFT", ["x0", "step", "", "length"], ["y0"])]
    _save(tmp_path / "n.onnx", nodes, [_x(1, 4, 1)], {"step": np.array(1), "length": np.array(16)})
    model = onnx.load(tmp_path / "n.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1 << 27
    onnx.save(model, tmp_path / "n.onnx")
    with pytest.raises(LoadError, match="frames of 16 samples every 1 of 134217728"):
        load(tmp_path / "n.onnx")


def test_ids_of_64_bits_are_narrowed_whatever_else_they_are(tmp_path: Path) -> None:
    table, ids = _x(50, 6), np.array([[1, 49, -1, 0]])
    nodes = [helper.make_node("Gather", ["table", "x0"], ["y0"])]
    _save(tmp_path / "n.onnx", nodes, [ids], {"table": table})
    mod = load(tmp_path / "n.onnx")
    assert io_spec(mod).inputs[0].dtype == "int32"
    narrow = ids.astype("int32")
    np.testing.assert_array_equal(Compiled(mod)(narrow)[0], table[ids])
    np.testing.assert_array_equal(reference_outputs(tmp_path / "n.onnx", {"x0": narrow}).outputs["y0"], table[ids])
    for other in (helper.make_node("Neg", ["x0"], ["y1"]), helper.make_node("Identity", ["x0"], ["y1"])):
        _save(tmp_path / "n.onnx", [*nodes, other], [ids], {"table": table})
        mod = load(tmp_path / "n.onnx")
        assert io_spec(mod).inputs[0].dtype == "int32" and Compiled(mod)(narrow)[1].dtype == np.int64


@pytest.mark.usefixtures("quick_host")
def test_an_embedding_compiles(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gather", ["table", "x0"], ["e"]), helper.make_node("Relu", ["e"], ["y0"])]
    _save(tmp_path / "n.onnx", nodes, [np.array([[1, 2]])], {"table": _x(5, 6)})
    tvm_cascade.compile(tmp_path / "n.onnx", target="host", output=tmp_path / "p")
    feed = {"x0": np.array([[4, 0]], "int32")}
    assert tvm_cascade.run(tmp_path / "p", inputs=feed, check=tmp_path / "n.onnx").match is True


@pytest.mark.parametrize("known", [True, False])
def test_branches_that_hold_weights_alone(tmp_path: Path, known: bool) -> None:
    held = {"then_branch": np.array([1, 2], "float32"), "else_branch": np.array([3, 4], "float32")}
    branches: dict[str, Any] = {
        way: helper.make_graph(
            [], way, [], [helper.make_tensor_value_info("k", 1, [2])], [numpy_helper.from_array(data, "k")]
        )
        for way, data in held.items()
    }
    condition = "c" if known else "x1"
    nodes = [helper.make_node("If", [condition], ["b"], **branches), helper.make_node("Add", ["x0", "b"], ["y0"])]
    inputs = [_x(2)] if known else [_x(2), np.array(False)]
    _check(tmp_path, nodes, inputs, {"c": np.array(False)} if known else {}, [inputs[0] + held["else_branch"]])


@pytest.mark.parametrize("known", [True, False])
def test_tensors_of_branches_get_names_that_the_file_does_not_have(tmp_path: Path, known: bool) -> None:
    def branch(kind: str) -> Any:
        result = [helper.make_tensor_value_info("k", 1, [2])]
        return helper.make_graph([helper.make_node(kind, ["x0"], ["k"])], kind, [], result)

    taken = ["b/k", "b/then/k", "b/else/k", "b_/k"]
    condition = "c" if known else "x1"
    nodes = [
        *(helper.make_node("Mul", ["x0", f"n{k}"], [name]) for k, name in enumerate(taken)),
        helper.make_node("If", [condition], ["b"], then_branch=branch("Neg"), else_branch=branch("Abs")),
        helper.make_node("Sum", ["b", *taken], ["y0"]),
    ]
    held: dict[str, Any] = {f"n{k}": np.float32(k + 2) for k in range(4)} | ({"c": np.array(False)} if known else {})
    x = _x(2)
    _check(tmp_path, nodes, [x] if known else [x, np.array(False)], held, [np.abs(x) + 14 * x])


@pytest.mark.parametrize(
    ("kind", "places", "how", "said"),
    [
        ("Compress", np.array([True] * 5), {"axis": 1}, "a condition of 5 elements, where there are 4"),
        ("ReverseSequence", np.array([1, 5, 2]), {"batch_axis": 0, "time_axis": 1}, r"sequence_lens \[1, 5, 2\] of 3"),
        ("ReverseSequence", np.array([1]), {"batch_axis": 0, "time_axis": 1}, r"sequence_lens \[1\] of 3 sequences"),
    ],
)
def test_places_beyond_the_end_are_refused(
    tmp_path: Path, kind: str, places: np.ndarray, how: dict[str, Any], said: str
) -> None:
    _save(tmp_path / "n.onnx", [helper.make_node(kind, ["x0", "p"], ["y0"], **how)], [_x(3, 4)], {"p": places})
    with pytest.raises(LoadError, match=f"{kind} has a form that is not supported: {said}"):
        load(tmp_path / "n.onnx")


@pytest.mark.parametrize("kind", ["ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
def test_reductions_of_integers_through_floats_are_refused(tmp_path: Path, kind: str) -> None:
    """ONNX Runtime truncates every exponential, the evaluator the result alone."""
    _save(tmp_path / "n.onnx", [helper.make_node(kind, ["x0"], ["y0"])], [np.arange(1, 7).reshape(2, 3)], {})
    with pytest.raises(LoadError, match=f"{kind} has a form that is not supported: int64: put a Cast to float32"):
        load(tmp_path / "n.onnx")


def test_computed_operands_leave_names_of_the_file_alone(tmp_path: Path) -> None:
    """Widths that constants compute stand aside under a name that no tensor of the file has, whatever it is called."""
    nodes = [
        helper.make_node("Relu", ["x0"], ["w/computed"]),
        helper.make_node("Neg", ["x0"], ["w/computed_"]),
        helper.make_node("Abs", ["a"], ["w"]),
        helper.make_node("Pad", ["x0", "w"], ["y0"]),
        helper.make_node("Neg", ["w/computed"], ["y1"]),
        helper.make_node("Abs", ["w/computed_"], ["y2"]),
    ]
    _check(tmp_path, nodes, [_x(2, 3)], {"a": np.array([0, -1, 0, 2])})


@pytest.mark.parametrize(
    ("kind", "shape", "said"),
    [
        ("INT64", (2, 3), "output y is int64 in the file, float32 computed"),
        ("FLOAT", (2, 4), ""),  # stale: ONNX's rules say what is computed
        ("FLOAT", ("n", 1, 3), ""),
        ("FLOAT", ("n", 3), ""),
        ("UNDEFINED", None, ""),
    ],
)
def test_outputs_are_what_the_file_declares(tmp_path: Path, kind: str, shape: Any, said: str) -> None:
    given, made = (helper.make_tensor_value_info("x", 1, (2, 3)), onnx.ValueInfoProto(name="y"))
    if shape is not None:
        made = helper.make_tensor_value_info("y", getattr(onnx.TensorProto, kind), shape)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [given], [made])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "n.onnx")
    if said:
        with pytest.raises(LoadError, match=said):
            load(tmp_path / "n.onnx")
    else:
        assert io_spec(load(tmp_path / "n.onnx")).outputs[0].type_text == "float32[2, 3]"


def test_a_shape_that_neither_the_file_nor_the_rules_of_onnx_know_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, made = (helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", (2, 3)), ("y", (2, 4))))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [given], [made])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "n.onnx")
    monkeypatch.setattr("tvm_cascade.importers.onnx.folding.inferred_output", lambda *_: (2, 4))
    with pytest.raises(LoadError, match=r"output y has the shape \[2, 4\] in the file, \[2, 3\] computed"):
        load(tmp_path / "n.onnx")


def test_a_graph_without_operators_is_called_that(tmp_path: Path) -> None:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4])
    empty, other = tmp_path / "empty.onnx", tmp_path / "other.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "g", [x], [x])), empty)
    other.write_bytes(b"\x08\x07")
    for path, said in ((empty, "its graph has no operator"), (other, "not an ONNX model")):
        with pytest.raises(LoadError, match=said):
            load(path)


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        ("ReduceL1", [2, 3, 0.5]),
        ("ReduceL2", [2, 3, 0.5]),
        ("ReduceSumSquare", [4, 9, 0.25]),
        ("ReduceSum", [-2, 3, 0.5]),
        ("ReduceLogSumExp", [-2, 3, 0.5]),
        ("ReduceLogSum", [np.nan, np.log(3), np.log(0.5)]),
    ],
)
def test_reductions_over_no_axes_compute_their_other_steps(tmp_path: Path, kind: str, want: list[float]) -> None:
    node = helper.make_node(kind, ["x0"], ["y0"], noop_with_empty_axes=1)
    _check(tmp_path, [node], [np.float32([-2, 3, 0.5])], {}, [np.float32(want)])
