"""Row forms put back into kernels, and MetaSchedule over them: same bits, same work, records that are used again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_cascade import api, pipeline
from tvm_cascade.cascading import PlanOptions, plan_graph
from tvm_cascade.cores import KernelTarget
from tvm_cascade.emit.host import host_program, run_host
from tvm_cascade.emit.placement import place_io
from tvm_cascade.errors import MissingToolError, UsageError
from tvm_cascade.passes.kernel_tuning import tune_kernels
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.tir import PrimFunc, outputs_of, s_tir, shape_of, tirx
from tvm_cascade.schedules.tir.macs import count_macs
from tvm_cascade.schedules.tuning import metaschedule
from tvm_cascade.schedules.tuning.metaschedule import Search, plain
from tvm_cascade.schedules.tuning.row_form import NotTunableError, row_form, splice
from tvm_cascade.tensor_spec import graph_io
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.host_call import run_rows
from tvm_cascade.testing.plan_options import rows_alone


def network() -> Any:
    net = Net("int8", seed=3)
    x = net.conv(net.input((1, 13, 11, 3)), 8, 3, 2)
    y = net.conv(net.depthwise(x, 3, activation="relu"), 8, 1)
    y = net.add(net.depthwise(y, 5), x)
    return net.finish(net.dense(net.flatten(net.max_pool(net.conv(y, 4, 3, dilation=2, padding=2), 2)), 3))


@pytest.fixture(scope="module")
def prepared() -> pipeline.Prepared:
    return pipeline.prepare(network(), KernelTarget())


def by_hand(func: PrimFunc) -> PrimFunc:
    """Channels split and vectorized, the sums of a pixel below it."""
    sch: Any = s_tir.Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    *_, column, channel = sch.get_loops(blocks[-1])
    for block in blocks[:-1]:
        sch.compute_at(block, column)
    for block in blocks[:-1]:
        if sch.get(block).init is not None:
            taps = [iv.iter_type == tirx.IterVar.CommReduce for iv in sch.get(block).iter_vars].count(True)
            sch.decompose_reduction(block, sch.get_loops(block)[-taps])
    sch.vectorize(sch.split(channel, [None, 4])[1])
    return sch.mod["main"]


def test_a_scheduled_interior_computes_the_same_bits_with_the_same_work(prepared: pipeline.Prepared) -> None:
    random, tried = np.random.default_rng(0), 0
    made = prepared.extracted
    for op, computed in zip(prepared.graph.ops, made.operators, strict=True):
        if computed is None or computed.kernel.whole:
            continue
        func, access, generic = computed.func, computed.access, computed.kernel
        try:
            form = row_form(func, access)
        except NotTunableError:
            continue
        tried += 1
        spliced = splice(func, computed.constants, access, form, by_hand(form.func), "kernel")
        inputs = [random.integers(-128, 128, shape_of(p)).astype("int8") for p in func.params[: len(access.windows)]]
        results = []
        for kernel, body in ((generic, None), (spliced, None), (spliced, plain(spliced).func)):
            out = np.zeros(shape_of(outputs_of(func)[0]), "int8")
            run_rows(kernel, access, inputs, [out], func=body)
            results.append(out)
        assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2]), op.name
        assert works(plain(spliced), access, inputs, out) == works(generic, access, inputs, out) == op.macs
    assert tried >= 6


def works(kernel: RowKernel, access: Any, inputs: list[np.ndarray], out: np.ndarray) -> int:
    macs = np.zeros(1, "int64")
    run_rows(kernel, access, inputs, [out.copy()], macs=macs, func=count_macs(kernel.func))
    return int(macs[0])


def test_what_has_no_row_form_says_why(prepared: pipeline.Prepared) -> None:
    made, reasons = prepared.extracted, {}
    for op, computed in zip(prepared.graph.ops, made.operators, strict=True):
        if computed is not None:
            try:
                row_form(computed.func, computed.access)
            except NotTunableError as why:
                reasons[op.kind] = str(why)
    assert "dense" in reasons and all(reasons.values())


def run(prepared: pipeline.Prepared, options: PlanOptions) -> tuple[np.ndarray, int, int]:
    plan = plan_graph(prepared.graph, options)
    io = place_io(plan, graph_io(plan.graph))
    feed = np.random.default_rng(1).integers(-128, 128, io.inputs[0].shape).astype("int8")
    result = run_host(host_program(pipeline.lower(prepared, plan, counted=True), io), [{io.inputs[0].name: feed}])
    return result.outputs[0][io.outputs[0].name], result.executed_macs, plan.macs


def needs_metaschedule() -> None:
    try:
        metaschedule.require_json()
    except MissingToolError as why:
        pytest.skip(f"what MetaSchedule needs is not installed: {why}")


def test_records_are_kept_and_nothing_is_measured_twice(tmp_path: Path) -> None:
    needs_metaschedule()
    net = Net("int8", seed=4)
    mod = net.finish(net.depthwise(net.conv(net.input((1, 9, 8, 3)), 8, 3, 2), 3))
    prepared = pipeline.prepare(mod, KernelTarget())
    folder = tmp_path / "records"
    search = Search(trials=2, batch=2, repeat_ms=1)
    tuned, report = tune_kernels(prepared, folder, search)
    assert report.measured >= report.forms == 2 and report.tuned == 2
    before = {p.name: p.read_bytes() for p in folder.glob("*.json")}
    again, second = tune_kernels(prepared, folder, search)
    assert second.measured == 0 and second.tuned == report.tuned
    assert before == {p.name: p.read_bytes() for p in folder.glob("*.json")}
    want = run(prepared, rows_alone(granularity="row"))
    for made in (tuned, again):
        have = run(made, rows_alone(granularity="row"))
        assert np.array_equal(have[0], want[0]) and have[1] == have[2] == want[1]


def test_without_records_and_without_trials_everything_stays(prepared: pipeline.Prepared, tmp_path: Path) -> None:
    needs_metaschedule()
    same, report = tune_kernels(prepared, tmp_path / "none", Search(trials=0))
    assert (report.tuned, report.measured) == (0, 0) and same.kernels == prepared.kernels
    assert "no candidate ran, or none was measured" in report.reasons.values()


def test_bad_folders_and_targets(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="compile for the target host, not cortex-m4"):
        api.compile(network(), target="cortex-m4", output=tmp_path / "out", metaschedule=tmp_path / "records")
    needs_metaschedule()
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        api.compile(network(), target="host", output=tmp_path / "out", metaschedule=tmp_path / "file")


def test_releases_that_crash_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metaschedule, "version", lambda _name: "0.1.15.post2")
    with pytest.raises(MissingToolError, match=r"pip install 'apache-tvm-ffi<0\.1\.15'"):
        metaschedule.require_json()
