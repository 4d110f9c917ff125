"""Expansion of ONNX's fused quantized operators (QLinearConv, QGemm, ...) to DequantizeLinear, operator, QuantizeLinear.

One rule for each family says which inputs are (scale, zero point) pairs and which float operator stands between. The
expansion is the operators' own definition, and the only form that Relax and integer lowering must support.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tvm_cascade.importers.onnx.folding import copied


def spell_out(model: Any, keep: Collection[str] = ()) -> Any:
    """Copy `model` with all operators in `RULES` expanded, except the types in `keep`."""
    if not any(n.op_type in RULES for n in model.graph.node):
        return model
    spelled = copied(model)
    writer = _Writer(spelled)
    nodes = list(spelled.graph.node)
    del spelled.graph.node[:]
    for node in nodes:
        rule = RULES.get(node.op_type)
        if rule is None or node.op_type in keep:
            spelled.graph.node.append(node)
        else:
            rule(writer, node)
    return spelled


class _Writer:
    """Appends nodes and initializers with fresh names to the graph of a model."""

    def __init__(self, model: Any) -> None:
        self.graph = model.graph
        self.opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)
        self.weights = {w.name: w for w in self.graph.initializer}
        nodes = (name for node in self.graph.node for name in (*node.input, *node.output))
        self.taken = {*self.weights, *nodes, *(value.name for value in (*self.graph.input, *self.graph.output))}
        self.count = 0

    def fresh(self) -> str:
        """Return an unused name."""
        while True:
            self.count += 1
            name = f"spelled_out_{self.count}"
            if name not in self.taken:
                return name

    def node(self, kind: str, inputs: list[str], output: str | None = None, **attrs: Any) -> str:
        output = output or self.fresh()
        self.graph.node.append(helper.make_node(kind, inputs, [output], **attrs))
        return output

    def real(self, stored: str, scale: str, zero_point: str, axis: int | None = None) -> str:
        """Append a DequantizeLinear, along `axis` for a vector scale; return its output's name."""
        given: dict[str, Any] = {"axis": axis} if axis is not None and self.rank(scale) == 1 else {}
        return self.node("DequantizeLinear", [stored, scale, *([zero_point] if zero_point else [])], **given)

    def stored(self, real: str, node: Any, at: int) -> None:
        """Append a QuantizeLinear into the output of `node`, whose inputs `at` and `at + 1` are scale and zero point."""
        scale, zero_point = _input(node, at), _input(node, at + 1)
        self.node("QuantizeLinear", [real, scale, *([zero_point] if zero_point else [])], node.output[0])

    def rank(self, name: str) -> int:
        return len(self.weights[name].dims) if name in self.weights else 0

    def data(self, name: str) -> np.ndarray:
        return np.asarray(numpy_helper.to_array(self.weights[name]))

    def constant(self, data: np.ndarray) -> str:
        name = self.fresh()
        tensor = numpy_helper.from_array(data, name)
        self.graph.initializer.append(tensor)
        self.weights[name] = tensor
        return name


_Rule = Callable[[_Writer, Any], None]


def _attributes(node: Any, *dropped: str) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name not in dropped}


def _input(node: Any, index: int) -> str:
    return node.input[index] if index < len(node.input) else ""


def _convolution(writer: _Writer, node: Any) -> None:
    """Expand QLinearConv: x, its (scale, zero point) pair, w, its pair, the output's pair, an int32 bias with scale sx
    * sw.
    """
    x = writer.real(*node.input[0:3])
    w = writer.real(*node.input[3:6], axis=0)
    bias = _input(node, 8)
    operands = [x, w, *([_bias(writer, node, bias)] if bias else [])]
    writer.stored(writer.node("Conv", operands, **_attributes(node)), node, 6)


def _bias(writer: _Writer, node: Any, stored: str) -> str:
    """Dequantize an int32 bias by the product of the scales in inputs 0 and 3."""
    scales = (writer.data(node.input[1]).reshape(-1) * writer.data(node.input[4]).reshape(-1)).astype("float32")
    shape = scales if scales.size > 1 else scales.reshape(())
    return writer.real(stored, writer.constant(shape), writer.constant(np.zeros(shape.shape, "int32")), axis=0)


def _gemm(writer: _Writer, node: Any) -> None:
    """Expand QGemm: a, its pair, b, its pair, an optional int32 bias with scale sa * sb, and the output's pair, absent
    for a float output.

    `alpha` scales product and bias; in Gemm `alpha` scales only the product, `beta` the bias.
    """
    attrs = _attributes(node)
    a = writer.real(*node.input[0:3])
    b = writer.real(*node.input[3:6], axis=0 if attrs.get("transB") else 1)
    bias = _input(node, 6)
    operands = [a, b, *([_bias(writer, node, bias)] if bias else [])]
    attrs = attrs | ({"beta": attrs["alpha"]} if "alpha" in attrs and bias else {})
    if not _input(node, 7):
        writer.node("Gemm", operands, node.output[0], **attrs)
        return
    writer.stored(writer.node("Gemm", operands, **attrs), node, 7)


def _of_two(kind: str) -> _Rule:
    """Return the rule for a binary operator: a, its (scale, zero point) pair, b, its pair, the output's pair."""

    def rule(writer: _Writer, node: Any) -> None:
        operands = [writer.real(*node.input[0:3]), writer.real(*node.input[3:6], axis=1 if kind == "MatMul" else None)]
        writer.stored(writer.node(kind, operands), node, 6)

    return rule


def _of_one(kind: str) -> _Rule:
    """Return the rule for a unary operator: x, its pair, the output's pair. Channels-last pools stay, and the importer
    refuses them.
    """

    def rule(writer: _Writer, node: Any) -> None:
        if _attributes(node).get("channels_last"):
            writer.graph.node.append(node)
            return
        attrs = _attributes(node, "channels_last")
        writer.stored(writer.node(kind, [writer.real(*node.input[0:3])], **attrs), node, 3)

    return rule


def _softmax(writer: _Writer, node: Any) -> None:
    """Expand QLinearSoftmax: over one axis since opset 13, before over that axis and all later ones; attribute `opset`
    decides.
    """
    attrs = _attributes(node)
    axis, flat, old = attrs.get("axis", -1), attrs["opset"] < 13, writer.opset < 13
    if axis != -1 and old and not flat:  # left to the importer to refuse
        writer.graph.node.append(node)
        return
    x = writer.real(*node.input[0:3])
    if axis == -1 or flat == old:
        result = writer.node("Softmax", [x], axis=axis)
    else:
        rows = writer.node("Softmax", [writer.node("Flatten", [x], axis=axis)], axis=-1)
        result = writer.node("Reshape", [rows, writer.node("Shape", [x])])
    writer.stored(result, node, 3)


def _concat(writer: _Writer, node: Any) -> None:
    """Expand QLinearConcat: the output's (scale, zero point) pair, then each input with its own pair."""
    parts = [writer.real(*node.input[i : i + 3]) for i in range(2, len(node.input), 3)]
    writer.stored(writer.node("Concat", parts, **_attributes(node)), node, 0)


RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        "QLinearConv": _convolution,
        "QGemm": _gemm,
        "QLinearMatMul": _of_two("MatMul"),
        "QLinearAdd": _of_two("Add"),
        "QLinearMul": _of_two("Mul"),
        "QLinearAveragePool": _of_one("AveragePool"),
        "QLinearGlobalAveragePool": _of_one("GlobalAveragePool"),
        "QLinearLeakyRelu": _of_one("LeakyRelu"),
        "QLinearSigmoid": _of_one("Sigmoid"),
        "QLinearSoftmax": _softmax,
        "QLinearReduceMean": _of_one("ReduceMean"),
        "QLinearConcat": _concat,
    }
)
