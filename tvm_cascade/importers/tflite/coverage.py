"""Find unconvertible operators in a `.tflite` file before any conversion."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from tvm_cascade.errors import about
from tvm_cascade.importers.tflite.model import DECODE, kind_of

_POST_PROCESS = "TFLite_Detection_PostProcess"
_DECODER = "a decoder of detections, which is left to the host"
NPU = "ethos-u (custom)"  # kind of what Vela writes
_FEATURES = "Signal"  # how the names of TFLite Micro's operators for audio features begin
_LOOP = "a loop of StableHLO: convert the network to TFLite's operators"
_OF_COMPLEX = ("RFFT2D", "RESHAPE", "COMPLEX_ABS", "REAL", "IMAG")
_FLOATS = "only RESHAPE takes them here, and COMPLEX_ABS, REAL and IMAG, which make floats of them"
_CONTROL = {"STABLEHLO_WHILE": _LOOP}


class Unsupported(Exception):
    """Unconvertible operators: positions, names and faults."""

    def __init__(self, operators: Mapping[int, str]) -> None:
        super().__init__(", ".join(operators.values()))
        self.operators = operators


def coverage(converter: Any, known: Container[str], quantized: Container[str]) -> tuple[dict[int, str], dict[int, str]]:
    """Return the unconvertible operators in `converter`'s subgraph as index -> description, and the hybrid operators
    (quantized weights, float activations) as index -> name. `known` are operator names with a converter, `quantized`
    the names with a quantized form.
    """
    absent: dict[int, str] = {}
    hybrid: dict[int, str] = {}
    for i in range(converter.subgraph.OperatorsLength()):
        op = converter.subgraph.Operators(i)
        name = kind_of(converter.model, op)
        if name == DECODE:  # its outputs are constants
            continue
        if name in _CONTROL:
            absent[i] = f"{name} (operator {i}): {_CONTROL[name]}"
        elif name.startswith(_POST_PROCESS):
            absent[i] = f"{name} (operator {i}): {_DECODER}"
        elif name == NPU:
            absent[i] = f"{name} (operator {i}): commands for an Ethos-U, which Vela has compiled"
        elif name.startswith(_FEATURES) and name.endswith("(custom)"):
            absent[i] = (
                f"{name} (operator {i}): audio features of TFLite Micro's Signal library, which your program computes"
            )
        elif name not in known:
            absent[i] = name
        else:
            with about(name):
                sides = converter.get_input_tensors(op), converter.get_output_tensors(op)
            inputs, outputs = ([t.qnn_params for t in side] for side in sides)
            if name not in _OF_COMPLEX and any(
                converter.is_complex(t) for side in sides for t in side if t.tensor_idx >= 0
            ):
                absent[i] = f"{name} (operator {i}) of complex numbers: {_FLOATS}"
            if any(inputs[1:]) and not any(inputs[:1]) and not any(outputs) and name != "ASSIGN_VARIABLE":
                hybrid[i] = name
            elif any(inputs + outputs) and name not in quantized:
                absent[i] = f"quantized {name}"
    return absent, hybrid
