"""Store float biases behind quantized convolutions and products as int32 with the scale `sx * sw`.

PT2E and many ONNX exporters leave biases float. Rounded half to even, in the accumulator's scale, a bias becomes the
integer added by every kernel; an accumulator moves by half a unit at most.
"""

from __future__ import annotations

import numpy as np
import tvm

from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.passes.main_rewriting import Rewriting, Value, constant_of, name_of, relax, shape_of

_PRODUCTS = ("matmul", *(f"nn.conv{r}d{t}" for r in (1, 2) for t in ("", "_transpose")))
_LARGEST = np.iinfo("int32").max


def store_biases(mod: tvm.IRModule) -> tvm.IRModule:
    """Return `mod` with float biases behind quantized convolutions and products stored as int32."""
    return _Storing(mod).run()


class _Storing(Rewriting):
    def _bind(self, var: Value, value: Value) -> None:
        folded = _folded_cast(value)
        self.renamed[var] = self.bb.emit(self._stored(value), name_hint=var.name) if folded is None else folded

    def _stored(self, value: Value) -> Value:
        """Rewrite an addition of a float constant to a quantized product; return any other value unchanged."""
        product = self._define(value.args[0]) if name_of(value) == "add" else None
        if name_of(product) not in _PRODUCTS:
            return self._returned(value)
        shaped, result = self._define(value.args[1]), shape_of(value)
        data = self._constant(shaped)
        channel = len(result) - 1 if name_of(product) == "matmul" else 1
        scales = self._scales(product)
        if data is None or scales is None or data.dtype != np.float32 or scales.size not in (1, result[channel]):
            return self._returned(value)
        if result != shape_of(value.args[0]) or not _along(shape_of(shaped), len(result), channel):
            return self._returned(value)
        real = np.broadcast_to(data.reshape(-1).astype("float64"), result[channel : channel + 1])
        whole = np.rint(real / np.broadcast_to(scales, real.shape))
        if np.abs(whole).max() > _LARGEST:
            return self._returned(value)
        stored = relax.const(whole, "int32")
        zeros = relax.const(np.zeros(scales.shape, "int32"), "int32")
        bias = self._real(Stored(stored, relax.const(scales, "float32"), zeros, 0))
        if channel < len(result) - 1:
            bias = self.bb.emit(relax.op.reshape(bias, [-1 if a == channel else 1 for a in range(len(result))]))
        return relax.op.add(self._returned(value.args[0]), bias)

    def _constant(self, value: Value) -> np.ndarray | None:
        """Return a constant, also through views and broadcasts, as torch.export writes the bias of a layer without one."""
        while name_of(value) in ("reshape", "broadcast_to"):
            value = self._define(value.args[0])
        return constant_of(value)

    def _scales(self, product: Value) -> np.ndarray | None:
        """Return the scales `sx * sw`, float64 `[1]` or `[channels]`; None if an operand is not stored or a scale is
        unusable.
        """
        found = []
        for operand in product.args[:2]:
            call = self._define(operand)
            while name_of(call) in ("permute_dims", "reshape"):
                call = self._define(call.args[0])
            stored = Stored.read_by(call)
            scale = None if stored is None else constant_of(self._define(stored.scale))
            if scale is None:
                return None
            found.append(scale.reshape(-1).astype("float64"))
        scales = found[0] * found[1]
        return scales if np.all(np.isfinite(scales)) and np.all(scales > 0) else None


def _along(shape: tuple[int, ...], rank: int, axis: int) -> bool:
    """Return True if `shape` has a single element, or broadcasts to `rank` axes only along `axis`."""
    return all(d == 1 or a == axis for a, d in enumerate(shape, rank - len(shape)))


def _folded_cast(value: Value) -> Value | None:
    """Evaluate a cast (`astype`) of a constant, such as the zero points of weights; None for any other value."""
    data = constant_of(value.args[0]) if name_of(value) == "astype" else None
    return None if data is None else relax.const(data, str(value.attrs.dtype))
