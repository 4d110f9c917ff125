"""Compute input domains: numbers for which all readers are defined, such as none below 0 for a square root.

Random inputs are drawn from these domains (`runs.arrays`). The search follows an input through moves, dequantization,
casts and sums with constants, and no further.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm

from tvm_cascade.importers.index_inputs import MOVES, User, Users, users_of
from tvm_cascade.importers.interface import attach, io_spec
from tvm_cascade.passes.islands.reader import is_dequantize
from tvm_cascade.passes.main_rewriting import Value, constant_of
from tvm_cascade.tensor_spec import Domain

_ANY = Domain()
_NO_NEGATIVES = Domain(low=0)
_DEFINED: Mapping[str, Domain] = MappingProxyType(
    {
        "sqrt": _NO_NEGATIVES,
        "rsqrt": _NO_NEGATIVES,
        "log": _NO_NEGATIVES,
        "acos": Domain(-1, 1),
        "asin": Domain(-1, 1),
        "atanh": Domain(-1, 1),
        "acosh": Domain(low=1),
    }
)
_SAME = frozenset((*MOVES, "astype", "concat", "copy"))  # kinds whose results are elements of their first operand
_QUOTIENTS = frozenset(("divide", "floor_divide", "floor_mod", "mod"))
_SHIFTS = frozenset(("left_shift", "right_shift"))
_MOST_EXPONENT = 6  # of integers that are raised to a power
_BITS = 30  # of the largest power


def with_input_domains(mod: tvm.IRModule) -> tvm.IRModule:
    """Return `mod` with its input domains in the interface."""
    users, spec = users_of(mod), io_spec(mod)
    params = list(mod["main"].params)
    found = [
        s if s.extent is not None or (domain := _domain(p, users)) == _ANY else replace(s, domain=domain)
        for s, p in zip(spec.inputs, params, strict=True)
    ]
    return mod if tuple(found) == spec.inputs else attach(mod, replace(spec, inputs=tuple(found)))


def _domain(var: Value, users: Users) -> Domain:
    """Return the numbers for which all readers of `var` are defined; all numbers if there is no such number."""
    low, high, nonzero = -inf, inf, False
    for user in users.get(var, []):
        for k, operand in enumerate(getattr(user.call, "args", ())):
            if operand.same_as(var) or _holds(operand, var):
                one = _asked(user, k, users)
                low, high, nonzero = max(low, one.low), min(high, one.high), nonzero or one.nonzero
    return Domain(low, high, nonzero) if low <= high else _ANY


def _holds(operand: Any, var: Value) -> bool:
    return any(field.same_as(var) for field in getattr(operand, "fields", ()))


def _asked(user: User, position: int, users: Users) -> Domain:
    """Return the numbers accepted by a reader at the given operand position."""
    kind, call, made = user
    integer = "int" in str(getattr(call.args[position].ty, "dtype", ""))
    if kind in _DEFINED:
        return _DEFINED[kind]
    if (kind in _SAME or is_dequantize(call)) and position == 0:
        return _domain(made, users)
    if kind in ("add", "subtract"):
        return _shifted(kind, call, position, _domain(made, users))
    if kind in _QUOTIENTS:
        return _of_quotients(call, position, integer)
    if kind == "power":
        return _of_powers(call, position, integer)
    if kind in _SHIFTS and position == 1 and integer:
        return Domain(0, np.iinfo(str(call.args[0].ty.dtype)).bits - 1)
    return _ANY


def _shifted(kind: str, call: Value, position: int, domain: Domain) -> Domain:
    """Return the domain of an operand in a sum or difference with a constant; `domain` is the result's."""
    other = constant_of(call.args[1 - position])
    if other is None or not other.size or domain == _ANY or (kind == "subtract" and position == 1):
        return _ANY
    sign = 1 if kind == "add" else -1
    terms = sign * other.astype(np.float64)
    return Domain(domain.low - float(terms.min()), domain.high - float(terms.max()))


def _of_quotients(call: Value, position: int, integer: bool) -> Domain:
    """Return the domain of a dividend or a divisor: integers are divided by no 0; remainders wrap a few times."""
    if position == 1:
        return Domain(nonzero=integer)
    divisor = constant_of(call.args[1])
    if integer or divisor is None or "mod" not in str(call.op.name) or not np.isfinite(divisor).all():
        return _ANY
    most = 4 * float(np.abs(divisor).max(initial=0))
    return Domain(-most, most) if most else _ANY


def _of_powers(call: Value, position: int, integer: bool) -> Domain:
    """Return the domain of a base or an exponent: negative numbers have whole powers alone, integers no negative ones."""
    if position == 1:
        return Domain(0, _MOST_EXPONENT) if integer else Domain(-4, 4)
    exponent = constant_of(call.args[1])
    if integer:  # products that integers do not hold are no numbers of the reference
        most = _MOST_EXPONENT if exponent is None else float(exponent.max(initial=1))
        base = int(2 ** (_BITS / max(most, 1)))
        return Domain(-base, base)
    whole = exponent is not None and bool((exponent == np.floor(exponent)).all())
    return _ANY if whole else _NO_NEGATIVES
