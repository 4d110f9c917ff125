"""RNNTC and NMT with simple recurrent units (Lei et al. 2017), unrolled in time, as MetaFlow's section 6 uses them.

The unit, for an input x and a state c:  f = sigmoid(x Wf + bf), r = sigmoid(x Wr + br), x~ = x W,
c' = f * c + (1 - f) * x~ and h = r * tanh(c') + (1 - r) * x. Weights are shared over time; the embedding is outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net, Value


@dataclass(frozen=True, slots=True)
class _Weights:
    """Of one layer: Relax constants, so that all time steps share them."""

    candidate: relax.Expr
    forget: relax.Expr
    reset: relax.Expr
    forget_bias: relax.Expr
    reset_bias: relax.Expr


def rnntc(steps: int = 10, hidden: int = 1024, classes: int = 10, batch: int = 1) -> IRModule:
    """Text classification: one recurrent layer over `steps` words, a dense layer and a softmax on the last state."""
    net = _Recurrent(hidden)
    words = [net.net.input((batch, hidden), f"word{t}") for t in range(steps)]
    last = net.layer(words)[-1]
    return net.net.finish(net.net.softmax(net.net.dense(last, classes)))


def nmt(steps: int = 10, hidden: int = 1024, batch: int = 1) -> IRModule:
    """Translation: an encoder of two recurrent layers and a decoder of two, which starts from the encoder's states."""
    net = _Recurrent(hidden)
    words = [net.net.input((batch, hidden), f"source{t}") for t in range(steps)]
    targets = [net.net.input((batch, hidden), f"target{t}") for t in range(steps)]
    states: list[Value] = []
    encoded = words
    for _ in range(2):
        encoded = net.layer(encoded, states=states)
    decoded = targets
    for k in range(2):
        decoded = net.layer(decoded, first=states[k])
    return net.net.finish(decoded)


def sru_cell(hidden: int = 1024, batch: int = 1) -> IRModule:
    """One unit, with the state as a second input."""
    net = _Recurrent(hidden)
    x, c = net.net.input((batch, hidden), "x"), net.net.input((batch, hidden), "c")
    h, c = net.unit(x, c, net.weights())
    return net.net.finish([h, c])


class _Recurrent:
    def __init__(self, hidden: int) -> None:
        self.net = Net("float32")
        self.hidden = hidden
        self._random = np.random.default_rng(7)
        self._one = relax.const(np.ones((), "float32"), "float32")

    def weights(self) -> _Weights:
        n = self.hidden
        square = [relax.const(self._random.standard_normal((n, n)) / n**0.5, "float32") for _ in range(3)]
        vectors = [relax.const(self._random.normal(0, 0.1, n), "float32") for _ in range(2)]
        return _Weights(*square, *vectors)

    def layer(self, xs: Sequence[Value], first: Value | None = None, states: list[Value] | None = None) -> list[Value]:
        """Outputs at every step; appends the last state to `states`."""
        weights = self.weights()
        batch = xs[0].shape[0]
        state = first or Value(relax.const(np.zeros((batch, self.hidden), "float32"), "float32"), (batch, self.hidden))
        outputs = []
        for x in xs:
            out, state = self.unit(x, state, weights)
            outputs.append(out)
        if states is not None:
            states.append(state)
        return outputs

    def unit(self, x: Value, c: Value, w: _Weights) -> tuple[Value, Value]:
        """Output and next state."""
        net = self.net
        candidate = self._product(x, w.candidate)
        forget = net.sigmoid(self._plus(self._product(x, w.forget), w.forget_bias))
        reset = net.sigmoid(self._plus(self._product(x, w.reset), w.reset_bias))
        c = self._blend(forget, c, candidate)
        return self._blend(reset, net.tanh(c), x), c

    def _product(self, x: Value, w: relax.Expr) -> Value:
        return self.net.matmul(x, Value(w, (self.hidden, self.hidden)))

    def _plus(self, x: Value, b: relax.Expr) -> Value:
        return self.net.add(x, Value(b, (self.hidden,)))

    def _blend(self, gate: Value, a: Value, b: Value) -> Value:
        """gate * a + (1 - gate) * b, the four operators of MetaFlow's section 3."""
        net = self.net
        other = Value(net._emit(relax.op.subtract(self._one, gate.expr)), gate.shape)
        return net.add(net.mul(gate, a), net.mul(other, b))
