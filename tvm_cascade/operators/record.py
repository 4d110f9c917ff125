"""`Operator`, the operator table's entry for a kind of operator, and `TensorType`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tvm_cascade.graph import Window

Array = np.ndarray
Attributes = Mapping[str, Any]  # attributes of one operator; the file of each family lists them
OTHER_EFFICIENCY = 0.25  # `Operator.efficiency` of kernels that are not built around a convolution or product


class TensorType(NamedTuple):
    """Shape and element type of a tensor."""

    shape: tuple[int, ...]
    dtype: str = "float32"


Types = tuple[TensorType, ...]


class Family(Enum):
    """Families of operators treated alike by rewrites and cost models."""

    CONVOLUTION = "convolution"
    PRODUCT = "product"
    POOL = "pool"
    BINARY = "binary"  # element-wise, of two operands
    UNARY = "unary"  # element-wise, of one operand
    FUSED = "fused"  # a program of element-wise steps in one kernel
    NORMALIZATION = "normalization"  # reductions over axes, and normalizations by them
    MOVEMENT = "movement"  # moves values and computes nothing
    CONSTANT = "constant"  # computed from weights alone, so that constant folding removes it
    OPAQUE = "opaque"  # an operator of which only the types are known


def _no_macs(read: Types, made: Types, attrs: Attributes) -> int:
    return 0


def one_step_a_value(read: Types, made: Types, attrs: Attributes) -> int:
    """Count an arithmetic step for every value of the largest among the outputs and operand 0."""
    return max(prod(t.shape) for t in (*made, *read[:1]))


def steps_of_products(macs: Callable[[Types, Types, Attributes], int]) -> Callable[[Types, Types, Attributes], int]:
    """Count two steps per multiply-accumulate; per output value a step for each operand after the second, and for
    `act`.
    """

    def steps(read: Types, made: Types, attrs: Attributes) -> int:
        return 2 * macs(read, made, attrs) + (len(read) - 2 + bool(attrs["act"])) * prod(made[0].shape)

    return steps


@dataclass(frozen=True, slots=True)
class Operator:
    """A kind of operator.

    `infer(read, attrs)` returns the outputs' types from the operands' types and raises `GraphError` if they do not fit;
    a kind without `infer` stands in graphs for scheduling only. `evaluate(attrs, *operands)` returns the output, or a
    tuple of outputs, in numpy: integers accumulate in int32 or wider and are exact. `macs(read, made, attrs)` counts
    multiply-accumulates, padding included; `steps(read, made, attrs)` counts arithmetic steps, two for every
    multiply-accumulate. `windows(read, made, attrs)` returns the window along the rows and along the columns of operand
    0.
    """

    kind: str
    family: Family
    infer: Callable[[Types, Attributes], Types] | None = None
    evaluate: Callable[..., Any] | None = None
    macs: Callable[[Types, Types, Attributes], int] = _no_macs
    steps: Callable[[Types, Types, Attributes], int] = one_step_a_value
    windows: Callable[[Types, Types, Attributes], tuple[Window, Window]] | None = None
    also: tuple[str, ...] = ()  # other names of the kind, used by importers and by the integer operators
    unquantized: str = ""  # for a quantized kind: the float kind as which cost models price it
    efficiency: float = OTHER_EFFICIENCY  # share of the arithmetic peak that generated kernels reach on a full device
    commutative: bool = False
    elementwise: bool = False  # each output value depends on operand values at its position: fused with its producer
    activation: bool = False  # can be fused into a convolution or product (`act`)
    movable: bool = False  # rewrites may move it across concatenations and max pools
    reduces: bool = False  # sums products: a fused kernel has one such operator as its anchor
    splits_reduction: bool = False  # libraries split its reduction among threads
    mergeable: bool = False  # several on one input can be merged into one with stacked weights
    view: bool = False  # moves no data
    channelwise: bool = (
        False  # an output value depends on operand 0's same channel alone, or channels of the same group
    )
    takes_parts: bool = False  # its kernel can read the parts of a concat instead of its result
