"""A part of the ONNX backend suite, the same in every run; `benchmarks/conformance.py` runs all of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

pytest.importorskip("onnx")

from tvm_cascade.relax_pipeline import cascade_pipeline
from tvm_cascade.testing import conformance
from tvm_cascade.testing.conformance import difference, outcomes, read_expected, written
from tvm_cascade.testing.forked import PASS, REFUSED, Outcome
from tvm_cascade.testing.onnx_suite import Case, suite
from tvm_cascade.testing.quick_build import QUICK_TARGET, with_linked_kernels

EXPECTED = Path(__file__).parent / "expected.txt"
CASES = 48
ONCE_WRONG = (
    "bitshift_left_int32_negative_shift", "bitshift_right_int32_shift_ge_width", "dropout_default_mask",
    "mod_float_edge_cases_fmod_0_float32", "nonmaxsuppression_iou_threshold_boundary", "reduce_max_bool_inputs",
    "resize_downsample_scales_cubic_align_corners", "resize_downsample_scales_linear_align_corners",
    "resize_tf_crop_and_resize_axes_3_2", "roialign_mode_max", "spacetodepth_crd_mode_example", "pow_types_int32_int32",
    "attention_24_fullymasked_qk_matmul_output_mode3_zero", "reduce_max_empty_set", "top_k_uint64",
)  # fmt: skip


@pytest.fixture(scope="module")
def expected() -> dict[str, Outcome]:
    return read_expected(EXPECTED)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return suite()


def test_nothing_wrong_is_expected_and_every_refusal_has_a_reason(expected: dict[str, Outcome]) -> None:
    assert {o.verdict for o in expected.values()} <= {PASS, REFUSED}
    assert all(o.reason for o in expected.values() if o.verdict == REFUSED)
    assert EXPECTED.read_text() == written(expected)


def test_every_case_is_expected(cases: list[Case], expected: dict[str, Outcome]) -> None:
    """Of the version of `onnx` that the list is of; other versions have a few others."""
    names = {case.name for case in cases}
    assert len(names & expected.keys()) > 0.9 * len(expected)


@pytest.fixture
def quick_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the pipeline makes is built without optimisation, and linked; the whole run is of optimised code."""

    def compiled(mod: tvm.IRModule) -> object:
        return with_linked_kernels(tvm.compile(mod, QUICK_TARGET, relax_pipeline=cascade_pipeline(objective="bytes")))

    monkeypatch.setattr(conformance, "compiled", compiled)


@pytest.mark.usefixtures("quick_host", "quick_pipeline")
def test_a_part_of_the_suite_ends_as_expected(cases: list[Case], expected: dict[str, Outcome]) -> None:
    """Those that were wrong once, and of the others small ones: the expansions of large functions take long to import, and
    are left to the whole run."""
    small = [case for case in cases if case.name in expected and len(case.model.graph.node) <= 12]
    before = [case for case in cases if case.name.removeprefix("node/test_") in ONCE_WRONG]
    drawn = {case.name: case for case in (*before, *sorted(small, key=Case.rank)[:CASES])}
    found = {case.name: outcome for case, outcome in outcomes(drawn.values())}
    assert len(found) == len(drawn) >= CASES
    changed = {name: (o, expected[name].verdict) for name, o in found.items() if o.verdict != expected[name].verdict}
    assert not changed


def test_what_differs_is_said() -> None:
    one = np.zeros((2, 2), "float32")
    assert difference([one], [one]) == ""
    assert difference([one + 1], [one]) == "output 0 differs in 4 of 4: 1 for 0"
    assert difference([one.astype("int32")], [one]) == "output 0 is int32, not float32"
    assert difference([one[0]], [one]) == "output 0 has shape [2], not [2, 2]"
    assert difference([], [one]) == "0 outputs, not 1"
