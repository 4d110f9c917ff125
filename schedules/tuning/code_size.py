"""Code bytes of a plan, estimated from its kernels: equal kernels are emitted once, and count once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import frexp
from typing import Any

import tvm_ffi

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cores.core import Core
from tvm_cascade.schedules.driver.calls import BuiltKernel
from tvm_cascade.schedules.driver.lower_plan import Tables
from tvm_cascade.schedules.driver.merge_kernels import MergeChoice, steps_of
from tvm_cascade.schedules.driver.places import Flash
from tvm_cascade.schedules.rules.elementary import polynomials_of
from tvm_cascade.schedules.tir import PrimFunc, collect, ir, tirx
from tvm_cascade.schedules.tuning.kernel_cost import kernel_cost
from tvm_cascade.search_monitor import counted

PER_STEP = 80  # bytes of the driver for a function that a segment of several runs by steps: 76 to 89 in four networks
PER_LOOP = 45  # for one that a loop of its own calls
PER_CALL_ALONE = 33  # for one that is called once, in no loop
ARGUMENT = 4  # bytes of a constant that the driver passes
COPIED = 64  # bytes of an input or output at most that compilers copy without a call
SOFT_ELEMENTARY = 2_300  # bytes of the library's elementary functions without float hardware, beside all its arithmetic
POLYNOMIAL = 240  # of an elementary function that kernels compute (`rules.elementary`): 224 to 352 on Cortex-M4
VECTOR_POLYNOMIAL = 550  # the same with MVE, in a vector loop and its scalar rest: 512 to 628 on Cortex-M55
_ELEMENTARY: Mapping[str, int] = {  # bytes of newlib's functions where hardware computes floats: means of Cortex-M4 and M55
    "exp": 710, "sigmoid": 710, "log": 680, "tanh": 1_000, "erf": 2_630, "pow": 2_040, "sin": 3_030, "cos": 3_010,
}  # fmt: skip
FLOAT_CODE = 1.4  # of kernels of floats: 1.2 to 1.7 in four networks on Cortex-M4, most where taps are written out
VECTOR_FLOAT_CODE = 1.8  # of kernels of floats with MVE: four convolutions and three depthwise ones, 1.4 to 2.4
ELEMENTWISE = 0.16  # of what `Core.code_size` adds, in scalar kernels of integers without products
ONCE_ROUNDED = 0.6  # the same with products that are scaled by a high half alone, rounded once
SOFT_FLOAT_CODE = 0.5  # the same with floats and no hardware for them: calls
VECTOR_ELEMENTWISE = 4.0  # the same with MVE: loops have a vector form and a scalar one, 2 to 5 in chains of operators
SHARED_CODE = 0.65  # of kernels that are called several times in no loop: compilers make a copy for constant arguments
_ROUNDED = frozenset({"tirx.tc_smmlar", "tirx.tc_smlalh"})  # products whose high half is rounded: several instructions
_PRODUCT, _HIGH_HALF = "tirx.tc_mla", "tirx.tc_smmla"
_OPERATIONS: Mapping[Any, str] = {
    tirx.Add: "add", tirx.Sub: "subtract", tirx.Mul: "multiply", tirx.Div: "divide", tirx.Min: "compare", tirx.Max: "compare",
    tirx.LT: "compare", tirx.LE: "compare", tirx.GT: "compare", tirx.GE: "compare", tirx.EQ: "equal", tirx.NE: "equal",
}  # fmt: skip
_FUNCTION = {"sigmoid": "exp"}  # what is computed by another one


def weight_bytes(kernels: Sequence[BuiltKernel | None]) -> int:
    """Return the bytes of weights and tables for a plan that calls `kernels` (None for views); equal constants count
    once, as in flash.
    """
    flash = Flash()
    for kernel in kernels:
        for constant in (c for variant in (kernel.variants if kernel else ()) for c in variant.constants):
            flash.add("", constant)
    return len(flash.data)


def code_bytes(
    plan: Plan, kernels: Sequence[BuiltKernel | None], core: Core, choice: MergeChoice[int] | None = None
) -> int:
    """Return the estimated code bytes of `plan`, which calls `kernels` (by operator, None for views).

    Kernels take the analytic model's bytes (`kernel_cost`), times `Core.code_size` (`_core_factor`). The compiler
    inlines kernels with a single call in no loop, and drops the constant arguments of kernels with several. The driver
    takes its tables, and for every function `PER_STEP`, `PER_LOOP` or `PER_CALL_ALONE`. Kernels that `choice` merges count
    once, and calls pass the constants that differ. What the image has beside the network is `Core.image_bytes`.
    """
    alone = {o for s in plan.segments if len(s.trace) == 1 for o in s.ops}
    calls, distinct, looped = Counter[int](), dict[int, PrimFunc](), set[int]()
    steps = steps_of(plan) if choice else Counter[int]()
    executed = Counter[int]()
    for o, kernel in enumerate(kernels):
        for _, func in kernel.functions("") if kernel else ():
            key = _key(func)
            distinct[key] = func
            calls[key] += 1
            executed[key] += steps[o]
            looped |= set() if o in alone else {key}
    arguments = 0
    for group in choice(distinct, executed) if choice else ():
        arguments += sum(ARGUMENT * len(own) * calls[key] for key, own in group.arguments.items())
        looped.add(group.key)  # as compilers treat it: neither inlined nor copied
        for key in [*group.arguments][1:]:
            del distinct[key]
    inlined = {key for key, times in calls.items() if times == 1} - looped
    shares = {key: SHARED_CODE for key, times in calls.items() if times > 1 and key not in looped}
    functions = counted("bytes of code", list(distinct.items()))
    size = sum(function_bytes(f, core, key in inlined) * shares.get(key, 1.0) for key, f in functions)
    driver = Tables(plan).bytes + _call_bytes(plan, kernels)
    ends = (plan.graph.tensors[t] for t in (*plan.graph.inputs, *plan.graph.outputs))
    copy = core.image_bytes.get("copy", 0) if any(t.bytes > COPIED for t in ends) else 0
    beside = core.image_bytes["start"] + copy + _library_bytes(distinct.values(), core)
    return round(size) + driver + arguments + beside


def _call_bytes(plan: Plan, kernels: Sequence[BuiltKernel | None]) -> int:
    """Return the estimated bytes of the driver's code: a share for every function of every operator."""
    total = 0
    for segment in plan.segments:
        functions = [len(list(k.functions(""))) for o in segment.ops if (k := kernels[o]) is not None]
        stepwise = PER_LOOP if sum(functions) == 1 else PER_STEP
        total += sum(functions) * (PER_CALL_ALONE if len(segment.trace) == 1 else stepwise)
    return total


def _key(func: PrimFunc) -> int:
    """Return the hash of a kernel's code, whatever its operator is called."""
    return tvm_ffi.structural_hash(func.without_attr("global_symbol"))


def function_bytes(func: PrimFunc, core: Core, inlined: bool = False) -> float:
    """Return the estimated bytes of a kernel: instructions of an FPU and of vectors of floats take 4 bytes each, and a
    kernel that is `inlined` has no entry.
    """
    of_floats = any("float" in str(load.ty) for load in collect(func.body, ir.TensorLoad))
    wide = VECTOR_FLOAT_CODE if core.mve else FLOAT_CODE
    by_core = 1 + (core.code_size - 1) * _core_factor(func, core, of_floats)
    return kernel_cost(func, inlined).bytes * (wide if core.fpu and of_floats else 1) * by_core


def _core_factor(func: PrimFunc, core: Core, of_floats: bool) -> float:
    """Return the share of `Core.code_size` that a kernel takes: all of it where products are summed up and scaled."""
    local = bool(collect(func.body, tirx.AllocBuffer))
    if core.mve:
        return 1 if of_floats or local else VECTOR_ELEMENTWISE
    if of_floats:
        return 1 if core.fpu else SOFT_FLOAT_CODE
    called = {str(getattr(call.op, "name", "")) for call in collect(func.body, ir.Call)} if local else set[str]()
    if called & _ROUNDED:
        return 1
    if _HIGH_HALF in called:
        return ONCE_ROUNDED
    return 1 if _PRODUCT in called else ELEMENTWISE


def _library_bytes(functions: Iterable[PrimFunc], core: Core) -> int:
    """Return the estimated bytes that float kernels take beside their own instructions: elementary functions, of the
    compiler's library or polynomials, and without float hardware their arithmetic.
    """
    bodies = [func.body for func in functions]
    computed = [call for body in bodies for call in collect(body, ir.Call) if "float" in str(call.ty)]
    named = [str(getattr(call.op, "name", "")).rpartition(".")[2] for call in computed]
    called = [name for name in named if name in _ELEMENTARY]
    if core.fpu:
        polynomials = [name for name in called if name in polynomials_of(core)]
        linked = {_FUNCTION.get(name, name) for name in called if name not in polynomials}
        inlined = len(polynomials) * (VECTOR_POLYNOMIAL if core.mve else POLYNOMIAL)
        return inlined + sum(_ELEMENTARY[name] for name in linked)
    used = {name for body in bodies for name in _soft_operations(body)}
    bytes_of = core.image_bytes
    if called:
        return SOFT_ELEMENTARY + sum(n for name, n in bytes_of.items() if name not in ("start", "copy"))
    shared = bytes_of.get("common", 0) if used - {"compare", "equal", "to_integer"} else 0
    return shared + sum(bytes_of.get(name, 0) for name in used)


def _soft_operations(body: Any) -> Iterator[str]:
    """Yield the operations on floats in a kernel, as `Core.image_bytes` names them; a quotient by a power of two is a
    product.
    """
    for kind, name in _OPERATIONS.items():
        for made in collect(body, kind):
            if "float" in str(made.a.ty):
                half = name == "divide" and isinstance(made.b, tirx.FloatImm) and frexp(made.b.value)[0] == 0.5
                yield "multiply" if half else name
    for cast in collect(body, tirx.Cast):
        given, made = str(cast.value.ty), str(cast.ty)
        if "float" in made and "float" not in given:
            yield "from_unsigned" if "uint" in given or "bool" in given else "from_signed"
        if "float" in given and "float" not in made:
            yield "to_integer"
