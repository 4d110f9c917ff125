"""Fold batch normalizations with constant statistics into the convolution before, or into one factor and one term.

TVM computes a normalization in four operators, with a square root and a division for every element.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_cascade.passes.main_rewriting import Rewriting, Value, bindings_of, constant_of, name_of, relax, shape_of
from tvm_cascade.passes.relax_functions import substitute

# layout of a convolution's weights, and their axis of output channels
_OUTPUTS = {
    "nn.conv1d": ("OIW", 0),
    "nn.conv2d": ("OIHW", 0),
    "nn.conv1d_transpose": ("IOW", 1),
    "nn.conv2d_transpose": ("IOHW", 1),
}


def fold_batch_norms(mod: Any) -> Any:
    """Return `mod` with the float32 batch normalizations of `main` folded; `mod` itself where there are none."""
    if not any(name_of(b.value) == "nn.batch_norm" for b in bindings_of(mod["main"])):
        return mod
    return _Folding(mod).run()


class _Folding(Rewriting):
    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self.readers: dict[Value, int] = {}
        for value in (*(b.value for b in bindings_of(self.main)), self.main.body.body):
            for var in relax.analysis.free_vars(value):
                self.readers[var] = self.readers.get(var, 0) + 1

    def _bind(self, var: Value, value: Value) -> None:
        norm = self._define(value.tuple_value) if isinstance(value, relax.TupleGetItem) else None
        affine = _affine(norm) if norm is not None and value.index == 0 else None
        if norm is None or affine is None:
            self.renamed[var] = self.bb.emit(substitute(value, self.renamed), name_hint=var.name)
            return
        x, (factor, term) = norm.args[0], affine
        folded = self._convolution(x, factor, term)
        if folded is None:
            places = [-1 if axis == 1 else 1 for axis in range(len(shape_of(x)))]
            scaled = relax.op.multiply(substitute(x, self.renamed), _constant(factor.reshape(places)))
            folded = self.bb.emit(scaled), term.reshape(places)
        self.renamed[var] = self.bb.emit(relax.op.add(folded[0], _constant(folded[1])), name_hint=var.name)

    def _convolution(self, x: Value, factor: np.ndarray, term: np.ndarray) -> tuple[Value, np.ndarray] | None:
        """Return the convolution read only by a normalization, with scaled weights, and its bias; None without such a
        convolution.
        """
        channels, bias, call = len(factor), np.zeros(1), self._own(x)
        if name_of(call) == "add":
            given = [self._constant(a) for a in call.args]
            bias = next((g for g in given if g is not None), None)
            if bias is None or not _per_channel(bias, len(shape_of(x))):
                return None
            call = self._own(call.args[0] if given[0] is None else call.args[1])
        if name_of(call) not in _OUTPUTS or shape_of(call) != shape_of(x):
            return None
        weights, (layout, axis) = self._constant(call.args[1]), _OUTPUTS[name_of(call)]
        grouped = axis == 1 and int(call.attrs.groups) > 1
        if weights is None or str(call.attrs.kernel_layout) != layout or grouped:
            return None
        places = [-1 if a == axis else 1 for a in range(weights.ndim)]
        scaled = _constant(weights.astype("float64") * factor.reshape(places))
        source = substitute(call.args[0], self.renamed)
        made = self.bb.emit(relax.Call(call.op, [source, scaled], call.attrs, call.ty_args))
        total = np.broadcast_to(bias.astype("float64").ravel(), channels) * factor + term
        return made, total.reshape([-1 if a == 1 else 1 for a in range(len(shape_of(x)))])

    def _own(self, value: Value) -> Value:
        """Return the expression bound to a variable with a single reader; otherwise the variable."""
        return self.definitions.get(value, value) if self.readers.get(value) == 1 else value

    def _constant(self, value: Value) -> np.ndarray | None:
        """Return a constant, also if reshaped or broadcast: PyTorch writes the missing bias of a convolution so."""
        call = self._define(value)
        move = {"reshape": np.reshape, "broadcast_to": np.broadcast_to}.get(name_of(call))
        if move is None:
            return constant_of(call)
        data = self._constant(call.args[0])
        return None if data is None else move(data, shape_of(call))


def _affine(call: Value) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a normalization's factor and term by channel; None unless both are constant."""
    if name_of(call) != "nn.batch_norm" or bool(call.attrs.training) or int(call.attrs.axis) != 1:
        return None
    given = [constant_of(a) for a in call.args[1:]]
    if str(call.args[0].ty.dtype) != "float32" or any(g is None for g in given):
        return None
    gamma, beta, mean, variance = (g.astype("float64") for g in given if g is not None)
    gamma = gamma if bool(call.attrs.scale) else np.ones_like(gamma)
    beta = beta if bool(call.attrs.center) else np.zeros_like(beta)
    factor = gamma / np.sqrt(variance + float(call.attrs.epsilon))
    return (factor, beta - mean * factor) if np.isfinite(factor).all() else None


def _per_channel(bias: np.ndarray, rank: int) -> bool:
    """Return whether an addend differs by channel alone."""
    shape = (*[1] * (rank - bias.ndim), *bias.shape)
    return bias.ndim <= rank and all(d == 1 for axis, d in enumerate(shape) if axis != 1)


def _constant(value: np.ndarray) -> Value:
    return relax.const(np.ascontiguousarray(value, dtype="float32"), "float32")
