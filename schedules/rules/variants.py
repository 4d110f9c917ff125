"""Variants of a kernel: the ways in which a rule can make an operator, by name, and the shape that a choice belongs to.

A rule module lists the variants of an operator, the one it would take without further knowledge first. `schedules.tuning.tune`
counts them, `schedules.rules.select` picks one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to make a kernel; `make` answers None where it does not apply after all."""

    name: str
    make: Callable[[], RowKernel | None]


def first(variants: Iterable[Variant]) -> RowKernel | None:
    """The kernel of the first variant that applies."""
    return next((k for k in (v.make() for v in variants) if k is not None), None)


def shape_key(spec: OperatorSpec) -> str:
    """What tells two operators of a kind apart as far as counts go: types, shapes, strides and padding, as text.

    Values of weights, zero points and scales are not in it: they move a count by a few instructions an output.
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
