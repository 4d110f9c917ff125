"""Operators of `.tflite` files in forms that TFLite refuses, or that are not supported: one sentence that names the operator and
what is wrong with it; and forms that only look wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade.errors import CascadeError, LoadError
from tvm_cascade.frontend import load
from tvm_cascade.testing.broken_operators import broken, said
from tvm_cascade.testing.reference import Compiled, Reference, random_inputs
from tvm_cascade.testing.tflite import ModelWriter

ints = [np.array(values, "int32") for values in ((0,), (9,), (1, 1), (1, 2, 3), (0, 0, 0, 0))]
ZERO, NINE, TWICE, THREE, ZEROS = ints
F32 = "float32"


def one(
    name: str,
    options: str | None,
    given: tuple[object, ...],
    made: tuple[int, ...],
    dtype: str = F32,
    **attributes: object,
) -> Callable[[ModelWriter], None]:
    """A file of one operator; `given` are shapes of inputs, or constants."""

    def build(w: ModelWriter) -> None:
        inputs = [w.constant(x) if isinstance(x, np.ndarray) else w.activation(x, F32) for x in given]  # type: ignore[arg-type]
        w.operator(name, inputs, [w.tensor(made, dtype, name="y")], options, **attributes)

    return build


WEIGHTS = np.ones((1, 3, 3, 4), F32)
CONV = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
IMAGE = (1, 6, 6, 2)
REFUSED = {
    "ARG_MIN": (
        one("ARG_MIN", "ArgMinOptions", ((1, 4), NINE), (1,), "int32", outputType=2),
        "its axis is 9, of an input of 2 axes",
    ),
    "MEAN": (one("MEAN", "ReducerOptions", ((1, 4), NINE), (1,)), "its axis is 9, of an input of 2 axes"),
    "SVDF": (one("SVDF", "SVDFOptions", ((1, 4),), (1, 4)), "it has 1 input, 5 are needed"),
    "MEAN of few": (one("MEAN", "ReducerOptions", ((1, 4),), (1,)), "it has 1 input, 2 are needed"),
    "SPACE_TO_DEPTH": (
        one("SPACE_TO_DEPTH", "SpaceToDepthOptions", (IMAGE,), (1, 1, 1, 32), blockSize=4),
        r"its block_size is 4, of an input of shape \[1, 6, 6, 2\]",
    ),
    "SPACE_TO_DEPTH in none": (
        one("SPACE_TO_DEPTH", "SpaceToDepthOptions", (IMAGE,), (1, 1, 1, 32), blockSize=0),
        "its block_size is 0",
    ),
    "SPACE_TO_DEPTH alone": (
        one("SPACE_TO_DEPTH", None, (IMAGE,), (1, 3, 3, 8)),
        r"\(SpaceToDepthOptions\) are missing",
    ),
    "STRIDED_SLICE": (
        one("STRIDED_SLICE", "StridedSliceOptions", ((4, 4), ZERO, NINE, TWICE), (4, 4)),
        "its begin, end and strides have 1, 1, 2 elements",
    ),
    "STRIDED_SLICE in no steps": (
        one("STRIDED_SLICE", "StridedSliceOptions", ((4, 4), ZERO, NINE, ZERO), (4, 4)),
        r"its strides are \[0\]",
    ),
    "STRIDED_SLICE of nothing": (
        one("STRIDED_SLICE", "StridedSliceOptions", ((4, 4), NINE, NINE, NINE), (4, 4)),
        "its begin, end and strides are 9, 9 and 9 along axis 0, of 4: nothing is left",
    ),
    "RESHAPE": (one("RESHAPE", None, ((1, 6),), (2, 2)), r"it has no shape, and the output's, \[2, 2\]"),
    "RESHAPE of other elements": (one("RESHAPE", None, ((1, 4), THREE), (1, 2, 3)), r"its new shape is \[1, 2, 3\]"),
    "DEPTHWISE_CONV_2D": (
        one("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions", (IMAGE, WEIGHTS), (1, 6, 6, 4), depthMultiplier=3, **CONV),
        r"its depth_multiplier is 3, its filters have the shape \[1, 3, 3, 4\], its data 2 channels",
    ),
    "DEPTHWISE_CONV_2D in no steps": (
        one("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions", (IMAGE, WEIGHTS), (1, 6, 6, 4), **CONV | {"strideW": 0}),
        "its stride_w is 0, and has to be 1 or more",
    ),
    "CONV_2D": (
        one("CONV_2D", "Conv2DOptions", (IMAGE, WEIGHTS), (1, 6, 6, 1), **CONV),
        "its filters have the shape",
    ),
    "TRANSPOSE": (one("TRANSPOSE", None, ((2, 3), TWICE), (2, 3)), r"its perm is \[1, 1\], of an input of 2 axes"),
    "ADD": (one("ADD", "AddOptions", ((2, 3), (2, 4)), (2, 3)), r"its inputs have the shapes \[2, 3\] and \[2, 4\]"),
    "SLICE": (one("SLICE", None, ((4,), NINE, ZERO), (4,)), r"its begin is \[9\] and its size \[0\]"),
    "PAD": (one("PAD", None, ((4, 4), TWICE), (4, 4)), "its paddings has 2 elements, 4 are needed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_broken_forms_are_refused_in_a_sentence_of_ours(tmp_path: Path, case: str) -> None:
    build, text = REFUSED[case]
    w, path = ModelWriter(), tmp_path / "m.tflite"
    build(w)
    path.write_bytes(w.finish())
    with pytest.raises(LoadError, match=text) as raised:
        load(path)
    assert raised.value.operators == (case.split()[0],)
    assert not said(raised.value)


@pytest.mark.parametrize(
    "custom, text",
    [
        (
            "ethos-u",
            "ethos-u .*commands for an Ethos-U, which Vela has compiled: give the .tflite file that Vela was given",
        ),
        (
            "SignalRfft",
            "SignalRfft .*audio features of TFLite Micro's Signal library, which your program computes: --from t0",
        ),
    ],
)
def test_custom_operators_of_other_tools_are_named_with_the_way_out(tmp_path: Path, custom: str, text: str) -> None:
    w = ModelWriter()
    made = w.tensor((1, 4), "int8", 0.5)
    w.operator("CUSTOM", [w.activation((1, 4), "int8", 0.5)], [made], custom=custom, inner=True)
    w.operator("RELU", [made], [w.tensor((1, 4), "int8", 0.5)])
    (tmp_path / "m.tflite").write_bytes(w.finish())
    with pytest.raises(CascadeError, match=text):
        load(tmp_path / "m.tflite")


def test_forms_broken_at_random_are_refused_in_words_of_ours(tmp_path: Path) -> None:
    path, refused = tmp_path / "m.tflite", 0
    for seed in range(150):
        case = broken(seed)
        path.write_bytes(case.data)
        try:
            load(path, stateless=True)
        except CascadeError as error:
            refused += 1
            assert not said(error), case.name
    assert refused > 50


def test_outputs_of_other_shapes_than_computed_name_their_operator(tmp_path: Path) -> None:
    w, path = ModelWriter(), tmp_path / "m.tflite"
    one("NEG", None, ((1, 4),), (1, 5))(w)
    path.write_bytes(w.finish())
    with pytest.raises(
        LoadError, match=r"y has the shape \[1, 5\] in the file, where operator 0, NEG, computes \[1, 4\]: convert"
    ) as raised:
        load(path)
    assert raised.value.operators == ("NEG",) and raised.value.remedy


def test_what_is_refused_first_is_left_to_the_program(tmp_path: Path) -> None:
    w, path = ModelWriter(), tmp_path / "m.tflite"
    x, axis = w.activation((1, 4), F32), w.activation((1,), "int32")
    half = w.tensor((1,), F32, name="half")
    w.operator("MEAN", [x, axis], [half], "ReducerOptions", inner=True)
    w.operator("NEG", [half], [w.tensor((1,), F32)])
    path.write_bytes(w.finish())
    with pytest.raises(
        LoadError, match=r"MEAN .*its axis \(input 1\) is computed.*--from half begins the network behind it"
    ):
        load(path)
    load(path, from_="half")


def test_nothing_is_proposed_that_leaves_other_refused_operators(tmp_path: Path) -> None:
    """As in audio front ends, all of whose operators are custom ones; two apart are both left out."""
    w, path = ModelWriter(), tmp_path / "m.tflite"
    x, y, z = w.activation((4,), F32), w.tensor((4,), F32, name="y"), w.tensor((4,), F32, name="z")
    w.operator("CUSTOM", [x], [y], custom="One", inner=True)
    w.operator("CUSTOM", [y], [z], custom="Two", inner=True)
    w.operator("NEG", [z], [w.tensor((4,), F32)])
    path.write_bytes(w.finish())
    with pytest.raises(LoadError, match=r"One \(custom\), Two \(custom\): --from z begins the network behind it"):
        load(path)
    load(path, from_="z")
    w = ModelWriter()
    first, second = w.tensor((4,), F32, name="first"), w.tensor((4,), F32, name="second")
    for made, name in ((first, "One"), (second, "Two")):
        w.operator("CUSTOM", [w.activation((4,), F32)], [made], custom=name, inner=True)
    w.operator("ADD", [first, second], [w.tensor((4,), F32)], "AddOptions")
    path.write_bytes(w.finish())
    with pytest.raises(LoadError, match="--from first,second begins"):
        load(path)


@pytest.mark.parametrize(
    "build",
    [
        one("MEAN", "ReducerOptions", ((2, 3, 4), np.array([1, 1, -2], "int32")), (2, 4)),  # an axis three times
        one("RESHAPE", None, ((1, 6), np.array([3, -1], "int32")), (3, 2)),
        one("SQUEEZE", None, ((1, 6, 1),), (6,)),
        one("PADV2", None, ((4,), np.array([[1, 2]], "int32")), (7,)),
    ],
)
def test_forms_that_look_wrong_are_computed_as_the_reference_does(
    tmp_path: Path, build: Callable[[ModelWriter], None]
) -> None:
    w, path = ModelWriter(), tmp_path / "m.tflite"
    build(w)
    path.write_bytes(w.finish())
    reference, compiled = Reference(path.read_bytes()), Compiled(load(path))
    given = random_inputs(reference.inputs, 1)
    for ours, theirs in zip(compiled(*given), reference.run(given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("condition", [(), (3,), (3, 3)])
@pytest.mark.parametrize("dtype", [F32, "int8"])
def test_a_select_by_a_condition_of_one_axis_chooses_along_the_first(
    tmp_path: Path, condition: tuple[int, ...], dtype: str
) -> None:
    """SELECT_V2 broadcasts it along the last."""
    w, path = ModelWriter(), tmp_path / "m.tflite"
    c, x, y = w.activation(condition, "bool"), *(w.activation((3, 3), dtype, 0.1) for _ in range(2))
    for name in ("SELECT", "SELECT_V2"):
        w.operator(name, [c, x, y], [w.tensor((3, 3), dtype, 0.1)])
    path.write_bytes(w.finish())
    reference, compiled = Reference(path.read_bytes()), Compiled(load(path))
    given = [a.astype(dtype) for a in (np.arange(9).reshape(3, 3), -np.arange(9).reshape(3, 3))]
    given.insert(0, np.resize([True, False, True], condition))
    for ours, theirs in zip(compiled(*given), reference.run(given), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("condition", [(1,), (4,), (1, 3)])
def test_a_select_by_other_conditions_is_refused(tmp_path: Path, condition: tuple[int, ...]) -> None:
    w, path = ModelWriter(), tmp_path / "m.tflite"
    given = [w.activation(condition, "bool"), w.activation((3, 3), F32), w.activation((3, 3), F32)]
    w.operator("SELECT", given, [w.tensor((3, 3), F32)])
    path.write_bytes(w.finish())
    with pytest.raises(LoadError, match=r"SELECT, .* its inputs have the shapes"):
        load(path)


def test_a_computed_or_missing_shape_is_the_output_s(tmp_path: Path) -> None:
    for operands in ((), ("computed",)):
        w, path = ModelWriter(), tmp_path / "m.tflite"
        shape = [w.tensor((2,), "int32") for _ in operands]
        for made in shape:
            w.operator("NEG", [w.activation((2,), "int32")], [made], inner=True)
        w.operator("RESHAPE", [w.activation((1, 6), F32), *shape], [w.tensor((3, 2), F32)])
        path.write_bytes(w.finish())
        x = np.arange(6, dtype=F32).reshape(1, 6)
        given = [np.array([-3, -2], "int32"), x] if operands else [x]
        np.testing.assert_array_equal(Compiled(load(path))(*given)[0], x.reshape(3, 2))


def test_a_shape_that_is_an_input_is_refused(tmp_path: Path) -> None:
    """A program for the shape that the file declares would be wrong for any other."""
    path = tmp_path / "m.tflite"
    for name in ("RESHAPE", "TRANSPOSE_CONV"):
        w = ModelWriter()
        shape = w.activation((2 if name == "RESHAPE" else 4,), "int32", name="form")
        if name == "RESHAPE":
            w.operator(name, [w.activation((1, 6), F32), shape], [w.tensor((3, 2), F32)])
        else:
            weights = w.constant(np.ones((3, 2, 2, 4), F32))
            made, options = w.tensor((1, 10, 12, 3), F32), {"padding": 0, "strideH": 2, "strideW": 2}
            x = w.activation((1, 5, 6, 4), F32)
            w.operator(name, [shape, weights, x], [made], "TransposeConvOptions", **options)
        path.write_bytes(w.finish())
        with pytest.raises(
            CascadeError, match=rf"{name} .*shape \(input \d\) is an input of the network, and has to be"
        ):
            load(path)


def test_a_transform_over_rows_and_columns_is_refused_with_the_cut(tmp_path: Path) -> None:
    w, path = ModelWriter(), tmp_path / "m.tflite"
    x, made = w.tensor((1, 8, 16), F32, name="before"), w.tensor((1, 8, 9), "complex64")
    w.operator("ABS", [w.activation((1, 8, 16), F32)], [x], inner=True)
    w.operator("RFFT2D", [x, w.constant(np.array([8, 16], "int32"))], [made], "Rfft2dOptions", inner=True)
    w.operator("COMPLEX_ABS", [made], [w.tensor((1, 8, 9), F32)])
    path.write_bytes(w.finish())
    with pytest.raises(CascadeError, match=r"RFFT2D .*over 8 rows of 8.*--until before ends the network"):
        load(path)


def test_other_operators_of_complex_numbers_are_refused(tmp_path: Path) -> None:
    w, path = ModelWriter(), tmp_path / "m.tflite"
    made, twice = (w.tensor((1, 1, 9), "complex64", name=n) for n in ("made", "twice"))
    given = [w.activation((1, 1, 16), F32, name="x"), w.constant(np.array([1, 16], "int32"))]
    w.operator("RFFT2D", given, [made], "Rfft2dOptions", inner=True)
    w.operator("ADD", [made, made], [twice], "AddOptions", inner=True, fusedActivationFunction=0)
    w.operator("COMPLEX_ABS", [twice], [w.tensor((1, 1, 9), F32)])
    path.write_bytes(w.finish())
    with pytest.raises(CascadeError, match=r"ADD .*of complex numbers: only RESHAPE takes them"):
        load(path)


def test_a_bias_that_is_left_out_is_none(tmp_path: Path) -> None:
    """LiteRT, the reference, takes no such third input; TensorFlow Lite Micro does."""
    data = []
    for left_out in (False, True):
        w, path = ModelWriter(), tmp_path / "m.tflite"
        bias = -1 if left_out else w.constant(np.zeros(3, F32))
        weights = w.constant(np.random.default_rng(0).standard_normal((3, 3, 3, 2)).astype(F32))
        made = w.tensor((1, 6, 6, 3), F32)
        w.operator("CONV_2D", [w.activation(IMAGE, F32), weights, bias], [made], "Conv2DOptions", **CONV)
        data.append(w.finish())
    path.write_bytes(data[1])
    reference, compiled = Reference(data[0]), Compiled(load(path))
    given = random_inputs(reference.inputs, 1)
    np.testing.assert_allclose(compiled(*given)[0], reference.run(given)[0], rtol=1e-4, atol=1e-5)
