"""The one reader of Relax: values, calls and the nesting of tuples, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade.errors import GraphError
from tvm_cascade.operators.table import BINARY, UNARY
from tvm_cascade.passes.read.program import numbers_in, read_program
from tvm_cascade.passes.read.relax_names import relax_operator, table_kind


def function(write: Any, *shapes: tuple[Any, ...]) -> Any:
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{k}", relax.TensorType(s, "float32")) for k, s in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(write(builder, *params))
        builder.emit_func_output(out)
    return builder.finalize()["main"]


def test_tuples_are_names_for_values() -> None:
    def write(builder: Any, x: Any, y: Any) -> Any:
        both = builder.emit(relax.Tuple([x, y]))
        joined = builder.emit(relax.op.concat(both, 1))
        parts = builder.emit(relax.op.split(joined, 2, 1))
        return relax.Tuple([builder.emit(relax.TupleGetItem(parts, 1)), relax.Tuple([x])])

    program = read_program(function(write, (1, 2), (1, 4)))
    assert program.inputs == (0, 1)
    assert [(c.name, c.arguments, c.outputs, c.several) for c in program.calls] == [
        ("concat", ((0, 1),), (2,), False),
        ("split", (2,), (3, 4), True),
    ]
    assert program.result == (4, (0,)) and list(numbers_in(program.result)) == [4, 0]
    assert [v.shape for v in program.values] == [(1, 2), (1, 4), (1, 6), (1, 3), (1, 3)]


def test_a_constant_is_one_value_however_often_it_is_read() -> None:
    held = relax.const(np.arange(4, dtype="float32").reshape(1, 4))

    def write(builder: Any, x: Any) -> Any:
        return builder.emit(relax.op.multiply(builder.emit(relax.op.add(x, held)), held))

    program = read_program(function(write, (1, 4)))
    add, multiply = program.calls
    assert add.arguments[1] == multiply.arguments[1]
    constant = program.constants.get(add.arguments[1])
    assert constant is not None and constant.tolist() == [[0, 1, 2, 3]]
    assert add.arguments[0] not in program.constants and program.argument(held) == add.arguments[1]


def test_control_flow_and_symbolic_shapes_are_refused() -> None:
    def write(builder: Any, x: Any) -> Any:
        condition = relax.const(True)
        branches = [relax.SeqExpr([], v) for v in (x, relax.op.negative(x))]
        return builder.emit(relax.If(condition, branches[0], branches[1]))

    with pytest.raises(GraphError, match="only straight-line code"):
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((1, 4), "float32"))
        with builder.function("main", [x]):
            builder.emit_func_output(write(builder, x))
        read_program(builder.finalize()["main"])
    extent = tvm.tirx.Var("n", "int64")
    program = read_program(function(lambda b, x: b.emit(relax.op.nn.relu(x)), (extent, 4)))
    with pytest.raises(GraphError, match="the shape of x0 is not static: fix it with input shapes"):
        _ = program.values[0].shape


@pytest.mark.parametrize("kind", sorted((BINARY | UNARY) - {"relu6", "clip"}))
def test_an_elementwise_kind_goes_to_relax_and_comes_back(kind: str) -> None:
    count = 2 if kind in BINARY else 1
    func = function(lambda b, *xs: b.emit(relax_operator(kind)(*xs)), *[(1, 4)] * count)
    (call,) = read_program(func).calls
    assert table_kind(call.last_name) == kind
