"""Lowering of a unidirectional int8 LSTM with int16 cell state to a single kernel that loops over the time steps.

For every unit and gate `k`, all in the arithmetic of TFLite's `EvalInteger8x8_16` and of gemmlowp's 16-bit fixed point:

    a_k = sat16(MBQM(W_k x + p_k))                       in Q3.12
    a_k = sat16(a_k + MBQM(R_k h + q_k))                 from the second step on: a state of zero adds nothing
    c   = sat16(RDivPOT(f c, 15) + RDivPOT(i g, 30 + e)) with i, f = sigmoid(a_k), g = tanh(a_k), 2^e the scale of c
    h   = sat8(MBQM(o tanh(c)) + z)                      which is the step's output, or with a projection V
    h'  = sat8(MBQM(V h + v) + z')                       is

`p_k` is the bias less the input's zero point times the sum of `W_k`, `q_k` minus the state's times the sum of `R_k`. A
coupled input gate is `1 - f`. The previous output is the state, so only the cells need memory of their own, and `h` of one
step before a projection. Where a network keeps its states between calls, the first step reads them, and the cells that the
last one leaves are an output.

Both functions need `E(v) = exp(-v)` of `|a|` (`2 |a|` for tanh): a table for v up to 1/4, one product for each higher bit,
then three Newton steps for `1 / (1 + E)` or `(1 - E) / (1 + E)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tvm_cascade.passes.integer import fixed_point as fp
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.expressions import dtype_of, shape_of
from tvm_cascade.passes.integer.fixed_point import i32
from tvm_cascade.passes.integer.statements import loop, one_block, sequence, store
from tvm_cascade.passes.integer.untyped import Function, Scalar, Value, ir, relax, s_tir, tirx

GATE_BITS = 12  # fraction bits of a gate before its sigmoid or tanh
LARGEST_CELL = 4  # most integer bits of the cell state for which gemmlowp's 16-bit tanh is accurate
_ONE, _HALF = (1 << 15) - 1, 1 << 14  # in Q0.15
_ONE_OF_TWO = 1 << 13  # one in Q2.13
# gemmlowp's 32-bit constants, rounded to 16 bits as gemmlowp does
_EXP_OF_MINUS_EIGHTH, _ONE_THIRD = 28918, 10923
_FORTYEIGHT_OVER_17, _MINUS_32_OVER_17 = 23130, -15420
_EXP_STEPS = (25520, 19875, 12055, 4435, 600, 11, 0)  # exp(-2^e) for e in -2 .. 4
_QUARTER = -2


@dataclass(frozen=True, slots=True)
class Gates:
    """Weights and scales for all gates, in the order input (unless coupled), forget, cell, output.

    `weights` int8 [gates, units, depth], `recurrent` int8 [gates, units, states], `bias` int32 [gates, units]; `scales`
    and `recurrent_scales`, one per gate, are the real multipliers from sums of products to units of 2^-12.
    """

    weights: np.ndarray
    recurrent: np.ndarray
    bias: np.ndarray
    scales: tuple[np.float32, ...]
    recurrent_scales: tuple[np.float32, ...]
    input_zero: int
    state_zero: int

    @property
    def coupled(self) -> bool:
        return len(self.weights) == 3


@dataclass(frozen=True, slots=True)
class States:
    """Quantization of the two states: the cell's scale is a power of two, the output is `MBQM(.., scale) + zero_point`."""

    cell_exponent: int  # the scale of the cell is 2^cell_exponent
    clip: int  # bound on the stored cell's magnitude, 0 for none
    scale: np.float32
    zero_point: int


@dataclass(frozen=True, slots=True)
class Projection:
    """The product from the units to the output: int8 [states, units], and an int32 bias with the units' zero point
    included.
    """

    weights: np.ndarray
    bias: np.ndarray
    scale: np.float32  # from its sums to the output
    zero_point: int  # of the output
    clip: int  # bound on the stored output's magnitude, 0 for none


class Kept(NamedTuple):
    """What the call before has left: int8 [batch, states], and int16 [batch, units]."""

    hidden: Value
    cell: Value


class _Products(NamedTuple):
    """All gates' constants for a single product (by input or by state), in the kernel's parameter order."""

    weights: np.ndarray
    bias: np.ndarray
    multipliers: np.ndarray
    shifts: np.ndarray

    @property
    def bound(self) -> int:
        reach = 128 * np.abs(self.weights.astype("int64")).sum(axis=-1) + np.abs(self.bias.astype("int64"))
        return int(reach.max())


def lower_lstm(
    emitter: Emitter,
    x: Value,
    major: bool,
    gates: Gates,
    states: States,
    projection: Projection | None = None,
    kept: Kept | None = None,
) -> tuple[Value, Value | None]:
    """Emit the kernel over `x`, int8 [batch, steps, depth], or [steps, batch, depth] if time is `major`.

    States start at zero unless `kept`. The result is int8 in the same shape, with units (or projected states) in place
    of depth; with kept states also the last step's cells.
    """
    shape, (_, units, made) = shape_of(x), gates.recurrent.shape
    inputs = _products(gates.weights, gates.bias, gates.scales, gates.input_zero)
    none = np.zeros_like(gates.bias)
    recurrent = _products(gates.recurrent, none, gates.recurrent_scales, gates.state_zero)
    fraction = max(GATE_BITS, -states.cell_exponent - 1)
    last = _projected(projection)
    constants = [*inputs, *recurrent, exponentials(fraction), np.array(_EXP_STEPS, "int32"), *(last or ())]
    given = [emitter.new(v) for v in (x, *(kept or ()))]
    values = [*given, *(relax.const(c, str(c.dtype)) for c in constants)]
    buffers = [tirx.decl_buffer(shape_of(v), dtype_of(v), f"p{i}") for i, v in enumerate(values)]
    outs = [tirx.decl_buffer((*shape[:2], made), "int8", "out")]
    outs += [tirx.decl_buffer(shape_of(kept.cell), "int16", "cell_out")] if kept else []
    loops = _Loops(buffers, outs, (inputs, recurrent, *([last] if last else [])), states, major, fraction, projection)
    attributes = {"units": units, "coupled": gates.coupled}
    if kept is None:
        return emitter.call_func("lstm", loops.function(), values, 1, **attributes), None
    made_out, cell = emitter.call_for_each("lstm", loops.function(), values, len(given), len(outs), **attributes)
    return made_out, cell


def _projected(projection: Projection | None) -> _Products | None:
    if projection is None:
        return None
    weights, bias = projection.weights[None], projection.bias[None]
    return _Products(weights, bias, *fp.quantize_multipliers([float(projection.scale)]))


def _products(weights: np.ndarray, bias: np.ndarray, scales: Sequence[np.float32], zero: int) -> _Products:
    sums = bias.astype("int64") - zero * weights.astype("int64").sum(axis=-1)
    return _Products(weights, sums.astype("int32"), *fp.quantize_multipliers(float(s) for s in scales))


def exponentials(fraction: int) -> np.ndarray:
    """Return `exp(-(k + 1) / 2^fraction)` in Q0.15 for k in 0 .. 2^fraction / 4 - 1, by gemmlowp's polynomial around
    -1/8.
    """
    a = -(np.arange(1, (1 << fraction) // 4 + 1, dtype="int64") << (15 - fraction))
    x = a + (1 << 12)
    x2 = _srdhm16(x, x)
    x3, x4 = _srdhm16(x2, x), _srdhm16(x2, x2)
    tail = fp.rounding_divide(_srdhm16(fp.rounding_divide(x4, 2) + x3, _ONE_THIRD) + x2, 1)
    result = _EXP_OF_MINUS_EIGHTH + _srdhm16(x + tail, _EXP_OF_MINUS_EIGHTH)
    return np.minimum(result, _ONE).astype("int16")


def _srdhm16(a: np.ndarray, b: np.ndarray | int) -> np.ndarray:
    return (a * b + _HALF) >> 15


class _Loops:
    """Builds the TIR statements of the kernel."""

    def __init__(
        self,
        ins: Sequence[Value],
        outs: Sequence[Value],
        products: Sequence[_Products],
        states: States,
        major: bool,
        fraction: int,
        projection: Projection | None = None,
    ) -> None:
        self.ins, self.outs, self.x, self.out = ins, outs, ins[0], outs[0]
        self.kept = Kept(*ins[1:3]) if len(outs) > 1 else None
        self.by_sequence = [*ins[: 3 if self.kept else 1], *outs]
        ins = ins[len(self.by_sequence) - len(outs) - 1 :]  # the constants from 1 on
        self.projection = projection
        self.products = list(zip(products, (ins[1:5], ins[5:9], ins[11:15])[: len(products)], strict=True))
        self.table, self.steps = ins[9:11]
        self.states, self.major, self.fraction = states, major, fraction
        self.count, self.units = products[0].bias.shape
        self.cells = outs[1] if self.kept else tirx.decl_buffer((self.units,), "int16", "cell")
        self.lane = tirx.Var("v_b", "int32")
        self.sum = tirx.decl_buffer((1,), "int32", "lstm_acc")
        self.gate = tirx.decl_buffer((self.count,), "int32", "gate")
        self.hidden = None if projection is None else tirx.decl_buffer((self.units,), "int8", "hidden")
        # intermediates of sigmoid and tanh: the argument, the exponential, the inverse or the result
        self.held = tirx.decl_buffer((3,), "int32", "held")

    def function(self) -> Function:
        """Return the kernel's PrimFunc: a single block per sequence in the batch, since every step depends on the one
        before.
        """
        batch, steps = (int(d) for d in self.out.shape[:2])
        if self.major:
            batch, steps = steps, batch
        b, lane = tirx.Var("b", "int32"), self.lane
        body = sequence(self._begun(), loop("t", steps, lambda t: self._step(lane, t)))
        axis = tirx.IterVar(ir.Range(0, batch), lane, tirx.IterVar.DataPar)
        regions = [[self._region(p, lane) for p in side] for side in (self.ins, self.outs)]
        scratch = [*([] if self.kept else [self.cells]), self.sum, self.gate, self.held]
        scratch += [] if self.hidden is None else [self.hidden]
        block = s_tir.SBlock([axis], *regions, "lstm", body, None, scratch, [], {})
        return one_block(block, [(b, batch)], [*self.ins, *self.outs])

    def _region(self, buffer: Value, b: Scalar) -> Value:
        """Return the part of a parameter read or written by sequence `b`."""
        whole = [ir.Range(0, d) for d in buffer.shape]
        if any(buffer is p for p in self.by_sequence):
            whole[1 if self.major and len(whole) == 3 else 0] = ir.Range.from_min_extent(b, i32(1))
        return tirx.BufferRegion(buffer, whole)

    def _begun(self) -> Value:
        """Set the cells for the first step."""
        zero = tirx.const(0, "int16")
        return loop("u", self.units, lambda u: self._keep(u, self.kept.cell[self.lane, u] if self.kept else zero))

    def _cell(self, u: Scalar) -> Scalar:
        return (self.cells[self.lane, u] if self.kept else self.cells[u]).astype("int32")

    def _keep(self, u: Scalar, value: Scalar) -> Value:
        return tirx.BufferStore(self.cells, value, [self.lane, u] if self.kept else [u])

    def _step(self, b: Scalar, t: Scalar) -> Value:
        def unit(u: Scalar) -> Value:
            return sequence(
                loop("k", self.count, lambda k: self._gate(b, t, u, k)),
                self._new_cell(u),
                self._curve(self._cell(u), self.fraction + self.states.cell_exponent + 1),
                store(self.held, 2, self._tanh(self._cell(u))),
                self._output(b, t, u),
            )

        units = loop("u", self.units, unit)
        if self.projection is None:
            return units
        return sequence(units, loop("p", self.projection.weights.shape[0], lambda p: self._projected(b, t, p)))

    def _gate(self, b: Scalar, t: Scalar, u: Scalar, k: Scalar) -> Value:
        """Computes gate `k` of unit `u`: both products, then sigmoid or tanh."""
        tanh = k == i32(self.count - 2)
        return sequence(
            store(self.gate, k, i32(0)),
            *self._product(0, self.x, self._row(b, t), u, k),
            self._back(b, t, u, k),
            self._curve(
                self.gate[k],
                tirx.Select(tanh, i32(self.fraction - GATE_BITS + 1), i32(self.fraction - GATE_BITS)),
            ),
            store(self.gate, k, tirx.Select(tanh, self._tanh(self.gate[k]), self._sigmoid(self.gate[k]))),
        )

    def _back(self, b: Scalar, t: Scalar, u: Scalar, k: Scalar) -> Value:
        """Add the state's product; the state is the previous step's output."""
        later = sequence(*self._product(1, self.out, self._row(b, t - i32(1)), u, k))
        if self.kept is None:
            return tirx.IfThenElse(t > i32(0), later, None)
        first = sequence(*self._product(1, self.kept.hidden, (b,), u, k))
        steps = int(self.out.shape[0 if self.major else 1])
        return tirx.IfThenElse(t > i32(0), later, first) if steps > 1 else first

    def _row(self, b: Scalar, t: Scalar) -> tuple[Scalar, ...]:
        """Return a step's place in the input or the output."""
        return (t, b) if self.major else (b, t)

    def _product(self, which: int, source: Value, row: tuple[Scalar, ...], u: Scalar, k: Scalar) -> list[Value]:
        sums, (weights, bias, multipliers, shifts) = self.products[which]

        def add(i: Scalar) -> Value:
            product = source[(*row, i)].astype("int32") * weights[k, u, i].astype("int32")
            return store(self.sum, i32(0), self.sum[0] + product)

        scaled = fp.te_rescale_channel(self.sum[0], multipliers[k], shifts[k], sums.shifts, sums.bound)
        return [
            store(self.sum, i32(0), bias[k, u]),
            loop("i", sums.weights.shape[2], add),
            store(self.gate, k, fp.te_clamp(self.gate[k] + scaled, -_ONE - 1, _ONE, "int32")),
        ]

    def _new_cell(self, u: Scalar) -> Value:
        count, states = self.count, self.states
        forget, new = self.gate[count - 3], self.gate[count - 2]
        taken = i32(_ONE) - forget if count == 3 else self.gate[0]
        remembered = fp.te_rounding_divide(forget * self._cell(u), 15)
        added = fp.te_rounding_divide(taken * new, 30 + states.cell_exponent)
        low, high = (-states.clip, states.clip) if states.clip else (-_ONE - 1, _ONE)
        return self._keep(u, fp.te_clamp(remembered + added, low, high, "int16"))

    def _output(self, b: Scalar, t: Scalar, u: Scalar) -> Value:
        product = self.gate[self.count - 1] * self.held[2]
        scaled = fp.te_rescale(product, *fp.quantize_multiplier(float(self.states.scale)), 1 << 30)
        value = fp.te_clamp(scaled + i32(self.states.zero_point), -128, 127, "int8")
        if self.hidden is not None:
            return store(self.hidden, u, value)
        return tirx.BufferStore(self.out, value, [*self._row(b, t), u])

    def _projected(self, b: Scalar, t: Scalar, p: Scalar) -> Value:
        """Compute one step output from its units."""
        sums, (weights, bias, multipliers, shifts) = self.products[2]
        hidden, projection = self.hidden, self.projection
        assert hidden is not None and projection is not None

        def add(u: Scalar) -> Value:
            product = hidden[u].astype("int32") * weights[0, p, u].astype("int32")
            return store(self.sum, i32(0), self.sum[0] + product)

        scaled = fp.te_rescale_channel(self.sum[0], multipliers[0], shifts[0], sums.shifts, sums.bound)
        value = fp.te_clamp(scaled + i32(projection.zero_point), -128, 127, "int32")
        reach = (-projection.clip, projection.clip) if projection.clip else (-128, 127)
        return sequence(
            store(self.sum, i32(0), bias[0, p]),
            loop("i", self.units, add),
            tirx.BufferStore(self.out, fp.te_clamp(value, *reach, "int8"), [*self._row(b, t), p]),
        )

    def _curve(self, a: Scalar, shift: Scalar | int) -> Value:
        """Compute the terms for sigmoid and tanh of `a` in `held`; `|a| << shift` is in table units, 2^-fraction."""
        argument, power, inverse = (self.held[k] for k in range(3))
        shift = i32(shift) if isinstance(shift, int) else shift
        first = self.fraction + _QUARTER

        def above(e: Scalar) -> Value:
            scaled = (power * self.steps[e] + i32(_HALF)) >> i32(15)
            return store(self.held, 1, tirx.Select(((argument >> (e + i32(first))) & i32(1)) == i32(1), scaled, power))

        half = (power + i32(_ONE + 1)) >> i32(1)

        def newton(_: Scalar) -> Value:
            error = _te_srdhm16(inverse, i32(_ONE_OF_TWO) - _te_srdhm16(half, inverse))
            return store(self.held, 2, inverse + _te_saturate16(error * i32(4)))

        magnitude = tirx.Select(a < i32(0), i32(0) - a, a)
        return sequence(
            store(self.held, 0, (magnitude << shift) - i32(1)),
            store(self.held, 1, self.table[argument & i32((1 << first) - 1)].astype("int32")),
            loop("e", len(_EXP_STEPS), above),
            store(self.held, 1, tirx.Select(argument < i32(0), i32(_ONE), power)),
            store(self.held, 2, i32(_FORTYEIGHT_OVER_17) + _te_srdhm16(half, i32(_MINUS_32_OVER_17))),
            loop("n", 3, newton),
        )

    def _sigmoid(self, a: Scalar) -> Scalar:
        value = _te_saturate16(self.held[2] * i32(2))
        return tirx.Select(a == i32(0), i32(_HALF), tirx.Select(a > i32(0), value, i32(_ONE) - value))

    def _tanh(self, a: Scalar) -> Scalar:
        value = _te_saturate16((self.held[2] - i32(_ONE_OF_TWO)) * i32(4))
        return tirx.Select(a == i32(0), i32(0), tirx.Select(a > i32(0), value, i32(0) - value))


def _te_srdhm16(a: Scalar, b: Scalar) -> Scalar:
    return (a * b + i32(_HALF)) >> i32(15)


def _te_saturate16(x: Scalar) -> Scalar:
    return fp.te_clamp(x, -_ONE - 1, _ONE, "int32")
