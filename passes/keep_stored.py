"""Stored constants that operators other than float products read: kernels read the integers, too.

    before: w = R.multiply(R.astype(integers), scales)  after: w = R.call_tir(cls.stored_constant, (integers, scales))
            y = R.nn.conv2d(x, w, groups=2)                    y = R.nn.conv2d(x, w, groups=2)

`relax_ops` does not fold such a call, but inlines it in the functions that read it (`inlined`).
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm_ffi
from tvm import s_tir

from tvm_cascade.passes import relax_functions
from tvm_cascade.passes.integer.expressions import constant, constant_of
from tvm_cascade.passes.integer.untyped import Module, Value, ir, relax, te
from tvm_cascade.passes.lower_quantized import why_not_read
from tvm_cascade.passes.small_weights import small_floats_of
from tvm_cascade.passes.stored_constants import FEWEST, Packed, read_stored
from tvm_cascade.program.quant import NotLowered
from tvm_cascade.schedules.kernels.spec import KIND
from tvm_cascade.schedules.kernels.storage import storage_of, with_storage
from tvm_cascade.schedules.tir import PrimFunc, dtype_of, outputs_of, shape_of

_NAME = "stored_constant"
_ATTR = "cascade_stored"


def keep_stored(mod: Module) -> Module:
    """Write constants of `main` that take fewer bytes as a file stores them as calls; return `mod` without any."""
    main, kinds = mod["main"], small_floats_of(mod)
    if why_not_read(main) is not None:
        return mod
    if kinds:
        mod = _with_bound_constants(mod)
        main = mod["main"]
    bindings = relax_functions.bindings_of(main)
    definitions = {b.var: b.value for b in bindings}
    try:
        stored = {b.var: s for b in bindings if (s := read_stored(b.value, definitions, kinds)) is not None}
    except NotLowered:  # shapes that are not static
        return mod
    read = {v for b in bindings if b.var not in stored for v in relax.analysis.free_vars(b.value)}
    packed = {v: s.packed() for v, s in stored.items() if v in read and s.complete and s.values.size}
    packed = {v: p for v, p in packed.items() if p.worth_keeping()}
    if not packed:
        return mod
    builder = relax_functions.without_main(mod)

    def value_of(binding: Any, renamed: Any) -> Value:
        kept = packed.get(binding.var)
        if kept is None:
            return relax_functions.substitute(binding.value, renamed)
        called = builder.add_func(_function(kept), _NAME)
        return relax.call_tir(called, [*map(constant, kept.arrays)], binding.var.ty)

    return relax_functions.rewritten_main(mod, builder, value_of)


def _with_bound_constants(mod: Module) -> Module:
    """Bind each constant of floats that may be kept small to a variable."""
    builder = relax_functions.without_main(mod)

    def bound(given: Value) -> Value:
        data = constant_of(given)
        worth = data is not None and data.dtype == np.float32 and data.size >= FEWEST
        return builder.emit(given) if worth else given

    def value_of(binding: Any, renamed: Any) -> Value:
        value = relax_functions.substitute(binding.value, renamed)
        if not isinstance(value, relax.Call):
            return value
        return tvm_ffi.structural_map(value, [(ir.GenericConst, bound)], order="post")

    return relax_functions.rewritten_main(mod, builder, value_of)


def _function(packed: Packed) -> PrimFunc:
    places = [te.placeholder(a.shape, str(a.dtype), f"p{i}") for i, a in enumerate(packed.arrays)]
    made = te.compute(packed.shape, lambda *index: packed.element(places, index), _NAME)
    func = te.create_prim_func([*places, made], index_dtype_override="int64")  # as those of Relax's operators
    return with_storage(func.without_attr("global_symbol").with_attr(_ATTR, 1), packed.storage)


def is_stored(func: PrimFunc) -> bool:
    """Return True if a function computes a stored constant."""
    return bool(func.attrs) and _ATTR in func.attrs


def inlined(reader: PrimFunc, at: int, stored: PrimFunc, arrays: Sequence[np.ndarray]) -> PrimFunc | None:
    """Inline a stored constant in a function that reads it as parameter `at`: its arrays become parameters in its place.

    Return None if the constant cannot be read element by element.
    """
    if reader.attrs and KIND in reader.attrs:  # whose kernels know what their constants are
        return None
    outputs = outputs_of(reader)
    own = [_type(shape_of(p), dtype_of(p)) for p in reader.params[: len(reader.params) - len(outputs)]]
    types = [*own[:at], *(_type(a.shape, str(a.dtype)) for a in arrays), *own[at + 1 :]]
    results = [_type(shape_of(o), dtype_of(o)) for o in outputs]

    def emit(builder: Any, params: list[Any]) -> Any:
        first, second = builder.add_func(stored, _NAME), builder.add_func(reader, "reader")
        whole = builder.emit(relax.call_tir(first, params[at : at + len(arrays)], own[at]))
        rest = [*params[:at], whole, *params[at + len(arrays) :]]
        return builder.emit(relax.call_tir(second, rest, results if len(results) > 1 else results[0]))

    try:
        schedule = s_tir.Schedule(relax_functions.fused_function(types, emit))
        schedule.compute_inline(schedule.get_sblock(_NAME))
    except Exception:  # TVM's errors have no common type: what is opaque, or written by several blocks
        return None
    func = schedule.mod["main"].without_attr("global_symbol")
    return with_storage(func, storage_of(reader), storage_of(stored))


def _type(shape: tuple[int, ...], dtype: str) -> Any:
    return relax.TensorType(list(shape), dtype)
