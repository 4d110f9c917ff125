"""What the table holds of one kind of operator, and the types of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tvm_cascade.graph import Window

Array = np.ndarray
Attributes = Mapping[str, Any]  # of one operator; every family's file says which it has
OTHER_EFFICIENCY = 0.25  # of kernels that are not built around a convolution or product


class TensorType(NamedTuple):
    shape: tuple[int, ...]
    dtype: str = "float32"


Types = tuple[TensorType, ...]


class Family(Enum):
    """Operators that rewrites and schedulers treat alike."""

    CONVOLUTION = "convolution"
    PRODUCT = "product"
    POOL = "pool"
    BINARY = "binary"  # element-wise, of two operands
    UNARY = "unary"  # element-wise, of one operand
    FUSED = "fused"  # a program of element-wise steps in one kernel
    NORMALIZATION = "normalization"  # statistics over axes, and what is scaled by them
    MOVEMENT = "movement"  # puts values elsewhere and computes nothing
    CONSTANT = "constant"  # made from weights alone: gone after folding
    OPAQUE = "opaque"  # an operator that nothing here looks into


def _no_macs(read: Types, made: Types, attrs: Attributes) -> int:
    return 0


def one_step_a_value(read: Types, made: Types, attrs: Attributes) -> int:
    """One arithmetic step for every value of the largest tensor."""
    return max(prod(t.shape) for t in (*made, *read[:1]))


def steps_of_products(macs: Callable[[Types, Types, Attributes], int]) -> Callable[[Types, Types, Attributes], int]:
    """Two steps a multiply-accumulate; for each value one more for every further operand and for the activation."""

    def steps(read: Types, made: Types, attrs: Attributes) -> int:
        return 2 * macs(read, made, attrs) + (len(read) - 2 + bool(attrs["act"])) * prod(made[0].shape)

    return steps


@dataclass(frozen=True, slots=True)
class Operator:
    """One kind of operator.

    `infer(read, attrs)` gives the types of the outputs from those of the operands and raises `GraphError` where they do
    not fit; a kind without it stands in graphs for scheduling only. `evaluate(attrs, *operands)` gives the output, or a
    tuple of outputs, in numpy: integers accumulate in int32 or wider and are exact. `macs(read, made, attrs)` counts
    multiply-accumulates, padding included; `steps(read, made, attrs)` counts arithmetic steps, two for every
    multiply-accumulate. `windows(read, made, attrs)` gives the window along the rows and along the columns of operand 0.
    """

    kind: str
    family: Family
    infer: Callable[[Types, Attributes], Types] | None = None
    evaluate: Callable[..., Any] | None = None
    macs: Callable[[Types, Types, Attributes], int] = _no_macs
    steps: Callable[[Types, Types, Attributes], int] = one_step_a_value
    windows: Callable[[Types, Types, Attributes], tuple[Window, Window]] | None = None
    also: tuple[str, ...] = ()  # other names of the kind, as importers and the integer operators call it
    unquantized: str = ""  # of a quantized kind: the kind that cost models price it as
    efficiency: float = OTHER_EFFICIENCY  # part of the arithmetic peak that generated kernels reach on a full device
    commutative: bool = False
    elementwise: bool = False  # computes each value from those at its place: joins the kernel before it
    activation: bool = False  # the kernel of a convolution or product can apply it to its result
    movable: bool = False  # rewrites may move it across concatenations and max pools
    reduces: bool = False  # sums products: a kernel is built around it
    splits_reduction: bool = False  # libraries share its reduction out to threads
    mergeable: bool = False  # several on one input become one with stacked weights
    view: bool = False  # moves nothing in memory
    takes_parts: bool = False  # its kernel can read the parts of a concat where they lie
