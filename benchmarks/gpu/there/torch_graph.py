"""A network's record as a PyTorch module with the same weights.

`OPERATORS` can be read without PyTorch, `module` needs it.
"""

# torch is an extra.
# pyright: reportMissingImports=false, reportOptionalMemberAccess=false
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

try:
    import torch
    from torch.nn import functional as F
except ImportError:
    torch = F = None

Tensor = Any
Attrs = Mapping[str, Any]


def unknown(record: Mapping[str, Any]) -> set[str]:
    """Kinds of operators of a record that have no counterpart here."""
    return {n["kind"] for n in record["nodes"]} - set(OPERATORS) - {"split"}


def module(record: Mapping[str, Any], constants: Sequence[np.ndarray]) -> Any:
    """The `torch.nn.Module`; arguments of a call are the network's inputs in order."""
    assert torch is not None
    inputs, nodes, outputs = len(record["inputs"]), record["nodes"], record["outputs"]

    class Network(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            for k, value in enumerate(constants):
                self.register_buffer(f"constant_{k}", torch.from_numpy(np.array(value)))

        def forward(self, *arguments: Tensor) -> Any:
            values = [*arguments, *(getattr(self, f"constant_{k}") for k in range(record["constants"]))]
            assert len(arguments) == inputs
            for node in nodes:
                values += _results(node, [values[k] for k in node["inputs"]])
            results = tuple(values[k] for k in outputs)
            return results[0] if len(results) == 1 else results

    return Network()


def operands(record: Mapping[str, Any], model: Any, arguments: Sequence[Tensor]) -> Iterator[tuple[Any, list[Tensor]]]:
    """Every node of a record, with what it reads in a call of its module."""
    values = [*arguments, *(getattr(model, f"constant_{k}") for k in range(record["constants"]))]
    for node in record["nodes"]:
        read = [values[k] for k in node["inputs"]]
        yield node, read
        values += _results(node, read)


def _results(node: Mapping[str, Any], read: Sequence[Tensor]) -> Sequence[Tensor]:
    if node["kind"] == "split":
        return torch.split(read[0], list(node["attrs"]["sizes"]), dim=node["attrs"]["axis"])
    return (OPERATORS[node["kind"]](node["attrs"], *read),)


def _planes(attrs: Attrs, x: Tensor) -> Tensor:
    """In PyTorch's order of axes; a view."""
    return x if attrs["layout"] == "NCHW" else x.permute(0, 3, 1, 2)


def _back(attrs: Attrs, y: Tensor) -> Tensor:
    return y if attrs["layout"] == "NCHW" else y.permute(0, 2, 3, 1)


def _padded(attrs: Attrs, x: Tensor, value: float = 0.0) -> Tensor:
    top, left, bottom, right = attrs["padding"]
    return F.pad(x, (left, right, top, bottom), value=value) if any(attrs["padding"]) else x


def _activate(name: Any, y: Tensor) -> Tensor:
    return OPERATORS[name]({}, y) if name else y


def _conv2d(attrs: Attrs, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    top, left, bottom, right = attrs["padding"]
    x, even = _planes(attrs, x), (top, left) == (bottom, right)
    x = x if even else _padded(attrs, x)
    bias = None if b is None else b.reshape(-1)
    padding = (top, left) if even else (0, 0)
    y = F.conv2d(x, w, bias, tuple(attrs["strides"]), padding, tuple(attrs["dilation"]), attrs["groups"])
    return _back(attrs, _activate(attrs["act"], y))


def _max_pool(attrs: Attrs, x: Tensor) -> Tensor:
    x = _padded(attrs, _planes(attrs, x), -float("inf"))
    return _back(attrs, F.max_pool2d(x, tuple(attrs["kernel"]), tuple(attrs["strides"]), ceil_mode=attrs["ceil"]))


def _avg_pool(attrs: Attrs, x: Tensor) -> Tensor:
    top, left, bottom, right = attrs["padding"]
    x, kernel, strides = _planes(attrs, x), tuple(attrs["kernel"]), tuple(attrs["strides"])
    counts, ceil = bool(attrs["count_pad"]), bool(attrs["ceil"])
    if (top, left) == (bottom, right):
        return _back(attrs, F.avg_pool2d(x, kernel, strides, (top, left), ceil, counts))
    y = F.avg_pool2d(_padded(attrs, x), kernel, strides, ceil_mode=ceil)
    if not counts:
        y = y / _share(tuple(x.shape[2:]), x.device, kernel, strides, tuple(attrs["padding"]), ceil).to(y.dtype)
    return _back(attrs, y)


@cache
def _share(size: tuple[int, ...], device: Any, kernel: tuple, strides: tuple, padding: tuple, ceil: bool) -> Tensor:
    """The part of every window that lies inside of the image."""
    ones = torch.ones((1, 1, *size), device=device)
    return F.avg_pool2d(_padded({"padding": padding}, ones), kernel, strides, ceil_mode=ceil)


def _matmul(attrs: Attrs, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    y = a @ b
    return _activate(attrs["act"], y if c is None else y + c)


def _batch_norm(attrs: Attrs, x: Tensor, *parameters: Tensor) -> Tensor:
    shape = [1] * x.ndim
    shape[attrs["axis"]] = -1
    gamma, beta, mean, var = (p.reshape(shape) for p in parameters)
    return (x - mean) * (gamma / torch.sqrt(var + attrs["eps"])) + beta


OPERATORS: dict[str, Callable[..., Tensor]] = {
    "conv2d": _conv2d,
    "matmul": _matmul,
    "max_pool2d": _max_pool,
    "avg_pool2d": _avg_pool,
    "batch_norm": _batch_norm,
    "softmax": lambda a, x: torch.softmax(x, a["axis"]),
    "mean": lambda a, x: x.mean(tuple(a["axes"]), keepdim=bool(a["keepdims"])),
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
