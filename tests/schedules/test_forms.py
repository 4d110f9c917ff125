"""Forms of kernels: found by being there, asked in order, and a reason where none serves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tvm_cascade import pipeline
from tvm_cascade.cascading import Plan, plan_graph
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import ValidationError
from tvm_cascade.schedules import forms as room
from tvm_cascade.schedules.forms.choose import footprints_of, forms, kernel_of
from tvm_cascade.schedules.forms.form import KernelForm, Site, Use, Way
from tvm_cascade.schedules.forms.rows import RowSteps
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.plan_options import rows_alone


@pytest.fixture(scope="module")
def prepared() -> pipeline.Prepared:
    net = Net("int8", seed=2)
    x = net.conv(net.input((1, 8, 6, 4)), 8, kernel=3, padding="same", activation="relu")
    return pipeline.prepare(net.finish(net.conv(x, 8, kernel=1)), KernelTarget())


@pytest.fixture(scope="module")
def plan(prepared: pipeline.Prepared) -> Plan:
    return plan_graph(prepared.graph, rows_alone(layerwise=True))


def first(prepared: pipeline.Prepared) -> Site:
    site = prepared.site(0)
    assert site is not None
    return site


def test_every_file_with_a_form_is_found() -> None:
    files = [p for p in Path(room.__path__[0]).glob("*.py") if "\nFORM = " in p.read_text()]
    assert len(forms()) == len(files) >= 8
    assert all(isinstance(form, KernelForm) for form in forms())
    assert {form.way for form in forms()} == set(Way)  # every way is served


def test_forms_for_few_operators_are_asked_first() -> None:
    assert [form.fallback for form in forms()] == sorted(form.fallback for form in forms())
    assert {form.way for form in forms() if form.fallback} == {Way.ROWS, Way.STRIPES}


def test_generic_kernels_announce_no_fast_ones(prepared: pipeline.Prepared) -> None:
    known = footprints_of(first(prepared))
    assert (known.row_tables, known.multi_row, known.accumulator_bytes) == ((), False, 0)


def test_rows_serve_what_no_other_form_takes(prepared: pipeline.Prepared, plan: Plan) -> None:
    kernels = prepared.kernels_of(plan)
    assert all(isinstance(k, RowSteps) for k in kernels)
    tall = replace(plan.segments[0], tile=replace(plan.segments[0].tile, rows=4))  # no performance schedule has these
    assert isinstance(kernel_of(first(prepared), Use(plan, tall, plan.graph.ops[0])), RowSteps)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("in_place", "planned over its input and has no such kernel: .*NHWC to NCHW; .*NCHW to NHWC"),
        ("accumulating", "planned to sum up its input and has no such kernel: its input is read in sliding windows"),
    ],
)
def test_what_no_form_serves_is_refused(prepared: pipeline.Prepared, plan: Plan, field: str, reason: str) -> None:
    """The refusal says why each form of that way has no kernel."""
    wrong = replace(plan.segments[0], **{field: (0,)})
    site = first(prepared)
    with pytest.raises(ValidationError, match=reason):
        kernel_of(site, Use(plan, wrong, plan.graph.ops[0]))
