"""A stand-in for NVIDIA's binding of cuDNN that computes with NumPy in a CPU's memory: what kernels of `cudnn` are called by."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from enum import Enum
from math import prod
from typing import Any

import numpy as np

data_type = Enum("data_type", ["HALF", "BFLOAT16", "FLOAT"])
heur_mode = Enum("heur_mode", ["A", "FALLBACK"])
numerical_note = Enum("numerical_note", ["TENSOR_CORE"])
_TYPES = {data_type.HALF: "float16", data_type.BFLOAT16: "bfloat16", data_type.FLOAT: "float32"}

launched: list[tuple[int, ...]] = []  # the result's extents of every launch


def create_handle() -> int:
    """A handle."""
    return 1


def set_stream(handle: int, stream: int) -> None:
    """Nothing: a CPU has no streams."""


class Tensor:
    """A tensor of a graph: given, or computed by a function of the values of others."""

    def __init__(self, dim: Sequence[int], compute: Callable[[dict[Tensor, int]], np.ndarray] | None = None) -> None:
        self.dim, self.compute = list(dim), compute
        self.stride: list[int] = []
        self.kind = data_type.FLOAT
        self.output = False

    def set_output(self, output: bool) -> Tensor:
        """Whether it is written to memory."""
        self.output = output
        return self

    def set_data_type(self, kind: data_type) -> Tensor:
        """Its type in memory."""
        self.kind = kind
        return self

    def set_dim(self, dim: Sequence[int]) -> Tensor:
        """Its extents, which have to be those that were inferred."""
        assert list(dim) == self.dim, (dim, self.dim)
        return self

    def set_stride(self, stride: Sequence[int]) -> Tensor:
        """Its strides in elements."""
        self.stride = list(stride)
        return self

    def memory(self, pointer: int) -> np.ndarray:
        """A view of its bytes."""
        if self.kind == data_type.BFLOAT16:
            import ml_dtypes  # noqa: F401 - NumPy knows the type then
        kind = np.dtype(_TYPES[self.kind])
        count = 1 + sum((d - 1) * s for d, s in zip(self.dim, self.stride, strict=True))
        held = (ctypes.c_char * (count * kind.itemsize)).from_address(pointer)
        return np.ndarray(self.dim, kind, memoryview(held), strides=[s * kind.itemsize for s in self.stride])

    def value(self, pointers: dict[Tensor, int]) -> np.ndarray:
        """What it holds, in float32."""
        if self.compute is None:
            return self.memory(pointers[self]).astype("float32")
        return self.compute(pointers)


class pygraph:  # the binding's name
    """A graph of operations."""

    def __init__(self, **_options: Any) -> None:
        self._outputs: list[Tensor] = []
        self._built = False

    def tensor(self, dim: Sequence[int], stride: Sequence[int], data_type: data_type) -> Tensor:
        """An operand in memory."""
        assert len(dim) == len(stride)
        return Tensor(dim).set_stride(stride).set_data_type(data_type)

    def conv_fprop(
        self,
        image: Tensor,
        weight: Tensor,
        pre_padding: Sequence[int],
        post_padding: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
        compute_data_type: data_type,
    ) -> Tensor:
        """A convolution: [n][c][h][w] by [k][c][r][s]."""
        n, _, *high = image.dim
        k, _, *taps = weight.dim
        reach = [(t - 1) * d + 1 for t, d in zip(taps, dilation, strict=True)]
        before = zip(high, pre_padding, post_padding, reach, stride, strict=True)
        out = [(h + a + b - r) // s + 1 for h, a, b, r, s in before]

        def compute(pointers: dict[Tensor, int]) -> np.ndarray:
            x, w = image.value(pointers), weight.value(pointers)
            x = np.pad(x, [(0, 0), (0, 0), *zip(pre_padding, post_padding, strict=True)])
            y = np.zeros((n, k, *out), "float32")
            for r in range(taps[0]):
                for s in range(taps[1]):
                    top, left = r * dilation[0], s * dilation[1]
                    rows = slice(top, top + (out[0] - 1) * stride[0] + 1, stride[0])
                    columns = slice(left, left + (out[1] - 1) * stride[1] + 1, stride[1])
                    y += np.einsum("nchw,kc->nkhw", x[:, :, rows, columns], w[:, :, r, s])
            return y

        return self._made([n, k, *out], compute)

    def matmul(self, A: Tensor, B: Tensor, compute_data_type: data_type) -> Tensor:
        """A product of matrices."""
        return self._made([*A.dim[:-1], B.dim[-1]], lambda p: A.value(p) @ B.value(p))

    def bias(self, input: Tensor, bias: Tensor) -> Tensor:
        """A sum with a vector."""
        return self._made(input.dim, lambda p: input.value(p) + bias.value(p))

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """A sum of two tensors."""
        assert a.dim == b.dim
        return self._made(a.dim, lambda p: a.value(p) + b.value(p))

    def relu(self, input: Tensor, lower_clip: float, upper_clip: float | None = None) -> Tensor:
        """Values within bounds."""
        return self._made(input.dim, lambda p: np.clip(input.value(p), lower_clip, upper_clip))

    def _made(self, dim: Sequence[int], compute: Callable[[dict[Tensor, int]], np.ndarray]) -> Tensor:
        self._outputs.append(Tensor(dim, compute))
        return self._outputs[-1]

    def validate(self) -> None:
        """Every tensor that is written has strides."""
        assert all(t.stride for t in self._outputs if t.output)

    def build_operation_graph(self) -> None:
        """Nothing."""

    def create_execution_plans(self, modes: Sequence[heur_mode]) -> None:
        """Nothing."""

    def deselect_numeric_notes(self, notes: Sequence[numerical_note]) -> None:
        """Nothing."""

    def check_support(self) -> None:
        """Nothing."""

    def build_plans(self) -> None:
        """From now on it can be executed."""
        self._built = True

    def get_workspace_size(self) -> int:
        """Bytes of working memory."""
        return 16

    def execute(self, pointers: dict[Tensor, int], workspace: int, handle: int) -> None:
        """Compute what is written, in the memory of `pointers`."""
        assert self._built and workspace
        for tensor in self._outputs:
            if tensor.output:
                made = tensor.value(pointers)
                assert prod(made.shape) == prod(tensor.dim)
                tensor.memory(pointers[tensor])[...] = made.astype(_TYPES[tensor.kind])
                launched.append(tuple(tensor.dim))
