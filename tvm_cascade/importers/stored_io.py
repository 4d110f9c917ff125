"""Inputs and outputs in the stored integers of a quantized network, where its file has them in floats.

Models of ONNX Runtime's and PyTorch's quantizers take floats, quantize them, and dequantize what they return. On a board
that is four times the bytes of what the network reads: an input that is only quantized comes quantized, an output that
is only dequantized leaves as it is stored. `TensorSpec.scale` and `zero_point` say what the integers mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax as _relax

from tvm_cascade.errors import UsageError
from tvm_cascade.importers.interface import attach, io_spec
from tvm_cascade.passes.rename_variables import substitute
from tvm_cascade.tensor_spec import IoSpec, TensorSpec

ir: Any = tvm.ir  # nodes of TVM get their fields at run time
relax: Any = _relax
Value: TypeAlias = Any


def store_io(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod`, as `load` makes it, with stored integers for every float input and output that allows it.

    Raises
    ------
    UsageError
        Where none does.
    """
    untyped: Any = mod
    main, spec = untyped["main"], io_spec(mod)
    bindings = [b for block in main.body.blocks for b in block.bindings]
    inputs = [_stored_input(param, s, bindings) for param, s in zip(main.params, spec.inputs, strict=True)]
    definitions = {b.var: b.value for b in bindings}
    result = _defined(main.body.body, definitions)
    several = isinstance(result, relax.Tuple)
    fields = list(result.fields) if several else [main.body.body]
    outputs = [_stored_output(field, s, definitions) for field, s in zip(fields, spec.outputs, strict=True)]
    if not any(inputs) and not any(outputs):
        raise UsageError("no float input of the model is only quantized, and no float output only dequantized")
    params = [_parameter(p, s) for p, s in zip(main.params, inputs, strict=True)]
    stored = {p: new for p, new, s in zip(main.params, params, inputs, strict=True) if s is not None}
    renamed: dict[Value, Value] = {p: new for p, new in zip(main.params, params, strict=True) if p not in stored}
    others = {gv: f for gv, f in untyped.functions.items() if gv.name_hint != "main"}
    attrs = {str(k): v for k, v in main.attrs.items() if str(k) != "global_symbol"}
    builder: Any = relax.BlockBuilder(tvm.IRModule(others))
    with builder.function("main", params, attrs=attrs):
        with builder.dataflow():
            for binding in bindings:
                value = binding.value
                if _name(value) == "relax.quantize" and value.args[0] in stored:
                    renamed[binding.var] = stored[value.args[0]]
                elif not (several and _defined(value, definitions).same_as(result)):
                    renamed[binding.var] = builder.emit(substitute(value, renamed), name_hint=binding.var.name)
            made = [
                substitute(field if s is None else _defined(field, definitions).args[0], renamed)
                for field, s in zip(fields, outputs, strict=True)
            ]
            value = builder.emit_output(relax.Tuple(made) if several else made[0])
        builder.emit_func_output(value)
    finished = relax.transform.DeadCodeElimination()(builder.finalize())
    return attach(finished, IoSpec(_replaced(spec.inputs, inputs), _replaced(spec.outputs, outputs)))


def storable_inputs(mod: tvm.IRModule) -> tuple[TensorSpec, ...]:
    """The inputs that `store_io` would store, as they would be."""
    untyped: Any = mod
    bindings = [b for block in untyped["main"].body.blocks for b in block.bindings]
    pairs = zip(untyped["main"].params, io_spec(mod).inputs, strict=True)
    return tuple(s for s in (_stored_input(param, spec, bindings) for param, spec in pairs) if s is not None)


def _replaced(old: Sequence[TensorSpec], new: Sequence[TensorSpec | None]) -> tuple[TensorSpec, ...]:
    return tuple(n or o for o, n in zip(old, new, strict=True))


def _parameter(param: Value, spec: TensorSpec | None) -> Value:
    return param if spec is None else relax.Var(param.name, relax.TensorType(spec.shape, spec.dtype))


def _stored_input(param: Value, spec: TensorSpec, bindings: Sequence[Any]) -> TensorSpec | None:
    """As the one quantize makes it that every reader of `param` is; None where there is another."""
    readers = [b.value for b in bindings if param in relax.analysis.free_vars(b.value)]
    if spec.dtype != "float32" or not readers or any(_name(r) != "relax.quantize" for r in readers):
        return None
    forms = {(_number(r.args[1]), _number(r.args[2]), str(r.ty.dtype)) for r in readers}
    scale, zero, dtype = next(iter(forms))
    if len(forms) > 1 or scale is None or zero is None:
        return None
    return replace(spec, dtype=dtype, scale=scale, zero_point=int(zero))


def _stored_output(value: Value, spec: TensorSpec, definitions: Mapping[Value, Value]) -> TensorSpec | None:
    """As it is before the dequantize that makes it; None where something else does."""
    call = _defined(value, definitions)
    if _name(call) != "relax.dequantize" or spec.dtype != "float32":
        return None
    scale, zero = _number(call.args[1]), _number(call.args[2])
    if scale is None or zero is None:
        return None
    return replace(spec, dtype=str(call.args[0].ty.dtype), scale=scale, zero_point=int(zero))


def _defined(value: Value, definitions: Mapping[Value, Value]) -> Value:
    """What a variable is bound to, through its other names."""
    while isinstance(value, relax.Var) and value in definitions:
        value = definitions[value]
    return value


def _number(value: Value) -> float | None:
    data = value.value.numpy() if isinstance(value, ir.GenericConst) else np.zeros(0)
    return float(data.reshape(-1)[0]) if data.size == 1 else None


def _name(value: Value) -> str:
    return str(getattr(value.op, "name", "")) if isinstance(value, relax.Call) else ""
