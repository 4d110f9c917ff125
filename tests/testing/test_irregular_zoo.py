"""DARTS, RandWire, NASNet-A and DenseNet: work and weights beside the published ones, cells that run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tvm_cascade.ordering import OrderOptions, order
from tvm_cascade.ordering.rewriting import fold_concats
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.channel_partition import fold_activations
from tvm_cascade.testing.quick_build import quick_run
from tvm_cascade.testing.zoo import darts, densenet, nasnet, randwire
from tvm_cascade.testing.zoo.randwire import Wiring, edges

# published: multiply-accumulates and weights in millions, and how far off we may be
PUBLISHED: dict[str, tuple[Callable[[], darts.Counted], float, float, float]] = {
    "darts": (darts.network, 529.911552, 4.681416, 1e-9),  # published: 574.0, 4.7; see the module
    "randwire cifar10": (randwire.network, 111.0, 1.2, 0.01),
    "randwire cifar100": (lambda: randwire.network(randwire.CIFAR100), 160.0, 4.7, 0.01),
    "nasnet": (nasnet.network, 564.0, 5.3, 0.02),
    "densenet": (densenet.network, 2_834.0, 7.98, 0.02),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_work_and_weights(name: str) -> None:
    make, macs, weights, tolerance = PUBLISHED[name]
    counted = make()
    assert counted.macs / 1e6 == pytest.approx(macs, rel=tolerance)
    assert counted.weights / 1e6 == pytest.approx(weights, rel=min(tolerance, 0.02) if name == "darts" else 0.02)


@pytest.mark.parametrize(
    ("design", "seed", "macs", "weights"),
    [(randwire.CIFAR10, 28, 111.0, 1.2), (randwire.CIFAR100, 0, 160.0, 4.7)],
    ids=["cifar10", "cifar100"],
)
def test_randwire_as_printed(design: randwire.Design, seed: int, macs: float, weights: float) -> None:
    """To the last digit."""
    counted = randwire.network(design, Wiring(seed=seed))
    assert (round(counted.macs / 1e6, 1), round(counted.weights / 1e6, 1)) == (macs, weights)


def test_wiring_is_a_small_world() -> None:
    wires = edges(Wiring(32, 4, 0.75, 5))
    assert len(wires) == 64 == len(set(wires)) and all(0 <= a < b < 32 for a, b in wires)
    assert wires == edges(Wiring(32, 4, 0.75, 5)) != edges(Wiring(32, 4, 0.75, 6))
    assert edges(Wiring(8, 2, 0.0)) == (*((i, i + 1) for i in range(1)), (0, 7), *((i, i + 1) for i in range(1, 7)))


def test_darts_first_cell_needs_what_serenity_printed() -> None:
    """903 KB of floats there, a quarter of it in int8."""
    graph = fold_activations(extract_graph(LowerQuantized()(darts.first_cell())).graph)
    found = order(fold_concats(graph, outputs=True), OrderOptions(in_place=False))
    assert (4 * found.peak, found.optimal) == (903_168, True)


@pytest.mark.parametrize("name", ["darts", "nasnet", "randwire"])
def test_cells_run(name: str) -> None:
    mod = {
        "darts": darts.first_cell,
        "nasnet": lambda: nasnet.cell(size=6, channels=4),
        "randwire": lambda: randwire.stage(8, 4, 4, Wiring(8, 4, 0.75, 1)),
    }[name]()
    low = LowerQuantized()(mod)
    assert float_remains(low) == ()
    random = np.random.default_rng(0)
    shapes = [tuple(int(d) for d in p.ty.shape.values) for p in low["main"].params]
    (made,) = quick_run(low, *(random.integers(-128, 128, s).astype("int8") for s in shapes))
    assert made.std() > 1
