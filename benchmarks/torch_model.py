"""A network of the zoo as a PyTorch module with the same weights, to compare with: float operators of `read_function`."""

# torch is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from tvm_cascade.errors import UnsupportedOperatorError
from tvm_cascade.passes.substitution_write import fold
from tvm_cascade.substitution.dag import Dag, Ref

Operator = Callable[..., torch.Tensor]


class TorchModel(torch.nn.Module):
    """The operators of a `Dag` in order; arguments of a call are its inputs in order.

    Raises `UnsupportedOperatorError` for operators that have no counterpart here.
    """

    def __init__(self, dag: Dag, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.nodes = dag.nodes
        self.outputs = dag.outputs
        self.inputs = dag.inputs
        unknown = {n.kind for n in self.nodes} - set(_OPERATORS) - {"split"}
        if unknown:
            raise UnsupportedOperatorError("the PyTorch model", sorted(unknown), sorted(_OPERATORS))
        self.constants = {ref: f"constant_{k}" for k, ref in enumerate(dag.constants())}
        for ref, value in fold(dag, weights).items():
            self.register_buffer(self.constants[ref], torch.from_numpy(np.array(value)))

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        tensors = dict(zip(self.inputs, arguments, strict=True))
        tensors |= {ref: getattr(self, name) for ref, name in self.constants.items()}
        for node in self.nodes:
            attrs: dict[str, Any] = dict(node.attrs)
            read = [tensors[r] for r in node.inputs]
            if node.kind == "split":
                outputs: tuple[torch.Tensor, ...] = torch.split(read[0], list(attrs["sizes"]), dim=attrs["axis"])
            else:
                outputs = (_OPERATORS[node.kind](attrs, *read),)
            tensors |= {Ref(node, port): value for port, value in enumerate(outputs)}
        results = tuple(tensors[r] for r in self.outputs)
        return results[0] if len(results) == 1 else results


def _planes(attrs: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    """In PyTorch's order of axes; a view."""
    return x if attrs["layout"] == "NCHW" else x.permute(0, 3, 1, 2)


def _back(attrs: Mapping[str, Any], y: torch.Tensor) -> torch.Tensor:
    return y if attrs["layout"] == "NCHW" else y.permute(0, 2, 3, 1)


def _padded(attrs: Mapping[str, Any], x: torch.Tensor, value: float = 0.0) -> torch.Tensor:
    top, left, bottom, right = attrs["padding"]
    return F.pad(x, (left, right, top, bottom), value=value) if any(attrs["padding"]) else x


def _activate(name: Any, y: torch.Tensor) -> torch.Tensor:
    return _OPERATORS[name]({}, y) if name else y


def _conv2d(attrs: Mapping[str, Any], x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    top, left, bottom, right = attrs["padding"]
    x, even = _planes(attrs, x), (top, left) == (bottom, right)
    x = x if even else _padded(attrs, x)
    bias = None if b is None else b.reshape(-1)
    padding = (top, left) if even else (0, 0)
    y = F.conv2d(x, w, bias, tuple(attrs["strides"]), padding, tuple(attrs["dilation"]), attrs["groups"])
    return _back(attrs, _activate(attrs["act"], y))


def _max_pool(attrs: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    x = _padded(attrs, _planes(attrs, x), -float("inf"))
    return _back(attrs, F.max_pool2d(x, tuple(attrs["kernel"]), tuple(attrs["strides"]), ceil_mode=attrs["ceil"]))


def _avg_pool(attrs: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    top, left, bottom, right = attrs["padding"]
    x, kernel, strides = _planes(attrs, x), tuple(attrs["kernel"]), tuple(attrs["strides"])
    counts, ceil = bool(attrs["count_pad"]), bool(attrs["ceil"])
    if (top, left) == (bottom, right):
        return _back(attrs, F.avg_pool2d(x, kernel, strides, (top, left), ceil, counts))
    y = F.avg_pool2d(_padded(attrs, x), kernel, strides, ceil_mode=ceil)
    if not counts:
        y = y / _share(x.shape[2:], x.device, kernel, strides, tuple(attrs["padding"]), ceil)
    return _back(attrs, y)


@cache
def _share(
    size: tuple[int, ...], device: torch.device, kernel: tuple, strides: tuple, padding: tuple, ceil: bool
) -> torch.Tensor:
    """The part of every window that lies inside of the image."""
    ones = torch.ones((1, 1, *size), device=device)
    return F.avg_pool2d(_padded({"padding": padding}, ones), kernel, strides, ceil_mode=ceil)


def _matmul(attrs: Mapping[str, Any], a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> torch.Tensor:
    y = a @ b
    return _activate(attrs["act"], y if c is None else y + c)


def _batch_norm(attrs: Mapping[str, Any], x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    shape = [1] * x.ndim
    shape[attrs["axis"]] = -1
    gamma, beta, mean, var = (p.reshape(shape) for p in parameters)
    return (x - mean) * (gamma / torch.sqrt(var + attrs["eps"])) + beta


_OPERATORS: dict[str, Operator] = {
    "conv2d": _conv2d,
    "matmul": _matmul,
    "max_pool2d": _max_pool,
    "avg_pool2d": _avg_pool,
    "batch_norm": _batch_norm,
    "softmax": lambda a, x: torch.softmax(x, a["axis"]),
    "mean": lambda a, x: x.mean(tuple(a["axes"]), keepdim=a["keepdims"]),
    "concat": lambda a, *xs: torch.cat(xs, a["axis"]),
    "transpose": lambda a, x: x.permute(tuple(a["perm"])),
    "reshape": lambda a, x: x.reshape(tuple(a["shape"])),
    "clip": lambda a, x: torch.clamp(x, a["low"], a["high"]),
    "add": lambda a, x, y: x + y,
    "sub": lambda a, x, y: x - y,
    "mul": lambda a, x, y: x * y,
    "div": lambda a, x, y: x / y,
    "maximum": lambda a, x, y: torch.maximum(x, y),
    "minimum": lambda a, x, y: torch.minimum(x, y),
    "relu": lambda a, x: torch.relu(x),
    "relu6": lambda a, x: torch.clamp(x, 0.0, 6.0),
    "sigmoid": lambda a, x: torch.sigmoid(x),
    "tanh": lambda a, x: torch.tanh(x),
    "exp": lambda a, x: torch.exp(x),
    "sqrt": lambda a, x: torch.sqrt(x),
    "neg": lambda a, x: -x,
}
