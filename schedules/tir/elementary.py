"""Elementary float32 functions as polynomials, without calling the C library.

Each function is an expression of additions, multiplications, comparisons and shifts of bits, which compilers vectorize for the
width of any processor. NaN and infinities are as C's library has them. Errors are in units in the last place (ulp), at most, with
fused multiplications and without; `tests/passes/test_stage_elementary.py` holds them.

========  ====  =================================================================================================
function   ulp  method
========  ====  =================================================================================================
exp          2  `2**n * p(x - n * log 2)`, p of degree 6; denormal results are rounded once
log          1  `n * log 2 + log m`, m in [sqrt(1/2), sqrt(2)); denormal arguments are scaled first
tanh         6  `x * p(x**2) / q(x**2)`, degrees 4 and 4, of x in [-9, 9]
erf          8  `x * p(x**2) / q(x**2)`, degrees 5 and 5, of x in [-3.92, 3.92]
1 + erf     16  `t * exp(p(t) - x**2)`, t = 1 / (1 + |x|/2) (Numerical Recipes, erfcc), down to x = -1; 2e-6 of it to -4
log(1 + x)   2  `log u + (x - (u - 1)) / u`, u the rounded sum
sigmoid      4  `1 / (1 + exp(-x))`; results below 2**-126 may be 0
SiLU         4  `x / (1 + exp(-x))`; results below 2**-120 may be 0
pow          1  squares and cubes as products; other powers are the C library's
sin, cos     2  `p(r)` for `x = n * pi/2 + r`; 2/pi has 189 bits (Payne and Hanek, SIGNUM 1983), products are of float64
========  ====  =================================================================================================

Tests for NaN compare bits: TVM has no vectors of its own test. The reduction of exp and log is that of Cephes (Moshier,
expf and logf): log 2 in two parts, the first of 12 bits. Coefficients are minimax fits of the relative error.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_cascade.schedules.tir import IF_THEN_ELSE

Value = Any  # a scalar expression of a kernel

_EXP = (
    1.381422160193324e-3, 8.36889911442995e-3, 4.166840389370918e-2, 0.1666651964187622, 0.4999999403953552, 1.0, 1.0,
)  # fmt: skip
_LOG = (
    -0.07634486258029938, 0.12761573493480682, -0.13160184025764465, 0.14201758801937103, -0.16623356938362122,
    0.20001226663589478, -0.2500081956386566, 0.3333333134651184,
)  # fmt: skip
_TANH = (
    (1.3355010430871062e-8, 2.060936276393477e-5, 3.4956063609570265e-3, 0.13381041586399078, 1.0),
    (7.776709480822319e-7, 3.285663842689246e-4, 2.5877052918076515e-2, 0.46714356541633606, 1.0),
)
_ERF = (
    (
        2.050758666882757e-6, 2.848865988198668e-4, 3.7643976975232363e-3, 5.274509638547897e-2, 0.19037392735481262,
        1.1283791065216064,
    ),
    (
        3.809884219663218e-5, 1.1622972087934613e-3, 1.4966761693358421e-2, 0.1140962764620781, 0.5020472407341003, 1.0,
    ),
)  # fmt: skip
_ERFC = (  # of t in log(erfc(a) / t) + a**2, t = 1 / (1 + a/2)
    0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
    -1.26551223,
)  # fmt: skip
_LARGEST_ERFC = 9.32  # an argument from which the power of its complement is 0
_SIN = (-1.951463200384751e-4, 8.332155644893646e-3, -0.16666655242443085)
_COS = (2.443241282890085e-5, -1.3887309469282627e-3, 4.166664555668831e-2)
_TWO_BY_PI = (  # 2/pi in parts of 27 bits, of which the product with a float32 is exact in float64
    0.6366197690367699, 3.330811459978378e-9, 1.615379759713065e-17, 2.83762200841452e-25, 9.372006385408637e-34,
    1.5900112874617742e-41, 1.6107127821431061e-49,
)  # fmt: skip
_LARGEST_TANH, _LARGEST_ERF = 9.0, 3.9192059040069580  # arguments, from which results are 1
_ROUND_64 = 1.5 * 2**52  # the same of float64, for numbers below 2**51
_ROUND = 12582912.0  # 1.5 * 2**23: added to a number below 2**22, it leaves the nearest integer in the lowest bits
_LOG2E = 1.4426950408889634
_LN2 = (0.693359375, -2.12194440e-4)  # their sum is log 2
_ONE = 0x3F800000  # the bits of 1.0
INFINITE = 0x7F800000  # the bits of infinity; those of the absolute value of NaN are more
_QUIET = 0x7FC00000  # the bits of a NaN: C99 has no constant of it
_SQRT_HALF = 0x3F3504F3  # the bits of sqrt(1/2)


class Rewriter:
    """Replaces the calls in a kernel's expressions; where values are kept is up to the subclasses."""

    forms: Mapping[str, Callable[..., Value]]
    conditions = 0  # conditional expressions around

    def held(self, expression: Value) -> Value:
        """Keep a value that is read several times; return the value to read."""
        raise NotImplementedError

    def argument(self, x: Value) -> Value | None:
        """Return a function's argument, kept if possible; None if the function is not replaced."""
        raise NotImplementedError

    def is_in_place(self) -> bool:
        """Return True if nothing can be kept for the expression."""
        raise NotImplementedError

    def product(self, product: Value, mutator: Any) -> Value:
        """Replace `x * sigmoid(x)` by one quotient."""
        for x, factor in ((product.a, product.b), (product.b, product.a)):
            is_call = isinstance(factor, tvm.ir.Call) and getattr(factor.op, "name", "") == "tirx.sigmoid"
            if is_call and is_float32(factor) and tvm_ffi.structural_equal(factor.args[0], x):
                given = self.argument(mutator.mutate(x))
                return product if given is None else self.held(_logistic(given, None))
        return mutator.default_mutate(product)

    def sum(self, total: Value, mutator: Any) -> Value:
        """Replace `1 + erf(x)` and `0.5 + 0.5 * erf(x)`, which lose their bits where erf is near -1."""
        for number, other in ((total.a, total.b), (total.b, total.a)):
            if not isinstance(number, tirx.FloatImm) or number.value not in (0.5, 1.0):
                continue
            x = _scaled_erf(other, number.value)
            given = None if x is None else self.argument(mutator.mutate(x))
            if given is not None:
                return self.held(_one_and_erf(given)) * _number(number.value)
        return mutator.default_mutate(total)

    def call(self, call: Value, mutator: Any) -> Value:
        """Rewrite a call's arguments, then the call."""
        is_condition = getattr(call.op, "name", "") == IF_THEN_ELSE
        self.conditions += is_condition
        made = mutator.default_mutate(call)
        self.conditions -= is_condition
        return self.function(made)

    def function(self, call: Value) -> Value:
        """Replace a call with arguments already rewritten."""
        name = getattr(call.op, "name", "")
        form = self.forms.get(name)
        if form is None or not is_float32(call):
            return call
        more = _one_and(call.args[0]) if name == "tirx.log" and not self.is_in_place() else None
        if more is not None:
            x = self.held(more)
            return self.held(_log1p(x, self.held(x + _number(1.0))))
        given = self.argument(call.args[0])
        expression = None if given is None else form(given, *call.args[1:])
        return call if expression is None else self.held(expression)


def _scaled_erf(value: Value, scale: float) -> Value | None:
    """Return x of `scale * erf(x)` in float32; None for another value."""
    factors = [value.a, value.b] if isinstance(value, tirx.Mul) else [value, _number(1.0)]
    for call, number in (factors, factors[::-1]):
        is_erf = isinstance(call, tvm.ir.Call) and getattr(call.op, "name", "") == "tirx.erf" and is_float32(call)
        if is_erf and isinstance(number, tirx.FloatImm) and number.value == scale:
            return call.args[0]
    return None


def is_float32(value: Value) -> bool:
    return str(getattr(value, "dtype", value.ty)) == "float32"


def _number(value: float) -> Value:
    return tirx.const(value, "float32")


def _named(value: Value, name: str, body: Callable[[Value], Value]) -> Value:
    """Return `body(v)` for a variable v that is computed once."""
    var: Any = tirx.Var(name, str(getattr(value, "dtype", value.ty)))
    return tirx.Let(var, value, body(var))


def _horner(coefficients: Sequence[float], x: Value) -> Value:
    """Return the polynomial whose coefficients begin with the highest power's."""
    value = _number(coefficients[0])
    for c in coefficients[1:]:
        value = value * x + _number(c)
    return value


def _clamped(x: Value, least: float, largest: float) -> Value:
    """Return x in [least, largest]; NaN stays."""
    low, high = _number(least), _number(largest)
    return _named(tirx.Select(x < low, low, x), "above", lambda above: tirx.Select(above > high, high, above))


def _bits(x: Value) -> Value:
    return tirx.reinterpret("int32", x)


def _float(bits: Value) -> Value:
    return tirx.reinterpret("float32", bits)


def _power(n: Value) -> Value:
    """Return 2**n for an integer n whose bits above the ninth are anything."""
    return _float(tirx.shift_left(n, 23) + _ONE)


def _reduced(x: Value, sign: float, body: Callable[[Value, Value], Value]) -> Value:
    """Return `body(p, n)` for `sign * x = n * log 2 + r`, p being e to the power of r; n in the lowest bits of an integer."""

    def reduced(bits: Value) -> Value:
        def rest(n: Value) -> Value:
            r = _number(sign) * x - n * _number(_LN2[0]) - n * _number(_LN2[1])
            return _named(r, "rest", lambda r: _named(_horner(_EXP, r), "p", lambda p: body(p, bits)))

        return _named(_float(bits) - _number(_ROUND), "n", rest)

    return _named(_bits(x * _number(sign * _LOG2E) + _number(_ROUND)), "bits", reduced)


def _exp(x: Value) -> Value:
    """Return e to the power of x. 2**n comes in two factors, as n is from -150 to 128."""

    def scaled(p: Value, n: Value) -> Value:
        return _named(tirx.shift_right(n, 1), "half", lambda half: p * _power(half) * _power(n - half))

    return _named(x, "x", lambda x: _named(_clamped(x, -104.0, 88.8), "bounded", lambda b: _reduced(b, 1.0, scaled)))


def _sigmoid(x: Value) -> Value:
    return _logistic(x, _number(1.0))


def _logistic(x: Value, dividend: Value | None) -> Value:
    """Return `dividend / (1 + exp(-x))`; None: x. The power is infinite for x below -88.4, which makes the quotient 0."""

    def quotient(x: Value) -> Value:
        def divided(p: Value, n: Value) -> Value:
            return (x if dividend is None else dividend) / (p * _power(n) + _number(1.0))

        return _named(_clamped(x, -88.8, 87.0), "bounded", lambda b: _reduced(b, -1.0, divided))

    return _named(x, "x", quotient)


def _one_and(value: Value) -> Value | None:
    """Return x of `1 + x`; None for another value."""
    if not isinstance(value, tirx.Add):
        return None
    for number, other in ((value.a, value.b), (value.b, value.a)):
        if isinstance(number, tirx.FloatImm) and number.value == 1.0:
            return other
    return None


def _log1p(x: Value, total: Value) -> Value:
    """Return `log(1 + x)` with what the sum `total`, a value in memory, lost by rounding."""
    lost = tirx.Select(total > _number(0.0), (x - (total - _number(1.0))) / total, _number(0.0))
    return _log(total) + tirx.Select(total < _number(2.0**24), lost, _number(0.0))


def _log(x: Value) -> Value:
    """Return the natural logarithm."""
    least = 2.0**-126

    def special(x: Value) -> Value:
        is_small = x < _number(least)

        def split(bits: Value) -> Value:
            n = tirx.shift_right(bits - _SQRT_HALF, 23)
            return _named(n, "n", lambda n: parts(n, _float(bits - tirx.shift_left(n, 23)) - _number(1.0)))

        def parts(n: Value, mantissa: Value) -> Value:
            exponent = n.astype("float32") - tirx.Select(is_small, _number(23.0), _number(0.0))
            return _named(
                exponent, "e", lambda e: _named(mantissa, "f", lambda f: _named(f * f, "z", lambda z: log(e, f, z)))
            )

        def log(e: Value, f: Value, z: Value) -> Value:
            small = _horner(_LOG, f) * f * z + e * _number(_LN2[1])
            return e * _number(_LN2[0]) + (f + (small - z * _number(0.5)))

        scaled = tirx.Select(is_small, x * _number(2.0**23), x)
        value = _named(_bits(scaled), "bits", split)
        infinite, missing = _number(float("inf")), _float(tirx.bitwise_or(_bits(x), _QUIET))
        finite = tirx.Select(x < infinite, value, infinite)
        return tirx.Select(x > _number(0.0), finite, tirx.Select(x == _number(0.0), _number(float("-inf")), missing))

    return _named(x, "x", special)


def _one_and_erf(x: Value) -> Value:
    """Return `1 + erf(x)`: the complement of erf at |x|, for positive x subtracted from 2."""

    def complement(x: Value, a: Value) -> Value:
        def value(t: Value) -> Value:
            power = _horner(_ERFC, t) - a * a
            return _named(
                power, "power", lambda power: _reduced(power, 1.0, lambda p, n: chosen(x, t * (p * _power(n))))
            )

        return _named(_number(1.0) / (_number(1.0) + _number(0.5) * a), "t", value)

    def chosen(x: Value, erfc: Value) -> Value:
        return _named(erfc, "erfc", lambda c: tirx.Select(x < _number(0.0), c, _number(2.0) - c))

    def bounded(x: Value) -> Value:
        size = _absolute(x)
        largest = _number(_LARGEST_ERFC)
        return _named(tirx.Select(size > largest, largest, size), "a", lambda a: complement(x, a))

    return _named(x, "x", bounded)


def _odd(fraction: tuple[Sequence[float], Sequence[float]], largest: float) -> Callable[[Value], Value]:
    """Return a function of `x * p(x**2) / q(x**2)` for x up to `largest`, with results from -1 to 1."""

    def value(x: Value) -> Value:
        def square(x: Value) -> Value:
            return _named(x * x, "z", lambda z: x * _horner(fraction[0], z) / _horner(fraction[1], z))

        def odd(x: Value) -> Value:
            quotient = _named(_clamped(x, -largest, largest), "bounded", square)
            return _named(quotient, "quotient", lambda y: _clamped(y, -1.0, 1.0))

        return _named(x, "x", odd)

    return value


def _power_of(x: Value, exponent: Value) -> Value | None:
    """Return the square or the cube as a product; None for another power."""
    if not isinstance(exponent, tirx.FloatImm) or exponent.value not in (2.0, 3.0):
        return None
    return _named(x, "x", lambda x: x * x if exponent.value == 2.0 else x * x * x)


def _wave(quarters: int) -> Callable[[Value], Value]:
    """Return the sine of x and `quarters` right angles.

    x is `n + f` right angles, f in [-1/2, 1/2]: a sum of products of x and parts of 2/pi. Of those from 1 to 2**53 the nearest
    multiple of 4 is subtracted, larger ones are multiples of 4. Their sum is exact, so is what is left without n, and the
    smaller products are added in order: no bit of f is lost where x is near a multiple of a right angle.
    """

    def wave(x: Value) -> Value:
        return _named(x.astype("float64"), "wide", lambda wide: products(x, wide, []))

    def products(x: Value, wide: Value, found: list[Value]) -> Value:
        if len(found) < len(_TWO_BY_PI):
            part = _double(_TWO_BY_PI[len(found)])
            return _named(wide * part, "product", lambda p: products(x, wide, [*found, p]))
        high = [tirx.Select(_absolute(p) < _double(1.0), _double(0.0), _modulo_4(p)) for p in found]
        low = [tirx.Select(_absolute(p) < _double(1.0), p, _double(0.0)) for p in found]
        return _named(
            _sum(high), "high", lambda h: _named(_bits_64(_sum([h, *low])), "turns", lambda n: angle(x, h, n, low))
        )

    def angle(x: Value, high: Value, turns: Value, low: Sequence[Value]) -> Value:
        n = tirx.reinterpret("float64", turns) - _double(_ROUND_64)
        r = (_sum([high - n, *low]) * _double(1.5707963267948966)).astype("float32")
        at = tirx.bitwise_and(turns.astype("int32") + quarters, 3)
        return _named(r, "r", lambda r: _named(r * r, "z", lambda z: _named(at, "at", lambda at: chosen(x, r, z, at))))

    def chosen(x: Value, r: Value, z: Value, at: Value) -> Value:
        sine = r + r * z * _horner(_SIN, z)
        cosine = _number(1.0) - z * _number(0.5) + z * z * _horner(_COS, z)
        value = tirx.Select(tirx.bitwise_and(at, 1) == 0, sine, cosine)
        signed = _float(tirx.bitwise_xor(_bits(value), tirx.shift_left(tirx.shift_right(at, 1), 31)))
        finite = tirx.Select(_absolute(x) < _number(float("inf")), signed, _number(float("nan")))
        return finite if quarters else tirx.Select(x == _number(0.0), x, finite)  # the sine of -0 is -0

    return lambda x: _named(x, "x", wave)


def _double(value: float) -> Value:
    return tirx.const(value, "float64")


def _bits_64(x: Value) -> Value:
    """Return the bits of `x + _ROUND_64`; the lowest bits equal the nearest integer's."""
    return tirx.reinterpret("int64", x + _double(_ROUND_64))


def _absolute(x: Value) -> Value:
    return tirx.abs(x)


def _sum(values: Sequence[Value]) -> Value:
    """Return the sum, added from the first on."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _modulo_4(p: Value) -> Value:
    """Return p minus its nearest multiple of 4; 0 from 2**53 on."""
    n = tirx.reinterpret("float64", _bits_64(p * _double(0.25))) - _double(_ROUND_64)
    return tirx.Select(_absolute(p) < _double(2.0**53), p - n * _double(4.0), _double(0.0))


FORMS: Mapping[str, Callable[..., Value]] = {
    "tirx.exp": _exp,
    "tirx.log": _log,
    "tirx.sigmoid": _sigmoid,
    "tirx.tanh": _odd(_TANH, _LARGEST_TANH),
    "tirx.erf": _odd(_ERF, _LARGEST_ERF),
    "tirx.pow": _power_of,
    "tirx.sin": _wave(0),
    "tirx.cos": _wave(1),
}
