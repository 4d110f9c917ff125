"""ONNX Runtime adds two products of uint8 activations and int8 weights in 16 bits, which saturate, on x86 without VNNI.

Weights of uint8 are added in 32 bits everywhere. ONNX Runtime's documentation, "Quantize ONNX Models", when to reduce the range
of weights, says so; its own remedy, `session.x64quantprecision`, has no effect without optimizations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

_ADDED = 128  # to weights and zero points


@dataclass(frozen=True, slots=True)
class _Places:
    """Input numbers, as an operator has them."""

    activations: int
    weights: int
    zero_points: int


_OPERATORS = {
    ("", "MatMulInteger"): _Places(0, 1, 3),
    ("", "QLinearMatMul"): _Places(0, 3, 5),
    ("", "QLinearConv"): _Places(0, 3, 5),
    ("com.microsoft", "MatMulIntegerToFloat"): _Places(0, 1, 5),
    ("com.microsoft", "QGemm"): _Places(0, 3, 5),
}


def with_unsigned_weights(model: Any) -> Any:
    """Return a model whose constant int8 weights of products with uint8 activations are uint8, and 128 higher, as are their zero
    points: the same integers. The model itself, where there are none."""
    import onnx

    from tvm_cascade.importers.onnx.folding import copied

    if not any(_places(node) for node in model.graph.node):
        return model
    made = copied(model)
    types = _types(made)
    held = {tensor.name: tensor for tensor in made.graph.initializer}
    written: set[str] = set()

    def moved(name: str, values: np.ndarray) -> str:
        """Return the name for the initializer whose values are 128 higher."""
        unsigned = f"{name}/unsigned"
        if unsigned not in written:
            higher = (values.astype("int16") + _ADDED).astype("uint8")
            made.graph.initializer.append(onnx.numpy_helper.from_array(higher, unsigned))
            written.add(unsigned)
        return unsigned

    for node in made.graph.node:
        places = _places(node)
        if places is None or types.get(node.input[places.activations]) != onnx.TensorProto.UINT8:
            continue
        names = [*node.input, *[""] * (places.zero_points + 1 - len(node.input))]
        weights, zero_points = names[places.weights], names[places.zero_points]
        if weights not in held or held[weights].data_type != onnx.TensorProto.INT8:
            continue
        if zero_points and zero_points not in held:
            continue
        zeros = onnx.numpy_helper.to_array(held[zero_points]) if zero_points else np.zeros((), "int8")
        names[places.weights] = moved(weights, onnx.numpy_helper.to_array(held[weights]))
        names[places.zero_points] = moved(zero_points or f"{weights}/zero", zeros)
        del node.input[:]
        node.input.extend(names)
    return made


def _places(node: Any) -> _Places | None:
    return _OPERATORS.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))


def _types(model: Any) -> dict[str, int]:
    """Return the element types of tensors that are inputs, initializers, or inferred."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(model).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}
