"""Single operators of TFLite whose form is broken in one place: an operand, an attribute, a shape, a type, an input.

What loads them computes them or refuses them in words of its own, with the operator's name: `said` is what is wrong with a
refusal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_cascade.checking.litert_defects import packed
from tvm_cascade.errors import CascadeError, LoadError
from tvm_cascade.testing.single_operators import GENERATORS, Drawn, change_attribute, change_type
from tvm_cascade.testing.tflite import ELEMENT_TYPES, ModelWriter

_INTEGERS = {ELEMENT_TYPES[name]: name for name in ("int32", "int64")}
# what Python, TVM and its importer say where they fail, and what is said of an operator of which nothing more is known
_FOREIGN = re.compile(
    r"[Rr]elax|\bR\.|\bT\.|Check failed|Error\b|tensors length|unpack|object|argument|dtype|out of bounds|\btvm\b|form: inputs of"
)


def broken(seed: int) -> Drawn:
    """The file of a seed."""
    from ai_edge_litert import schema_py_generated as schema

    rng, names = np.random.default_rng(seed), sorted(GENERATORS)
    name, dtype = str(rng.choice(names)), str(rng.choice(["int8", "int8", "uint8", "int16", "float32", "float32"]))
    writer = ModelWriter()
    GENERATORS[name](rng, dtype, writer)
    model: Any = schema.ModelT.InitFromPackedBuf(writer.finish(), 0)
    change = _CHANGES[int(rng.integers(len(_CHANGES)))](rng, model.subgraphs[0], model)
    return Drawn(" ".join((name, dtype, str(seed), change)), packed(model))


def said(error: CascadeError) -> str:
    """What is wrong with the refusal of a broken operator; empty where nothing is."""
    if not isinstance(error, LoadError):
        return f"a {type(error).__name__}: {error}"
    if not error.operators and "truncated or corrupt: tensor" not in error.reason:
        return f"no operator is named: {error}"
    foreign = _FOREIGN.search(error.reason)
    return f"'{foreign[0]}' in: {error}" if foreign else ""


def _constants(graph: Any, model: Any) -> list[int]:
    held = (model.buffers[t.buffer].data for t in graph.tensors)
    return [k for k, data in enumerate(held) if data is not None and len(data)]


def _operand(rng: np.random.Generator, graph: Any, model: Any) -> str:
    places = [k for k in _constants(graph, model) if graph.tensors[k].type in _INTEGERS]
    if not places:
        return ""
    tensor = graph.tensors[int(rng.choice(places))]
    values = np.asarray(model.buffers[tensor.buffer].data, "uint8").view(_INTEGERS[tensor.type]).copy()
    at, value = int(rng.integers(values.size)), int(rng.choice([-7, -1, 0, 1, 2, 5, 99, 2**31 - 1]))
    values[at] = value
    model.buffers[tensor.buffer].data = np.frombuffer(values.tobytes(), "uint8")
    return f"an operand [{at}] {value}"


def _shape(rng: np.random.Generator, graph: Any, side: str) -> str:
    tensor = graph.tensors[int(rng.choice(getattr(graph, side)))]
    shape = [int(d) for d in tensor.shape] if tensor.shape is not None else []
    way = int(rng.integers(3))
    if way == 0:
        shape = [1, *shape]
    elif way == 1:
        shape = shape[1:]
    elif shape:
        shape[int(rng.integers(len(shape)))] += 1
    tensor.shape = np.array(shape, "int32")
    return f"{side} of {shape}"


def _operator(rng: np.random.Generator, graph: Any) -> Any:
    return graph.operators[int(rng.integers(len(graph.operators)))]


def _no_options(rng: np.random.Generator, graph: Any, _model: Any) -> str:
    operator = _operator(rng, graph)
    operator.builtinOptions, operator.builtinOptionsType = None, 0
    return "without attributes"


def _fewer(rng: np.random.Generator, graph: Any, _model: Any) -> str:
    operator = _operator(rng, graph)
    operator.inputs = np.array(operator.inputs[:-1], "int32")
    return "one input fewer"


def _left_out(rng: np.random.Generator, graph: Any, _model: Any) -> str:
    operator = _operator(rng, graph)
    inputs = [int(k) for k in operator.inputs]
    at = int(rng.integers(len(inputs)))
    inputs[at] = -1
    operator.inputs = np.array(inputs, "int32")
    return f"without input {at}"


def _computed(rng: np.random.Generator, graph: Any, model: Any) -> str:
    places = _constants(graph, model)
    if not places:
        return ""
    at = int(rng.choice(places))
    model.buffers[graph.tensors[at].buffer].data = None
    graph.inputs = np.array([*graph.inputs, at], "int32")
    return f"constant {at} computed"


_CHANGES: tuple[Callable[[np.random.Generator, Any, Any], str], ...] = (
    _operand,
    _operand,
    lambda rng, graph, _model: _shape(rng, graph, "inputs"),
    lambda rng, graph, _model: _shape(rng, graph, "outputs"),
    _no_options,
    _fewer,
    _left_out,
    _computed,
    change_attribute,
    change_attribute,
    change_type,
)
