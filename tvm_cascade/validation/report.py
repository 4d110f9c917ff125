"""`ValidationReport`: the record of a validation, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import isfinite

import numpy as np

from tvm_cascade.schema.datasets import Validation
from tvm_cascade.schema.filled import filled
from tvm_cascade.validation.by_layer import LayerError, layer_table

_FEW = 12  # classes whose matrix is printed, or pairs that are


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """A compiled network's results on a data set, beside the reference's. A class is the first largest output."""

    model: str  # name of the model's file
    board: str  # where the program ran: a board's name, or host
    reference: str  # what computed the outputs to compare with
    samples: int  # number of samples
    # share of samples that the emitted program gives the class of their label; null without labels
    accuracy: float | None
    reference_accuracy: float | None  # the same of the reference
    agreement: float  # share of samples that the program and the reference give the same class
    rmse: float  # root of the mean square difference of the program's outputs from the reference's, in real values
    mae: float  # mean absolute difference
    max_abs_diff: float  # largest absolute difference
    cosine: float  # mean over samples of the cosine between all outputs of the program and those of the reference
    confusion: tuple[tuple[int, ...], ...] | None  # samples by label (rows) and class (columns); null without labels or
    # above 1000 classes
    classes: tuple[str, ...]  # what labels 0, 1, ... are called: the folders of the data, else empty
    seconds: float  # wall time
    layers: tuple[LayerError, ...] = ()  # quantized tensors against the float file, worst first; with --by-layer

    def to_dict(self) -> Validation:
        """Return the JSON object of `tvm-cascade validate --json`."""
        layers = [asdict(one) | {"snr_db": one.snr_db if isfinite(one.snr_db) else None} for one in self.layers]
        return filled(Validation, self, **({"layers": layers} if self.layers else {}))

    def to_text(self) -> str:
        """Format the report for reading."""
        lines = [f"ran on          {self.board}, {self.samples} samples in {self.seconds:.1f} s"]
        if self.accuracy is None or self.reference_accuracy is None:
            lines.append("accuracy        not known: the data has no labels")
        else:
            lines.append(f"accuracy        {_share(self.accuracy)} of the emitted program")
            lines.append(f"                {_share(self.reference_accuracy)} of the reference")
        lines += [
            f"reference       {self.reference}",
            f"same class      {_share(self.agreement)} of the samples",
            f"difference      rmse {self.rmse:.6g}, mean {self.mae:.6g}, largest {self.max_abs_diff:.6g}, in real values",
            f"cosine          {self.cosine:.6f}",
        ]
        if self.layers:
            lines += ["", *layer_table(self.layers, _FEW)]
        if self.confusion is not None:
            lines += ["", *self._confusion_text(np.array(self.confusion))]
        return "\n".join(lines)

    def _confusion_text(self, counts: np.ndarray) -> Iterator[str]:
        names = [self.classes[k] if k < len(self.classes) else str(k) for k in range(len(counts))]
        if len(counts) <= _FEW:
            wide = max(*(len(n) for n in names), len(str(counts.max())), 3)
            yield f"{'label':>{wide}}   class"
            yield f"{'':>{wide}} | " + " ".join(f"{n:>{wide}}" for n in names)
            yield from (
                f"{name:>{wide}} | " + " ".join(f"{n:>{wide}}" for n in row)
                for name, row in zip(names, counts, strict=True)
            )
            return
        wrong = counts - np.diag(np.diag(counts))
        worst = [
            (int(k) // len(names), int(k) % len(names)) for k in np.argsort(-wrong, axis=None, kind="stable")[:_FEW]
        ]
        yield "most frequent mistakes (--json has the whole matrix):"
        told = [f"  {wrong[a, b]} of label {names[a]} taken for {names[b]}" for a, b in worst if wrong[a, b]]
        yield from told or ["  none"]


def _share(share: float) -> str:
    return f"{100 * share:.2f} %"
