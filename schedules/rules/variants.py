"""Variants of a kernel: the ways in which a rule can make an operator, by name, and the shape that a choice belongs to.

A rule module lists the variants of an operator, the one it would take without further knowledge first. `schedules.tuning.tune`
counts them, `schedules.rules.select` picks one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm.tirx import PrimFunc

from tvm_cascade.schedules.kernels.row_kernel import RowKernel
from tvm_cascade.schedules.rules.quantized import attribute, dtype_of, integers, parameters, shape_of


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to make a kernel; `make` answers None where it does not apply after all."""

    name: str
    make: Callable[[], RowKernel | None]


def first(variants: Iterable[Variant]) -> RowKernel | None:
    """The kernel of the first variant that applies."""
    return next((k for k in (v.make() for v in variants) if k is not None), None)


def shape_key(func: PrimFunc, constants: Sequence[np.ndarray] = ()) -> str:
    """What tells two operators of a kind apart as far as counts go: types, shapes, strides and padding, as text.

    Not in it: values of weights, zero points and scales. They move a count by a few instructions an output.
    """
    params = parameters(func)
    activations = integers(func, "num_activations", (1,))[0]
    tensors = [*params[:activations], params[-1]]
    parts = [str(attribute(func, "op_kind", ""))]
    parts += [f"{dtype_of(t)}[{','.join(str(d) for d in shape_of(t))}]" for t in tensors]
    if constants:
        parts.append(f"w[{','.join(str(d) for d in constants[0].shape)}]")
    for name, short in (
        ("kernel", "k"),
        ("pool_size", "k"),
        ("strides", "s"),
        ("padding", "p"),
        ("axis", "a"),
        ("dilation", "d"),
    ):
        values = integers(func, name, ())
        if values and (name, set(values)) != ("dilation", {1}):
            parts.append(short + ",".join(str(v) for v in values))
    return " ".join(parts)
