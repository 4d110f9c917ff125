"""The output of `validate` and `quantize` under `--json`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from tvm_cascade.schema.units import Count, Ratio, Seconds


class LayerDifference(TypedDict):
    """Error of a quantized tensor against the float file."""

    tensor: Annotated[str, "Its name in both files"]
    operator: Annotated[str, "Kind of the operator that writes it"]
    rmse: Annotated[Ratio, "Root of the mean square error, in real values"]
    max_abs_diff: Annotated[Ratio, "Largest absolute error"]
    snr_db: Annotated[
        float | None, "Squares of the float values over squares of errors, in decibels; null without an error"
    ]


class _SometimesOfValidation(TypedDict, total=False):
    layers: Annotated[list[LayerDifference], "With --by-layer: quantized tensors, worst first"]


class Validation(_SometimesOfValidation):
    """The results of a compiled network on a data set, beside the reference's. A class is the first largest output."""

    model: Annotated[str, "Name of the model's file"]
    board: Annotated[str, "Where the program ran: a board, or 'host'"]
    reference: Annotated[str, "What computed the outputs to compare with"]
    samples: Annotated[Count, "Number of samples"]
    accuracy: Annotated[
        Ratio | None, "Share of samples that the emitted program gives their label; null without labels"
    ]
    reference_accuracy: Annotated[Ratio | None, "The same of the reference"]
    agreement: Annotated[Ratio, "Share of samples that both give the same class"]
    rmse: Annotated[Ratio, "Root of the mean square difference from the reference, in real values"]
    mae: Annotated[Ratio, "Mean absolute difference"]
    max_abs_diff: Annotated[Ratio, "Largest absolute difference"]
    cosine: Annotated[float, "Mean over samples of the cosine between the program's outputs and the reference's"]
    confusion: Annotated[
        list[list[Count]] | None,
        "Samples by label (rows) and class (columns); null without labels or with very many classes",
    ]
    classes: Annotated[list[str], "What the labels are called: the folders of the data, else empty"]
    seconds: Annotated[Seconds, "Time taken"]


class FloatOperator(TypedDict):
    """An operator of a quantized network that computes in floats."""

    tensor: Annotated[str, "Name of the tensor that it writes"]
    operator: Annotated[str, "Its kind"]
    reason: Annotated[str, "Why it stays float"]


class LayerBits(TypedDict):
    """Bits a layer's weights have."""

    layer: Annotated[str, "Its name in the file"]
    operator: Annotated[str, "Its kind"]
    weights: Annotated[Count, "Number of its weights"]
    bits: Annotated[Count, "8 or 4"]
    snr_db: Annotated[
        float | None,
        "First output with 4 bits in this layer alone: squares of the values with 8 bits over squares of errors, in "
        "decibels; null if not tried, or without an error",
    ]
    reason: Annotated[str, "Why it keeps 8 bits; empty with 4"]


class _SometimesOfQuantization(TypedDict, total=False):
    weight_bits: Annotated[list[LayerBits], "With --weight-bits 4: layers with weights, in the order of the file"]


class Quantization(_SometimesOfQuantization):
    """A written quantized file, and the tensors quantized there."""

    model: Annotated[str, "Path of the float model"]
    output: Annotated[str, "Path of the quantized one"]
    samples: Annotated[Count, "Number of samples that it was calibrated on"]
    calibration: Annotated[str, "How ranges of activations were found: minmax, entropy, percentile or histogram"]
    layers: Annotated[Count, "Layers with weights: convolutions, matrix products"]
    quantized_layers: Annotated[Count, "Those of them that read int8 activations and int8 weights"]
    per_channel_layers: Annotated[Count, "Quantized layers whose weights have a scale for every channel"]
    left_float: Annotated[dict[str, Count], "Kinds of operators that compute in floats, and how many"]
    float_operators: Annotated[list[FloatOperator], "Operators of the quantized file that run in floats here"]
    accuracy_before: Annotated[
        Ratio | None, "Share of samples that the float file gives their label; null without labels"
    ]
    accuracy_after: Annotated[Ratio | None, "The same of the quantized file"]
    agreement: Annotated[Ratio, "Share of samples that both files give the same class"]
    compared: Annotated[Count, "Number of samples that both files were run on"]
    bytes_before: Annotated[Count, "Bytes of the float file, with external weights"]
    bytes_after: Annotated[Count, "Bytes of the quantized file"]
    seconds: Annotated[Seconds, "Time taken"]
