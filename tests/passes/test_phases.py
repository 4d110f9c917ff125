"""Phases of transposed convolutions compute what the definition says, for every stride, padding and dilation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tvm_cascade.passes.phases import Phases


def spread(x: np.ndarray, w: np.ndarray, stride: int, padding: int, dilation: int, outputs: int) -> np.ndarray:
    """Return a transposed convolution of one row: every input is added to the outputs that its taps reach."""
    made = np.zeros(outputs)
    for i, t in product(range(len(x)), range(len(w))):
        y = i * stride + t * dilation - padding
        if 0 <= y < outputs:
            made[y] += x[i] * w[t]
    return made


def by_phase(x: np.ndarray, phases: Phases) -> np.ndarray:
    rows = []
    for place in phases.places:
        w = phases.weights(place)[0, :, 0, 0]
        _, left, _, right = phases.padding(place)
        padded = np.pad(x, (max(left, 0), max(right, 0)))[max(-left, 0) :]
        padded = padded[: len(padded) + min(right, 0)]
        spacing = phases.dilation[1]
        taken = [padded[t * spacing : len(padded) - (len(w) - 1 - t) * spacing] * w[t] for t in range(len(w))]
        rows.append(np.sum(taken, axis=0))
        assert len(rows[-1]) == phases.counts[1]
    return np.stack(rows, axis=1).reshape(-1)


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_phases_compute_the_transposed_convolution(stride: int) -> None:
    rng = np.random.default_rng(stride)
    for size, padding, dilation, extra, inputs in product((1, 2, 3, 5), (0, 1, 2, 3), (1, 2, 3), (0, 1, 2), (1, 2, 6)):
        x, w = rng.integers(1, 9, inputs), rng.integers(1, 9, size)
        outputs = (inputs - 1) * stride + (size - 1) * dilation + 1 - 2 * padding + extra
        if outputs < 1 or extra >= max(stride, dilation):
            continue
        kernel = w.reshape(1, 1, 1, size)
        phases = Phases.of(kernel, (1, inputs), (1, outputs), (1, stride), (0, padding), (1, dilation), 1)
        made = by_phase(x, phases)[:outputs]
        np.testing.assert_array_equal(made, spread(x, w, stride, padding, dilation, outputs))
        taps = sum(phases.weights(place).size for place in phases.places if phases.weights(place).any())
        assert taps <= size, "no product with an inserted zero"
