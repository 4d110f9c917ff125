"""Measure a float file's accuracy and its quantized file's, by each file's own framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.checking.onnx_reference import runtime_function
from tvm_cascade.checking.reference import open_reference
from tvm_cascade.errors import UsageError
from tvm_cascade.samples.sample_set import SampleSet
from tvm_cascade.search_monitor import monitor

_MOST = 1000  # samples that are run


def accuracies(before: Path, after: Path, samples: SampleSet) -> dict[str, Any]:
    """Return the fields of `QuantizeResult` about accuracy: a sample's class is the first largest first output.

    Without labels, accuracies are None and only the agreement of both files is measured. Raises `UsageError` for labels
    that are no numbers of classes.
    """
    count = min(samples.count, _MOST)
    right, same = [0, 0], 0
    files: list[Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]] = []
    for k in range(count):
        (feed,) = samples.batch(k, k + 1)
        files = files or [_opened(path, feed) for path in (before, after)]
        outputs = [next(iter(run(feed).values())) for run in files]
        classes = [int(np.argmax(output)) for output in outputs]
        same += classes[0] == classes[1]
        if samples.labels is not None:
            label = int(samples.labels[k])
            if not 0 <= label < outputs[0].size:
                raise UsageError(
                    f"the label of sample {k} is {label}, and the first output has {outputs[0].size} elements"
                )
            right = [n + (found == label) for n, found in zip(right, classes, strict=True)]
        monitor().report("accuracy", k + 1, count, unit="")
    labelled = samples.labels is not None
    return {
        "accuracy_before": right[0] / count if labelled else None,
        "accuracy_after": right[1] / count if labelled else None,
        "agreement": same / count,
        "compared": count,
    }


def _opened(
    path: Path, feed: Mapping[str, np.ndarray]
) -> Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]:
    return runtime_function(path) if path.suffix == ".onnx" else open_reference(path, feed).anew
