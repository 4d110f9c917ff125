"""Refuse imported networks with element types or computed scales beyond all kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm_cascade.errors import LoadError
from tvm_cascade.messages import printable
from tvm_cascade.passes.islands.reader import is_boundary
from tvm_cascade.passes.main_rewriting import Value, bindings_of, relax
from tvm_cascade.passes.origin import plain

_KERNELS = frozenset(
    ("bool", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
)


def check_types(path: object, mod: Any) -> None:
    """Raise for inputs and computed values in types without kernels, such as 16-bit floats or 4-bit integers. Weights
    may be stored in these types; ONNX's 16-bit floats become float32 before (`onnx.halves`).

    Raises
    ------
    LoadError
        Naming the tensor, with the remedy.
    """
    main = mod["main"]
    for var in (*main.params, *(var for var, _ in _computed(main))):
        for kind in getattr(var.ty, "fields", [var.ty]):
            dtype = str(getattr(kind, "dtype", "")) or "float32"
            if dtype not in _KERNELS:
                remedy = (
                    "convert the model to float32, or quantize it to int8"
                    if "float" in dtype
                    else "let it compute int8"
                )
                raise LoadError(
                    path, f"tensor {printable(plain(str(var.name)))} is {dtype}, which has no kernels: {remedy}"
                )


def check_scales(path: object, mod: Any) -> None:
    """Raise for activations that are quantized dynamically, by scales computed at run time.

    Raises
    ------
    LoadError
        Naming the tensor, with the remedy.
    """
    made = dict(_computed(mod["main"]))
    for var, value in made.items():
        if is_boundary(value) and any(a in made for a in value.args[1:]):
            raise LoadError(
                path,
                f"tensor {printable(str(var.name))} is quantized dynamically, by a scale that the network computes: "
                "quantize it statically, with calibration data (onnxruntime: quantize_static)",
            )


def _computed(main: Any) -> Iterator[tuple[Value, Value]]:
    """Yield the variables that depend on inputs, with definitions, in order."""
    found = set(main.params)
    for binding in bindings_of(main):
        value = getattr(binding, "value", None)
        if value is not None and any(v in found for v in relax.analysis.free_vars(value)):
            found.add(binding.var)
            yield binding.var, value
