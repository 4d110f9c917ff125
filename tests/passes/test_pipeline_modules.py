"""The pipeline's passes, called directly under TVM's instrument for well-formed modules, on the forms that modules have.

`cascade_pipeline` leaves to TVM what its passes fail on: a result that is right shows no fault of a pass. Here every pass runs
alone, and the pipeline raises what it would leave to TVM. What has no stages has a reason that the test names.
"""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.ir.instrument import WellFormedInstrument
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_cascade.cores import KernelTarget
from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.errors import GraphError
from tvm_cascade.passes.cascade import ARENA_ATTR, Cascade
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.relax_pipeline import OBJECTIVE_ATTR, STRICT, cascade_pipeline
from tvm_cascade.request import PlanRequest
from tvm_cascade.staging.kernels.cuda_default import cuda_target
from tvm_cascade.staging.program.schedule_stages import LowerOptions, ScheduleStages, stage_pipeline
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.quick_build import QUICK_TARGET

RNG = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def const(*shape: int) -> Any:
    return relax.const(floats(*shape) * np.float32(0.3))


def var(name: str, shape: object, dtype: str = "float32") -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


@dataclass
class Case:
    mod: tvm.IRModule
    inputs: list[Any]
    regions: int  # that are cascaded
    no_stages: str = ""  # why `ScheduleStages` refuses the module; empty: it does not
    calls: list[str] = field(default_factory=list)  # names of functions of the registry that a run calls, in order


def of(write: Callable[..., Any], *params: relax.Var) -> tvm.IRModule:
    """A module whose `main` returns what `write` emits into one dataflow block."""
    bb = relax.BlockBuilder()
    with bb.function("main", list(params)):
        with bb.dataflow():
            out = bb.emit_output(write(bb, *params))
        bb.emit_func_output(out)
    return bb.get()


CALLED: list[str] = []


@tvm.register_global_func("test_pipeline_modules.twice", override=True)
def _twice(x: tvm.runtime.Tensor, out: tvm.runtime.Tensor) -> None:
    CALLED.append("twice")
    out.copyfrom(x.numpy() * 2)


@tvm.register_global_func("test_pipeline_modules.noted", override=True)
def _noted(x: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
    CALLED.append("noted")
    return x


def dense() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> Any:
        y = bb.emit(relax.op.matmul(x, const(12, 8)))
        return relax.op.nn.relu(bb.emit(relax.op.add(y, const(8))))

    return Case(of(write, var("x", (4, 12))), [floats(4, 12)], 1)


def convolution() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> Any:
        y = bb.emit(relax.op.nn.conv2d(x, const(4, 3, 3, 3), padding=1))
        y = bb.emit(relax.op.nn.relu(bb.emit(relax.op.add(y, const(1, 4, 1, 1)))))
        return relax.op.nn.max_pool2d(y, (2, 2), (2, 2))

    return Case(of(write, var("x", (1, 3, 8, 8))), [floats(1, 3, 8, 8)], 1)


def quantized_convolution() -> Case:
    net = Net("int8", seed=3)
    mod = net.finish(net.conv(net.conv(net.input((1, 8, 8, 3)), 8, 3), 4, 3))
    return Case(mod, [RNG.integers(-128, 128, (1, 8, 8, 3)).astype("int8")], 1)


def attention() -> Case:
    params = [var(n, (1, 6, 2, 8)) for n in "qkv"]
    mod = of(lambda _, q, k, v: relax.op.nn.attention(q, k, v), *params)
    return Case(mod, [floats(1, 6, 2, 8) for _ in params], 1)


def layer_norm() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> Any:
        y = bb.emit(relax.op.nn.layer_norm(x, const(8), const(8), axes=[-1]))
        return relax.op.nn.softmax(bb.emit(relax.op.nn.gelu(y)))

    return Case(of(write, var("x", (2, 3, 8))), [floats(2, 3, 8)], 1)


def product_and_sum_in_bfloat16() -> Case:
    """TVM cannot store vectors of bfloat16 in an accumulator."""

    def write(bb: relax.BlockBuilder, x: relax.Var) -> Any:
        y = bb.emit(relax.op.astype(x, "bfloat16"))
        y = bb.emit(relax.op.matmul(y, bb.emit(relax.op.permute_dims(y, [1, 0]))))
        return relax.op.astype(bb.emit(relax.op.max(y, axis=0)), "float32")

    return Case(of(write, var("x", (6, 8))), [RNG.integers(-3, 4, (6, 8)).astype("float32")], 1)


def batch_norm_behind_a_convolution() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> Any:
        y = bb.emit(relax.op.nn.conv2d(x, const(4, 3, 3, 3)))
        ones = relax.const(np.ones(4, "float32"))
        return bb.emit(relax.op.nn.batch_norm(y, const(4), const(4), const(4), ones, axis=1, training=False))[0]

    return Case(of(write, var("x", (1, 3, 6, 6))), [floats(1, 3, 6, 6)], 1)


def tuple_of_split_parts() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> Any:
        parts = bb.emit(relax.op.split(x, 3, axis=1))
        total = bb.emit(relax.op.add(bb.emit(parts[0]), bb.emit(parts[2])))
        return relax.Tuple([total, bb.emit(parts[1])])

    return Case(of(write, var("x", (2, 6))), [floats(2, 6)], 1)


def tuple_parameter() -> Case:
    pair = relax.Var("pair", relax.TupleType([relax.TensorType((2, 3), "float32")] * 2))
    mod = of(lambda bb, p: relax.op.multiply(bb.emit(p[0]), bb.emit(p[1])), pair)
    return Case(mod, [(floats(2, 3), floats(2, 3))], 1, "pair is a tuple that the function gets from its caller")


def nested_tuples_and_constants() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> Any:
        a = bb.emit(relax.op.exp(x))
        k = bb.emit(relax.op.add(const(3), const(3)))
        return relax.Tuple([relax.Tuple([a]), const(2), k, x, relax.Tuple([k, relax.Tuple([a, x])])])

    return Case(of(write, var("x", (2, 3))), [floats(2, 3)], 1)


def constants_alone() -> Case:
    mod = of(lambda _bb, _x: relax.op.add(const(3), const(3)), var("x", (2, 3)))
    return Case(mod, [floats(2, 3)], 0, "no tensor that it computes")


def input_that_is_the_output() -> Case:
    return Case(of(lambda _, x: x, var("x", (2, 3))), [floats(2, 3)], 0)


def empty() -> list[Callable[[], Case]]:
    """Make cases of operators on tensors without elements, of which some compute elements."""
    forms: dict[str, Callable[[Any], Any]] = {
        "total": lambda x: relax.op.sum(x, axis=[1]),
        "product": lambda x: relax.op.prod(x, axis=[1], keepdims=True),
        "turned": relax.op.permute_dims,
        "sorted": relax.op.sort,
        "normalized": lambda x: relax.op.nn.layer_norm(x, const(5), const(5), axes=[-1]),
        "matrices": lambda x: relax.op.matmul(x, const(5, 3)),
        "padded": lambda x: relax.op.nn.pad(x, [0, 0, 1, 1, 0, 0], "constant"),
    }

    def case(form: Callable[[Any], Any]) -> Case:
        mod = of(lambda bb, x: form(bb.emit(relax.op.exp(x))), var("x", (5, 0, 5)))
        return Case(mod, [floats(5, 0, 5)], 0, "x is empty")

    return [partial(case, form) for form in forms.values()]


def symbolic_rows() -> Case:
    n = tvm.tirx.Var("n", "int64")
    mod = of(lambda bb, x: relax.op.nn.relu(bb.emit(relax.op.matmul(x, const(6, 4)))), var("x", (n, 6)))
    return Case(mod, [floats(5, 6)], 0, "the shape of x is not static")


def symbolic_beside_static() -> Case:
    n = tvm.tirx.Var("n", "int64")

    def write(bb: relax.BlockBuilder, x: relax.Var, y: relax.Var) -> Any:
        a = bb.emit(relax.op.nn.relu(bb.emit(relax.op.matmul(x, const(6, 4)))))
        return relax.Tuple([a, bb.emit(relax.op.exp(y))])

    mod = of(write, var("x", (2, 6)), var("y", (n, 3)))
    return Case(mod, [floats(2, 6), floats(4, 3)], 1, "the shape of y is not static")


@I.ir_module
class Matched:
    @R.function
    def main(x: R.Tensor((6,), "float32")) -> R.Tensor(ndim=1, dtype="float32"):
        with R.dataflow():
            k = T.int64()
            y = R.exp(R.multiply(x, R.const(2.0, "float32")))
            found = R.nonzero(R.greater(x, R.const(0.0, "float32")))
            places = R.match_cast(found, R.Tensor((1, k), "int64"))
            taken = R.take(y, R.reshape(places, R.shape([k])), axis=0)
            R.output(taken)
        return taken


def sizes_from_match_cast() -> Case:
    return Case(Matched, [np.array([1, -1, 2, -2, 3, 0.5], "float32")], 1, "the shape of found is not static")


@I.ir_module
class OwnFunctions:
    @R.function(private=True)
    def scaled(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        with R.dataflow():
            y = R.exp(x)
            z = R.multiply(y, R.const(2.0, "float32"))
            R.output(z)
        return z

    @R.function(private=True)
    def unused(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        y = R.exp(x)
        return y

    @R.function
    def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        cls = OwnFunctions
        with R.dataflow():
            a = cls.scaled(x)
            b = R.nn.relu(x)
            c = R.add(a, b)
            R.output(c)
        return c


def private_functions() -> Case:
    return Case(OwnFunctions, [floats(4, 8)], 2, "a call of the function scaled")


def packed_call_between() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> Any:
        y = bb.emit(relax.op.exp(x))
        z = bb.emit(relax.op.call_dps_packed("test_pipeline_modules.twice", [y], out_ty=y.ty))
        return relax.op.nn.relu(z)

    return Case(of(write, var("x", (4, 8))), [floats(4, 8)], 2, "call_dps_packed calls out of TVM", ["twice"])


def packed_call_whose_result_is_unused() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> Any:
        y = bb.emit(relax.op.exp(x))
        noted = bb.emit(relax.op.call_pure_packed("test_pipeline_modules.noted", y, ty_args=y.ty))
        bb.emit(relax.op.exp(noted))
        return relax.op.negative(y)

    return Case(of(write, var("x", (4, 8))), [floats(4, 8)], 1, "a call out of TVM is unused", ["noted"])


@I.ir_module
class AllPrivate:
    @R.function(private=True)
    def unused(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        with R.dataflow():
            y = R.exp(x)
            R.output(y)
        return y

    @R.function(private=True)
    def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        with R.dataflow():
            y = R.exp(x)
            R.output(y)
        return y


def private_main() -> Case:
    return Case(AllPrivate, [floats(4, 8)], 2)


@I.ir_module
class OwnKernels:
    @T.prim_func(private=True, s_tir=True)
    def double(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
        for i, j in T.grid(4, 8):
            with T.sblock("y"):
                v_i, v_j = T.axis.remap("SS", [i, j])
                y[v_i, v_j] = x[v_i, v_j] * T.float32(2)

    @R.function
    def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        cls = OwnKernels
        with R.dataflow():
            a = R.call_tir(cls.double, (x,), out_ty=R.Tensor((4, 8), "float32"))
            b = R.exp(a)
            R.output(b)
        return b


def prim_func_with_sizes_of_32_bits() -> Case:
    return Case(OwnKernels, [floats(4, 8)], 1)


@I.ir_module
class PlainLoops:
    @T.prim_func(private=True)
    def double(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
        for i, j in T.grid(4, 8):
            y[i, j] = x[i, j] * T.float32(2)

    @R.function
    def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        cls = PlainLoops
        with R.dataflow():
            a = R.call_tir(cls.double, (x,), out_ty=R.Tensor((4, 8), "float32"))
            R.output(a)
        return a


@I.ir_module
class SymbolicKernel:
    @T.prim_func(private=True, s_tir=True)
    def double(x: T.handle, y: T.handle):
        n = T.int32()
        a = T.match_buffer(x, (n, 8), "float32")
        b = T.match_buffer(y, (n, 8), "float32")
        for i, j in T.grid(n, 8):
            with T.sblock("y"):
                v_i, v_j = T.axis.remap("SS", [i, j])
                b[v_i, v_j] = a[v_i, v_j] * T.float32(2)

    @R.function
    def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        cls = SymbolicKernel
        with R.dataflow():
            a = R.call_tir(cls.double, (x,), out_ty=R.Tensor((4, 8), "float32"))
            R.output(a)
        return a


@I.ir_module
class Checked:
    @R.function(pure=False)
    def main(x: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
        _ = R.assert_op(R.const(True, "bool"), x, format="never: {}")
        y = R.exp(x)
        return y


def assertion() -> Case:
    return Case(Checked, [floats(2, 3)], 0, "assert_op computes no tensor")


def prim_func_of_symbolic_sizes() -> Case:
    return Case(SymbolicKernel, [floats(4, 8)], 0, "the code of double has symbolic sizes of 32 bits")


@I.ir_module
class Closure:
    @R.function
    def added(x: R.Tensor((2, 3), "float32"), y: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
        z = R.add(x, y)
        return z

    @R.function
    def main(x: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
        cls = Closure
        kept = R.make_closure(cls.added, (x,))
        z = R.invoke_pure_closure(kept, (x,), ty_args=R.Tensor((2, 3), "float32"))
        return z


def closure() -> Case:
    return Case(Closure, [floats(2, 3)], 0, "kept is no tensor")


def prim_func_without_blocks() -> Case:
    """TVM builds one where its result is the function's alone."""
    return Case(PlainLoops, [floats(4, 8)], 0, "no blocks that could be scheduled")


def number_as_an_index() -> Case:
    def write(bb: relax.BlockBuilder, x: relax.Var) -> Any:
        return relax.op.take(bb.emit(relax.op.exp(x)), relax.prim_value(2), axis=0)

    return Case(of(write, var("x", (4, 8))), [floats(4, 8)], 1)


@I.ir_module
class InPlace:
    @T.prim_func(private=True)
    def double(x: T.Buffer((4, 8), "float32")):
        for i, j in T.grid(4, 8):
            x[i, j] = x[i, j] * T.float32(2)

    @R.function
    def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        cls = InPlace
        with R.dataflow():
            a = R.exp(x)
            b = R.call_tir_inplace(cls.double, (a,), inplace_indices=[0], out_ty=R.Tensor((4, 8), "float32"))
            c = R.negative(b)
            R.output(c)
        return c


def in_place() -> Case:
    return Case(InPlace, [floats(4, 8)], 2, "call_tir_inplace calls out of TVM")


@I.ir_module
class Branch:
    @R.function
    def main(flag: R.Tensor((), "bool"), x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        with R.dataflow():
            a = R.add(R.exp(x), x)
            R.output(a)
        if flag:
            b = R.exp(a)
        else:
            b = R.negative(a)
        return b


def branch() -> Case:
    return Case(Branch, [np.array(True), floats(4, 8)], 1, "If")


class External:
    """A code generator for `relax.ext`, whose functions double a tensor of four rows by eight."""

    def __init__(self) -> None:
        tvm.register_global_func("relax.ext.test_pipeline_modules", self.generate, override=True)

    @staticmethod
    def generate(functions: Any, _options: Any, _constants: Any) -> list[Any]:
        @T.prim_func
        def double(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
            for i, j in T.grid(4, 8):
                y[i, j] = x[i, j] * T.float32(2)

        names = [str(f.attrs["global_symbol"]) for f in functions]
        mod = tvm.IRModule({n: double.with_attr("global_symbol", n) for n in names})
        return [tvm.tirx.build(mod, QUICK_TARGET)]


def external_module() -> Case:
    """A product of two operators for another code generator: its library stands in the module's attribute `external_mods`."""
    External()

    def write(bb: relax.BlockBuilder, x: relax.Var) -> Any:
        y = bb.emit(relax.op.exp(x))
        return relax.op.nn.relu(bb.emit(relax.op.multiply(y, relax.const(2.0, "float32"))))

    pattern = relax.dpl.is_op("relax.multiply")(relax.dpl.wildcard(), relax.dpl.is_const())
    named = [("test_pipeline_modules.double", pattern)]
    passes = [
        relax.transform.FuseOpsByPattern(named, bind_constants=True, annotate_codegen=True),
        relax.transform.RunCodegen(),
    ]
    mod = tvm.transform.Sequential(passes)(of(write, var("x", (4, 8))))
    assert len(mod.attrs["external_mods"]) == 1
    return Case(mod, [floats(4, 8)], 2, "call_dps_packed calls out of TVM")


def external_module_beside_a_quantized_network() -> Case:
    """Integers are lowered, without a copy of the module before: JSON cannot hold what another code generator made."""
    net = Net("int8", seed=3)
    mod = net.finish(net.conv(net.conv(net.input((1, 8, 8, 3)), 8, 3), 4, 3))
    library = External.generate([OwnFunctions["main"]], None, None)
    return Case(mod.with_attr("external_mods", library), [RNG.integers(-128, 128, (1, 8, 8, 3)).astype("int8")], 1)


def system_library() -> Case:
    """TVM gives every function of such a module a prefix."""
    return Case(dense().mod.with_attr("system_lib_prefix", "test_"), [floats(4, 12)], 0)


CASES = [
    external_module_beside_a_quantized_network,
    system_library,
    dense,
    convolution,
    quantized_convolution,
    attention,
    layer_norm,
    product_and_sum_in_bfloat16,
    batch_norm_behind_a_convolution,
    tuple_of_split_parts,
    tuple_parameter,
    nested_tuples_and_constants,
    constants_alone,
    input_that_is_the_output,
    symbolic_rows,
    symbolic_beside_static,
    sizes_from_match_cast,
    prim_func_with_sizes_of_32_bits,
    assertion,
    prim_func_of_symbolic_sizes,
    closure,
    prim_func_without_blocks,
    private_functions,
    private_main,
    number_as_an_index,
    packed_call_between,
    packed_call_whose_result_is_unused,
    in_place,
    branch,
    external_module,
    *empty(),
]


def run(mod: tvm.IRModule, pipeline: Any, inputs: list[Any]) -> Any:
    with tvm.transform.PassContext(opt_level=3, instruments=[WellFormedInstrument()]):
        machine = relax.VirtualMachine(tvm.compile(mod, QUICK_TARGET, relax_pipeline=pipeline), tvm.cpu())
    return arrays(machine["main"](*map(tensors, inputs)))


def tensors(value: Any) -> Any:
    return tuple(map(tensors, value)) if isinstance(value, tuple) else tvm.runtime.tensor(value)


def arrays(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else tuple(map(arrays, value))


def require_equal(one: Any, other: Any) -> None:
    if isinstance(other, tuple):
        assert isinstance(one, tuple) and len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            require_equal(a, b)
    else:
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", CASES)
def test_regions_are_cascaded(make: Callable[[], Case]) -> None:
    case = make()
    with tvm.transform.PassContext(opt_level=3, instruments=[WellFormedInstrument()]):
        planned = tvm.transform.Sequential([LowerQuantized(), Cascade()])(case.mod)
    entries = [gv.name_hint for gv in planned.get_global_vars() if gv.name_hint.startswith("cascade_")]
    assert len(entries) == case.regions
    assert list((case.mod.attrs or {}).get("external_mods", [])) == list(planned.attrs.get("external_mods", []))


@pytest.mark.parametrize("make", CASES)
def test_stages_are_made_or_refused(make: Callable[[], Case]) -> None:
    case = make()
    staged = ScheduleStages(model=AnalyticCost(find_device("cpu", "llvm", 2)), lower=LowerOptions(workers=2))
    with tvm.transform.PassContext(opt_level=3, instruments=[WellFormedInstrument()]):
        if case.no_stages:
            with pytest.raises(GraphError, match=case.no_stages):
                staged(case.mod)
        else:
            tvm.transform.Sequential([staged, stage_pipeline()])(case.mod)


@pytest.mark.parametrize("make", CASES)
def test_what_tvm_computes_is_computed(make: Callable[[], Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT, "1")
    case = make()
    lowered = LowerQuantized()(case.mod)
    for objective, mod in ((None, lowered), ("bytes", lowered), ("latency", case.mod)):
        want = run(mod, "default_build", case.inputs)
        CALLED.clear()
        require_equal(run(case.mod, cascade_pipeline(objective=objective), case.inputs), want)
        assert case.calls == CALLED


def entry(bb: relax.BlockBuilder, name: str, param: relax.Var, write: Callable[..., Any], **options: Any) -> Any:
    with bb.function(name, [param], **options):
        with bb.dataflow():
            out = bb.emit_output(write(bb, param))
        return bb.emit_func_output(out)


def several_functions() -> tvm.IRModule:
    """Two functions in float32, of which one calls a private function that has the name of a kernel, and one of integers."""
    bb = relax.BlockBuilder()
    kernel = entry(bb, "kernel_0", var("x", (4, 8)), lambda _, x: relax.op.exp(x), private=True)
    entry(bb, "encode", var("x", (4, 8)), lambda b, x: relax.op.negative(b.emit(relax.Call(kernel, [x]))))
    entry(bb, "decode", var("x", (4, 8)), lambda _, x: relax.op.matmul(x, const(8, 3)))
    entry(bb, "count", var("n", (5,), "int32"), lambda _, n: relax.op.multiply(n, n))
    return bb.get()


def test_every_function_has_the_objective_that_serves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT, "1")
    mod = several_functions()
    inputs = {"encode": floats(4, 8), "decode": floats(4, 8), "count": np.arange(5, dtype="int32")}
    plain = relax.VirtualMachine(tvm.compile(mod, QUICK_TARGET), tvm.cpu())
    for objective, said in (
        (None, "count=bytes, decode=latency, encode=latency"),
        ("bytes", "bytes"),
        ("latency", "latency"),
    ):
        with tvm.transform.PassContext(opt_level=3, instruments=[WellFormedInstrument()]), QUICK_TARGET:
            lowered = cascade_pipeline(objective=objective)(mod)
        assert lowered.attrs[OBJECTIVE_ATTR] == said
        built = relax.VirtualMachine(
            tvm.compile(mod, QUICK_TARGET, relax_pipeline=cascade_pipeline(objective=objective)), tvm.cpu()
        )
        for name, data in inputs.items():
            require_equal(arrays(built[name](tensors(data))), arrays(plain[name](tensors(data))))


def lowered_by(mod: tvm.IRModule, target: tvm.target.Target = QUICK_TARGET, **options: Any) -> tvm.IRModule:
    with target:
        return cascade_pipeline(**options)(mod)


def test_floats_are_staged_and_all_else_is_cascaded_as_before() -> None:
    mod, quantized, narrow = dense().mod, quantized_convolution().mod, product_and_sum_in_bfloat16().mod
    assert lowered_by(mod).attrs[OBJECTIVE_ATTR] == "latency" and not lowered_by(mod).attrs[ARENA_ATTR]
    for other, options in (
        (quantized, {}),
        (narrow, {}),
        (mod, {"core": KernelTarget()}),
        (mod, {"request": PlanRequest(sram=1 << 20)}),
        (symbolic_rows().mod, {}),
    ):
        made, plainly = lowered_by(other, **options), lowered_by(other, objective="bytes", **options)
        assert made.attrs[OBJECTIVE_ATTR] == plainly.attrs[OBJECTIVE_ATTR] == "bytes"
        assert tvm_ffi.structural_equal(made, plainly)


def test_functions_for_cuda_are_staged_and_those_for_other_devices_left_to_tvm() -> None:
    mod = of(lambda bb, x: relax.op.nn.relu(bb.emit(relax.op.matmul(x, const(64, 64)))), var("x", (64, 64)))
    lowered = lowered_by(mod, cuda_target("cuda -arch=sm_80"))
    assert lowered.attrs[OBJECTIVE_ATTR] == "latency"
    assert "cuda_graph.run_or_capture" in lowered.script()
    assert lowered_by(mod, tvm.target.Target("opencl")).attrs[OBJECTIVE_ATTR] == "bytes"


def test_a_fault_of_a_pass_is_left_to_tvm_unless_the_pipeline_is_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(Cascade, "call", failing)
    monkeypatch.setattr(ScheduleStages, "call", failing)
    case = dense()
    want = run(case.mod, "default_build", case.inputs)
    monkeypatch.delenv(STRICT, raising=False)
    for objective in ("bytes", "latency"):
        require_equal(run(case.mod, cascade_pipeline(objective=objective), case.inputs), want)
    monkeypatch.setenv(STRICT, "1")
    for objective in ("bytes", "latency"):
        with pytest.raises(RuntimeError, match="a fault"):
            run(case.mod, cascade_pipeline(objective=objective), case.inputs)
