"""Passes are frozen dataclasses, TVM passes, and say whether they changed anything."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import IRModule

from tvm_cascade import passes
from tvm_cascade.errors import GraphError, UsageError
from tvm_cascade.passes.base import CascadePass, PassResult
from tvm_cascade.testing.builder import Net

CLASSES = [c for n in passes.__all__ if inspect.isclass(c := getattr(passes, n)) and issubclass(c, CascadePass)]
WORKING = [c for c in CLASSES if c is not CascadePass]


def small() -> tvm.IRModule:
    net = Net("int8", seed=3)
    x = net.input((1, 8, 8, 3))
    return net.finish(net.conv(net.conv(x, 4, 3), 4, 1))


def sliding() -> tvm.IRModule:
    """A convolution that slides over rows of time in front of a mean."""
    net = Net("float32", seed=3)
    x = net.conv(net.input((1, 16, 1, 3)), 4, (3, 1), padding="valid")
    return net.finish(net.dense(net.flatten(net.global_pool(net.conv(x, 4, 1))), 2))


@pytest.mark.parametrize("kind", WORKING, ids=lambda c: c.__name__)
def test_a_pass_is_an_instance_of_its_class_and_frozen(kind: type) -> None:
    one, other = kind(), kind()
    assert isinstance(one, kind) and isinstance(one, tvm.ir.transform.Pass) and type(one) is type(other)
    assert one == other and one.info.name == f"tvm_cascade.{kind.__name__}"
    with pytest.raises(FrozenInstanceError):
        one.anything = 1


@pytest.mark.parametrize("kind", [c for c in WORKING if c is not passes.ScheduleStages], ids=lambda c: c.__name__)
def test_a_pass_leaves_its_module_as_it_is(kind: type) -> None:
    mod = passes.LowerQuantized()(sliding() if kind is passes.Incremental else small())
    before = mod.script()
    result = kind().run(mod)
    assert mod.script() == before
    assert result.modified == (not tvm_ffi.structural_equal(mod, result.mod))


@dataclass(frozen=True)
class Named(CascadePass):
    """Names the module, unless it is named so already."""

    name: str = "one"

    def requires(self, mod: IRModule) -> None:
        if not len(mod.get_global_vars()):
            raise GraphError("an empty module")

    def call(self, mod: IRModule) -> PassResult:
        return PassResult.compare(mod, mod.with_attr("name", self.name))


def test_a_pass_runs_in_a_sequence_under_instruments() -> None:
    seen = []

    @tvm.instrument.pass_instrument
    class Watch:
        def run_after_pass(self, mod: IRModule, info: object) -> None:
            seen.append(info.name)

    first = Named()
    with tvm.transform.PassContext(instruments=[Watch()]):
        mod = tvm.transform.Sequential([first, replace(first, name="two")])(small())
    assert mod.attrs["name"] == "two" and seen.count("tvm_cascade.Named") == 2


def test_a_pass_says_whether_it_changed_anything() -> None:
    mod = small()
    once = Named().run(mod)
    assert once.modified and not Named().run(once.mod).modified


def test_what_a_pass_requires_is_checked_first() -> None:
    with pytest.raises(GraphError, match="an empty module"):
        Named()(IRModule())
    with pytest.raises(UsageError, match="needs a schedule"):
        passes.ScheduleStages()(small())


def test_a_pass_frees_what_it_holds() -> None:
    import gc
    import weakref

    class Held:
        pass

    held = Held()
    watch = weakref.ref(held)
    one = Named(held)  # pyright: ignore[reportArgumentType]
    del held, one
    gc.collect()
    assert watch() is None


def test_functions_that_cannot_be_read_are_left_as_they_are() -> None:
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "int8"))
    builder = relax.BlockBuilder(small())
    with builder.function("symbolic", [x]):
        with builder.dataflow():
            real = builder.emit(relax.op.dequantize(x, relax.const(0.5, "float32"), relax.const(0, "int8")))
            y = builder.emit_output(relax.op.nn.relu(real))
        builder.emit_func_output(y)
    mod = builder.get()
    lowered = passes.LowerQuantized()(mod)
    tvm.ir.assert_structural_equal(lowered["symbolic"], mod["symbolic"])
    assert "R.quantize" in mod.script() and "R.quantize" not in lowered["main"].script()
