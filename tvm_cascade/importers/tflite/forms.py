"""The forms of TFLite's operators: input counts, constant inputs, needed attributes, and requirements.

`check_form` holds an operator to its form before any conversion, so a faulty file is refused in our words, not by an
importer's crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tvm_cascade.importers.tflite import requirements as has
from tvm_cascade.importers.tflite import weights as layer
from tvm_cascade.importers.tflite.site import InvalidForm, Requirement, Site, UnsupportedForm

_MANY = 1 << 17
_INTEGERS = ("int32", "int64")


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a single operator kind."""

    inputs: tuple[int, int]  # fewest and most
    options: str = ""  # the table of attributes that it cannot be without, such as Conv2DOptions
    # integers that have to be known: input -> what it is called
    constants: Mapping[int, str] = field(default_factory=dict)
    optional: tuple[int, ...] = ()  # inputs that may be left out
    outputs: tuple[int, int] = (1, 1)
    requires: tuple[Requirement, ...] = ()


def check_form(site: Site) -> None:
    """Raise `InvalidForm` for an operator against TFLite's rules, `UnsupportedForm` for an unsupported one."""
    if broken := layer.blocked(site):
        raise UnsupportedForm(broken)
    form = FORMS.get(site.name)
    if form is None:
        return
    for what, count, (fewest, most) in (
        ("input", len(site.inputs), form.inputs),
        ("output", len(site.outputs), form.outputs),
    ):
        if not fewest <= count <= most:
            wanted = f"{fewest}" if fewest == most else f"{fewest} to {most}" if most < _MANY else f"{fewest} or more"
            raise InvalidForm(f"it has {count} {what}{'s' * (count != 1)}, {wanted} are needed")
    left_out = next((k for k in range(len(site.inputs)) if k not in form.optional and not site.has(k)), None)
    if left_out is not None:
        raise InvalidForm(f"its input {left_out} is left out")
    if form.options and type(site.attributes).__name__ != form.options:
        raise InvalidForm(f"its attributes ({form.options}) are missing")
    for k, called in form.constants.items():
        if not site.has(k):
            continue
        if site.dtype(k) not in _INTEGERS:
            raise InvalidForm(f"its {called} (input {k}) is of {site.dtype(k)}, not of int32 or int64")
        if site.value(k) is None:
            raise UnsupportedForm(f"its {called} (input {k}) is computed, and has to be constant")
    for requirement in form.requires:
        if broken := requirement(site):
            raise InvalidForm(broken)


def _elementwise(*more: Requirement) -> Form:
    return Form((1, 1), requires=more)


def _of_two(*more: Requirement) -> Form:
    return Form((2, 2), requires=(has.broadcast(0, 1), has.equal_or_quantized, *more))


def _reduction(*more: Requirement) -> Form:
    return Form((2, 2), constants={1: "axis"}, requires=(has.axes(1), *more))


def _pool() -> Form:
    sizes = has.at_least(1, "StrideH", "StrideW", "FilterHeight", "FilterWidth")
    return Form((1, 1), "Pool2DOptions", requires=(has.rank(0, 4), sizes, has.padded))


def _index_of(options: str) -> Form:
    return Form((2, 2), options, {1: "axis"}, requires=(has.axes(1),))


def _resize(options: str) -> Form:
    return Form(
        (2, 2), options, {1: "size"}, requires=(has.rank(0, 4), has.count_of(1, "size", 2), has.within(1, "size", 1))
    )


def _pad(inputs: tuple[int, int]) -> Form:
    pads = (has.one_each(1, "paddings", 2), has.within(1, "paddings", 0), has.known(2, "constant_values"))
    return Form(inputs, constants={1: "paddings"}, optional=(2,), requires=pads)


_STEPS = has.at_least(1, "StrideH", "StrideW", "DilationHFactor", "DilationWFactor")
_REAL = _elementwise(has.real(0), has.scaled)
_TABLE: dict[str, Form] = {
    **dict.fromkeys(
        (
            *("ABS", "CEIL", "COS", "ELU", "EXP", "FLOOR", "GELU", "HARD_SWISH", "LOG", "LOGISTIC"),
            *("RELU", "RELU6", "RELU_0_TO_1", "RELU_N1_TO_1", "ROUND", "RSQRT", "SIN", "SQRT", "TANH"),
        ),
        _REAL,
    ),
    **dict.fromkeys(("CAST", "DEQUANTIZE", "NEG", "RANK", "SHAPE", "SQUARE", "ZEROS_LIKE"), _elementwise()),
    **dict.fromkeys(
        (
            *(
                "ADD",
                "EQUAL",
                "GREATER",
                "GREATER_EQUAL",
                "LESS",
                "LESS_EQUAL",
                "MAXIMUM",
                "MINIMUM",
                "MUL",
                "NOT_EQUAL",
            ),
            *("SQUARED_DIFFERENCE", "SUB"),
        ),
        _of_two(),
    ),
    **dict.fromkeys(("DIV", "FLOOR_DIV", "FLOOR_MOD"), _of_two(has.divisible)),
    "POW": _of_two(has.raised),
    **dict.fromkeys(("LOGICAL_AND", "LOGICAL_OR"), _of_two(has.of(0, "bool"))),
    **dict.fromkeys(("MEAN", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "SUM"), _reduction()),
    **dict.fromkeys(("REDUCE_ALL", "REDUCE_ANY"), _reduction(has.of(0, "bool"))),
    **dict.fromkeys(("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D"), _pool()),
    "ADD_N": Form((1, _MANY), requires=(has.broadcast_all,)),
    "ARG_MAX": _index_of("ArgMaxOptions"),
    "ARG_MIN": _index_of("ArgMinOptions"),
    "BATCH_MATMUL": Form((2, 2), "BatchMatMulOptions", requires=(has.real(0, 1), has.multiplied)),
    "BATCH_TO_SPACE_ND": Form(
        (3, 3), constants={1: "block_shape", 2: "crops"}, requires=(has.rank(0, 3, 4), has.blocks_fit)
    ),
    "BROADCAST_TO": Form((2, 2), constants={1: "shape"}, requires=(has.within(1, "shape", 1), has.broadcast_into)),
    "CONCATENATION": Form((1, _MANY), "ConcatenationOptions", requires=(has.joined,)),
    "CONV_2D": Form(
        (2, 3),
        "Conv2DOptions",
        optional=(2,),
        requires=(
            *(has.rank(0, 4), has.rank(1, 4), _STEPS, has.padded, layer.weights(), layer.divisible_channels),
            layer.scale_each(1, 0, "weights"),
        ),
    ),
    "CUMSUM": Form((2, 2), "CumsumOptions", {1: "axis"}, requires=(has.count_of(1, "axis", 1), has.axes(1))),
    "DEPTHWISE_CONV_2D": Form(
        (2, 3),
        "DepthwiseConv2DOptions",
        optional=(2,),
        requires=(
            *(has.rank(0, 4), has.rank(1, 4), _STEPS, has.padded, layer.weights(), layer.depth_multiplied),
            layer.scale_each(1, 3, "weights"),
        ),
    ),
    "DEPTH_TO_SPACE": Form((1, 1), "DepthToSpaceOptions", requires=(has.rank(0, 4), has.depth_in_blocks)),
    "EXPAND_DIMS": Form((2, 2), constants={1: "axis"}, requires=(has.count_of(1, "axis", 1), has.axes(1, beyond=1))),
    "FULLY_CONNECTED": Form(
        (2, 3),
        "FullyConnectedOptions",
        optional=(2,),
        requires=(layer.weights(), layer.dense, layer.scale_each(1, 0, "weights")),
    ),
    "GATHER": Form((2, 2), "GatherOptions", requires=(has.of(1, *_INTEGERS, "int16"), has.gathered)),
    "SCATTER_ND": Form((3, 3), constants={0: "indices", 2: "shape"}, requires=(has.scattered,)),
    "GATHER_ND": Form((2, 2), requires=(has.of(1, *_INTEGERS, "int16"), has.gathered_nd)),
    "L2_NORMALIZATION": _elementwise(has.real(0), has.scaled, has.rank(0, 1, 8)),
    "LEAKY_RELU": Form((1, 1), "LeakyReluOptions", requires=(has.real(0),)),
    "LOG_SOFTMAX": Form((1, 1), requires=(has.real(0), has.rank(0, 1, 5))),
    "LOGICAL_NOT": _elementwise(has.of(0, "bool")),
    "MIRROR_PAD": Form(
        (2, 2),
        "MirrorPadOptions",
        {1: "paddings"},
        requires=(has.one_each(1, "paddings", 2), has.within(1, "paddings", 0)),
    ),
    "PACK": Form((1, _MANY), "PackOptions", requires=(has.packed,)),
    "PAD": _pad((2, 2)),
    "PADV2": _pad((2, 3)),
    "PRELU": Form((2, 2), requires=(has.real(0, 1), has.slopes)),
    "QUANTIZE": _elementwise(has.real_or("int32"), has.stores),
    "RESHAPE": Form((1, 2), optional=(1,), requires=(has.of(1, *_INTEGERS), has.reshaped)),
    "RFFT2D": Form(
        (2, 2), constants={1: "fft_length"}, requires=(has.of(0, "float32"), has.count_of(1, "fft_length", 2))
    ),
    "RESIZE_BILINEAR": _resize("ResizeBilinearOptions"),
    "RESIZE_NEAREST_NEIGHBOR": _resize("ResizeNearestNeighborOptions"),
    "REVERSE_V2": Form((2, 2), constants={1: "axis"}, requires=(has.axes(1),)),
    "SELECT": Form((3, 3), requires=(has.of(0, "bool"), has.chosen)),
    "SELECT_V2": Form((3, 3), requires=(has.of(0, "bool"), has.broadcast(0, 1, 2))),
    "SLICE": Form(
        (3, 3),
        constants={1: "begin", 2: "size"},
        requires=(has.one_each(1, "begin"), has.one_each(2, "size"), has.sliced),
    ),
    "SOFTMAX": Form((1, 1), "SoftmaxOptions", requires=(has.real(0), has.rank(0, 1, 8))),
    "SPACE_TO_BATCH_ND": Form(
        (3, 3), constants={1: "block_shape", 2: "paddings"}, requires=(has.rank(0, 3, 4), has.blocks_fit)
    ),
    "SPACE_TO_DEPTH": Form((1, 1), "SpaceToDepthOptions", requires=(has.rank(0, 4), has.space_in_blocks)),
    "SPLIT": Form(
        (2, 2),
        "SplitOptions",
        {0: "axis"},
        outputs=(1, _MANY),
        requires=(has.count_of(0, "axis", 1), has.axes(0, data=1)),
    ),
    "SPLIT_V": Form(
        (3, 3),
        constants={1: "size_splits", 2: "axis"},
        outputs=(1, _MANY),
        requires=(has.count_of(2, "axis", 1), has.axes(2)),
    ),
    "SQUEEZE": Form((1, 1), requires=(has.squeezed,)),
    "STRIDED_SLICE": Form((4, 4), "StridedSliceOptions", {1: "begin", 2: "end", 3: "strides"}, requires=(has.stepped,)),
    "SVDF": Form((5, 5), "SVDFOptions", optional=(3,), requires=(has.rank(0, 2), has.rank(1, 2), has.rank(2, 2))),
    "TILE": Form(
        (2, 2), constants={1: "multiples"}, requires=(has.one_each(1, "multiples"), has.within(1, "multiples", 1))
    ),
    "TOPK_V2": Form((2, 2), constants={1: "k"}, outputs=(2, 2), requires=(has.count_of(1, "k", 1), has.rank(0, 1, 8))),
    "TRANSPOSE": Form((2, 2), constants={1: "perm"}, requires=(has.permutation,)),
    "TRANSPOSE_CONV": Form(
        (3, 4),
        "TransposeConvOptions",
        optional=(3,),
        requires=(
            has.rank(1, 4),
            has.rank(2, 4),
            has.at_least(1, "StrideH", "StrideW"),
            has.padded,
            layer.weights(2, 1, 3),
            layer.transposed,
        ),
    ),
    "UNPACK": Form((1, 1), "UnpackOptions", outputs=(1, _MANY), requires=(has.rank(0, 1, 8),)),
}
FORMS: Mapping[str, Form] = MappingProxyType(_TABLE)
