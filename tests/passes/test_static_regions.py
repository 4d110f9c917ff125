"""Whatever TVM's default pipeline builds, "cascade" builds too: equal results, static regions planned, the rest said."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.ir.instrument import WellFormedInstrument
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_cascade import passes
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.passes.cascade import ARENA_ATTR
from tvm_cascade.passes.static_regions import levels_of, unsupported
from tvm_cascade.relax_pipeline import STRICT, cascade_pipeline
from tvm_cascade.request import PlanRequest
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.quick_build import QUICK_TARGET

RNG = np.random.default_rng(7)
Inputs = dict[str, list[np.ndarray]]
Case = tuple[tvm.IRModule, Inputs, int]  # a module, inputs by function, and how many regions of it are cascaded


def const(*shape: int) -> relax.Expr:
    return relax.const((RNG.standard_normal(shape) * 0.3).astype("float32"))


def var(name: str, shape: object, dtype: str = "float32") -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def convs(bb: relax.BlockBuilder, x: relax.Expr, channels: int = 3) -> relax.Expr:
    """Two 3x3 convolutions, each with a relu."""
    for wide in (8, 4):
        kernel = const(wide, 3, 3, channels)
        x = bb.emit(relax.op.nn.conv2d(x, kernel, padding=(1, 1), data_layout="NHWC", kernel_layout="OHWI"))
        x, channels = bb.emit(relax.op.nn.relu(x)), wide
    return x


def of_block(write: Callable[[relax.BlockBuilder, relax.Var], relax.Expr], x: relax.Var) -> tvm.IRModule:
    """A module whose `main` returns what `write` emits into one dataflow block."""
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(write(bb, x))
        bb.emit_func_output(out)
    return bb.get()


IMAGE = (1, 12, 12, 3)


def sort() -> Case:
    mod = of_block(lambda bb, x: relax.op.sort(convs(bb, x)), var("x", IMAGE))
    return mod, {"main": [floats(*IMAGE)]}, 1


def topk_as_a_tuple() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = convs(bb, x)
        best = bb.emit(relax.op.topk(bb.emit(relax.op.reshape(y, (1, 576))), k=5, ret_type="both", dtype="int32"))
        return relax.Tuple([bb.emit(best[0]), y, bb.emit(best[1])])

    return of_block(write, var("x", IMAGE)), {"main": [floats(*IMAGE)]}, 1


def cumsum_between_regions() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = convs(bb, x)
        z = bb.emit(relax.op.cumsum(y, axis=1))
        return relax.op.add(convs(bb, z, 4), y)

    return of_block(write, var("x", IMAGE)), {"main": [floats(*IMAGE)]}, 2


def symbolic_batch() -> Case:
    n = tvm.tirx.Var("n", "int64")
    weights = const(24, 10)
    mod = of_block(lambda bb, x: relax.op.nn.relu(bb.emit(relax.op.matmul(x, weights))), var("x", (n, 24)))
    return mod, {"main": [floats(7, 24)]}, 0


def symbolic_beside_static() -> Case:
    n = tvm.tirx.Var("n", "int64")
    bb, x, y = relax.BlockBuilder(), var("x", IMAGE), var("y", (n, 4))
    with bb.function("main", [x, y]):
        with bb.dataflow():
            out = bb.emit_output(relax.Tuple([convs(bb, x), bb.emit(relax.op.nn.relu(y))]))
        bb.emit_func_output(out)
    return bb.get(), {"main": [floats(*IMAGE), floats(5, 4)]}, 1


def branch() -> Case:
    bb, x, flag = relax.BlockBuilder(), var("x", IMAGE), var("flag", (), "bool")
    with bb.function("main", [flag, x]):
        with bb.dataflow():
            y = bb.emit_output(convs(bb, x))
        yes, no = (bb.normalize(relax.SeqExpr([], f(y))) for f in (relax.op.nn.relu, relax.op.negative))
        bb.emit_func_output(bb.emit(relax.If(flag, yes, no)))
    return bb.get(), {"main": [np.array(True), floats(*IMAGE)]}, 1


def several_functions() -> Case:
    """`main` calls `part`, which is called twice; `other` stands alone; names collide with those of the programs."""
    bb, z = relax.BlockBuilder(), var("z", (5, 6), "int32")
    with bb.function("invoke", [p := var("p", IMAGE)]):
        with bb.dataflow():
            out = bb.emit_output(convs(bb, p))
        part = bb.emit_func_output(out)
    with bb.function("main", [x := var("x", IMAGE)]):
        with bb.dataflow():
            a = bb.emit(relax.Call(part, [x]))
            b = bb.emit(relax.Call(part, [bb.emit(relax.op.nn.relu(x))]))
            out = bb.emit_output(relax.op.add(a, b))
        bb.emit_func_output(out)
    with bb.function("other", [z], attrs={"note": "mine"}):
        with bb.dataflow():
            out = bb.emit_output(relax.op.add(bb.emit(relax.op.multiply(z, z)), relax.const(5, "int32")))
        bb.emit_func_output(out)
    inputs = {"main": [floats(*IMAGE)], "invoke": [floats(*IMAGE)]}
    return bb.get(), {**inputs, "other": [RNG.integers(-99, 99, (5, 6)).astype("int32")]}, 4


def zeros_concatenated() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return relax.op.concat([convs(bb, x), bb.emit(relax.op.zeros((1, 12, 12, 2), "float32"))], axis=3)

    return of_block(write, var("x", IMAGE)), {"main": [floats(*IMAGE)]}, 1


def long_indices() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        table = const(10, 6)
        return relax.op.multiply(bb.emit(relax.op.take(table, x, axis=0)), relax.const(2.0, "float32"))

    return of_block(write, var("x", (4,), "int64")), {"main": [np.array([1, 9, 0, 3], "int64")]}, 1


def long_arithmetic() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return relax.op.multiply(bb.emit(relax.op.add(x, relax.const(1 << 40, "int64"))), x)

    return of_block(write, var("x", (4, 3), "int64")), {"main": [RNG.integers(-9, 9, (4, 3))]}, 1


def long_sum() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return relax.op.sum(x, axis=1)

    return of_block(write, var("x", (4, 3), "int64")), {"main": [RNG.integers(-9, 9, (4, 3))]}, 1


def split_with_one_part_sorted() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        parts = bb.emit(relax.op.split(convs(bb, x), 2, axis=3))
        first = bb.emit(relax.op.sort(bb.emit(parts[0]), axis=1))
        return relax.Tuple([parts, first, bb.emit(relax.op.nn.relu(bb.emit(parts[1])))])

    return of_block(write, var("x", IMAGE)), {"main": [floats(*IMAGE)]}, 1


def without_main() -> Case:
    bb, x = relax.BlockBuilder(), var("x", IMAGE)
    with bb.function("apply", [x]):
        with bb.dataflow():
            out = bb.emit_output(convs(bb, x))
        bb.emit_func_output(out)
    return bb.get(), {"apply": [floats(*IMAGE)]}, 1


def parameters_that_are_results() -> Case:
    bb, x, y = relax.BlockBuilder(), var("x", (3, 4)), var("y", (3, 4))
    with bb.function("main", [x, y]):
        with bb.dataflow():
            total = bb.emit(relax.op.add(x, x))
            out = bb.emit_output(relax.Tuple([y, total, relax.Tuple([total, x])]))
        bb.emit_func_output(out)
    return bb.get(), {"main": [floats(3, 4), floats(3, 4)]}, 1


def tuple_parameter() -> Case:
    ty = relax.TensorType((2, 3), "float32")
    bb, pair = relax.BlockBuilder(), relax.Var("pair", relax.TupleType([ty, ty]))
    x = var("x", (2, 3))
    with bb.function("main", [x]):
        with bb.dataflow():
            t = bb.emit(relax.Tuple([x, bb.emit(relax.op.exp(x))]))
            a = bb.emit(relax.op.concat(t, axis=0))
            out = bb.emit_output(relax.op.add(a, a))
        bb.emit_func_output(out)
    with bb.function("of_pair", [pair]):
        with bb.dataflow():
            out = bb.emit_output(relax.op.multiply(bb.emit(pair[0]), bb.emit(pair[1])))
        bb.emit_func_output(out)
    return bb.get(), {"main": [floats(2, 3)]}, 2


def shape_expression() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        shape = bb.emit(relax.ShapeExpr([6, 2]))
        return relax.op.exp(bb.emit(relax.op.reshape(bb.emit(relax.op.nn.relu(x)), shape)))

    return of_block(write, var("x", (3, 4))), {"main": [floats(3, 4)]}, 2


@I.ir_module
class WithPrimFunc:
    I.module_attrs({"source": "by hand"})

    @T.prim_func(private=True, s_tir=True)
    def double(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
        for i, j in T.grid(4, 8):
            with T.sblock("y"):
                v_i, v_j = T.axis.remap("SS", [i, j])
                y[v_i, v_j] = x[v_i, v_j] * T.float32(2)

    @T.prim_func(private=True)
    def outside(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
        T.evaluate(T.call_packed("test_static_regions.negate", x.data, y.data))

    @R.function
    def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        R.func_attr({"kept": 3})
        cls = WithPrimFunc
        with R.dataflow():
            a = R.call_tir(cls.double, (x,), out_ty=R.Tensor((4, 8), "float32"))
            b = R.exp(a)
            R.output(b)
        return b


def prim_func() -> Case:
    return WithPrimFunc, {"main": [floats(4, 8)]}, 1


@tvm.register_global_func("test_static_regions.add", override=True)
def _add(x: tvm.runtime.Tensor, y: tvm.runtime.Tensor, out: tvm.runtime.Tensor) -> None:
    out.copyfrom(x.numpy() + y.numpy())


def external_call() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = convs(bb, x)
        ty = relax.TensorType((1, 12, 12, 4), "float32")
        z = bb.emit(relax.op.call_dps_packed("test_static_regions.add", [y, y], out_ty=ty))
        return relax.op.nn.relu(z)

    return of_block(write, var("x", IMAGE)), {"main": [floats(*IMAGE)]}, 2


def batch_norm_in_training() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        ones = relax.const(np.ones(3, "float32"))
        normed = bb.emit(relax.op.nn.batch_norm(x, const(3), const(3), const(3), ones, axis=3, training=True))
        return relax.op.nn.relu(bb.emit(normed[0]))

    return of_block(write, var("x", IMAGE)), {"main": [floats(*IMAGE)]}, 1


def matched_shape() -> Case:
    x = relax.Var("x", relax.TensorType(ndim=2, dtype="float32"))

    def write(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return relax.op.exp(bb.emit(relax.op.nn.relu(bb.match_cast(x, relax.TensorType((4, 8), "float32")))))

    return of_block(write, x), {"main": [floats(4, 8)]}, 1


@I.ir_module
class Blocks:
    @R.function
    def main(flag: R.Tensor((), "bool"), x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        with R.dataflow():
            a = R.exp(x)
            b = R.add(a, x)
            R.output(b)
        if flag:
            c = R.exp(b)
            d = R.add(c, c)
        else:
            e = R.negative(b)
            d = R.add(e, b)
        with R.dataflow():
            f = R.multiply(d, b)
            g = R.nn.relu(f)
            R.output(g)
        return g


def blocks_around_a_branch() -> Case:
    return Blocks, {"main": [np.array(True), floats(4, 8)]}, 2


@I.ir_module
class Recursive:
    @R.function(private=True)
    def doubled(x: R.Tensor((4,), "float32"), n: R.Tensor((), "int32")) -> R.Tensor((4,), "float32"):
        cls = Recursive
        done = R.less(n, R.const(1, "int32"))
        if done:
            r = R.add(x, x)
        else:
            m = R.subtract(n, R.const(1, "int32"))
            r = cls.doubled(x, m)
        return r

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = Recursive
        with R.dataflow():
            y = R.exp(x)
            R.output(y)
        z = cls.doubled(y, R.const(3, "int32"))
        return z


def recursion() -> Case:
    return Recursive, {"main": [floats(4)]}, 1


def fused_by_tvm() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return relax.op.nn.relu(bb.emit(relax.op.add(bb.emit(relax.op.matmul(x, const(8, 8))), const(8))))

    return relax.get_pipeline("zero")(of_block(write, var("x", (4, 8)))), {"main": [floats(4, 8)]}, 1


@I.ir_module
class SizesMatched:
    @R.function
    def main(x: R.Tensor((6,), "float32")) -> R.Tensor(ndim=1, dtype="float32"):
        with R.dataflow():
            k = T.int64()
            scaled = R.multiply(x, R.const(2.0, "float32"))
            mask = R.greater(scaled, R.const(0.0, "float32"))
            found = R.nonzero(mask)
            places = R.match_cast(found, R.Tensor((1, k), "int64"))
            size = R.shape([k])
            flat = R.reshape(places, size)
            y = R.exp(scaled)
            taken = R.take(y, flat, axis=0)
            R.output(taken)
        return taken


def sizes_matched() -> Case:
    return SizesMatched, {"main": [floats(6)]}, 1


@I.ir_module
class InPlace:
    @T.prim_func(private=True)
    def double(x: T.Buffer((4, 8), "float32")):
        for i, j in T.grid(4, 8):
            x[i, j] = x[i, j] * T.float32(2)

    @R.function(private=True)
    def unused(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        y = R.exp(x)
        return y

    @R.function
    def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        cls = InPlace
        with R.dataflow():
            a = R.exp(x)
            b = R.call_tir_inplace(cls.double, (a,), inplace_indices=[0], out_ty=R.Tensor((4, 8), "float32"))
            c = R.negative(b)
            R.output(c)
        return c


def in_place_beside_an_unused_private_function() -> Case:
    return InPlace, {"main": [floats(4, 8)]}, 2


@tvm.register_global_func("test_static_regions.doubled", override=True)
def _doubled(x: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
    return tvm.runtime.tensor(x.numpy() * 2)


def pure_packed_call() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = convs(bb, x)
        return bb.emit(relax.op.call_pure_packed("test_static_regions.doubled", y, ty_args=y.ty))

    return of_block(write, var("x", IMAGE)), {"main": [floats(*IMAGE)]}, 1


CASES = [
    sizes_matched,
    in_place_beside_an_unused_private_function,
    pure_packed_call,
    batch_norm_in_training,
    matched_shape,
    blocks_around_a_branch,
    recursion,
    fused_by_tvm,
    sort,
    topk_as_a_tuple,
    cumsum_between_regions,
    symbolic_batch,
    symbolic_beside_static,
    branch,
    several_functions,
    zeros_concatenated,
    long_indices,
    long_arithmetic,
    long_sum,
    split_with_one_part_sorted,
    without_main,
    parameters_that_are_results,
    tuple_parameter,
    shape_expression,
    prim_func,
    external_call,
]


def flat(value: object) -> list[np.ndarray]:
    return [value.numpy()] if hasattr(value, "numpy") else [a for v in value for a in flat(v)]  # pyright: ignore


def results(mod: tvm.IRModule, inputs: Inputs, pipeline: object) -> dict[str, list[np.ndarray]]:
    with tvm.transform.PassContext(opt_level=3, instruments=[WellFormedInstrument()]):
        executable = tvm.compile(mod, QUICK_TARGET, relax_pipeline=pipeline)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return {f: flat(machine[f](*map(tvm.runtime.tensor, arrays))) for f, arrays in inputs.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_what_tvm_builds_is_built_with_equal_results(case: Callable[[], Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT, "1")
    mod, inputs, regions = case()
    text = mod.script()
    planned = tvm.transform.Sequential([passes.LowerQuantized(), passes.Cascade()])(mod)
    assert relax.analysis.check_well_formed(planned)
    assert mod.script() == text
    entries = [gv.name_hint for gv in planned.get_global_vars() if gv.name_hint.startswith("cascade_")]
    assert len(entries) == regions
    assert (int(planned.attrs[ARENA_ATTR]) > 0) == bool(regions)
    want = results(mod, inputs, "default_build")
    for objective in (None, "bytes", "latency"):
        if case == blocks_around_a_branch and objective != "latency":
            continue  # TVM's StaticPlanBlockMemory takes memory of a branch behind it
        got = results(mod, inputs, cascade_pipeline(objective=objective))
        assert mod.script() == text
        for function, arrays in want.items():
            assert len(got[function]) == len(arrays)
            for one, other in zip(got[function], arrays, strict=True):
                assert (one.shape, one.dtype) == (other.shape, other.dtype)
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_attributes_and_names_of_parameters_are_kept() -> None:
    planned = passes.Cascade()(WithPrimFunc)
    assert int(planned["main"].attrs["kept"]) == 3 and str(planned.attrs["source"]) == "by hand"
    assert [p.name for p in planned["main"].params] == ["x"]
    names = {gv.name_hint for gv in planned.get_global_vars()}
    assert "outside" in names and "double" not in names  # the one that is called no more is gone


def test_a_second_run_changes_nothing() -> None:
    once = passes.Cascade().run(sort()[0])
    twice = passes.Cascade().run(once.mod)
    assert once.modified and not twice.modified
    assert int(once.mod.attrs[ARENA_ATTR]) == int(twice.mod.attrs[ARENA_ATTR]) > 0


def test_the_log_says_what_is_left_to_tvm_and_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tvm_cascade"):
        for case in (cumsum_between_regions, symbolic_batch, branch, external_call):
            passes.Cascade()(case()[0])
    text = "\n".join(r.getMessage() for r in caplog.records if r.name == "tvm_cascade")
    assert "main: cascaded: 4 bindings, lv to lv3: " in text
    assert "(relax.cumsum): relax.cumsum is made by TVM's own kernels or a library" in text
    assert "has a symbolic shape" in text
    assert "they stand in no dataflow block" in text
    assert "relax.call_dps_packed calls out of TVM" in text


def test_a_cap_holds_for_all_regions_together() -> None:
    mod, inputs, _ = cumsum_between_regions()
    arena = int(passes.Cascade()(mod).attrs[ARENA_ATTR])
    fits = passes.Cascade(PlanRequest(sram=arena))
    assert int(fits(mod).attrs[ARENA_ATTR]) == arena
    with pytest.raises(InfeasibleError) as error:
        passes.Cascade(PlanRequest(sram=arena - 1))(mod)
    assert (error.value.needed, error.value.available) == (arena, arena - 1)
    results(mod, inputs, cascade_pipeline(PlanRequest(sram=arena)))


def test_a_region_that_is_alone_gets_the_whole_cap() -> None:
    mod = sort()[0]
    arena = int(passes.Cascade()(mod).attrs[ARENA_ATTR])
    assert arena <= int(passes.Cascade(PlanRequest(sram=2 * arena))(mod).attrs[ARENA_ATTR]) <= 2 * arena
    with pytest.raises(InfeasibleError):
        passes.Cascade(PlanRequest(sram=arena // 2))(mod)


def test_other_devices_are_left_to_tvm() -> None:
    with tvm.target.Target("cuda"):
        planned = passes.Cascade()(sort()[0])
    assert int(planned.attrs[ARENA_ATTR]) == 0


def test_a_quantized_network_beside_what_is_not_lowered() -> None:
    net = Net("int8", seed=3)
    y = net.conv(net.conv(net.input((1, 8, 8, 3)), 8, 3), 4, 3)
    mod = net.finish(type(y)(net._emit(relax.op.sort(net._emit(relax.op.astype(y.expr, "float32")))), y.shape))
    feed = [RNG.integers(-128, 128, (1, 8, 8, 3)).astype("int8")]
    want = results(passes.LowerQuantized()(mod), {"main": feed}, "default_build")
    got = results(mod, {"main": feed}, "cascade")
    np.testing.assert_array_equal(got["main"][0], want["main"][0])


@pytest.mark.parametrize("seed", range(20))
def test_regions_are_convex_and_cover_what_is_supported(seed: int) -> None:
    """Random graphs of sums and sorts: no path from a region to itself leaves it."""
    random = np.random.default_rng(seed)
    bb, x = relax.BlockBuilder(), var("x", (2, 4))
    with bb.function("main", [x]):
        with bb.dataflow():
            values: list[relax.Expr] = [x]
            for _ in range(14):
                a, b = (values[random.integers(len(values))] for _ in range(2))
                values.append(bb.emit(relax.op.sort(a) if random.random() < 0.3 else relax.op.add(a, b)))
            out = bb.emit_output(relax.Tuple(values[-3:]))
        bb.emit_func_output(out)
    mod = bb.get()
    block = mod["main"].body.blocks[0]
    levels = levels_of(mod["main"], block, unsupported(mod, block, {}))
    covered = {b.var for r in levels.regions for b in r.bindings} | {b.var for bs in levels.between for b in bs}
    assert covered == {b.var for b in block.bindings}
    reads = {b.var: set(relax.analysis.free_vars(b.value)) for b in block.bindings}
    for region in levels.regions:
        inside = {b.var for b in region.bindings}
        outside_behind: set[object] = set()
        for binding in block.bindings:
            behind = reads[binding.var] & (inside | outside_behind)
            if binding.var not in inside and behind:
                outside_behind.add(binding.var)
            assert not (binding.var in inside and reads[binding.var] & outside_behind)
    data = random.standard_normal((2, 4)).astype("float32")
    want, got = (results(mod, {"main": [data]}, p) for p in ("default_build", cascade_pipeline(objective="bytes")))
    for one, other in zip(got["main"], want["main"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
