"""Kernel variants: named alternative kernels of an operator, and the shape key for recorded choices.

A rule module lists the variants for an operator, the default first. `schedules.tuning.tune` compares them by
instruction counts, `schedules.rules.select` picks one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec


@dataclass(frozen=True, slots=True)
class Variant:
    """An applicable way to compute an operator; `make` builds the kernel."""

    name: str
    make: Callable[[], RowKernel]
    rows: int = 1  # output rows of one call


def shape_key(spec: OperatorSpec) -> str:
    """Return an operator's key in databases of counts, as text: kind, types, shapes, strides, padding, axis and
    dilation.

    Weights, zero points and scales are not part of the key: their values change counts by a few instructions per
    output.
    """
    given = spec.attributes
    parts = [spec.kind, *(f"{t.dtype}[{_listed(t.shape)}]" for t in (*spec.inputs, spec.output))]
    if spec.constants:
        parts.append(f"w[{_listed(spec.constants[0].shape)}]")
    dilation = given.dilation if set(given.dilation or ()) != {1} else None
    axis = None if given.axis is None else (given.axis,)
    named = (given.kernel, given.pool_size, given.strides, given.padding, axis, dilation)
    parts += [short + _listed(values) for short, values in zip("kkspad", named, strict=True) if values]
    return " ".join(parts)


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(str(n) for n in numbers)
