"""What an operator computes survives its PrimFunc, and tells its shape as the shipped counts know it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from tvm import te

from tvm_cascade.operators.record import TensorType
from tvm_cascade.schedules.kernels.spec import Attributes, OperatorSpec, read_spec, with_spec
from tvm_cascade.schedules.rules.variants import shape_key

CONV = OperatorSpec(
    "conv2d",
    (TensorType((1, 49, 10, 1), "int8"),),
    TensorType((1, 25, 5, 64), "int8"),
    (np.zeros((10, 4, 1, 64), np.int8),),
    Attributes(strides=(2, 2), padding=(4, 1, 5, 1), dilation=(1, 1), groups=1),
)


def test_every_attribute_is_read_as_it_was_written() -> None:
    example = {"int | None": -3, "bool | None": False, "str | None": "NHWC", "tuple[int, ...] | None": (2, -1)}
    example["tuple[float, ...] | None"] = (-1.5, float("inf"))
    attributes = Attributes(**{f.name: example[str(f.type)] for f in fields(Attributes)})
    x, y = (te.placeholder((1, 3, 4, 2), t, name) for name, t in (("x", "int8"), ("y", "uint8")))
    func = te.create_prim_func([x, y, te.compute(x.shape, lambda *i: x(*i), name="out")])
    table = np.zeros(4, np.int32)
    made = read_spec(with_spec(func, "some_kind", 1, attributes), (table,))
    tensor = TensorType((1, 3, 4, 2), "int8")
    assert (made.kind, made.inputs, made.output, made.attributes) == ("some_kind", (tensor,), tensor, attributes)
    assert made.constants == (table,) and read_spec(func).attributes == Attributes()
    assert len(read_spec(with_spec(func, "two", 2, Attributes())).inputs) == 2


def test_shapes_are_named_as_in_shipped_counts() -> None:
    assert shape_key(CONV) == "conv2d int8[1,49,10,1] int8[1,25,5,64] w[10,4,1,64] s2,2 p4,1,5,1"
    dilated = replace(CONV, attributes=replace(CONV.attributes, dilation=(1, 2), axis=0))
    assert shape_key(dilated).endswith("p4,1,5,1 a0 d1,2")
    pool = replace(CONV, kind="max_pool2d", constants=(), attributes=Attributes(pool_size=(3, 2)))
    assert shape_key(pool) == "max_pool2d int8[1,49,10,1] int8[1,25,5,64] k3,2"
