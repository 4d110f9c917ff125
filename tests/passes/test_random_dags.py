"""A sample of `benchmarks/random_dags.py`: DAGs of windowed operators, planned in several ways, run, and compared."""

from __future__ import annotations

import pytest

from tvm_cascade.testing.random_dags import RandomDag, check_dag


@pytest.mark.parametrize(
    ("seed", "most"), [(2, 1), (3, 3), (7, 2), (21, 2), (1004, 3), (1114, 1), (1120, 1), (1246, 1)]
)
def test_random_dag(seed: int, most: int | None) -> None:
    """Validated, bit for bit what TVM computes, work and highest byte as planned, canaries alive."""
    found = check_dag(seed, most=most)
    assert found.plans
    assert min(peak for _, peak, _ in found.plans) > 0


def test_networks_are_deterministic() -> None:
    assert RandomDag(7).module().script() == RandomDag(7).module().script()
