"""A compiled folder's golden inputs and outputs, for exported examples' self-tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tvm_cascade.emit.golden import Golden, has_self_test, with_repeats
from tvm_cascade.emit.image import host_records, read_image
from tvm_cascade.errors import UsageError, ValidationError
from tvm_cascade.request import RunRequest
from tvm_cascade.runs.arrays import random_inputs, read_inputs
from tvm_cascade.runs.run_image import run_image


def golden_of(
    folder: Path, inputs: Path | None, check: Path | None, progress: Callable[[str], None]
) -> dict[str, Golden]:
    """Run the networks of a folder in this process on a single input; return the input and the outputs by network.

    With `check` the outputs are compared with the reference on this model. Networks that ask for their inputs row by row
    are left out, and folders without a program for this machine have none.

    Raises `ValidationError` if the program's outputs are not the reference's, and `UsageError` for `inputs` or `check`
    without a program for this machine; otherwise as `run`.
    """
    image = read_image(folder)
    if not host_records(image):
        if inputs is not None or check is not None:
            raise UsageError(f"{folder} holds no program for this machine, which a self-test's outputs come from")
        return {}
    given = inputs or {label: with_repeats(array) for label, array in random_inputs(image).items()}
    report = run_image(folder, RunRequest(board="host", check=check), given, progress)
    if not report.ok:
        raise ValidationError(
            f"the outputs are not those of {check}: `tvm-cascade run {folder} --check {check}` says more"
        )
    by = "this program on the host" if report.checked is None else report.checked.by
    fed = read_inputs(image, given)
    return {
        network.name: Golden(
            {s.name: fed[image.label(network, s.name)] for s in network.inputs},
            {s.name: report.outputs[image.label(network, s.name)] for s in network.outputs},
            by,
            inputs is None,
        )
        for network in image.networks
        if has_self_test(network)
    }
