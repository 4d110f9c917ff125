"""`OperatorSpec`: a lowered integer operator as data (kind, tensors, constants, attributes), stored in PrimFunc
attributes.

`passes.integer` lowers an operator to a PrimFunc and calls `with_spec`, which stores kind and attributes in the
function's attributes, because only functions survive Relax's transforms. `read_spec` reads them back. The code that
selects, builds or counts kernels works on an `OperatorSpec`. The spec for a part of an operator (a tile of pixels or
rows, a part of a concat) is a `dataclasses.replace` of the operator's spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tvm_cascade.operators.record import TensorType

KIND, ACTIVATIONS = "op_kind", "num_activations"  # PrimFunc attributes in addition to the fields of `Attributes`
IGNORES_NAN = "ignores_nan"  # a field of `Attributes` that generic kernels keep as a PrimFunc attribute

HALF_UP = "half up"  # rounding of averages: half away from zero otherwise
ONCE = "once, half to even"  # rounding of operators that are defined on real numbers; TFLite's round twice


@dataclass(frozen=True, slots=True)
class Attributes:
    """The parameters that define an operator besides tensors; None if the kind has no such parameter.

    Quantized values are `real = scale * (stored - zero_point)`. A multiplier and a shift are TFLite's: the factor
    `multiplier * 2^(shift - 31)`.
    """

    # windows, of rows and columns
    kernel: tuple[int, ...] | None = None
    pool_size: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    padding: tuple[int, ...] | None = None  # top, left, bottom, right
    counted: tuple[int, ...] | None = None  # the padding that counts in an average's divisor, where any does
    output_padding: tuple[int, ...] | None = None
    dilation: tuple[int, ...] | None = None
    groups: int | None = None
    layout: str | None = None
    kernel_layout: str | None = None
    # integer arithmetic
    accumulator: str | None = None  # element type of sums
    input_zero_point: int | None = None  # of a hybrid layer 0, or None: known at run time
    input_zero_points: tuple[int, ...] | None = None
    weight_zero_point: int | None = None
    weight_type: str | None = None  # the file's, where that is uint8: the weights are int8, 128 less
    weight_bits: int | None = None  # of stored weights of a float layer: 8, or several in a byte (`stored_constants`)
    weight_floats: str | None = None  # their kind where they are floats: of `small_floats.KINDS`
    weight_scaled: bool | None = None  # whether they have scales; floats may have none
    weight_block: int | None = None  # their taps that share a scale; 0: the scale of a channel, applied to the sum
    storing: str | None = None  # how floats are stored while a network runs (`schedules.tir.stored_reals.Storing`)
    slope_zero_point: int | None = None
    scales_in_turn: bool | None = None  # a hybrid sum is multiplied by the weights' scale, then by the input's
    output_zero_point: int | None = None
    multiplier: int | None = None
    shift: int | None = None
    multipliers: tuple[int, ...] | None = None  # of both operands, then of the output
    shifts: tuple[int, ...] | None = None
    head_room: int | None = None  # bits by which operands are shifted left before they are rescaled
    clamp: tuple[int, ...] | None = None  # smallest and largest stored output
    bounds: tuple[float, ...] | None = (
        None  # smallest and largest output of a float operator, infinite where there is none
    )
    rounding: str | None = None  # `ONCE`; of a dense layer of TFLite; of an average, where it is `HALF_UP`
    lowest: int | None = None  # the stored input value to which a table's first entry belongs
    function: str | None = None
    constant_first: bool | None = None  # whether the first operand is the constant one
    # axes and moves
    axis: int | None = None
    axes: tuple[int, ...] | None = None
    begin: tuple[int, ...] | None = None
    runs: tuple[int, ...] | None = None  # of a state's new value, one behind the other: input, its first byte, bytes
    pad_width: tuple[int, ...] | None = None  # before and after, axis by axis
    value: int | None = None  # stored value of padding
    mode: str | None = None
    repeats: tuple[int, ...] | None = None
    align_corners: int | None = None
    half_pixel: int | None = None
    table_of_input: tuple[int, ...] | None = None  # by input of a concat: the constant that requantizes it, -1 for none
    # fused operators
    part_axis: int | None = None  # axis of the concat whose parts an operator reads
    table_of_part: tuple[int, ...] | None = None  # by part: the constant that requantizes it, -1 for none
    channel_groups: int | None = None  # number of channel groups of a channel-tiled inverted bottleneck
    units: int | None = None
    coupled: bool | None = None
    # floats
    ignores_nan: bool | None = None  # maxima and comparisons need no care of NaN: the reference loses NaN there, too


NO_ATTRIBUTES = Attributes()


@dataclass(frozen=True, slots=True, eq=False)
class OperatorSpec:
    """An operator with a single output, as the input to kernel building."""

    kind: str  # conv2d, max_pool2d, ...; empty for functions of unknown origin
    inputs: tuple[TensorType, ...]  # activations
    output: TensorType
    constants: tuple[np.ndarray, ...] = ()
    attributes: Attributes = NO_ATTRIBUTES
    rows_by_table: bool = False  # the kernel reads its input through a row table (`schedules.forms.row_table`)
    tile_rows: int = 0  # output rows of one call, channels in the outermost loop; 0: one row, pixels outermost
    joined_rows: int = 1  # rows of the network's tensor that are joined to one row of `inputs` and `output`


def with_spec(func: Any, kind: str, activations: int, attributes: Attributes) -> Any:
    """Store the attributes read by `read_spec` in `func` (a PrimFunc); its first `activations` parameters are inputs."""
    given = {f.name: getattr(attributes, f.name) for f in fields(Attributes)}
    written = {name: list(v) if isinstance(v, tuple) else v for name, v in given.items() if v is not None}
    return func.with_attrs({KIND: kind, ACTIVATIONS: activations, **written})


def with_activations(func: Any, activations: int) -> Any:
    """Set how many activations `func` has.

    If some activations turned out to be constant, remove the kind, since performance schedules find parameters and
    constants by position.
    """
    attrs = func.attrs if func.attrs is not None else {}
    if ACTIVATIONS not in attrs or int(attrs[ACTIVATIONS]) == activations:
        return func
    return func.without_attr(KIND).with_attr(ACTIVATIONS, activations)


def read_attributes(func: Any) -> Attributes:
    """Read the attributes stored by `with_spec`; return `NO_ATTRIBUTES` for all other functions."""
    attrs = func.attrs
    if attrs is None or KIND not in attrs:
        return NO_ATTRIBUTES
    return Attributes(**{f.name: _READ[str(f.type)](attrs[f.name]) for f in fields(Attributes) if f.name in attrs})


def ignores_nan(func: Any) -> bool:
    """Return True if a PrimFunc, an operator's or a kernel of one, needs no care of NaN (`Attributes.ignores_nan`)."""
    return func.attrs is not None and IGNORES_NAN in func.attrs


def read_spec(func: Any, constants: Sequence[np.ndarray] = ()) -> OperatorSpec:
    """Read the spec of a PrimFunc with static shapes and the parameters activations, constants and outputs."""
    attrs = func.attrs if func.attrs is not None else {}
    activations = int(attrs[ACTIVATIONS]) if ACTIVATIONS in attrs else 1
    tensors = [_tensor(p) for p in (*func.params[:activations], func.params[-1])]
    kind = str(attrs[KIND]) if KIND in attrs else ""
    return OperatorSpec(kind, tuple(tensors[:-1]), tensors[-1], tuple(constants), read_attributes(func))


def _tensor(param: Any) -> TensorType:
    dtype = param.ty.dtype
    return TensorType(tuple(int(d) for d in param.ty.shape[:]), str(getattr(dtype, "dtype", dtype)))


def _integers(value: Any) -> tuple[int, ...]:
    return tuple(int(v) for v in value)


def _floats(value: Any) -> tuple[float, ...]:
    return tuple(float(getattr(v, "value", v)) for v in value)


_READ = {
    "int | None": int,
    "bool | None": bool,
    "str | None": str,
    "tuple[int, ...] | None": _integers,
    "tuple[float, ...] | None": _floats,
}
