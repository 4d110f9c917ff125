"""Code bytes of a plan, estimated from its kernels: equal kernels are emitted once, and count once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import tvm_ffi

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cores.core import Core
from tvm_cascade.schedules.driver.calls import BuiltKernel
from tvm_cascade.schedules.driver.merge_kernels import MergeChoice, steps_of
from tvm_cascade.schedules.driver.places import Flash
from tvm_cascade.schedules.rules.elementary import polynomials_of
from tvm_cascade.schedules.tir import PrimFunc, collect, ir, tirx
from tvm_cascade.schedules.tuning.kernel_cost import kernel_cost
from tvm_cascade.schedules.tuning.tune import PER_CALL
from tvm_cascade.search_monitor import counted

START_UP = 1_550  # bytes of main, start-up code, reports, memcpy and memset: 1,480 to 1,700 on five cores
PER_CALL_ALONE = 36  # bytes of code of the driver for a kernel that is called once, in no loop
ARGUMENT = 4  # bytes of a constant that the driver passes
SOFT_FLOAT = 2_000  # bytes of the library's arithmetic of floats, on cores without hardware for it
SOFT_ELEMENTARY = 4_000  # beside it, of its elementary functions there
POLYNOMIAL = 240  # of an elementary function that kernels compute (`rules.elementary`): 224 to 352 on Cortex-M4
VECTOR_POLYNOMIAL = 550  # the same with MVE, in a vector loop and its scalar rest: 512 to 628 on Cortex-M55
_ELEMENTARY: Mapping[str, int] = {  # bytes of newlib's functions where hardware computes floats: means of Cortex-M4 and M55
    "exp": 710, "sigmoid": 710, "log": 680, "tanh": 1_000, "erf": 2_630, "pow": 2_040, "sin": 3_030, "cos": 3_010,
}  # fmt: skip
FLOAT_CODE = 1.4  # of kernels of floats: 1.2 to 1.7 in four networks on Cortex-M4, most where taps are written out
VECTOR_FLOAT_CODE = 1.8  # of kernels of floats with MVE: four convolutions and three depthwise ones, 1.4 to 2.4
ELEMENTWISE = 0.16  # of what `Core.code_size` adds, in scalar kernels of integers without sums: near Cortex-M4's bytes
VECTOR_ELEMENTWISE = 4.0  # the same with MVE: loops have a vector form and a scalar one, 2 to 5 in chains of operators
SHARED_CODE = 0.65  # of kernels that are called several times in no loop: compilers make a copy for constant arguments
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

    Kernels take the analytic model's bytes (`kernel_cost`), times `Core.code_size` (`ELEMENTWISE`). The compiler
    inlines kernels with a single call in no loop, and drops the constant arguments of kernels with several. The driver and
    the start-up code are fixed allowances: `START_UP`, and for every kernel `PER_CALL`, or `PER_CALL_ALONE` if it is
    called once. Kernels that `choice` merges count once, and calls pass the constants that differ.
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
    driver = sum(PER_CALL_ALONE if o in alone else PER_CALL for o, kernel in enumerate(kernels) if kernel)
    return round(size) + START_UP + driver + arguments + _library_bytes(distinct.values(), core)


def _key(func: PrimFunc) -> int:
    """Return the hash of a kernel's code, whatever its operator is called."""
    return tvm_ffi.structural_hash(func.without_attr("global_symbol"))


def function_bytes(func: PrimFunc, core: Core, inlined: bool = False) -> float:
    """Return the estimated bytes of a kernel: instructions of an FPU and of vectors of floats take 4 bytes each, and a
    kernel that is `inlined` has no entry.
    """
    of_floats = any("float" in str(load.ty) for load in collect(func.body, ir.TensorLoad))
    wide = VECTOR_FLOAT_CODE if core.mve else FLOAT_CODE
    wider = of_floats or bool(collect(func.body, tirx.AllocBuffer))
    elementwise = VECTOR_ELEMENTWISE if core.mve else ELEMENTWISE
    by_core = 1 + (core.code_size - 1) * (1 if wider else elementwise)
    return kernel_cost(func, inlined).bytes * (wide if core.fpu and of_floats else 1) * by_core


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
    loaded = [load for body in bodies for load in collect(body, ir.TensorLoad) if "float" in str(load.ty)]
    return (SOFT_ELEMENTARY if called else 0) + (SOFT_FLOAT if computed or loaded else 0)
