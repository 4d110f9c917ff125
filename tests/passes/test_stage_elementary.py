"""Elementary functions of float32 in kernels for CPUs: errors over all float32, special values, and no call of the C library."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from numpy.lib.stride_tricks import sliding_window_view
from tvm import relax as _relax
from tvm import te as _te
from tvm import tirx as _tirx

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.kernels.cpu_elementary import vectorizable
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages

relax: Any = _relax
te: Any = _te
tirx: Any = _tirx
STRIDE = 16381  # a prime: one of so many of all float32, in order of their bits
SAMPLES = np.arange(0, 2**32, STRIDE, dtype="int64").astype("uint32").view("float32")
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-40, -1e-40, 88.72, 88.73, -87.4, -100.0, -103.9, -104.5,
     1e-30, -1e-30, 3.4e38, -3.4e38, 1.0, -1.0, 1.5707964, 3.1415927, 0.99999994],
    "float32",
)  # fmt: skip
X = np.concatenate([SAMPLES, SPECIAL, np.linspace(-20, 20, 4001, dtype="float32")])
LIBRARY = re.compile(r"\b((?:exp|log|tanh|erf|sin|cos|pow|sincos|floor|exp2|log2|round)f?)(?:@PLT)?$", re.MULTILINE)
TARGETS: dict[str, Any] = {
    "this machine": {"kind": "llvm", "mcpu": "host"},
    "its family": {"kind": "llvm"},
}
Elementwise = Callable[[Any], Any]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


_erf = np.frompyfunc(math.erf, 1, 1)
# function: kernel, value in float64, bound in units in the last place, magnitude below which results may be 0
FUNCTIONS: dict[str, tuple[Elementwise, Elementwise, float, float]] = {
    "exp": (tirx.exp, np.exp, 2, 0),
    "log": (tirx.log, np.log, 1, 0),
    "tanh": (tirx.tanh, np.tanh, 6, 0),
    "erf": (tirx.erf, lambda x: _erf(x).astype("float64"), 8, 0),
    "sigmoid": (tirx.sigmoid, _sigmoid, 4, 2.0**-126),
    "silu": (lambda x: x * tirx.sigmoid(x), lambda x: x * _sigmoid(x), 4, 2.0**-120),
    "silu, the sigmoid first": (lambda x: tirx.sigmoid(x) * x, lambda x: x * _sigmoid(x), 4, 2.0**-120),
    "sin": (tirx.sin, np.sin, 2, 0),
    "cos": (tirx.cos, np.cos, 2, 0),
    "log(1 + x)": (
        lambda x: tirx.log(tirx.exp(x) + 1.0),
        lambda x: np.log1p(np.exp(x).astype("float32").astype("float64")),
        4,
        2.0**-103,
    ),
    "log(1 + x) from -1": (lambda x: tirx.log(x + 1.0), np.log1p, 4, 0),
    "square": (lambda x: tirx.pow(x, tirx.const(2.0, "float32")), lambda x: x * x, 1, 0),
    "cube": (lambda x: tirx.pow(x, tirx.const(3.0, "float32")), lambda x: x**3, 1.5, 0),
    "is NaN": (lambda x: tirx.isnan(x).astype("float32"), lambda x: np.isnan(x).astype("float64"), 0, 0),
}


def kernel(function: Elementwise, length: int) -> tirx.PrimFunc:
    given = te.placeholder((length,), "float32", name="x")
    made = te.compute((length,), lambda i: function(given[i]), name="y")
    return vectorizable(te.create_prim_func([given, made])).with_attr("global_symbol", "main")


def target_of(name: str) -> Any:
    target = dict(TARGETS[name])
    if target.get("mcpu") == "host":
        target["mcpu"] = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    return target


@np.errstate(all="ignore")
def units(got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return errors in units in the last place; of results that should be NaN or infinite, 0 or infinity."""
    exponent = np.floor(np.log2(np.clip(np.abs(wanted), 2.0**-126, 2.0**127)))
    errors = np.abs(got - wanted) / 2.0 ** (exponent - 23)
    same = (wanted.astype("float32") == got) | (np.isnan(wanted) & np.isnan(got))
    return np.where(same, 0, np.where(np.isfinite(got) & np.isfinite(wanted), errors, np.inf))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_over_all_float32(name: str, target: str) -> None:
    """Bounds hold for every exponent, denormal numbers among them, and NaN and infinities are as in C's library."""
    function, value, bound, least = FUNCTIONS[name]
    library = tvm.compile(tvm.IRModule({"main": kernel(function, len(X))}), target=target_of(target))
    result = tvm.runtime.tensor(np.zeros_like(X))
    library["main"](tvm.runtime.tensor(X), result)
    got = result.numpy().astype("float64")
    with np.errstate(all="ignore"):
        wanted = np.asarray(value(X.astype("float64")))
    errors = np.where((np.abs(wanted) < least) & (np.abs(got) < least), 0, units(got, wanted))
    worst = int(np.argmax(errors))
    assert errors[worst] <= bound, (X[worst], got[worst], wanted[worst])
    if name in ("tanh", "erf"):
        assert np.nanmax(np.abs(got)) == 1
    if name in ("tanh", "erf", "sin"):
        assert np.array_equal(np.signbit(got[X == 0]), np.signbit(X[X == 0]))


@pytest.mark.parametrize("triple", ["x86_64-linux-gnu", "aarch64-linux-gnu", "riscv64-linux-gnu"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_call_of_the_library(name: str, triple: str) -> None:
    """The code for processors with vectors of any width, or with none, calls no elementary function."""
    func = kernel(FUNCTIONS[name][0], 64)
    features = {"mattr": ["+d"], "mabi": "lp64d"} if triple.startswith("riscv") else {}
    target = tvm.target.Target({"kind": "llvm", "mtriple": triple, **features})
    built = tvm.compile(tvm.IRModule({"main": func}), target=target)
    assembly = built.mod.inspect_source("asm") if hasattr(built, "mod") else built.inspect_source("asm")
    assert not LIBRARY.findall(assembly)


@pytest.mark.parametrize("half", [False, True])
def test_one_and_erf(half: bool) -> None:
    """GELU's factor is as exact where erf is near -1 as elsewhere, and 0 far below."""
    x = np.concatenate([np.linspace(-12, 12, 4001), [np.inf, -np.inf, np.nan, -0.0]]).astype("float32")
    func = kernel(lambda v: tirx.erf(v) * 0.5 + 0.5 if half else 1.0 + tirx.erf(v), len(x))
    assert "T.erf" not in func.script()
    result = tvm.runtime.tensor(np.zeros_like(x))
    tvm.compile(tvm.IRModule({"main": func}), target="llvm")["main"](tvm.runtime.tensor(x), result)
    wanted = np.array([math.erfc(-v) for v in x.astype("float64")]) * (0.5 if half else 1)
    np.testing.assert_allclose(result.numpy()[x > -1], wanted[x > -1], rtol=1e-6)
    np.testing.assert_allclose(result.numpy(), wanted, rtol=2e-5, atol=1e-36)
    assert result.numpy()[-3] == 0
    assert np.isnan(result.numpy()[-2])


def test_functions_of_functions_and_conditions() -> None:
    """What is under a condition is computed there; chains of functions are cut, as TVM's simplifier takes minutes for them."""

    def chain(x: Any) -> Any:
        inner = tirx.tanh(tirx.tanh(tirx.exp(tirx.sigmoid(x))))
        return tirx.erf(inner) + tirx.if_then_else(x > 0, tirx.log(x), 0.0)

    func = kernel(chain, 64)
    assert func.script().count("T.sblock_alloc_buffer") == 10  # of six functions, one under a condition
    x = np.linspace(-3, 3, 64, dtype="float32")
    result = tvm.runtime.tensor(np.zeros_like(x))
    tvm.compile(tvm.IRModule({"main": func}), target="llvm")["main"](tvm.runtime.tensor(x), result)
    inner = np.tanh(np.tanh(np.exp(_sigmoid(x.astype("float64")))))
    with np.errstate(all="ignore"):
        wanted = _erf(inner).astype("float64") + np.where(x > 0, np.log(x.astype("float64")), 0)
    np.testing.assert_allclose(result.numpy(), wanted, rtol=2e-6, atol=1e-6)


def test_arguments_of_bfloat16() -> None:
    """TVM reads a bfloat16 in the value of a variable as an integer: such arguments lie in memory."""
    given = te.placeholder((16,), "bfloat16", name="x")

    def compute(i: Any) -> Any:
        x = given[i].astype("float32")
        return tirx.exp(x) + x * tirx.sigmoid(x) + tirx.if_then_else(i < 8, tirx.tanh(x), x * tirx.sigmoid(x))

    func = vectorizable(te.create_prim_func([given, te.compute((16,), compute, name="y")]))
    x = np.linspace(-3, 3, 16, dtype="float32").astype(ml_dtypes.bfloat16)
    result = tvm.runtime.tensor(np.zeros(16, "float32"))
    library = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target="llvm")
    library["main"](tvm.runtime.tensor(x), result)
    wide = x.astype("float64")
    silu = wide * _sigmoid(wide)
    wanted = np.exp(wide) + silu + np.where(np.arange(16) < 8, np.tanh(wide), silu)
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-6, atol=1e-6)


def staged(operator: Callable[..., Any], shapes: Sequence[tuple[int, ...]]) -> tvm.IRModule:
    inputs = [relax.Var(f"x{k}", relax.TensorType(shape, "float32")) for k, shape in enumerate(shapes)]
    builder: Any = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            out = builder.emit_output(operator(*inputs))
        builder.emit_func_output(out)
    net = stage_network(builder.finalize(), "llvm")
    found = schedule(net.graph, AnalyticCost(find_device("v100")), Options(variant="sequential")).schedule
    return lower_stages(net, unit_graph(net.graph, "fused"), found, LowerOptions())


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype("float32") / 4


def _mish(x: Any) -> Any:
    softplus = relax.op.log(relax.op.add(relax.const(1.0), relax.op.exp(x)))
    return relax.op.multiply(x, relax.op.tanh(softplus))


def _convolution(x: Any) -> Any:
    return relax.op.nn.silu(relax.op.nn.conv2d(x, relax.const(_weights(16, 8, 1, 1))))


def _gelu_of_product(x: Any) -> Any:
    return relax.op.nn.gelu(relax.op.matmul(x, relax.const(_weights(24, 40))))


@pytest.mark.parametrize(
    ("operator", "shape"),
    [
        (relax.op.nn.gelu, (2, 40)),
        (relax.op.nn.gelu_tanh, (2, 40)),
        (relax.op.nn.silu, (2, 40)),
        (relax.op.nn.softplus, (2, 40)),
        (_mish, (2, 40)),
        (relax.op.nn.softmax, (2, 40)),
        (lambda x: relax.op.nn.softmax(x, axis=1), (2, 5, 7)),
        (_convolution, (1, 8, 6, 6)),
        (_gelu_of_product, (3, 24)),
    ],
)
def test_programs_use_them(operator: Callable[..., Any], shape: tuple[int, ...]) -> None:
    """Kernels of staged programs have no elementary function left, whatever produces its argument; results are TVM's own."""
    program = staged(operator, [shape])
    assert not re.findall(r"T\.(exp|log|tanh|erf|sigmoid|pow)\(", program.script())
    x = np.random.default_rng(0).standard_normal(shape).astype("float32") * 3
    (got,) = Session(compile_stages(program)).run(x)
    plain: Any = relax.BlockBuilder()
    given = relax.Var("x", relax.TensorType(shape, "float32"))
    with plain.function("main", [given]):
        with plain.dataflow():
            out = plain.emit_output(operator(given))
        plain.emit_func_output(out)
    machine = relax.VirtualMachine(tvm.compile(plain.finalize(), "llvm"), tvm.cpu())
    np.testing.assert_allclose(got, machine["main"](tvm.runtime.tensor(x)).numpy(), rtol=2e-6, atol=2e-6)


def test_a_pool_keeps_nan_by_vectors() -> None:
    """The largest of a window is NaN if an element is, and no test for NaN is left that TVM has no vectors of."""
    x = np.random.default_rng(0).standard_normal((1, 16, 17, 17)).astype("float32")
    x[0, 3, 4, 4] = np.nan
    weights = np.eye(16, dtype="float32")[:, :, None, None]

    def pool(x: Any) -> Any:
        y = relax.op.nn.conv2d(relax.op.nn.max_pool2d(x, [3, 3], [2, 2]), relax.const(weights))
        return relax.op.nn.max_pool2d(y, [2, 2])

    program = staged(pool, [x.shape])
    assert "isnan" not in program.script()
    largest = sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2].max((4, 5))
    mixed = np.einsum("oi,bihw->bohw", weights[:, :, 0, 0], largest)
    wanted = sliding_window_view(mixed, (2, 2), (2, 3)).max((4, 5))
    np.testing.assert_array_equal(Session(compile_stages(program)).run(x)[0], wanted)
    assert np.isnan(wanted).any() and not np.isnan(wanted).all()


@pytest.mark.parametrize("divisor", [1.25, 0.0, -0.0])
def test_quotient_by_a_number(divisor: float) -> None:
    """A divisor that is one number is written into the kernel, and so are dividends and exponents."""
    x = np.array([[1.5, -2, 0, np.inf, 3]], "float32")
    program = staged(lambda v: relax.op.divide(v, relax.const(divisor)), [x.shape])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(Session(compile_stages(program)).run(x)[0], x / np.float32(divisor))


def test_number_over_a_tensor_and_powers_by_a_number() -> None:
    x = np.array([[1.5, -2, 0.25, np.inf, 3]], "float32")
    inverse = staged(lambda v: relax.op.divide(relax.const(1.0), v), [x.shape])
    np.testing.assert_array_equal(Session(compile_stages(inverse)).run(x)[0], 1 / x)
    for exponent in (2.0, 3.0, 2.5):
        power = staged(lambda v, e=exponent: relax.op.power(v, relax.const(e)), [x.shape])
        with np.errstate(all="ignore"):
            wanted = x ** np.float32(exponent)
        np.testing.assert_allclose(Session(compile_stages(power)).run(x)[0], wanted, rtol=3e-7)
