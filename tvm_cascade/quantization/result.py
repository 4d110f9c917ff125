"""`QuantizeResult`: the record of a quantization, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm_cascade.schema.datasets import Quantization
from tvm_cascade.schema.filled import filled


@dataclass(frozen=True, slots=True)
class QuantizeResult:
    """A quantized file, and a summary of the quantization."""

    model: str  # path of the float model
    output: str  # path of the quantized one
    samples: int  # number of samples that it was calibrated on
    calibration: str  # how ranges of activations were found: minmax, entropy, percentile or histogram
    layers: int  # layers with weights: convolutions, matrix products
    quantized_layers: int  # those of them that read int8 activations and int8 weights
    per_channel_layers: int  # those of the quantized ones whose weights have a scale for every channel
    left_float: Mapping[str, int]  # kinds of operators that compute in floats, and how many
    bytes_before: int  # of the file
    bytes_after: int
    seconds: float  # wall time

    def to_dict(self) -> Quantization:
        """Return the JSON object of `tvm-cascade quantize --json`."""
        return filled(Quantization, self)

    def to_text(self) -> str:
        """Format the result for reading, with the next commands."""
        floats = ", ".join(f"{count} {kind}" for kind, count in self.left_float.items())
        layers = f"{self.quantized_layers} of {self.layers} layers with weights, {self.per_channel_layers} by channel"
        return "\n".join(
            [
                f"wrote           {self.output}, {self.bytes_after} bytes (before: {self.bytes_before})",
                f"quantized       {layers}",
                f"left float      {floats or 'nothing'}",
                f"calibration     {self.calibration} on {self.samples} samples, {self.seconds:.1f} s",
                "",
                "what now:",
                f"  tvm-cascade validate {self.model} --data TEST.npz    how right it was, on samples with labels",
                f"  tvm-cascade validate {self.output} --data TEST.npz    how right it is",
                f"  tvm-cascade plan {self.output} --stored-io    what it needs, its inputs and outputs stored as int8",
            ]
        )
