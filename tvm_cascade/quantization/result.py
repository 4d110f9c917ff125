"""`QuantizeResult`: the record of a quantization, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from tvm_cascade.messages import short_name
from tvm_cascade.quantization.mixed_bits import LayerBits
from tvm_cascade.schema.datasets import Quantization
from tvm_cascade.schema.filled import filled

_NAMED = 5  # operators at most that the text names


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
    floats: tuple[tuple[str, str, str], ...]  # operators that run in floats here: tensor, operator, reason
    # share of samples with the class of their label, of the float file; None without labels
    accuracy_before: float | None
    accuracy_after: float | None  # the same of the quantized file
    agreement: float  # share of samples that both files give the same class
    compared: int  # number of samples that both files were run on
    bytes_before: int  # of the file, with external weights
    bytes_after: int
    seconds: float  # wall time
    weight_bits: tuple[LayerBits, ...] = ()  # of each layer with weights, with `--weight-bits 4`

    def to_dict(self) -> Quantization:
        """Return the JSON object of `tvm-cascade quantize --json`."""
        named = [{"tensor": name, "operator": kind, "reason": reason} for name, kind, reason in self.floats]
        bits = {"weight_bits": [asdict(one) for one in self.weight_bits]} if self.weight_bits else {}
        return filled(Quantization, self, float_operators=named, **bits)

    def to_text(self) -> str:
        """Format the result for reading, with the next commands."""
        layers = f"{self.quantized_layers} of {self.layers} layers with weights, {self.per_channel_layers} by channel"
        agrees = f"both give {self.agreement:.1%} of {self.compared} samples the same class"
        if self.accuracy_before is not None and self.accuracy_after is not None:
            accuracy = f"{self.accuracy_after:.1%}, before {self.accuracy_before:.1%}; {agrees}"
        else:
            accuracy = f"not known: the data has no labels; {agrees}"
        floats = [f"{kind} {name}: {reason}" for name, kind, reason in self.floats]
        more = [f"and {len(floats) - _NAMED} more: `tvm-cascade doctor --model {self.output}`"] * (len(floats) > _NAMED)
        return "\n".join(
            [
                f"accuracy        {accuracy}",
                f"wrote           {self.output}, {self.bytes_after} bytes (before: {self.bytes_before})",
                f"quantized       {layers}",
                f"stays float     {floats[0] if floats else 'nothing'}",
                *(f"{'':16}{line}" for line in [*floats[1:_NAMED], *more]),
                *_of_bits(self.weight_bits),
                f"calibration     {self.calibration} on {self.samples} samples, {self.seconds:.1f} s",
                "",
                "what now:",
                *self._commands(),
            ]
        )

    def _commands(self) -> list[str]:
        """Format the next commands, each with its use behind."""
        model, output = self.model, self.output
        commands = {
            f"tvm-cascade validate {model} --data TEST.npz": "accuracy before, on samples with labels",
            f"tvm-cascade validate {output} --data TEST.npz --by-layer {model}": "accuracy now, and error by layer",
            f"tvm-cascade plan {output} --stored-io": "memory and time, with inputs and outputs stored as int8",
        }
        width = max(map(len, commands))
        return [f"  {command:<{width}}  {use}" for command, use in commands.items()]


def _of_bits(layers: Sequence[LayerBits]) -> list[str]:
    """Format the bits of layers, one a line: signal to noise of the output with four bits there alone, and the reason."""
    if not layers:
        return []
    weights, four = (sum(one.weights for one in layers if one.bits in bits) for bits in ((4, 8), (4,)))
    width = max(len(short_name(one.layer)) for one in layers)
    lines = [f"weights         {four} of {weights} have 4 bits; by layer, with the output's noise if it alone has 4:"]
    for one in layers:
        noise = "       " if one.snr_db is None else f"{one.snr_db:4.0f} dB"
        why = f"  {one.reason}" if one.reason else ""
        lines.append(f"{'':16}{one.bits} bits  {short_name(one.layer):{width}}  {one.weights:8}  {noise}{why}".rstrip())
    return lines
