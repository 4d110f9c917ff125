"""Names of calls from those that a file gives to tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tvm import relax as _relax

from tvm_cascade.graph import Tensor
from tvm_cascade.messages import operator_of
from tvm_cascade.passes.call_names import with_file_names
from tvm_cascade.passes.origin import NamingBuilder, file_name, marked, plain
from tvm_cascade.report.origin import origins

relax: Any = _relax


@dataclass(frozen=True)
class Call:
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def named(calls: list[Call], in_file: dict[str, str], outputs: tuple[int, ...]) -> list[str]:
    count = 1 + max(t for call in calls for t in (*call.inputs, *call.outputs))
    tensors = [Tensor(t, "x" if t == 0 else f"v{t}", (1,), "int8") for t in range(count)]
    made, after = with_file_names(tensors, calls, (0,), outputs, in_file)
    for call in after:
        assert made[call.outputs[0]].name == call.name or len(call.outputs) > 1
    return [call.name for call in after]


def test_what_is_computed_for_one_tensor_of_the_file_is_a_part_of_it() -> None:
    calls = [Call("conv", (0,), (1,)), Call("add", (1,), (2,)), Call("relu", (2,), (3,))]
    assert named(calls, {"v3": "a;b"}, (3,)) == ["a;b, part 1 of 3", "a;b, part 2 of 3", "a;b"]


def test_what_several_tensors_of_the_file_need_has_no_name_of_it() -> None:
    calls = [Call("transpose", (0,), (1,)), Call("conv", (1,), (2,)), Call("conv_1", (1,), (3,))]
    assert named(calls, {"v2": "left", "v3": "right"}, (2, 3)) == ["transpose", "left", "right"]


def test_an_output_of_the_program_is_no_part_of_what_reads_it() -> None:
    calls = [Call("conv", (0,), (1,)), Call("relu", (1,), (2,))]
    assert named(calls, {"v2": "y"}, (1, 2)) == ["conv", "y"]


def test_calls_that_compute_one_tensor_in_parts_are_numbered() -> None:
    calls = [Call("conv", (0,), (1,)), Call("conv_1", (0,), (2,)), Call("concat", (1, 2), (3,))]
    assert named(calls, dict.fromkeys(("v1", "v2", "v3"), "y"), (3,)) == ["y, part 1 of 3", "y, part 2 of 3", "y"]


def test_views_are_no_parts() -> None:
    calls = [Call("transpose", (0,), (1,)), Call("mean", (1,), (2,)), Call("reshape_1", (2,), (3,))]
    assert named(calls, {"v3": "y"}, (3,)) == ["y, view", "y", "y, view_1"]
    assert named([Call("reshape", (0,), (1,))], {"v1": "y"}, (1,)) == ["y"]


def test_transposed_inputs_and_outputs_are_layers_of_their_own() -> None:
    calls = [Call(kind, (t,), (t + 1,)) for t, kind in enumerate(("transpose", "conv", "relu", "transpose1"))]
    shapes = [(1, 2, 3, 4), *[(1, 3, 4, 2)] * 3, (1, 2, 3, 4)]
    tensors = [Tensor(t, f"v{t}" if t else "x", shape, "int8") for t, shape in enumerate(shapes)]
    _, after = with_file_names(tensors, calls, (0,), (4,), {"v3": "y"})
    assert [call.name for call in after] == ["y (x transposed)", "y, part 1 of 2", "y", "y (transposed)"]
    assert {operator_of(call.name) for call in after} == {"y"}


def test_no_call_is_called_as_an_input() -> None:
    assert named([Call("relu", (0,), (1,))], {"v1": "x"}, (1,)) == ["x_1"]


@pytest.mark.parametrize("name", ["conv", "conv1", "a.b/c;d:0", "1", "lv12", "$", "x$3"])
def test_marks_tell_names_of_the_file_from_numbers_that_relax_appends(name: str) -> None:
    builder = NamingBuilder()
    builder.name = marked(name)
    x = relax.Var("x", relax.TensorType([2], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = [builder.emit(relax.op.nn.relu(x)), builder.emit(relax.op.exp(x))]
            builder.name = "lv"
            other = builder.emit(relax.op.exp(x))
            out = builder.emit_output(made[1])
        builder.emit_func_output(out)
    assert [file_name(var.name) for var in made] == [name, name] and made[0].name != made[1].name
    assert file_name(other.name) is None and plain(other.name) == other.name and plain(made[1].name) == name


def test_origins_of_a_layer_reach_up_to_those_of_other_layers() -> None:
    reads = {
        "quantized": ("x",),
        "product": ("quantized",),
        "sum": ("product", "bias"),
        "relu": ("sum",),
        "y": ("relu",),
    }
    layers = ["quantized", "relu, part 1 of 2", "relu", "y", "transpose"]
    assert origins(layers, reads) == {
        "quantized": ("quantized",),
        "relu, part 1 of 2": ("relu",),
        "relu": ("product", "sum", "relu"),
        "y": ("y",),
        "transpose": (),
    }
