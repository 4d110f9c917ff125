"""Choose which layers keep weights of four bits, by what this does to outputs on data.

Each layer is tried alone. Then layers are taken in the order of noise per weight, the least first, as long as the
network's score falls by at most the given drop below that with weights of eight bits. Only the first output counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import log10

import numpy as np

from tvm_cascade.samples.sample_set import SampleSet
from tvm_cascade.search_monitor import monitor

_MOST = 200  # samples that are run
Network = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class LayerBits:
    """Bits of a layer's weights, and the reason."""

    layer: str  # name in the file
    operator: str
    weights: int  # elements
    bits: int  # 8 or 4
    snr_db: float | None  # of the first output with four bits in this layer alone, against eight; None if not tried
    reason: str


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of a layer that may have four bits."""

    layer: str
    operator: str
    count: int
    refused: str = ""  # why they keep eight bits whatever the data says


def choose_bits(
    layers: Sequence[Weights],
    floats: Network,
    quantized: Callable[[Collection[str]], Network],
    samples: SampleSet,
    max_drop: float,
) -> tuple[LayerBits, ...]:
    """Choose the bits of each layer.

    `quantized` makes the network with four bits in the named layers, `floats` is the float network; `max_drop` is in
    percentage points of `_score`.
    """
    feeds = [samples.batch(k, k + 1)[0] for k in range(min(samples.count, _MOST))]
    labels = None if samples.labels is None else np.asarray(samples.labels[: len(feeds)])
    wanted, eight = _outputs(floats, feeds), _outputs(quantized(()), feeds)
    least = _score(eight, wanted, labels) - max_drop / 100
    tried = [one for one in layers if not one.refused]
    noise: dict[str, float] = {}
    for k, one in enumerate(tried):
        monitor().report("layers with four bits", k, 2 * len(tried), unit="")
        noise[one.layer] = _noise(_outputs(quantized((one.layer,)), feeds), eight)
    four: list[str] = []
    for k, one in enumerate(sorted(tried, key=lambda one: noise[one.layer] / one.count)):
        monitor().report("layers with four bits", len(tried) + k, 2 * len(tried), unit="")
        if _score(_outputs(quantized((*four, one.layer)), feeds), wanted, labels) >= least - 1e-9:
            four.append(one.layer)
    kept = f"the score would fall by more than {max_drop:g} points"
    return tuple(
        LayerBits(
            one.layer,
            one.operator,
            one.count,
            4 if one.layer in four else 8,
            _decibels(noise.get(one.layer)),
            one.refused or ("" if one.layer in four else kept),
        )
        for one in layers
    )


def scale_of_four_bits(values: np.ndarray) -> np.ndarray:
    """Return the scale of values in [-8, 8) steps with the least squared error, among parts of the largest value."""
    largest = float(np.abs(values).max()) or 1.0
    scales = (np.linspace(0.4, 1.0, 13) * largest / 7).astype(np.float32)
    errors = [np.square(np.clip(np.rint(values / s), -8, 7) * s - values).sum() for s in scales]
    return np.array(scales[int(np.argmin(errors))], np.float32)


def _outputs(network: Network, feeds: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    return np.stack([np.asarray(next(iter(network(feed).values())), np.float64) for feed in feeds])


def _score(outputs: np.ndarray, wanted: np.ndarray, labels: np.ndarray | None) -> float:
    """Return the share of samples with the right class: the label, or without labels the float network's class; for an output
    that is no list of classes, 1 minus the relative error.
    """
    if sum(extent > 1 for extent in outputs.shape[1:]) != 1:
        return 1 - float(np.sqrt(_noise(outputs, wanted)))
    classes, floats = (each.reshape(len(each), -1).argmax(1) for each in (outputs, wanted))
    return float(np.mean(classes == (floats if labels is None else labels)))


def _noise(outputs: np.ndarray, wanted: np.ndarray) -> float:
    """Return the summed squared errors, divided by the summed squared values."""
    return float(np.sum((outputs - wanted) ** 2) / max(float(np.sum(wanted**2)), 1e-30))


def _decibels(noise: float | None) -> float | None:
    return None if not noise else -10 * log10(noise)
