"""Requirements on operators with weights, beside `tflite_requirements`: types, channels and scales."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm_cascade.importers.tflite.site import Requirement, Site, UnsupportedForm, listed

_STORED = ("int8", "uint8", "int16")
_OF_BLOCKS = ("EMBEDDING_LOOKUP", "FULLY_CONNECTED")  # what reads weights with scales for blocks
_BLOCKWISE = 2  # of `QuantizationDetails`, which the schema of the package `tflite` does not name


def weights(data: int = 0, matrix: int = 1, bias: int = 2) -> Requirement:
    """Require weights and bias in types that go with the data."""

    def check(site: Site) -> str:
        if site.quantized(matrix) and site.dtype(matrix) not in ("int8", "uint8"):
            return f"its weights are of {site.dtype(matrix)}"
        if site.quantized(data) != site.quantized(matrix) and site.dtype(data) != "float32":
            return f"its data are of {site.dtype(data)} and its weights of {site.dtype(matrix)}"
        scaled = site.quantized(matrix) or in_blocks(site.inputs[matrix].tensor)
        if not scaled and site.dtype(matrix) != "float32":
            return f"its weights are of {site.dtype(matrix)} and have no scale"
        if not site.quantized(data) and site.dtype(data) != "float32":
            return f"its data are of {site.dtype(data)} and have no scale"
        if site.quantized(data) and site.made not in _STORED:
            return f"its output is of {site.made}, its data are of {site.dtype(data)}"
        if not site.has(bias):
            return ""
        if site.quantized(data) and site.value(bias) is None:
            raise UnsupportedForm(f"its bias (input {bias}) is computed, and its data are stored integers")
        wanted = ("int32", "int64") if site.quantized(data) else ("float32",)
        return (
            ""
            if site.dtype(bias) in wanted
            else f"its bias is of {site.dtype(bias)}, its data are of {site.dtype(data)}"
        )

    return check


def transposed(site: Site) -> str:
    """Require for TRANSPOSE_CONV filters (input 1) with the channels of the data (input 2)."""
    same = site.shapes[1][-1] == site.shapes[2][-1]
    return (
        "" if same else f"its filters have the shape {listed(site.shapes[1])}, its data {site.shapes[2][-1]} channels"
    )


def divisible_channels(site: Site) -> str:
    """Require data channels equal to the filters' (input 1), or a multiple: groups."""
    given, filters = site.shapes[0][-1], site.shapes[1]
    if filters[-1] < 1 or given % filters[-1] or filters[0] % (given // filters[-1]):
        return f"its filters have the shape {listed(filters)}, its data {given} channels"
    return ""


def depth_multiplied(site: Site) -> str:
    """Require `depth_multiplier` filter channels for every data channel."""
    given, filters, times = site.shapes[0][-1], site.shapes[1], site.attribute("DepthMultiplier")
    if filters[0] == 1 and filters[-1] == given * times:
        return ""
    return f"its depth_multiplier is {times}, its filters have the shape {listed(filters)}, its data {given} channels"


def scale_each(k: int, axis: int, called: str) -> Requirement:
    """Require several scales on input `k` to be one per index along `axis`, the axis named by the file."""

    def check(site: Site) -> str:
        if not site.has(k) or not site.quantized(k):
            return ""
        q = site.inputs[k].tensor.Quantization()
        if q.ScaleLength() == 1:
            return ""
        if q.QuantizedDimension() != axis % len(site.shapes[k]):
            return f"its {called} have scales along axis {q.QuantizedDimension()}, not {axis % len(site.shapes[k])}"
        extent = site.shapes[k][axis]
        return "" if q.ScaleLength() == extent else f"its {called} have {q.ScaleLength()} scales for {extent} channels"

    return check


def dense(site: Site) -> str:
    """Require data elements (input 0) that form rows of the weight matrix (input 1)."""
    matrix = site.shapes[1]
    if len(matrix) != 2:
        return f"its weights have the shape {listed(matrix)} and are no matrix"
    count = prod(site.shapes[0])
    if matrix[1] < 1 or count % matrix[1]:
        return f"its data have the shape {listed(site.shapes[0])}, its weights {matrix[1]} inputs"
    return ""


def in_blocks(tensor: Any) -> bool:
    """Return True if a file's tensor has scales for blocks."""
    q = tensor.Quantization()
    return q is not None and q.DetailsType() == _BLOCKWISE and q.Details() is not None


def blocked(site: Site) -> str:
    """Require scales for blocks only of a constant matrix beside float data, in operators that read such weights."""
    places = [k for k in range(len(site.inputs)) if site.has(k) and in_blocks(site.inputs[k].tensor)]
    if not places:
        return ""
    read = site.name in _OF_BLOCKS and places == [1] and len(site.shapes[1]) == 2
    if not read or site.dtype(1) != "int8" or site.value(1) is None or site.made != "float32":
        return f"its input {places[0]} has a scale for each block"
    return ""
