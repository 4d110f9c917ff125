"""The commands that take a data set: `validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tvm_cascade.cli.guard import guarded, say, show
from tvm_cascade.cli.json_option import prints
from tvm_cascade.cli.options import MODEL, TARGETS, option, planning_alone
from tvm_cascade.request import ValidateRequest
from tvm_cascade.schema.datasets import Validation

_DATA = click.option("--data", type=click.Path(path_type=Path), required=True, metavar="D",
                     help="An .npz, or a folder of images or sounds, as said above.")  # fmt: skip


@click.command()
@MODEL
@_DATA
@option(ValidateRequest, "target", f"One of {TARGETS}. [default: host; with --board that of its core]", metavar="T")
@option(
    ValidateRequest, "board", "Run on this emulated board, by name or .json. [default: in this process]", metavar="B"
)
@option(ValidateRequest, "range_", "For images: real values of black and white; for sounds: of the least and the greatest "
        "amplitude. [default: the ends of what an integer input stores; for floats 0,1 and -1,1]", "--range",
        metavar="LOW,HIGH")  # fmt: skip
@option(ValidateRequest, "timeout", "For one sample in the emulator.", metavar="SECONDS")
@planning_alone
@prints(Validation)
@guarded
def validate(model: Path, as_json: bool, **options: Any) -> None:
    """Compile MODEL and run a data set through it and through its reference: accuracy, differences, confusion matrix.

    The reference is LiteRT for .tflite, ONNX Runtime for .onnx and torch for .pt2 (`pip install 'tvm-cascade[check]'`,
    torch: `[torch]`). A sample's class is the first largest element of the first output. The program is the one that
    `compile` emits with the same options.

    \b
    D.npz    one array per input under the input's name: N samples along the first axis, then the input's shape without
             its batch of 1. Arrays of the type that the input stores are taken as they are; others are real values,
             which its scale quantizes. `labels`, optional: N integers, the numbers of the samples' classes.
    D/       a folder of images (`pip install 'tvm-cascade[images]'`) or .wav files; with subfolders, each is a class,
             numbered in sorted order. Images are scaled to cover the input and cut around their centre, sounds are cut
             or filled with silence on both sides.

    \b
    numpy.savez("D.npz", input=x_test, labels=y_test)           # in Python: an .npz with names and labels
    tvm-cascade validate model.tflite --data D.npz
    tvm-cascade validate model.tflite --data photos/ --board mps2-an386
    """
    from tvm_cascade import api

    result = api.validate(model, progress=say, **options)
    show(as_json, result.to_dict(), result.to_text())
