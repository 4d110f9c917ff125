"""Make fixed inputs of ONNX models constants in the graph, so dependent branches and sizes fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx import helper, numpy_helper

from tvm_cascade.errors import UsageError
from tvm_cascade.fixed_inputs import FixedInput
from tvm_cascade.importers.interface import check_inputs
from tvm_cascade.importers.onnx.file import read_model
from tvm_cascade.importers.onnx.folding import copied
from tvm_cascade.messages import printable


def fix_onnx(
    path: Path, data: bytes, fixed: Sequence[FixedInput], input_shapes: Mapping[str, tuple[int, ...]]
) -> tuple[bytes, tuple[FixedInput, ...]]:
    """Return the model in `data` without its fixed inputs, and these inputs with types and shapes.

    Raises `UsageError` for an unknown input, and for an unsuitable value.
    """
    model = copied(read_model(path, data))
    weights = {w.name for w in model.graph.initializer}
    inputs = {i.name: i for i in model.graph.input if i.name not in weights}
    check_inputs([f.name for f in fixed], list(inputs))
    made: list[FixedInput] = []
    for one in fixed:
        tensor = inputs[one.name].type.tensor_type
        stored = [d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in tensor.shape.dim]
        declared = [1, *stored[1:]] if stored[:1] == [None] else stored  # a leading batch is 1
        shape = input_shapes.get(one.name) or (one.shape if None in declared and one.shape else declared)
        if None in shape:
            name = printable(one.name)
            raise UsageError(
                f"--input-value {name}: the shape is open: give it by --input-shape {name}=..., or an array"
            )
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        made.append(one.of_input(str(dtype), [int(d) for d in shape if d is not None]))
        model.graph.initializer.append(numpy_helper.from_array(made[-1].array.copy(), one.name))
    kept = [copied(i) for i in model.graph.input if i.name not in {f.name for f in fixed}]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model.SerializeToString(), tuple(made)
