"""The table of operators agrees with itself: inferred types with computed arrays, windows with what values depend on."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from tvm_cascade.errors import GraphError
from tvm_cascade.operators.record import Family, TensorType
from tvm_cascade.operators.table import ACTIVATIONS, CHANNELWISE, ELEMENTWISE, OPERATORS, REDUCTIONS, evaluate, infer

IMAGE = (1, 7, 6, 4)  # NHWC
SLIDING: dict[str, Any] = {"layout": "NHWC", "strides": (2, 1), "padding": (1, 0, 1, 1)}
QUANTUM = {"x_quantum": (0.5, 3), "y_quantum": (1.5, -2), "w_zero": 1, "act": "", "range": (-128, 127), "dtype": "int8"}
POOL = {**SLIDING, "kernel": (3, 2), "ceil": False}
CONV = {**SLIDING, "dilation": (1, 2), "groups": 1}
STEP = ("add", (), (0, 1))
CASES: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {  # shapes of the operands, attributes
    "conv2d": ([IMAGE, (5, 4, 3, 2)], {**CONV, "act": "relu"}),
    "qconv2d": ([IMAGE, (5, 4, 3, 2), (5,), (5,), (5,)], {**CONV, **QUANTUM}),
    "matmul": ([(2, 3, 4), (4, 5), (5,)], {"act": "tanh"}),
    "dense": ([(3, 4), (4, 5)], {"act": ""}),
    "qmatmul": ([(3, 4), (4, 5), (5,)], QUANTUM),
    "qadd": ([IMAGE, IMAGE], {**QUANTUM, "quanta": ((0.5, 3), (0.25, -1))}),
    "max_pool2d": ([IMAGE], POOL),
    "avg_pool2d": ([IMAGE], {**POOL, "count_pad": False}),
    "batch_norm": ([IMAGE, (4,), (4,), (4,), (4,)], {"axis": 3, "eps": 1e-3}),
    "softmax": ([(3, 4)], {"axis": 1}),
    "mean": ([IMAGE], {"axes": (1, 2), "keepdims": False}),
    "concat": ([IMAGE, (1, 7, 6, 2)], {"axis": 3}),
    "split": ([IMAGE], {"axis": 3, "sizes": (1, 3)}),
    "transpose": ([IMAGE], {"perm": (0, 3, 1, 2)}),
    "reshape": ([IMAGE], {"shape": (7, 24)}),
    "pad": ([(2, 3)], {"widths": ((0, 1), (2, 0))}),
    "clip": ([IMAGE], {"low": -0.5, "high": 0.5}),
    "fused": ([IMAGE, (4,)], {"program": ("mul", (), (("relu", (), (STEP,)), STEP))}),
    "full": ([], {"types": (((2, 3), "float32"),), "value": 2.0}),
    "eye_kernel": ([], {"types": (((4, 4, 3, 3), "float32"),), "at": (1, 1)}),
    "block_diagonal": ([(4, 1, 3, 3)], {"merge": 2, "groups": 4}),
    "compose_kernels": ([(4, 2, 3, 3), (5, 4, 1, 1)], {"groups": 2, "depth": 4}),
}
for _kind, _entry in OPERATORS.items():
    if _entry.infer is not None and _entry.evaluate is not None and _kind == _entry.kind:
        if _entry.family is Family.BINARY:
            CASES.setdefault(_kind, ([IMAGE, (4,)], {}))
        if _entry.family is Family.UNARY:
            CASES.setdefault(_kind, ([IMAGE], {}))


def operands(kind: str, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    rng = np.random.default_rng(len(kind))
    if OPERATORS[kind].unquantized:
        stored = [rng.integers(-128, 128, s).astype("int8") for s in shapes]
        return [*stored[:2], *(rng.uniform(0.01, 0.1, s).astype("float32") for s in shapes[2:])]
    return [rng.uniform(0.1, 2.0, s).astype("float32") for s in shapes]


@pytest.mark.parametrize("kind", sorted({o.kind for o in OPERATORS.values() if o.infer and o.evaluate}))
def test_inferred_types_are_those_of_the_result(kind: str) -> None:
    shapes, attrs = CASES[kind]
    read = operands(kind, shapes)
    types = infer(kind, tuple(TensorType(x.shape, str(x.dtype)) for x in read), attrs)
    made = evaluate(kind, attrs, read)
    assert [(t.shape, t.dtype) for t in types] == [(y.shape, str(y.dtype)) for y in made]


@pytest.mark.parametrize("kind", sorted({o.kind for o in OPERATORS.values() if o.windows and o.evaluate}))
@pytest.mark.parametrize("axis", [0, 1])
def test_an_output_depends_on_its_window_alone(kind: str, axis: int) -> None:
    shapes, attrs = CASES[kind]
    read = operands(kind, shapes)
    if not OPERATORS[kind].unquantized:
        attrs = {**attrs, "act": ""}
    types = tuple(TensorType(x.shape, str(x.dtype)) for x in read)
    describe = OPERATORS[kind].windows
    assert describe is not None
    window = describe(types, infer(kind, types, attrs), attrs)[axis]
    before = evaluate(kind, attrs, read)[0]
    touched: dict[int, set[int]] = {y: set() for y in range(before.shape[1 + axis])}
    for row in range(IMAGE[1 + axis]):
        changed = read[0].copy()
        place: list[Any] = [slice(None)] * 4
        place[1 + axis] = row
        changed[tuple(place)] = 127 if read[0].dtype == np.int8 else 100.0
        after = evaluate(kind, attrs, [changed, *read[1:]])[0]
        for y in np.flatnonzero((after != before).any(axis=tuple({0, 1, 2, 3} - {1 + axis}))):
            touched[int(y)].add(row)
    taps = {
        y: {window.first(y) + k * window.dilation for k in range(window.extent)} & set(range(IMAGE[1 + axis]))
        for y in touched
    }
    assert touched == taps


@pytest.mark.parametrize("kind", sorted({o.kind for o in OPERATORS.values() if o.windows and o.evaluate}))
def test_channels_of_an_output_depend_on_the_same_channel_of_channelwise_operators_alone(kind: str) -> None:
    shapes, attrs = CASES[kind]
    read = operands(kind, shapes)
    before, axis = evaluate(kind, attrs, read)[0], attrs["layout"].index("C")
    changed = read[0].copy()
    np.moveaxis(changed, axis, 0)[0] = 127 if read[0].dtype == np.int8 else 100.0
    after = evaluate(kind, attrs, [changed, *read[1:]])[0]
    touched = (np.moveaxis(after != before, axis, 0)).reshape(before.shape[axis], -1).any(axis=1)
    assert touched[0] and (kind in CHANNELWISE) == (not touched[1:].any())


def test_products_and_convolutions_count_their_multiplications() -> None:
    for kind, taps in (("conv2d", 4 * 3 * 2), ("matmul", 4), ("qmatmul", 4)):
        shapes, attrs = CASES[kind]
        read = tuple(TensorType(x.shape, str(x.dtype)) for x in operands(kind, shapes))
        made = infer(kind, read, attrs)
        assert OPERATORS[kind].macs(read, made, attrs) == prod(made[0].shape) * taps
    assert OPERATORS["add"].macs((), (), {}) == 0


def test_a_name_belongs_to_one_kind() -> None:
    names = [name for o in {id(o): o for o in OPERATORS.values()}.values() for name in (o.kind, *o.also)]
    assert len(names) == len(set(names))
    assert OPERATORS["subtract"] is OPERATORS["sub"]
    assert not ELEMENTWISE & REDUCTIONS and ACTIVATIONS <= ELEMENTWISE


def test_operands_that_do_not_fit_are_refused() -> None:
    with pytest.raises(GraphError, match="do not broadcast"):
        infer("add", (TensorType((2,)), TensorType((3,))), {})
    with pytest.raises(GraphError, match="make it opaque"):
        infer("lut", (TensorType((2,)),), {})
    with pytest.raises(NotImplementedError, match="no numpy meaning"):
        evaluate("opaque", {}, [])
