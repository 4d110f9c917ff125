"""LiteRT's reference kernels as the oracle, and modules with every intermediate as an output.

Only the `test` extra has LiteRT, so it is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
import tvm
from tvm import relax as _relax

from tvm_cascade.passes.integer.expressions import attributes, dtype_of
from tvm_cascade.program.quant import STORED_TYPES
from tvm_cascade.testing.quick_build import virtual_machine

relax: Any = _relax  # its nodes get their fields at run time


def without_bias_axes(data: bytes) -> bytes:
    """A copy of a model with `quantized_dimension` of its rank-1 tensors cleared: LiteRT refuses it set to 3."""
    import ai_edge_litert.schema_py_generated as schema

    model: Any = schema.ModelT.InitFromPackedBuf(data, 0)
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            if tensor.quantization is not None and np.size(tensor.shape) <= 1:
                tensor.quantization.quantizedDimension = 0
    builder = flatbuffers.Builder(len(data))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


class Reference:
    """LiteRT on one model; keeps every intermediate.

    With BUILTIN_REF kernels, or with `plain` the ordinary ones, for the few operators that the reference has none of;
    `shapes` are those of the first inputs, where the file leaves sizes open.

    Raises
    ------
    ValueError
        For a model with an operator, or a version of one, that those kernels lack.
    """

    def __init__(self, data: bytes, *, plain: bool = False, shapes: Sequence[tuple[int, ...]] = ()) -> None:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        kernels = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES if plain else OpResolverType.BUILTIN_REF
        self.interpreter: Any = Interpreter(
            model_content=data,
            experimental_op_resolver_type=kernels,
            experimental_preserve_all_tensors=True,
            num_threads=1,
        )
        for detail, shape in zip(self.interpreter.get_input_details(), shapes, strict=False):
            self.interpreter.resize_tensor_input(detail["index"], shape)
        self.interpreter.allocate_tensors()
        self.inputs = self.interpreter.get_input_details()
        self.outputs = self.interpreter.get_output_details()
        self.tensors = {d["name"]: d["index"] for d in self.interpreter.get_tensor_details()}

    def run(self, arrays: list[np.ndarray], again: bool = False) -> list[np.ndarray]:
        """Outputs of one inference, in the model's order; states start at zero, or `again` as the last left them."""
        if not again:
            self.interpreter.reset_all_variables()
        for detail, array in zip(self.inputs, arrays, strict=True):
            self.interpreter.set_tensor(detail["index"], array)
        self.interpreter.invoke()
        return [self.interpreter.get_tensor(d["index"]).copy() for d in self.outputs]

    def tensor(self, index: int) -> np.ndarray:
        """Any tensor of the last inference."""
        return self.interpreter.get_tensor(index).copy()


def with_every_tensor(mod: tvm.IRModule) -> tuple[tvm.IRModule, tuple[str, ...]]:
    """`mod` returning all named stored tensors of `main`, and their names; for a module fresh from `load`."""
    mod = mod.clone()
    main = mod["main"]
    bindings = [b for block in main.body.blocks for b in block.bindings]
    stored = [b for b in bindings if dtype_of(b.var) in STORED_TYPES and not b.var.name.startswith(("lv", "gv"))]
    builder = relax.BlockBuilder()
    attrs = {k: v for k, v in attributes(main).items() if k != "global_symbol"}
    with builder.function("main", list(main.params), attrs=attrs):
        with builder.dataflow():
            for binding in bindings:
                builder.emit_normalized(binding)
            result = builder.emit_output(relax.Tuple([b.var for b in stored]))
        builder.emit_func_output(result)
    return builder.finalize(), tuple(b.var.name for b in stored)


class Compiled:
    """A module built for this machine, called with arrays: quickly, or optimised where it runs long."""

    def __init__(self, mod: tvm.IRModule, optimisation: int = 0) -> None:
        self._machine = virtual_machine(mod, optimisation)

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        result = self._machine["main"](*(tvm.runtime.tensor(a) for a in arrays))
        fields = [result] if hasattr(result, "numpy") else list(result)
        return [f.numpy() for f in fields]


def random_inputs(details: Sequence[Mapping[str, Any]], seed: int) -> list[np.ndarray]:
    """Stored inputs of three kinds by turns: uniform, narrow around the middle, constant at an end of the range.

    Floats are normal, of three sizes by turns, booleans true or false.
    """
    rng = np.random.default_rng(seed)
    arrays = []
    for detail in details:
        dtype, shape = np.dtype(detail["dtype"]), tuple(detail["shape"])
        if dtype.kind == "f":
            arrays.append((rng.standard_normal(shape) * (1.0, 4.0, 0.1)[seed % 3]).astype(dtype))
            continue
        if dtype.kind == "b":
            arrays.append(rng.random(shape) < 0.5)
            continue
        info = np.iinfo(dtype)
        if seed % 4 == 1:
            values = np.clip(rng.normal((info.min + info.max) / 2, 20, shape), info.min, info.max)
        elif seed % 8 == 2:
            values = np.full(shape, info.min if seed % 16 == 2 else info.max)
        else:
            values = rng.integers(info.min, info.max + 1, size=shape)
        arrays.append(values.astype(dtype))
    return arrays
