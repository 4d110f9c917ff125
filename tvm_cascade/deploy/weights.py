"""Weights of an emitted program: a file that is mapped into memory, instead of constants in the library.

TVM's virtual machine copies a library's constants as it loads them, and unpacks the library's text first: a process
then holds all weights three times for a moment, and twice for good.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_cascade.passes.integer.expressions import is_constant
from tvm_cascade.passes.relax_functions import sequence, typed

WEIGHTS = "weights.bin"
_LEAST = 4096  # bytes of a constant that is a weight: smaller ones stay in the library
_ALIGNMENT = 64  # bytes: kernels read vectors


def as_parameters(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[np.ndarray]]:
    """Turn the large constants of `main`'s calls into parameters behind the inputs; returns the module and the arrays.

    Equal constants become a single parameter. `main` is a straight line of calls, as `lower_stages` makes it.
    """
    main = mod["main"]
    params, arrays = list[Any](), list[np.ndarray]()
    known: dict[tuple[str, tuple[int, ...], bytes], Any] = {}

    def parameter(arg: Any) -> Any:
        if not is_constant(arg):
            return arg
        array = _array(arg)
        if array is None or array.nbytes < _LEAST:
            return arg
        key = str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).digest()
        if key not in known:
            known[key] = relax.Var(f"weights_{len(params)}", arg.ty)
            params.append(known[key])
            arrays.append(array)
        return known[key]

    blocks = [relax.BindingBlock([_replaced(b, parameter) for b in block.bindings]) for block in main.body.blocks]
    body = sequence(blocks, main.body.body)
    made = relax.Function([*main.params, *params], body, main.ret_ty, main.is_pure, main.attrs)
    changed = mod.clone()
    changed.update_func(mod.get_global_var("main"), made)
    return changed, arrays


def write_weights(arrays: Sequence[np.ndarray], path: Path) -> dict[str, object]:
    """Write the arrays one behind the other, aligned; returns the file's description for `metadata.json`."""
    tensors, at, text = list[dict[str, object]](), 0, hashlib.sha256()
    with path.open("wb") as file:
        for array in arrays:
            gap = bytes(-at % _ALIGNMENT)
            for part in (gap, array.tobytes()):
                file.write(part)
                text.update(part)
            tensors.append({"dtype": str(array.dtype), "shape": list(array.shape), "offset": at + len(gap)})
            at += len(gap) + array.nbytes
    return {"file": path.name, "bytes": at, "sha256": text.hexdigest(), "tensors": tensors}


def _array(constant: Any) -> np.ndarray | None:
    """Return a tensor's data; None for other constants, and types without a name in numpy, which stay in the library."""
    if not hasattr(constant.value, "numpy"):
        return None
    array = np.ascontiguousarray(constant.value.numpy())
    return array if array.dtype.isbuiltin == 1 else None


def _replaced(binding: Any, parameter: Any) -> Any:
    """Return a binding whose call's arguments have gone through `parameter`."""
    call = binding.value
    if not isinstance(call, relax.Call) or not any(is_constant(arg) for arg in call.args):
        return binding
    made = relax.Call(call.op, [parameter(arg) for arg in call.args], call.attrs, call.ty_args)
    return relax.VarBinding(binding.var, typed(made, binding.var.ty))
