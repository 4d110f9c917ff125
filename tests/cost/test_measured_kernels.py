"""The analytic cost with kernels that were measured alone: their times, those of kernels like them, the database's errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tvm_cascade import api
from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.cost.interface import OpFeatures, features
from tvm_cascade.cost.records import CONCURRENT, MERGE, RecordStore, measured_kernels
from tvm_cascade.cost.tiles import best_microseconds, extents_of
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.testing.zoo.inception import inception_e

H200 = find_device("h200")


def _pool(size: int) -> OpFeatures:
    return features("avg_pool2d", [(1, 64, size, size)], [(1, 64, size, size)], shape=(3, 1, 1, 1, 3, 1, 1, 1))


def _conv(channels: int) -> OpFeatures:
    return features("conv2d", [(1, 64, 17, 17)], [(1, channels, 17, 17)], macs=289 * channels * 64 * 9,
                    weight_bytes=channels * 64 * 9 * 4, shape=(3, 1, 1, 1, 3, 1, 1, 1))  # fmt: skip


def test_a_measured_kernel_costs_what_was_measured() -> None:
    model = AnalyticCost(H200, measured={_pool(20): 0.04, _conv(96): 0.02})
    assert model.op_ms(_pool(20)) == pytest.approx(0.04)
    assert model.stage_ms([[_pool(20), _conv(96)]]) == pytest.approx(0.06)
    assert model.name == "analytic:h200:kernels" and AnalyticCost(H200).name == "analytic:h200"


def test_kernels_of_its_kind_are_as_much_slower() -> None:
    plain, launch = AnalyticCost(H200), H200.launch_us / 1e3
    model = AnalyticCost(H200, measured={_pool(20): launch + 5 * (plain.op_ms(_pool(20)) - launch)})
    assert model.op_ms(_pool(40)) - launch == pytest.approx(5 * (plain.op_ms(_pool(40)) - launch))
    assert model.op_ms(features("relu", [(8, 8)], [(8, 8)])) == plain.op_ms(features("relu", [(8, 8)], [(8, 8)]))


def test_products_that_were_not_measured_are_priced_by_their_tiles() -> None:
    """By the roofline twice the channels fit into the same time here; by their tiles they do not take twice as long."""
    model = AnalyticCost(H200, measured={_conv(96): 0.02})
    assert model.op_ms(_conv(96)) <= model.op_ms(_conv(192)) < 2 * model.op_ms(_conv(96))


def test_products_on_an_h200_take_what_their_tiles_tell() -> None:
    """Also without measurements: convolutions of 1x1 that are padded to 3x3 to be merged cost nine times the products."""
    model = AnalyticCost(H200)
    extents = extents_of(_conv(96), "float32")
    assert extents is not None
    assert model.op_ms(_conv(96)) == pytest.approx(H200.launch_us / 1e3 + best_microseconds(extents, "float32") / 1e3)
    assert model.op_ms(_pool(20)) == AnalyticCost(replace(H200, tiled=False)).op_ms(_pool(20))
    assert model.bound(_conv(96), True).works == (0.0, 0.0)


def test_stages_of_measured_kernels_overlap() -> None:
    model = AnalyticCost(H200, measured={_pool(20): 0.04, _conv(96): 0.02})
    both = model.stage_ms([[_pool(20)], [_conv(96)]])
    assert 0.04 < both < 0.06
    for groups in ([[_pool(20)], [_conv(96)]], [[_pool(20), _conv(96)]]):
        bounds = [model.bound(op, False) for g in groups for op in g]
        assert all(sum(b.works[r] for b in bounds) <= model.stage_ms(groups) for r in (0, 1))
        assert max(b.span for b in bounds) <= model.stage_ms(groups) + 1e-12


def test_a_kernel_faster_than_its_roofline_is_believed() -> None:
    """Measured with its tensors in the cache."""
    model = AnalyticCost(H200, measured={_pool(20): H200.launch_us / 1e3 + 1e-6})
    assert model.op_ms(_pool(20)) == pytest.approx(H200.launch_us / 1e3, abs=2e-5)
    assert model.stage_ms([[_pool(20)], [_pool(20)]]) > 0.0


def test_the_database_of_stages(tmp_path: Path) -> None:
    """`stages --cost analytic --database FILE`: kernels alone of the device of that name, and of no other."""
    path = tmp_path / "measured.db"
    ours, other = RecordStore(path, "cuda:NVIDIA H200"), RecordStore(path, "cuda:NVIDIA L4")
    ours.add(CONCURRENT, [[_pool(20)]], [0.5, 0.25, 0.75])
    ours.add(CONCURRENT, [[_pool(20)], [_pool(40)]], [9.0])
    ours.add(MERGE, [[_conv(96), _conv(96)]], [9.0])
    other.add(CONCURRENT, [[_pool(40)]], [9.0])
    assert measured_kernels(path, H200) == {_pool(20): 0.5}
    assert measured_kernels(None, H200) == {}
    with pytest.raises(
        UsageError, match="no kernel that was measured on a100: it has those of cuda:NVIDIA H200, cuda:NVIDIA L4"
    ):
        measured_kernels(path, find_device("a100"))
    with pytest.raises(LoadError, match="no such file"):
        measured_kernels(tmp_path / "none.db", H200)
    told, _ = api.stages(inception_e(width=0.0625), target="cuda", device="h200", database=path)
    assert told["cost_model"] == "analytic:h200:kernels"
    assert json.dumps(told)
