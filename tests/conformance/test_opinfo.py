"""A part of PyTorch's OpInfo database, the same in every run; `benchmarks/opinfo.py` runs all of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from tvm_cascade.testing.forked import PASS, REFUSED, Outcome
from tvm_cascade.testing.opinfo import LEFT_OUT, entries, examined, read_expected, written

pytestmark = pytest.mark.torch

EXPECTED = Path(__file__).parent / "opinfo.txt"
PART = (
    "argsort bool", "atan2 int64", "cdist float32", "cummax bool", "cumprod float32", "index_reduce.amax float32",
    "masked.amax float32", "max.reduction_with_dim bool", "median int64", "nn.functional.adaptive_max_pool3d float32",
    "nn.functional.relu float32", "put float32", "scatter_reduce.mean float32", "searchsorted int64", "special.i1 float32",
    "topk int64", "vstack bool",
)  # fmt: skip


def test_nothing_wrong_is_expected_and_every_refusal_has_a_reason() -> None:
    expected = read_expected(EXPECTED)
    assert {o.verdict for o in expected.values()} <= {PASS, REFUSED, LEFT_OUT}
    assert all(o.reason for o in expected.values() if o.verdict == REFUSED)
    assert Counter(o.verdict for o in expected.values())[PASS] >= 850
    assert EXPECTED.read_text() == written(expected)


def test_a_part_of_the_database_ends_as_expected() -> None:
    expected = read_expected(EXPECTED)
    chosen = [entry for entry in entries() if entry.name in PART]
    assert len(chosen) == len(PART)
    found: dict[str, Outcome] = {entry.name: examined(entry) for entry in chosen}
    changed = {name: o for name, o in found.items() if o.verdict != expected[name].verdict}
    assert not changed
