"""The commands for data sets: `validate` and `quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tvm_cascade.cli.guard import guarded, say, show
from tvm_cascade.cli.json_option import prints
from tvm_cascade.cli.option_file import EPILOG, PLANNING
from tvm_cascade.cli.options import (
    INPUT_SHAPE,
    MODEL,
    board,
    model,
    option,
    planning_alone,
    require_new_file,
    target,
)
from tvm_cascade.cli.teaching import command
from tvm_cascade.request import QuantizeRequest, ValidateRequest
from tvm_cascade.schema.datasets import Quantization, Validation

_DATA = click.option("--data", type=click.Path(path_type=Path), required=True, metavar="D",
                     help="An .npz, or a folder of images or sounds, as said above.")  # fmt: skip


@command(epilog=EPILOG)
@model(PLANNING)
@_DATA
@target(ValidateRequest, " [default: host; with --board that of its core]")
@board(ValidateRequest, "Run on this emulated board, by name or .json. [default: in this process]")
@option(ValidateRequest, "port", "Run on the real --board, over a serial port, after `flash` of what `compile` makes with these "
        "options; without DEVICE the one that is plugged in.", metavar="[DEVICE]",
        is_flag=False, flag_value="auto")  # fmt: skip
@option(ValidateRequest, "range_", "For images: real values of black and white; for sounds: of the least and the greatest "
        "amplitude. Images: LOW,HIGH:LOW,HIGH:... for each channel. [default: the ends of what an integer input stores; "
        "for floats 0,1 and -1,1]", "--range",
        metavar="LOW,HIGH")  # fmt: skip
@option(ValidateRequest, "timeout", "Limit on one sample on a board.", metavar="SECONDS")
@option(ValidateRequest, "by_layer", "Tell the error of every quantized tensor, worst first: against the float file that MODEL "
        "was made from, or, of .tflite and .pt2 without a file, against its own weights in floats.",
        metavar="[FLOAT]", is_flag=False, flag_value="own")  # fmt: skip
@planning_alone
@prints(Validation)
@guarded
def validate(model: Path, as_json: bool, **options: Any) -> None:
    """Compile MODEL and run a data set through both MODEL's code and the reference: accuracy, differences, confusion
    matrix.

    The reference is LiteRT for .tflite, ONNX Runtime for .onnx and torch for .pt2 (`pip install 'tvm-cascade[check]'`,
    torch: `[torch]`). A sample's class is the first largest element of the first output. The program is the one that
    `compile` emits with the same options.

    
    D.npz    one array per input under the input's name (serving_default_mel:0 also as mel; an only input under any name):
             N samples along the first axis, then the input's shape without its batch of 1. Arrays of the type that the
             input stores are taken as they are; others are real values, which its scale quantizes. `labels`, optional:
             N integers, the numbers of the samples' classes.
    D/       a folder of images (`pip install 'tvm-cascade[images]'`) or .wav files; with subfolders, each is a class,
             numbered in sorted order. Images are scaled to cover the input and cut around their centre, sounds are cut
             or filled with silence on both sides.

    
    numpy.savez("D.npz", input=x_test, labels=y_test)           # in Python: an .npz with names and labels
    """
    from tvm_cascade import api

    result = api.validate(model, progress=say, **options)
    show(as_json, result.to_dict(), result.to_text())


@command(epilog=EPILOG)
@MODEL
@_DATA
@option(QuantizeRequest, "output", "The file to write, .tflite, .onnx or .pt2 as MODEL.", "--output", "-o", required=True,
        callback=require_new_file)  # fmt: skip
@option(QuantizeRequest, "calibration", "Ranges of activations: of all values, of those that cost the distribution least, "
        "of --percentile; for .pt2 files of all values, or those of least squared error by a histogram; for .tflite files "
        "of all values.")  # fmt: skip
@option(QuantizeRequest, "percentile", "Per cent of the values that a range holds, with --calibration percentile.",
        metavar="P")  # fmt: skip
@option(QuantizeRequest, "float_first", "Layers with weights that stay float, from the first on.")
@option(QuantizeRequest, "float_last", "Layers with weights that stay float, from the last on.")
@option(QuantizeRequest, "weight_bits", "Bits of weights, 8 or 4. With 4, each layer keeps 8 where the data says that "
        "4 would cost more than --max-drop.")  # fmt: skip
@option(QuantizeRequest, "max_drop", "Percentage points that four bits may cost of the accuracy on labelled data, else of the "
        "agreement with the float network.", metavar="P")  # fmt: skip
@option(
    QuantizeRequest,
    "range_",
    "For images: real values of black and white; for sounds: of the least and the greatest amplitude. "
    "Images: LOW,HIGH:LOW,HIGH:... for each channel. [default: 0,1 and -1,1]",
    "--range",
    metavar="LOW,HIGH",
)
@INPUT_SHAPE
@prints(Quantization)
@guarded
def quantize(model: Path, as_json: bool, **options: Any) -> None:
    """Make an int8 network of the float MODEL: a quarter of the weights and arena, and faster kernels.

    .onnx files go through ONNX Runtime's static quantizer (`pip install 'tvm-cascade[check]'`) and become QDQ: int8
    activations with a zero point, int8 weights without, a scale for every channel. .tflite files go through
    ai-edge-quantizer (`[ai-edge]`), .pt2 files through torchao (`[torchao]`).

    
    D.npz    samples to calibrate on, a hundred or more of every kind that occurs: a single array per input under the
             input's name, N samples along the first axis, then the input's shape without its batch of 1. The values
             that the float network takes. `labels`, optional, are read for the accuracy before and after.
    D/       a folder of images or .wav files, as of `validate`.

    If accuracy suffers: more samples, --calibration entropy or percentile (outliers; .pt2: histogram), --float-first 1,
    --float-last 1 (layers that often need more than 8 bits).
    """
    from tvm_cascade import api

    result = api.quantize(model, progress=say, **options)
    show(as_json, result.to_dict(), result.to_text())
