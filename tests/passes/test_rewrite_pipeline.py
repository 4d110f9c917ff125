"""Substitutions inside of the pipelines: smaller arenas on boards, less latency elsewhere, nothing where nothing pays."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import tvm
from click.testing import CliRunner
from tvm import relax

from tvm_cascade import api, pipeline
from tvm_cascade.cascading import PlanOptions, plan_graph
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import InfeasibleError, UsageError
from tvm_cascade.passes.candidates.candidate import PlannedCandidate
from tvm_cascade.passes.candidates.substitutions import promised_rewrite, with_substitutions
from tvm_cascade.passes.cascade import ARENA_ATTR, SUBSTITUTIONS_ATTR, Cascade
from tvm_cascade.passes.lower_quantized import SOURCE_ATTR, LowerQuantized
from tvm_cascade.passes.plan_network import promised
from tvm_cascade.passes.prices import Prices, TimeRule
from tvm_cascade.passes.rewriting import Rewritten, exact_rules, rewrite_for_latency
from tvm_cascade.relax_pipeline import cascade_pipeline
from tvm_cascade.request import PlanRequest
from tvm_cascade.search_monitor import SearchMonitor
from tvm_cascade.substitution.rules import ALL_RULES, integer_rules
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.zoo.rnn import rnntc


def wide_between() -> tvm.IRModule:
    """Two products with nothing between them: a vector of 4000 that need not exist."""
    net = Net("float32", seed=3)
    return net.finish(net.dense(net.dense(net.input((1, 16), "x"), 4000), 16))


def plain() -> tvm.IRModule:
    net = Net("int8", seed=2)
    return net.finish(net.conv(net.input((1, 8, 8, 3), "x"), 4, 3, activation="relu"))


def output(mod: tvm.IRModule, data, pipeline="default_build") -> np.ndarray:
    made = tvm.compile(mod, "llvm", relax_pipeline=pipeline)
    return relax.VirtualMachine(made, tvm.cpu())["main"](*map(tvm.runtime.tensor, data)).numpy()


def test_an_arena_shrinks_and_the_plan_says_so(tmp_path):
    before, after = api.plan(wide_between()), api.plan(wide_between(), rewrite=True)
    assert after.plan.peak < before.plan.peak // 10
    assert before.rewritten is None and "rewritten" not in before.to_dict()
    told = after.to_dict()["rewritten"]
    assert isinstance(told, dict) and "compose_matmuls" in told["steps"]
    assert (told["before"], told["after"]) == (before.plan.peak, after.plan.peak)
    assert after.to_dict()["candidates"] == {"substitutions": "sums of floats are added in another order"}
    assert "kept: substitutions (sums of floats" in after.to_text(details=True) and "kept:" not in before.to_text(
        details=True
    )


def branches(kernels: tuple[int, ...] = (1, 1, 1)) -> tvm.IRModule:
    """Convolutions of one input whose concatenation a pool reads."""
    net = Net("int8", seed=6)
    x = net.input((1, 6, 6, 4), "x")
    y = net.concat([net.conv(x, 6, k) for k in kernels])
    return net.finish(net.conv(net.max_pool(y, 2), 3, 3))


def test_what_does_not_pay_stays():
    mod = plain()
    done = promised_rewrite(mod)
    assert done.mod is mod and done.steps == () and done.before == done.after and done.reason
    promise = promised_rewrite(wide_between())
    worse = substituted(wide_between(), promise, 100, 200)
    assert worse is not None and worse.steps == () and "200 bytes" in worse.reason


def substituted(mod: tvm.IRModule, promise: Rewritten, before: int | None, after: int | None) -> Rewritten | None:
    """What comes of a promise where arenas have those bytes; None: they exceed the cap."""

    def planned(m: tvm.IRModule) -> PlannedCandidate:
        peak = after if m is promise.mod else before
        if peak is None:
            raise InfeasibleError(300, 200, ["concat"], "")
        return PlannedCandidate(prepared, replace(plan, allocation=replace(plan.allocation, peak=peak)))

    prepared = pipeline.prepare(plain(), KernelTarget())
    plan = plan_graph(prepared.graph)
    return with_substitutions(mod, promise, planned, TimeRule(PlanOptions(), Prices())).rewritten


def test_quantized_networks_are_rewritten_unasked_and_keep_every_bit():
    mod = branches()
    before, after = (api.plan(mod, granularity="row", rewrite=r) for r in (False, None))
    assert after.plan.peak < before.plan.peak and after.plan.macs == before.plan.macs
    assert before.rewritten is None and after.rewritten is not None
    assert after.candidates["substitutions"] == "every bit stays"
    assert (after.rewritten["before"], after.rewritten["after"]) == (before.plan.peak, after.plan.peak)
    done = promised_rewrite(mod, floats=False)
    assert "fuse_quantized_convs" in done.steps
    data = [np.random.default_rng(1).integers(-128, 128, (1, 6, 6, 4)).astype("int8")]
    lowered = [LowerQuantized()(m) for m in (mod, done.mod)]
    np.testing.assert_array_equal(output(lowered[0], data), output(lowered[1], data))


def test_more_work_is_refused_and_a_network_that_does_not_fit_is_not():
    work = promised_rewrite(branches((1, 3)), floats=False)
    assert work.steps == () and "multiply-accumulates" in work.reason
    mod = branches()
    done = substituted(mod, promised_rewrite(mod), None, 150)
    assert done is not None and done.steps and (done.before, done.after) == (300, 150)
    kept = substituted(mod, promised_rewrite(mod), 150, None)
    assert kept is not None and kept.mod is mod and "does not fit the cap" in kept.reason


def test_a_limit_before_the_rewritten_network_is_planned_keeps_the_plan_and_says_so():
    mod = branches()
    promise = promised_rewrite(mod)
    with SearchMonitor() as limited:
        limited.interrupt()
        done = substituted(mod, promise, 150, 100)
    assert done is not None and done.mod is mod and "limit" in done.reason


def test_floats_stay_unless_asked():
    assert api.plan(wide_between()).rewritten is None
    done = promised_rewrite(wide_between(), floats=False)
    assert done.steps == () and "not quantized" in done.reason


def test_quantized_networks_see_exact_rules_only():
    assert exact_rules(plain()) == integer_rules() and exact_rules(wide_between()) == ALL_RULES


def test_the_registered_pipeline_rewrites_for_latency_where_asked():
    mod = rnntc(steps=3, hidden=32, classes=4)
    rng = np.random.default_rng(0)
    data = [rng.standard_normal([int(d) for d in p.ty.shape.values]).astype("float32") for p in mod["main"].params]
    expected = output(mod, data)
    np.testing.assert_allclose(output(mod, data, cascade_pipeline()), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output(mod, data, cascade_pipeline(rewrite="latency")), expected, rtol=1e-4, atol=1e-5)
    done = rewrite_for_latency(mod)
    assert done.steps and done.after < done.before
    grown = rewrite_for_latency(mod, arena=lambda m: 1 if m is mod else 2)
    assert grown.steps == () and "larger" in grown.reason
    with pytest.raises(UsageError, match="rewrite='speed': give one of memory, latency, none"):
        cascade_pipeline(rewrite="speed")


def test_the_registered_pipeline_rewrites_for_memory_and_keeps_every_bit():
    mod = branches()
    data = [np.random.default_rng(1).integers(-128, 128, (1, 6, 6, 4)).astype("int8")]
    seen = []

    @tvm.instrument.pass_instrument
    class Watch:
        def run_after_pass(self, mod, info):
            if info.name == "tvm_cascade.Cascade":
                seen.append((int(mod.attrs[ARENA_ATTR]), list(mod.attrs.get(SUBSTITUTIONS_ATTR) or [])))

    with tvm.transform.PassContext(instruments=[Watch()]):
        got = output(mod, data, cascade_pipeline(PlanRequest(granularity="row")))
        plainly = output(mod, data, cascade_pipeline(PlanRequest(granularity="row"), rewrite="none"))
    np.testing.assert_array_equal(got, plainly)
    np.testing.assert_array_equal(got, output(LowerQuantized()(mod), data))
    wanted = api.plan(mod, target="host", granularity="row")
    assert wanted.rewritten is not None and seen[0] == (wanted.plan.peak, wanted.rewritten["steps"])
    assert seen[1][0] > seen[0][0] and seen[1][1] == []


def test_substitutions_after_the_users_own_lowering():
    mod, request = branches(), PlanRequest(granularity="row")
    lowered = LowerQuantized()(mod)
    direct, after = (Cascade(request)(m) for m in (mod, lowered))
    assert list(after.attrs[SUBSTITUTIONS_ATTR]) == list(direct.attrs[SUBSTITUTIONS_ATTR])
    assert int(after.attrs[ARENA_ATTR]) == int(direct.attrs[ARENA_ATTR])
    tvm.ir.assert_structural_equal(after, direct)
    assert lowered.script() and SOURCE_ATTR in lowered.attrs and SOURCE_ATTR not in after.attrs
    none = Cascade(PlanRequest(granularity="row", rewrite=False))(lowered)
    assert SUBSTITUTIONS_ATTR not in none.attrs and SOURCE_ATTR not in none.attrs
    plans = [api.plan(m, target="host", granularity="row") for m in (mod, lowered)]
    assert plans[0].rewritten == plans[1].rewritten is not None and plans[0].candidates == plans[1].candidates


def test_a_network_changed_after_its_lowering_is_not_rewritten():
    lowered = LowerQuantized()(branches())
    main = lowered["main"]
    lowered.update_func(lowered.get_global_var("main"), main.with_attr("changed", 1))
    assert promised(lowered, PlanRequest()).reason == "the network was changed after its integers were lowered"
    assert SUBSTITUTIONS_ATTR not in Cascade(PlanRequest(granularity="row"))(lowered).attrs
    again = LowerQuantized()(lowered)
    tvm.ir.assert_structural_equal(again, lowered)


def test_functions_that_cannot_be_read_stay():
    x = relax.Var("x", relax.TensorType(ndim=2, dtype="float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(relax.op.nn.relu(x))
        bb.emit_func_output(out)
    assert rewrite_for_latency(bb.get()).steps == ()
    assert promised_rewrite(bb.get()).steps == ()
    assert rewrite_for_latency(tvm.IRModule()).reason == "the module has no function main"


def test_the_command_line_takes_rewrite(test_data):
    model = str(test_data / "models" / "ad01_int8.tflite")
    done = CliRunner().invoke(main, ["plan", model, "--rewrite", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rewritten"]["reason"]
