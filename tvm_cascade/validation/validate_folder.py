"""Run every sample of a data set through a compiled network and its reference, a batch at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tvm_cascade.checking.reference import open_reference
from tvm_cascade.emit.image import read_image
from tvm_cascade.errors import UsageError
from tvm_cascade.importers.cut_file import cut_copy
from tvm_cascade.samples.sample_set import SampleSet, batches
from tvm_cascade.search_monitor import monitor
from tvm_cascade.tensor_spec import TensorSpec
from tvm_cascade.validation.programs import open_program
from tvm_cascade.validation.report import ValidationReport
from tvm_cascade.validation.tally import Tally


def validate_folder(
    folder: Path,
    model: Path,
    samples: SampleSet,
    board: str,
    timeout_s: float,
    progress: Callable[[str], None],
    port: str | None = None,
) -> ValidationReport:
    """Validate the network in `folder`, compiled from `model`, on `samples`, labelled by class (`require_classes`)."""
    started, image = time.perf_counter(), read_image(folder)
    (network,) = image.networks
    scales = {spec.name: (spec.scale, spec.zero_point) for spec in network.inputs}
    tally = Tally(network.outputs, samples.labels is not None)
    program = open_program(image, board, timeout_s, port)
    where = "in this process" if board == "host" else f"on {board}" + (f" at {port}" if port else "")
    progress(f"{network.name}: running {samples.count} samples {where}")
    with cut_copy(model, network.interface.cut) as path:
        reference = None
        for first, last in batches(samples, (*network.inputs, *network.outputs), program.most):
            feeds = samples.batch(first, last)
            whole = [{**feed, **network.interface.fixed_arrays} for feed in feeds]
            reference = reference or open_reference(path, whole[0], scales, network.interface.like)
            for k, made in enumerate(program.run(feeds)):
                label = None if samples.labels is None else int(samples.labels[first + k])
                tally.add(made, reference.anew(whole[k]), label)
            monitor().report("samples", last, samples.count, unit="")
    assert reference is not None
    return ValidationReport(
        model=model.name,
        board=board,
        reference="; ".join(filter(None, [reference.by, reference.note])),
        samples=tally.samples,
        accuracy=tally.accuracy,
        reference_accuracy=tally.reference_accuracy,
        agreement=tally.agreement,
        rmse=tally.rmse,
        mae=tally.mae,
        max_abs_diff=tally.max_abs_diff,
        cosine=tally.cosine,
        confusion=tally.confusion,
        classes=samples.class_names,
        seconds=time.perf_counter() - started,
    )


def require_classes(samples: SampleSet, outputs: tuple[TensorSpec, ...]) -> None:
    """Raise `UsageError` for labels without a class in the network."""
    labels = samples.labels
    if labels is None:
        return
    classes = int(np.prod(outputs[0].shape))
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        k = int(wrong[0])
        raise UsageError(
            f"the label of sample {k} is {int(labels[k])}, but output '{outputs[0].name}' has {classes} elements: labels are "
            f"0 to {classes - 1}"
        )
