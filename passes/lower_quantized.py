"""`LowerQuantized`: lowers quantized islands to integer operators that equal TFLite's reference kernels bit for bit.

The operators of a program (`program.operator`) are lowered one by one, by the function of a table that has their kind.
Requires a module as
`frontend.load` returns it, before other passes: FoldConstant would turn integer weights into floats, and
EliminateCommonSubexpr would share dequantizes between islands. Ensures that every lowered function is one dataflow block
in which every integer operator is a `call_tir` of a PrimFunc whose attributes describe the operator; views stay
`relax.reshape`. Islands that cannot be lowered stay float, and `float_remains` lists them with their cost. Functions with
control flow, side effects or symbolic shapes are not changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm_ffi import Object
from tvm_ffi.dataclasses import py_class

from tvm_cascade.passes.base import CascadePass, PassResult
from tvm_cascade.passes.float_remains import with_remains

# the modules below are imported to register their lowering functions
from tvm_cascade.passes.integer import (  # noqa: F401
    comparisons,
    convolution,
    elementwise,
    gathering,
    l2_normalization,
    log_softmax,
    lookup,
    pooling,
    prelu,
    reduction,
    roots,
    softmax,
    wide_numbers,
)
from tvm_cascade.passes.integer.chains import lower_chain
from tvm_cascade.passes.integer.data_movement import transpose_axes, transposed
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.expressions import attributes, dtype_of, name_of, number_of, shape_of
from tvm_cascade.passes.integer.requantize import lower_dequantize, lower_quantize, lower_sign
from tvm_cascade.passes.integer.signed import signed_variables
from tvm_cascade.passes.integer.task import Inverses, LoweringFunction, Output, Task, lowering_of
from tvm_cascade.passes.integer.untyped import Binding, Function, Module, Value, ir, relax
from tvm_cascade.passes.islands.reader import TRANSPOSE, is_boundary, read_operators
from tvm_cascade.passes.relax_functions import (
    bindings_of,
    is_call_tir,
    sequence,
    substitute,
    without_dead_code,
)
from tvm_cascade.passes.static_regions import has_blocks, loses_calls_out
from tvm_cascade.program.operator import Operator, Quantized
from tvm_cascade.program.operator import Value as Held
from tvm_cascade.program.quant import STORED_TYPES, NotLowered
from tvm_cascade.search_monitor import counted

LOG = logging.getLogger("tvm_cascade")
REAL_ATTR = "cascade_real_operators"
SPREAD_ATTR = "cascade_spread"  # of `main`: transposed convolutions are one operator each, over an input spread apart
LIKE_ATTR = "cascade_like"  # of `main`: the library whose rounding is taken, where it is not LiteRT
TFLM = "tflm"  # TensorFlow Lite Micro: fully connected layers are rounded twice
_INVERSE = "inverse scales"  # its first line where floats are multiplied by inverse scales, then pairs of `Inverses`
_CLAMPED = ("max_pool2d", "stored_average")  # operators on stored integers whose functions clamp
SOURCE_ATTR = "cascade.source"  # module attribute: `Source`
EXTERNAL_ATTR = "external_mods"  # module attribute of TVM's `RunCodegen`: libraries, of which no two compare equal


@py_class("tvm_cascade.Source")
class Source(Object):
    """A module as it was before it was lowered: graph substitutions rewrite quantized operators, not integer ones."""

    mod: tvm.IRModule


@dataclass(frozen=True)
class LowerQuantized(CascadePass):
    """Turn quantized islands into integer operators, in every function of the module.

    Works on every module: functions that it cannot read are not changed, and the logger `tvm_cascade` gives the reason.
    A lowered module has its `Source` as an attribute, which `Cascade` removes.

    Before, what a single operator of a file has become in Relax (`passes.islands`)::

        a, v = real numbers of x and of the weights w
        b = R.nn.conv2d(a, v, data_layout="NHWC", kernel_layout="HWIO")
        c = R.quantize(b, scale_c, zero_c, out_dtype="int8")

    After, with no float tensor left::

        c = R.call_tir(cls.conv2d, (x, w, bias, multipliers, shifts), out_ty=R.Tensor((1, 8, 8, 4), "int8"))
    """

    def call(self, mod: Module) -> PassResult:
        """Return the lowered module, with `mod` as the source attribute."""
        result = PassResult.compare(mod, lowered(mod))
        if not result.modified or dict(mod.attrs or {}).keys() & {SOURCE_ATTR, EXTERNAL_ATTR}:
            return result
        return PassResult(result.mod.with_attr(SOURCE_ATTR, Source(mod)), True)


def lowered(mod: Module) -> Module:
    """Copy `mod` with the quantized islands of every readable function lowered."""
    made = mod.clone()
    for gv, func in mod.functions_items():
        if not isinstance(func, relax.Function):
            continue
        reason = why_not_read(func) or _why_not_rebuilt(mod, func)
        if reason is None:
            try:
                made = _Lowering(made, gv).run()
            except NotLowered as refusal:
                reason = str(refusal)
        if reason is not None and holds_quantized(func):
            LOG.info("%s: its quantized operators are left to TVM: %s", gv.name_hint, reason)
    return made


def why_not_read(func: Function) -> str | None:
    """Explain why a function's islands cannot be rebuilt in a single dataflow block; None if they can."""
    if not isinstance(func.body, relax.SeqExpr):
        return "its body is no sequence of bindings"
    if not all(isinstance(block, relax.DataflowBlock) for block in func.body.blocks):
        return "it holds control flow or side effects, whose order a rebuilt block would lose"
    if not all(isinstance(b, relax.VarBinding) for b in bindings_of(func)):
        return "it checks shapes when it runs"
    if relax.analysis.defined_symbolic_vars(func) or relax.analysis.free_symbolic_vars(func):
        return "its shapes are symbolic"
    return None


def _why_not_rebuilt(mod: Module, func: Function) -> str | None:
    """Explain why TVM could not build a function with all bindings in a dataflow block; None if it can."""
    calls = (b.value for b in bindings_of(func) if is_call_tir(b.value))
    blockless = (c.args[0].name_hint for c in calls if not has_blocks(mod[c.args[0]]))
    return next((f"the code of {name} has no blocks" for name in blockless), None)


def holds_quantized(func: Function) -> bool:
    """Return True if a function quantizes or dequantizes anything, in branches too."""
    calls: list[Value] = []
    relax.analysis.post_order_visit(func, calls.append)
    return any(is_boundary(c) for c in calls)


def with_real_operators(mod: Module, inverses: Inverses | None = None) -> Module:
    """Copy `mod` with `main` marked by `REAL_ATTR`: float arithmetic defines the quantized operators, as in ONNX
    and PyTorch; in TFLite arithmetic on the stored integers does. `inverses`: floats are multiplied by the inverse of a
    scale, as in PyTorch alone.
    """
    mod = mod.clone()
    pairs = () if inverses is None else (f"{scale.hex()} {inverse.hex()}" for scale, inverse in inverses.items())
    mod["main"] = mod["main"].with_attr(REAL_ATTR, "" if inverses is None else "\n".join([_INVERSE, *pairs]))
    return mod


def _inverses(mark: object) -> Inverses | None:
    """Return the inverse scales of a mark; None if floats are divided by scales."""
    head, *lines = str(mark or "").split("\n")
    pairs = (line.split() for line in lines)
    return {float.fromhex(s): float.fromhex(inverse) for s, inverse in pairs} if head == _INVERSE else None


def with_inputs_spread(mod: Module) -> Module | None:
    """Copy `mod` with `main` marked by `SPREAD_ATTR`; None if `products_of_inputs_spread` are 0."""
    if not products_of_inputs_spread(mod):
        return None
    mod = mod.clone()
    mod["main"] = mod["main"].with_attr(SPREAD_ATTR, 1)
    return mod


def products_of_inputs_spread(mod: Module) -> int:
    """Return the products of all transposed convolutions of `main` over inputs spread apart; 0 if `main` is marked, or not
    quantized.
    """
    main: Any = next((f for v, f in mod.functions_items() if v.name_hint == "main"), None)
    if not isinstance(main, relax.Function) or SPREAD_ATTR in attributes(main) or why_not_read(main) is not None:
        return 0
    calls = [b.value for b in bindings_of(main) if name_of(b.value) == "relax.nn.conv2d_transpose"]
    if not calls or not holds_quantized(main):
        return 0
    sizes = ((prod(shape_of(c)), shape_of(c.args[1]), int(c.attrs.groups)) for c in calls)
    return sum(outputs * prod(weights) // (weights[1] * groups) for outputs, weights, groups in sizes)


def with_rounding_like(mod: Module, library: str) -> Module:
    """Copy `mod` with `main` marked by `LIKE_ATTR`: operators round as in `library`. If `library` is empty,
    return `mod`.
    """
    if not library:
        return mod
    mod = mod.clone()
    mod["main"] = mod["main"].with_attr(LIKE_ATTR, library)
    return mod


def holds_integers(mod: Module) -> bool:
    """Return True if any parameter or variable of `main` has a type of quantized values (`STORED_TYPES`)."""
    main = mod["main"]
    return any(dtype_of(v) in STORED_TYPES for v in (*main.params, *(b.var for b in bindings_of(main))))


def _lowerings(operator: Operator) -> tuple[LoweringFunction, ...]:
    """Return the functions that may lower an operator, the best first; none if the operator is left to Relax."""
    function = lowering_of(operator)
    own = () if function is None else (function,)
    if operator.quant is None:
        return own
    return (*((lower_chain, *own) if operator.explicit else (*own, lower_chain)), lower_quantize)


class _Lowering:
    """Rebuilds a single function binding by binding, with its islands lowered."""

    def __init__(self, mod: Module, gv: Value) -> None:
        self.mod, self.gv, self.func = mod, gv, mod[gv]
        self.bindings = bindings_of(self.func)
        mark = attributes(self.func).get(REAL_ATTR)
        bound = {b.var: b.value for b in self.bindings}
        operators = read_operators(bound.items())
        self.signed = signed_variables(self.func, self.bindings, operators)
        self.operators = read_operators(bound.items(), self.signed) if self.signed else operators
        self.definitions, self.real, self.inverses = bound, mark is not None, _inverses(mark)
        self.twice = attributes(self.func).get(LIKE_ATTR) == TFLM
        self.spread = SPREAD_ATTR in attributes(self.func)
        self.clips = self._clips_of_islands()
        self.refused: dict[Value, str] = {}

    def run(self) -> Module:
        name = self.gv.name_hint
        others = {gv: func for gv, func in self.mod.functions.items() if gv.name_hint != name}
        builder = relax.BlockBuilder(tvm.IRModule(others))
        renamed = _Values({p: p for p in self.func.params}, self._lower_floats)
        self.emitter = Emitter(builder, renamed)
        swallowed = {clip.var for clip in self.clips.values()}
        private = "global_symbol" not in attributes(self.func)
        with builder.function(name, list(self.func.params), attrs=self._attrs(), private=private):
            with builder.dataflow():
                for place, binding in enumerate(counted("operators lowered", self.bindings)):
                    if binding.var in swallowed and binding.var in renamed:
                        continue
                    if _may_be_float(binding.var):
                        renamed.waiting[binding.var] = place
                    else:
                        self._lower(place, renamed)
                result = builder.emit_output(substitute(self.func.body.body, renamed))
            builder.emit_func_output(result)
        return self._finish(builder.finalize(), renamed)

    def _lower_floats(self, wanted: Value, renamed: _Values) -> None:
        """Emit a waiting value, after all waiting values that it is computed from. The interrupted lowering then continues."""
        emitter, found, stack = self.emitter, set[int](), [wanted]
        while stack:
            place = renamed.waiting.pop(stack.pop(), None)
            if place is not None:
                found.add(place)
                stack.extend(relax.analysis.free_vars(self.bindings[place].value))
        interrupted = emitter.name, emitter.place
        for place in sorted(found):
            self._lower(place, renamed)
        emitter.name, emitter.place = interrupted

    def _lower(self, place: int, renamed: _Values) -> None:
        """Emit the lowered form of a single binding, or a copy of a binding without a lowered form."""
        emitter, binding = self.emitter, self.bindings[place]
        clip = self.clips.get(binding.var)
        last = clip.var if clip is not None else binding.var
        emitter.name, emitter.place = last.name, place
        try:
            lowered = self._lowered(binding, last, clip, emitter)
        except NotLowered as reason:
            self._refuse(last, str(reason))
            lowered = None
        if lowered is not None:
            renamed[binding.var] = renamed[last] = lowered
            return
        emitter.name = binding.var.name
        renamed[binding.var] = self._copied(binding, emitter, renamed)

    def _copied(self, binding: Binding, emitter: Emitter, renamed: _Values) -> Value:
        """Emit a copy of a binding. It reads and writes uint8 as in the file; conversions from and to int8 surround it."""
        value = substitute(binding.value, renamed)
        if not isinstance(value, relax.Tuple):  # what reads a tuple knows how its fields are stored
            signed = [v for v in relax.analysis.free_vars(binding.value) if v in self.signed]
            value = substitute(value, {renamed[v]: lower_sign(renamed[v], emitter) for v in signed})
        made = emitter.emit(value)
        return lower_sign(made, emitter) if binding.var in self.signed else made

    def _lowered(self, binding: Binding, last: Value, clip: Binding | None, emitter: Emitter) -> Value | None:
        """Return the lowered form of a binding's value; None if the binding is to be copied unchanged."""
        value, held = binding.value, self.operators.of(binding.var)
        if isinstance(value, (relax.Var, ir.GenericConst)):
            return emitter.new(value)
        if isinstance(held, Held) and held.refusal:
            raise NotLowered(held.refusal)
        if isinstance(held, Quantized) and isinstance(value, relax.Call):
            return self._dequantized(held, emitter)
        operator = self.operators.operator(binding.var)
        if operator is None:
            return None
        lowerings = _lowerings(operator)
        if not lowerings:
            return None
        output = Output.of(operator, self.real, self.inverses)
        if clip is not None:
            output = output.within(*(int(number_of(a)) for a in clip.value.args[1:3]))
        if output.is_one_value:
            return emitter.filled(shape_of(last), output.hi, output.dtype)
        lowered = self._by_first(lowerings, Task(operator, output, emitter, self.real, self.twice, self.spread))
        if lowered is None:
            return None
        for move in reversed(operator.moves):
            if move.kind == TRANSPOSE:
                lowered = transposed(emitter, emitter.reshape(lowered, move.value(0).shape), transpose_axes(move))
        return emitter.reshape(lowered, shape_of(last))

    def _by_first(self, lowerings: Sequence[LoweringFunction], task: Task) -> Value:
        """Return the result of the first function that lowers an operator. If real numbers stay float, record why."""
        reasons = []
        for function in lowerings:
            try:
                lowered = function(task)
            except NotLowered as reason:
                reasons.append(reason)
                continue
            if function is lower_quantize:
                self._refuse(task.operator.output.source, str(reasons[0]))
            return lowered
        raise reasons[0]

    def _dequantized(self, stored: Quantized, emitter: Emitter) -> Value | None:
        """Lower real numbers that no quantized operator reads: dead code, outputs, and operands of operators that stay float."""
        if stored.is_constant or stored.dtype not in STORED_TYPES or stored.scale.size != 1:
            return None
        return lower_dequantize(stored, emitter)

    def _refuse(self, value: Value, reason: str) -> None:
        """Record in `refused` a `reason` for `value`, and for the float tensors that it is computed from."""
        if not isinstance(value, relax.Var) or value in self.refused or not dtype_of(value).startswith("float"):
            return
        self.refused[value] = reason
        definition: Any = self.definitions.get(value)
        for operand in definition.args if isinstance(definition, relax.Call) else ():
            self._refuse(operand, reason)

    def _clips_of_islands(self) -> dict[Value, Binding]:
        """Return every integer clip that is the only reader of a quantized operator or pool, by the variable read."""
        uses: dict[Value, int] = {}
        for expr in (*(b.value for b in self.bindings), self.func.body.body):
            for var in relax.analysis.free_vars(expr):
                uses[var] = uses.get(var, 0) + 1
        found = {}
        for binding in self.bindings:
            if name_of(binding.value) != "relax.clip" or dtype_of(binding.var) not in STORED_TYPES:
                continue
            source = binding.value.args[0]
            operator = self.operators.operator(source)
            clamps = operator is not None and (operator.quant is not None or operator.kind in _CLAMPED)
            if clamps and uses.get(source) == 1:
                found[source] = binding
        return found

    def _attrs(self) -> dict[str, object]:
        return {k: v for k, v in attributes(self.func).items() if k != "global_symbol"}

    def _finish(self, mod: Module, renamed: _Values) -> Module:
        mod = without_dead_code(self._in_place(mod))
        if loses_calls_out(self.mod, mod):
            raise NotLowered("the result of a call out of TVM is unused: the call would be removed as dead code")
        reasons: dict[str, str] = {}
        for old, reason in self.refused.items():
            new = dict.get(renamed, old)
            if new is not None and isinstance(new, relax.Var):
                reasons[new.name] = reason
        mod[self.gv] = with_remains(mod[self.gv], reasons)
        return mod.with_attrs(attributes(self.mod))

    def _in_place(self, mod: Module) -> Module:
        """Return `mod` with the new function under the original global variable, which other functions call."""
        name = self.gv.name_hint
        others = {gv: func for gv, func in mod.functions.items() if gv.name_hint != name}
        return tvm.IRModule({**others, self.gv: self._in_order(mod[name])})

    def _in_order(self, func: Function) -> Function:
        """Return the new function with bindings in the order of their originals, outputs last."""
        places, end = self.emitter.places, len(self.bindings)
        bindings = sorted(bindings_of(func), key=lambda b: places.get(b.var, end))
        body = sequence([relax.DataflowBlock(bindings)], func.body.body)
        return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)


class _Values(dict[Value, Value]):
    """Values of the new function by variables of the old function. Float values are computed when first read.

    Most floats of a quantized network lie inside islands, which disappear: such floats are never copied.
    """

    def __init__(self, known: Mapping[Value, Value], compute: Callable[[Value, _Values], None]) -> None:
        super().__init__(known)
        self.waiting: dict[Value, int] = {}  # variables of the old function that are computed on demand: their bindings
        self._compute = compute

    def get(self, key: Value, default: Any = None) -> Any:
        """Return the value of `key`; compute it first if it waits."""
        if key in self.waiting:
            self._compute(key, self)
        return super().get(key, default)


def _may_be_float(var: Value) -> bool:
    """Return True for a tensor of floats, and for a tuple, which may hold floats."""
    dtype = dtype_of(var)
    return dtype == "" or dtype.startswith(("float", "bfloat"))
